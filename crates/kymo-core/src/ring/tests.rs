//! The engine against its model, and the corner cases by name.
use super::model::Model;
use super::{Area, AtomicU64, Buffer, Corrupt, Fill, Full, KIND_LOST, Reader, Writer};
use crate::sync::Ordering;
use proptest::prelude::*;

fn record(kind: u32, words: usize, fill: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend((u64::from(kind) | (words as u64 * 8) << 48).to_le_bytes());
    for word in 1..words as u64 {
        out.extend((fill.wrapping_mul(1_000_003).wrapping_add(word)).to_le_bytes());
    }
    out
}

fn take(reader: &mut Reader<'_>, limit_bytes: usize) -> Vec<u8> {
    let span = reader.begin().expect("the ring is sound");
    let bytes = span.whole_records_bytes(limit_bytes);
    let mut out = vec![0; bytes];
    span.copy_to(&mut out);
    reader.release(span, bytes);
    out
}

#[derive(Clone, Debug)]
enum Op {
    Push { words: usize, trailer_words: usize },
    Take { limit_bytes: usize },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (1..20usize, 0..4usize).prop_map(|(words, trailer_words)| Op::Push { words, trailer_words }),
        1 => (0..600usize).prop_map(|limit_bytes| Op::Take { limit_bytes }),
    ];
    prop::collection::vec(op, 0..200)
}

proptest! {
    /// Checks that any sequence of pushes and takes gives the bytes and the losses of the model,
    /// wherever the counters start (so that they wrap around 2^64 too).
    #[test]
    fn equals_the_model(ops in ops(), size_log in 6u32..10, start in prop_oneof![Just(0u64), Just(0u64.wrapping_sub(256)), any::<u64>()]) {
        let buffer = Buffer::new(1 << size_log, start);
        let (mut writer, mut reader) = (Writer::new(buffer.area()), Reader::new(buffer.area()));
        let mut model = Model::new(1 << size_log);
        for (i, op) in ops.iter().enumerate() {
            match *op {
                Op::Push { words, trailer_words } => {
                    let record = record(9, words, i as u64);
                    let trailer = vec![0xab; trailer_words * 8];
                    prop_assert_eq!(writer.push(&record, i as u64, &trailer), model.push(&record, i as u64, &trailer));
                    prop_assert_eq!(writer.lost(), model.lost());
                }
                Op::Take { limit_bytes } => {
                    prop_assert_eq!(take(&mut reader, limit_bytes), model.take(limit_bytes));
                }
            }
            // I1
            prop_assert!(model.used_bytes() < 1 << size_log);
            prop_assert_eq!(reader.begin().unwrap().len_bytes(), model.used_bytes());
        }
        prop_assert_eq!(take(&mut reader, usize::MAX), model.take(usize::MAX));
    }

    /// Checks that no value of head or of the record headers makes the reader panic or read outside
    /// the ring.
    #[test]
    fn hostile_producer(head in any::<u64>(), tail in any::<u64>(), words in prop::collection::vec(any::<u64>(), 16)) {
        let data: Vec<AtomicU64> = words.into_iter().map(AtomicU64::new).collect();
        let (head, tail) = (AtomicU64::new(head), AtomicU64::new(tail));
        let mut reader = Reader::new(Area::new(&head, &tail, &data).unwrap());
        match reader.begin() {
            Ok(span) => {
                prop_assert!(span.len_bytes() <= 128);
                prop_assert!(span.whole_records_bytes(usize::MAX) <= span.len_bytes());
                let mut out = vec![0; span.len_bytes()];
                span.copy_to(&mut out);
            }
            Err(_) => reader.skip(),
        }
        head.store(reader.position(), Ordering::Release);
        prop_assert!(reader.begin().unwrap().is_empty());
    }
}

/// Checks that a record may fill the ring up to its last usable word and not beyond.
#[test]
fn fills_to_the_last_word() {
    let buffer = Buffer::new(64, 0);
    let (mut writer, mut reader) = (Writer::new(buffer.area()), Reader::new(buffer.area()));
    assert_eq!(writer.push(&record(9, 8, 1), 0, &[]), Err(Full), "64 of 64 bytes would look empty");
    assert_eq!(take(&mut reader, 64), b"");
    // One is lost, so a LOST record of 24 bytes must fit too.
    assert_eq!(writer.push(&record(9, 5, 2), 0, &[]), Err(Full), "40 + 24 bytes");
    assert_eq!(writer.push(&record(9, 4, 3), 7, &[]), Ok(()));
    let bytes = take(&mut reader, 64);
    assert_eq!(bytes.len(), 56);
    assert_eq!(u32::from_le_bytes(bytes[..4].try_into().unwrap()), KIND_LOST);
    assert_eq!(u64::from_le_bytes(bytes[8..16].try_into().unwrap()), 7, "the id of who writes now");
    assert_eq!(u64::from_le_bytes(bytes[16..24].try_into().unwrap()), 2, "two records were dropped");
    assert_eq!(writer.pending_lost(), 0);
}

/// Checks that a loss at the very end is never told by a LOST record, but stays counted.
#[test]
fn loss_at_the_end_stays_pending() {
    let buffer = Buffer::new(64, 0);
    let mut writer = Writer::new(buffer.area());
    writer.push(&record(9, 7, 1), 0, &[]).unwrap();
    writer.push(&record(9, 2, 1), 0, &[]).unwrap_err();
    assert_eq!((writer.lost(), writer.pending_lost()), (1, 1));
}

/// Checks that a body that straddles the end of the ring comes out in one piece.
#[test]
fn splices_over_the_end() {
    let buffer = Buffer::new(64, 0);
    let (mut writer, mut reader) = (Writer::new(buffer.area()), Reader::new(buffer.area()));
    writer.push(&record(9, 6, 1), 0, &[]).unwrap();
    take(&mut reader, 64);
    let second = record(9, 5, 2);
    writer.push(&second, 0, &[]).unwrap();
    assert_eq!(take(&mut reader, 64), second);
}

/// Checks that a head that is too far ahead is reported with its values and that `skip` goes on
/// after it.
#[test]
fn corrupt_head_is_reported() {
    let buffer = Buffer::new(64, 0);
    let mut reader = Reader::new(buffer.area());
    buffer.head.store(72, Ordering::Release);
    assert_eq!(reader.begin().unwrap_err(), Corrupt { head: 72, tail: 0, size_bytes: 64 });
    reader.skip();
    assert!(reader.begin().unwrap().is_empty());
    buffer.head.store(72 + 4, Ordering::Release);
    assert!(reader.begin().is_err(), "half a word");
}

/// Checks, with two real threads, that every record that was accepted arrives once and in order and
/// that losses add up.
#[test]
fn two_threads_agree() {
    let buffer = Buffer::new(256, 0u64.wrapping_sub(1024));
    let (mut writer, mut reader) = (Writer::new(buffer.area()), Reader::new(buffer.area()));
    const RECORDS: u64 = if cfg!(miri) { 200 } else { 20_000 };
    let done = AtomicU64::new(0);
    let (mut seen, mut told) = (0, 0);
    std::thread::scope(|scope| {
        let producer = scope.spawn(|| {
            for i in 0..RECORDS {
                let _ = writer.push(&record(9, 2 + (i % 5) as usize, i), 1, &[]);
            }
            done.store(1, Ordering::Release);
            (writer.lost(), writer.pending_lost())
        });
        let mut previous = None;
        loop {
            let last = done.load(Ordering::Acquire) == 1;
            let bytes = take(&mut reader, usize::MAX);
            let mut at = 0;
            while at < bytes.len() {
                let header = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                let value = u64::from_le_bytes(bytes[at + 8..at + 16].try_into().unwrap());
                if header as u32 == KIND_LOST {
                    told += u64::from_le_bytes(bytes[at + 16..at + 24].try_into().unwrap());
                } else {
                    assert!(previous < Some(value), "in order, each once");
                    previous = Some(value);
                    seen += 1;
                }
                at += (header >> 48) as usize;
            }
            if last && bytes.is_empty() {
                break;
            }
            std::thread::yield_now();
        }
        let (lost, pending) = producer.join().unwrap();
        assert_eq!(seen + lost, RECORDS, "I4");
        assert_eq!(told + pending, lost, "I5");
    });
}

/// Checks what a third thread sees: the bytes that wait and how far the reader has come, never more
/// than the ring's size, whatever the counters say.
#[test]
fn fill_as_a_third_thread_sees_it() {
    let buffer = Buffer::new(64, 0);
    let (mut writer, mut reader) = (Writer::new(buffer.area()), Reader::new(buffer.area()));
    assert_eq!(buffer.area().fill(), Fill { position: 0, bytes: 0 });
    writer.push(&record(9, 3, 1), 0, &[]).unwrap();
    assert_eq!(buffer.area().fill(), Fill { position: 0, bytes: 24 });
    take(&mut reader, 64);
    assert_eq!(buffer.area().fill(), Fill { position: 24, bytes: 0 });
    buffer.head.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(buffer.area().fill().bytes, 64);
}
