//! Which samples are of interest, and what each of them counts.
use super::ScriptOptions;
use crate::load::{ReadPeriods, counts_by_reading};
use crate::raw_frames::Place;
use crate::resolve::Resolver;
use crate::timeline::{Moment, Timeline};
use kymo_data::{RawRecord, Recording, Sample, abi};
use rustc_hash::FxHashSet;

/// Whether CPU, task, time, thread name, function and module are among those that were asked for.
pub(super) fn passes(
    options: &ScriptOptions,
    timeline: &Timeline,
    resolver: &Resolver<'_>,
    record: &RawRecord<'_>,
    sample: &Sample<'_>,
) -> bool {
    let inside = |set: &Option<FxHashSet<i32>>, id: Option<i32>| {
        set.as_ref().is_none_or(|s| id.is_some_and(|i| s.contains(&i)))
    };
    inside(&options.pids, sample.pid)
        && inside(&options.tids, sample.tid)
        && options.cpus.as_ref().is_none_or(|s| sample.cpu.is_some_and(|c| s.contains(&c)))
        && options.time.as_ref().is_none_or(|spans| sample.time.is_some_and(|time| spans.contains(time)))
        && named_as_wanted(options, timeline, resolver, record, sample)
}

fn named_as_wanted(
    options: &ScriptOptions,
    timeline: &Timeline,
    resolver: &Resolver<'_>,
    record: &RawRecord<'_>,
    sample: &Sample<'_>,
) -> bool {
    let ScriptOptions { comms, symbols, dsos, .. } = options;
    if comms.is_none() && symbols.is_none() && dsos.is_none() {
        return true;
    }
    let among = |list: &Option<Vec<String>>, name: &str| {
        list.as_ref().is_none_or(|list| list.iter().any(|wanted| wanted == name))
    };
    let (pid, tid) = (sample.pid.unwrap_or(-1), sample.tid.or(sample.pid).unwrap_or(-1));
    let view = timeline.thread(pid, tid, Moment::new(sample.time, record.position));
    if !among(comms, &timeline.comm(view.comm)) {
        return false;
    }
    if symbols.is_none() && dsos.is_none() {
        return true;
    }
    let mode = (record.header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
    let named = resolver.named(Place::exact(view.maps, mode, sample.ip.unwrap_or(0)), false);
    let module = named.module.map(|id| &timeline.modules.get(id).short_name[..]);
    let symbol = named.symbol.as_ref().map_or("", |(_, _, name)| name);
    among(symbols, symbol) && among(dsos, module.unwrap_or("[unknown]"))
}

/// Calls `each` with event and period of a sample: once, or for each counter of a group that moved.
pub(super) fn each_count<E>(
    recording: &Recording,
    reads: &ReadPeriods,
    record: &RawRecord<'_>,
    sample: &Sample<'_>,
    event: usize,
    mut each: impl FnMut(usize, u64) -> Result<(), E>,
) -> Result<(), E> {
    let events = &recording.events;
    let of = &events.list[event];
    let Some(read) = sample.read.filter(|_| counts_by_reading(of)) else {
        return each(event, sample.period.unwrap_or(of.attr.sample_period));
    };
    for counter in read.counters() {
        let id = counter.id.or(sample.id).unwrap_or(0);
        let period = reads.period(record.position, id);
        if period != 0
            && let Some(member) = events.by_id(id)
        {
            each(member, period)?;
        }
    }
    Ok(())
}
