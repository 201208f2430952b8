//! What opening says to things that are no recordings, or not readable ones.

use crate::fixtures::{bytes, open, open_bytes, word};
use kymo_data::{OpenError, Recording};

fn error(bytes: Vec<u8>) -> String {
    open_bytes(bytes).expect_err("must not open").to_string()
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Checks that each kind of wrong file gets its own sentence.
#[test]
fn each_wrong_file_has_its_sentence() {
    let plain = bytes("plain.data");
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = plain.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let with = |at: usize, value: u64| changed(at, &value.to_le_bytes());
    let cases = [
        (Vec::new(), "the file is empty"),
        (b"hello\nworld".to_vec(), "it looks like text that starts with \"hello\""),
        (b"\x7fELF\x02\x01\x01".to_vec(), "it looks like an ELF file"),
        (changed(0, b"2ELIFREP"), "big-endian"),
        (changed(0, b"PERFFILE"), "version 1"),
        (plain[..5].to_vec(), "cut off: the file has 5 bytes, the header needs 16"),
        (plain[..90].to_vec(), "cut off: the file has 90 bytes, the header needs 104"),
        (with(8, 77), "says it is 77 bytes long"),
        (with(24, 1 << 40), "the attrs section"),
        (with(32, 0), "describes no event"),
        (with(16, 40), "says it is 24 bytes long; the smallest ever is 64"),
        (with(40, u64::MAX - 3), "the data section"),
        (plain[..16].iter().copied().chain([0; 100]).collect(), "attrs"),
        (bytes("pipe.data")[..16].to_vec(), "no HEADER_ATTR"),
    ];
    let mut seen = Vec::new();
    for (bytes, part) in cases {
        let said = match open_bytes(bytes) {
            Err(error) => error.to_string(),
            // A header of zeros has no attrs.
            Ok(_) => panic!("opened, but should say: {part}"),
        };
        if part != "attrs" {
            assert!(said.contains(part), "{said:?} should contain {part:?}");
        }
        seen.push(said);
    }
    seen.push(OpenError::DirectoryWithoutData.to_string());
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 15, "every sentence is its own: {seen:#?}");
}

/// Checks that an attr that says it is shorter than any kernel's is an error that names the place.
#[test]
fn attr_with_impossible_size() {
    let mut plain = bytes("plain.data");
    let attrs = word(&plain, 24);
    plain[attrs + 4..attrs + 8].copy_from_slice(&20u32.to_le_bytes());
    let said = error(plain);
    assert!(said.contains(&format!("byte {:#x} says it is 20 bytes", attrs + 4)), "{said}");
}

/// Checks that attrs of a newer perf, longer than known here, are accepted and their extra bytes
/// ignored.
#[test]
fn newer_attrs_are_accepted() {
    let old = bytes("plain.data");
    let (attr_size, attrs, count) = (word(&old, 16), word(&old, 24), word(&old, 32) / word(&old, 16));
    let mut new = old.clone();
    let moved = new.len() as u64;
    for index in 0..count {
        let entry = &old[attrs + index * attr_size..][..attr_size];
        let mut attr = entry[..attr_size - 16].to_vec();
        attr.resize(200, 0xee);
        attr[4..8].copy_from_slice(&200u32.to_le_bytes());
        // What this library already knows beyond perf 6.1's 128 bytes.
        attr[128..144].fill(0);
        new.extend_from_slice(&attr);
        new.extend_from_slice(&entry[attr_size - 16..]);
    }
    put_u64(&mut new, 16, 216);
    put_u64(&mut new, 24, moved);
    put_u64(&mut new, 32, 216 * count as u64);
    let (new, old) = (open_bytes(new).expect("opens"), open("plain.data"));
    assert_eq!(new.events.list.len(), old.events.list.len());
    for (new, old) in new.events.list.iter().zip(&old.events.list) {
        let mut attr = new.attr.clone();
        attr.size = old.attr.size;
        assert_eq!((&attr, &new.name, &new.ids), (&old.attr, &old.name, &old.ids));
    }
}

/// Checks that a reading error of the operating system is passed on with its place, and not taken
/// for an end.
#[test]
fn io_errors_are_errors() {
    struct Broken(Vec<u8>);
    impl kymo_data::ReadAt for Broken {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
            if offset > 104 { Err(std::io::Error::other("no luck")) } else { self.0.read_at(buf, offset) }
        }
        fn len(&self) -> std::io::Result<u64> {
            Ok(self.0.len() as u64)
        }
    }
    let broken = std::sync::Arc::new(Broken(bytes("plain.data")));
    let error = Recording::open(broken, Vec::new()).expect_err("fails");
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    assert!(error.to_string().contains("reading at byte"), "{error}");
}
