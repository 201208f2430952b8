//! The events of a recording, and which of them a record belongs to.

use crate::abi;
use crate::attr::Attr;
use crate::excess;
use crate::record::RawRecord;
use crate::sample::{SampleId, SampleLayout};
use crate::words::u64_at;

/// One event of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its settings.
    pub attr: Attr,
    /// Its name as the user wrote it, or made up from the attr when the recording does not tell.
    pub name: String,
    /// Its ids: one per CPU or thread that it was opened on. Empty in recordings of a single event.
    pub ids: Vec<u64>,
    /// How its samples lie in bytes.
    pub layout: SampleLayout,
    /// Index of the group's leader; its own index when it leads or stands alone.
    pub leader: usize,
    /// The group's name, on the leader, if it was given one.
    pub group_name: Option<String>,
    /// Unit of the counts, if a pipe recording or an imported profile tells.
    pub unit: Option<String>,
    /// Factor that turns counts into units, if a pipe recording tells.
    pub scale: Option<f64>,
}

impl Event {
    /// An event with a name made up from `attr`, alone in its group.
    pub fn new(attr: Attr, ids: Vec<u64>, index: usize) -> Event {
        let layout = SampleLayout::new(&attr);
        let name = made_up_name(&attr);
        Event { attr, name, ids, layout, leader: index, group_name: None, unit: None, scale: None }
    }
}

/// All events of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventSet {
    /// The events in the recording's order.
    pub list: Vec<Event>,
    lookup: Lookup,
}

/// From id to event: a table when the ids lie close together (they nearly always do), else a sorted
/// list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Lookup {
    base: u64,
    dense: Vec<u32>,
    sorted: Vec<(u64, u32)>,
    /// Where a sample's body has the id, and how far from a body's end the others have it.
    in_sample: Option<usize>,
    from_end: Option<usize>,
}

const NO_EVENT: u32 = u32::MAX;

impl Lookup {
    fn new(list: &[Event]) -> Lookup {
        let mut sorted: Vec<(u64, u32)> = Vec::new();
        for (index, event) in list.iter().enumerate() {
            sorted.extend(event.ids.iter().map(|&id| (id, index as u32)));
        }
        sorted.sort_unstable();
        sorted.dedup_by_key(|entry| entry.0);
        let mut lookup = Lookup {
            in_sample: list.first().and_then(|event| event.layout.id_offset()),
            from_end: list.first().and_then(|event| event.layout.id_offset_from_end()),
            ..Lookup::default()
        };
        if let (Some(first), Some(last)) = (sorted.first(), sorted.last()) {
            let span = last.0 - first.0;
            // Bounded by the number of ids, which are in memory anyway.
            if span < 16 * sorted.len() as u64 + 1024 {
                lookup.base = first.0;
                lookup.dense = vec![NO_EVENT; span as usize + 1];
                for &(id, index) in &sorted {
                    if let Some(slot) = lookup.dense.get_mut((id - first.0) as usize) {
                        *slot = index;
                    }
                }
            } else {
                lookup.sorted = sorted;
            }
        }
        lookup
    }

    #[inline]
    fn find(&self, id: u64) -> Option<usize> {
        if !self.dense.is_empty() {
            let index = *self.dense.get(usize::try_from(id.wrapping_sub(self.base)).ok()?)?;
            return if index == NO_EVENT { None } else { Some(index as usize) };
        }
        let at = self.sorted.binary_search_by_key(&id, |entry| entry.0).ok()?;
        self.sorted.get(at).map(|entry| entry.1 as usize)
    }
}

impl EventSet {
    /// Events with an index by id. `leader`s beyond the list are set to the event itself.
    pub fn new(mut list: Vec<Event>) -> EventSet {
        let count = list.len();
        for (index, event) in list.iter_mut().enumerate() {
            if event.leader >= count {
                event.leader = index;
            }
        }
        let lookup = Lookup::new(&list);
        EventSet { list, lookup }
    }

    /// The event that has `id`.
    #[inline]
    pub fn by_id(&self, id: u64) -> Option<usize> {
        self.lookup.find(id)
    }

    /// The index of the event that wrote `record`.
    ///
    /// With a single event it is that one. Otherwise the record's id decides; id 0 (records that
    /// the recorder made up) and records without an id belong to the first event. `None`: an id
    /// that no event has.
    #[inline]
    pub fn event_of(&self, record: &RawRecord<'_>) -> Option<usize> {
        if self.list.len() <= 1 {
            return if self.list.is_empty() { None } else { Some(0) };
        }
        let at = if record.header.kind == abi::PERF_RECORD_SAMPLE {
            self.lookup.in_sample
        } else if record.is_user_type() {
            None
        } else {
            self.lookup.from_end.and_then(|back| self.body(record).len().checked_sub(back))
        };
        match at.and_then(|at| u64_at(record.body, at)) {
            None | Some(0) => Some(0),
            Some(id) => self.lookup.find(id),
        }
    }

    /// Who and when, from the trailer of a record that is not a sample. Everything is `None` for
    /// records that perf wrote (type 64 and up) and for recordings without `sample_id_all`.
    pub fn sample_id(&self, record: &RawRecord<'_>) -> SampleId {
        if record.is_user_type() || record.header.kind == abi::PERF_RECORD_SAMPLE {
            return SampleId::default();
        }
        let event = self.event_of(record).unwrap_or(0);
        self.list.get(event).map(|event| event.layout.sample_id(self.body(record))).unwrap_or_default()
    }

    /// The body up to the end of its trailer.
    fn body<'a>(&self, record: &RawRecord<'a>) -> &'a [u8] {
        // Events that hear of the machine have the same trailers.
        let trailer = self.list.first().map_or(0, |event| event.layout.sample_id_bytes());
        let end = excess::meant_bytes(record.header.kind, record.body, trailer);
        record.body.get(..end).unwrap_or(record.body)
    }
}

/// A name for an event that the recording does not name, spelled as perf spells it where perf has a
/// word.
fn made_up_name(attr: &Attr) -> String {
    const SOFTWARE: &str = "cpu-clock task-clock page-faults context-switches cpu-migrations minor-faults \
                            major-faults alignment-faults emulation-faults dummy bpf-output cgroup-switches";
    const HARDWARE: &str = "cycles instructions cache-references cache-misses branches branch-misses \
                            bus-cycles stalled-cycles-frontend stalled-cycles-backend ref-cycles";
    let nth = |names: &'static str, config: u64| names.split(' ').nth(usize::try_from(config).ok()?);
    let known = match attr.kind {
        abi::PERF_TYPE_SOFTWARE => nth(SOFTWARE, attr.config),
        abi::PERF_TYPE_HARDWARE => nth(HARDWARE, attr.config & 0xffff_ffff),
        _ => None,
    };
    let name = match (known, attr.kind) {
        (Some(name), _) => name.to_owned(),
        (None, abi::PERF_TYPE_TRACEPOINT) => return format!("tracepoint:{}", attr.config),
        (None, abi::PERF_TYPE_RAW) => format!("r{:x}", attr.config),
        (None, abi::PERF_TYPE_BREAKPOINT) => format!("mem:{:#x}", attr.config1),
        (None, kind) => return format!("type{kind}:{:#x}", attr.config),
    };
    match modifiers(attr) {
        letters if letters.is_empty() => name,
        letters => format!("{name}:{letters}"),
    }
}

/// The modifiers that give an attr, as perf derives them. perf also writes `HG` after events that
/// nothing restricts; they have none here.
fn modifiers(attr: &Attr) -> String {
    let includes = |flag| !attr.has(flag);
    let mut letters = String::new();
    let mut add = |shows: bool, letter: char| letters.extend(shows.then_some(letter));
    let levels = [
        (abi::ATTR_FLAG_EXCLUDE_KERNEL, 'k'),
        (abi::ATTR_FLAG_EXCLUDE_USER, 'u'),
        (abi::ATTR_FLAG_EXCLUDE_HV, 'h'),
    ];
    let is_limited = levels.iter().any(|(flag, _)| attr.has(*flag));
    levels.iter().for_each(|(flag, letter)| add(is_limited && includes(*flag), *letter));
    (0..attr.precise_ip()).for_each(|_| add(true, 'p'));
    // An event with these modifiers leaves guests out by itself.
    let leaves_out_guests = is_limited || attr.precise_ip() > 0;
    let (host, guest) = (includes(abi::ATTR_FLAG_EXCLUDE_HOST), includes(abi::ATTR_FLAG_EXCLUDE_GUEST));
    if !host || (leaves_out_guests && !guest) {
        add(host, 'H');
        add(guest, 'G');
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordHeader;

    fn event(sample_type: u64, ids: &[u64], index: usize) -> Event {
        let mut attr = Attr { sample_type, ..Attr::default() };
        attr.set(abi::ATTR_FLAG_SAMPLE_ID_ALL, true);
        Event::new(attr, ids.to_vec(), index)
    }

    fn record(kind: u32, body: &[u8]) -> RawRecord<'_> {
        let header = RecordHeader { kind, misc: 0, size: body.len() as u16 + 8 };
        RawRecord { header, body, position: 0 }
    }

    /// Checks that ids find their events, close together or far apart, and that id 0 goes to the
    /// first event.
    #[test]
    fn ids_find_events() {
        for far in [0u64, u64::MAX - 100] {
            let bits = abi::PERF_SAMPLE_IDENTIFIER | abi::PERF_SAMPLE_IP;
            let events = EventSet::new(vec![event(bits, &[5, 6], 0), event(bits, &[7, 8 + far], 9)]);
            assert_eq!(events.list[1].leader, 1, "a leader beyond the list is repaired");
            for (id, want) in
                [(5, Some(0)), (6, Some(0)), (7, Some(1)), (8 + far, Some(1)), (0, Some(0)), (99, None)]
            {
                let mut body = Vec::new();
                body.extend_from_slice(&u64::to_le_bytes(id));
                body.extend_from_slice(&1u64.to_le_bytes());
                assert_eq!(events.event_of(&record(abi::PERF_RECORD_SAMPLE, &body)), want, "sample {id}");
                body.rotate_left(8);
                assert_eq!(events.event_of(&record(abi::PERF_RECORD_COMM, &body)), want, "comm {id}");
            }
        }
    }

    /// Checks that an event without a recorded name has the modifiers that perf derives from its
    /// settings, in perf's order.
    #[test]
    fn made_up_names_have_modifiers() {
        let name = |flags: u64, precise: u8| {
            let mut attr = Attr { kind: abi::PERF_TYPE_HARDWARE, ..Attr::default() };
            attr.set(flags, true).set_precise_ip(precise);
            made_up_name(&attr)
        };
        let (no_kernel, no_hv) = (abi::ATTR_FLAG_EXCLUDE_KERNEL, abi::ATTR_FLAG_EXCLUDE_HV);
        let (no_host, no_guest) = (abi::ATTR_FLAG_EXCLUDE_HOST, abi::ATTR_FLAG_EXCLUDE_GUEST);
        assert_eq!(name(0, 0), "cycles");
        assert_eq!(name(no_guest, 0), "cycles");
        assert_eq!(name(no_guest, 2), "cycles:ppH");
        assert_eq!(name(0, 3), "cycles:ppp");
        assert_eq!(name(no_kernel | no_hv, 0), "cycles:u");
        assert_eq!(name(no_kernel | no_hv | no_guest, 1), "cycles:upH");
        assert_eq!(name(no_host, 0), "cycles:G");
    }

    /// Checks that a trailer is read from the record's end, in the kernel's order.
    #[test]
    fn trailer() {
        let bits =
            abi::PERF_SAMPLE_TID | abi::PERF_SAMPLE_TIME | abi::PERF_SAMPLE_CPU | abi::PERF_SAMPLE_IDENTIFIER;
        let events = EventSet::new(vec![event(bits, &[42], 0)]);
        let mut body = b"name\0\0\0\0".to_vec();
        for word in [3u64 << 32 | 2, 1000, 1, 42] {
            body.extend_from_slice(&word.to_le_bytes());
        }
        let id = events.sample_id(&record(abi::PERF_RECORD_COMM, &body));
        let want = SampleId {
            pid: Some(2),
            tid: Some(3),
            time: Some(1000),
            id: Some(42),
            stream_id: None,
            cpu: Some(1),
        };
        assert_eq!(id, want);
        assert_eq!(events.sample_id(&record(abi::PERF_RECORD_COMM, &body[..30])), SampleId::default());
    }
}
