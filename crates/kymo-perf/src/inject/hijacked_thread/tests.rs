//! Whether a thread goes on as if nothing had been when its borrower vanishes.
use super::*;
use crate::inject::symbols::Symbols;
use crate::inject::unwind::UnwoundStack;
use crate::sys::ptrace::faults;
use rustix::event::{Timespec, epoll};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

fn started(program: &str) -> Child {
    let mut command = Command::new(program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn function(target: &TargetProcess, name: &'static str) -> u64 {
    let modules = target.modules().unwrap();
    let found = modules.iter().find_map(|(base, _)| {
        let [found] = Symbols::of(target, *base).ok()?.functions([name]).ok()?;
        found
    });
    found.unwrap().start
}

/// Borrows a thread as somebody who is killed: by a thread that ends in the middle. `None` if it
/// cannot be borrowed now.
fn borrow_and_vanish(pid: i32, works: impl Fn(&TargetProcess, &mut HijackedThread<'_>) + Sync) -> Option<()> {
    let borrow = || {
        let target = TargetProcess::look(pid).ok()?;
        // Its C library may not be loaded yet.
        let mut borrowed = HijackedThread::take(&target, None).ok()?;
        works(&target, &mut borrowed);
        borrowed.thread.take()?.leave_to_the_kernel();
        Some(())
    };
    std::thread::scope(|scope| scope.spawn(borrow).join().unwrap())
}

/// Checks that a thread which waits in a system call goes on waiting when its borrower vanishes:
/// before it has worked, after a system call, in the middle of a function and after it; and that
/// none of its signals is blocked then.
#[test]
fn the_borrower_vanishes() {
    let mut program = started("cat");
    let (mut input, mut output) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
    let pid = program.id() as i32;
    let mut echo = |text: &[u8; 8]| {
        input.write_all(text).unwrap();
        let mut back = [0; 8];
        output.read_exact(&mut back).unwrap();
        assert_eq!(&back, text);
    };
    echo(b"begins.\n");
    let before = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let before = proc::field(&before, "SigBlk").unwrap().to_owned();
    let long = Duration::from_secs(20);
    type Work<'w> = &'w (dyn Fn(&TargetProcess, &mut HijackedThread<'_>) + Sync);
    let works: [Work<'_>; 4] = [
        &|_, _| {},
        &|_, borrowed| _ = borrowed.system_call("asking", libc::SYS_getpid, [0; 6]).unwrap(),
        &|target, borrowed| {
            let sleep = function(target, "usleep");
            let soon = Duration::from_millis(10);
            borrowed.call("sleeping", sleep, [100_000, 0, 0], soon, ReturnKind::Nothing).unwrap_err();
        },
        &|target, borrowed| {
            let ask = function(target, "getppid");
            let parent = borrowed.call("asking", ask, [0; 3], long, ReturnKind::Value);
            assert_eq!(parent.unwrap(), u64::from(std::process::id()));
        },
    ];
    for round in 0..5 {
        for work in works {
            let until = Instant::now() + long;
            // On a busy machine it may not stop in time.
            while borrow_and_vanish(pid, work).is_none() {
                assert!(Instant::now() < until, "round {round}: it cannot be borrowed");
            }
            // It is home when it waits as it did before.
            let until = Instant::now() + long;
            loop {
                let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
                let blocked = proc::field(&status, "SigBlk").unwrap_or_default();
                if blocked == before {
                    break;
                }
                assert!(Instant::now() < until, "round {round}: {status}");
                std::thread::sleep(Duration::from_millis(1));
            }
            echo(b"goes on\n");
        }
    }
    drop(input);
    assert!(program.wait().unwrap().success());
}

/// Checks that a program which computes, with vector registers among others, computes the same when
/// borrowers vanish at any moment.
#[test]
fn while_it_computes() {
    if Command::new("sha256sum").arg("--version").output().is_err() {
        return kymo_testing::skip("inject::hijacked_thread::while_it_computes", "no sha256sum");
    }
    let sum = |meanwhile: &dyn Fn(i32)| {
        let mut program = started("sha256sum");
        let mut input = program.stdin.take().unwrap();
        let (over, is_over) = std::sync::mpsc::channel();
        let feed = std::thread::spawn(move || {
            let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
            for _ in 0..200 {
                input.write_all(&block).unwrap();
            }
            // It is there until the last of them has gone.
            is_over.recv().unwrap();
        });
        meanwhile(program.id() as i32);
        over.send(()).unwrap();
        feed.join().unwrap();
        let output = program.wait_with_output().unwrap();
        assert!(output.status.success(), "{:?}", output.status);
        output.stdout
    };
    let plain = sum(&|_| {});
    let disturbed = sum(&|pid| {
        for _ in 0..20 {
            let work = |target: &TargetProcess, borrowed: &mut HijackedThread<'_>| {
                let ask = function(target, "getppid");
                let long = Duration::from_secs(20);
                _ = borrowed.call("asking", ask, [0; 3], long, ReturnKind::Value).unwrap();
            };
            _ = borrow_and_vanish(pid, work);
        }
    });
    assert_eq!(disturbed, plain);
}

const PROGRAM: &str = "KYMO_TEST_BORROWED_PROGRAM";
const TARGET: &str = "KYMO_TEST_BORROWED_TARGET";

/// No check of its own: the programs of [`killed_before_each_step`]. Each looks at its own results
/// for ever, and says a word a round.
#[test]
fn program() {
    let Ok(kind) = std::env::var(PROGRAM) else { return };
    let say = |word: &str| std::io::stderr().write_all(format!("{word}\n").as_bytes()).unwrap();
    let numbers: Vec<f64> = (0..20_000).map(|number| f64::from(number).sqrt()).collect();
    let sum = || numbers.iter().zip(numbers.iter().rev()).map(|(a, b)| a * b).sum::<f64>();
    let (expected, events) = (sum(), epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
    let moment = Timespec { tv_sec: 0, tv_nsec: 3_000_000 };
    loop {
        let begun = Instant::now();
        match kind.as_str() {
            "computes" => assert!((0..20).all(|_| sum().to_bits() == expected.to_bits()), "wrong"),
            "sleeps" => std::thread::sleep(Duration::from_millis(3)),
            "polls" => match rustix::event::poll(&mut [], Some(&moment)) {
                Ok(0) => assert!(begun.elapsed() >= Duration::from_millis(3), "too early"),
                other => say(&format!("poll gave {other:?}")),
            },
            _ => {
                let mut buffer: [epoll::Event; 1] =
                    [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
                match epoll::wait(&events, &mut buffer, Some(&moment)) {
                    Ok(0) => {}
                    other => say(&format!("epoll_wait gave {other:?}")),
                }
            }
        }
        say("right");
    }
}

/// Lets the tests' tracer take any thread but those that wait for others, as the test harness's
/// first one does.
struct AnyThatWorks {
    malloc: u64,
}

impl Unwind for AnyThatWorks {
    fn prepare(&mut self, _: i32, _: &[u8]) {}

    fn walk(&mut self, registers: &Registers, _: &[u8]) -> UnwoundStack {
        let waits = registers.orig_rax == libc::SYS_futex as u64;
        UnwoundStack { addresses: if waits { vec![self.malloc] } else { Vec::new() }, complete: true }
    }
}

/// No check of its own: the tracer of [`killed_before_each_step`], which borrows a thread for all
/// that can be done with one.
#[test]
fn tracer() {
    let Some(pid) = std::env::var(TARGET).ok().and_then(|pid| pid.parse().ok()) else { return };
    let long = Duration::from_secs(20);
    let target = TargetProcess::look(pid).unwrap();
    let (ask, sleep) = (function(&target, "getppid"), function(&target, "usleep"));
    let mut unwinder = AnyThatWorks { malloc: function(&target, "malloc") };
    let mut borrowed = HijackedThread::take(&target, Some(&mut unwinder)).unwrap();
    let at = borrowed.lend(b"text").unwrap();
    borrowed.read(at, &mut [0; 4]).unwrap();
    borrowed.system_call("asking", libc::SYS_getpid, [0; 6]).unwrap();
    borrowed.call("asking", ask, [0; 3], long, ReturnKind::Value).unwrap();
    borrowed.call("sleeping", sleep, [100, 0, 0], long, ReturnKind::Nothing).unwrap();
    borrowed.give_back(true).unwrap();
    println!("{} steps", faults::steps());
}

/// Starts this test program again for one of its tests.
fn again(test: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([&format!("inject::hijacked_thread::tests::{test}"), "--exact", "--nocapture"]);
    command.envs(variables.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Checks that a program goes on, with the right results, no signal held back and nobody tracing
/// it, whichever request to the kernel its borrower is killed before: programs that compute with
/// vector registers, sleep, poll, and wait for events. Only in the two requests after the stop may
/// a program see its `epoll_wait` interrupted, as by SIGSTOP.
#[test]
fn killed_before_each_step() {
    for kind in ["computes", "sleeps", "polls", "waits"] {
        let mut program = again("program", &[(PROGRAM, kind)]).stderr(Stdio::piped()).spawn().unwrap();
        let mut words = BufReader::new(program.stderr.take().unwrap()).lines();
        let mut interrupted = 0;
        let mut goes_on = |step: u64| {
            let mut right = 0;
            // The first may be from before.
            while right < 3 {
                match words.next() {
                    Some(Ok(word)) if word == "right" => right += 1,
                    Some(Ok(word)) if word.contains("(Os { code: 4") => interrupted += 1,
                    other => panic!("{kind}, killed before step {step}: {other:?}"),
                }
            }
        };
        goes_on(0);
        // Its first thread is the test harness's: it waits for the one that works.
        let pid = program.id() as i32;
        let target = TargetProcess::look(pid).unwrap();
        let blocked = |tid: i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap();
            let field = |name| proc::field(&status, name).unwrap_or_default().to_owned();
            (field("SigBlk"), field("TracerPid"))
        };
        let tasks = proc::tasks(target.pid).unwrap();
        let before: Vec<_> = tasks.iter().map(|tid| blocked(*tid)).collect();
        let mut step = 0;
        loop {
            step += 1;
            let (number, target) = (step.to_string(), pid.to_string());
            let variables = [(TARGET, target.as_str()), (faults::DIES_AT, number.as_str())];
            let tracer = again("tracer", &variables).stderr(Stdio::piped()).spawn().unwrap();
            let ended = tracer.wait_with_output().unwrap();
            goes_on(step);
            let until = Instant::now() + Duration::from_secs(20);
            while tasks.iter().map(|tid| blocked(*tid)).ne(before.iter().cloned()) {
                assert!(Instant::now() < until, "{kind}, killed before step {step}");
                std::thread::sleep(Duration::from_millis(1));
            }
            if ended.status.signal() != Some(libc::SIGKILL) {
                assert!(ended.status.success(), "{kind}, {step}: {ended:?}");
                break;
            }
        }
        assert!(step > 40, "{kind}: {step} steps only");
        assert!(interrupted <= 2, "{kind}: {interrupted}");
        program.kill().unwrap();
        program.wait().unwrap();
    }
}
