//! CPUs that a sandbox hides, memory that a cgroup limits, system calls that a filter refuses, and
//! real-time programs: what was recorded or counted there is whole, or a sentence says what is
//! missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::tempdir;

use crate::programs::build;
use crate::tools::{Need, Said, find, kymo, require, run, skip, text};

/// CPU time that the observed program uses.
const WORK_MS: f64 = 100.0;

/// The last CPU on which this process may run; nothing where there is one only.
fn last_cpu() -> Option<String> {
    let permitted = rustix::thread::sched_getaffinity(None).expect("an answer");
    let cpus: Vec<usize> =
        (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| permitted.is_set(cpu)).collect();
    (cpus.len() > 1).then(|| cpus[cpus.len() - 1].to_string())
}

/// A command in a mount namespace of its own, after these commands of a shell.
fn in_mounts(before: &str, command: &[&str]) -> Command {
    let script = format!("mount --make-rprivate / && {before} && exec \"$@\"");
    let mut all = Command::new("unshare");
    all.args(["-m", "sh", "-c", &script, "sh"]).args(command);
    all
}

/// The kinds of sandboxes: each makes a command that runs this one inside. `folder`: for what it
/// needs.
type Sandbox = fn(folder: &Path, command: &[&str]) -> Option<Command>;

fn wrapped(first: &[&str], command: &[&str]) -> Option<Command> {
    find(first[0])?;
    let mut all = Command::new(first[0]);
    all.args(&first[1..]).args(command);
    Some(all)
}

/// A file that lists CPU 0 alone, as lxcfs shows it to a container with a quota of one CPU.
fn one_cpu(folder: &Path) -> String {
    let list = folder.join("online");
    fs::write(&list, "0\n").expect("the folder is writable");
    format!("mount --bind {} /sys/devices/system/cpu/online", list.display())
}

/// The same in `/proc/stat`.
fn one_cpu_of_two(folder: &Path) -> String {
    let stat = folder.join("stat");
    fs::write(&stat, "cpu  1 0 1 9 0 0 0 0 0 0\ncpu0 1 0 1 9 0 0 0 0 0 0\nintr 1\n")
        .expect("the folder is writable");
    format!("{} && mount --bind {} /proc/stat", one_cpu(folder), stat.display())
}

/// A root folder that has everything but /sys and /proc.
fn bare_root(folder: &Path) -> String {
    let root = folder.join("root");
    fs::create_dir_all(&root).expect("the folder is writable");
    let root = root.display();
    format!("mount --rbind / {root} && umount -l {root}/sys && umount -l {root}/proc")
}

/// In a cgroup that may use this CPU alone.
fn in_cpuset(cpu: &str, command: &[&str]) -> Option<Command> {
    let tops = ["/sys/fs/cgroup/cpuset", "/sys/fs/cgroup"];
    let top = tops.iter().find(|top| {
        Path::new(top).join("cpuset.cpus.effective").exists() || Path::new(top).join("cpuset.cpus").exists()
    })?;
    // The shell leaves the cgroup, so that it can be removed.
    let script = "cd \"$1\" && mkdir $$ && cd $$ && echo \"$2\" >cpuset.cpus && { cat ../cpuset.mems >cpuset.mems || :; } && \
                  echo $$ >cgroup.procs && shift 2 && (cd / && exec \"$@\"); status=$?; \
                  echo $$ >../cgroup.procs; cd .. && rmdir $$; exit $status";
    let mut all = Command::new("sh");
    all.args(["-c", script, "sh", top, cpu]).args(command);
    Some(all)
}

const SANDBOXES: [(&str, Sandbox); 13] = [
    ("none", |_, command| wrapped(&["env"], command)),
    ("no sysfs", |_, command| Some(in_mounts("umount -l /sys", command))),
    ("lxcfs", |folder, command| Some(in_mounts(&one_cpu(folder), command))),
    ("lxcfs, /proc/stat too", |folder, command| Some(in_mounts(&one_cpu_of_two(folder), command))),
    ("no procfs", |_, command| Some(in_mounts("umount -l /proc", command))),
    ("neither", |_, command| Some(in_mounts("umount -l /sys && umount -l /proc", command))),
    ("chroot", |folder, command| {
        let root = folder.join("root").display().to_string();
        Some(in_mounts(&bare_root(folder), &[&["chroot", &root][..], command].concat()))
    }),
    ("affinity of kymo alone", |_, command| wrapped(&["taskset", "-c", "0"], command)),
    ("affinity without sysfs", |_, command| {
        Some(in_mounts("umount -l /sys", &[&["taskset", "-c", "0"][..], command].concat()))
    }),
    ("user namespace", |_, command| wrapped(&["unshare", "-U", "-r"], command)),
    ("PID namespace", |_, command| wrapped(&["unshare", "-p", "--fork", "--mount-proc"], command)),
    ("cpuset cgroup", |_, command| in_cpuset(&last_cpu()?, command)),
    ("bubblewrap", |_, command| {
        let first =
            ["bwrap", "--dev-bind", "/", "/", "--proc", "/proc", "--tmpfs", "/sys", "--cap-add", "ALL"];
        wrapped(&first, command)
    }),
];

/// Task-clock in milliseconds, of a line of `stat -x,`.
fn task_clock(said: &Said) -> f64 {
    let lines = said.stderr.lines().chain(said.stdout.lines());
    let line = lines
        .filter(|line| line.contains("task-clock"))
        .find_map(|line| line.split(',').next()?.parse().ok());
    line.unwrap_or_else(|| panic!("no count: {}{}", said.stdout, said.stderr))
}

/// For how many samples of a millisecond the last words of `record` stand, lost ones included.
fn samples(said: &Said) -> f64 {
    let before = |words: &str| {
        let head = &said.stderr[..said.stderr.find(words)?];
        head.rsplit(['(', ' ']).find(|word| !word.is_empty())?.parse::<f64>().ok()
    };
    before(" samples) ]").unwrap_or_else(|| panic!("no samples: {}", said.stderr))
}

/// Runs kymo on a program that works on a CPU which the sandbox may hide; what it said.
fn observed(sandbox: Sandbox, folder: &Path, verb: &[&str], cpu: &str, program: &str) -> Option<Said> {
    let (kymo, work) = (kymo(), WORK_MS.to_string());
    let rest = ["--", "taskset", "-c", cpu, program, &work];
    let mut command = sandbox(folder, &[&[text(kymo.path())][..], verb, &rest].concat())?;
    Some(run(command.stdin(Stdio::null())))
}

/// Checks that all CPU time of a program is counted and sampled in every kind of sandbox, on
/// whichever CPU it runs and whatever is shown of CPUs there; or that a sentence says what is
/// missing. (No /sys, and lxcfs's view of it.)
#[test]
fn cpu_time_is_whole_in_sandboxes() {
    const TEST: &str = "sandboxes::cpu_time_is_whole_in_sandboxes";
    let needs = [Need::Root, Need::Program("unshare"), Need::Program("taskset"), Need::Program("cc")];
    let Some(()) = require(TEST, &needs) else { return };
    let Some(cpu) = last_cpu() else { return skip(TEST, "one CPU only") };
    let program = build("worked.c", &[]);
    let folder = tempdir().expect("a temporary folder");
    let file = folder.path().join("perf.data");
    for (name, sandbox) in SANDBOXES {
        let path = folder.path();
        let stat: &[&str] = &["stat", "-e", "task-clock", "-x,"];
        let Some(said) = observed(sandbox, path, stat, &cpu, text(&program)) else {
            skip(TEST, format!("[{name}] its program is not installed"));
            continue;
        };
        if said.code != Some(0) && !said.stderr.contains("kymo") {
            skip(TEST, format!("[{name}] {}", said.stderr));
            continue;
        }
        let counted = task_clock(&said);
        assert!(
            counted >= WORK_MS * 0.98 || said.stderr.contains("is missing"),
            "{name}: {counted}: {}",
            said.stderr
        );
        assert!(!matches!(name, "no sysfs" | "lxcfs") || counted >= WORK_MS * 0.98, "{name}: {counted}");
        let record: &[&str] = &["record", "-e", "cpu-clock", "-F", "1000", "-g", "-o", text(&file)];
        let Some(said) = observed(sandbox, path, record, &cpu, text(&program)) else { continue };
        let sampled = samples(&said);
        // The error of so many samples, and a busy machine that skips some.
        let least = WORK_MS - 3.0 * WORK_MS.sqrt() - 15.0;
        assert!(sampled >= least || said.stderr.contains("is missing"), "{name}: {sampled}: {}", said.stderr);
    }
}

/// Checks that all CPUs are counted without /sys and in lxcfs's view, and that doctor says how they
/// are known.
#[test]
fn all_cpus_without_sysfs() {
    const TEST: &str = "sandboxes::all_cpus_without_sysfs";
    let Some(()) = require(TEST, &[Need::Root, Need::Program("unshare")]) else { return };
    let folder = tempdir().expect("a temporary folder");
    let online = kymo_perf::sys::online_cpus().len();
    if online < 2 {
        return skip(TEST, "one CPU only");
    }
    let online_is = format!(", {online} CPUs");
    for before in ["umount -l /sys".to_owned(), one_cpu(folder.path())] {
        let kymo = kymo();
        let counted = run(&mut in_mounts(
            &before,
            &[text(kymo.path()), "stat", "-a", "-A", "-e", "cpu-clock", "-x,", "--", "true"],
        ));
        let rows = counted.stderr.lines().filter(|line| line.contains("cpu-clock")).count();
        assert_eq!(rows, online, "{before}: {}", counted.stderr);
        let said = run(&mut in_mounts(&before, &[text(kymo.path()), "doctor"]));
        said.prints(&online_is);
        said.prints("see all CPUs: /sys/devices/system/cpu/online");
    }
}

/// Checks that CPU time is taken from the kernel's account and not from samples: what a command
/// started and did not wait for is in the samples, and that is said.
#[test]
fn cpu_time_that_is_not_the_commands() {
    const TEST: &str = "sandboxes::cpu_time_that_is_not_the_commands";
    let Some(()) = require(TEST, &[Need::Program("cc"), Need::Program("setsid")]) else { return };
    let program = build("worked.c", &[]);
    let folder = tempdir().expect("a temporary folder");
    // The shell of the parentheses ends at once, and the program belongs to another process then.
    // It ends the pipe.
    let script = format!("(exec 3>&1; setsid {} 400 >&3 & ) | cat", text(&program));
    let file = folder.path().join("perf.data");
    let said = kymo().run(["record", "-e", "cpu-clock:uk", "-o", text(&file), "--", "sh", "-c", &script]);
    said.says("for which it did not wait");
}

/// Checks that a real-time program loses no sample where another CPU is free to empty its ring.
#[test]
fn real_time_programs_lose_nothing() {
    const TEST: &str = "sandboxes::real_time_programs_lose_nothing";
    let needs = [Need::Root, Need::Program("chrt"), Need::Program("taskset"), Need::Program("cc")];
    let Some(()) = require(TEST, &needs) else { return };
    let Some(cpu) = last_cpu() else { return skip(TEST, "one CPU only") };
    if !Command::new("chrt").args(["-f", "10", "true"]).status().is_ok_and(|status| status.success()) {
        return skip(TEST, "real-time priorities are refused here");
    }
    let program = build("worked.c", &[]);
    let folder = tempdir().expect("a temporary folder");
    let file = folder.path().join("perf.data");
    let rings = ["record", "-e", "cpu-clock", "-F", "999", "--call-graph", "dwarf,8192", "-m", "256"];
    let rest = ["-o", text(&file), "--", "taskset", "-c", &cpu, "chrt", "-f", "10", text(&program), "500"];
    let said = kymo().succeed(rings.iter().chain(&rest));
    said.says("lost 0 samples");
    // More than the ring holds, of which all were lost without another reader.
    assert!(samples(&said) > 200.0, "{}", said.stderr);
}

/// A memory cgroup below this process's, removed when it is dropped.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn create(bytes: u64) -> Result<MemoryGroup, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let line = own.lines().find_map(|line| line.split_once(":memory:"));
        let path = line.ok_or("no memory controller of the first generation")?.1.trim_start_matches('/');
        let parent = Path::new("/sys/fs/cgroup/memory").join(path);
        let group = parent.join(format!("kymo-test-{}", std::process::id()));
        fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        let group = MemoryGroup(group);
        let limit = fs::write(group.0.join("memory.limit_in_bytes"), bytes.to_string());
        limit.map(|()| group).map_err(|error| error.to_string())
    }

    fn run(&self, arguments: &[&str]) -> Said {
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        let kymo = kymo();
        let mut command = kymo.command([""; 0]);
        let mut inside = Command::new("sh");
        inside.args(["-c", &script, "sh", text(kymo.path())]).args(arguments);
        inside.envs(command.stdin(Stdio::null()).get_envs().filter_map(|(name, value)| Some((name, value?))));
        run(&mut inside)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// Checks that recorders live in a cgroup of 64 MiB by their own defaults, and say what they make
/// of it.
#[test]
fn small_memory_cgroup() {
    const TEST: &str = "sandboxes::small_memory_cgroup";
    let Some(()) = require(TEST, &[Need::Root, Need::Program("cc")]) else { return };
    let group = match MemoryGroup::create(64 << 20) {
        Ok(group) => group,
        Err(reason) => return skip(TEST, reason),
    };
    let program = build("worked.c", &[]);
    let folder = tempdir().expect("a temporary folder");
    let file = folder.path().join("perf.data");
    let (file, program) = (text(&file), text(&program));
    let verbs: [&[&str]; 5] = [
        &["record", "-a", "-o", file, "--", program, "300"],
        &["record", "-o", file, "--", program, "300"],
        &["record", "--wall", "-o", file, "--", program, "300"],
        &["locks", "-o", file, "--", program, "300"],
        &["top", "-a", "-n", "1"],
    ];
    for verb in verbs {
        let said = group.run(verb);
        assert_eq!(said.code, Some(0), "{verb:?}: {}", said.stderr);
        said.says("the cgroup limits memory to 64 MiB");
    }
}

/// Checks that a filter of system calls is named, by whichever error it refuses events, in place of
/// privileges that do not help; and where it refuses to start the command.
#[test]
fn filters_are_named() {
    const TEST: &str = "sandboxes::filters_are_named";
    let Some(()) = require(TEST, &[Need::Root, Need::Program("cc")]) else { return };
    let refuse = build("refuse.c", &[]);
    let kymo = kymo();
    let under = |error: i32, call: &str, arguments: &[&str]| {
        let mut command = Command::new(&refuse);
        command.arg(error.to_string()).arg(call).arg(kymo.path()).args(arguments);
        run(command.current_dir(std::env::temp_dir()).stdin(Stdio::null()))
    };
    let (refused, hidden) = (1, 38);
    for error in [refused, hidden] {
        for verb in [
            &["stat", "--", "true"][..],
            &["record", "--wall", "-o", "/dev/null", "--", "true"],
            &["locks", "--", "true"],
        ] {
            let said = under(error, "perf_event_open", verb);
            assert_ne!(said.code, Some(0), "{verb:?}: {}{}", said.stdout, said.stderr);
            said.says("seccomp filter");
            assert!(!said.stderr.contains("need root"), "{verb:?}: {}", said.stderr);
        }
    }
    let said = under(refused, "clone", &["record", "-o", "/dev/null", "--", "true"]);
    said.says("a seccomp filter of this process");
    assert!(!said.stderr.contains("chmod"), "{}", said.stderr);
}
