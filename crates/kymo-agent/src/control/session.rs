//! One conversation, from hello to the socket's end.
use super::engine::{BatchOutcome, ProbeEngine, RequestedProbe};
use super::filters;
use super::hold::{HeldBy, Threads};
use super::{stage, startup_gate};
use crate::sys::pass;
use kymo_core::probe::wire::{
    Command, MOST_BYTES, MOST_ENTRIES, ProbeAction, ProbeSpec, ProbeState, Reply, VERSION,
};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

/// Probes of one batch: more functions than any program has, and still a bound.
const MOST_PENDING: usize = 4 << 20;
/// Entries of one answer: with the longest reasons it still fits into a packet.
const ENTRIES: usize = 50;

/// Why it ended. For tests: nobody else is there to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// The tracer said so.
    Left,
    /// The tracer is gone.
    Closed,
    /// It said something that is no command.
    Malformed,
    /// The program runs from here on, and this thread is not there any more: the probes stay.
    LetGo,
}

struct Session<'a, P: ProbeEngine> {
    /// One of `SOCK_SEQPACKET`, for which the standard library has no type of its own.
    socket: &'a UnixDatagram,
    probing: &'a mut P,
    remove: Vec<u32>,
    add: Vec<RequestedProbe>,
    actions: HashMap<u16, Arc<ProbeAction>>,
    threads: Threads<'a>,
}

/// Talks until the end. Whatever the end, nothing is armed then, unless the program begins there.
pub(super) fn run(socket: &UnixDatagram, probing: &mut impl ProbeEngine, by: HeldBy) -> SessionEnd {
    let (mut threads, actions) = (Threads::new(socket), HashMap::new());
    threads.by = by;
    let mut session = Session { socket, probing, remove: Vec::new(), add: Vec::new(), actions, threads };
    let end = session.talk().unwrap_or(SessionEnd::Closed);
    if end == SessionEnd::LetGo {
        session.probing.let_go();
        startup_gate::let_go();
        return end;
    }
    stage::leave();
    // Who is gone, or talks nonsense, holds nobody.
    if end != SessionEnd::Left && session.threads.by == HeldBy::Tracer {
        session.threads.by = HeldBy::NobodyAnyMore;
    }
    if filters::is_withdrawn() {
        session.withdraw();
    }
    session.probing.clear(&mut session.threads);
    session.probing.close();
    if end == SessionEnd::Left {
        // Nobody may be there to hear it.
        _ = session.say(&Reply::Left);
    }
    end
}

impl<P: ProbeEngine> Session<'_, P> {
    fn say(&self, reply: &Reply) -> io::Result<()> {
        self.socket.send(&reply.encode()).map(|_| ())
    }

    fn hear(&self, packet: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        loop {
            match pass::receive_with(self.socket, packet) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                heard => return heard,
            }
        }
    }

    fn talk(&mut self) -> io::Result<SessionEnd> {
        let mut packet = vec![0; MOST_BYTES + 1];
        // Unsupported but a greeting is done before there is memory to count in.
        let (mut greeted, mut counts) = (None, false);
        loop {
            let (bytes, file) = self.hear(&mut packet)?;
            let file = file.map(File::from);
            if bytes == 0 {
                return Ok(SessionEnd::Closed);
            }
            let Ok(command) = Command::decode(&packet[..bytes]) else {
                return self.refuse("that is not a command");
            };
            match command {
                Command::Hello { version, children } => {
                    self.greet()?;
                    if version != VERSION {
                        return Ok(SessionEnd::Malformed);
                    }
                    greeted = Some(children);
                }
                Command::Counters { cpus, slots } if greeted.is_some() && !counts => {
                    let children = greeted == Some(true);
                    if !self.count_in(file, cpus, slots, children)? {
                        return Ok(SessionEnd::Malformed);
                    }
                    counts = true;
                }
                _ if !counts => return self.refuse("the first messages must be Hello and Counters"),
                Command::Counters { .. } => return self.refuse("there are counters already"),
                Command::Add { module, probes } => {
                    let module: Arc<[u8]> = module.into();
                    if self.add.len() + probes.len() > MOST_PENDING {
                        return self.refuse("too many probes at once");
                    }
                    let actions = &self.actions;
                    let asked = |wanted: ProbeSpec| {
                        let how = actions.get(&wanted.action_id).cloned();
                        RequestedProbe { module: Arc::clone(&module), spec: wanted, action: how }
                    };
                    self.add.extend(probes.into_iter().map(asked));
                }
                Command::Remove { ids } => {
                    if self.remove.len() + ids.len() > MOST_PENDING {
                        return self.refuse("too many probes at once");
                    }
                    self.remove.extend(ids);
                }
                Command::Commit => self.commit()?,
                Command::Go if self.threads.by == HeldBy::FirstWaits => return Ok(SessionEnd::LetGo),
                Command::Go => {}
                Command::List => self.list()?,
                Command::Leave => return Ok(SessionEnd::Left),
                Command::Action { id, action } => {
                    self.actions.insert(id, Arc::new(action));
                }
                Command::Rings { cpus, data_bytes, tick, zero_ns } => {
                    self.record_in(file, cpus, data_bytes, (tick, zero_ns))?;
                }
                Command::HoldTable => self.hold_in(file, greeted == Some(true))?,
                Command::Losses => self.losses()?,
                Command::Callers => self.callers()?,
                Command::Holds => {
                    self.threads.by = HeldBy::Tracer;
                    let probes = self.probing.clean(&mut self.threads);
                    self.say(&Reply::Cleaned { probes })?;
                }
                Command::Held | Command::NotHeld { .. } => {
                    return self.refuse("no pass waits for threads to be held");
                }
            }
        }
    }

    /// Tells the tracer why its probes go. Of many probes it hears of some: nobody may be listening
    /// now, and the queue of a socket is short.
    fn withdraw(&self) {
        let armed = self.probing.list().into_iter().filter(|listed| listed.state == ProbeState::Armed);
        for listed in armed.take(ENTRIES) {
            let reason = filters::REASON.to_owned();
            _ = self.say(&Reply::Refused { id: listed.id, reason });
        }
    }

    fn fail(&self, reason: &str) -> io::Result<()> {
        self.say(&Reply::Failed { reason: reason.to_owned() })
    }

    /// Ends the conversation with somebody who does not keep to the language.
    fn refuse(&self, reason: &str) -> io::Result<SessionEnd> {
        self.fail(reason).map(|()| SessionEnd::Malformed)
    }

    fn greet(&mut self) -> io::Result<()> {
        // Left by an earlier tracer whose end could not be told: nothing of it stays.
        let cleaned_up = self.probing.clear(&mut self.threads);
        let (cpus, slots) = self.probing.sizes();
        let pid = std::process::id();
        self.say(&Reply::Hello { version: VERSION, pid, cleaned_up, cpus, slots })
    }

    fn count_in(&mut self, file: Option<File>, cpus: u32, slots: u32, children: bool) -> io::Result<bool> {
        let shared = file
            .ok_or_else(|| io::Error::other("no file came with them"))
            .and_then(|file| self.probing.count_in(&file, cpus, slots, children));
        match shared {
            Ok(()) => self.say(&Reply::Counting).map(|()| true),
            Err(error) => self.fail(&format!("there is no memory for counters: {error}")).map(|()| false),
        }
    }

    fn commit(&mut self) -> io::Result<()> {
        let (remove, add) = (std::mem::take(&mut self.remove), std::mem::take(&mut self.add));
        let done = self.probing.change(&remove, add, &mut self.threads);
        let BatchOutcome { refused, placed, before, armed } = done;
        for (id, reason) in refused {
            self.say(&Reply::Refused { id, reason })?;
        }
        for of in placed.chunks(MOST_ENTRIES) {
            self.say(&Reply::Placed { of: of.to_vec() })?;
        }
        for (id, mut of) in before {
            of.truncate(MOST_ENTRIES);
            self.say(&Reply::Before { id, of })?;
        }
        self.say(&Reply::Armed { armed, stopped_ns: 0 })
    }

    fn losses(&self) -> io::Result<()> {
        let losses = self.probing.losses();
        parts(&losses, MOST_ENTRIES).try_for_each(|(of, last)| self.say(&Reply::Losses { of, last }))
    }

    fn callers(&self) -> io::Result<()> {
        for callers in self.probing.callers() {
            let mut others = callers.others;
            for (of, _) in parts(&callers.of, MOST_ENTRIES) {
                let others = std::mem::take(&mut others);
                self.say(&Reply::Callers { id: callers.id, others, of, last: false })?;
            }
        }
        self.say(&Reply::Callers { id: 0, others: 0, of: Vec::new(), last: true })
    }

    fn record_in(
        &mut self,
        file: Option<File>,
        cpus: u32,
        data_bytes: u32,
        clock: (u64, u64),
    ) -> io::Result<()> {
        let shared = file
            .ok_or_else(|| io::Error::other("no file came with them"))
            .and_then(|file| self.probing.record_in(&file, cpus, data_bytes, clock));
        match shared {
            Ok(()) => self.say(&Reply::Recording),
            Err(error) => self.fail(&format!("there is no memory for events: {error}")),
        }
    }

    fn hold_in(&mut self, file: Option<File>, children: bool) -> io::Result<()> {
        let shared = file
            .ok_or_else(|| io::Error::other("no file came with it"))
            .and_then(|file| self.probing.hold_in(&file, children));
        match shared {
            Ok(()) => self.say(&Reply::TimingHolds),
            Err(error) => self.fail(&format!("there is no memory for holds of locks: {error}")),
        }
    }

    fn list(&self) -> io::Result<()> {
        let listed = self.probing.list();
        // Long answers are rare: only refusals have texts.
        let texts = listed.iter().any(|listed| matches!(listed.state, ProbeState::Refused(_)));
        let entries = if texts { ENTRIES } else { MOST_ENTRIES };
        parts(&listed, entries).try_for_each(|(of, last)| self.say(&Reply::ProbeStatus { of, last }))
    }
}

/// An answer in parts of at most so many entries, one at least, and which of them is the last.
fn parts<T: Clone>(all: &[T], most: usize) -> impl Iterator<Item = (Vec<T>, bool)> {
    let count = all.len().div_ceil(most).max(1);
    (1..=count).map(move |at| (all.iter().skip((at - 1) * most).take(most).cloned().collect(), at == count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_core::probe::wire::{Bucket, ProbeKind, ProbeSlots, ProbeStatus};
    use std::collections::BTreeMap;
    use std::fs::File;

    /// Arms what has an even offset.
    #[derive(Default)]
    struct Fake {
        probes: BTreeMap<u32, ProbeState>,
        left: u32,
        without_memory: bool,
        closed: bool,
        has_let_go: bool,
    }

    impl Fake {
        fn armed(&self) -> u32 {
            self.probes.values().filter(|state| **state == ProbeState::Armed).count() as u32
        }
    }

    impl ProbeEngine for Fake {
        fn sizes(&self) -> (u32, u32) {
            (2, 10)
        }

        fn count_in(&mut self, file: &File, cpus: u32, slots: u32, _: bool) -> io::Result<()> {
            assert_eq!((cpus, slots, file.metadata()?.len()), (2, 10, 3));
            if self.without_memory { Err(io::ErrorKind::OutOfMemory.into()) } else { Ok(()) }
        }

        fn let_go(&mut self) {
            self.has_let_go = true;
        }

        fn close(&mut self) {
            assert!(self.probes.is_empty());
            self.closed = true;
        }

        fn change(&mut self, remove: &[u32], add: Vec<RequestedProbe>, _: &mut Threads<'_>) -> BatchOutcome {
            remove.iter().for_each(|id| _ = self.probes.remove(id));
            let mut done = BatchOutcome::default();
            for asked in add {
                assert_eq!(&*asked.module, b"/lib/x");
                let mut state = ProbeState::Armed;
                if asked.spec.offset % 2 == 1 {
                    state = ProbeState::Refused("odd".repeat(1000));
                    done.refused.push((asked.spec.id, "odd".to_owned()));
                } else {
                    let id = asked.spec.id;
                    done.placed.push(ProbeSlots { id, hits: id + 1, before: 9, times: Some(100) });
                    done.before.push((id, vec![Bucket { number: 8, calls: 1 }]));
                }
                self.probes.insert(asked.spec.id, state);
            }
            done.armed = self.armed();
            done
        }

        fn list(&self) -> Vec<ProbeStatus> {
            self.probes.iter().map(|(id, state)| ProbeStatus { id: *id, state: state.clone() }).collect()
        }

        fn clear(&mut self, _: &mut Threads<'_>) -> u32 {
            let armed = self.armed();
            self.probes.clear();
            armed
        }

        fn clean(&mut self, threads: &mut Threads<'_>) -> u32 {
            assert_eq!(threads.by, HeldBy::Tracer);
            std::mem::take(&mut self.left)
        }
    }

    /// Says all, closes its end after that, and hears all answers.
    fn converse(fake: &mut Fake, packets: &[Vec<u8>]) -> (SessionEnd, Vec<Reply>) {
        converse_while(fake, packets, HeldBy::Nobody)
    }

    fn converse_while(fake: &mut Fake, packets: &[Vec<u8>], by: HeldBy) -> (SessionEnd, Vec<Reply>) {
        let (tracer, agent) = super::super::start::pair().unwrap();
        std::thread::scope(|scope| {
            let says = scope.spawn(move || {
                let file = tempfile::tempfile().unwrap();
                file.set_len(3).unwrap();
                for packet in packets {
                    // It may have hung up after an earlier one.
                    _ = match packet[0] == 24 {
                        true => pass::send_with(&tracer, packet, &file),
                        false => tracer.send(packet).map(|_| ()),
                    };
                }
                _ = tracer.shutdown(std::net::Shutdown::Write);
                let mut replies = Vec::new();
                let mut packet = [0; MOST_BYTES];
                loop {
                    match tracer.recv(&mut packet) {
                        Ok(bytes @ 1..) => replies.push(Reply::decode(&packet[..bytes]).unwrap()),
                        // It hung up with something unread, which is told before what it had said.
                        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                        Ok(_) | Err(_) => return replies,
                    }
                }
            });
            let end = run(&agent, fake, by);
            drop(agent);
            (end, says.join().unwrap())
        })
    }

    fn wanted(id: u32, offset: u64) -> ProbeSpec {
        let (size_bytes, room_bytes, inside_bytes, semaphore, action_id) = (10, 16, 0, 0, 0);
        let kind = ProbeKind::Count;
        ProbeSpec { id, offset, size_bytes, room_bytes, inside_bytes, semaphore, kind, action_id }
    }

    fn hello() -> Vec<u8> {
        Command::Hello { version: VERSION, children: false }.encode()
    }

    fn counters() -> Vec<u8> {
        Command::Counters { cpus: 2, slots: 10 }.encode()
    }

    /// Checks a conversation: greeting, a batch with a refusal, where the others count, the list in
    /// parts, removal, the end; and that nothing is left.
    #[test]
    fn a_conversation() {
        let mut fake = Fake::default();
        let add = |from: u32, to: u32| {
            let probes = (from..to).map(|id| wanted(id, u64::from(id))).collect();
            Command::Add { module: b"/lib/x".to_vec(), probes }.encode()
        };
        let (end, replies) = converse(
            &mut fake,
            &[
                hello(),
                counters(),
                add(0, 3),
                Command::Commit.encode(),
                Command::Go.encode(),
                Command::List.encode(),
                Command::Remove { ids: vec![1] }.encode(),
                Command::Commit.encode(),
                Command::Leave.encode(),
            ],
        );
        assert_eq!(end, SessionEnd::Left);
        let pid = std::process::id();
        let hello = Reply::Hello { version: VERSION, pid, cleaned_up: 0, cpus: 2, slots: 10 };
        let placed = |id| ProbeSlots { id, hits: id + 1, before: 9, times: Some(100) };
        let before = |id| Reply::Before { id, of: vec![Bucket { number: 8, calls: 1 }] };
        assert_eq!(
            replies[..7],
            [
                hello,
                Reply::Counting,
                Reply::Refused { id: 1, reason: "odd".to_owned() },
                Reply::Placed { of: vec![placed(0), placed(2)] },
                before(0),
                before(2),
                Reply::Armed { armed: 2, stopped_ns: 0 },
            ]
        );
        assert!(matches!(&replies[7], Reply::ProbeStatus { of, last: true } if of.len() == 3));
        assert_eq!(replies[8..], [Reply::Armed { armed: 2, stopped_ns: 0 }, Reply::Left]);
        assert!(fake.probes.is_empty() && fake.closed, "its memory is the tracer's again");
    }

    /// Checks that the conversation with a program that is started ends when it begins, with its
    /// probes in place and its memory the tracer's still.
    #[test]
    fn lets_go() {
        let mut fake = Fake::default();
        let add = Command::Add { module: b"/lib/x".to_vec(), probes: vec![wanted(1, 2)] }.encode();
        let packets = [hello(), counters(), add, Command::Commit.encode(), Command::Go.encode()];
        let (end, replies) = converse_while(&mut fake, &packets, HeldBy::FirstWaits);
        assert_eq!(
            (end, replies.last()),
            (SessionEnd::LetGo, Some(&Reply::Armed { armed: 1, stopped_ns: 0 }))
        );
        assert!(fake.has_let_go && !fake.closed && fake.armed() == 1);
    }

    /// Checks that nothing is done before there are counters, that there are no second ones, and
    /// that none come without a file.
    #[test]
    fn counters_first() {
        let commit = Command::Commit.encode();
        for packets in [&[hello(), commit][..], &[counters()], &[hello(), counters(), counters()]] {
            let (end, replies) = converse(&mut Fake::default(), packets);
            assert_eq!(end, SessionEnd::Malformed);
            assert!(matches!(replies.last(), Some(Reply::Failed { .. })), "{replies:?}");
        }
    }

    /// Checks that a long list comes in parts that fit into packets, with the last one marked,
    /// however long its reasons are.
    #[test]
    fn long_answers() {
        let mut fake = Fake::default();
        let add = |from: u32| {
            let probes = (from..from + 500).map(|id| wanted(id, 1)).collect();
            Command::Add { module: b"/lib/x".to_vec(), probes }.encode()
        };
        let list = [Command::Commit, Command::List].map(|command| command.encode());
        let (end, replies) =
            converse(&mut fake, &[&[hello(), counters(), add(0), add(500)][..], &list].concat());
        assert_eq!(end, SessionEnd::Closed);
        let parts = |reply: &Reply| match reply {
            Reply::ProbeStatus { of, last } => Some((of.len(), *last)),
            _ => None,
        };
        let listed: Vec<_> = replies.iter().filter_map(parts).collect();
        assert_eq!(listed.iter().map(|(entries, _)| entries).sum::<usize>(), 1000);
        assert_eq!(listed.iter().filter(|(_, last)| *last).count(), 1);
        assert!(listed.last().unwrap().1);
    }

    /// Checks that whoever does not greet, speaks another version, or talks nonsense is told and
    /// left, with nothing armed.
    #[test]
    fn strangers() {
        let commit = Command::Commit.encode();
        let (end, replies) = converse(&mut Fake::default(), std::slice::from_ref(&commit));
        assert_eq!(end, SessionEnd::Malformed);
        assert!(matches!(&replies[..], [Reply::Failed { .. }]));
        let other = Command::Hello { version: VERSION + 1, children: false }.encode();
        let (end, replies) = converse(&mut Fake::default(), &[other, commit.clone()]);
        assert_eq!((end, replies.len()), (SessionEnd::Malformed, 1));
        let mut fake = Fake::default();
        let add = Command::Add { module: b"/lib/x".to_vec(), probes: vec![wanted(1, 2)] }.encode();
        let (end, _) = converse(&mut fake, &[hello(), counters(), add, commit, vec![200; 9]]);
        assert_eq!(end, SessionEnd::Malformed);
        assert!(fake.probes.is_empty(), "something stayed armed");
    }

    /// Checks that a process without memory for counters says so.
    #[test]
    fn no_memory() {
        let mut fake = Fake { without_memory: true, ..Fake::default() };
        let (end, replies) = converse(&mut fake, &[hello(), counters()]);
        assert_eq!(end, SessionEnd::Malformed);
        assert!(
            matches!(&replies[..], [_, Reply::Failed { reason }] if reason.contains("memory")),
            "{replies:?}"
        );
    }

    /// Checks that probes which an earlier tracer had left are removed at the greeting, and
    /// counted.
    #[test]
    fn cleans_up() {
        let mut fake = Fake::default();
        fake.probes.insert(5, ProbeState::Armed);
        let (_, replies) = converse(&mut fake, &[hello()]);
        assert!(matches!(replies[0], Reply::Hello { cleaned_up: 1, .. }));
    }

    /// Checks that what earlier tracers had to leave goes when one comes that holds threads, and
    /// that nobody says so unasked.
    #[test]
    fn cleans_what_was_left() {
        let mut fake = Fake { left: 3, ..Fake::default() };
        let holds = Command::Holds.encode();
        let (_, replies) =
            converse(&mut fake, &[hello(), counters(), holds.clone(), holds, Command::Held.encode()]);
        assert_eq!(replies[2..4], [Reply::Cleaned { probes: 3 }, Reply::Cleaned { probes: 0 }]);
        assert!(matches!(replies[4..], [Reply::Failed { .. }]));
    }
}
