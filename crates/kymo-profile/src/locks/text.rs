//! The locks as text.
use super::{Holds, LockKind, LockPlace, LockRow, Locks};
use crate::text::shown;
use crate::wall::time;
use kymo_core::latency::Latencies;
use std::io::{self, Write};

/// Places that are shown of the waiters of a lock, and of its holders.
const PLACES: usize = 3;

/// Writes the contended locks, each with its waiters and holders, and a line about what else
/// threads waited for. `most`: so many locks.
///
/// # Errors
/// Those of `out`.
pub fn write_locks(out: &mut dyn Write, locks: &Locks, most: usize) -> io::Result<()> {
    let (listed, others): (Vec<&LockRow>, Vec<_>) =
        locks.rows.iter().partition(|row| row.kind.is_contention());
    let contended: Vec<&LockRow> = listed.iter().copied().filter(|row| row.waits.count > 0).collect();
    let sum = |rows: &[&LockRow]| rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.waits.total_ns));
    let count = |rows: &[&LockRow]| rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.waits.count));
    if contended.is_empty() {
        writeln!(out, "# no thread waited for a lock")?;
    } else {
        let (all, waits) = (time(sum(&contended)), count(&contended));
        writeln!(out, "# {all} in {waits} waits for {} locks", contended.len())?;
    }
    if locks.has_holds {
        let holds: Vec<&Holds> = listed.iter().filter_map(|row| row.holds.as_ref()).collect();
        let sum = holds.iter().fold(0, |sum: u64, of| sum.saturating_add(of.holds.count));
        writeln!(out, "# {} locks were taken {sum} times", holds.len())?;
    }
    if !listed.is_empty() {
        write!(
            out,
            "#\n# {:>9} {:>8} {:>9} {:>9} {:>9} {:>7}",
            "total", "waits", "p50", "p99", "max", "threads"
        )?;
        if locks.has_holds {
            write!(out, " {:>10} {:>9} {:>9} {:>9} {:>9}", "held", "times", "p50", "p99", "max")?;
        }
        writeln!(out, "  lock")?;
    }
    for row in listed.iter().take(most) {
        write_lock(out, locks, row)?;
    }
    if listed.len() > most {
        writeln!(out, "# and {} more locks", listed.len() - most)?;
    }
    for (kind, what) in [
        (LockKind::Condition, "on conditions, semaphores and the like, which is no contention"),
        (LockKind::Join, "for threads to end"),
        (LockKind::Unknown, "for what no stack tells"),
    ] {
        let of: Vec<&LockRow> = others.iter().copied().filter(|row| row.kind == kind).collect();
        if !of.is_empty() {
            writeln!(out, "# beside that: {} in {} waits {what}", time(sum(&of)), count(&of))?;
        }
    }
    Ok(())
}

fn write_lock(out: &mut dyn Write, locks: &Locks, row: &LockRow) -> io::Result<()> {
    let quantile_of = |of: &Latencies, share: f64| of.quantile_ns(share).map_or("-".into(), time);
    let quantile = |share: f64| quantile_of(&row.waits, share);
    let about = if row.exact { "" } else { "  (from samples)" };
    let waiting = match row.waiting {
        0 => String::new(),
        1 => "  (1 thread waits still)".into(),
        threads => format!("  ({threads} threads wait still)"),
    };
    write!(
        out,
        "{:>11} {:>8} {:>9} {:>9} {:>9} {:>7}",
        time(row.waits.total_ns),
        row.waits.count,
        quantile(0.5),
        quantile(0.99),
        time(row.waits.max_ns),
        row.threads,
    )?;
    if locks.has_holds {
        let none = Latencies::default();
        let held = row.holds.as_ref().map_or(&none, |of| &of.holds);
        let (all, max) = (time(held.total_ns), time(held.max_ns));
        let (p50, p99) = (quantile_of(held, 0.5), quantile_of(held, 0.99));
        write!(out, " {all:>10} {:>9} {p50:>9} {p99:>9} {max:>9}", held.count)?;
    }
    writeln!(out, "  {}{about}{waiting}", shown(&locks.lock_name(row)))?;
    write_places(out, locks, "waits in", &row.waiters)?;
    write_places(out, locks, "held by", &row.holders)?;
    let holds = row.holds.as_ref().map_or(&[][..], |of| &of.places);
    let all = holds.iter().fold(0, |sum: u64, place| sum.saturating_add(place.total_ns)).max(1);
    for place in holds.iter().take(PLACES) {
        let share = 100.0 * place.total_ns as f64 / all as f64;
        let (text, longest) = (locks.place_text(&place.place), time(place.max_ns));
        let times = place.holds;
        writeln!(
            out,
            "{:>24} {share:>6.2}%  {}  [{times} times, at most {longest}]",
            "taken in",
            shown(&text)
        )?;
    }
    if holds.len() > PLACES {
        writeln!(out, "{:>24} and {} more places", "", holds.len() - PLACES)?;
    }
    Ok(())
}

fn write_places(out: &mut dyn Write, locks: &Locks, what: &str, places: &[LockPlace]) -> io::Result<()> {
    let all = places.iter().fold(0, |sum: u64, place| sum.saturating_add(place.time_ns)).max(1);
    for place in places.iter().take(PLACES) {
        let share = 100.0 * place.time_ns as f64 / all as f64;
        let text = locks.place_text(&place.place);
        let threads = match place.threads {
            1 => shown(&place.thread).into_owned(),
            threads => format!("{} and {} more", shown(&place.thread), threads - 1),
        };
        writeln!(out, "{:>24} {share:>6.2}%  {}  [{threads}]", what, shown(&text))?;
    }
    if places.len() > PLACES {
        writeln!(out, "{:>24} and {} more places", "", places.len() - PLACES)?;
    }
    Ok(())
}

impl Locks {
    /// What a lock is called: its variable, else its address, else the place where it is taken.
    pub fn lock_name(&self, row: &LockRow) -> String {
        let process =
            if row.pid == 0 { "several processes".to_owned() } else { format!("process {}", row.pid) };
        match (&row.variable, row.address) {
            (Some((variable, file)), _) => format!("{variable}  ({file}, {process})"),
            (None, Some(address)) => format!("{address:#x}  ({process})"),
            (None, None) => {
                let place = row.waiters.first().map(|place| self.place_text(&place.place));
                format!("taken in {}  ({process})", place.unwrap_or_default())
            }
        }
    }
}
