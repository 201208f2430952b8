//! Agents that lie: each kind has a name, the question at which it does, and the sentence that the
//! user reads.
//!
//! What all of them have in common: the client comes to an end, without a panic, with a sentence
//! that is true and steers no terminal.
use super::exercise::{ask_everything, exercise, is_shown};
use super::*;
use kymo_core::probe::wire::ProbeState;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A question, by which a lie is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LieMoment {
    Hello,
    Counters,
    Holds,
    Commit,
    Rings,
    Losses,
    Callers,
    List,
    Leave,
}

const ALL: [LieMoment; 9] = [
    LieMoment::Hello,
    LieMoment::Counters,
    LieMoment::Holds,
    LieMoment::Commit,
    LieMoment::Rings,
    LieMoment::Losses,
    LieMoment::Callers,
    LieMoment::List,
    LieMoment::Leave,
];

/// What it does after its lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Answers as it should.
    Honest,
    /// Says nothing more.
    Mute,
}

/// One of the kinds: a lie, and the sentence that comes of it, or one of several.
struct LieKind {
    name: String,
    at: LieMoment,
    lie: fn(&OwnedFd) -> Then,
    says: &'static [&'static str],
}

const SILENT: &str = "did not answer in time";
const NOT_A: &str = "the other side sent something that is not";
const ANOTHER: &str = "answered another question";
const GONE: &str = "has ended";
const WELL: &str = "all is well";

fn say(socket: &OwnedFd, reply: &Reply) -> bool {
    say_bytes(socket, &reply.encode())
}

fn say_bytes(socket: &OwnedFd, packet: &[u8]) -> bool {
    send(socket, packet, SendFlags::NOSIGNAL).is_ok()
}

/// A message of this kind.
fn message(kind: u16, fields: &[&[u8]]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0, 0], &fields.concat()].concat()
}

fn hello(version: u32, cpus: u32, slots: u32) -> Reply {
    Reply::Hello { version, pid: 1, cleaned_up: 0, cpus, slots }
}

fn placed(id: u32, hits: u32, before: u64, times: Option<u32>) -> Reply {
    Reply::Placed { of: vec![ProbeSlots { id, hits, before, times }] }
}

fn refused(id: u32, reason: &str) -> Reply {
    Reply::Refused { id, reason: reason.to_owned() }
}

fn ready(thread: u32, sites: u32) -> Reply {
    let (sites_at, moves_at, moves, restorers) = (u64::MAX, 0, sites, vec![0; 800]);
    Reply::Ready(wire::PatchSites { thread, sites_at, sites, moves_at, moves, restorers })
}

/// The answer of one that does not lie.
fn honest(command: &Command) -> Option<Reply> {
    Some(match command {
        Command::Hello { .. } => hello(VERSION, 1, 4096),
        Command::Counters { .. } => Reply::Counting,
        Command::Holds => Reply::Cleaned { probes: 0 },
        Command::Commit => Reply::Armed { armed: 3, stopped_ns: 0 },
        Command::Rings { .. } => Reply::Recording,
        Command::Losses => Reply::Losses { of: Vec::new(), last: true },
        Command::Callers => Reply::Callers { id: 0, others: 0, of: Vec::new(), last: true },
        Command::List => Reply::ProbeStatus { of: Vec::new(), last: true },
        Command::Leave => Reply::Left,
        _ => return None,
    })
}

fn question(command: &Command) -> Option<LieMoment> {
    Some(match command {
        Command::Hello { .. } => LieMoment::Hello,
        Command::Counters { .. } => LieMoment::Counters,
        Command::Holds => LieMoment::Holds,
        Command::Commit => LieMoment::Commit,
        Command::Rings { .. } => LieMoment::Rings,
        Command::Losses => LieMoment::Losses,
        Command::Callers => LieMoment::Callers,
        Command::List => LieMoment::List,
        Command::Leave => LieMoment::Leave,
        _ => return None,
    })
}

/// Answers until the tracer is gone, and lies once.
fn answer(socket: &OwnedFd, kind: &LieKind) {
    let mut packet = vec![0; MOST_BYTES];
    let mut lied = false;
    while let Ok((bytes @ 1.., _)) = recv(socket, &mut packet[..], RecvFlags::empty()) {
        let Ok(command) = Command::decode(&packet[..bytes]) else { return };
        if !lied && question(&command) == Some(kind.at) {
            lied = true;
            if (kind.lie)(socket) == Then::Mute {
                // Until the tracer is gone.
                while matches!(recv(socket, &mut packet[..], RecvFlags::empty()), Ok((1.., _))) {}
                return;
            }
        }
        if let Some(reply) = honest(&command) {
            say(socket, &reply);
        }
    }
}

/// What the user reads of a whole conversation with it.
fn converse(kind: &LieKind) -> String {
    let (ours, its) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    // Who says nothing is not waited for for long here; all others are, so that a busy machine
    // changes nothing.
    let patience = if kind.says[0] == SILENT { Duration::from_millis(50) } else { ANSWER_TIMEOUT };
    std::thread::scope(|scope| {
        scope.spawn(|| answer(&its, kind));
        let end = ours.try_clone().unwrap();
        let said = catch_unwind(AssertUnwindSafe(|| {
            let client = Client { patience, ..Client::new(ours, None) };
            let client = match client.hello(false).and_then(Client::holds) {
                Ok(client) => client,
                Err(refusal) => return refusal.to_string(),
            };
            let asked = ask_everything(&client).and_then(|()| client.leave());
            asked.map_or_else(|broken| broken.to_string(), |()| WELL.to_owned())
        }));
        _ = shutdown(&end, Shutdown::Both);
        said.unwrap_or_else(|_| "a panic".to_owned())
    })
}

/// Lies that can be told at any question.
fn at_each_question() -> Vec<LieKind> {
    type Lie = (&'static str, fn(&OwnedFd) -> Then, &'static [&'static str]);
    let lies: [Lie; 6] = [
        ("mute", |_| Then::Mute, &[SILENT]),
        (
            "hangs up",
            |socket| {
                _ = shutdown(socket, Shutdown::Both);
                Then::Mute
            },
            &[GONE, WELL],
        ),
        (
            "says a byte",
            |socket| {
                say_bytes(socket, &[7]);
                Then::Mute
            },
            &[NOT_A],
        ),
        (
            "says more than one message",
            |socket| {
                say_bytes(socket, &[&Reply::Left.encode()[..], &[0]].concat());
                Then::Mute
            },
            &[NOT_A],
        ),
        (
            "answers another question",
            |socket| {
                say(socket, &Reply::Written);
                Then::Mute
            },
            &[ANOTHER],
        ),
        (
            "sends a descriptor",
            |socket| {
                let file = memfd_create("gift", MemfdFlags::CLOEXEC).unwrap();
                _ = send_with(socket, &Reply::Written.encode(), file.as_fd());
                Then::Mute
            },
            &[SILENT, "without a descriptor"],
        ),
    ];
    let of = |(name, lie, says): &Lie| {
        let kind = |at: LieMoment| LieKind { name: format!("{name} at {at:?}"), at, lie: *lie, says };
        ALL.map(kind)
    };
    lies.iter().flat_map(of).collect()
}

/// Its name, the question, the lie, and the sentences that may come of it.
type Lie = (&'static str, LieMoment, fn(&OwnedFd) -> Then, &'static [&'static str]);

/// What a liar says at one question.
const LIES: [Lie; 37] = [
    (
        "of an older version",
        LieMoment::Hello,
        |socket| {
            say(socket, &hello(VERSION - 1, 1, 4096));
            Then::Mute
        },
        &["of another version"],
    ),
    (
        "of a version to come",
        LieMoment::Hello,
        |socket| {
            say(socket, &hello(u32::MAX, 1, 4096));
            Then::Mute
        },
        &["of another version"],
    ),
    (
        "without CPUs",
        LieMoment::Hello,
        |socket| {
            say(socket, &hello(VERSION, 0, 4096));
            Then::Mute
        },
        &["out of bounds"],
    ),
    (
        "of too many CPUs",
        LieMoment::Hello,
        |socket| {
            say(socket, &hello(VERSION, u32::MAX, 4096));
            Then::Mute
        },
        &["out of bounds"],
    ),
    (
        "without slots",
        LieMoment::Hello,
        |socket| {
            say(socket, &hello(VERSION, 1, 0));
            Then::Mute
        },
        &["out of bounds"],
    ),
    (
        "of fewer slots than a page has",
        LieMoment::Hello,
        |socket| {
            say(socket, &hello(VERSION, 1, 511));
            Then::Mute
        },
        &["out of bounds"],
    ),
    (
        "of all slots that there could be",
        LieMoment::Hello,
        |socket| {
            say(socket, &hello(VERSION, 1, u32::MAX));
            say(socket, &Reply::Counting);
            Then::Mute
        },
        &[SILENT],
    ),
    (
        "greets twice",
        LieMoment::Hello,
        |socket| {
            say(socket, &hello(VERSION, 1, 4096));
            Then::Honest
        },
        &[ANOTHER],
    ),
    (
        "has no memory",
        LieMoment::Counters,
        |socket| {
            say(socket, &Reply::Failed { reason: "no memory".to_owned() });
            Then::Mute
        },
        &["no memory"],
    ),
    (
        "counts before it is asked",
        LieMoment::Hello,
        |socket| {
            say(socket, &Reply::Counting);
            Then::Honest
        },
        &[ANOTHER],
    ),
    (
        "cleaned up very much",
        LieMoment::Holds,
        |socket| {
            say(socket, &Reply::Cleaned { probes: u32::MAX });
            Then::Mute
        },
        &[SILENT],
    ),
    (
        "armed very many",
        LieMoment::Commit,
        |socket| {
            say(socket, &Reply::Armed { armed: u32::MAX, stopped_ns: u64::MAX });
            Then::Honest
        },
        &[ANOTHER],
    ),
    (
        "refuses one that nobody added",
        LieMoment::Commit,
        |socket| {
            say(socket, &refused(77, "odd"));
            Then::Honest
        },
        &[ANOTHER],
    ),
    (
        "refuses one again and again",
        LieMoment::Commit,
        |socket| {
            for _ in 0..500 {
                say(socket, &refused(1, "odd"));
            }
            Then::Honest
        },
        &[WELL],
    ),
    (
        "refuses with terminal escapes",
        LieMoment::Commit,
        |socket| {
            say(socket, &refused(1, "\x1b]0;owned\x07\x1b[2J\r\n\u{202e}"));
            Then::Honest
        },
        &[WELL],
    ),
    (
        "refuses in bytes that are no text",
        LieMoment::Commit,
        |socket| {
            say_bytes(socket, &message(2, &[&[1, 0, 0, 0], &[4, 0, 0, 0], &[0xff, 0xfe, 0xc3, 0]]));
            Then::Honest
        },
        &[WELL],
    ),
    (
        "fails with terminal escapes",
        LieMoment::Commit,
        |socket| {
            say(socket, &Reply::Failed { reason: "\x1b[31mred".to_owned() });
            Then::Mute
        },
        &["could not do it: ?[31mred"],
    ),
    (
        "refuses without end",
        LieMoment::Commit,
        |socket| {
            while say(socket, &refused(1, "odd")) {}
            Then::Mute
        },
        &[SILENT],
    ),
    (
        "places without end",
        LieMoment::Commit,
        |socket| {
            while say(socket, &placed(1, 0, 0, None)) {}
            Then::Mute
        },
        &[SILENT],
    ),
    (
        "places one that nobody added",
        LieMoment::Commit,
        |socket| {
            say(socket, &placed(77, 0, 0, None));
            Then::Honest
        },
        &[ANOTHER],
    ),
    (
        "places beyond the counters",
        LieMoment::Commit,
        |socket| {
            say(socket, &placed(1, u32::MAX, u64::MAX, Some(u32::MAX)));
            say(socket, &placed(2, 4096, 1, Some(4095)));
            Then::Honest
        },
        &[WELL],
    ),
    (
        "held calls of what is not placed",
        LieMoment::Commit,
        |socket| {
            say(socket, &Reply::Before { id: 1, of: Vec::new() });
            Then::Honest
        },
        &[ANOTHER],
    ),
    (
        "held calls in buckets that do not exist",
        LieMoment::Commit,
        |socket| {
            say(socket, &placed(1, 0, 0, Some(8)));
            say(
                socket,
                &Reply::Before {
                    id: 1,
                    of: vec![Bucket { number: u32::MAX, calls: u64::MAX }; MOST_ENTRIES],
                },
            );
            Then::Honest
        },
        &[WELL],
    ),
    (
        "wants threads to be held, with a list that is nowhere",
        LieMoment::Commit,
        |socket| {
            say(socket, &ready(1, 8 << 20));
            Then::Mute
        },
        &[SILENT],
    ),
    (
        "wants threads to be held again and again",
        LieMoment::Commit,
        |socket| {
            for _ in 0..200 {
                say(socket, &ready(0, 0));
            }
            Then::Mute
        },
        &[ANOTHER],
    ),
    (
        "claims a list of four thousand millions",
        LieMoment::Losses,
        |socket| {
            say_bytes(socket, &message(22, &[&[0xff; 4]]));
            Then::Mute
        },
        &[NOT_A],
    ),
    (
        "claims a longer list than it sends",
        LieMoment::Losses,
        |socket| {
            say_bytes(socket, &message(22, &[&[200, 0, 0, 0], &[0; 24], &[1]]));
            Then::Mute
        },
        &[NOT_A],
    ),
    (
        "says maybe",
        LieMoment::Losses,
        |socket| {
            say_bytes(socket, &message(22, &[&[0; 4], &[2]]));
            Then::Mute
        },
        &[NOT_A],
    ),
    (
        "lost more than there is",
        LieMoment::Losses,
        |socket| {
            say(
                socket,
                &Reply::Losses {
                    of: vec![HitCount { id: u32::MAX, hits: u64::MAX }; MOST_ENTRIES],
                    last: false,
                },
            );
            Then::Honest
        },
        &[WELL],
    ),
    (
        "lists losses without end",
        LieMoment::Losses,
        |socket| {
            while say(
                socket,
                &Reply::Losses { of: vec![HitCount { id: 1, hits: 1 }; MOST_ENTRIES], last: false },
            ) {}
            Then::Mute
        },
        &["more than 1048576 entries"],
    ),
    (
        "lists nothing without end",
        LieMoment::Losses,
        |socket| {
            while say(socket, &Reply::Losses { of: Vec::new(), last: false }) {}
            Then::Mute
        },
        &[SILENT],
    ),
    (
        "has callers without end",
        LieMoment::Callers,
        |socket| {
            while say(
                socket,
                &Reply::Callers {
                    id: 1,
                    others: u64::MAX,
                    of: vec![(u64::MAX, u64::MAX); MOST_ENTRIES],
                    last: false,
                },
            ) {}
            Then::Mute
        },
        &["more than 65536 entries"],
    ),
    (
        "lists probes without end",
        LieMoment::List,
        |socket| {
            while say(
                socket,
                &Reply::ProbeStatus {
                    of: vec![ProbeStatus { id: 1, state: ProbeState::Waiting }; MOST_ENTRIES],
                    last: false,
                },
            ) {}
            Then::Mute
        },
        &["more than 1048576 entries"],
    ),
    (
        "is in a state that does not exist",
        LieMoment::List,
        |socket| {
            say_bytes(socket, &message(5, &[&[1, 0, 0, 0], &[1, 0, 0, 0], &[9], &[1]]));
            Then::Mute
        },
        &[NOT_A],
    ),
    (
        "says a packet that is too long",
        LieMoment::List,
        |socket| {
            say_bytes(socket, &vec![5; MOST_BYTES + 1]);
            Then::Mute
        },
        &[NOT_A],
    ),
    (
        "says each byte in a packet",
        LieMoment::List,
        |socket| {
            Reply::Left.encode().iter().for_each(|byte| _ = say_bytes(socket, &[*byte]));
            Then::Mute
        },
        &[NOT_A],
    ),
    (
        "is of a kind that does not exist",
        LieMoment::List,
        |socket| {
            say_bytes(socket, &[0xff, 0xff, 0xff, 0xff]);
            Then::Mute
        },
        &[NOT_A],
    ),
];

/// Lies of single questions.
fn at_one_question() -> Vec<LieKind> {
    let kind = |(name, at, lie, says): Lie| LieKind { name: name.to_owned(), at, lie, says };
    LIES.map(kind).into()
}

/// Checks, for each kind of lying agent, that the conversation ends with the sentence that is true
/// of it, and without a panic.
#[test]
fn lying_agents() {
    let kinds: Vec<LieKind> = at_each_question().into_iter().chain(at_one_question()).collect();
    assert!(kinds.len() >= 57, "{} kinds", kinds.len());
    let wrong: Vec<String> = kinds
        .iter()
        .filter_map(|kind| {
            let said = converse(kind);
            let fits = is_shown(&said) && kind.says.iter().any(|says| said.contains(says));
            (!fits).then(|| format!("{}: {said}", kind.name))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Checks that counters which an agent changes while they are read are only numbers: each probe has
/// one, and nothing else changes.
#[test]
fn scribbles_into_the_counters() {
    let (ours, its) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let client = Client::new(ours, None);
    let counters = SharedCounters::create(2, 2, 4096).unwrap();
    let file = File::from(counters.parts().0.try_clone().unwrap());
    let client = Client { cpus: 2, counters: Some(counters), ..client };
    client.add(b"/lib/x.so", &[super::exercise::wanted(1), super::exercise::wanted(2)]).unwrap();
    assert!(say(&its, &placed(1, 0, 5, Some(8))) && say(&its, &placed(2, 4095, 0, Some(4090))));
    assert!(say(&its, &Reply::Armed { armed: 2, stopped_ns: 0 }));
    client.commit().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = 0_u8;
            // Relaxed: a flag by itself.
            while !stop.load(Ordering::Relaxed) {
                byte = byte.wrapping_add(1);
                file.write_all_at(&vec![byte.wrapping_mul(37); 2 * 4096 * 8], 0).unwrap();
            }
        });
        for _ in 0..200 {
            let counts = client.counts();
            assert_eq!(counts.iter().map(|count| count.id).collect::<Vec<_>>(), [1, 2]);
            assert!(counts[1].latencies.count == 0, "its slots are not all there");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(file.set_len(0).is_err(), "it cannot be cut off under who reads it");
}

/// Checks that what the fuzz target feeds is served: a whole conversation that was said in advance,
/// and parts of it, and changed bytes.
#[test]
fn said_in_advance() {
    let replies = [
        hello(VERSION, 1, 4096),
        Reply::Counting,
        Reply::Cleaned { probes: 1 },
        placed(1, 0, 0, Some(600)),
        refused(2, "odd"),
        Reply::Armed { armed: 2, stopped_ns: 0 },
        Reply::Recording,
        Reply::Losses { of: vec![HitCount { id: 1, hits: 1 }], last: true },
        Reply::Callers { id: 1, others: 2, of: vec![(1, 2)], last: true },
        Reply::ProbeStatus { of: vec![ProbeStatus { id: 1, state: ProbeState::Armed }], last: true },
        Reply::Armed { armed: 0, stopped_ns: 0 },
        Reply::Left,
    ];
    let mut said = vec![0];
    for reply in &replies {
        let packet = reply.encode();
        said.extend((packet.len() as u16).to_le_bytes());
        said.extend(packet);
    }
    exercise(&said);
    for at in 0..said.len() {
        exercise(&said[..at]);
        let mut changed = said.clone();
        changed[at] ^= 0x81;
        exercise(&changed);
    }
}
