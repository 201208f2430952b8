//! What it costs a program to be probed and let go: how long its threads stand still, and how long all takes.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::json;

use crate::SCHEMA_VERSION;
use crate::stats::median;

const NAME: &str = "probe/attach";
/// How long the probes stay.
const STAY: Duration = Duration::from_millis(200);

/// Probe all functions of a running program of many threads, and let it go
#[derive(Debug, Args)]
#[command(
    after_help = "The program is made for this with the C compiler (cc): functions of three shapes, threads that sleep and some that call functions all the time.\nEach round is a kymo probe -p of its own. stopped: from the first thread's stop until all were let go, as kymo says it. attached: until the probes count, from\nthe reading of symbols on. in all: from start to end of kymo probe, less the time that the probes stay.\n\nExample: kymo bench probe attach --threads 2000 --functions 100000"
)]
pub(crate) struct AttachArgs {
    /// Threads that sleep
    #[arg(long, value_name = "N", default_value = "2000", value_parser = clap::value_parser!(u32).range(0..=30_000))]
    threads: u32,
    /// Threads that call functions
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u32).range(0..=1000))]
    busy: u32,
    /// Functions
    #[arg(long, value_name = "N", default_value = "100000", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    functions: u32,
    /// Rounds
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Who serves the probes: inproc or kernel
    #[arg(long, value_name = "ENGINE", default_value = "inproc", value_parser = ["inproc", "kernel"])]
    engine: String,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

const MAIN: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
extern long kymo_bench_0(long), kymo_bench_1(long), kymo_bench_2(long);
static volatile long sink;
static void *sleeps(void *unused) { for (;;) pause(); return unused; }
static void *calls(void *unused)
{
	for (;;) {
		for (long i = 0; i < 100000; i++)
			sink = kymo_bench_0(i) + kymo_bench_1(i) + kymo_bench_2(i);
		usleep(100);
	}
	return unused;
}
int main(int argc, char **argv)
{
	pthread_attr_t small;
	pthread_t thread;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (long i = argc > 1 ? atol(argv[1]) : 0; i > 0; i--)
		if (pthread_create(&thread, &small, sleeps, NULL) != 0)
			return 1;
	for (long i = argc > 2 ? atol(argv[2]) : 0; i > 0; i--)
		if (pthread_create(&thread, &small, calls, NULL) != 0)
			return 1;
	puts("ready");
	fflush(stdout);
	getchar();
	_exit(0);
}
"#;

/// Functions of three shapes, as compilers begin them.
fn functions(count: u32) -> String {
    let mut text = String::from("\t.text\n");
    for number in 0..count.max(3) {
        let body = match number % 3 {
            0 => "push %rbp\n\tmov %rsp,%rbp\n\tlea 1(%rdi),%rax\n\tpop %rbp\n\tret",
            1 => "sub $24,%rsp\n\tmov %rdi,8(%rsp)\n\tmov 8(%rsp),%rax\n\tadd $24,%rsp\n\tret",
            _ => {
                "endbr64\n\ttest %rdi,%rdi\n\tje 1f\n\tlea (%rdi,%rdi),%rax\n\tret\n1:\txor %eax,%eax\n\tret"
            }
        };
        _ = write!(
            text,
            "\t.p2align 4\n\t.globl kymo_bench_{number}\n\t.type kymo_bench_{number},@function\nkymo_bench_{number}:\n\t{body}\n\t.size kymo_bench_{number},.-kymo_bench_{number}\n"
        );
    }
    text.push_str("\t.section .note.GNU-stack,\"\",@progbits\n");
    text
}

fn build(folder: &Path, count: u32) -> anyhow::Result<PathBuf> {
    let [main, rest, program] = ["main.c", "functions.s", "target"].map(|name| folder.join(name));
    std::fs::write(&main, MAIN).context("failed to write the program's source")?;
    std::fs::write(&rest, functions(count)).context("failed to write the program's source")?;
    let compiled = Command::new("cc").args(["-O1", "-pthread", "-o"]).args([&program, &main, &rest]).output();
    let compiled = compiled.context("failed to run cc, with which the program is made")?;
    ensure!(compiled.status.success(), "cc failed: {}", String::from_utf8_lossy(&compiled.stderr));
    Ok(program)
}

/// Ends with us.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// One probing, in milliseconds.
struct Round {
    stopped: Option<f64>,
    attached: f64,
    all: f64,
    probes: u64,
}

/// The number before a unit in a sentence: of "attached in 3.25 ms" 3.25.
fn number_before(line: &str, begin: &str, unit: &str) -> Option<f64> {
    let rest = &line[line.find(begin)? + begin.len()..];
    rest.split(unit).next()?.trim().parse().ok()
}

fn probe(args: &AttachArgs, pid: u32) -> anyhow::Result<Round> {
    let kymo = std::env::current_exe().context("failed to find this program")?;
    let since = Instant::now();
    let mut probing = Command::new(kymo)
        .args(["probe", "--hits-only", "--engine", &args.engine, "-d", &STAY.as_secs_f64().to_string()])
        .args(["-p", &pid.to_string(), "kymo_bench_*"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("failed to start kymo probe")?;
    let (mut stopped, mut attached, mut probes, mut said) = (None, None, 0, String::new());
    let words = probing.stderr.take().context("there is no pipe")?;
    for line in BufReader::new(words).lines() {
        let line = line.context("failed to read what kymo probe says")?;
        if line.contains("attached in") {
            attached.get_or_insert(since.elapsed().as_secs_f64() * 1e3);
            probes += line.split_whitespace().find_map(|word| word.parse::<u64>().ok()).unwrap_or(0);
        }
        stopped = stopped.or(number_before(&line, "stood still,", "ms"));
        said = said + &line + "\n";
    }
    let status = probing.wait().context("failed to wait for kymo probe")?;
    ensure!(status.success(), "kymo probe failed: {}", said.trim());
    let Some(attached) = attached else { bail!("kymo probe did not attach: {}", said.trim()) };
    let all = since.elapsed().saturating_sub(STAY).as_secs_f64() * 1e3;
    Ok(Round { stopped, attached, all, probes })
}

/// Runs the benchmark.
pub(crate) fn run(args: &AttachArgs) -> anyhow::Result<ExitCode> {
    let folder = tempfile::tempdir().context("failed to make a folder")?;
    // Named as the list of mappings will have it.
    let program = build(&folder.path().canonicalize()?, args.functions)?;
    let target = Command::new(&program)
        .args([args.threads.to_string(), args.busy.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut target = Running(target.context("failed to start the program")?);
    let output = target.0.stdout.take().context("there is no pipe")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).context("failed to hear the program")?;
    ensure!(line == "ready\n", "the program could not make {} threads", args.threads);
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        rounds.push(probe(args, target.0.id())?);
    }
    let of = |what: fn(&Round) -> Option<f64>| -> Vec<f64> { rounds.iter().filter_map(what).collect() };
    let (stopped, attached, all) =
        (of(|round| round.stopped), of(|round| Some(round.attached)), of(|round| Some(round.all)));
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let probes = rounds.iter().map(|round| round.probes).min().unwrap_or(0);
    let mut out = io::stdout().lock();
    if args.json {
        let series = |values: &[f64]| {
            (!values.is_empty())
                .then(|| json!({ "median": median(values), "most": most(values), "each": values }))
        };
        let document = json!({
            "schema": "kymo-bench",
            "schema_version": SCHEMA_VERSION,
            "benchmark": NAME,
            "engine": args.engine,
            "threads": args.threads,
            "busy_threads": args.busy,
            "functions": args.functions,
            "probes": probes,
            "rounds": args.rounds,
            "stopped_ms": series(&stopped),
            "attached_ms": series(&attached),
            "all_ms": series(&all),
        });
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "# Running '{NAME}' benchmark:")?;
    writeln!(
        out,
        "# {} functions ({probes} probed by the {} engine), {} threads that sleep and {} that call, {} rounds\n",
        args.functions, args.engine, args.threads, args.busy, args.rounds
    )?;
    writeln!(out, "{:>12} {:>12} {:>12}", "", "median", "most")?;
    for (name, values) in [("stopped", &stopped), ("attached", &attached), ("in all", &all)] {
        if !values.is_empty() {
            writeln!(out, "{name:>12} {:>9.2} ms {:>9.2} ms", median(values), most(values))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that numbers are found in what kymo probe says.
    #[test]
    fn numbers() {
        let line = "kymo: patched while the program's threads stood still, 12.50 ms";
        assert_eq!(number_before(line, "stood still,", "ms"), Some(12.5));
        assert_eq!(number_before(line, "attached in", "ms"), None);
    }

    /// Checks that each function has a name and a size of its own.
    #[test]
    fn sources() {
        let text = functions(7);
        assert_eq!(text.matches(".size").count(), 7);
        assert!(text.contains("kymo_bench_6:") && !text.contains("kymo_bench_7"));
    }
}
