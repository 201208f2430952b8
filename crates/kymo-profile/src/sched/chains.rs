//! Call chains of switches as one line each.
use crate::load::collect_sideband;
use crate::raw_frames::{Place, walk_words};
use crate::resolve::Resolver;
use crate::timeline::{Moment, Timeline};
use crate::unwind_samples::{StackUnwinder, ThreadUnwinder};
use kymo_data::{RawRecord, ReadError, Recording};
use kymo_symbols::SymbolStore;
use rustc_hash::FxHashMap;

/// Functions of the scheduler itself, with which every such chain begins.
const SCHEDULER: [&str; 3] = ["schedule", "__schedule", "preempt_schedule"];

/// Names the functions of call chains.
pub struct SwitchChains<'a> {
    recording: &'a Recording,
    timeline: &'a Timeline,
    resolver: Resolver<'a>,
    unwinder: ThreadUnwinder<'a>,
    max_stack: usize,
    names: FxHashMap<Place, Option<Box<str>>>,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for SwitchChains<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SwitchChains").field("max_stack", &self.max_stack).finish_non_exhaustive()
    }
}

/// Reads what names need, and calls `use_them` with it. A chain has no more than `max_stack`
/// functions.
///
/// # Errors
/// When the recording cannot be read at all.
pub fn with_chains<R>(
    recording: &Recording,
    store: &SymbolStore,
    max_stack: usize,
    use_them: impl FnOnce(&mut SwitchChains<'_>) -> R,
) -> Result<R, ReadError> {
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (timeline, _, _) = collect_sideband(recording, workers, store.options(), &|_, _| {})?;
    let unwinder = StackUnwinder::new(&timeline, recording, store.options());
    Ok(use_them(&mut SwitchChains {
        recording,
        timeline: &timeline,
        resolver: Resolver::new(&timeline, store),
        unwinder: unwinder.thread(),
        max_stack,
        names: FxHashMap::default(),
        scratch: Vec::new(),
    }))
}

impl SwitchChains<'_> {
    /// `futex_wait <- do_futex <- main`, innermost first, without the scheduler's own functions;
    /// empty where the sample has no chain.
    pub fn text(&mut self, record: &RawRecord<'_>) -> String {
        let events = &self.recording.events;
        let event = events.event_of(record).and_then(|event| events.list.get(event));
        let Some(event) = event else { return String::new() };
        let sample = event.layout.parse(record.header.misc, record.body).ok();
        let Some(sample) = sample.filter(|sample| sample.callchain.is_some()) else { return String::new() };
        let (pid, tid) = (sample.pid.unwrap_or(-1), sample.tid.or(sample.pid).unwrap_or(-1));
        let maps = self.timeline.thread(pid, tid, Moment::new(sample.time, record.position)).maps;
        let mut scratch = std::mem::take(&mut self.scratch);
        let chain = self.unwinder.chain(&event.attr, &sample, maps, &mut scratch);
        let mut text = String::new();
        let mut shown = 0;
        let (names, resolver) = (&mut self.names, &self.resolver);
        walk_words(chain, self.max_stack.saturating_add(SCHEDULER.len() + 1), |frame| {
            let place = Place::new(maps, frame);
            let name = names.entry(place).or_insert_with(|| {
                resolver.named(place, false).symbol.map(|(_, _, name)| name.into_string().into())
            });
            let name = name.as_deref().unwrap_or("[unknown]");
            if SCHEDULER.contains(&name) || shown == self.max_stack {
                return;
            }
            if shown > 0 {
                text.push_str(" <- ");
            }
            text.push_str(name);
            shown += 1;
        });
        self.scratch = scratch;
        text
    }
}
