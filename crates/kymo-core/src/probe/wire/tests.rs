//! Messages there and back, and everything that is no message.
use super::*;
use crate::holds::HoldRole;
use crate::probe::value::{Compare, Condition, Operand, Test};
use proptest::prelude::*;

fn kind() -> impl Strategy<Value = ProbeKind> {
    prop_oneof![
        Just(ProbeKind::Count),
        Just(ProbeKind::Latency),
        Just(ProbeKind::Record),
        (1..=5_u8).prop_filter_map("a role", HoldRole::of).prop_map(ProbeKind::Hold)
    ]
}

fn wanted() -> impl Strategy<Value = ProbeSpec> {
    (any::<u32>(), any::<u64>(), any::<[u32; 3]>(), any::<u64>(), kind(), any::<u16>()).prop_map(
        |(id, offset, [size_bytes, room_bytes, inside_bytes], semaphore, kind, action_id)| ProbeSpec {
            id,
            offset,
            size_bytes,
            room_bytes,
            inside_bytes,
            semaphore,
            kind,
            action_id,
        },
    )
}

fn operand() -> impl Strategy<Value = Operand> {
    let steps = prop::collection::vec(any::<i32>(), 0..=MOST_STEPS);
    (0u8..16, steps, prop::sample::select(vec![1u8, 2, 4, 8]), any::<bool>())
        .prop_map(|(register, steps, bytes, signed)| Operand { register, steps, bytes, signed, bits: None })
}

fn condition() -> impl Strategy<Value = Condition> {
    let compare = prop::sample::select(vec![Compare::Equal, Compare::LessEqual, Compare::GreaterEqual]);
    let test = (operand(), compare, any::<u64>())
        .prop_map(|(operand, compare, value)| Test::number(operand, compare, value));
    prop::collection::vec(prop::collection::vec(test, 0..=MOST_TESTS), 0..=3)
}

fn action() -> impl Strategy<Value = ProbeAction> {
    let kind = prop_oneof![
        Just(FetchKind::Number),
        (any::<i32>(), 0..=MOST_STRING_BYTES).prop_map(|(offset, most)| FetchKind::String { offset, most })
    ];
    let fetch = (operand(), kind).prop_map(|(operand, kind)| Fetch { operand, kind });
    let fetches = prop::collection::vec(fetch, 0..=MOST_FETCHES);
    let event = prop::option::of((any::<u64>(), any::<u16>()).prop_map(|(id, kind)| EventId { id, kind }));
    let values = (event, fetches).boxed();
    (condition(), condition(), any::<u32>(), any::<bool>(), values.clone(), values).prop_map(
        |(
            entry_condition,
            return_condition,
            every,
            callers,
            (event, fetches),
            (return_event, return_fetches),
        )| ProbeAction {
            entry_condition,
            return_condition,
            every,
            callers,
            event,
            fetches,
            return_event,
            return_fetches,
        },
    )
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        (any::<u32>(), any::<bool>()).prop_map(|(version, children)| Command::Hello { version, children }),
        (prop::collection::vec(any::<u8>(), 0..200), prop::collection::vec(wanted(), 0..20))
            .prop_map(|(module, probes)| Command::Add { module, probes }),
        prop::collection::vec(any::<u32>(), 0..50).prop_map(|ids| Command::Remove { ids }),
        Just(Command::Commit),
        Just(Command::Go),
        Just(Command::List),
        Just(Command::Leave),
        (any::<u16>(), action()).prop_map(|(id, action)| Command::Action { id, action }),
        (any::<[u32; 2]>(), any::<[u64; 2]>()).prop_map(|([cpus, data_bytes], [tick, zero_ns])| {
            Command::Rings { cpus, data_bytes, tick, zero_ns }
        }),
        any::<[u32; 2]>().prop_map(|[cpus, slots]| Command::Counters { cpus, slots }),
        Just(Command::HoldTable),
        Just(Command::Losses),
        Just(Command::Callers),
        Just(Command::Holds),
        Just(Command::Held),
        "[ -~üß字]{0,60}".prop_map(|reason| Command::NotHeld { reason }),
    ]
}

fn state() -> impl Strategy<Value = ProbeState> {
    prop_oneof![
        Just(ProbeState::Armed),
        Just(ProbeState::Waiting),
        "[a-z ü]{0,40}".prop_map(ProbeState::Refused)
    ]
}

fn places() -> impl Strategy<Value = PatchSites> {
    (any::<[u64; 3]>(), any::<[u32; 4]>(), prop::collection::vec(any::<u64>(), 0..10)).prop_map(
        |([sites_at, moves_at, edits_at], [thread, sites, moves, edits], restorers)| PatchSites {
            thread,
            sites_at,
            sites,
            moves_at,
            moves,
            restorers,
            edits_at,
            edits,
        },
    )
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        any::<[u32; 5]>().prop_map(|[version, pid, cleaned_up, cpus, slots]| Reply::Hello {
            version,
            pid,
            cleaned_up,
            cpus,
            slots
        }),
        (any::<u32>(), "[ -~üß字]{0,60}").prop_map(|(id, reason)| Reply::Refused { id, reason }),
        (any::<u32>(), any::<u64>()).prop_map(|(armed, stopped_ns)| Reply::Armed { armed, stopped_ns }),
        prop::collection::vec((any::<[u32; 2]>(), any::<u64>(), any::<Option<u32>>()), 0..30).prop_map(
            |of| {
                let placed =
                    |([id, hits], before, times): ([u32; 2], _, _)| ProbeSlots { id, hits, before, times };
                Reply::Placed { of: of.into_iter().map(placed).collect() }
            }
        ),
        (prop::collection::vec((any::<u32>(), state()), 0..30), any::<bool>()).prop_map(|(of, last)| {
            Reply::ProbeStatus {
                of: of.into_iter().map(|(id, state)| ProbeStatus { id, state }).collect(),
                last,
            }
        }),
        Just(Reply::Left),
        Just(Reply::Counting),
        Just(Reply::Recording),
        Just(Reply::TimingHolds),
        (prop::collection::vec((any::<u32>(), any::<u64>()), 0..30), any::<bool>()).prop_map(|(of, last)| {
            Reply::Losses { of: of.into_iter().map(|(id, hits)| HitCount { id, hits }).collect(), last }
        }),
        (any::<u32>(), any::<u64>(), prop::collection::vec(any::<(u64, u64)>(), 0..30), any::<bool>())
            .prop_map(|(id, others, of, last)| Reply::Callers { id, others, of, last }),
        any::<u32>().prop_map(|probes| Reply::Cleaned { probes }),
        places().prop_map(Reply::Ready),
        Just(Reply::Written),
        (any::<u32>(), prop::collection::vec((any::<u32>(), any::<u64>()), 0..30)).prop_map(|(id, of)| {
            let bucket = |(number, calls)| Bucket { number, calls };
            Reply::Before { id, of: of.into_iter().map(bucket).collect() }
        }),
        "[ -~üß字]{0,60}".prop_map(|reason| Reply::Failed { reason }),
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
    fn any_bytes(kind in 0u8..40, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = [&[kind, 0, 0, 0][..], &bytes].concat();
        _ = Command::decode(&bytes);
        _ = Reply::decode(&bytes);
    }
}

/// Checks that lists and texts that claim more than there may be are refused before anything is
/// taken.
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
    let wanted = ProbeSpec {
        id: 1,
        offset: 2,
        size_bytes: 3,
        room_bytes: 4,
        inside_bytes: 5,
        semaphore: 6,
        kind: ProbeKind::Latency,
        action_id: 7,
    };
    let add = Command::Add { module: vec![b'x'; MOST_PATH_BYTES], probes: vec![wanted; MOST_ENTRIES] };
    assert!(add.encode().len() <= MOST_BYTES);
    assert_eq!(Command::decode(&add.encode()), Ok(add));
    let placed = ProbeSlots { id: 1, hits: 2, before: 3, times: Some(4) };
    assert!(Reply::Placed { of: vec![placed; MOST_ENTRIES] }.encode().len() <= MOST_BYTES);
    let bucket = Bucket { number: 1, calls: 2 };
    assert!(Reply::Before { id: 1, of: vec![bucket; MOST_ENTRIES] }.encode().len() <= MOST_BYTES);
    let callers = Reply::Callers { id: 1, others: 2, of: vec![(1, 2); MOST_ENTRIES], last: true };
    assert!(callers.encode().len() <= MOST_BYTES);
    let operand = Operand { register: 15, steps: vec![-1; MOST_STEPS], bytes: 8, signed: true, bits: None };
    let test = Test::number(operand.clone(), Compare::Less, 7);
    let condition = vec![vec![test; MOST_TESTS]; MOST_TESTS];
    let fetches = vec![
        Fetch { operand, kind: FetchKind::String { offset: -1, most: MOST_STRING_BYTES } };
        MOST_FETCHES
    ];
    let event = Some(EventId { id: u64::MAX, kind: 9 });
    let action = ProbeAction {
        entry_condition: condition.clone(),
        return_condition: condition,
        every: 1,
        callers: true,
        event,
        fetches: fetches.clone(),
        return_event: event,
        return_fetches: fetches,
    };
    let action = Command::Action { id: 1, action };
    assert!(action.encode().len() <= MOST_BYTES);
    assert_eq!(Command::decode(&action.encode()), Ok(action));
}

/// Checks that a sentence that is too long is cut, and understood.
#[test]
fn a_long_sentence() {
    let reply = Reply::Failed { reason: "x".repeat(10_000) };
    assert_eq!(Reply::decode(&reply.encode()), Ok(Reply::Failed { reason: "x".repeat(MOST_TEXT_BYTES) }));
}

/// Checks that a text of the other side arrives without what steers a terminal: control characters,
/// and those that reverse the direction of writing; bytes that are not UTF-8 are replaced.
#[test]
fn texts_steer_no_terminal() {
    let said = |reason: &[u8]| {
        let mut packet = vec![7, 0, 0, 0];
        packet.extend((reason.len() as u32).to_le_bytes());
        packet.extend(reason);
        match Reply::decode(&packet) {
            Ok(Reply::Failed { reason }) => reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(said(b"\x1b]0;owned\x07 \x1b[2J\r\n\0ok"), "?]0;owned? ?[2J???ok");
    assert_eq!(said("a\u{202e}b\u{2066}c\u{9b}d\u{200f}".as_bytes()), "a?b?c?d?");
    assert_eq!(said(b"Gr\xf6\xdfe \xc3\xb6"), "Gr\u{fffd}\u{fffd}e ö");
}
