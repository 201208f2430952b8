//! Times `read_parallel` over a recording:
//! `cargo run --release -p kymo-data --example scan -- perf.data [threads]`.

use kymo_data::Recording;
use kymo_data::abi::PERF_RECORD_SAMPLE;
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

#[derive(Default)]
struct Counts {
    samples: u64,
    frames: u64,
    errors: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: scan perf.data [threads]")?;
    let threads = args.next().map_or(Ok(0), |text| text.parse())?;
    let opening = Instant::now();
    let recording = Recording::open(Arc::new(std::fs::File::open(&path)?), Vec::new())?;
    println!("open: {:.1} ms, {} events", opening.elapsed().as_secs_f64() * 1e3, recording.events.list.len());
    for problem in &recording.problems {
        println!("problem: {problem}");
    }
    for what in ["walk", "walk again", "parse", "parse again"] {
        let parse = what.starts_with("parse");
        let start = Instant::now();
        let (counts, summary) = recording.read_parallel(
            threads,
            Counts::default,
            |counts, chunk| {
                for record in chunk.records().flatten() {
                    if !parse || record.header.kind != PERF_RECORD_SAMPLE {
                        counts.samples += u64::from(record.header.kind == PERF_RECORD_SAMPLE);
                        continue;
                    }
                    let event =
                        recording.events.event_of(&record).and_then(|at| recording.events.list.get(at));
                    match event.map(|event| event.layout.parse_record(&record)) {
                        Some(Ok(sample)) => {
                            counts.samples += 1;
                            counts.frames += sample.callchain.map_or(0, |chain| chain.len() as u64);
                        }
                        _ => counts.errors += 1,
                    }
                }
            },
            &|_, _| {},
        )?;
        let seconds = start.elapsed().as_secs_f64();
        let sum = |of: fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
        println!(
            "{what:>11}: {:.0} MB/s, {:.2} M records/s, {} records, {} samples, {} frames, {} errors, {:.1} ms",
            summary.bytes as f64 / seconds / 1e6,
            summary.records as f64 / seconds / 1e6,
            summary.records,
            sum(|c| c.samples),
            sum(|c| c.frames),
            sum(|c| c.errors),
            seconds * 1e3
        );
        for problem in &summary.problems {
            println!("problem: {problem}");
        }
    }
    Ok(())
}
