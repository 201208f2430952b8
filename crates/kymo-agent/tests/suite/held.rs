//! Sites that are written while all threads are held: `tests/c/held.c`, from outside.
use super::inject::agent;
use kymo_agent::patch::{self, Consumers, Function, Hold, Holder, OwnMemory, PatchError, Request, Site};
use kymo_core::probe::wire::{ProbeKind, ProbeSpec};
use kymo_perf::inject::{self, Client, Library};
use object::{Object, ObjectSegment, ObjectSymbol};
use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Functions of a file: name, offset, bytes, bytes until the next one.
fn functions(path: &Path) -> Vec<(String, u64, u32, u32)> {
    let bytes = std::fs::read(path).expect("the file");
    let elf = object::File::parse(&*bytes).expect("an ELF file");
    let is_function = |symbol: &object::Symbol<'_, '_>| {
        symbol.kind() == object::SymbolKind::Text && symbol.is_definition() && symbol.size() > 0
    };
    let mut found: Vec<(u64, u64, String)> = elf
        .symbols()
        .chain(elf.dynamic_symbols())
        .filter(is_function)
        .map(|symbol| (symbol.address(), symbol.size(), symbol.name().unwrap_or("").to_owned()))
        .collect();
    found.sort_by_key(|function| function.0);
    found.dedup_by_key(|function| function.0);
    let offset = |address: u64| {
        let part =
            elf.segments().find(|part| (part.address()..part.address() + part.size()).contains(&address))?;
        Some(address - part.address() + part.file_range().0)
    };
    (found.iter().enumerate())
        .filter_map(|(at, (address, size, name))| {
            let next = found.get(at + 1).map_or(address + size, |next| next.0);
            let room = (next - address).min(size + 16) as u32;
            Some((name.clone(), offset(*address)?, *size as u32, room))
        })
        .collect()
}

struct Target {
    _scratch: tempfile::TempDir,
    path: PathBuf,
    library: Library,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Target {
    /// `None`, loudly, without a compiler.
    fn start(test: &str, how: &str) -> Option<Target> {
        let Some(library) = agent() else {
            kymo_testing::skip(test, "the shared library was not built with this test");
            return None;
        };
        let scratch = tempfile::tempdir().expect("a folder");
        let path = scratch.path().canonicalize().expect("a path").join("held");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/held.c");
        let compiled = Command::new("gcc").args(["-O1", "-pthread", "-o"]).args([&path, &source]).output();
        match compiled {
            Ok(compiled) => {
                assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
            }
            Err(error) => {
                kymo_testing::skip(test, format!("no gcc here: {error}"));
                return None;
            }
        }
        let mut child = Command::new(&path)
            .arg(how)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let output = BufReader::new(output);
        let mut target = Target { _scratch: scratch, path, library, child, input, output };
        assert_eq!(target.line(), "here\n");
        Some(target)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it says something");
        line
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn enter(&self) -> Client {
        inject::enter(self.pid(), &self.library).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    fn end(&mut self) {
        self.input.write_all(b"x\n").expect("it reads");
        assert_eq!(self.line(), "ok\n");
        assert!(self.child.wait().expect("it ends").success());
    }

    /// The first line of its mappings that names a file with this in its name, executable.
    fn code(&self, name: &str) -> (u64, u64, u64, PathBuf) {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("maps");
        let line = maps.lines().find(|line| line.contains("r-xp") && line.contains(name));
        let line = line.unwrap_or_else(|| {
            let end = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
            panic!("{name} is not mapped; exit code {:?}: {maps:?}", end.split(' ').next_back())
        });
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("hex");
        let (start, end) = line.split(' ').next().expect("a range").split_once('-').expect("a range");
        let offset = hex(line.split_whitespace().nth(2).expect("an offset"));
        (hex(start), hex(end), offset, PathBuf::from(&line[line.find('/').expect("a path")..]))
    }

    /// Whether the code of a mapped file is the file's, byte for byte.
    fn is_files_own(&self, name: &str) -> bool {
        let (start, end, offset, path) = self.code(name);
        let file = std::fs::read(&path).expect("the file");
        let mut text = vec![0; (end - start) as usize];
        let memory = File::open(format!("/proc/{}/mem", self.pid())).expect("memory");
        memory.read_exact_at(&mut text, start).expect("text");
        let file = &file[offset as usize..file.len().min(offset as usize + text.len())];
        text[..file.len()] == *file
    }

    /// Wanted probes of functions of a mapped file, numbered from `first` on.
    fn wanted(&self, name: &str, first: u32, which: impl Fn(&str) -> bool) -> (PathBuf, Vec<ProbeSpec>) {
        let (.., path) = self.code(name);
        let mut all = functions(&path);
        all.retain(|(name, ..)| which(name));
        let wanted = all.iter().zip(first..).map(|((_, offset, size_bytes, room_bytes), id)| {
            let (offset, size_bytes, room_bytes) = (*offset, *size_bytes, *room_bytes);
            ProbeSpec {
                id,
                offset,
                size_bytes,
                room_bytes,
                inside_bytes: 0,
                semaphore: 0,
                kind: ProbeKind::Count,
                action_id: 0,
            }
        });
        (path, wanted.collect())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn arm(client: &Client, (path, wanted): &(PathBuf, Vec<ProbeSpec>)) -> inject::Outcome {
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

/// Puts all functions of the C library under probes and takes them away, again and again, and
/// checks the code afterwards.
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
        writeln!(target.input, "{calls}").expect("it reads");
        assert_eq!(target.line(), "called\n");
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
    writeln!(target.input, "77").expect("it reads");
    assert_eq!(target.line(), "called\n");
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
        target.input.write_all(b"x").expect("it reads");
        assert_eq!(target.line(), "ok\n", "{how}");
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
    for _ in 0..3 {
        writeln!(target.input, "1000").expect("it reads");
        assert_eq!(target.line(), "called\n");
    }
    assert!(!target.is_files_own("libc.so"));
    let next = loop {
        match inject::enter(target.pid(), &target.library) {
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

/// Somebody who holds nobody (no other thread calls these functions), and ends when it was asked so
/// often.
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
    let again = patch::attach_each(&[site(kymo_held_first)], Consumers::Count, &mut Holder::Alone);
    let again: Vec<_> = again.expect("one").into_iter().collect::<Result<_, _>>().expect("one");
    kymo_held_first(2);
    assert_eq!(again[0].hits(), 1);
    patch::detach_with(&again, &mut Holder::Alone).expect("it goes");
    assert_eq!(kymo_held_first(2), 6);
}
