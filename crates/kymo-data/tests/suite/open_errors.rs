//! What opening says to things that are no recordings, or not readable ones.

use crate::fixtures::{bytes, open, open_bytes};
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
    let mut big_endian = plain.clone();
    big_endian[..8].reverse();
    let mut old = plain.clone();
    old[..8].copy_from_slice(b"PERFFILE");
    let mut odd_size = plain.clone();
    put_u64(&mut odd_size, 8, 77);
    let mut attrs_away = plain.clone();
    put_u64(&mut attrs_away, 24, 1 << 40);
    let mut no_events = plain.clone();
    put_u64(&mut no_events, 32, 0);
    let mut small_attr = plain.clone();
    put_u64(&mut small_attr, 16, 40);
    let mut data_away = plain.clone();
    put_u64(&mut data_away, 40, u64::MAX - 3);
    let cases = [
        (Vec::new(), "the file is empty"),
        (b"hello\nworld".to_vec(), "it looks like text that starts with \"hello\""),
        (b"\x7fELF\x02\x01\x01".to_vec(), "it looks like an ELF file"),
        (big_endian, "big-endian"),
        (old, "version 1"),
        (plain[..5].to_vec(), "cut off: the file has 5 bytes, the header needs 16"),
        (plain[..90].to_vec(), "cut off: the file has 90 bytes, the header needs 104"),
        (odd_size, "says it is 77 bytes long"),
        (attrs_away, "the attrs section"),
        (no_events, "describes no event"),
        (small_attr, "says it is 24 bytes long; the smallest ever is 64"),
        (data_away, "the data section"),
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
    let attrs = u64::from_le_bytes(plain[24..32].try_into().expect("8 bytes")) as usize;
    plain[attrs + 4..attrs + 8].copy_from_slice(&20u32.to_le_bytes());
    let said = error(plain);
    assert!(said.contains(&format!("byte {:#x} says it is 20 bytes", attrs + 4)), "{said}");
}

/// Checks that attrs of a newer perf, longer than known here, are accepted and their extra bytes
/// ignored.
#[test]
fn newer_attrs_are_accepted() {
    let old = bytes("plain.data");
    let word = |at: usize| u64::from_le_bytes(old[at..at + 8].try_into().expect("8 bytes")) as usize;
    let (attr_size, attrs, count) = (word(16), word(24), word(32) / word(16));
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
