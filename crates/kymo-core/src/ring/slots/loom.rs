//! Every interleaving of two writers and the publisher on a ring of two slots.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p kymo-core --release slots::loom`.
use super::{Publisher, SlotArea, SlotWriter};
use crate::ring::{Area, AtomicU64, Reader};
use loom::sync::Arc;
use loom::thread;

const SLOT: usize = 16;
const HEADER: u64 = 9 | (SLOT as u64) << 48;

struct Memory {
    words: [AtomicU64; 9],
}

impl Memory {
    fn area(&self) -> SlotArea<'_> {
        let [reserved, free, head, lost, _, data @ ..] = &self.words;
        SlotArea { reserved, free, head, lost, data, slot_bytes: SLOT }
    }
}

/// Checks that each record is delivered whole and once, or was refused for want of room, while
/// slots are given back and used again (S1, S2, S3).
#[test]
fn each_record_once() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let memory = Arc::new(Memory { words: std::array::from_fn(|_| AtomicU64::new(0)) });
        let writer = |values: &'static [u64]| {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let write = |value: &u64| {
                    let slot = SlotWriter(memory.area()).reserve();
                    let written = slot.is_some();
                    slot.into_iter().for_each(|slot| slot.complete(HEADER, &[*value]));
                    written
                };
                values.iter().copied().filter(write).collect::<Vec<u64>>()
            })
        };
        let writers = [writer(&[1, 2]), writer(&[3])];
        let mut publisher = Publisher::new(memory.area());
        let mut reader =
            Reader::new(Area::new(&memory.words[2], &memory.words[4], &memory.words[5..]).unwrap());
        let mut seen = Vec::new();
        let mut drain = || {
            publisher.turn(reader.position(), 0);
            let span = reader.begin().unwrap();
            let mut bytes = vec![0; span.len_bytes()];
            span.copy_to(&mut bytes);
            reader.release(span, bytes.len());
            for record in bytes.chunks(SLOT) {
                assert_eq!(record[..8], HEADER.to_le_bytes());
                seen.push(u64::from_le_bytes(record[8..].try_into().unwrap()));
            }
        };
        drain();
        drain();
        let mut written: Vec<u64> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
        drain();
        seen.sort_unstable();
        written.sort_unstable();
        assert_eq!(seen, written);
    });
}
