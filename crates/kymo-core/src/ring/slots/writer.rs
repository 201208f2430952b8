//! The writer as the code in a program is (`kymo-agent`, `codegen/freestanding/events.rs`): for
//! tests, and as the rule that this code keeps.
use super::SlotArea;
use crate::sync::Ordering;

/// One of many.
#[derive(Clone, Copy, Debug)]
pub struct SlotWriter<'a>(pub SlotArea<'a>);

/// A slot that was reserved and is not complete.
#[derive(Debug)]
#[must_use = "an incomplete record keeps later ones from being read"]
pub struct OpenSlot<'a> {
    words: &'a [super::AtomicU64],
}

impl<'a> SlotWriter<'a> {
    /// Reserves a slot; `None`: there is no room, and the record is lost.
    pub fn reserve(&self) -> Option<OpenSlot<'a>> {
        let area = &self.0;
        loop {
            // Acquire: pairs with the Release in `Publisher::turn`; the headers are zero. Before
            // `reserved`, which is not less then.
            let free = area.free.load(Ordering::Acquire);
            // Relaxed: the exchange below tells whether it is still so.
            let next = area.reserved.load(Ordering::Relaxed);
            if next.wrapping_sub(free) >= area.size_bytes() {
                area.lost.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            let words = area.slot(next);
            // Relaxed: it was made so before `free`.
            let is_free = words[0].load(Ordering::Relaxed) == 0;
            let after = next.wrapping_add(area.slot_bytes as u64);
            // Relaxed: it carries nothing but the number.
            let taken = area.reserved.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() && is_free {
                return Some(OpenSlot { words });
            }
        }
    }
}

impl OpenSlot<'_> {
    /// Completes the record: its words behind the header, then the header.
    pub fn complete(self, header: u64, body: &[u64]) {
        for (word, value) in self.words[1..].iter().zip(body) {
            // Relaxed: published by the header.
            word.store(*value, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `Publisher::turn`.
        self.words[0].store(header, Ordering::Release);
    }
}
