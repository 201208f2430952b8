//! Holds samples back until everything that happened before them is known.
//!
//! A sample is unwound by the mappings of its process at its own moment, and the record of a
//! mapping may lie in the ring of another CPU. So a buffer waits until every other ring was found
//! empty (or emptied) by a scan that began after the scan which filled the buffer: what happened
//! before the buffer's last sample was in its ring by then. Nothing here depends on clocks of CPUs
//! being the same to the nanosecond, or on which clock it is; see [`crate::ring_scan`].
//!
//! ```text
//!  ring 0   [ B: samples until t=90, look 41..42 ]        held
//!  ring 1   emptied, look 37..38                          a mapping of t=80 may still be in it
//!  ring 1   emptied, look 43..44  -> its records          now B is due: first the events up to t=90, then B
//! ```
use crate::ring_scan::ScanInterval;
use kymo_profile::timeline::{Moment, SideEvent};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What a record tells that samples are unwound by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// A name, a fork, a mapping.
    Event(SideEvent),
    /// The end of a task.
    Ended { tid: i32 },
}

/// The times of the first and the last sample of a buffer, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
}

#[derive(Debug)]
struct Timed {
    moment: Moment,
    side: Side,
}

// Only the moments order them: they are unique by position.
impl PartialEq for Timed {
    fn eq(&self, other: &Timed) -> bool {
        self.moment == other.moment
    }
}
impl Eq for Timed {}
impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Timed) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timed {
    fn cmp(&self, other: &Timed) -> std::cmp::Ordering {
        self.moment.cmp(&other.moment)
    }
}

#[derive(Debug)]
struct HeldBuffer<T> {
    item: T,
    scan: ScanInterval,
    /// `None`: it holds no samples and only keeps its place among the others of its ring.
    times: Option<Times>,
}

#[derive(Debug)]
struct RingQueue<T> {
    /// The tick before the last look that left the ring empty.
    emptied: u64,
    queue: VecDeque<HeldBuffer<T>>,
}

/// The order. `T`: whatever is held back.
#[derive(Debug)]
pub(crate) struct Order<T> {
    rings: Vec<RingQueue<T>>,
    events: BinaryHeap<Reverse<Timed>>,
    /// What was there before the recording is known; before that nothing is due.
    begun: bool,
    /// Nothing comes any more.
    ended: bool,
    /// Everything up to this time has been handed out or is about to be.
    reached_ns: u64,
    /// How many items with samples are held.
    held: usize,
    /// How many were handed out before their time.
    early: u64,
}

impl<T> Order<T> {
    /// An order over so many rings.
    pub(crate) fn new(rings: usize) -> Order<T> {
        let ring = || RingQueue { emptied: 0, queue: VecDeque::new() };
        Order {
            rings: (0..rings).map(|_| ring()).collect(),
            events: BinaryHeap::new(),
            begun: false,
            ended: false,
            reached_ns: 0,
            held: 0,
            early: 0,
        }
    }

    /// A record other than a sample has arrived.
    pub(crate) fn event(&mut self, moment: Moment, side: Side) {
        self.events.push(Reverse(Timed { moment, side }));
    }

    /// An item of a ring has arrived, with the times of its samples if it has any.
    pub(crate) fn hold(&mut self, ring: usize, scan: ScanInterval, times: Option<Times>, item: T) {
        let Some(ring) = self.rings.get_mut(ring) else { return };
        self.held += usize::from(times.is_some());
        ring.queue.push_back(HeldBuffer { item, scan, times });
    }

    /// A look has left a ring empty. To be told after what the look found.
    pub(crate) fn emptied(&mut self, ring: usize, scan: ScanInterval) {
        if let Some(ring) = self.rings.get_mut(ring) {
            ring.emptied = ring.emptied.max(scan.before);
        }
    }

    /// What was there before the recording has arrived.
    pub(crate) fn begin(&mut self) {
        self.begun = true;
    }

    /// Nothing comes any more: everything is due.
    pub(crate) fn end(&mut self) {
        (self.begun, self.ended) = (true, true);
    }

    /// The next item whose time has come, and its ring. The events before it are
    /// [`due`](Order::due) then, and must be taken in first.
    pub(crate) fn take(&mut self) -> Option<(usize, T)> {
        let (least, second, at) = self.least();
        let due = |ring: usize, held: &HeldBuffer<T>| {
            let others = if ring == at { second } else { least };
            held.times.is_none() || self.ended || self.begun && held.scan.after < others
        };
        let ring = (self.rings.iter().enumerate())
            .position(|(index, ring)| ring.queue.front().is_some_and(|held| due(index, held)))?;
        self.pop(ring)
    }

    /// The item that has waited longest, although not all before it is known.
    pub(crate) fn take_early(&mut self) -> Option<(usize, T)> {
        let heads =
            self.rings.iter().enumerate().filter_map(|(ring, queue)| Some((ring, queue.queue.front()?)));
        let (ring, _) = heads.min_by_key(|(_, held)| held.scan.after)?;
        self.early += 1;
        self.pop(ring)
    }

    fn pop(&mut self, ring: usize) -> Option<(usize, T)> {
        let held = self.rings.get_mut(ring)?.queue.pop_front()?;
        if let Some(times) = held.times {
            self.held -= 1;
            self.reached_ns = self.reached_ns.max(times.last_ns);
        }
        Some((ring, held.item))
    }

    /// The next event that belongs before what was taken last.
    pub(crate) fn due(&mut self) -> Option<(Moment, Side)> {
        let Reverse(next) = self.events.peek()?;
        if next.moment.time_ns > self.reached_ns {
            return None;
        }
        self.events.pop().map(|Reverse(timed)| (timed.moment, timed.side))
    }

    /// No sample that is still to come is older than this, in ns.
    pub(crate) fn floor_ns(&self) -> u64 {
        let heads = self.rings.iter().filter_map(|ring| ring.queue.iter().find_map(|held| held.times));
        heads.map(|times| times.first_ns).fold(self.reached_ns, u64::min)
    }

    /// How many items with samples are held.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// How many items were handed out early.
    pub(crate) fn early(&self) -> u64 {
        self.early
    }

    /// The rings on which the item that has waited longest waits.
    pub(crate) fn lagging(&self) -> impl Iterator<Item = usize> + '_ {
        let heads =
            self.rings.iter().enumerate().filter_map(|(ring, queue)| Some((ring, queue.queue.front()?)));
        let oldest =
            heads.min_by_key(|(_, held)| held.scan.after).map(|(ring, held)| (ring, held.scan.after));
        let rings = self.rings.iter().enumerate();
        rings
            .filter(move |(index, ring)| {
                oldest.is_some_and(|(own, after)| *index != own && ring.emptied <= after)
            })
            .map(|(index, _)| index)
    }

    /// The least tick up to which a ring was emptied, the next one, and which ring it is that has
    /// the least.
    fn least(&self) -> (u64, u64, usize) {
        let (mut least, mut second, mut at) = (u64::MAX, u64::MAX, 0);
        for (index, ring) in self.rings.iter().enumerate() {
            if ring.emptied < least {
                (second, least, at) = (least, ring.emptied, index);
            } else {
                second = second.min(ring.emptied);
            }
        }
        (least, second, at)
    }
}

#[cfg(test)]
mod tests {
    use super::{Order, Side, Times};
    use crate::ring_scan::{LogicalClock, ScanInterval};
    use kymo_profile::timeline::Moment;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const RINGS: usize = 3;

    /// What the test plays: the kernel writes a record, a drain looks at a ring in two steps, a
    /// message arrives.
    #[derive(Clone, Copy, Debug)]
    enum RingStep {
        Sample(usize),
        Event(usize),
        LookBegins(usize),
        LookEnds(usize),
        Arrive,
        TakeEarly,
    }

    fn steps() -> impl Strategy<Value = Vec<RingStep>> {
        let ring = 0..RINGS;
        let step = prop_oneof![
            4 => ring.clone().prop_map(RingStep::Sample),
            4 => ring.clone().prop_map(RingStep::Event),
            6 => ring.clone().prop_map(RingStep::LookBegins),
            6 => ring.prop_map(RingStep::LookEnds),
            6 => Just(RingStep::Arrive),
        ];
        prop::collection::vec(step, 0..400)
    }

    /// A record by its time; true for a sample.
    type Record = (u64, bool);

    #[derive(Default)]
    struct Played {
        order: Option<Order<Vec<u64>>>,
        /// The times of events in the order in which they were handed out, and of samples with how
        /// many events came before them.
        events: Vec<u64>,
        samples: Vec<(usize, u64, usize)>,
        floor: u64,
        /// Something was handed out before its time: no promises about the floor.
        loose: bool,
    }

    impl Played {
        fn hand_out(&mut self, early: bool) {
            let order = self.order.as_mut().unwrap();
            let mut early = early;
            loop {
                let taken = if std::mem::take(&mut early) { order.take_early() } else { order.take() };
                let Some((ring, times)) = taken else { break };
                while let Some((moment, _)) = order.due() {
                    self.events.push(moment.time_ns);
                }
                let events = self.events.len();
                for time in times {
                    assert!(
                        self.loose || time >= self.floor,
                        "{time} is older than the floor {}",
                        self.floor
                    );
                    self.samples.push((ring, time, events));
                }
                self.floor = order.floor_ns();
            }
        }
    }

    fn play(steps: &[RingStep]) -> (Vec<Vec<Record>>, Played) {
        let ticks = LogicalClock::default();
        let mut played = Played { order: Some(Order::new(RINGS)), ..Played::default() };
        played.order.as_mut().unwrap().begin();
        let mut clock = 0;
        let mut all: Vec<Vec<Record>> = vec![Vec::new(); RINGS];
        let mut rings: [Vec<Record>; RINGS] = Default::default();
        let mut looking: [Option<u64>; RINGS] = [None; RINGS];
        let mut messages: VecDeque<(usize, Vec<Record>, ScanInterval)> = VecDeque::new();
        let mut ending = Vec::new();
        for ring in 0..RINGS {
            ending.extend([RingStep::LookBegins(ring), RingStep::LookEnds(ring)]);
        }
        let arrive = |played: &mut Played, message: (usize, Vec<Record>, ScanInterval)| {
            let (ring, records, scan) = message;
            let order = played.order.as_mut().unwrap();
            let mut samples = Vec::new();
            for (time, sample) in records {
                let moment = Moment { time_ns: time, position: time };
                match sample {
                    true => samples.push(time),
                    false => order.event(moment, Side::Ended { tid: 0 }),
                }
            }
            let times =
                samples.first().map(|&first_ns| Times { first_ns, last_ns: *samples.last().unwrap() });
            order.hold(ring, scan, times, samples);
            order.emptied(ring, scan);
            played.hand_out(false);
        };
        for step in steps.iter().chain(&ending) {
            match *step {
                RingStep::Sample(ring) | RingStep::Event(ring) => {
                    clock += 1;
                    let record = (clock, matches!(step, RingStep::Sample(_)));
                    rings[ring].push(record);
                    all[ring].push(record);
                }
                RingStep::LookBegins(ring) => {
                    looking[ring].get_or_insert_with(|| ticks.tick());
                }
                RingStep::LookEnds(ring) => {
                    if let Some(before) = looking[ring].take() {
                        let found = std::mem::take(&mut rings[ring]);
                        messages.push_back((ring, found, ScanInterval { before, after: ticks.tick() }));
                    }
                }
                // Messages of all drains go through one inbox.
                RingStep::Arrive => {
                    if let Some(message) = messages.pop_front() {
                        arrive(&mut played, message);
                    }
                }
                RingStep::TakeEarly => {
                    played.loose = true;
                    played.hand_out(true);
                }
            }
        }
        for message in messages {
            arrive(&mut played, message);
        }
        played.order.as_mut().unwrap().end();
        played.hand_out(false);
        (all, played)
    }

    fn times(all: &[Vec<Record>], sample: bool) -> Vec<u64> {
        let mut times: Vec<u64> = all.iter().flatten().filter(|r| r.1 == sample).map(|r| r.0).collect();
        times.sort_unstable();
        times
    }

    proptest! {
        /// Checks, for any interleaving of three rings, their drains and the arrival of what they
        /// found, that each sample comes after every event that is older (what sorting all records
        /// by time would give), that events come in order of time, each once, that samples come
        /// each once and in the order of their ring, and that none is older than the floor.
        #[test]
        fn a_sample_comes_after_all_that_was_before_it(steps in steps()) {
            let (all, mut played) = play(&steps);
            let events = times(&all, false);
            for &(ring, time, before) in &played.samples {
                let older = events.partition_point(|&event| event < time);
                prop_assert!(before >= older, "the sample {time} of ring {ring} came after {before} of {older} events");
                prop_assert_eq!(&played.events[..older], &events[..older]);
            }
            for (ring, records) in all.iter().enumerate() {
                let seen = played.samples.iter().filter(|s| s.0 == ring).map(|s| s.1);
                let written = records.iter().filter(|r| r.1).map(|r| r.0);
                prop_assert_eq!(seen.collect::<Vec<_>>(), written.collect::<Vec<_>>());
            }
            prop_assert!(played.events.is_sorted());
            prop_assert_eq!(played.order.as_mut().unwrap().early(), 0);
        }

        /// Checks that what is handed out early is counted, and that nothing is lost or doubled
        /// then.
        #[test]
        fn early(steps in steps(), every in 1..20usize) {
            let mut with_early = Vec::new();
            for (index, step) in steps.into_iter().enumerate() {
                with_early.push(step);
                if index % every == 0 {
                    with_early.push(RingStep::TakeEarly);
                }
            }
            let (all, played) = play(&with_early);
            let mut seen: Vec<u64> = played.samples.iter().map(|s| s.1).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, times(&all, true));
        }
    }

    /// Checks that with one ring nothing waits, that nothing is due before the start is known, and
    /// who lags behind otherwise.
    #[test]
    fn who_waits_for_whom() {
        let scan = |before| ScanInterval { before, after: before + 1 };
        let times = Some(Times { first_ns: 5, last_ns: 9 });
        let mut one = Order::new(1);
        one.hold(0, scan(1), times, "a");
        one.emptied(0, scan(1));
        assert_eq!(one.take(), None);
        one.begin();
        assert_eq!(one.take(), Some((0, "a")));
        let mut two = Order::new(2);
        two.begin();
        two.hold(0, scan(5), times, "b");
        two.emptied(0, scan(5));
        two.hold(0, scan(7), None, "empty");
        assert_eq!((two.take(), two.held()), (None, 1));
        assert_eq!(two.lagging().collect::<Vec<_>>(), [1]);
        two.emptied(1, scan(6));
        assert_eq!(two.take(), None, "the look at ring 1 began when that at ring 0 had not ended");
        two.emptied(1, scan(8));
        assert_eq!((two.take(), two.take(), two.take()), (Some((0, "b")), Some((0, "empty")), None));
    }
}
