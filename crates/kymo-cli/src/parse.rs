//! Values of the command line: sizes, lists of CPUs, users, and the words of single options.

use kymo_perf::machine::Machine;
use kymo_perf::selector::{self, Selected};
use kymo_perf::{cpu_list, sys};
use kymo_record::{CallGraph, Overload, RecordingClock, Scope};
use std::time::Duration;

/// A list of CPUs, as one value of the command line.
#[derive(Clone, Debug)]
pub struct Cpus(pub Vec<u32>);

/// The events of all these words, in their order.
///
/// # Errors
/// What is wrong with the first word that names none.
pub fn parse_events(texts: &[String], machine: &Machine) -> Result<Vec<Selected>, String> {
    let mut events: Vec<Selected> = Vec::new();
    for text in texts {
        let groups = selector::parse(text).map_err(|error| error.to_string())?;
        let found = selector::resolve(&groups, machine).map_err(|error| error.to_string())?;
        let before = events.len();
        events.extend(found.into_iter().map(|event| Selected { leader: event.leader + before, ..event }));
    }
    Ok(events)
}

/// A time: a number with ns, us, ms, s, m or h, of seconds without.
///
/// # Errors
/// What was expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number: f64 =
        text[..text.len() - unit.len()].parse().map_err(|_| "expected a time such as 10 or 500ms")?;
    let seconds = match unit {
        "ns" => number / 1e9,
        "us" => number / 1e6,
        "ms" => number / 1000.0,
        "" | "s" => number,
        "m" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err("expected a time in ns, us, ms, s, m or h".into()),
    };
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| !time.is_zero())
        .ok_or_else(|| "expected a time above zero".into())
}

/// Samples per second, or `max` as [`u64::MAX`].
///
/// # Errors
/// What was expected.
pub fn parse_frequency(text: &str) -> Result<u64, String> {
    match text {
        "max" => Ok(u64::MAX),
        _ => {
            text.parse().ok().filter(|&hz| hz > 0).ok_or_else(|| "expected samples per second, or max".into())
        }
    }
}

/// `auto`, `fp`, `none`, or `dwarf[,BYTES]`.
///
/// # Errors
/// What was expected.
pub fn parse_call_graph(text: &str) -> Result<CallGraph, String> {
    const LIMIT: u32 = 65_528;
    match text.split_once(',').map_or((text, None), |(mode, bytes)| (mode, Some(bytes))) {
        ("auto", None) => Ok(CallGraph::Auto),
        ("fp", None) => Ok(CallGraph::FramePointers),
        ("no" | "none", None) => Ok(CallGraph::None),
        ("dwarf", bytes) => {
            let bytes = bytes.map_or(Some(CallGraph::DEFAULT_STACK_BYTES), |bytes| bytes.parse().ok());
            let bytes = bytes
                .map(|bytes: u32| bytes.saturating_add(7) & !7)
                .filter(|bytes| (8..=LIMIT).contains(bytes));
            bytes
                .map(|stack_bytes| CallGraph::Dwarf { stack_bytes })
                .ok_or_else(|| format!("a stack copy has 8 to {LIMIT} bytes"))
        }
        _ => Err("expected auto, fp, or dwarf[,BYTES]".into()),
    }
}

/// The size of a ring in pages: a number of them, or bytes with a unit; rounded up to a power of two.
///
/// # Errors
/// What was expected.
pub fn parse_ring(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: usize =
        digits.parse().map_err(|_| "expected a number of pages, or bytes with B, K, M or G")?;
    let page = sys::page_size();
    let pages = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" => Some(number),
        "B" => Some(number.div_ceil(page)),
        "K" => number.checked_mul(1 << 10).map(|bytes| bytes.div_ceil(page)),
        "M" => number.checked_mul(1 << 20).map(|bytes| bytes.div_ceil(page)),
        "G" => number.checked_mul(1 << 30).map(|bytes| bytes.div_ceil(page)),
        _ => return Err("expected a number of pages, or bytes with B, K, M or G".into()),
    };
    // 4 GiB per ring is beyond every use.
    let pages = pages.filter(|&pages| pages > 0 && pages <= (4 << 30) / page);
    pages.map(usize::next_power_of_two).ok_or_else(|| "a ring has at least one page and at most 4 GiB".into())
}

/// Bytes, with or without a unit; never 0.
///
/// # Errors
/// What was expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1u64 << 30,
        _ => 0,
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| "expected a size in bytes, or with B, K, M or G".into())
}

/// What gives way when samples come too fast.
///
/// # Errors
/// What was expected.
pub fn parse_overload(text: &str) -> Result<Overload, String> {
    match text {
        "slow" => Ok(Overload::Slow),
        "drop" => Ok(Overload::Drop),
        "pause" => Ok(Overload::Pause),
        _ => Err("expected slow, drop or pause".into()),
    }
}

/// A list such as `0-2,5`; never empty.
///
/// # Errors
/// What was expected.
pub fn parse_cpus(text: &str) -> Result<Cpus, String> {
    let valid = text.split(',').all(|part| part.split('-').all(|number| number.parse::<u32>().is_ok()));
    let cpus = cpu_list::parse(text);
    if valid && !cpus.is_empty() {
        Ok(Cpus(cpus))
    } else {
        Err("expected a list of CPUs such as 0-2,5".into())
    }
}

/// A process by its number, or by its name, as `pgrep -x` takes it. Of a process and those that it has started it is the first.
///
/// # Errors
/// That there is none, or which ones there are.
pub fn parse_pid(text: &str) -> Result<i32, String> {
    if let Ok(pid) = text.parse::<i32>() {
        return if pid > 0 { Ok(pid) } else { Err("the number of a process is at least 1".into()) };
    }
    if text.is_empty() {
        return Err("expected the number or the name of a process".into());
    }
    let found = kymo_perf::proc::named(text);
    match &found.iter().filter(|one| !one.inner).collect::<Vec<_>>()[..] {
        [] => Err(format!("there is no process {text}: `ps -e` lists processes by number and name")),
        [one] => Ok(one.pid),
        several => {
            let list =
                several.iter().take(SHOWN_PROCESSES).map(|one| format!("\n  {} {}", one.pid, one.command));
            let more = if several.len() > SHOWN_PROCESSES { "\n  .." } else { "" };
            let count = several.len();
            Err(format!(
                "{count} processes are called {text}, name one by its number:{}{more}",
                list.collect::<String>()
            ))
        }
    }
}

/// So many processes of one name are listed.
const SHOWN_PROCESSES: usize = 12;

/// A user by number, or by name in /etc/passwd.
///
/// # Errors
/// What was expected.
pub fn parse_user(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    let users = kymo_perf::proc::text("/etc/passwd").unwrap_or_default();
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(text)).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    found.ok_or_else(|| "no such user in /etc/passwd".into())
}

/// The clock of a recording.
///
/// # Errors
/// What was expected.
pub fn parse_clock(text: &str) -> Result<RecordingClock, String> {
    RecordingClock::parse(text).ok_or_else(|| "expected mono, raw, boot, real or tai".into())
}

/// How events are bound to what is recorded.
///
/// # Errors
/// What was expected.
pub fn parse_scope(text: &str) -> Result<Scope, String> {
    Scope::parse(text).ok_or_else(|| "expected cgroup, filtered, inherit or thread-cpu".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks times with and without units, and that what is none is refused.
    #[test]
    fn durations() {
        assert_eq!(parse_duration("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("100us"), Ok(Duration::from_micros(100)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        for wrong in ["", "x", "0", "-1", "5y", "1e400"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
