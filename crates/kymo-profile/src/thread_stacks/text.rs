//! Stacks as text.
use super::{
    Activity, AwaitedLock, Deadlock, LockHolder, StackExtent, StackFrame, StackGroup, ThreadNow, ThreadStacks,
};
use crate::text::shown;
use crate::wall::{State, time};
use std::io::{self, Write};

/// Threads that are named of a group.
const NAMED: usize = 4;

/// Writes the deadlocks, then each process with its threads, those with equal stacks once.
/// `kernel`: with the kernel's functions of all threads, not only where these are what tells.
///
/// # Errors
/// Those of `out`.
pub fn write_stacks(out: &mut dyn Write, stacks: &ThreadStacks, kernel: bool) -> io::Result<()> {
    for deadlock in &stacks.deadlocks {
        writeln!(out, "{}\n", shown(&stacks.sentence(deadlock)))?;
    }
    for (number, (pid, name)) in stacks.processes.iter().enumerate() {
        let of_process = |group: &&StackGroup| group.threads.first().is_some_and(|first| first.pid == *pid);
        let groups: Vec<&StackGroup> = stacks.groups.iter().filter(of_process).collect();
        let is_goroutine =
            |group: &StackGroup| group.threads.first().is_some_and(|of| of.activity == Activity::Goroutine);
        let count = |goroutines: bool| -> usize {
            let counted = groups.iter().filter(|group| is_goroutine(group) == goroutines);
            counted.map(|group| group.threads.len()).sum()
        };
        let (threads, goroutines) = (count(false), count(true));
        if number > 0 {
            writeln!(out)?;
        }
        let plural = if threads == 1 { "thread" } else { "threads" };
        let without = match goroutines {
            0 => String::new(),
            goroutines => format!(", {goroutines} goroutines without one"),
        };
        writeln!(out, "process {pid} ({}): {threads} {plural}{without}", shown(name))?;
        groups.into_iter().try_for_each(|group| write_group(out, stacks, group, kernel))?;
    }
    Ok(())
}

fn write_group(
    out: &mut dyn Write,
    stacks: &ThreadStacks,
    group: &StackGroup,
    kernel: bool,
) -> io::Result<()> {
    let Some(first) = group.threads.first() else { return Ok(()) };
    writeln!(out, "\n{}: {}", shown(&named(&group.threads)), stacks.doing(group))?;
    if first.activity == Activity::Goroutine {
        // What it waits for is said.
    } else if group.threads.len() == 1 {
        write_detail(out, stacks, first, "")?;
    } else {
        let detailed =
            group.threads.iter().filter(|thread| thread.lock.is_some() || !thread.object.is_empty());
        for thread in detailed.take(NAMED) {
            write_detail(out, stacks, thread, &format!("{}: ", thread.tid))?;
        }
    }
    // Of one that waits where no signal reaches it, and of one without a stack.
    let tells = matches!(first.activity, Activity::Uninterruptible(_)) || group.frames.is_empty();
    for name in group.kernel.iter().filter(|_| kernel || tells) {
        writeln!(out, "    {}  [kernel]", shown(name))?;
    }
    for frame in &group.frames {
        writeln!(out, "    {}", shown(&frame.text()))?;
    }
    match group.extent {
        StackExtent::Whole => Ok(()),
        StackExtent::Cut => writeln!(out, "    [its callers are not known]"),
        StackExtent::Missing => writeln!(out, "    [no stack: {}]", shown(&group.reason)),
    }
}

/// What else is known of a thread.
fn write_detail(
    out: &mut dyn Write,
    stacks: &ThreadStacks,
    thread: &ThreadNow,
    before: &str,
) -> io::Result<()> {
    if let Some(lock) = &thread.lock {
        writeln!(out, "  {before}{}, {}", shown(&lock_text(lock)), shown(&stacks.holder_text(lock)))?;
    }
    if let Some(joined) = thread.joins {
        writeln!(out, "  {before}for the end of {}", shown(&stacks.thread_text(joined)))?;
    }
    if !thread.object.is_empty() {
        writeln!(out, "  {before}{}", shown(&thread.object))?;
    }
    Ok(())
}

fn named(threads: &[ThreadNow]) -> String {
    let is_goroutine = threads.first().is_some_and(|first| first.activity == Activity::Goroutine);
    let name = |thread: &ThreadNow| match thread.goroutine {
        Some(goroutine) if is_goroutine => goroutine.to_string(),
        Some(goroutine) => format!("{} ({}, goroutine {goroutine})", thread.tid, thread.name),
        None => format!("{} ({})", thread.tid, thread.name),
    };
    let kind = if is_goroutine { "goroutine" } else { "thread" };
    if let [one] = threads {
        return format!("{kind} {}", name(one));
    }
    let some: Vec<String> = threads.iter().take(NAMED).map(name).collect();
    let more = match threads.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} {kind}s, {}{more}", threads.len(), some.join(", "))
}

fn lock_text(lock: &AwaitedLock) -> String {
    match (&lock.variable, lock.address) {
        (Some(variable), _) => format!("lock {variable}"),
        (None, Some(address)) => format!("lock {address:#x}"),
        (None, None) => "a lock of its runtime".to_owned(),
    }
}

impl StackFrame {
    /// As text: the function, where it is in the source or which file it is in.
    fn text(&self) -> String {
        let StackFrame { function, module, place, inlined, .. } = self;
        let inlined = if *inlined { " (inlined)" } else { "" };
        let module = module.as_deref().unwrap_or("unknown");
        match place {
            Some((file, line)) => {
                let file = file.rsplit('/').next().unwrap_or(file);
                // Of what an interpreter runs, the source is the module.
                let module = if file == module { String::new() } else { format!("  ({module})") };
                format!("{function}{inlined}  {file}:{line}{module}")
            }
            None => format!("{function}{inlined}  ({module})"),
        }
    }
}

impl Activity {
    /// In words.
    pub fn text(self) -> String {
        match self {
            Activity::Running => "runs".to_owned(),
            Activity::Waiting(state) => waiting(state).to_owned(),
            Activity::Uninterruptible(state) => format!("{}, where no signal reaches it (D)", waiting(state)),
            Activity::Stopped => "stopped, by a signal or a debugger".to_owned(),
            Activity::Zombie => "has ended, and its parent has not asked for its result (zombie)".to_owned(),
            Activity::Ended => "has ended".to_owned(),
            Activity::Goroutine => "waits".to_owned(),
            Activity::Dumped => "ran when the program was dumped".to_owned(),
        }
    }
}

fn waiting(state: State) -> &'static str {
    match state {
        State::Running | State::Runnable => "is ready to run",
        State::Throttled => "has no quota left",
        State::Lock => "waits for a lock",
        State::Condition => "waits on a condition",
        State::Disk => "waits for a disk",
        State::Network => "waits for the network",
        State::Pipe => "waits for a pipe or a local socket",
        State::Poll => "waits for one of its files",
        State::Timer => "sleeps for a time",
        State::PageFault => "waits for a page of its memory",
        State::IoUring => "waits for io_uring",
        State::Child => "waits for another process or thread to end",
        State::Stopped => "is stopped",
        State::Other => "waits in the kernel",
        State::Unknown => "waits, and nothing tells what for",
    }
}

impl ThreadStacks {
    /// What the threads of a group do, and since when.
    fn doing(&self, group: &StackGroup) -> String {
        let Some(first) = group.threads.first() else { return String::new() };
        if first.activity == Activity::Goroutine {
            let reason = if first.object.is_empty() { "nothing tells what for" } else { &first.object };
            return format!("waits, {}", shown(reason));
        }
        let text = first.activity.text();
        let waits =
            matches!(first.activity, Activity::Waiting(_) | Activity::Uninterruptible(_) | Activity::Stopped);
        let times: Vec<u64> = group.threads.iter().filter_map(|thread| thread.off_cpu_ns).collect();
        match (times.iter().min(), times.iter().max()) {
            _ if !waits => text,
            (Some(&least), Some(&most)) => match (time(least), time(most)) {
                (least, most) if least == most => format!("{text}, for {most}"),
                (least, most) => format!("{text}, for {least} to {most}"),
            },
            _ if first.is_dumped => text,
            _ => format!("{text}, since when is not known (root can see it, from Linux 5.15 on)"),
        }
    }

    fn thread_text(&self, tid: i32) -> String {
        let name = self.thread(tid).map_or("", |thread| &thread.name);
        format!("thread {tid} ({name})")
    }

    fn holder_text(&self, lock: &AwaitedLock) -> String {
        match lock.holder {
            LockHolder::Thread(holder) => format!("which {} has", self.thread_text(holder)),
            LockHolder::Unknown => "which does not say who has it".to_owned(),
        }
    }

    /// A deadlock as a sentence.
    pub fn sentence(&self, deadlock: &Deadlock) -> String {
        let waits: Vec<String> = deadlock
            .threads
            .iter()
            .zip(deadlock.threads.iter().cycle().skip(1))
            .map(|(&tid, &next)| {
                let who = self.thread_text(tid);
                match self.thread(tid).and_then(|thread| thread.lock.as_ref()) {
                    Some(lock) if tid == next => {
                        format!("{who} waits for {}, which it has itself", lock_text(lock))
                    }
                    Some(lock) => {
                        format!("{who} waits for {}, which {} has", lock_text(lock), self.thread_text(next))
                    }
                    None => format!("{who} waits for the end of {}", self.thread_text(next)),
                }
            })
            .collect();
        format!("deadlock: {}", waits.join("; "))
    }
}
