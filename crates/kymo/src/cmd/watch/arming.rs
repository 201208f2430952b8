//! The beginning of a watch: plan, read what is there, arm.

use std::sync::Arc;
use std::time::Instant;

use kymo_data::Attr;
use kymo_perf::sys::{self, Kernel};
use kymo_perf::watch::{
    BreakpointSlots, Range, SAMPLE_TYPE, Schedule, ScheduleError, Scope, WatchOptions, Watcher, holders,
};

use super::run::{Intake, Watch};
use super::{WatchArgs, errors};
use kymo_probe::watch::condition::Condition;
use kymo_probe::watch::ledger::Ledger;
use kymo_probe::watch::place::Place;
use kymo_probe::watch::recording::Recording;
use kymo_probe::watch::rounds::Rounds;

impl<'a> Watch<'a> {
    /// Plans with the ledger of slots, reads what is there, and arms.
    pub(super) fn arm(
        args: &'a WatchArgs,
        kernel: &Arc<dyn Kernel>,
        places: &[Place],
        condition: Option<&Condition>,
        pids: &[i32],
    ) -> anyhow::Result<Watch<'a>> {
        let begun = Instant::now();
        let ranges: Vec<Range> = places.iter().map(|place| place.range).collect();
        let planned = |taken, by_cpu| -> Result<Schedule, ScheduleError> {
            let cpus = sys::online_cpus().len();
            let machine = BreakpointSlots { cpus, slots: BreakpointSlots::slots_here(), taken, by_cpu };
            Schedule::plan(&ranges, &machine, !args.no_rotate)
        };
        // Before anything is opened: what cannot be planned is refused at once.
        planned(0, true).map_err(|error| errors::no_plan(&error, places, false))?;
        let open = |scope| {
            let options = WatchOptions {
                pids: pids.to_vec(),
                scope,
                callchains: args.call_graph,
                stop: args.stop,
                with_kernel: args.kernel,
                ring_bytes: None,
            };
            Watcher::open(Arc::clone(kernel), options).map_err(|error| errors::refused(&error, places, pids))
        };
        let mut watcher = open(args.scope)?;
        let attr = attr(args);
        let (mut taken, mut by_thread_tried, mut note) = (0, args.scope.is_some(), None);
        loop {
            let by_cpu = watcher.scope() == Scope::Filtered;
            let schedule =
                planned(taken, by_cpu).map_err(|error| errors::no_plan(&error, places, taken > 0))?;
            let mut ledger = Ledger::new(places.to_vec(), &schedule, condition.cloned());
            pids.iter().for_each(|&pid| ledger.add_process(pid));
            let mut rounds = Rounds::new(&attr, watcher.ever());
            match watcher.arm(&schedule, 0, &mut |_, bytes| rounds.records(bytes)) {
                Ok(()) => {
                    let armed_in = begun.elapsed();
                    let recording = args
                        .output
                        .as_deref()
                        .map(|path| Recording::create(path, &attr, &schedule, places, pids, watcher.ever()));
                    let mut intake = Intake { rounds, recording: recording.transpose()? };
                    intake.look(&ledger);
                    let note = note.or_else(|| watcher.fallback().map(str::to_owned));
                    return Ok(Watch {
                        args,
                        watcher,
                        schedule,
                        intake,
                        ledger,
                        armed_in,
                        note,
                        read: 0,
                        left_out: 0,
                    });
                }
                // Somebody has registers of a CPU, or of a task that may run there. A single process may have its own all the same.
                Err(error) if error.no_slot() && by_cpu && !by_thread_tried => {
                    by_thread_tried = true;
                    note = Some(format!("not all registers of all CPUs are free ({})", holders()));
                    drop(watcher);
                    watcher = open(Some(Scope::Tasks))?;
                }
                Err(error) if error.no_slot() => {
                    taken += 1;
                    if watcher.scope() == Scope::Tasks && args.scope.is_none() && note.is_some() {
                        // Not that either: share those of the CPUs.
                        note = None;
                        drop(watcher);
                        watcher = open(None)?;
                    }
                }
                Err(error) => return Err(errors::refused(&error, places, pids)),
            }
        }
    }
}

/// What samples and records are laid out by.
fn attr(args: &WatchArgs) -> Attr {
    let chain = if args.call_graph { kymo_data::abi::PERF_SAMPLE_CALLCHAIN } else { 0 };
    Attr {
        sample_type: SAMPLE_TYPE | chain,
        flags: kymo_data::abi::ATTR_FLAG_SAMPLE_ID_ALL,
        ..Attr::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use kymo_core::breakpoint::Kind;
    use kymo_perf::sys::{Fake, Perf};
    use kymo_symbols::place::ValueKind;

    #[derive(Debug, Parser)]
    struct Words {
        #[command(flatten)]
        args: WatchArgs,
    }

    fn args(words: &[&str]) -> WatchArgs {
        let words = ["watch", "--scope", "tasks", "-p", "7"].iter().chain(words);
        Words::try_parse_from(words).expect("a command line").args
    }

    fn places(addresses: &[u64]) -> Vec<Place> {
        let place = |&address: &u64| Place {
            expression: format!("{address:#x}"),
            range: Range { address, bytes: 8, kind: Kind::WRITE },
            type_name: None,
            value: ValueKind::Bytes,
        };
        addresses.iter().map(place).collect()
    }

    /// What arming says where breakpoints are refused with this number, and that nothing stays open.
    fn refusal(errno: rustix::io::Errno, address: u64, options: &[&str]) -> String {
        let errno = errno.raw_os_error();
        let fake =
            Arc::new(Fake::new().rule(move |call| (call.attr.type_ == Perf::BREAKPOINT).then_some(errno)));
        let kernel: Arc<dyn Kernel> = Arc::<Fake>::clone(&fake);
        let args = args(&[options, &["0x1000"]].concat());
        let error =
            Watch::arm(&args, &kernel, &places(&[address]), None, &[i32::MAX]).err().expect("refused");
        assert_eq!(fake.live(), Vec::<i32>::new(), "nothing is left open");
        error.to_string()
    }

    /// Checks the sentence for each refusal of the kernel, that it is one line but for a hint, and that nothing stays open.
    #[test]
    fn refusals() {
        use rustix::io::Errno;
        let none = refusal(Errno::OPNOTSUPP, 0x1000, &[]);
        assert!(none.contains("no breakpoint registers"), "{none}");
        let gone = refusal(Errno::SRCH, 0x1000, &[]);
        assert!(gone.contains("ended before it could be watched"), "{gone}");
        let kernel = refusal(Errno::INVAL, 0xffff_ffff_8100_0000, &[]);
        assert!(kernel.contains("is the kernel's memory") && kernel.contains("CAP_PERFMON"), "{kernel}");
        let held = refusal(Errno::NOSPC, 0x1000, &[]);
        assert!(held.contains("breakpoint registers of a CPU are held by others: "), "{held}");
        for said in [none, gone, kernel, held] {
            assert!(!said.contains('\n'), "{said}");
        }
    }

    /// Checks that registers which somebody else holds are planned around: with one free, two places take turns, or are refused with the
    /// holders.
    #[test]
    fn held_registers() {
        let open = std::sync::Mutex::new(0usize);
        let fake = Arc::new(Fake::new().rule(move |call| {
            if call.attr.type_ != Perf::BREAKPOINT {
                return None;
            }
            let mut open = open.lock().expect("no panic");
            *open += 1;
            // The first attempt has the first register on all CPUs and fails at the second; so do the next two.
            let per_try = kymo_perf::sys::online_cpus().len() + 1;
            let full = *open <= 3 * per_try && (*open).is_multiple_of(per_try);
            full.then_some(rustix::io::Errno::NOSPC.raw_os_error())
        }));
        let kernel: Arc<dyn Kernel> = Arc::<Fake>::clone(&fake);
        let args = args(&["0x1000"]);
        let watch = Watch::arm(&args, &kernel, &places(&[0x1000, 0x2000]), None, &[i32::MAX]);
        let watch = watch.unwrap_or_else(|error| panic!("{error}"));
        assert!(cfg!(not(target_arch = "x86_64")) || watch.schedule.turns == [vec![0], vec![1]]);
        drop(watch);
        assert_eq!(fake.live(), Vec::<i32>::new());
    }
}
