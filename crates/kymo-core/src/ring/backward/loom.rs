//! Every interleaving of one writer and one look on a ring of four words.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p kymo-core --release ring::backward::loom`.
use super::super::loom::record;
use super::{Buffer, Reader, Writer};
use loom::sync::Arc;
use loom::thread;

/// Checks B1 to B3 for two records that come while the reader looks at two: what it delivers are
/// the newest as of its first look, and only the one record that is being written at the second
/// look can be among them in part: at the oldest end.
#[test]
fn a_look_while_records_come() {
    loom::model(|| {
        let buffer = Arc::new(Buffer::new(32));
        let mut writer = Writer::new(buffer.area());
        writer.push(&record(1), 0, &[]).unwrap();
        writer.push(&record(2), 0, &[]).unwrap();
        let producer = {
            let buffer = Arc::clone(&buffer);
            thread::spawn(move || {
                let mut writer = Writer::new(buffer.area());
                writer.push(&record(3), 0, &[]).unwrap();
                writer.push(&record(4), 0, &[]).unwrap();
            })
        };
        let mut out = [0; 32];
        let window = Reader::new(buffer.area()).window(&mut out).unwrap();
        assert_eq!(window.corrupt_bytes, 0);
        let values: Vec<u64> = out[..window.records_bytes]
            .chunks(16)
            .map(|chunk| u64::from_le_bytes(chunk[8..].try_into().unwrap()))
            .collect();
        // All but the last are exact; the last may be half of the record that comes in its place,
        // which is two later.
        if let [newest, oldest] = values[..] {
            assert!((2..=4).contains(&newest), "{values:?}");
            assert!(oldest == newest - 1 || oldest == newest + 1, "{values:?}");
        }
        producer.join().unwrap();
        let window = Reader::new(buffer.area()).window(&mut out).unwrap();
        assert_eq!((window.records_bytes, out[8], out[24]), (32, 4, 3));
    });
}
