//! Every interleaving of one writer and one reader on a ring of four words.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p kymo-core --release ring::loom`.
use super::{Buffer, Reader, Writer};
use loom::sync::Arc;
use loom::thread;

pub(super) fn record(value: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&(9 | 16u64 << 48).to_le_bytes());
    out[8..].copy_from_slice(&value.to_le_bytes());
    out
}

/// Checks that the reader never sees a record before all its bytes, nor bytes of a later one in its
/// place (I2, I3, I4).
#[test]
fn no_torn_record() {
    loom::model(|| {
        let buffer = Arc::new(Buffer::new(32, 0));
        let producer = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || {
                let mut writer = Writer::new(buffer.area());
                let accepted: Vec<u64> =
                    (1..=2).filter(|&value| writer.push(&record(value), 0, &[]).is_ok()).collect();
                accepted
            })
        };
        let mut reader = Reader::new(buffer.area());
        let mut seen = Vec::new();
        let mut drain = |reader: &mut Reader<'_>| {
            let span = reader.begin().unwrap();
            let mut bytes = vec![0; span.len_bytes()];
            span.copy_to(&mut bytes);
            reader.release(span, bytes.len());
            for chunk in bytes.chunks(16) {
                assert_eq!(chunk[..8], (9 | 16u64 << 48).to_le_bytes());
                seen.push(u64::from_le_bytes(chunk[8..].try_into().unwrap()));
            }
        };
        drain(&mut reader);
        let accepted = producer.join().unwrap();
        drain(&mut reader);
        assert_eq!(seen, accepted);
    });
}
