//! Sites that are written while all threads are held: `tests/c/held.c`, from outside.
use super::compiled::compile;
use super::inject::{self, Talker, agent, functions};
use kymo_agent::patch::{self, Consumers, Function, Hold, Holder, OwnMemory, PatchError, Request, Site};
use kymo_core::probe::wire::ProbeSpec;
use kymo_perf::inject::{Client, Library, Outcome, enter};
use std::cell::Cell;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

struct Target {
    _scratch: tempfile::TempDir,
    path: PathBuf,
    library: Library,
    talk: Talker,
}

impl Target {
    /// `None`, loudly, without a compiler.
    fn start(test: &str, how: &str) -> Option<Target> {
        let library = agent(test)?;
        let (scratch, path) = compile(test, "held.c", &["-pthread"])?;
        let talk = Talker::start(Command::new(&path).arg(how));
        let mut target = Target { _scratch: scratch, path, library, talk };
        assert_eq!(target.talk.line(), "here\n");
        Some(target)
    }

    fn pid(&self) -> i32 {
        self.talk.pid()
    }

    fn enter(&self) -> Client {
        enter(self.pid(), &self.library).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    fn end(&mut self) {
        self.talk.tell("x\n");
        assert_eq!(self.talk.line(), "ok\n");
        assert!(self.talk.child.wait().expect("it ends").success());
    }

    /// Has `getppid` called so many times.
    fn call(&mut self, times: u64) {
        self.talk.tell(&format!("{times}\n"));
        assert_eq!(self.talk.line(), "called\n");
    }

    fn is_files_own(&self, name: &str) -> bool {
        inject::is_files_own(self.pid(), name)
    }

    fn wanted(&self, name: &str, first: u32, which: impl Fn(&str) -> bool) -> (PathBuf, Vec<ProbeSpec>) {
        inject::wanted(self.pid(), name, first, which)
    }
}

fn arm(client: &Client, (path, wanted): &(PathBuf, Vec<ProbeSpec>)) -> Outcome {
    client.add(path.as_os_str().as_encoded_bytes(), wanted).expect("it listens");
    client.commit().expect("it answers")
}

fn disarm(client: &Client, (_, wanted): &(PathBuf, Vec<ProbeSpec>)) {
    let ids: Vec<u32> = wanted.iter().map(|wanted| wanted.id).collect();
    client.remove(&ids).expect("it listens");
    client.commit().expect("it answers");
}

/// Numbers of its own for each batch: none is used twice in a conversation.
fn renumbered(batch: &(PathBuf, Vec<ProbeSpec>), round: u32) -> (PathBuf, Vec<ProbeSpec>) {
    let count = batch.1.len() as u32;
    let wanted = batch.1.iter().zip(0..).map(|(wanted, at)| ProbeSpec { id: round * count + at, ..*wanted });
    (batch.0.clone(), wanted.collect())
}

/// Probes all functions of the C library again and again, and checks the code afterwards.
fn come_and_go(target: &Target, rounds: u32) {
    let client = target.enter();
    let batch = target.wanted("libc.so", 0, |_| true);
    for round in 0..rounds {
        let batch = renumbered(&batch, round);
        let outcome = arm(&client, &batch);
        assert_eq!(outcome.not_held, None);
        assert!(outcome.stopped_ns > 0);
        let share = f64::from(outcome.armed) / batch.1.len() as f64;
        assert!(share > 0.9, "{:?}", &outcome.refused[..outcome.refused.len().min(9)]);
        disarm(&client, &batch);
    }
    assert!(target.is_files_own("libc.so"), "bytes of the library are not the file's");
    client.leave().expect("it leaves");
}

/// Checks that threads which wait in all kinds of system calls do not notice that they are held: no
/// call of theirs ends.
#[test]
fn those_who_wait_go_on_waiting() {
    let Some(mut target) = Target::start("held::those_who_wait_go_on_waiting", "waits") else { return };
    come_and_go(&target, 10);
    target.end();
}

/// Checks that a program which makes threads and processes without pause, by pthread_create, fork
/// and posix_spawn, with all signals blocked (traps among them), survives that all functions of the
/// C library are probed and let go while it runs.
#[test]
fn threads_and_processes_are_made() {
    let Some(mut target) = Target::start("held::threads_and_processes_are_made", "makes") else { return };
    come_and_go(&target, 25);
    target.end();
}

/// Checks that counts of a function of the C library are exact.
#[test]
fn counts_of_the_c_library() {
    let Some(mut target) = Target::start("held::counts_of_the_c_library", "calls") else { return };
    let client = target.enter();
    let batch = target.wanted("libc.so", 0, |name| name == "getppid");
    assert_eq!(batch.1.len(), 1);
    for round in 0..20 {
        let calls = 1000 + u64::from(round);
        let batch = renumbered(&batch, round);
        assert_eq!(arm(&client, &batch).refused, []);
        target.call(calls);
        let counts = client.counts();
        let hits = counts.iter().find(|count| count.id == batch.1[0].id).map(|count| count.hits);
        assert_eq!(hits, Some(calls));
        disarm(&client, &batch);
    }
    client.leave().expect("it leaves");
    assert!(target.is_files_own("libc.so"));
    target.end();
}

/// Checks that what the agent's own thread calls is not counted: while the program waits, no
/// function of the C library has a hit, though the agent allocates, reads files and talks.
#[test]
fn the_agent_is_not_counted() {
    let Some(mut target) = Target::start("held::the_agent_is_not_counted", "calls") else { return };
    let client = target.enter();
    let batch = target.wanted("libc.so", 0, |name| name != "fills");
    arm(&client, &batch);
    let own = target.wanted("/held", 100_000, |name| name == "fills" || name == "faults");
    for round in 0..3 {
        let own = renumbered(&own, 50_000 + round);
        assert_eq!(arm(&client, &own).refused, []);
        disarm(&client, &own);
    }
    let hit: Vec<_> = client.counts().into_iter().filter(|count| count.hits > 0).collect();
    let name = |id: u32| {
        let offset = batch.1[id as usize].offset;
        functions(&batch.0).into_iter().find(|function| function.1 == offset).map(|function| function.0)
    };
    let hit: Vec<_> = hit.into_iter().map(|count| (name(count.id), count.hits)).collect();
    assert!(hit.is_empty(), "{hit:?}");
    target.call(77);
    assert!(client.counts().iter().any(|count| count.hits == 77));
    client.leave().expect("it leaves");
    target.end();
}

/// Checks that a process of two thousand threads is held and let go, with what is written exact,
/// and says how long it stood still.
#[test]
fn two_thousand_threads() {
    let Some(mut target) = Target::start("held::two_thousand_threads", "many") else { return };
    let client = target.enter();
    let batch = target.wanted("libc.so", 0, |name| name == "getppid" || name == "pause");
    let mut stopped = Vec::new();
    for round in 0..5 {
        let batch = renumbered(&batch, round);
        let outcome = arm(&client, &batch);
        assert_eq!((&outcome.refused[..], outcome.armed as usize), (&[][..], batch.1.len()));
        stopped.push(outcome.stopped_ns / 1000);
        disarm(&client, &batch);
    }
    eprintln!("2,000 threads stood still for {stopped:?} us");
    client.leave().expect("it leaves");
    assert!(target.is_files_own("libc.so"));
    target.end();
}

/// Checks that a thread which is in a signal's handler, having been interrupted between the
/// instructions that a jump replaces, comes back to where they are now, also when the handler has a
/// stack of its own.
#[test]
fn below_a_handler() {
    for how in ["handler", "alternate"] {
        let Some(mut target) = Target::start("held::below_a_handler", how) else { return };
        let client = target.enter();
        let outcome = arm(&client, &target.wanted("/held", 0, |name| name == "faults"));
        assert_eq!((&outcome.refused[..], outcome.armed), (&[][..], 1), "{how}");
        target.talk.tell("x");
        assert_eq!(target.talk.line(), "ok\n", "{how}");
    }
}

/// Checks that a thread which stands between the instructions that a jump replaces, as it nearly
/// always does, goes on as if nothing were.
#[test]
fn inside_of_a_site() {
    let Some(mut target) = Target::start("held::inside_of_a_site", "inside") else { return };
    let client = target.enter();
    let batch = target.wanted("/held", 0, |name| name == "fills");
    for round in 0..200 {
        let batch = renumbered(&batch, round);
        assert_eq!(arm(&client, &batch).refused, []);
        disarm(&client, &batch);
    }
    client.leave().expect("it leaves");
    assert!(target.is_files_own("/held"));
    target.end();
}

/// Checks what happens when the tracer ends without a word: probes of the program are taken away
/// while it runs, those of the C library stay, count for nobody and do no harm, and the next tracer
/// takes them away and says how many there were.
#[test]
fn left_for_the_next_one() {
    let Some(mut target) = Target::start("held::left_for_the_next_one", "calls") else { return };
    let client = target.enter();
    arm(&client, &target.wanted("/held", 0, |name| name == "fills"));
    let outcome = arm(&client, &target.wanted("libc.so", 1, |_| true));
    drop(client);
    let until = Instant::now() + Duration::from_secs(20);
    while !target.is_files_own("/held") {
        assert!(Instant::now() < until, "the program's own code is not restored");
        std::thread::sleep(Duration::from_millis(1));
    }
    (0..3).for_each(|_| target.call(1000));
    assert!(!target.is_files_own("libc.so"));
    let next = loop {
        match enter(target.pid(), &target.library) {
            Ok(next) => break next,
            // The agent's thread has not quite ended.
            Err(refusal) => assert!(refusal.to_string().contains("another kymo"), "{refusal}"),
        }
        assert!(Instant::now() < until, "the conversation does not end");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(next.cleaned_up(), outcome.armed - 1);
    assert!(target.is_files_own("libc.so"), "bytes of the library are not the file's");
    next.leave().expect("it leaves");
    target.end();
}

/// Checks that where somebody traces one of the threads, the program's own functions are served
/// while it runs, those of the C library are refused, and why is said.
#[test]
fn one_is_traced() {
    let Some(mut target) = Target::start("held::one_is_traced", "inside") else { return };
    let client = target.enter();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", target.pid())).expect("tasks");
    let other = tasks
        .filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
        .find(|task| *task != target.pid())
        .expect("a thread");
    let traced = kymo_perf::sys::ptrace::Traced::seize(other).expect("it is free");
    client
        .add(
            target.path.as_os_str().as_encoded_bytes(),
            &target.wanted("/held", 7, |name| name == "faults").1,
        )
        .expect("it listens");
    let (path, wanted) = target.wanted("libc.so", 8, |name| name == "getppid");
    client.add(path.as_os_str().as_encoded_bytes(), &wanted).expect("it listens");
    let outcome = client.commit().expect("it answers");
    let why = outcome.not_held.expect("a reason");
    assert!(why.contains(&format!("traces its thread {other}")), "{why}");
    assert_eq!((outcome.armed, outcome.stopped_ns), (1, 0));
    assert_eq!(outcome.refused.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [8]);
    assert!(outcome.refused[0].1.contains(&why), "{}", outcome.refused[0].1);
    drop(traced);
    client.leave().expect("it leaves");
    assert!(target.is_files_own("/held"));
    target.end();
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn kymo_held_first(value: u64) -> u64 {
    std::hint::black_box(value).wrapping_mul(std::hint::black_box(3))
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn kymo_held_second(value: u64) -> u64 {
    std::hint::black_box(value).wrapping_mul(std::hint::black_box(5))
}

/// Holds nobody (no other thread calls these functions), and ends when asked so often.
#[derive(Debug)]
struct Ends(Cell<u32>);

impl Hold for Ends {
    fn hold(&mut self, request: &Request<'_>) -> Result<(), String> {
        assert!(request.sites.is_sorted() && request.moves.is_sorted());
        Ok(())
    }

    fn holds(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }

    fn release(&mut self) {}
}

fn site(function: extern "C" fn(u64) -> u64) -> Site {
    let start = function as *const () as u64;
    let function = Function { start, bytes: 16, next: start + 16 };
    patch::plan(&OwnMemory::open().expect("/proc"), &function, &Default::default()).expect("it can be probed")
}

/// Checks that when the one who holds the threads ends in the middle, each site is either written
/// or as it was, and what is told about it is so; and that a restoration that was broken off is
/// made up for by the next one.
#[test]
fn ends_in_the_middle() {
    let (first, second) = (site(kymo_held_first), site(kymo_held_second));
    // Far apart, so that they are not written together: a site on the heap.
    let none = patch::attach_each(
        std::slice::from_ref(&first),
        Consumers::Count,
        &mut Holder::Tracer(&mut Ends(Cell::new(0))),
    );
    let none = none.expect("nothing stands against all");
    assert!(matches!(none[..], [Err(PatchError::NotHeld { .. })]), "{none:?}");
    assert_eq!(kymo_held_first(2), 6);
    let mut both = Ends(Cell::new(9));
    let probes =
        patch::attach_each(&[first, second], Consumers::Count, &mut Holder::Tracer(&mut both)).expect("both");
    let probes: Vec<_> = probes.into_iter().collect::<Result<_, _>>().expect("both");
    assert_eq!((kymo_held_first(2), kymo_held_second(2)), (6, 10));
    assert_eq!(probes.iter().map(|probe| probe.hits()).collect::<Vec<_>>(), [1, 1]);
    let broken_off = patch::detach_with(&probes, &mut Holder::Tracer(&mut Ends(Cell::new(0))));
    assert!(matches!(broken_off, Err(PatchError::NotHeld { .. })), "{broken_off:?}");
    kymo_held_first(2);
    assert_eq!(probes[0].hits(), 2);
    patch::abandon(probes);
    assert_eq!(patch::clean(&mut Holder::Tracer(&mut Ends(Cell::new(0)))), 0);
    assert_eq!(patch::clean(&mut Holder::Tracer(&mut Ends(Cell::new(9)))), 2);
    let again = patch::attach_each(
        &[site(kymo_held_first)],
        Consumers::Count,
        &mut Holder::Tracer(&mut Ends(Cell::new(9))),
    );
    let again: Vec<_> = again.expect("one").into_iter().collect::<Result<_, _>>().expect("one");
    kymo_held_first(2);
    assert_eq!(again[0].hits(), 1);
    patch::detach_with(&again, &mut Holder::Tracer(&mut Ends(Cell::new(9)))).expect("it goes");
    assert_eq!(kymo_held_first(2), 6);
}
