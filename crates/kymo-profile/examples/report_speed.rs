//! Races the report engine against the obvious reader (`load::model`) on one recording, and times
//! the engine's phases.
//!
//! `cargo run --release -p kymo-profile --features model --example report_speed -- perf.data
//! [ROUNDS] [MOST_WORKERS]`
//!
//! Engine and model take turns in one process; every measurement is printed, medians last, ratios
//! at the very end. Both start with the recording opened and without symbols, and end with all
//! rows; text is timed apart, the model has none. `flat` is a table without call chains, `full` one
//! with what functions called, call graphs and inlined functions.
use kymo_data::Recording;
use kymo_profile::functions::Functions;
use kymo_profile::hist::{Hist, HistOptions, Order};
use kymo_profile::load::model::{Names, Tables, replay};
use kymo_profile::load::{LoadOptions, load};
use kymo_profile::profile::Profile;
use kymo_profile::resolve::{ResolveOptions, Resolver};
use kymo_profile::text::{Column, GraphForm, GraphOptions, TableOptions, write_table};
use kymo_symbols::{SymbolOptions, SymbolStore};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// Wall and CPU time (user and system, all threads) since the program's start, ms.
fn now() -> (f64, f64) {
    let ms = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
    };
    (ms(ClockId::Monotonic), ms(ClockId::ProcessCPUTime))
}

const PHASES: [&str; 9] =
    ["side-band", "samples", "merge", "resolve", "hist", "total", "cpu", "text", "rows"];

/// One run of the engine, in the order of [`PHASES`].
fn engine(recording: &Recording, full: bool, workers: usize) -> Result<[f64; 9], Box<dyn Error>> {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let store = SymbolStore::new(SymbolOptions::default());
    let (start, cpu) = now();
    let options = LoadOptions { callchains: full, workers, ..LoadOptions::default() };
    let loaded = load(recording, &options, &|_, _, _| {})?;
    let times = loaded.times;
    let (loading, _) = now();
    let mut functions = Functions::default();
    let resolver = Resolver::new(&loaded.timeline, &store);
    let stacks = resolver.resolve(&loaded.chains, &mut functions, ResolveOptions::default());
    drop(resolver);
    let profile =
        Profile { loaded, functions, stacks, notes: Vec::new(), absences: Vec::new(), traces: Vec::new() };
    let (resolved, _) = now();
    let keys = HistOptions::DEFAULT_KEYS.to_vec();
    let hist = HistOptions { keys: keys.clone(), children: full, ..HistOptions::default() };
    let hists: Vec<Hist> = (0..recording.events.list.len()).map(|e| Hist::new(&profile, e, &hist)).collect();
    let (end, cpu_end) = now();
    let table = TableOptions {
        columns: [Column::Overhead].into_iter().chain(keys.into_iter().map(Column::Key)).collect(),
        children: full,
        percent_limit: 0.0,
        graph: full.then_some(GraphOptions {
            form: GraphForm::Graph,
            order: Order::Caller,
            least_percent: 0.5,
        }),
        separator: None,
        ..TableOptions::default()
    };
    let mut out = Vec::new();
    for (event, hist) in recording.events.list.iter().zip(&hists) {
        write_table(&mut out, &profile, hist, &event.name, &table)?;
    }
    let text = now().0 - end;
    let rows = hists.iter().map(|h| h.rows.len()).sum::<usize>() as f64;
    Ok([
        ms(times.sideband),
        ms(times.samples),
        ms(times.merge),
        resolved - loading,
        end - resolved,
        end - start,
        cpu_end - cpu,
        text,
        rows,
    ])
}

/// One run of the model: total, CPU, rows.
fn model(recording: &Recording, full: bool) -> Result<[f64; 3], Box<dyn Error>> {
    let store = SymbolStore::new(SymbolOptions::default());
    let (start, cpu) = now();
    let options = LoadOptions { callchains: full, ..LoadOptions::default() };
    let mut names = Names::new(recording, &store, true);
    let mut tables = Tables::new(full);
    let machine = replay(recording, &options, 127, |machine, seen| tables.add(&mut names, machine, seen))?;
    let rows = tables.rows(&machine).len();
    let (end, cpu_end) = now();
    Ok([end - start, cpu_end - cpu, rows as f64])
}

fn median(runs: &[f64]) -> f64 {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn column<const N: usize>(runs: &[[f64; N]], at: usize) -> f64 {
    median(&runs.iter().map(|r| r[at]).collect::<Vec<_>>())
}

fn line(name: &str, values: &[f64]) {
    let cells: Vec<String> = values.iter().map(|v| format!("{v:>10.1}")).collect();
    println!("{name:<28}{}", cells.concat());
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: report_speed perf.data [ROUNDS] [MOST_WORKERS]")?;
    let rounds: usize = args.next().map_or(Ok(5), |n| n.parse())?;
    let cpus = std::thread::available_parallelism()?.get();
    let most: usize = args.next().map_or(Ok(cpus), |n| n.parse())?;
    let recording = Recording::open(Arc::new(std::fs::File::open(&path)?), Vec::new())?;
    println!("{path}: {} bytes of records, {cpus} CPUs, {rounds} rounds; ms", recording.data_bytes());
    if let Ok(load) = std::fs::read_to_string("/proc/loadavg") {
        println!("load average before: {}", load.trim());
    }
    let mut ratios = Vec::new();
    for (form, full) in [("flat", false), ("full", true)] {
        println!("\n{:<28}{}", form, PHASES.map(|p| format!("{p:>10}")).concat());
        // One run that is not counted brings file and code into memory.
        engine(&recording, full, most)?;
        let mut engines = vec![Vec::new(); most];
        let mut models = Vec::new();
        for round in 0..rounds {
            for workers in 1..=most {
                let run = engine(&recording, full, workers)?;
                line(&format!("  engine, {workers} workers, run {round}"), &run);
                engines[workers - 1].push(run);
            }
            let run = model(&recording, full)?;
            println!("  model, run {round:<14} total {:>8.1} cpu {:>8.1} rows {:>6}", run[0], run[1], run[2]);
            models.push(run);
        }
        for (at, runs) in engines.iter().enumerate() {
            let medians: Vec<f64> = (0..PHASES.len()).map(|p| column(runs, p)).collect();
            line(&format!("engine, {} workers, median", at + 1), &medians);
            // What other programs on the machine did not disturb.
            let least: Vec<f64> =
                (0..PHASES.len()).map(|p| runs.iter().map(|r| r[p]).fold(f64::INFINITY, f64::min)).collect();
            line(&format!("engine, {} workers, least", at + 1), &least);
        }
        let (total, cpu) = (column(&models, 0), column(&models, 1));
        println!("{:<28} total {total:>8.1} cpu {cpu:>8.1}", "model, median");
        for (at, runs) in engines.iter().enumerate() {
            ratios.push(format!(
                "{form}: model / engine with {} workers: wall {:.1}x, CPU {:.1}x",
                at + 1,
                total / column(runs, 5),
                cpu / column(runs, 6)
            ));
            assert_eq!(runs[0][8], models[0][2], "engine and model have the same number of rows");
        }
    }
    println!("\n{}", ratios.join("\n"));
    Ok(())
}
