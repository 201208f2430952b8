//! Messages there and back, and everything that is no message.
use super::*;
use proptest::prelude::*;

fn what() -> impl Strategy<Value = What> {
    prop_oneof![Just(What::Count), Just(What::Latency)]
}

fn wanted() -> impl Strategy<Value = Wanted> {
    (any::<u32>(), any::<u64>(), any::<[u32; 2]>(), any::<u64>(), what()).prop_map(
        |(id, offset, [size_bytes, room_bytes], semaphore, what)| Wanted {
            id,
            offset,
            size_bytes,
            room_bytes,
            semaphore,
            what,
        },
    )
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        any::<u32>().prop_map(|version| Command::Hello { version }),
        (prop::collection::vec(any::<u8>(), 0..200), prop::collection::vec(wanted(), 0..20))
            .prop_map(|(module, probes)| Command::Add { module, probes }),
        prop::collection::vec(any::<u32>(), 0..50).prop_map(|ids| Command::Remove { ids }),
        Just(Command::Commit),
        Just(Command::Counts),
        Just(Command::List),
        Just(Command::Times),
        Just(Command::Leave),
    ]
}

fn state() -> impl Strategy<Value = State> {
    prop_oneof![Just(State::Armed), Just(State::Waiting), "[a-z ü]{0,40}".prop_map(State::Refused)]
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(version, pid, cleaned_up)| Reply::Hello {
            version,
            pid,
            cleaned_up
        }),
        (any::<u32>(), ".{0,60}").prop_map(|(id, reason)| Reply::Refused { id, reason }),
        (any::<u32>(), any::<u64>()).prop_map(|(armed, stopped_ns)| Reply::Armed { armed, stopped_ns }),
        (prop::collection::vec((any::<u32>(), any::<u64>()), 0..30), any::<bool>()).prop_map(|(of, last)| {
            Reply::Counts { of: of.into_iter().map(|(id, hits)| Count { id, hits }).collect(), last }
        }),
        (prop::collection::vec((any::<u32>(), state()), 0..30), any::<bool>()).prop_map(|(of, last)| {
            Reply::Listed { of: of.into_iter().map(|(id, state)| Listed { id, state }).collect(), last }
        }),
        Just(Reply::Left),
        (any::<u32>(), prop::collection::vec(any::<[u64; 3]>(), 0..30), any::<bool>()).prop_map(
            |(id, of, last)| {
                let span = |[from_ns, to_ns, calls]: [u64; 3]| Span { from_ns, to_ns, calls };
                Reply::Times { id, of: of.into_iter().map(span).collect(), last }
            }
        ),
        ".{0,60}".prop_map(|reason| Reply::Failed { reason }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that what was said is what is understood, and that half of it or more than it is not.
    #[test]
    fn there_and_back(command in command(), reply in reply(), cut in 0usize..64) {
        let bytes = command.encode();
        prop_assert_eq!(Command::decode(&bytes), Ok(command));
        prop_assert!(Command::decode(&bytes[..bytes.len() - 1 - cut.min(bytes.len() - 1)]).is_err());
        prop_assert!(Command::decode(&[&bytes[..], &[0]].concat()).is_err());
        let bytes = reply.encode();
        prop_assert_eq!(Reply::decode(&bytes), Ok(reply));
        prop_assert!(Reply::decode(&bytes[..bytes.len() - 1 - cut.min(bytes.len() - 1)]).is_err());
        prop_assert!(Reply::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    /// Checks that any bytes are a message or an error.
    #[test]
    fn any_bytes(kind in 0u8..10, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = [&[kind, 0, 0, 0][..], &bytes].concat();
        _ = Command::decode(&bytes);
        _ = Reply::decode(&bytes);
    }
}

/// Checks that lists and texts that claim more than there may be are refused before anything is taken.
#[test]
fn claims_too_much() {
    let claim = |kind: u8, count: u32| [&[kind, 0, 0, 0][..], &count.to_le_bytes(), &[0; 64]].concat();
    assert!(Command::decode(&claim(3, u32::MAX)).is_err());
    assert!(Command::decode(&claim(2, u32::MAX)).is_err());
    assert!(Reply::decode(&claim(4, u32::MAX)).is_err());
    assert!(Reply::decode(&claim(7, u32::MAX)).is_err());
    assert!(Command::decode(&vec![0; MOST_BYTES + 1]).is_err());
}

/// Checks that the longest lists fit into a packet.
#[test]
fn the_longest() {
    let wanted = Wanted { id: 1, offset: 2, size_bytes: 3, room_bytes: 4, semaphore: 5, what: What::Latency };
    let add = Command::Add { module: vec![b'x'; MOST_PATH_BYTES], probes: vec![wanted; MOST_ENTRIES] };
    assert!(add.encode().len() <= MOST_BYTES);
    assert_eq!(Command::decode(&add.encode()), Ok(add));
    let counts = Reply::Counts { of: vec![Count { id: 1, hits: u64::MAX }; MOST_ENTRIES], last: true };
    assert!(counts.encode().len() <= MOST_BYTES);
    let span = Span { from_ns: 1, to_ns: 2, calls: 3 };
    let times = Reply::Times { id: 1, of: vec![span; MOST_ENTRIES], last: true };
    assert!(times.encode().len() <= MOST_BYTES);
}

/// Checks that a sentence that is too long is cut, and understood.
#[test]
fn a_long_sentence() {
    let reply = Reply::Failed { reason: "x".repeat(10_000) };
    assert_eq!(Reply::decode(&reply.encode()), Ok(Reply::Failed { reason: "x".repeat(MOST_TEXT_BYTES) }));
}
