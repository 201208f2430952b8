//! Programs that cannot be entered: kymo says what, why, and what to do, leaves them alone, and lets
//! the kernel probe them. Those that only cannot load the agent are probed all the same.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::probe::KERNEL;
use crate::probe_lifetimes::{Many, Probing, hits_of_all, soon};
use crate::tools::{Need, kymo, require, run, skip};

/// Asserts that kymo does not enter, says so with these words and with a way out, and that the program is what it was.
fn refused(many: &Many, words: &str) {
    let said = kymo().run(["probe", "--engine", "inproc", "-p", &many.pid(), "many_*"]).ends(1);
    assert_eq!(said.stderr.lines().count(), 1, "{}", said.stderr);
    said.says(words).says("leave --engine out");
    let file = format!("/{}", many.program());
    assert!(many.is_untouched(&file) && many.threads() == [many.program()]);
}

/// Asserts that the kernel probes it all the same, with the reason said: `times` calls of each function, made by `work`.
fn by_the_kernel(many: &mut Many, words: &str, times: u64, work: impl FnOnce(&mut Many)) {
    let probing = Probing::start(many, &["many_*"]);
    assert!(
        probing.said.contains("64 probes") && probing.said.contains("by the kernel engine"),
        "{}",
        probing.said
    );
    work(many);
    let (found, said) = probing.end();
    assert_eq!(hits_of_all(&found), (times, "kernel".to_owned()), "{said}");
    assert!(said.contains("not inside the program, but by the kernel") && said.contains(words), "{said}");
}

/// Asserts that it is probed from inside now, as any other program.
fn entered(many: &mut Many, plain: &str) {
    let probing = Probing::start(many, &["--engine", "inproc", "many_*"]);
    assert_eq!(many.call(100), plain);
    assert_eq!(hits_of_all(&probing.end().0), (100, "inproc".to_owned()));
}

fn both(many: &mut Many, words: &str) {
    let plain = many.call(100);
    refused(many, words);
    by_the_kernel(many, words, 200, |many| {
        assert_eq!(many.call(100), plain);
        assert_eq!(many.call(100), plain);
    });
    assert_eq!(many.call(100), plain);
}

/// The program compiled by somebody else's compiler, started in a folder of its own; `None`, loudly, where that cannot be.
fn compiled(test: &str, compiler: &str, options: &[&str]) -> Option<(PathBuf, tempfile::TempDir)> {
    let folder = Many::folder(test)?;
    require(test, KERNEL)?;
    let program = folder.path().canonicalize().expect("a path").join("many");
    let source = crate::programs::sources().join("many.c");
    let done =
        Command::new(compiler).args(["-O2", "-g", "-o"]).args([&program, &source]).args(options).output();
    match done {
        Ok(done) if done.status.success() => Some((program, folder)),
        Ok(done) => {
            skip(test, String::from_utf8_lossy(&done.stderr).lines().last().unwrap_or("it does not compile"));
            None
        }
        Err(error) => {
            skip(test, format!("{compiler}: {error}"));
            None
        }
    }
}

/// Asserts that a program which cannot load the agent is probed from inside all the same, and has
/// its own code afterwards.
fn by_stubs(many: &mut Many) {
    let plain = many.call(100);
    let file = format!("/{}", many.program());
    for options in [&["--engine", "inproc", "many_*"][..], &["--ret", "many_*"]] {
        let probing = Probing::start(many, options);
        assert_eq!(many.call(100), plain);
        assert!(!many.is_untouched(&file) && many.threads() == [many.program()], "{}", probing.said);
        let (found, said) = probing.end();
        assert_eq!(hits_of_all(&found), (100, "inproc".to_owned()), "{said}");
        assert!(said.contains("without a library in the program"), "{said}");
        assert!(many.is_untouched(&file), "code is not the file's");
        assert_eq!(many.call(100), plain);
    }
    // What stubs do not do is the kernel's.
    let said = kymo().run(["probe", "--engine", "inproc", "-p", &many.pid(), "--args", "many_*"]).ends(1);
    said.says("it does not tell arguments").says("leave --engine out");
}

/// Checks a program that is linked statically.
#[test]
fn linked_statically() {
    let Some((program, folder)) = compiled("probe_refusals::linked_statically", "gcc", &["-static"]) else {
        return;
    };
    by_stubs(&mut Many::run(&mut Command::new(&program), &program, folder));
}

/// Checks a program of 32 bits.
#[test]
fn of_32_bits() {
    let Some((program, folder)) = compiled("probe_refusals::of_32_bits", "gcc", &["-m32"]) else { return };
    both(&mut Many::run(&mut Command::new(&program), &program, folder), "it is a 32-bit program");
}

/// Checks a program with another C library.
#[test]
fn of_musl() {
    let Some((program, folder)) = compiled("probe_refusals::of_musl", "musl-gcc", &[]) else { return };
    by_stubs(&mut Many::run(&mut Command::new(&program), &program, folder));
}

/// Checks a container whose root has another C library only.
#[test]
fn in_a_container_of_musl() {
    const TEST: &str = "probe_refusals::in_a_container_of_musl";
    let Some((program, folder)) = compiled(TEST, "musl-gcc", &[]) else { return };
    let Some(linker) = ["/lib/ld-musl-x86_64.so.1"].iter().map(Path::new).find(|path| path.exists()) else {
        return skip(TEST, "musl's dynamic linker is elsewhere");
    };
    let root = folder.path().canonicalize().expect("a path").join("root");
    std::fs::create_dir_all(root.join("lib")).expect("a folder");
    kymo_testing::copy_program(linker, &root.join("lib/ld-musl-x86_64.so.1"));
    kymo_testing::copy_program(&program, &root.join("many"));
    let mut container = Command::new("unshare");
    container.args(["--mount", "--pid", "--fork", "--kill-child", "chroot"]).arg(&root).arg("/many");
    container.stderr(Stdio::null());
    let many = Many::run(&mut container, Path::new("/many"), folder);
    let outer = many.pid();
    let Some(pid) = inside(&outer) else { return skip(TEST, "no namespaces here") };
    by_stubs(&mut many.of(pid));
}

/// Checks a program that has forbidden itself all but four system calls.
#[test]
fn under_strict_seccomp() {
    const TEST: &str = "probe_refusals::under_strict_seccomp";
    let Some((program, folder)) = Many::copy(TEST) else { return };
    let Some(()) = require(TEST, KERNEL) else { return };
    let mut many = Many::run(Command::new(&program).arg("strict"), &program, folder);
    assert_eq!(many.line(), "here\n");
    assert_eq!(many.call(1), "done\n");
    refused(&many, "seccomp mode 1");
    by_the_kernel(&mut many, "seccomp mode 1", 20, |many| {
        assert_eq!(many.call(1), "done\n");
        assert_eq!(many.call(1), "done\n");
    });
    assert_eq!(many.call(1), "done\n");
}

/// Checks a program that is stopped: it stays so, and is probed when it goes on.
#[test]
fn stopped() {
    const TEST: &str = "probe_refusals::stopped";
    let Some(mut many) = Many::start(TEST) else { return };
    let Some(()) = require(TEST, KERNEL) else { return };
    let plain = many.call(100);
    let pid = rustix::process::Pid::from_raw(many.pid().parse().expect("a number")).expect("a process");
    let signal = |signal| rustix::process::kill_process(pid, signal).expect("it runs");
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next())
    };
    signal(rustix::process::Signal::STOP);
    soon("the stop", || state() == Some('T'));
    refused(&many, "it is stopped; continue it (kill -CONT)");
    assert_eq!(state(), Some('T'));
    by_the_kernel(&mut many, "it is stopped", 100, |many| {
        signal(rustix::process::Signal::CONT);
        assert_eq!(many.call(100), plain);
    });
    entered(&mut many, &plain);
}

/// Checks a program that a debugger holds: the debugger keeps it.
#[test]
fn traced() {
    const TEST: &str = "probe_refusals::traced";
    let Some(mut many) = Many::start(TEST) else { return };
    let Some(()) = require(TEST, &[KERNEL, &[Need::Program("strace")]].concat()) else { return };
    let plain = many.call(100);
    let mut tracer = Command::new("strace")
        .args(["-qq", "-e", "trace=none", "-o", "/dev/null", "-p", &many.pid()])
        .stderr(Stdio::null())
        .spawn()
        .expect("strace");
    let by = format!("TracerPid:\t{}\n", tracer.id());
    let status = || std::fs::read_to_string(format!("/proc/{}/status", many.pid())).expect("status");
    soon("the tracer's start", || status().contains(&by));
    let words = format!("process {} traces it already", tracer.id());
    refused(&many, &words);
    assert!(status().contains(&by));
    by_the_kernel(&mut many, &words, 100, |many| assert_eq!(many.call(100), plain));
    tracer.kill().expect("it runs");
    tracer.wait().expect("its end");
    entered(&mut many, &plain);
}

/// Checks that an ordinary user is refused another user's program, and one that is his own but runs as root, with what would help.
#[test]
fn of_others() {
    const TEST: &str = "probe_refusals::of_others";
    let Some(mut own) = Many::start(TEST) else { return };
    let Some((program, folder)) = Many::copy(TEST) else { return };
    let plain = own.call(100);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&program, mode).expect("our file");
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let mut raised = Many::run(Command::new("setpriv").args(nobody).arg(&program), &program, folder);
    assert_eq!(raised.call(100), plain);
    // Where the tests' programs lie an ordinary user may not come.
    let shared = tempfile::tempdir().expect("a folder");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(shared.path(), mode).expect("our folder");
    let copy = shared.path().join("kymo");
    kymo_testing::copy_program(kymo().path(), &copy);
    for many in [&mut own, &mut raised] {
        for engine in ["inproc", "auto", "kernel"] {
            let words = ["probe", "--engine", engine, "-p", &many.pid(), "many_00"];
            let said = run(Command::new("setpriv").args(nobody).arg(&copy).args(words)).ends(1);
            said.says("belongs to another user").says("run kymo as root");
        }
        assert!(many.is_untouched("/many"));
        assert_eq!(many.call(100), plain);
    }
}

/// Checks that a process that was forked while its parent was probed is refused for that reason,
/// during that and after: not because of another kymo, which may be gone.
#[test]
fn a_child_of_a_probed_program() {
    let Some(mut many) = Many::start("probe_refusals::a_child_of_a_probed_program") else { return };
    let plain = many.call(100);
    let probing = Probing::start(&many, &["--engine", "inproc", "many_00"]);
    let child = many.fork();
    let refused = || {
        let said = kymo().run(["probe", "--engine", "inproc", "-d", "0.1", "-p", &child, "many_00"]).ends(1);
        said.says("forked after the agent began; the probes in it are its parent's");
    };
    refused();
    let (found, said) = probing.end();
    assert_eq!(found["probes"][0]["hits"], 0, "{said}");
    refused();
    assert!(many.is_untouched("/many"));
    assert_eq!(many.call(100), plain);
}

/// Checks what is no program: one that has ended and is not buried, one that does not exist, and the kernel's.
#[test]
fn no_program() {
    const TEST: &str = "probe_refusals::no_program";
    if Many::folder(TEST).is_none() {
        return;
    }
    let mut ended = Command::new("true").spawn().expect("it starts");
    let pid = ended.id();
    soon("the end", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    });
    // The kernel's first thread, where it is to be seen.
    let is_seen = std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd");
    for pid in [pid].into_iter().chain(is_seen.then_some(2)) {
        for engine in ["inproc", "auto"] {
            let said = kymo().run(["probe", "--engine", engine, "-p", &pid.to_string(), "main"]).ends(1);
            said.says("it is the kernel's or has ended");
        }
    }
    ended.wait().expect("its end");
}

/// Checks the first process of a namespace, which has no handlers by default: it is entered as any other.
#[test]
fn the_first_process() {
    const TEST: &str = "probe_refusals::the_first_process";
    let Some((program, folder)) = Many::copy(TEST) else { return };
    let mut container = Command::new("unshare");
    container.args(["--pid", "--fork", "--kill-child"]).arg(&program).stderr(Stdio::null());
    let many = Many::run(&mut container, &program, folder);
    let outer = many.pid();
    let Some(pid) = inside(&outer) else { return skip(TEST, "no namespaces here") };
    let mut many = many.of(pid);
    let plain = many.call(100);
    entered(&mut many, &plain);
    assert!(many.is_untouched("/many"));
}

/// The one child of a process, when it executes `many`; `None` if the process has ended instead.
fn inside(outer: &str) -> Option<u32> {
    let mut inside = None;
    soon("the start of what is inside", || {
        let children =
            std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap_or_default();
        inside = children.trim().parse().ok();
        let exe = inside.map(|pid: u32| std::fs::read_link(format!("/proc/{pid}/exe")));
        let gone = !Path::new(&format!("/proc/{outer}/exe")).exists();
        gone || exe.is_some_and(|exe| exe.is_ok_and(|exe| exe.ends_with("many")))
    });
    inside
}
