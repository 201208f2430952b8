//! The loss account as JSON, described in `docs/reference/formats/loss-json.md`.
use super::{LossTimeline, Stretch};
use kymo_data::UnwindCounts;
use kymo_symbols::unwind::Stop;
use serde::Serialize;
use std::io::{self, Write};

/// Grows when a key changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct RingItem {
    ring: String,
    samples: u64,
    bytes: u64,
    lost: u64,
    lost_records: u64,
    lost_chunks: u64,
    lost_samples: u64,
    lost_ns: u64,
    lost_time_share: f64,
    throttles: u64,
    throttled_ns: u64,
    bins: Vec<[u64; 4]>,
}

#[derive(Serialize)]
struct UnwoundItem {
    stacks: u64,
    frames: u64,
    frame_pointer_frames: u64,
    without_stack: u64,
    early_buffers: u64,
    ended: Vec<CauseItem>,
}

#[derive(Serialize)]
struct CauseItem {
    cause: &'static str,
    stacks: u64,
}

impl UnwoundItem {
    fn new(counts: &UnwindCounts) -> UnwoundItem {
        let causes = Stop::ALL.iter().zip(counts.ended);
        UnwoundItem {
            stacks: counts.stacks,
            frames: counts.frames,
            frame_pointer_frames: counts.guessed_frames,
            without_stack: counts.without_stack,
            early_buffers: counts.early_buffers,
            ended: causes.map(|(cause, stacks)| CauseItem { cause: cause.label(), stacks }).collect(),
        }
    }
}

#[derive(Serialize)]
struct IntervalItem {
    kind: &'static str,
    ring: Option<String>,
    start_ns: u64,
    end_ns: u64,
}

/// Writes the account; `source` is the recording's name as the user gave it.
///
/// # Errors
/// Those of `out`.
pub fn write_json(loss: &LossTimeline, source: &str, out: &mut dyn Write) -> io::Result<()> {
    let mut keys = Keys { out, first: true };
    keys.out.write_all(b"{\n")?;
    keys.put("schema", &"kymo-loss")?;
    keys.put("schema_version", &SCHEMA_VERSION)?;
    keys.put("source", &source)?;
    keys.put("start_ns", &loss.span.map(|s| s.0))?;
    keys.put("elapsed_ns", &loss.elapsed_ns())?;
    keys.put("samples", &loss.samples())?;
    keys.put("lost", &loss.lost())?;
    keys.put("lost_share", &loss.lost_share())?;
    keys.put("lost_records", &loss.lost_records())?;
    keys.put("lost_chunks", &loss.lost_chunks())?;
    keys.put("lost_samples", &loss.lost_samples())?;
    keys.put("lost_late", &loss.lost_late())?;
    keys.put("mean_lost_time_share", &loss.mean_lost_time_share())?;
    keys.put("any_lost_ns", &loss.any_lost_ns)?;
    keys.put("any_lost_time_share", &loss.any_lost_time_share())?;
    keys.put("estimated", &loss.estimated)?;
    keys.put("throttles", &loss.throttles())?;
    keys.put("paused_ns", &loss.paused_ns())?;
    keys.put("cpu_gaps", &loss.cpu_gaps.len())?;
    keys.put("cpu_gaps_ns", &loss.cpu_gaps_ns())?;
    keys.put("bin_ns", &loss.bin_ns)?;
    keys.put("bins_start_ns", &loss.start_of(0))?;
    keys.put("unwound", &loss.unwound.as_ref().map(UnwoundItem::new))?;
    let rings = loss.rings.iter().map(|ring| RingItem {
        ring: ring.ring.to_string(),
        samples: ring.samples,
        bytes: ring.bytes,
        lost: ring.lost(),
        lost_records: ring.lost_records,
        lost_chunks: ring.lost_chunks,
        lost_samples: ring.lost_samples,
        lost_ns: ring.lost_ns,
        lost_time_share: loss.lost_time_share(ring),
        throttles: ring.throttles,
        throttled_ns: ring.throttled_ns,
        bins: ring.cells.iter().map(|c| [c.samples, c.bytes, c.lost_ns, c.throttled_ns]).collect(),
    });
    keys.list("rings", rings)?;
    keys.list("events", loss.events.iter())?;
    let item = |kind, ring: Option<String>, s: &Stretch| IntervalItem {
        kind,
        ring,
        start_ns: s.start_ns,
        end_ns: s.end_ns,
    };
    let lost = loss.lost.iter().map(|(ring, s)| item("loss", Some(ring.to_string()), s));
    let throttled = loss.throttled.iter().map(|(ring, s)| item("throttle", Some(ring.to_string()), s));
    let pauses = loss.pauses.iter().map(|s| item("pause", None, s));
    let gaps = loss.cpu_gaps.iter().map(|(ring, s)| item("cpu-gap", Some(ring.to_string()), s));
    keys.list("intervals", lost.chain(throttled).chain(pauses).chain(gaps))?;
    keys.out.write_all(b"\n}\n")
}

struct Keys<'a> {
    out: &'a mut dyn Write,
    first: bool,
}

impl Keys<'_> {
    fn key(&mut self, key: &str) -> io::Result<()> {
        if !std::mem::take(&mut self.first) {
            self.out.write_all(b",\n")?;
        }
        write!(self.out, "\"{key}\": ")
    }

    fn put(&mut self, key: &str, value: &impl Serialize) -> io::Result<()> {
        self.key(key)?;
        self.out.write_all(crate::text::json(value)?.as_bytes())
    }

    /// One item per line, so that accounts can be compared line by line.
    fn list(&mut self, key: &str, items: impl Iterator<Item = impl Serialize>) -> io::Result<()> {
        self.key(key)?;
        self.out.write_all(b"[")?;
        for (at, item) in items.enumerate() {
            self.out.write_all(if at == 0 { b"\n" } else { b",\n" })?;
            self.out.write_all(crate::text::json(&item)?.as_bytes())?;
        }
        self.out.write_all(b"\n]")
    }
}
