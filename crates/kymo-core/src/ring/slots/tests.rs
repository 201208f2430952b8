use super::*;
use crate::ring::{Area, Reader};

pub(super) struct Memory {
    words: Vec<AtomicU64>,
    slot_bytes: usize,
}

impl Memory {
    pub(super) fn new(slots: usize, slot_bytes: usize) -> Memory {
        let words = (0..5 + slots * slot_bytes / 8).map(|_| AtomicU64::new(0)).collect();
        Memory { words, slot_bytes }
    }

    pub(super) fn area(&self) -> SlotArea<'_> {
        let [reserved, free, head, lost, _, data @ ..] = &self.words[..] else { unreachable!() };
        SlotArea { reserved, free, head, lost, data, slot_bytes: self.slot_bytes }
    }

    pub(super) fn reader(&self) -> Reader<'_> {
        Reader::new(Area::new(&self.words[2], &self.words[4], &self.words[5..]).unwrap())
    }
}

const SLOT: usize = 32;
const HEADER: u64 = 9 | (SLOT as u64) << 48;

fn write(area: SlotArea<'_>, value: u64) -> bool {
    let slot = SlotWriter(area).reserve();
    let written = slot.is_some();
    slot.into_iter().for_each(|slot| slot.complete(HEADER, &[value, !value, value]));
    written
}

/// What a look finds: values of records, 0 for an abandoned slot.
pub(super) fn drain(publisher: &mut Publisher<'_>, reader: &mut Reader<'_>, now_ns: u64) -> Vec<u64> {
    publisher.turn(reader.position(), now_ns);
    let span = reader.begin().unwrap();
    let mut bytes = vec![0; span.len_bytes()];
    span.copy_to(&mut bytes);
    reader.release(span, bytes.len());
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let records = bytes.chunks(SLOT).map(|record| match word(&record[..8]) {
        HEADER => {
            let value = word(&record[8..16]);
            assert_eq!((word(&record[16..24]), word(&record[24..])), (!value, value));
            value
        }
        header => {
            assert_eq!(header, abandoned_header(SLOT));
            0
        }
    });
    records.collect()
}

/// Checks that records come in order, each once, over many laps, and that what has no room counts
/// as lost (S1, S2, S3).
#[test]
fn laps() {
    let memory = Memory::new(8, SLOT);
    let (mut publisher, mut reader) = (Publisher::new(memory.area()), memory.reader());
    let (mut next, mut expected, mut lost) = (1, Vec::new(), 0);
    let mut seen = Vec::new();
    for round in 0..200 {
        for _ in 0..round % 11 {
            match write(memory.area(), next) {
                true => expected.push(next),
                false => lost += 1,
            }
            next += 1;
        }
        seen.extend(drain(&mut publisher, &mut reader, 0));
    }
    seen.extend(drain(&mut publisher, &mut reader, 0));
    assert_eq!((seen, memory.area().lost()), (expected, lost));
    assert!(lost > 0);
}

/// Checks that an incomplete slot is waited for while nothing comes after it, or not for long; that
/// then it counts as lost and is not given to writers; and that its record is delivered when it is
/// completed late, after which the slot serves again (S3).
#[test]
fn abandoned() {
    let memory = Memory::new(4, SLOT);
    let area = memory.area();
    let (mut publisher, mut reader) = (Publisher::new(area), memory.reader());
    let late = SlotWriter(area).reserve().unwrap();
    assert_eq!((drain(&mut publisher, &mut reader, 5), area.lost()), (vec![], 1));
    assert_eq!(drain(&mut publisher, &mut reader, 5 + PATIENCE_NS), [], "nothing came after it");
    assert!(write(area, 2));
    assert_eq!(drain(&mut publisher, &mut reader, PATIENCE_NS), []);
    assert_eq!((drain(&mut publisher, &mut reader, 5 + PATIENCE_NS), area.lost()), (vec![0, 2], 1));
    for value in 3..30 {
        assert!(write(area, value));
        assert_eq!(drain(&mut publisher, &mut reader, 0).into_iter().max(), Some(value));
    }
    late.complete(HEADER, &[1, !1, 1]);
    let mut seen = Vec::new();
    for value in 30..50 {
        assert!(write(area, value));
        seen.extend(drain(&mut publisher, &mut reader, 0));
    }
    seen.sort_unstable();
    assert_eq!(seen, std::iter::once(1).chain(30..50).collect::<Vec<_>>());
    assert_eq!(area.lost(), 0);
}

/// Checks that whatever a program writes into the counters and headers, the publisher ends each
/// turn, and the reader sees no more than the ring holds (S4).
#[test]
fn hostile_counters() {
    let memory = Memory::new(4, SLOT);
    let (mut publisher, mut reader) = (Publisher::new(memory.area()), memory.reader());
    let values = [0, 1, 8, SLOT as u64, 4 * SLOT as u64, 1 << 40, u64::MAX - 7, u64::MAX];
    for (at, round) in (0..memory.words.len()).flat_map(|at| (0..40).map(move |round| (at, round))) {
        memory.words[at].store(values[round % values.len()], Ordering::Relaxed);
        memory.words[(at * 7 + round) % memory.words.len()]
            .store(values[round / values.len()], Ordering::Relaxed);
        publisher.turn(reader.position(), round as u64 * PATIENCE_NS);
        match reader.begin() {
            Ok(span) => {
                assert!(span.len_bytes() <= 4 * SLOT);
                let bytes = span.len_bytes();
                reader.release(span, bytes);
            }
            Err(_) => reader.skip(),
        }
        assert!(memory.area().lost() < u64::MAX || values.contains(&u64::MAX));
    }
}

/// Checks that records of four threads come whole, each once, in the order of each thread (S1, S2).
#[test]
fn threads() {
    const EACH: u64 = 20_000;
    let memory = Memory::new(64, SLOT);
    let area = memory.area();
    let (mut publisher, mut reader) = (Publisher::new(area), memory.reader());
    let mut seen: [Vec<u64>; 4] = Default::default();
    let lost: u64 = std::thread::scope(|scope| {
        let writer = |thread: u64| move || (1..=EACH).filter(|at| !write(area, thread << 32 | at)).count();
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(writer(thread))).collect();
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            drain(&mut publisher, &mut reader, 0)
                .into_iter()
                .for_each(|value| seen[(value >> 32) as usize].push(value & 0xffff_ffff));
        }
        threads.into_iter().map(|thread| thread.join().unwrap() as u64).sum()
    });
    drain(&mut publisher, &mut reader, 0)
        .into_iter()
        .for_each(|value| seen[(value >> 32) as usize].push(value & 0xffff_ffff));
    assert!(seen.iter().all(|of| of.is_sorted_by(|one, next| one < next)));
    assert_eq!(seen.iter().map(Vec::len).sum::<usize>() as u64 + lost, 4 * EACH);
    assert_eq!(area.lost(), lost);
}
