//! Groups of tasks that all write to one another: in each, 20 senders send to every one of 20 receivers.
//!
//! ```text
//!  group:   sender 1 ----> receiver 1      all tasks: report as ready, wait for the go
//!                   \----> receiver 2      main:      waits for all, takes the time, gives the go, waits for all to end
//!           sender 2 ----> receiver 1
//!                   \----> receiver 2 ...
//! ```

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use kymo_perf::sys::{Child, Kernel, Real, fork};
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;

use super::{code, join, write_total};
use crate::{Format, SCHEMA_VERSION};

const NAME: &str = "sched/messaging";
/// Senders of a group, and receivers.
const SENDERS: u32 = 20;
const MESSAGE_BYTES: usize = 100;
/// Receivers and senders only read and write.
const STACK_BYTES: usize = 64 << 10;

/// Groups of senders and receivers, as hackbench has them
#[derive(Debug, Args)]
#[command(
    after_help = "Options and output are those of `perf bench sched messaging`.\nStarting the tasks is not in the time."
)]
pub(crate) struct MessagingArgs {
    /// Use pipes instead of socket pairs
    #[arg(short, long)]
    pipe: bool,
    /// Threads instead of processes
    #[arg(short, long)]
    thread: bool,
    /// Groups, each of 20 senders and 20 receivers
    #[arg(short, long = "group", value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    groups: u32,
    /// Messages of each sender to each receiver
    #[arg(short = 'l', long = "nr_loops", value_name = "N", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    loops: u32,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark.
pub(crate) fn run(args: &MessagingArgs, format: Format) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let text = !args.json && format == Format::Default;
    if text {
        writeln!(out, "# Running '{NAME}' benchmark:")?;
        out.flush()?;
    }
    let took = exchange(args)?;
    let (count, tasks) = (args.groups * 2 * SENDERS, if args.thread { "threads" } else { "processes" });
    if args.json {
        let json = json!({
            "schema": "kymo-bench",
            "schema_version": SCHEMA_VERSION,
            "benchmark": NAME,
            "tasks": tasks,
            "through": if args.pipe { "pipes" } else { "sockets" },
            "groups": args.groups,
            "count": count,
            "messages": u64::from(args.groups) * u64::from(SENDERS * SENDERS) * u64::from(args.loops),
            "total_ns": took.as_nanos() as u64,
        });
        serde_json::to_writer_pretty(&mut out, &json)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if text {
        writeln!(out, "# {SENDERS} sender and receiver {tasks} per group")?;
        writeln!(out, "# {} groups == {count} {tasks} run\n", args.groups)?;
    }
    write_total(&mut out, format, took)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts all tasks, lets them go and waits for them: the time from the go to the last one's end.
fn exchange(args: &MessagingArgs) -> anyhow::Result<Duration> {
    // Threads have the ends of all groups open at once, processes those of one.
    let open = if args.thread { args.groups } else { 1 };
    Real.raise_descriptors(u64::from(open * 2 * SENDERS) + 64);
    let (mut ready, report) = io::pipe().context("failed to make a pipe")?;
    let (wait, mut go) = io::pipe().context("failed to make a pipe")?;
    let gate = Arc::new(Gate { report, wait });
    let mut tasks = Vec::new();
    for _ in 0..args.groups {
        start_group(args, &gate, &mut tasks)?;
    }
    ready.read_exact(&mut vec![0; tasks.len()]).context("failed to wait for the tasks")?;
    let since = Instant::now();
    go.write_all(&[0]).context("failed to let the tasks go")?;
    tasks.into_iter().try_for_each(Task::join)?;
    Ok(since.elapsed())
}

fn start_group(args: &MessagingArgs, gate: &Arc<Gate>, tasks: &mut Vec<Task>) -> anyhow::Result<()> {
    let start = |work: Work| {
        let gate = Arc::clone(gate);
        let run = move || gate.pass().and_then(|()| work.run());
        if args.thread { Task::thread(run) } else { Task::process(run) }
    };
    let loops = args.loops;
    let mut ends = Vec::new();
    for _ in 0..SENDERS {
        let (read, write) = pair(args.pipe).context("failed to make a pipe or a pair of sockets")?;
        tasks.push(start(Work::Receive { from: read, messages: u64::from(SENDERS) * u64::from(loops) })?);
        ends.push(write);
    }
    let ends = Arc::new(ends);
    for _ in 0..SENDERS {
        tasks.push(start(Work::Send { to: Arc::clone(&ends), loops })?);
    }
    Ok(())
}

/// Two ends: what is written to the second can be read from the first.
fn pair(pipe: bool) -> io::Result<(File, File)> {
    Ok(if pipe {
        let (read, write) = io::pipe()?;
        (OwnedFd::from(read).into(), OwnedFd::from(write).into())
    } else {
        let (read, write) = UnixStream::pair()?;
        (OwnedFd::from(read).into(), OwnedFd::from(write).into())
    })
}

/// Where tasks wait until all are there.
struct Gate {
    report: PipeWriter,
    wait: PipeReader,
}

impl Gate {
    fn pass(&self) -> io::Result<()> {
        (&self.report).write_all(&[0])?;
        // The one byte stays in the pipe, so that it wakes all.
        let mut go = [PollFd::new(&self.wait, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut go, None))?;
        Ok(())
    }
}

/// What one task has to do.
enum Work {
    Receive { from: File, messages: u64 },
    Send { to: Arc<Vec<File>>, loops: u32 },
}

impl Work {
    fn run(&self) -> io::Result<()> {
        let mut message = [0; MESSAGE_BYTES];
        match self {
            Work::Receive { from, messages } => {
                (0..*messages).try_for_each(|_| (&mut &*from).read_exact(&mut message))
            }
            Work::Send { to, loops } => {
                (0..*loops).try_for_each(|_| to.iter().try_for_each(|mut one| one.write_all(&message)))
            }
        }
    }
}

enum Task {
    Thread(JoinHandle<io::Result<()>>),
    Process(Child),
}

impl Task {
    fn thread(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> anyhow::Result<Task> {
        let thread = thread::Builder::new().stack_size(STACK_BYTES).spawn(work);
        Ok(Task::Thread(thread.context("failed to create a thread; fewer groups (-g) need fewer")?))
    }

    fn process(work: impl FnOnce() -> io::Result<()>) -> anyhow::Result<Task> {
        let child = fork(|| code(work()));
        Ok(Task::Process(child.context("failed to fork a process; fewer groups (-g) need fewer")?))
    }

    fn join(self) -> anyhow::Result<()> {
        match self {
            Task::Process(child) => join(child),
            Task::Thread(thread) => match thread.join() {
                Ok(done) => done.context("a thread failed to send or receive"),
                Err(_) => anyhow::bail!("a thread panicked; nothing was measured"),
            },
        }
    }
}
