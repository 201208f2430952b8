//! The locks as text.
use super::{LockKind, LockPlace, LockRow, Locks};
use crate::text::shown;
use crate::wall::time;
use std::io::{self, Write};

/// Places that are shown of the waiters of a lock, and of its holders.
const PLACES: usize = 3;

/// Writes the contended locks, each with its waiters and holders, and a line about what else
/// threads waited for. `most`: so many locks.
///
/// # Errors
/// Those of `out`.
pub fn write_locks(out: &mut dyn Write, locks: &Locks, most: usize) -> io::Result<()> {
    let (contended, others): (Vec<_>, Vec<_>) = locks.rows.iter().partition(|row| row.kind.is_contention());
    let sum = |rows: &[&LockRow]| rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.waits.total_ns));
    let count = |rows: &[&LockRow]| rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.waits.count));
    if contended.is_empty() {
        writeln!(out, "# no thread waited for a lock")?;
    } else {
        let (all, waits) = (time(sum(&contended)), count(&contended));
        writeln!(out, "# {all} in {waits} waits for {} locks\n#", contended.len())?;
        writeln!(
            out,
            "# {:>9} {:>8} {:>9} {:>9} {:>9} {:>7}  lock",
            "total", "waits", "p50", "p99", "max", "threads"
        )?;
    }
    for row in contended.iter().take(most) {
        write_lock(out, locks, row)?;
    }
    if contended.len() > most {
        writeln!(out, "# and {} more locks", contended.len() - most)?;
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
    let quantile = |share: f64| row.waits.quantile_ns(share).map_or("-".into(), time);
    let about = if row.exact { "" } else { "  (from samples)" };
    let waiting = match row.waiting {
        0 => String::new(),
        1 => "  (1 thread waits still)".into(),
        threads => format!("  ({threads} threads wait still)"),
    };
    writeln!(
        out,
        "{:>11} {:>8} {:>9} {:>9} {:>9} {:>7}  {}{about}{waiting}",
        time(row.waits.total_ns),
        row.waits.count,
        quantile(0.5),
        quantile(0.99),
        time(row.waits.max_ns),
        row.threads,
        shown(&locks.lock_name(row)),
    )?;
    write_places(out, locks, "waits in", &row.waiters)?;
    write_places(out, locks, "held by", &row.holders)
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
