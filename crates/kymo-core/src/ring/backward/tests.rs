//! The engine against its model, and the corner cases by name.
use super::model::Model;
use super::{Area, Buffer, Paused, Reader, Unaligned, Window, Writer};
use crate::sync::{AtomicU64, Ordering};
use proptest::prelude::*;

fn record(words: usize, fill: u64) -> Vec<u8> {
    let mut out = (9u64 | (words as u64 * 8) << 48).to_le_bytes().to_vec();
    for word in 1..words as u64 {
        out.extend(fill.wrapping_mul(1_000_003).wrapping_add(word).to_le_bytes());
    }
    out
}

/// The records that a reader finds, the newest first.
fn take(reader: &Reader<'_>) -> (Vec<u8>, Window) {
    let mut out = vec![0xee; reader.size_bytes()];
    let window = reader.window(&mut out).expect("the ring is sound");
    out.truncate(window.records_bytes);
    (out, window)
}

#[derive(Clone, Debug)]
enum Op {
    Push { words: usize, trailer_words: usize },
    Pause(bool),
    Look,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (1..6usize, 0..3usize).prop_map(|(words, trailer_words)| Op::Push { words, trailer_words }),
        1 => any::<bool>().prop_map(Op::Pause),
        2 => Just(Op::Look),
    ];
    prop::collection::vec(op, 0..200)
}

proptest! {
    /// Checks that after any sequence of records and pauses a window holds what the model says,
    /// also when it is read twice.
    #[test]
    fn equals_the_model(ops in ops(), size_log in 7u32..11) {
        let size = 1usize << size_log;
        let buffer = Buffer::new(size);
        let (mut writer, reader) = (Writer::new(buffer.area()), Reader::new(buffer.area()));
        let mut model = Model::default();
        for (i, op) in ops.iter().enumerate() {
            match *op {
                Op::Push { words, trailer_words } => {
                    let (record, trailer) = (record(words, i as u64), vec![0xab; trailer_words * 8]);
                    prop_assert_eq!(writer.push(&record, i as u64, &trailer), model.push(&record, i as u64, &trailer));
                }
                Op::Pause(paused) => {
                    writer.pause(paused);
                    model.pause(paused);
                }
                Op::Look => {
                    let (bytes, window) = take(&reader);
                    prop_assert_eq!(&bytes, &model.newest(size));
                    prop_assert_eq!(window.wrapped, model.written_bytes() > size);
                    prop_assert_eq!(window.corrupt_bytes, 0);
                    prop_assert_eq!(window.records_bytes + window.overwritten_bytes, model.written_bytes().min(size));
                    prop_assert_eq!(take(&reader).0, bytes);
                }
            }
        }
    }

    /// Checks B1 to B3 while records come between any two words of the copy: what is delivered is
    /// the newest as of the first look, without those of which something was overwritten by then,
    /// and without no other.
    #[test]
    fn records_that_come_while_it_copies(
        before in prop::collection::vec(1..9usize, 0..60),
        during in prop::collection::vec((0..40usize, 1..9usize), 0..20),
        size_log in 7u32..10,
    ) {
        let size = 1usize << size_log;
        let buffer = Buffer::new(size);
        let mut writer = Writer::new(buffer.area());
        let mut model = Model::default();
        for (i, &words) in before.iter().enumerate() {
            writer.push(&record(words, i as u64), 0, &[]).unwrap();
            model.push(&record(words, i as u64), 0, &[]).unwrap();
        }
        let mut queue = during.iter().peekable();
        let (mut since, mut wait) = (0, 0);
        let mut out = vec![0xee; size];
        let window = Reader::new(buffer.area()).window_with(&mut out, || {
            // Nothing is written after the second look, which comes right after the last call.
            wait += 1;
            while let Some(&(_, words)) = queue.next_if(|&&(gap, _)| gap <= wait) {
                wait = 0;
                writer.push(&record(words, 999), 0, &[]).unwrap();
                since += words * 8;
            }
        });
        let window = window.unwrap();
        let intact = size.saturating_sub(since).min(model.written_bytes().min(size));
        prop_assert_eq!(&out[..window.records_bytes], &model.newest(intact)[..]);
        prop_assert_eq!(window.corrupt_bytes, 0, "{:?}", window);
    }

    /// Checks B4: no head, no data and no later head makes the reader panic, read outside the ring,
    /// or deliver what is no record.
    #[test]
    fn hostile_producer(
        head in prop_oneof![any::<u64>(), (0..40u64).prop_map(|words| (words * 8).wrapping_neg())],
        later in any::<Option<u64>>(),
        words in prop::collection::vec(any::<u64>(), 16),
        sizes in prop::collection::vec((0..16usize, 0..200u64), 0..8),
    ) {
        let data: Vec<AtomicU64> = words.into_iter().map(AtomicU64::new).collect();
        sizes.into_iter().for_each(|(at, size)| data[at].store(size << 48, Ordering::Relaxed));
        let shared = AtomicU64::new(head);
        let reader = Reader::new(Area::new(&shared, &data).unwrap());
        let mut out = vec![0xee; 128];
        let lie = || {
            if let Some(later) = later {
                shared.store(later, Ordering::Relaxed);
            }
        };
        match reader.window_with(&mut out, lie) {
            Err(error) => prop_assert_eq!((error.head, head % 8 != 0), (head, true)),
            Ok(window) => {
                let filled = usize::try_from(head.wrapping_neg()).unwrap_or(usize::MAX).min(128);
                let all = window.records_bytes + window.overwritten_bytes + window.corrupt_bytes;
                prop_assert_eq!(all, filled);
                let mut at = 0;
                while at < window.records_bytes {
                    let size = usize::from(u16::from_le_bytes([out[at + 6], out[at + 7]]));
                    prop_assert!(size >= 8 && size % 8 == 0);
                    at += size;
                }
                prop_assert_eq!(at, window.records_bytes);
                prop_assert!(out[filled..].iter().all(|&byte| byte == 0xee));
            }
        }
    }
}

/// Checks that a ring which nobody wrote to is empty, and one that is full to the last byte is
/// whole: here no byte is kept free.
#[test]
fn empty_and_full() {
    let buffer = Buffer::new(64);
    let (mut writer, reader) = (Writer::new(buffer.area()), Reader::new(buffer.area()));
    assert_eq!(take(&reader), (vec![], Window::default()));
    let (one, two) = (record(5, 1), record(3, 2));
    writer.push(&one, 0, &[]).unwrap();
    assert_eq!(take(&reader).1, Window { records_bytes: 40, ..Window::default() });
    writer.push(&two, 0, &[]).unwrap();
    assert_eq!(take(&reader), ([two, one].concat(), Window { records_bytes: 64, ..Window::default() }));
}

/// Checks that of a record whose last word was overwritten nothing is delivered, although its
/// header is still there.
#[test]
fn the_oldest_is_overwritten_from_its_end() {
    let buffer = Buffer::new(64);
    let (mut writer, reader) = (Writer::new(buffer.area()), Reader::new(buffer.area()));
    for words in [5, 3, 1] {
        writer.push(&record(words, words as u64), 0, &[]).unwrap();
    }
    let window = Window { records_bytes: 32, overwritten_bytes: 32, corrupt_bytes: 0, wrapped: true };
    assert_eq!(take(&reader), ([record(1, 1), record(3, 3)].concat(), window));
}

/// Checks that a size that cannot be ends the window, is counted, and is told from an oldest record
/// that was partly overwritten.
#[test]
fn impossible_sizes() {
    for (size, corrupt) in [(0u64, true), (4, true), (12, true), (u64::from(u16::MAX), true), (96, false)] {
        let buffer = Buffer::new(64);
        let (mut writer, reader) = (Writer::new(buffer.area()), Reader::new(buffer.area()));
        for words in [4, 5, 2] {
            writer.push(&record(words, 1), 0, &[]).unwrap();
        }
        // The header of the second record, behind the 16 bytes of the newest.
        let head = buffer.head.load(Ordering::Relaxed);
        buffer.area().word(head.wrapping_add(16)).store(size << 48, Ordering::Relaxed);
        let (bytes, window) = take(&reader);
        assert_eq!(bytes, record(2, 1), "{size}");
        let rest = (window.overwritten_bytes, window.corrupt_bytes);
        assert_eq!(rest, if corrupt { (0, 48) } else { (48, 0) }, "{size}");
    }
    // Where nothing was overwritten yet, no record may go over the end.
    let buffer = Buffer::new(64);
    Writer::new(buffer.area()).push(&record(4, 1), 0, &[]).unwrap();
    buffer.area().word(32u64.wrapping_neg()).store(40 << 48, Ordering::Relaxed);
    let window = Window { corrupt_bytes: 32, ..Window::default() };
    assert_eq!(take(&Reader::new(buffer.area())), (vec![], window));
}

/// Checks that a head that is no multiple of 8 is an error, and one that goes up while it is read
/// gives nothing.
#[test]
fn heads_that_lie() {
    let buffer = Buffer::new(64);
    let mut out = [0; 64];
    buffer.head.store(4, Ordering::Relaxed);
    assert_eq!(Reader::new(buffer.area()).window(&mut out), Err(Unaligned { head: 4 }));
    buffer.head.store(0, Ordering::Relaxed);
    Writer::new(buffer.area()).push(&record(4, 1), 0, &[]).unwrap();
    let up = || buffer.head.store(0, Ordering::Relaxed);
    let window = Reader::new(buffer.area()).window_with(&mut out, up).unwrap();
    assert_eq!((window.records_bytes, window.overwritten_bytes), (0, 32));
}

/// Checks that records are refused while paused and that the next one brings the count, at the
/// lower address.
#[test]
fn pausing() {
    let buffer = Buffer::new(128);
    let (mut writer, reader) = (Writer::new(buffer.area()), Reader::new(buffer.area()));
    writer.push(&record(2, 1), 0, &[]).unwrap();
    writer.pause(true);
    assert_eq!(writer.push(&record(2, 2), 0, &[]), Err(Paused));
    assert_eq!((take(&reader).0, writer.lost()), (record(2, 1), 1));
    writer.pause(false);
    writer.push(&record(2, 3), 7, &[0xab; 8]).unwrap();
    let (bytes, _) = take(&reader);
    assert_eq!(bytes[8..24], [7u64.to_le_bytes(), 1u64.to_le_bytes()].concat());
    assert_eq!(bytes[32..], [record(2, 3), record(2, 1)].concat());
}
