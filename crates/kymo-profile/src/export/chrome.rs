//! Trace events for chrome://tracing, Perfetto and other readers of its JSON: a track for each
//! thread and event, with functions as nested slices.
//!
//! The end of a slice has the samples in it and the sum of their periods (`args`), exactly; its
//! length is a picture ([`slices`](super::slices)).
use super::model::IntervalKind;
use super::samples::{ExportSamples, Track};
use super::slices::{SliceEdge, each_edge};
use crate::text;
use std::io::{self, Write};

/// Linux has no thread numbers from here on. Tracks of further events have their thread's number
/// and a multiple of this.
const MOST_THREADS: u64 = 1 << 22;

/// Writes a track for each thread and event.
///
/// # Errors
/// Those of `out`.
pub fn chrome(samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
    let names = samples.profile.functions.iter().map(|function| text::json(&function.name));
    let names = names.collect::<io::Result<Vec<String>>>()?;
    write!(
        out,
        "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"title\":{},\"recorder\":{},\"host\":{}}},\"traceEvents\":[",
        text::json(samples.profile.heading())?,
        text::json(&samples.profile.recorder)?,
        text::json(&samples.profile.host)?
    )?;
    let mut comma = "";
    let mut last = None;
    for track in samples.tracks() {
        let process = samples.thread(track.thread).distinct_ids().0;
        // Tracks of a process follow each other.
        let is_first = last.replace(process) != Some(process);
        write_track(samples, (track, is_first), &names, &mut comma, out)?;
    }
    write_losses(samples, &mut comma, out)?;
    out.write_all(b"\n]}\n")
}

/// Process and thread numbers of a track.
fn ids(samples: &ExportSamples<'_>, track: &Track) -> (i32, u64) {
    let thread = samples.thread(track.thread);
    let (pid, tid) = thread.distinct_ids();
    (pid, u64::from(tid.max(0) as u32) + u64::from(track.event) * MOST_THREADS)
}

fn write_track(
    samples: &ExportSamples<'_>,
    (track, is_first): (&Track, bool),
    names: &[String],
    comma: &mut &str,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (pid, tid) = ids(samples, track);
    let thread = samples.thread(track.thread);
    let mut fact = |what: &str, name: &str| -> io::Result<()> {
        let name = text::json(name)?;
        write!(
            out,
            "{comma}\n{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"name\":\"{what}\",\"args\":{{\"name\":{name}}}}}"
        )?;
        *comma = ",";
        Ok(())
    };
    fact("thread_name", &samples.track_name(track))?;
    if let Some(name) = samples.process_name(thread).filter(|_| is_first) {
        fact("process_name", name)?;
    }
    let head = format!("\"pid\":{pid},\"tid\":{tid},\"ts\":");
    each_edge(samples, track, |edge| match edge {
        SliceEdge::Begin { function, at_ns } => {
            let (name, us, ns) = (&names[function as usize], at_ns / 1000, at_ns % 1000);
            write!(out, ",\n{{\"ph\":\"B\",{head}{us}.{ns:03},\"name\":{name}}}")
        }
        SliceEdge::End { at_ns, samples, period } => {
            let (us, ns) = (at_ns / 1000, at_ns % 1000);
            write!(
                out,
                ",\n{{\"ph\":\"E\",{head}{us}.{ns:03},\"args\":{{\"samples\":{samples},\"period\":{period}}}}}"
            )
        }
    })
}

/// Where records were lost, as stretches over all tracks.
fn write_losses(samples: &ExportSamples<'_>, comma: &mut &str, out: &mut dyn Write) -> io::Result<()> {
    let Some(track) = samples.tracks().first() else { return Ok(()) };
    let (pid, _) = ids(samples, track);
    for interval in &samples.profile.intervals {
        let name = match interval.kind {
            IntervalKind::Loss => "records lost",
            IntervalKind::Pause => "target stopped",
            IntervalKind::Throttle => "throttled",
        };
        let begin = interval.start_ns.saturating_sub(samples.profile.start_ns);
        let length = interval.end_ns.saturating_sub(interval.start_ns);
        let moment = |ns: u64| format!("{}.{:03}", ns / 1000, ns % 1000);
        write!(
            out,
            "{comma}\n{{\"ph\":\"X\",\"pid\":{pid},\"tid\":0,\"ts\":{},\"dur\":{},\"name\":\"{name}\",\"args\":{{\"records\":{}}}}}",
            moment(begin),
            moment(length),
            interval.count
        )?;
        *comma = ",";
    }
    Ok(())
}
