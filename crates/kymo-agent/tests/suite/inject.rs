//! The library in other programs: put in from outside or preloaded, commanded, left, abandoned.
use super::compiled::{built, compile};
use kymo_core::probe::wire::{ProbeKind, ProbeSpec, ProbeState};
use kymo_perf::inject::{self, Arrival, Client, EnterError, Library, Preload};
use object::{Object, ObjectSegment, ObjectSymbol};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The library that cargo built, to be put into programs; `None`, loudly, without it.
pub(crate) fn agent(test: &str) -> Option<Library> {
    let library = built("libkymo_agent.so").and_then(|file| Library::read(&file).ok());
    if library.is_none() {
        kymo_testing::skip(test, "the shared library was not built with this test");
    }
    library
}

/// A probe that counts, at the begin of a function.
fn spec(id: u32, offset: u64, size_bytes: u32, room_bytes: u32) -> ProbeSpec {
    let (inside_bytes, semaphore, kind, action_id) = (0, 0, ProbeKind::Count, 0);
    ProbeSpec { id, offset, size_bytes, room_bytes, inside_bytes, semaphore, kind, action_id }
}

/// Where an address of a file is in it.
fn offset(elf: &object::File<'_>, address: u64) -> Option<u64> {
    let holds =
        |part: &object::Segment<'_, '_>| (part.address()..part.address() + part.size()).contains(&address);
    elf.segments().find(holds).map(|part| address - part.address() + part.file_range().0)
}

/// Functions of a file: name, offset, bytes, bytes until the next one.
pub(crate) fn functions(path: &Path) -> Vec<(String, u64, u32, u32)> {
    let bytes = std::fs::read(path).expect("the file");
    let elf = object::File::parse(&*bytes).expect("an ELF file");
    let is_function = |symbol: &object::Symbol<'_, '_>| {
        symbol.kind() == object::SymbolKind::Text && symbol.is_definition() && symbol.size() > 0
    };
    let symbols = elf.symbols().chain(elf.dynamic_symbols()).filter(is_function);
    let mut found: Vec<(u64, u64, String)> = symbols
        .map(|symbol| (symbol.address(), symbol.size(), symbol.name().unwrap_or("").to_owned()))
        .collect();
    found.sort_by_key(|function| function.0);
    found.dedup_by_key(|function| function.0);
    let all = found.iter().enumerate().filter_map(|(at, (address, size, name))| {
        let next = found.get(at + 1).map_or(address + size, |next| next.0);
        let room = (next - address).min(size + 16) as u32;
        Some((name.clone(), offset(&elf, *address)?, *size as u32, room))
    });
    all.collect()
}

/// The first mapping of a process that is code of a file with this in its name: its begin and end,
/// where it is in the file, and the file.
fn code(pid: i32, name: &str) -> (u64, u64, u64, PathBuf) {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let line = maps.lines().find(|line| line.contains("r-xp") && line.contains(name));
    let line = line.unwrap_or_else(|| {
        let end = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        panic!("{name} is not mapped; exit code {:?}: {maps:?}", end.split(' ').next_back())
    });
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("hex");
    let (start, end) = line.split(' ').next().expect("a range").split_once('-').expect("a range");
    let offset = hex(line.split_whitespace().nth(2).expect("an offset"));
    (hex(start), hex(end), offset, PathBuf::from(&line[line.find('/').expect("a path")..]))
}

fn memory(pid: i32, at: u64, bytes: usize) -> Vec<u8> {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("memory");
    let mut into = vec![0; bytes];
    memory.read_exact_at(&mut into, at).expect("memory");
    into
}

/// Whether the code of a mapped file is the file's, byte for byte.
pub(crate) fn is_files_own(pid: i32, name: &str) -> bool {
    let (start, end, offset, path) = code(pid, name);
    let file = std::fs::read(&path).expect("the file");
    let text = memory(pid, start, (end - start) as usize);
    let file = &file[offset as usize..file.len().min(offset as usize + text.len())];
    text[..file.len()] == *file
}

/// Wanted probes of functions of a mapped file, numbered from `first` on.
pub(crate) fn wanted(
    pid: i32,
    name: &str,
    first: u32,
    which: impl Fn(&str) -> bool,
) -> (PathBuf, Vec<ProbeSpec>) {
    let (.., path) = code(pid, name);
    let all = functions(&path).into_iter().filter(|(name, ..)| which(name));
    let wanted =
        all.zip(first..).map(|((_, offset, bytes, room), id)| spec(id, offset, bytes, room)).collect();
    (path, wanted)
}

/// A program that is told and tells lines. It ends with this.
pub(crate) struct Talker {
    pub(crate) child: Child,
    /// `None`: its end was told.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talker {
    pub(crate) fn start(command: &mut Command) -> Talker {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.expect("the program starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        Talker { child, input, output: BufReader::new(output) }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub(crate) fn tell(&mut self, text: &str) {
        self.input.as_mut().expect("it is open").write_all(text.as_bytes()).expect("it reads");
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it says something");
        line
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// `tests/c/target.c`, compiled.
pub(crate) struct Program {
    _scratch: tempfile::TempDir,
    path: PathBuf,
    library: Library,
    /// Of `work`: offset in the file, bytes.
    work: (u64, u32),
    pub(crate) original: Vec<u8>,
    /// Of `listeners`: the address as linked, the offset in the file.
    listeners: (u64, u64),
}

impl Program {
    /// `None`, loudly, without a compiler.
    pub(crate) fn of(test: &str, options: &[&str]) -> Option<Program> {
        let library = agent(test)?;
        let (scratch, path) = compile(test, "target.c", &[&["-pthread"], options].concat())?;
        let bytes = std::fs::read(&path).expect("the program");
        let elf = object::File::parse(&*bytes).expect("an ELF file");
        let work = elf.symbols().find(|symbol| symbol.name() == Ok("work")).expect("a function");
        let start = offset(&elf, work.address()).expect("it is loaded");
        let size = work.size() as u32;
        let original = bytes[start as usize..][..size as usize].to_vec();
        let listeners =
            elf.symbols().find(|symbol| symbol.name() == Ok("listeners")).expect("data").address();
        let listeners = (listeners, offset(&elf, listeners).expect("it is loaded"));
        Some(Program { _scratch: scratch, path, library, work: (start, size), original, listeners })
    }

    pub(crate) fn start(&self, how: &[&str]) -> Running<'_> {
        self.run(Command::new(&self.path).args(how))
    }

    fn run(&self, command: &mut Command) -> Running<'_> {
        let mut running = Running { program: self, talk: Talker::start(command) };
        // It answers when its main function runs.
        running.call(0);
        running
    }

    fn wanted(&self, id: u32) -> ProbeSpec {
        let (offset, bytes) = self.work;
        spec(id, offset, bytes, bytes)
    }
}

pub(crate) struct Running<'p> {
    program: &'p Program,
    talk: Talker,
}

impl Running<'_> {
    pub(crate) fn pid(&self) -> i32 {
        self.talk.pid()
    }

    /// Has `work` called so many times; what the program makes of it.
    pub(crate) fn call(&mut self, times: i32) -> String {
        self.talk.tell(&format!("{times}\n"));
        let line = self.talk.line();
        assert!(line.ends_with('\n'), "the program ended: {:?}", self.talk.child.wait());
        line
    }

    pub(crate) fn enter(&self) -> Client {
        inject::enter(self.pid(), &self.program.library).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    pub(crate) fn arm(&self, client: &Client, id: u32) {
        let path = self.program.path.as_os_str().as_encoded_bytes();
        client.add(path, &[self.program.wanted(id)]).expect("it listens");
        let outcome = client.commit().expect("it answers");
        assert_eq!((&outcome.refused[..], outcome.armed), (&[][..], 1));
    }

    /// The bytes of `work` in its memory.
    pub(crate) fn text(&self) -> Vec<u8> {
        self.memory(self.program.work.0, self.program.work.1 as usize)
    }

    /// How many say that they listen.
    fn listeners(&self) -> u16 {
        let bytes = self.memory(self.program.listeners.0, 2);
        u16::from_le_bytes([bytes[0], bytes[1]])
    }

    fn memory(&self, at: u64, count: usize) -> Vec<u8> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).expect("maps");
        let path = self.program.path.to_str().expect("a path");
        let line = maps.lines().find(|line| line.ends_with(path)).expect("mapped");
        let base = u64::from_str_radix(line.split('-').next().expect("an address"), 16).expect("hex");
        memory(self.pid(), base + at, count)
    }

    pub(crate) fn threads_of_ours(&self) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("tasks");
        let named = |entry: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(entry.ok()?.path().join("comm")).ok()
        };
        tasks.filter_map(named).filter(|name| name.trim() == "kymo-agent").count()
    }
}

/// Waits for what happens soon, and fails if it does not.
pub(crate) fn soon(what: &str, mut happened: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !happened() {
        assert!(Instant::now() < until, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that the agent gets into a running program, counts exactly what is called, on old and new threads, changes no result, and leaves
/// nothing behind: neither a byte of text nor a thread. And that it gets in again.
#[test]
fn in_and_out() {
    let Some(program) = Program::of("inject::in_and_out", &[]) else { return };
    let mut running = program.start(&[]);
    let plain = [running.call(1000), running.call(1001)];
    for _ in 0..2 {
        let client = running.enter();
        running.arm(&client, 7);
        assert_ne!(running.text(), program.original);
        assert_eq!([running.call(1000), running.call(1001)], plain);
        let counts = client.counts();
        assert_eq!(counts.iter().map(|count| (count.id, count.hits)).collect::<Vec<_>>(), [(7, 2001)]);
        client.remove(&[7]).expect("it listens");
        assert_eq!(client.commit().expect("it answers").armed, 0);
        assert_eq!(running.text(), program.original);
        running.arm(&client, 8);
        client.leave().expect("it leaves");
        assert_eq!(running.text(), program.original);
        soon("the end of the agent's thread", || running.threads_of_ours() == 0);
        assert_eq!([running.call(1000), running.call(1001)], plain);
    }
}

/// Checks that when the tracer's end closes, as it does when it is killed, the text is restored without it, and a next tracer can come.
#[test]
fn abandoned() {
    let Some(program) = Program::of("inject::abandoned", &[]) else { return };
    let mut running = program.start(&[]);
    let client = running.enter();
    running.arm(&client, 1);
    drop(client);
    soon("the text's return", || running.text() == program.original);
    running.call(10);
    soon("the end of the agent's thread", || running.threads_of_ours() == 0);
    let client = running.enter();
    assert_eq!(client.cleaned_up(), 0);
    running.arm(&client, 1);
    running.call(10);
    assert_eq!(client.counts()[0].hits, 10);
}

/// Checks that everything is known that was counted until a program's last moment, also when it was killed.
#[test]
fn nothing_is_lost_at_the_end() {
    let Some(program) = Program::of("inject::nothing_is_lost_at_the_end", &[]) else { return };
    for killed in [false, true] {
        let mut running = program.start(&[]);
        let client = running.enter();
        running.arm(&client, 1);
        running.call(12_345);
        running.talk.tell("6\n");
        if killed {
            // It has called them when it says so.
            running.talk.line();
            running.talk.child.kill().expect("it is there");
        } else {
            running.talk.input = None;
            assert!(running.talk.child.wait().expect("its end").success());
        }
        running.talk.child.wait().expect("its end");
        assert_eq!(client.counts()[0].hits, 12_351, "killed: {killed}");
        client.leave().expect("that it is gone is no error");
    }
}

/// Checks that a forked child counts for its parent if that was asked for and not otherwise, one after the other in the same process.
#[test]
fn forked_children() {
    let Some(program) = Program::of("inject::forked_children", &[]) else { return };
    let mut running = program.start(&[]);
    for with_children in [false, true, false] {
        let client = match with_children {
            true => inject::enter_with_children(running.pid(), &program.library),
            false => inject::enter(running.pid(), &program.library),
        };
        let client = client.unwrap_or_else(|refusal| panic!("{refusal}"));
        running.arm(&client, 1);
        running.call(100);
        running.call(-1000);
        running.call(-1000);
        running.call(10);
        let expected = if with_children { 2110 } else { 110 };
        assert_eq!(client.counts()[0].hits, expected, "with children: {with_children}");
        client.leave().expect("it leaves");
        assert_eq!(running.text(), program.original);
        soon("the end of the agent's thread", || running.threads_of_ours() == 0);
    }
}

/// Checks that a probe's semaphore is raised while it is armed, not for one that is refused, and back at its value afterwards, whether the tracer
/// leaves or is gone.
#[test]
fn semaphores() {
    let Some(program) = Program::of("inject::semaphores", &[]) else { return };
    let mut running = program.start(&[]);
    let path = program.path.as_os_str().as_encoded_bytes();
    assert_eq!(running.listeners(), 40);
    for leaves in [true, false] {
        let client = running.enter();
        let semaphore = program.listeners.1;
        let right = ProbeSpec { semaphore, ..program.wanted(1) };
        // Inside of the first instruction, and one whose semaphore is in the code.
        let wrong = ProbeSpec { semaphore, inside_bytes: 1, ..program.wanted(2) };
        let nowhere = ProbeSpec { semaphore: program.work.0, inside_bytes: 0, ..program.wanted(3) };
        client.add(path, &[right, wrong, nowhere]).expect("it listens");
        let outcome = client.commit().expect("it answers");
        let refused: Vec<u32> = outcome.refused.iter().map(|(id, _)| *id).collect();
        assert_eq!((outcome.armed, &refused[..]), (1, &[2, 3][..]), "{outcome:?}");
        assert_eq!(running.listeners(), 41);
        running.call(7);
        assert_eq!(client.counts()[0].hits, 7);
        if leaves {
            client.leave().expect("it leaves");
        } else {
            drop(client);
        }
        soon("the end of the agent's thread", || running.threads_of_ours() == 0);
        assert_eq!(running.listeners(), 40);
    }
}

/// Checks that two tracers do not share an agent, and that the first one's probes go on.
#[test]
fn two_tracers() {
    let Some(program) = Program::of("inject::two_tracers", &[]) else { return };
    let mut running = program.start(&[]);
    let first = running.enter();
    running.arm(&first, 1);
    let second = inject::enter(running.pid(), &program.library).unwrap_err();
    assert!(second.to_string().contains("another kymo"), "{second}");
    running.call(5);
    assert_eq!(first.counts()[0].hits, 5);
}

/// Checks that what cannot be armed is told with its reason, and listed so.
#[test]
fn refusals() {
    let Some(program) = Program::of("inject::refusals", &[]) else { return };
    let running = program.start(&[]);
    let client = running.enter();
    let path = program.path.as_os_str().as_encoded_bytes();
    let empty = ProbeSpec { size_bytes: 0, ..program.wanted(2) };
    client.add(path, &[program.wanted(1), empty, program.wanted(3)]).expect("it listens");
    client.add(b"/no/such/file", &[program.wanted(4)]).expect("it listens");
    let outcome = client.commit().expect("it answers");
    assert_eq!(outcome.armed, 1, "{outcome:?}");
    let refused: Vec<u32> = outcome.refused.iter().map(|(id, _)| *id).collect();
    assert_eq!(refused, [2, 3], "{outcome:?}");
    let states: Vec<_> = client.list().expect("it answers").into_iter().map(|listed| listed.state).collect();
    assert!(matches!(
        &states[..],
        [ProbeState::Armed, ProbeState::Refused(_), ProbeState::Refused(_), ProbeState::Waiting]
    ));
}

/// Checks that a program which allocates all the time is entered and left many times, and goes on.
#[test]
fn beside_the_allocator() {
    let Some(program) = Program::of("inject::beside_the_allocator", &[]) else { return };
    let mut running = program.start(&["allocate"]);
    let plain = running.call(10);
    for _ in 0..10 {
        let client = running.enter();
        running.arm(&client, 1);
        assert_eq!(running.call(10).len(), plain.len());
        client.leave().expect("it leaves");
        soon("the end of the agent's thread", || running.threads_of_ours() == 0);
    }
}

/// Checks that a program without a dynamic linker is refused, and one that somebody traces is, with the tracer's number.
#[test]
fn not_entered() {
    const NAME: &str = "inject::not_entered";
    if let Some(program) = Program::of(NAME, &["-static"]) {
        let mut running = program.start(&[]);
        let refusal = inject::enter(running.pid(), &program.library).unwrap_err();
        assert!(matches!(refusal, EnterError::Static), "{refusal}");
        running.call(1);
    }
    let Some(program) = Program::of(NAME, &[]) else { return };
    let mut running = program.start(&[]);
    let traced = kymo_perf::sys::ptrace::Traced::seize(running.pid()).expect("a child may be traced");
    let refusal = inject::enter(running.pid(), &program.library).unwrap_err();
    assert!(matches!(refusal, EnterError::Traced(by) if by > 0), "{refusal}");
    drop(traced);
    running.call(1);
    assert!(matches!(
        inject::enter(2, &program.library).unwrap_err(),
        EnterError::KernelThread | EnterError::Gone
    ));
}

/// The next program that comes up.
fn arrival(preload: &Preload) -> Arrival {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(arrival) = preload.accept() {
            return arrival;
        }
        assert!(Instant::now() < until, "nobody comes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that a command which is started with the library in it is armed before it begins, and so is what it executes: a shell, which executes the
/// program; and that one that is let in by nobody runs, whether the door is closed or gone.
#[test]
fn preloaded() {
    let Some(program) = Program::of("inject::preloaded", &[]) else { return };
    let preload = Preload::new(&program.library).expect("a socket");
    let path = program.path.display().to_string();
    let [(_, library), _] = preload.environment();
    let library = library.into_string().expect("text");
    let script = format!("/bin/echo \"$LD_PRELOAD\" >&2; exec {path}");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &script]).envs(preload.environment()).stderr(Stdio::piped());
    let clients = std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let let_in = |_| {
                let arrival = arrival(&preload);
                let pid = arrival.pid();
                let client = arrival.enter(false).unwrap_or_else(|refusal| panic!("{refusal}"));
                client.add(path.as_bytes(), &[program.wanted(1)]).expect("it listens");
                let armed = client.commit().expect("it answers").armed;
                client.go().expect("it listens");
                (pid, armed, client)
            };
            // The shell, echo, the program.
            [0, 1, 2].map(let_in)
        });
        let mut running = program.run(&mut shell);
        running.call(321);
        let mut said = String::new();
        let clients = clients.join().expect("they come");
        assert_eq!(clients[2].0, running.pid());
        assert_ne!(running.text(), program.original);
        running.talk.input = None;
        let mut errors = running.talk.child.stderr.take().expect("piped");
        errors.read_to_string(&mut said).expect("text");
        assert!(said.starts_with(&library), "{said}");
        clients
    });
    let [shell, echo, own] =
        clients.map(|(_, armed, client)| (armed, client.counts().first().map(|count| count.hits)));
    assert_eq!([shell, echo], [(0, None); 2]);
    assert_eq!(own, (1, Some(321)));
    let environment = preload.environment();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(arrival(&preload)));
        program.run(Command::new(&program.path).envs(environment.clone())).call(1);
    });
    drop(preload);
    program.run(Command::new(&program.path).envs(environment)).call(1);
}

/// Checks that who knocks without the password is not let in, and keeps nobody else out.
#[test]
fn strangers_at_the_door() {
    let Some(program) = Program::of("inject::strangers_at_the_door", &[]) else { return };
    let preload = Preload::new(&program.library).expect("a socket");
    let [_, (name, place)] = preload.environment();
    let place = place.into_string().expect("text");
    let (door, _) = place.split_once('.').expect("a name and a password");
    let wrong = format!("{door}.0000");
    let environment = [preload.environment()[0].clone(), (name, wrong.into())];
    std::thread::scope(|scope| {
        let stranger = scope.spawn(|| program.run(Command::new(&program.path).envs(environment)).call(1));
        while !stranger.is_finished() {
            assert!(preload.accept().is_none());
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    std::thread::scope(|scope| {
        scope.spawn(|| arrival(&preload).enter(false).expect("an agent").go().expect("it listens"));
        program.run(Command::new(&program.path).envs(preload.environment())).call(1);
    });
}

/// `tests/c/waiter.c`, compiled.
fn waiter(test: &str) -> Option<(TempDir, PathBuf, Library)> {
    let library = agent(test)?;
    let (scratch, program) = compile(test, "waiter.c", &["-O2", "-pthread"])?;
    Some((scratch, program, library))
}

/// One that waits in one way or another.
fn waiting(program: &Path, how: &str) -> Talker {
    let mut waiter = Talker::start(Command::new(program).arg(how));
    assert_eq!(waiter.line(), "here\n");
    waiter
}

/// Checks that a thread which is borrowed in a system call goes on waiting in it, also in one that the kernel does not repeat after a
/// stop (epoll_wait), and that one which computes finds all its registers as they were. Several times each.
#[test]
fn nobody_was_here() {
    let Some((_scratch, program, library)) = waiter("inject::nobody_was_here") else { return };
    for how in ["read", "poll", "epoll", "sleep", "condition", "compute"] {
        let mut waiter = waiting(&program, how);
        for _ in 0..4 {
            let client =
                inject::enter(waiter.pid(), &library).unwrap_or_else(|refusal| panic!("{how}: {refusal}"));
            client.leave().expect("it leaves");
            let tasks = || std::fs::read_dir(format!("/proc/{}/task", waiter.pid())).expect("tasks").count();
            let own = if how == "condition" { 2 } else { 1 };
            soon("the end of the agent's thread", || tasks() == own);
        }
        waiter.tell("x");
        assert_eq!(waiter.line(), "ok \n", "{how}");
    }
}

/// Checks that a program which restricts its own system calls is refused, and not killed.
#[test]
fn under_seccomp() {
    let Some((_scratch, program, library)) = waiter("inject::under_seccomp") else { return };
    let mut waiter = waiting(&program, "seccomp");
    assert_eq!(waiter.line(), "here\n");
    let refusal = inject::enter(waiter.pid(), &library).unwrap_err();
    assert!(matches!(refusal, EnterError::Seccomp(2)), "{refusal}");
    waiter.tell("x");
    assert_eq!(waiter.line(), "ok \n");
}

/// Checks that a program with a root, a process table and a network of its own, as in a container, is entered as any other.
#[test]
fn in_a_container() {
    const NAME: &str = "inject::in_a_container";
    let Some((scratch, program, library)) = waiter(NAME) else { return };
    let root = scratch.path().join("root");
    for needed in [program.clone(), built("libkymo_agent.so").expect("as above")] {
        let listed = Command::new("ldd").arg(needed).output();
        let Ok(listed) = listed else { return kymo_testing::skip(NAME, "no ldd here") };
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for file in listed.split_whitespace().filter(|word| word.starts_with('/')) {
            let copy = root.join(&file[1..]);
            std::fs::create_dir_all(copy.parent().expect("a folder")).expect("a folder");
            std::fs::copy(file, copy).expect("a copy");
        }
    }
    std::fs::create_dir_all(root.join("proc")).expect("a folder");
    std::fs::copy(&program, root.join("waiter")).expect("a copy");
    let mut container = Command::new("unshare");
    let proc = format!("--mount-proc={}", root.join("proc").display());
    container
        .args(["--mount", "--pid", "--net", "--fork", &proc, "--kill-child", "chroot"])
        .arg(&root)
        .arg("/waiter")
        .arg("read");
    if Command::new("unshare").arg("--version").output().is_err() {
        return kymo_testing::skip(NAME, "no unshare here");
    }
    let mut talk = Talker::start(container.stderr(Stdio::piped()));
    if talk.line() != "here\n" {
        let (mut said, errors) = (String::new(), talk.child.stderr.as_mut());
        _ = errors.expect("piped").read_to_string(&mut said);
        return kymo_testing::skip(NAME, format!("no namespaces here: {}", said.trim()));
    }
    let children = format!("/proc/{0}/task/{0}/children", talk.pid());
    let inside = std::fs::read_to_string(children).expect("children");
    let pid: i32 = inside.trim().parse().expect("one child");
    let entered = inject::enter(pid, &library);
    let left = entered.map(Client::leave);
    talk.tell("x");
    let line = talk.line();
    _ = talk.child.wait();
    left.unwrap_or_else(|refusal| panic!("{refusal}")).expect("it leaves");
    assert_eq!(line, "ok \n");
}

/// Checks that all functions of the C library are probed in a running program at once, that it works on with the same results, and that
/// afterwards every byte of the library's code is the file's.
#[test]
fn all_of_libc() {
    let Some(program) = Program::of("inject::all_of_libc", &[]) else { return };
    let mut running = program.start(&["allocate"]);
    let plain = running.call(100);
    let (path, wanted) = wanted(running.pid(), "libc.so", 0, |_| true);
    let client = running.enter();
    client.add(path.as_os_str().as_encoded_bytes(), &wanted).expect("it listens");
    let since = Instant::now();
    let outcome = client.commit().expect("it answers");
    let took = since.elapsed();
    let share = f64::from(outcome.armed) / wanted.len() as f64;
    eprintln!(
        "{} of {} functions of {} armed ({:.1} %) in {took:?}, of which {} us in the patcher",
        outcome.armed,
        wanted.len(),
        path.display(),
        share * 100.0,
        outcome.stopped_ns / 1000
    );
    assert!(share > 0.8, "{:?}", &outcome.refused[..outcome.refused.len().min(20)]);
    for _ in 0..4 {
        assert_eq!(running.call(100), plain);
    }
    let hits: u64 = client.counts().iter().map(|count| count.hits).sum();
    assert!(hits > 100, "{hits}");
    client.leave().expect("it leaves");
    assert_eq!(running.call(100), plain);
    assert!(is_files_own(running.pid(), "libc.so"), "bytes of the library are not the file's");
}
