//! How long locks were held, as an event of the file: `lock-holds`, one sample for each lock and
//! each place that takes it, with the sums; its stack is that place.
use crate::user_rings::UserEvent;
use crate::waits::OwnSample;
use kymo_core::holds::{HoldReport, LockHolds};
use kymo_core::latency::{PER_DOUBLING, USED};
use kymo_data::EventSpec;

/// The event's name.
const HOLDS: &str = "lock-holds";
/// The number of its description.
const KIND: u16 = 59_007;
/// The number of its records, behind those of `locks.rs`.
const HOLDS_ID: u64 = (0x6b79_6d6c << 32) + 2;
/// Buckets of the lengths of holds: those of 2^41 ns (36 minutes) and more are one.
const BUCKETS: usize = PER_DOUBLING as usize * 39;
/// Bytes of a record: with the word that says so, a multiple of 8.
const RECORD_BYTES: usize = 8 * (8 + BUCKETS) + 4;

/// The fields as tracefs would describe them. `kind` is 1 of a mutex, 2 of a lock for reading, 3 of
/// one for writing; `place` is where the function returned to that took the lock; `buckets` has the
/// holds by their length, as [`kymo_core::latency`] divides it, from its first bucket on.
const FORMAT: &str = concat!(
    "name: lock_holds\nID: 59007\nformat:\n",
    "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n",
    "\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n",
    "\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n",
    "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n",
    "\tfield:u64 pid;\toffset:8;\tsize:8;\tsigned:0;\n",
    "\tfield:u64 kind;\toffset:16;\tsize:8;\tsigned:0;\n",
    "\tfield:u64 address;\toffset:24;\tsize:8;\tsigned:0;\n",
    "\tfield:u64 place;\toffset:32;\tsize:8;\tsigned:0;\n",
    "\tfield:u64 holds;\toffset:40;\tsize:8;\tsigned:0;\n",
    "\tfield:u64 total_ns;\toffset:48;\tsize:8;\tsigned:0;\n",
    "\tfield:u64 max_ns;\toffset:56;\tsize:8;\tsigned:0;\n",
    "\tfield:u64 buckets[312];\toffset:64;\tsize:2496;\tsigned:0;\n\n",
    "print fmt: \"pid=%llu kind=%llu address=%llx place=%llx holds=%llu total=%llu max=%llu\", ",
    "REC->pid, REC->kind, REC->address, REC->place, REC->holds, REC->total_ns, REC->max_ns\n",
);

/// Tells how long locks are held.
pub trait HoldSource: Send {
    /// What is told from now on counts.
    fn begin(&mut self);

    /// Everything since then, and what the user should know. No more is told afterwards.
    fn end(&mut self) -> (HoldReport, Vec<String>);
}

/// The event, described.
pub(crate) fn event() -> UserEvent {
    UserEvent {
        name: HOLDS.to_owned(),
        system: "kymo".to_owned(),
        format: FORMAT.to_owned(),
        kind: KIND.into(),
        id: HOLDS_ID,
    }
}

/// The samples of a report. `specs`: the events of the file.
pub(crate) fn samples(report: &HoldReport, specs: &[EventSpec], time_ns: u64) -> Vec<u8> {
    let Some(spec) = specs.iter().find(|spec| spec.ids == [HOLDS_ID]) else { return Vec::new() };
    let mut bytes = Vec::new();
    for of in &report.locks {
        let (pid, period) = (of.pid, of.holds.total_ns);
        // The call is before the place that it returns to.
        let frames = vec![of.place.saturating_sub(1)];
        bytes.extend(
            OwnSample { kind: KIND, pid, tid: pid, time_ns, period, frames, ..OwnSample::default() }
                .with(raw(of), spec),
        );
    }
    bytes
}

fn raw(of: &LockHolds) -> Vec<u8> {
    let LockHolds { pid, kind, lock, place, holds } = of;
    let pid = u64::from(pid.cast_unsigned());
    let words = [0, pid, *kind as u64, *lock, *place, holds.count, holds.total_ns, holds.max_ns];
    let bucket = |at: usize| holds.buckets.get(USED.start as usize + at).copied().unwrap_or(0);
    let words = words.into_iter().chain((0..BUCKETS).map(bucket));
    let mut raw: Vec<u8> = words.flat_map(u64::to_ne_bytes).collect();
    raw.resize(RECORD_BYTES, 0);
    raw
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_core::holds::HoldKind;
    use kymo_core::latency::Latencies;
    use kymo_data::tracing_data::{Format, Value};

    /// Checks that the record reads back by its own description.
    #[test]
    fn described() {
        let mut holds = Latencies::default();
        [5, 5, 1000].into_iter().for_each(|ns| holds.add(ns));
        let of = LockHolds { pid: 7, kind: HoldKind::Read, lock: 0x1000, place: 0x2000, holds };
        let raw = raw(&of);
        let format = Format::parse("kymo", event().format.as_bytes()).expect("a description");
        let field = |name: &str| format.field(name).and_then(|field| field.value(&raw));
        for (name, value) in
            [("pid", 7), ("kind", 2), ("address", 0x1000), ("place", 0x2000), ("holds", 3), ("max_ns", 1000)]
        {
            assert_eq!(field(name), Some(Value::Unsigned(value)), "{name}");
        }
        let Some(Value::Bytes(buckets)) = field("buckets") else { panic!("no buckets") };
        let counts: u64 = buckets.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).sum();
        assert_eq!((counts, raw.len() % 8), (3, 4));
    }
}
