//! What columns of 1, 10 and 100 million samples cost, against counting while reading.
//!
//! `cargo run --release -p kymo-profile --example columns_scale -- FOLDER [ROUNDS [SAMPLES...]]`
//!
//! Makes recordings in FOLDER (96 bytes a sample; `--make FILE SAMPLES` makes one only), reads each
//! in turns with columns and without, and removes it. Every reading is a process of its own, so
//! that peak memory is that of one reading. Every measurement is printed, medians last.
use kymo_data::{Attr, EventSpec, Features, FileWriter, Recording, SampleId, abi, build};
use kymo_profile::load::{Dims, LoadOptions, load};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const CPUS: u64 = 4;
const PROCESSES: u64 = 8;
const THREADS: u64 = 64;
const STACKS: u64 = 20_000;
/// Samples of a CPU that lie one after another: what its ring had when it was read.
const DRAINED: u64 = 500;
/// Words of a call chain, its marker among them.
const CHAIN: u64 = 5;

const LABELS: [&str; 9] =
    ["wall ms", "cpu ms", "samples", "merge", "peak MB", "B/row", "all ms", "10% ms", "1% ms"];

type Measured = [f64; 9];

/// Wall and CPU time (all threads) since the program's start, ms.
fn now() -> (f64, f64) {
    let ms = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
    };
    (ms(ClockId::Monotonic), ms(ClockId::ProcessCPUTime))
}

fn mixed(number: u64) -> u64 {
    let mixed = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
}

/// Writes a recording of so many samples: rings of four CPUs that are read in turn.
fn generate(path: &Path, samples: u64) -> Result<(), Box<dyn Error>> {
    let mut attr = Attr {
        kind: abi::PERF_TYPE_HARDWARE,
        sample_type: abi::PERF_SAMPLE_IP
            | abi::PERF_SAMPLE_TID
            | abi::PERF_SAMPLE_TIME
            | abi::PERF_SAMPLE_CPU
            | abi::PERF_SAMPLE_PERIOD
            | abi::PERF_SAMPLE_CALLCHAIN,
        ..Attr::default()
    };
    attr.set(abi::ATTR_FLAG_SAMPLE_ID_ALL, true);
    let event = EventSpec { attr: attr.clone(), ids: vec![1], name: "cycles".to_owned() };
    let writer = FileWriter::create(File::create(path)?, &[event])?;
    let none = SampleId::default();
    let mut bytes = Vec::new();
    for tid in 0..THREADS {
        let (process, tid) = (tid % PROCESSES, 1000 + tid as i32);
        let name = format!("server{process}");
        bytes.extend(build::comm(&attr, &none, 1000 + process as i32, tid, name.as_bytes(), false));
    }
    let mut made = 0;
    let mut begin = 1_000_000;
    while made < samples {
        for cpu in 0..CPUS {
            for n in 0..DRAINED.min(samples - made) {
                let dice = mixed(begin + n * CPUS + cpu);
                // Few stacks are hot.
                let stack = (dice % STACKS).min(mixed(dice) % STACKS).min(mixed(dice + 1) % STACKS);
                // A process has stacks of its own.
                let thread = stack % PROCESSES + (dice >> 20) % (THREADS / PROCESSES) * PROCESSES;
                let (pid, tid) = (1000 + thread % PROCESSES, 1000 + thread);
                let mut words = vec![0x40_0000 + stack * 16, pid | tid << 32];
                words.extend([begin + n * 1_000 + dice % 1_000, cpu, 90_000 + dice % 20_000]);
                words.extend([CHAIN, -512_i64 as u64]);
                words.extend((1..CHAIN).map(|depth| 0x40_0000 + (stack >> (2 * (depth - 1))) * 16));
                let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                bytes.extend(build::record(abi::PERF_RECORD_SAMPLE, 2, &body));
                made += 1;
            }
        }
        begin += DRAINED * 1_000;
        bytes.extend(build::finished_round());
        if bytes.len() > 1 << 20 {
            writer.append(&bytes)?;
            bytes.clear();
        }
    }
    writer.append(&bytes)?;
    writer.finish(&Features::default())?;
    Ok(())
}

/// Peak memory of this process, MB.
fn peak_mb() -> Result<f64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<f64>()? / 1024.0)
}

/// Reads a recording once; the numbers are those of [`LABELS`].
fn measure(path: &Path, columns: bool) -> Result<Measured, Box<dyn Error>> {
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let recording = Recording::open(Arc::new(File::open(path)?), Vec::new())?;
    let (start, cpu) = now();
    let options = LoadOptions { callchains: true, columns, ..LoadOptions::default() };
    let loaded = load(&recording, &options, &|_, _, _| {})?;
    let (end, cpu_end) = now();
    let (samples, merge) = (ms(loaded.times.samples), ms(loaded.times.merge));
    let mut all = [end - start, cpu_end - cpu, samples, merge, peak_mb()?, 0.0, 0.0, 0.0, 0.0];
    if let (Some(columns), Some((first, last))) = (&loaded.columns, loaded.time_range) {
        all[5] = columns.bytes() as f64 / columns.len() as f64;
        for (at, part) in [(6, 1), (7, 10), (8, 100)] {
            // In the middle of the recording.
            let (middle, half) = (first + (last - first) / 2, (last - first) / part / 2 + 1);
            let runs = (0..9).map(|_| {
                let (start, _) = now();
                let rows = columns.rows_in(middle.saturating_sub(half)..=middle + half);
                let groups = columns.group_by(rows, Dims::default(), false);
                assert!(!groups.is_empty(), "a part of the recording has samples");
                now().0 - start
            });
            // What other programs on the machine did not disturb.
            all[at] = runs.fold(f64::INFINITY, f64::min);
        }
    }
    Ok(all)
}

fn median(mut runs: Vec<f64>) -> f64 {
    runs.sort_by(f64::total_cmp);
    runs[runs.len() / 2]
}

fn line(name: &str, values: &Measured) {
    println!("{name:<34}{}", values.map(|value| format!("{value:>10.1}")).concat());
}

fn race(folder: &Path, samples: u64, rounds: usize) -> Result<(), Box<dyn Error>> {
    let path = folder.join(format!("{samples}.data"));
    generate(&path, samples)?;
    let size = std::fs::metadata(&path)?.len();
    println!(
        "\n{:<34}{}",
        format!("{samples} samples, {size} bytes"),
        LABELS.map(|l| format!("{l:>10}")).concat()
    );
    let mut runs = [Vec::new(), Vec::new()];
    // The first round brings the file into memory, and does not count.
    for round in 0..=rounds {
        for (form, runs) in ["counted", "columns"].into_iter().zip(&mut runs) {
            let output =
                Command::new(std::env::current_exe()?).args(["--measure", form]).arg(&path).output()?;
            let text = String::from_utf8(output.stdout)?;
            let values: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
            let values: Measured = values
                .try_into()
                .map_err(|_| format!("{form}: {text} {}", String::from_utf8_lossy(&output.stderr)))?;
            if round > 0 {
                line(&format!("  {form}, run {round}"), &values);
                runs.push(values);
            }
        }
    }
    for (form, runs) in ["counted", "columns"].into_iter().zip(runs) {
        let of = |at: usize| median(runs.iter().map(|run| run[at]).collect());
        line(&format!("{form}, median"), &std::array::from_fn(of));
    }
    std::fs::remove_file(&path)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, path, samples] = &args[..]
        && flag == "--make"
    {
        return generate(Path::new(path), samples.parse()?);
    }
    if let [flag, form, path] = &args[..]
        && flag == "--measure"
    {
        let values = measure(Path::new(path), form == "columns")?;
        println!("{}", values.map(|value| value.to_string()).join(" "));
        return Ok(());
    }
    let folder = args.first().ok_or("usage: columns_scale FOLDER [ROUNDS [SAMPLES...]]")?;
    let rounds: usize = args.get(1).map_or(Ok(5), |rounds| rounds.parse())?;
    let mut samples: Vec<u64> = args.iter().skip(2).map(|count| count.parse()).collect::<Result<_, _>>()?;
    if samples.is_empty() {
        samples = vec![1_000_000, 10_000_000, 100_000_000];
    }
    let cpus = std::thread::available_parallelism()?.get();
    println!("{cpus} CPUs, {rounds} rounds; of 9 group-bys of all, 10 % and 1 % of the time the shortest");
    if let Ok(load) = std::fs::read_to_string("/proc/loadavg") {
        println!("load average before: {}", load.trim());
    }
    samples.into_iter().try_for_each(|samples| race(Path::new(folder), samples, rounds))
}
