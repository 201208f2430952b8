//! What changes around a run: disks that stand still or are slow, terminals that change their size, clocks of their own, CPUs that go away.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::disks::onto;
use super::fuse::Fault;
use super::{BUSY, WAYS, ended, folder, said_samples, samples, words, works_when_told};
use crate::copied::Program;
use crate::programs::build;
use crate::tools::{Need, Running, kymo, ready, require, run, skip, text};

/// Checks an output where each write takes its time: all is written, the account is that of the file, and the status is 0.
#[test]
fn a_slow_disk() {
    let test = "faults::surroundings::a_slow_disk";
    for way in WAYS {
        let fault = Fault::Slow(Duration::from_millis(40));
        let Some(onto) = onto(test, fault, way, &["-g"], BUSY) else { return };
        assert_eq!(onto.code, Some(0), "{way}: {}", onto.said);
        assert!(!onto.said.contains("not written"), "{way}: {}", onto.said);
        assert_eq!(
            samples(test, &onto.file.expect("a file")),
            said_samples(&onto.said),
            "{way}: {}",
            onto.said
        );
    }
}

/// An ext4 in a file, which can be frozen; thawed and gone when it is dropped.
struct Ext4(PathBuf);

impl Ext4 {
    fn mount(test: &str, folder: &Path) -> Option<Ext4> {
        let needs =
            [Need::Root, Need::Program("mkfs.ext4"), Need::Program("fsfreeze"), Need::Program("mount")];
        if !ready(test, &needs) {
            return None;
        }
        let (image, place) = (folder.join("image"), folder.join("mounted"));
        fs::create_dir(&place).expect("our own folder");
        let file = fs::File::create(&image).expect("our own folder");
        file.set_len(64 << 20).expect("there is room");
        drop(file);
        let made = run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
        let mounted = run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&place));
        if made.code != Some(0) || mounted.code != Some(0) {
            skip(test, format!("no ext4 in a file here: {}{}", made.stderr, mounted.stderr));
            return None;
        }
        let disk = Ext4(place);
        if !disk.freeze("-f") || !disk.freeze("-u") {
            skip(test, "it cannot be frozen here");
            return None;
        }
        Some(disk)
    }

    fn freeze(&self, how: &str) -> bool {
        Command::new("fsfreeze")
            .arg(how)
            .arg(&self.0)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|done| done.success())
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        self.freeze("-u");
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Checks a file system that is frozen, as for a snapshot of a disk, while a recording goes there: the program runs on meanwhile, and when it is
/// thawed the recording is complete but for what its account names.
#[test]
fn a_frozen_disk() {
    let test = "faults::surroundings::a_frozen_disk";
    for way in WAYS {
        let Some(disk) = Ext4::mount(test, &folder(&format!("frozen-{way}"))) else { return };
        let path = disk.0.join("perf.data");
        let (child, mut to, mut from) = works_when_told(&["-F", "4000"], &path, way);
        assert!(disk.freeze("-f"), "{way}: it was frozen before");
        to.write_all(b"go\n").expect("the program reads");
        // It does all that, with the disk as it is.
        let mut line = [0; 5];
        from.read_exact(&mut line).expect("the program goes on");
        assert!(disk.freeze("-u"));
        to.write_all(b"go\n").expect("the program reads");
        let output = ended(test, child);
        let said = words(&output);
        assert_eq!(output.status.code(), Some(0), "{way}: {said}");
        assert_eq!(samples(test, &path), said_samples(&said), "{way}: {said}");
    }
}

/// Checks tables on a terminal that changes its size all the time, down to nothing: no verb panics or hangs, each ends by Ctrl-C as it does
/// otherwise, and what it looked at runs on.
#[test]
fn a_terminal_that_changes_its_size() {
    let test = "faults::surroundings::a_terminal_that_changes_its_size";
    if !ready(test, &[Need::Root, Need::Program("python3"), Need::Program("cc")]) {
        return;
    }
    let program = Program::of("probed.c", &[]);
    let mut running = Running::start(Command::new(&program.path).args(["2000000000", "1"]));
    let pid = running.pid();
    let (probe, record) = (format!("{}:probed_inner", program.text()), program.beside("perf.data"));
    let verbs: [&[&str]; 5] = [
        &["probe", "--engine", "kernel", "-p", &pid, &probe],
        &["probe", "--engine", "inproc", "-p", &pid, &probe],
        &["record", "-F", "99", "-o", &record, "-p", &pid],
        &["stat", "-p", &pid],
        &["list"],
    ];
    for verb in verbs {
        let mut command = kymo().command(Vec::<&str>::new());
        let mut all = Command::new("python3");
        all.arg(crate::programs::sources().join("resize.py")).arg(kymo().path()).args(verb);
        for (name, value) in command.env("RUST_BACKTRACE", "0").get_envs() {
            value.into_iter().for_each(|value| _ = all.env(name, value));
        }
        let child = all.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let output = ended(&verb.join(" "), child.expect("python3 starts"));
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), words(&output));
        assert!(!said.contains("panicked"), "{verb:?}: {said}");
        let status: i32 =
            said.rsplit("status ").next().and_then(|rest| rest.trim().parse().ok()).expect("a status");
        // Ctrl-C ends a recording by the same signal, as perf does.
        assert!(matches!(status, 0 | 1 | 130 | -2), "{verb:?}: {status}: {said}");
        assert!(
            running.child.try_wait().expect("it is ours").is_none(),
            "{verb:?}: the program has ended: {said}"
        );
    }
}

/// Checks a time namespace, as containers that were moved have them, where the monotonic clock is another than the kernel's, and a
/// wall clock that jumps: each verb works as elsewhere.
#[test]
fn clocks_of_their_own() {
    let test = "faults::surroundings::clocks_of_their_own";
    if !ready(test, &[Need::Root, Need::Program("unshare"), Need::Program("cc")]) {
        return;
    }
    let namespace = ["-T", "--monotonic", "100000", "--boottime", "100000", "--"];
    let has =
        Command::new("unshare").args(namespace).arg("true").status().is_ok_and(|status| status.success());
    if !has {
        skip(test, "[time namespace] unshare -T does not work here");
    }
    let shim = build("stepping.c", &["-shared", "-fPIC"]);
    let folder = folder("clocks");
    let (path, program) = (folder.join("perf.data"), Program::of("probed.c", &[]));
    let probe = format!("{}:probed_outer", program.text());
    let verbs: [&[&str]; 7] = [
        &["record", "-F", "4000", "-o", text(&path), "--", "sh", "-c", BUSY],
        &["report", "-i", text(&path)],
        &["script", "-i", text(&path), "-F", "comm,time,event"],
        &["stat", "-I", "100", "--", "sleep", "0.5"],
        &["probe", "--engine", "kernel", &probe, "--", program.text(), "1000"],
        &["probe", "--engine", "inproc", &probe, "--", program.text(), "1000"],
        &["record", "-F", "999", "--switch-output=1s", "-o", text(&path), "--", "sh", "-c", BUSY],
    ];
    for jumps in [false, true] {
        for verb in verbs {
            if !jumps && !has {
                continue;
            }
            let mut command = if jumps {
                let mut command = kymo().command(verb);
                command.env("LD_PRELOAD", &shim);
                command
            } else {
                let mut command = Command::new("unshare");
                command.args(namespace).arg(kymo().path()).args(verb);
                command
            };
            let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            let output = ended(&verb.join(" "), child.expect("it starts"));
            let said = words(&output);
            assert_eq!(output.status.code(), Some(0), "jumps {jumps}: {verb:?}: {said}");
            if verb[0] == "probe" {
                let table = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(
                    table.contains("1,000") || table.contains("1000"),
                    "jumps {jumps}: {verb:?}: {table}{said}"
                );
            }
        }
    }
}

/// A CPU that is taken away, and back when it is dropped.
struct Unplugged(PathBuf);

impl Drop for Unplugged {
    fn drop(&mut self) {
        fs::write(&self.0, "1").expect("a CPU that was there comes back");
    }
}

/// Checks a CPU that is taken away while everything is recorded or counted, and comes back: the run
/// ends as it should, the account is that of the file and tells of the CPU wherever its events had
/// ended, and what was recorded runs on. Alone (`ci/test.sh` runs it at night): tests beside it
/// have that CPU's events.
#[test]
#[ignore = "takes a CPU from all tests that run beside it"]
fn a_cpu_that_goes_away() {
    let test = "faults::surroundings::a_cpu_that_goes_away";
    let switch = PathBuf::from("/sys/devices/system/cpu/cpu1/online");
    let Some(()) = require(test, &[Need::Root]) else { return };
    if fs::read_to_string(&switch).map_or(true, |online| online.trim() != "1") {
        return skip(test, "CPU 1 cannot be taken away here");
    }
    let path = folder("unplugged").join("perf.data");
    let program = format!("echo started; {BUSY}; {BUSY}");
    let verbs: [&[&str]; 4] = [
        &["record", "-F", "999", "-a", "-o", text(&path)],
        &["record", "-F", "999", "-a", "--call-graph", "dwarf", "-o", text(&path)],
        &["record", "-F", "999", "-o", text(&path)],
        &["stat", "-a"],
    ];
    for verb in verbs {
        let mut child = kymo()
            .command(verb)
            .args(["--", "sh", "-c", &program])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kymo starts");
        let mut line = [0; 8];
        child.stdout.as_mut().expect("a pipe").read_exact(&mut line).expect("the program starts");
        if let Err(error) = fs::write(&switch, "0") {
            let _ = child.kill();
            ended(test, child);
            return skip(test, format!("CPU 1 cannot be taken away: {error}"));
        }
        let unplugged = Unplugged(switch.clone());
        std::thread::sleep(Duration::from_millis(100));
        drop(unplugged);
        let output = ended(&verb.join(" "), child);
        let said = words(&output);
        assert_eq!(output.status.code(), Some(0), "{verb:?}: {said}");
        if verb[0] == "record" {
            assert_eq!(samples(test, &path), said_samples(&said), "{verb:?}: {said}");
        }
        if verb.contains(&"-a") {
            assert!(said.contains("CPU 1 went offline and came back"), "{verb:?}: {said}");
        }
    }
}

/// Checks machines without tracefs and without a hierarchy of cgroups for events, made of this one in a mount namespace
/// of its own: what needs neither works, and what needs one is refused with the command that mounts it.
#[test]
fn without_tracefs_or_cgroups() {
    let test = "faults::surroundings::without_tracefs_or_cgroups";
    let Some(()) = require(test, &[Need::Root, Need::Tracepoints, Need::Program("unshare")]) else { return };
    let path = folder("without").join("perf.data");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let without = |kind: &str, verb: &[&str]| {
        // All places where it is mounted, and debugfs, which mounts tracefs by itself.
        let places = mounts.lines().filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            let (place, of) = (words.next()?, words.next()?);
            (of == kind || of == "debugfs").then_some(place)
        });
        let places: Vec<&str> = places.collect();
        let script = "umount -l $0 && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script]).arg(places.join(" ")).arg(kymo().path()).args(verb);
        run(&mut command)
    };
    let record = |options: &[&'static str]| {
        let output = ["-o", text(&path), "--", "true"].map(str::to_owned);
        [&["record", "-q"], options].concat().into_iter().map(str::to_owned).chain(output).collect()
    };
    let cases: [(&str, Vec<String>, Option<&str>); 6] = [
        ("tracefs", record(&[]), None),
        ("tracefs", ["stat", "--", "true"].map(str::to_owned).to_vec(), None),
        ("tracefs", record(&["-e", "sched:sched_switch"]), Some("mount -t tracefs")),
        ("cgroup2", record(&[]), None),
        ("cgroup2", ["stat", "--", "true"].map(str::to_owned).to_vec(), None),
        ("cgroup2", record(&["--scope", "cgroup"]), Some("mount -t cgroup2")),
    ];
    for (kind, verb, advice) in cases {
        let verb: Vec<&str> = verb.iter().map(String::as_str).collect();
        let said = without(kind, &verb);
        assert_eq!(
            said.code == Some(0),
            advice.is_none(),
            "{}: {:?} {}",
            said.command,
            said.code,
            said.stderr
        );
        assert!(
            advice.is_none_or(|advice| said.stderr.contains(advice)),
            "{}: {}",
            said.command,
            said.stderr
        );
    }
}
