//! The report of wall time as text.
use super::SiteId;
use super::{Calls, End, PathPart, State, ThreadTime, Wall, collectors};
use crate::text::shown;
use std::io::{self, Write};

/// What is shown.
#[derive(Clone, Debug)]
pub struct TextOptions {
    /// So many threads and places at most.
    pub rows: usize,
    /// The thread whose critical path is shown; `None`: as [`Wall`] chooses it.
    pub path_of: Option<i32>,
}

impl Default for TextOptions {
    fn default() -> TextOptions {
        TextOptions { rows: 20, path_of: None }
    }
}

/// Writes the report: all time by state, threads, where they wait, and the critical path.
///
/// # Errors
/// Those of `out`.
pub fn write_wall(out: &mut dyn Write, wall: &Wall, options: &TextOptions) -> io::Result<()> {
    if let Some(calls) = &wall.calls {
        return write_calls(out, wall, calls, options);
    }
    let threads = wall.threads();
    let total: u64 = threads.iter().fold(0, |sum, thread| sum.saturating_add(thread.total_ns()));
    let (collectors, mut others) = wall.divide_collectors(threads.clone());
    let collectors = collectors::together(&collectors).map(|time| (time, collectors.len()));
    write_states(out, wall.is_by_latency(), &threads, total)?;
    write_collectors(out, collectors.as_ref(), total)?;
    writeln!(out)?;
    write_threads(out, wall, (&mut others, collectors.as_ref()), options.rows)?;
    write_places(out, wall, total, options.rows)?;
    write_path(out, wall, &threads, options)?;
    wall.notes().iter().try_for_each(|note| writeln!(out, "# {note}"))
}

impl Wall {
    /// The largest parts of all time, a line each.
    pub fn first_look(&self, count: usize) -> Vec<String> {
        let threads = self.threads();
        let total: u64 = threads.iter().fold(0, |sum, thread| sum.saturating_add(thread.total_ns()));
        let sum = |state: State| {
            threads.iter().fold(0, |sum: u64, thread| sum.saturating_add(thread.in_state(state)))
        };
        let mut states: Vec<(State, u64)> = State::ALL.into_iter().map(|state| (state, sum(state))).collect();
        states.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        let shown = states.into_iter().filter(|(_, time)| *time > 0).take(count);
        let state_line =
            |(state, time): (State, u64)| format!("{:6.2}%  {}", percent(time, total), state.name());
        let (collectors, _) = self.divide_collectors(threads.clone());
        let ran = collectors::together(&collectors).map_or(0, |all| all.in_state(State::Running));
        // So little is nothing that a first look should tell.
        let of_gc = (ran > total / 100).then(|| format!("{:6.2}%  of that GC, running", percent(ran, total)));
        shown.map(state_line).chain(of_gc).collect()
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// A time with three or four digits.
pub(crate) fn time(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match ns {
        0 => "-".into(),
        1_000_000_000.. => format!("{seconds:.2} s"),
        1_000_000.. => format!("{:.2} ms", seconds * 1e3),
        1_000.. => format!("{:.1} us", seconds * 1e6),
        _ => format!("{ns} ns"),
    }
}

fn write_states(out: &mut dyn Write, by_latency: bool, threads: &[ThreadTime], total: u64) -> io::Result<()> {
    match by_latency {
        true => {
            writeln!(out, "# {} that {} threads took together, by what they did", time(total), threads.len())
        }
        false => writeln!(out, "# {} of {} threads, by what they did", time(total), threads.len()),
    }?;
    writeln!(out, "#")?;
    write_times(out, threads, total)
}

/// Why nothing tells what a wait was for.
const WHY_UNKNOWN: &str = ": began before the recording, or no stack tells what the thread waited for";

fn write_times(out: &mut dyn Write, threads: &[ThreadTime], total: u64) -> io::Result<()> {
    let idle: u64 = threads.iter().fold(0, |sum, thread| sum.saturating_add(thread.idle_ns));
    for state in State::ALL {
        let sum = threads.iter().fold(0, |sum: u64, thread| sum.saturating_add(thread.in_state(state)));
        if sum > 0 {
            let why = if state == State::Unknown { WHY_UNKNOWN } else { "" };
            writeln!(out, "{:>11} {:>7.2}%  {}{why}", time(sum), percent(sum, total), state.name())?;
        }
    }
    if idle > 0 {
        writeln!(
            out,
            "{:>11} {:>7.2}%  of that idle: waits for work, and nobody waited for these threads",
            time(idle),
            percent(idle, total)
        )?;
    }
    Ok(())
}

/// The time of threads that collect garbage, and how many there are.
type Collectors<'a> = Option<&'a (ThreadTime, usize)>;

fn write_collectors(out: &mut dyn Write, collectors: Collectors<'_>, total: u64) -> io::Result<()> {
    let Some((all, threads)) = collectors else { return Ok(()) };
    writeln!(
        out,
        "{:>11} {:>7.2}%  of that GC: {threads} threads of a JVM that collect garbage; {} of it they ran",
        time(all.total_ns()),
        percent(all.total_ns(), total),
        time(all.in_state(State::Running))
    )
}

fn write_threads(
    out: &mut dyn Write,
    wall: &Wall,
    (threads, collectors): (&mut [ThreadTime], Collectors<'_>),
    rows: usize,
) -> io::Result<()> {
    // Those of which something is to be seen first.
    let busy = |thread: &ThreadTime| thread.total_ns().saturating_sub(thread.idle_ns);
    threads.sort_by_key(|thread| (std::cmp::Reverse(busy(thread)), thread.thread));
    writeln!(
        out,
        "# {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  {:<14} thread",
        "wall", "running", "runnable", "waiting", "idle", "waits", "most for"
    )?;
    let named = |thread: &ThreadTime| {
        let (_, tid) = thread.thread;
        format!("{} {tid}", shown(&wall.thread_name(tid)))
    };
    let shown_threads = threads.iter().take(rows).map(|thread| (thread, named(thread)));
    let of_gc = collectors.map(|(all, threads)| (all, format!("GC ({threads} threads)")));
    for (thread, name) in shown_threads.chain(of_gc) {
        let [running, runnable] = [State::Running, State::Runnable].map(|state| thread.in_state(state));
        let on_its_way = running.saturating_add(runnable).saturating_add(thread.idle_ns);
        let waiting = thread.total_ns().saturating_sub(on_its_way);
        let most = State::ALL
            .into_iter()
            .skip(2)
            .max_by_key(|state| (thread.in_state(*state), std::cmp::Reverse(*state)));
        let most = most.filter(|state| thread.in_state(*state) > 0).map_or("", State::name);
        writeln!(
            out,
            "{:>11} {:>9} {:>9} {:>9} {:>9} {:>9}  {most:<14} {name}",
            time(thread.total_ns()),
            time(running),
            time(runnable),
            time(waiting),
            time(thread.idle_ns),
            thread.waits
        )?;
    }
    let more = threads.len().saturating_sub(rows);
    if more > 0 {
        writeln!(out, "# and {more} more threads")?;
    }
    writeln!(out)
}

fn name(wall: &Wall, site: SiteId) -> String {
    shown(&wall.site_name(site)).into_owned()
}

fn write_places(out: &mut dyn Write, wall: &Wall, total: u64, rows: usize) -> io::Result<()> {
    writeln!(
        out,
        "# {:>9} {:>8} {:>8} {:>9} {:>7}  {:<10} where",
        "waited", "share", "waits", "longest", "threads", "for"
    )?;
    let places = wall.places();
    let (idle, waited): (Vec<_>, Vec<_>) = places.iter().partition(|place| place.idle);
    for place in waited.iter().take(rows) {
        let ended = match place.ended_by {
            End::Thread(tid, Some(site)) => {
                format!("  ended by {} in {}", shown(&wall.thread_name(tid)), name(wall, site))
            }
            End::Thread(tid, None) => format!("  ended by {}", shown(&wall.thread_name(tid))),
            End::Interrupt(cause) => format!("  ended by {cause}"),
            End::Unknown => String::new(),
        };
        writeln!(
            out,
            "{:>11} {:>7.2}% {:>8} {:>9} {:>7}  {:<10} {}{}",
            time(place.time_ns),
            percent(place.time_ns, total),
            place.waits,
            time(place.longest_ns),
            place.threads,
            place.state.name(),
            name(wall, place.site),
            ended
        )?;
    }
    let more = waited.len().saturating_sub(rows);
    if more > 0 {
        writeln!(out, "# and {more} more places")?;
    }
    for place in idle.iter().take(rows) {
        writeln!(
            out,
            "# idle: {} of {} threads ({}) in {}",
            time(place.time_ns),
            place.threads,
            place.state.name(),
            name(wall, place.site)
        )?;
    }
    writeln!(out)
}

fn write_path(
    out: &mut dyn Write,
    wall: &Wall,
    threads: &[ThreadTime],
    options: &TextOptions,
) -> io::Result<()> {
    let Some((tid, all, steps)) = wall.path_of_interest(threads, options.path_of) else { return Ok(()) };
    writeln!(
        out,
        "# critical path of {} {tid}: {}; a part that took no time at all would save its share at most",
        shown(&wall.thread_name(tid)),
        time(all)
    )?;
    write_parts(out, wall, wall.critical_parts(steps), all, options)
}

/// The report of the calls of a function: how long they took, what their threads did, and what
/// decided that.
fn write_calls(out: &mut dyn Write, wall: &Wall, calls: &Calls, options: &TextOptions) -> io::Result<()> {
    let (total, threads) = (calls.total_ns(), calls.threads());
    writeln!(
        out,
        "# {} calls of {} in {threads} thread{}: {}, by what the threads did",
        calls.calls.len(),
        shown(&calls.function),
        if threads == 1 { "" } else { "s" },
        time(total)
    )?;
    let [half, most, longest] = calls.percentiles([50, 99, 100]).map(time);
    writeln!(out, "# half of them took {half} at most, 99 % {most}, the longest {longest}")?;
    if calls.unfinished > 0 {
        writeln!(out, "# {} more did not return in the recording", calls.unfinished)?;
    }
    writeln!(out, "#")?;
    write_times(out, &[wall.time_of_calls(calls)], total)?;
    writeln!(out)?;
    let (parts, count) = wall.path_of_calls(calls);
    let which = if count == calls.calls.len() { String::new() } else { format!("first {count} ") };
    writeln!(
        out,
        "# critical path of the {which}calls; a part that took no time at all would save its share at most"
    )?;
    write_parts(out, wall, parts, calls.first_ns(count), options)
}

fn write_parts(
    out: &mut dyn Write,
    wall: &Wall,
    parts: Vec<PathPart>,
    all: u64,
    options: &TextOptions,
) -> io::Result<()> {
    for PathPart { tid, threads, state, site, time_ns } in parts.into_iter().take(options.rows) {
        let place = site.map_or_else(String::new, |site| format!("  in {}", name(wall, site)));
        writeln!(
            out,
            "{:>11} {:>7.2}%  {:<10} {} {}{place}",
            time(time_ns),
            percent(time_ns, all),
            state.name(),
            shown(&wall.thread_name(tid)),
            if threads > 1 { format!("({threads} threads)") } else { tid.to_string() }
        )?;
    }
    Ok(())
}
