//! Writes a dataset of simulated hosts, whose samples are drawn from the stacks of a recording.
//!
//!     kymo export --to folded --no-inline -o stacks.txt perf.data
//!     cd fleet && cargo run --release --example simulate -- ../stacks.txt DIR [HOSTS [MINUTES [RATE [FILE]]]]
//!
//! Each host takes RATE samples a minute, as often from each stack as the recording has it, and
//! adds up those that are alike, as `kymo daemon` does, and begins new files after FILE minutes. It prints how many samples and nanoseconds
//! it has written: the sums that a query must find.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use kymo_dataset::rows::ON_CPU;
use kymo_dataset::{
    BuildRow, DatasetFolder, DatasetWriter, EventRow, FrameKind, FrameRow, HostRow, LocationRow,
    ProcessNumber, ProcessRow, SampleValue, StackNumber,
};

/// 2026-11-26 00:00 UTC.
const START_NS: i64 = 1_795_651_200_000_000_000;
const MINUTE_NS: i64 = 60_000_000_000;
/// A sample of 19 a second.
const PERIOD_NS: i64 = 52_631_579;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A stack of the recording: the command, its functions from the outermost, and samples up to it.
struct Folded<'a> {
    command: &'a str,
    functions: Vec<&'a str>,
    samples_up_to: u64,
}

fn parse(text: &str) -> Result<Vec<Folded<'_>>> {
    let mut stacks = Vec::new();
    let mut all = 0;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (stack, count) = line.rsplit_once(' ').ok_or("a line without a number")?;
        let mut names = stack.split(';');
        all += count.parse::<u64>()?;
        let command = names.next().ok_or("a line without a command")?;
        stacks.push(Folded { command, functions: names.collect(), samples_up_to: all });
    }
    Ok(stacks)
}

/// Numbers that look drawn, the same on every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn number_of(text: &str) -> i64 {
    kymo_dataset::ids::host(text) >> 20
}

fn writer<'a>(
    host: &str,
    stacks: &[Folded<'a>],
    start_ns: i64,
) -> (DatasetWriter, Vec<(ProcessNumber, StackNumber)>) {
    let row = HostRow {
        host: host.to_owned(),
        kernel: "6.1.0".to_owned(),
        arch: "x86_64".to_owned(),
        cpus: 4,
        rate_hz: 19.0,
        kymo_version: env!("CARGO_PKG_VERSION").to_owned(),
        first_seen_ns: start_ns,
    };
    let mut writer = DatasetWriter::new(row, start_ns, 0);
    let mut numbers = Vec::new();
    for stack in stacks {
        let build_id = format!("{:016x}", number_of(stack.command));
        writer.build(BuildRow {
            build_id: build_id.clone(),
            path: format!("/usr/bin/{}", stack.command),
            module: stack.command.to_owned(),
            arch: "x86_64".to_owned(),
            first_seen_ns: START_NS,
        });
        let locations: Vec<_> = stack
            .functions
            .iter()
            .rev()
            .map(|name| {
                let frames = [FrameRow { function: Some(*name), file: None, line: None }];
                writer.location(&LocationRow {
                    module: stack.command,
                    build_id: Some(&build_id),
                    address: number_of(name),
                    kind: FrameKind::User,
                    frames: &frames,
                })
            })
            .collect();
        let pid = i32::try_from(number_of(stack.command) & 0x7fff).unwrap_or(1);
        let process = ProcessRow { pid, command: stack.command, ..ProcessRow::default() };
        numbers.push((writer.process(&process), writer.stack(&locations)));
    }
    (writer, numbers)
}

#[derive(Clone, Copy)]
struct Options {
    minutes: i64,
    /// Samples a minute.
    rate: u64,
    minutes_a_file: i64,
}

/// Writes the files of a host; how many samples they have.
fn simulate(folder: &DatasetFolder, host: u64, stacks: &[Folded<'_>], options: Options) -> Result<i64> {
    let Options { minutes, rate, minutes_a_file } = options;
    let name = format!("host-{host:04}");
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15 ^ (host + 1));
    let all = stacks.last().map_or(1, |stack| stack.samples_up_to);
    let mut written = 0;
    for first in (0..minutes).step_by(usize::try_from(minutes_a_file)?) {
        let start_ns = START_NS + first * MINUTE_NS;
        let minutes_here = minutes_a_file.min(minutes - first);
        let mut drawn: Vec<BTreeMap<usize, i64>> = Vec::new();
        for _ in 0..minutes_here {
            let mut of_minute = BTreeMap::new();
            for _ in 0..rate {
                let sample = chance.below(all);
                let stack = stacks.partition_point(|stack| stack.samples_up_to <= sample);
                *of_minute.entry(stack).or_default() += 1;
            }
            drawn.push(of_minute);
        }
        let (mut writer, numbers) = writer(&name, stacks, start_ns);
        let event = writer.event(&EventRow { event: "cpu-clock", value_unit: "ns", state: ON_CPU });
        for (minute, of_minute) in drawn.iter().enumerate() {
            let time_ns = start_ns + i64::try_from(minute)? * MINUTE_NS;
            for (stack, samples) in of_minute {
                let (process, stack) = numbers[*stack];
                let value = SampleValue { time_ns, value: samples * PERIOD_NS, samples: *samples };
                writer.sample(process, event, stack, value)?;
                written += samples;
            }
        }
        for file in writer.finish()? {
            folder.put(&file)?;
        }
    }
    Ok(written)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [stacks, folder, rest @ ..] = &*words else {
        return Err("simulate STACKS DIR [HOSTS [MINUTES [RATE [FILE]]]]".into());
    };
    let number = |at: usize, usual: u64| rest.get(at).map_or(Ok(usual), |word| word.parse());
    let hosts = number(0, 100)?;
    let options = Options {
        minutes: i64::try_from(number(1, 440)?)?,
        rate: number(2, 2280)?,
        minutes_a_file: i64::try_from(number(3, 1440)?.max(1))?,
    };
    let text = std::fs::read_to_string(stacks)?;
    let stacks = parse(&text)?;
    let folder = DatasetFolder::open_or_create(Path::new(folder))?;
    let (stacks, folder) = (&stacks, &folder);
    let halves = std::thread::scope(|scope| {
        let half = |odd: u64| {
            scope.spawn(move || {
                let of_half = (0..hosts).filter(|host| host % 2 == odd);
                of_half.map(|host| simulate(folder, host, stacks, options)).sum::<Result<i64>>()
            })
        };
        [half(0), half(1)].map(|thread| thread.join().map_err(|_| "a thread failed"))
    });
    let mut samples = 0;
    for half in halves {
        samples += half??;
    }
    eprintln!("{hosts} hosts, {samples} samples, {} ns", samples * PERIOD_NS);
    Ok(())
}
