use super::*;
use proptest::prelude::*;

fn rows() -> impl Strategy<Value = Frame> {
    let count = || prop::option::of(any::<u64>());
    let task = move |columns| {
        (any::<u64>(), ".{0,8}", any::<bool>(), any::<[u64; 4]>(), prop::collection::vec(count(), columns))
            .prop_map(|(number, name, running, own, counts)| TaskRow { number, name, running, own, counts })
    };
    let group = (0..5usize).prop_flat_map(move |columns| {
        let names = prop::collection::vec("[a-z:0-9]{1,12}", columns);
        let counts = prop::collection::vec(count(), columns);
        let tasks = prop::collection::vec(task(columns), 0..5);
        (any::<u64>(), ".{0,20}", any::<bool>(), any::<u64>(), names, any::<[u64; 4]>(), counts, tasks)
            .prop_map(|(number, name, per_task, spawned, counters, own, counts, tasks)| GroupRow {
                number,
                name,
                per_task,
                spawned,
                counters,
                own,
                counts,
                tasks,
            })
    });
    (any::<u64>(), any::<bool>(), ".{0,20}", prop::collection::vec(group, 0..4))
        .prop_map(|(time_ns, last, problem, groups)| Frame { time_ns, last, problem, groups })
}

proptest! {
    /// Checks that what is written is read back.
    #[test]
    fn a_frame_is_read_back(rows in rows()) {
        prop_assert_eq!(frame(&encode(&rows)), Ok(rows));
    }

    /// Checks that a frame that was damaged or cut is refused or read, but never panics nor takes
    /// memory by a claim.
    #[test]
    fn a_damaged_frame_is_survived(rows in rows(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
        let mut bytes = encode(&rows);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = frame(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        prop_assert!(frame(&bytes).is_err());
    }

    /// Checks that any bytes are survived as header and as frame.
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = header(&bytes);
        let _ = frame(&bytes);
    }
}

/// Checks that a name that is too long is cut at a character.
#[test]
fn long_names_are_cut() {
    let name = "ö".repeat(200);
    let rows = Frame { groups: vec![GroupRow { name, ..GroupRow::default() }], ..Frame::default() };
    let read = frame(&encode(&rows)).expect("readable");
    assert_eq!(read.groups[0].name, "ö".repeat(127));
}

/// Checks that the newer place is taken, and that headers of others, of other versions and with
/// impossible places are refused in words.
#[test]
fn a_header_is_checked() {
    let place = |number| Place { number, offset: 4096, bytes: 10, checksum: 3 };
    let with = |first: &Place, second: &Place| {
        let mut bytes = header_bytes(77, 5);
        bytes[64..96].copy_from_slice(&place_bytes(first));
        bytes[96..].copy_from_slice(&place_bytes(second));
        bytes
    };
    let none = Place::default();
    assert_eq!(header(&with(&none, &none)), Ok(Header { pid: 77, request_fd: 5, newest: None }));
    for (first, second, newest) in [(1, 2, 2), (3, 2, 3), (0, 4, 4), (5, 0, 5)] {
        let header = header(&with(&place(first), &place(second))).expect("readable");
        assert_eq!(header.newest.map(|place| place.number), Some(newest));
    }
    for wrong in [
        Place { offset: 100, ..place(1) },
        Place { offset: u64::MAX, ..place(1) },
        Place { bytes: u64::MAX, ..place(1) },
    ] {
        assert_eq!(header(&with(&wrong, &none)).expect_err("impossible").at, 64);
    }
    assert_eq!(header(b"kymotask").expect_err("too short").at, 8);
    assert_eq!(header(&[0; 128]).expect_err("something else").at, 0);
    let mut newer = header_bytes(1, 1);
    newer[8] = 2;
    assert!(header(&newer).expect_err("a later version").to_string().contains("version"));
}

/// Checks that bytes of another frame are not taken for this one's.
#[test]
fn a_frame_that_was_overwritten_is_noticed() {
    let bytes = encode(&Frame { time_ns: 1, ..Frame::default() });
    let place = Place { number: 1, offset: 4096, bytes: bytes.len() as u64, checksum: checksum(&bytes) };
    assert!(checked(&place, &bytes));
    assert!(!checked(&place, &encode(&Frame { time_ns: 2, ..Frame::default() })));
    assert!(!checked(&place, &bytes[1..]));
}
