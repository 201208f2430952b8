//! `kymo bench record load`: what the storm records. On each CPU two threads that do nothing but wake each other: two context switches an
//! operation, and each of them a sample.
//!
//! ```text
//!  CPU 3   first                second
//!          write ping ------->  (wakes)
//!          read pong: sleeps    read ping
//!          (wakes)  <---------  write pong
//!                               read ping: sleeps
//! ```
//!
//! A pace is kept in bursts: as many operations as are due, then a nap. So the time of an operation can be told apart from the
//! time in which none was due: *busy* time is that of the bursts alone.

use std::hint::black_box;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use kymo_perf::sys;
use serde_json::{Value, json};

use super::search::Pace;
use kymo_cli::parse::{Cpus, parse_cpus};

/// The shortest sleep between bursts.
const NAP: Duration = Duration::from_millis(1);
/// So many operations are done between two looks at the clock.
const ROUND: u64 = 8;
/// The longest load: nobody waits for more.
const LONGEST_S: f64 = 600.0;

/// Two threads on each CPU that wake each other, for the storm
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// The CPUs
    #[arg(short = 'C', long = "cpu", value_name = "CPUS", value_parser = parse_cpus)]
    cpus: Cpus,
    /// Context switches per second on each CPU; 0: as many as possible
    #[arg(long, value_name = "HZ", default_value = "0")]
    rate: u64,
    /// How long
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = super::seconds)]
    seconds: f64,
    /// At least so much stack below each thread's start
    #[arg(long, value_name = "BYTES", default_value = "0")]
    stack: usize,
}

/// The options that make a load of this kind.
pub(super) fn arguments(cpus: &[u32], pace: Pace, length: Duration, stack_bytes: u32) -> Vec<String> {
    let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
    let rate = match pace {
        Pace::Free => 0,
        Pace::PerCpu(rate) => rate,
    };
    let words = ["bench", "record", "load", "-C", &cpus.join(","), "--rate", &rate.to_string(), "--seconds"];
    let words = words.into_iter().map(str::to_owned);
    words.chain([length.as_secs_f64().to_string(), "--stack".into(), stack_bytes.to_string()]).collect()
}

/// What a load did, over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Done {
    pub(super) operations: u64,
    /// Context switches of its threads as the kernel counted them.
    pub(super) switches: u64,
    /// From the first operation to the last, the longest of all CPUs.
    pub(super) elapsed_ns: u64,
    /// Time in which operations were due, sum over the CPUs.
    pub(super) busy_ns: u64,
}

impl Done {
    /// What the load said about itself.
    pub(super) fn parse(said: &str) -> anyhow::Result<Done> {
        let value: Value = serde_json::from_str(said.trim()).context("the load said no figures")?;
        let number = |name| {
            value.get(name).and_then(Value::as_u64).with_context(|| format!("the load said no {name}"))
        };
        Ok(Done {
            operations: number("operations")?,
            switches: number("switches")?,
            elapsed_ns: number("elapsed_ns")?,
            busy_ns: number("busy_ns")?,
        })
    }

    /// Time of one operation, in microseconds.
    pub(super) fn operation_us(&self) -> f64 {
        self.busy_ns as f64 / 1e3 / self.operations.max(1) as f64
    }
}

/// Runs the load and prints what it did.
pub(crate) fn run(args: LoadArgs) -> anyhow::Result<ExitCode> {
    let length = Duration::from_secs_f64(args.seconds.min(LONGEST_S));
    let start = Barrier::new(args.cpus.0.len());
    let done = thread::scope(|scope| {
        let start = &start;
        let pairs: Vec<_> = args
            .cpus
            .0
            .iter()
            .map(|&cpu| {
                let pair = move || pair(cpu, args.rate, length, args.stack, start);
                crate::needed(thread::Builder::new().spawn_scoped(scope, pair))
            })
            .collect();
        let mut all = Done::default();
        for pair in pairs {
            let one = pair.join().map_err(|_| anyhow::anyhow!("a thread of the load panicked"))??;
            all.operations += one.operations;
            all.switches += one.switches;
            all.elapsed_ns = all.elapsed_ns.max(one.elapsed_ns);
            all.busy_ns += one.busy_ns;
        }
        anyhow::Ok(all)
    })?;
    let Done { operations, switches, elapsed_ns, busy_ns } = done;
    writeln!(
        std::io::stdout(),
        "{}",
        json!({ "operations": operations, "switches": switches, "elapsed_ns": elapsed_ns, "busy_ns": busy_ns })
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Two threads on this CPU, one after the other.
fn pair(cpu: u32, rate: u64, length: Duration, stack: usize, start: &Barrier) -> anyhow::Result<Done> {
    let made = pipes().context("failed to make pipes");
    let pinned = sys::pin_to(cpu).with_context(|| format!("failed to move to CPU {cpu}"));
    // Before anything can fail: the others wait.
    start.wait();
    let ((ping_out, ping_in), (pong_out, pong_in)) = made?;
    pinned?;
    // Room for what is below and above the copied part.
    let room = stack + (256 << 10);
    thread::scope(|scope| {
        // A thread begins on the CPUs of the one that made it.
        let second = thread::Builder::new().stack_size(room);
        let second = second.spawn_scoped(scope, move || deep(stack, &mut || answer(&ping_out, &pong_in)));
        let first = thread::Builder::new().stack_size(room);
        let first = first.spawn_scoped(scope, move || {
            let mut done = Ok(Done::default());
            deep(stack, &mut || {
                done = drive(&ping_in, &pong_out, rate, length).context("failed to use a pipe");
                0
            });
            // With it ends what the second one reads.
            drop(ping_in);
            done
        });
        let (first, second) =
            (first.context("failed to start a thread")?, second.context("failed to start a thread")?);
        let panicked = |_| anyhow::anyhow!("a thread of the load panicked");
        let mut done = first.join().map_err(panicked)??;
        done.switches += second.join().map_err(panicked)?;
        Ok(done)
    })
}

type Pipe = (PipeReader, PipeWriter);

fn pipes() -> std::io::Result<(Pipe, Pipe)> {
    Ok((std::io::pipe()?, std::io::pipe()?))
}

/// Operations at a pace until the time is over.
fn drive(mut ping: &PipeWriter, mut pong: &PipeReader, rate: u64, length: Duration) -> std::io::Result<Done> {
    // At low rates a burst is one round, and what is waited for is the next.
    let nap = NAP.max(Duration::from_nanos((2 * ROUND + 1) * 1_000_000_000 / rate.max(1)).min(length / 4));
    let (begin, mut naps) = (Instant::now(), 0);
    let (mut done, mut byte) = (Done::default(), [0]);
    loop {
        let now = begin.elapsed();
        if now >= length {
            break;
        }
        let due = match rate {
            0 => u64::MAX,
            // A nap is a switch, an operation two.
            rate => ((now.as_nanos() as u64).saturating_mul(rate) / 1_000_000_000).saturating_sub(naps) / 2,
        };
        let (burst, mut spent) = (Instant::now(), Duration::ZERO);
        while done.operations < due && now + spent < length {
            for _ in 0..ROUND {
                ping.write_all(&[0])?;
                pong.read_exact(&mut byte)?;
            }
            done.operations += ROUND;
            spent = burst.elapsed();
        }
        done.busy_ns += spent.as_nanos() as u64;
        if rate != 0 {
            thread::sleep(nap);
            naps += 1;
        }
    }
    done.elapsed_ns = begin.elapsed().as_nanos() as u64;
    done.switches = switches();
    Ok(done)
}

/// Answers until nobody asks any more; how often the thread was switched away from.
fn answer(mut ping: &PipeReader, mut pong: &PipeWriter) -> u64 {
    let mut byte = [0];
    while ping.read_exact(&mut byte).is_ok() && pong.write_all(&byte).is_ok() {}
    switches()
}

/// How often the calling thread was switched away from; 0 where the kernel does not tell.
fn switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
    counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}

/// Calls `inner` with at least so many bytes of stack below: few frames, so that unwinding costs what it costs anywhere.
#[inline(never)]
fn deep(bytes: usize, inner: &mut dyn FnMut() -> u64) -> u64 {
    let frame = black_box([0u8; 4096]);
    let found = if bytes > frame.len() { deep(bytes - frame.len(), inner) } else { inner() };
    // The frame is in use to the end, and the call above is not the function's last act.
    black_box(&frame);
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::{Done, LoadArgs, Pace, arguments};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        load: LoadArgs,
    }

    /// Checks that the load understands the arguments that the benchmark makes for it.
    #[test]
    fn own_arguments() {
        let words = arguments(&[0, 3], Pace::PerCpu(5000), Duration::from_millis(250), 8192);
        assert_eq!(words[..3], ["bench", "record", "load"]);
        let line = Line::try_parse_from(words[2..].iter()).expect("they are understood").load;
        assert_eq!((line.cpus.0, line.rate, line.seconds, line.stack), (vec![0, 3], 5000, 0.25, 8192));
    }

    /// Checks the reading of figures, and that what is missing is named.
    #[test]
    fn figures() {
        let said = r#"{"operations":4,"switches":9,"elapsed_ns":1000,"busy_ns":8000}"#;
        let done = Done::parse(said).expect("figures");
        assert_eq!(done, Done { operations: 4, switches: 9, elapsed_ns: 1000, busy_ns: 8000 });
        assert!((done.operation_us() - 2.0).abs() < 1e-12);
        let missing = Done::parse(r#"{"operations":4}"#).expect_err("too few").to_string();
        assert!(missing.contains("switches"), "{missing}");
    }
}
