//! Unwinds every sample of a recording and compares the frames with what `perf script` says for the same file.
//!
//! The last line is one of a table: how many stacks are complete, here and by perf. perf does not say how a walk ended, so one of its
//! stacks counts as complete if its outermost frame is one at which walks here found the root.
//!
//! `cargo run --release --example unwind_against_perf -- perf.data [how many differences to print]`
use std::collections::{BTreeMap, HashSet};

#[path = "../tests/suite/perf_script.rs"]
mod perf_script;
#[path = "../tests/suite/recorded.rs"]
mod recorded;

use kymo_symbols::unwind::{Convention, MAX_FRAMES, Stop, UnwindModules, Unwinder};

fn main() {
    let mut args = std::env::args().skip(1);
    let path = std::path::PathBuf::from(args.next().expect("usage: unwind_against_perf FILE [SHOWN]"));
    let shown: usize = args.next().and_then(|n| n.parse().ok()).unwrap_or(3);
    let modules = UnwindModules::new();
    let samples = recorded::samples(&path, &modules);
    let mut theirs = perf_script::stacks(&path).expect("perf script");
    let mut unwinder = Unwinder::new(Convention::Perf);
    let mut classes: BTreeMap<&str, (usize, BTreeMap<String, usize>)> = BTreeMap::new();
    let (mut roots, mut outermost) = (HashSet::new(), Vec::new());
    for sample in &samples {
        let mut frames = Vec::new();
        let stop = unwinder.unwind(&sample.space, &sample.regs, &sample.stack, MAX_FRAMES, &mut frames);
        let ours: Vec<u64> = frames.iter().map(|&ip| perf_script::shown(&sample.space, ip)).collect();
        let theirs = theirs.get_mut(&sample.key).and_then(|s| s.pop()).unwrap_or_default();
        if stop == Stop::Root {
            roots.extend(ours.last().copied());
        }
        outermost.extend(theirs.last().copied());
        let class = perf_script::compare(&ours, &theirs);
        let entry = classes.entry(class).or_default();
        entry.0 += 1;
        *entry.1.entry(format!("{stop:?}")).or_default() += 1;
        if class != "equal" && entry.0 <= shown {
            println!("--- {class}: {:?} stopped by {stop:?}", sample.key);
            println!("ours   {ours:x?}\nperf   {theirs:x?}\navma   {frames:x?}");
            println!(
                "sp {:x} bp {:x?} stack {} bytes",
                sample.regs.sp(),
                sample.regs.get(6),
                sample.stack.len()
            );
        }
    }
    println!("{} samples", samples.len());
    for (class, (count, stops)) in &classes {
        println!("{count:8} {:6.2} %  {class}  {stops:?}", *count as f64 * 100.0 / samples.len() as f64);
    }
    for cause in Stop::ALL {
        println!("{:8} {}", unwinder.stats().stopped(cause), cause.label());
    }
    println!("{:?} {:?}", unwinder.stats(), modules.problems());
    let stats = unwinder.stats();
    let causes: Vec<String> = (Stop::ALL.iter().skip(1).filter(|&&cause| stats.stopped(cause) > 0))
        .map(|&cause| format!("{} {}", stats.stopped(cause), cause.label()))
        .collect();
    let share = |count: u64| count as f64 * 100.0 / samples.len().max(1) as f64;
    let perfs = outermost.iter().filter(|frame| roots.contains(frame)).count() as u64;
    println!(
        "complete: {} stacks, kymo {:.2} %, perf {:.2} %, equal {:.2} %; cut short here: {}",
        samples.len(),
        share(stats.stopped(Stop::Root)),
        share(perfs),
        share(classes.get("equal").map_or(0, |class| class.0) as u64),
        if causes.is_empty() { "none".to_string() } else { causes.join(", ") },
    );
}
