//! Agents that lie: each kind has a name, the question at which it does, and the sentence that the
//! user reads.
//!
//! What all of them have in common: the client comes to an end, without a panic, with a sentence
//! that is true and steers no terminal.
use super::exercise::{ask_everything, exercise, is_shown, pair, wanted};
use super::*;
use kymo_core::probe::wire::{self, Bucket, ProbeSlots, ProbeState};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A question, by which a lie is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LieMoment {
    Hello,
    Counters,
    Holds,
    TimeHolds,
    Commit,
    Rings,
    Losses,
    Callers,
    List,
    Leave,
}
use LieMoment::{Callers, Commit, Counters, Hello, Holds, Leave, List, Losses, Rings, TimeHolds};

/// What it does after its lie.
#[derive(Clone, Copy)]
enum Then {
    /// Answers as it should.
    Honest,
    /// Says nothing more.
    Mute,
    /// Says the same again as long as it is heard, and then nothing more.
    Endless,
    /// Sends a descriptor, and nothing more.
    Gift,
    HangUp,
}
use Then::{Endless, Gift, HangUp, Honest, Mute};

/// One of the kinds: a lie, and the sentence that comes of it, or one of several.
struct LieKind {
    name: String,
    at: LieMoment,
    /// The packets that it says.
    lie: Vec<Vec<u8>>,
    then: Then,
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

fn failed(reason: &str) -> Reply {
    Reply::Failed { reason: reason.to_owned() }
}

fn losses(count: usize, last: bool) -> Reply {
    Reply::Losses { of: vec![HitCount { id: u32::MAX, hits: u64::MAX }; count], last }
}

fn ready(thread: u32, sites: u32) -> Reply {
    let (sites_at, moves_at, moves, restorers) = (u64::MAX, 0, sites, vec![0; 800]);
    let (edits_at, edits) = (8, sites);
    Reply::Ready(wire::PatchSites { thread, sites_at, sites, moves_at, moves, restorers, edits_at, edits })
}

/// The question that a command is, and the answer of one that does not lie.
fn honest(command: &Command) -> Option<(LieMoment, Reply)> {
    Some(match command {
        Command::Hello { .. } => (Hello, hello(VERSION, 1, 4096)),
        Command::Counters { .. } => (Counters, Reply::Counting),
        Command::Holds => (Holds, Reply::Cleaned { probes: 0 }),
        Command::HoldTable => (TimeHolds, Reply::TimingHolds),
        Command::Commit => (Commit, Reply::Armed { armed: 3, stopped_ns: 0 }),
        Command::Rings { .. } => (Rings, Reply::Recording),
        Command::Losses => (Losses, losses(0, true)),
        Command::Callers => (Callers, Reply::Callers { id: 0, others: 0, of: Vec::new(), last: true }),
        Command::List => (List, Reply::ProbeStatus { of: Vec::new(), last: true }),
        Command::Leave => (Leave, Reply::Left),
        _ => return None,
    })
}

/// Answers until the tracer is gone, and lies once.
fn answer(socket: &OwnedFd, kind: &LieKind) {
    let mut packet = vec![0; MOST_BYTES];
    let mut lied = false;
    while let Ok((bytes @ 1.., _)) = recv(socket, &mut packet[..], RecvFlags::empty()) {
        let Ok(command) = Command::decode(&packet[..bytes]) else { return };
        let answer = honest(&command);
        if !lied && answer.as_ref().is_some_and(|(question, _)| *question == kind.at) {
            lied = true;
            kind.lie.iter().for_each(|packet| _ = say_bytes(socket, packet));
            match kind.then {
                Honest | Mute => {}
                Endless => while kind.lie.iter().all(|packet| say_bytes(socket, packet)) {},
                Gift => {
                    let file = memfd_create("gift", MemfdFlags::CLOEXEC).unwrap();
                    _ = send_with(socket, &Reply::Written.encode(), file.as_fd());
                }
                HangUp => _ = shutdown(socket, Shutdown::Both),
            }
            if !matches!(kind.then, Honest) {
                // Until the tracer is gone.
                while matches!(recv(socket, &mut packet[..], RecvFlags::empty()), Ok((1.., _))) {}
                return;
            }
        }
        if let Some((_, reply)) = answer {
            say(socket, &reply);
        }
    }
}

/// What the user reads of a whole conversation with it.
fn converse(kind: &LieKind) -> String {
    let (ours, its) = pair();
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

fn packets<const N: usize>(replies: [Reply; N]) -> Vec<Vec<u8>> {
    replies.map(|reply| reply.encode()).into()
}

/// Its name, what it says, what it does then, and the sentences that may come of it.
type Lie = (&'static str, Vec<Vec<u8>>, Then, &'static [&'static str]);

/// Lies that can be told at any question.
fn at_each_question() -> Vec<LieKind> {
    let lies: [Lie; 6] = [
        ("mute", vec![], Mute, &[SILENT]),
        ("hangs up", vec![], HangUp, &[GONE, WELL]),
        ("says a byte", vec![vec![7]], Mute, &[NOT_A]),
        ("says more than one message", vec![[&Reply::Left.encode()[..], &[0]].concat()], Mute, &[NOT_A]),
        ("answers another question", packets([Reply::Written]), Mute, &[ANOTHER]),
        ("sends a descriptor", vec![], Gift, &[SILENT, "without a descriptor"]),
    ];
    let questions = [Hello, Counters, Holds, TimeHolds, Commit, Rings, Losses, Callers, List, Leave];
    let of = |(name, lie, then, says): Lie| {
        questions.map(|at| LieKind { name: format!("{name} at {at:?}"), at, lie: lie.clone(), then, says })
    };
    lies.into_iter().flat_map(of).collect()
}

/// What a liar says when it is greeted, and right after that.
fn at_the_greeting() -> [(LieMoment, Lie); 11] {
    let bounds = &["out of bounds"];
    let version = &["of another version"];
    let greets = |version, cpus, slots| packets([hello(version, cpus, slots)]);
    [
        (Hello, ("of an older version", greets(VERSION - 1, 1, 4096), Mute, version)),
        (Hello, ("of a version to come", greets(u32::MAX, 1, 4096), Mute, version)),
        (Hello, ("without CPUs", greets(VERSION, 0, 4096), Mute, bounds)),
        (Hello, ("of too many CPUs", greets(VERSION, u32::MAX, 4096), Mute, bounds)),
        (Hello, ("without slots", greets(VERSION, 1, 0), Mute, bounds)),
        (Hello, ("of fewer slots than a page has", greets(VERSION, 1, 511), Mute, bounds)),
        (
            Hello,
            (
                "of all slots that there could be",
                packets([hello(VERSION, 1, u32::MAX), Reply::Counting]),
                Mute,
                &[SILENT],
            ),
        ),
        (Hello, ("greets twice", greets(VERSION, 1, 4096), Honest, &[ANOTHER])),
        (Hello, ("counts before it is asked", packets([Reply::Counting]), Honest, &[ANOTHER])),
        (Counters, ("has no memory", packets([failed("no memory")]), Mute, &["no memory"])),
        (Holds, ("cleaned up very much", packets([Reply::Cleaned { probes: u32::MAX }]), Mute, &[SILENT])),
    ]
}

/// What it says when probes are to be armed.
fn at_the_commit() -> [Lie; 14] {
    let escapes = "\x1b]0;owned\x07\x1b[2J\r\n\u{202e}";
    let no_text = message(2, &[&[1, 0, 0, 0], &[4, 0, 0, 0], &[0xff, 0xfe, 0xc3, 0]]);
    let armed = Reply::Armed { armed: u32::MAX, stopped_ns: u64::MAX };
    let beyond = [placed(1, u32::MAX, u64::MAX, Some(u32::MAX)), placed(2, 4096, 1, Some(4095))];
    let buckets = vec![Bucket { number: u32::MAX, calls: u64::MAX }; MOST_ENTRIES];
    let buckets = [placed(1, 0, 0, Some(8)), Reply::Before { id: 1, of: buckets }];
    let before = Reply::Before { id: 1, of: Vec::new() };
    [
        ("armed very many", packets([armed]), Honest, &[ANOTHER]),
        ("refuses one that nobody added", packets([refused(77, "odd")]), Honest, &[ANOTHER]),
        ("refuses one again and again", vec![refused(1, "odd").encode(); 500], Honest, &[WELL]),
        ("refuses with terminal escapes", packets([refused(1, escapes)]), Honest, &[WELL]),
        ("refuses in bytes that are no text", vec![no_text], Honest, &[WELL]),
        (
            "fails with terminal escapes",
            packets([failed("\x1b[31mred")]),
            Mute,
            &["could not do it: ?[31mred"],
        ),
        ("refuses without end", packets([refused(1, "odd")]), Endless, &[SILENT]),
        ("places without end", packets([placed(1, 0, 0, None)]), Endless, &[SILENT]),
        ("places one that nobody added", packets([placed(77, 0, 0, None)]), Honest, &[ANOTHER]),
        ("places beyond the counters", packets(beyond), Honest, &[WELL]),
        ("held calls of what is not placed", packets([before]), Honest, &[ANOTHER]),
        ("held calls in buckets that do not exist", packets(buckets), Honest, &[WELL]),
        (
            "wants threads to be held, with a list that is nowhere",
            packets([ready(1, 8 << 20)]),
            Mute,
            &[SILENT],
        ),
        ("wants threads to be held again and again", vec![ready(0, 0).encode(); 200], Mute, &[ANOTHER]),
    ]
}

/// What it says when it is asked for a list.
fn at_lists() -> [(LieMoment, Lie); 12] {
    let callers = vec![(u64::MAX, u64::MAX); MOST_ENTRIES];
    let callers = Reply::Callers { id: 1, others: u64::MAX, of: callers, last: false };
    let waiting = vec![ProbeStatus { id: 1, state: ProbeState::Waiting }; MOST_ENTRIES];
    let waiting = Reply::ProbeStatus { of: waiting, last: false };
    let cut = message(22, &[&[200, 0, 0, 0], &[0; 24], &[1]]);
    let no_state = message(5, &[&[1, 0, 0, 0], &[1, 0, 0, 0], &[9], &[1]]);
    let bytes = Reply::Left.encode().into_iter().map(|byte| vec![byte]).collect();
    let most = &["more than 1048576 entries"];
    [
        (
            Losses,
            ("claims a list of four thousand millions", vec![message(22, &[&[0xff; 4]])], Mute, &[NOT_A]),
        ),
        (Losses, ("claims a longer list than it sends", vec![cut], Mute, &[NOT_A])),
        (Losses, ("says maybe", vec![message(22, &[&[0; 4], &[2]])], Mute, &[NOT_A])),
        (Losses, ("lost more than there is", packets([losses(MOST_ENTRIES, false)]), Honest, &[WELL])),
        (Losses, ("lists losses without end", packets([losses(MOST_ENTRIES, false)]), Endless, most)),
        (Losses, ("lists nothing without end", packets([losses(0, false)]), Endless, &[SILENT])),
        (Callers, ("has callers without end", packets([callers]), Endless, &["more than 65536 entries"])),
        (List, ("lists probes without end", packets([waiting]), Endless, most)),
        (List, ("is in a state that does not exist", vec![no_state], Mute, &[NOT_A])),
        (List, ("says a packet that is too long", vec![vec![5; MOST_BYTES + 1]], Mute, &[NOT_A])),
        (List, ("says each byte in a packet", bytes, Mute, &[NOT_A])),
        (List, ("is of a kind that does not exist", vec![vec![0xff; 4]], Mute, &[NOT_A])),
    ]
}

/// Lies of single questions.
fn at_one_question() -> impl Iterator<Item = LieKind> {
    let at_the_commit = at_the_commit().map(|lie| (Commit, lie));
    let lies = at_the_greeting().into_iter().chain(at_the_commit).chain(at_lists());
    lies.map(|(at, (name, lie, then, says))| LieKind { name: name.to_owned(), at, lie, then, says })
}

/// Checks, for each kind of lying agent, that the conversation ends with the sentence that is true
/// of it, and without a panic.
#[test]
fn lying_agents() {
    let kinds: Vec<LieKind> = at_each_question().into_iter().chain(at_one_question()).collect();
    assert!(kinds.len() >= 91, "{} kinds", kinds.len());
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
    let (ours, its) = pair();
    let client = Client::new(ours, None);
    let counters = SharedCounters::create(2, 2, 4096).unwrap();
    let file = File::from(counters.parts().0.try_clone().unwrap());
    let client = Client { cpus: 2, counters: Some(counters), ..client };
    client.add(b"/lib/x.so", &[wanted(1), wanted(2)]).unwrap();
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
