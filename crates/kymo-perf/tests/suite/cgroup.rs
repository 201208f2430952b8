//! Events bound to the cgroup of a command count all that it starts, and nobody else.

use kymo_perf::bpf::CgroupCounter;
use kymo_perf::cgroup::OwnCgroup;
use kymo_perf::sys::{Descriptor, EventTarget, Kernel as _, Perf, Real, attr_zeroed, bindings, online_cpus};
use kymo_perf::workload::{Exit, Workload};
use kymo_testing::skip;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::Command;

/// Counts page faults in a cgroup, one event per CPU.
struct Faults(Vec<Descriptor>);

impl Faults {
    fn open(cgroup: &OwnCgroup) -> io::Result<Faults> {
        let mut attr = attr_zeroed();
        (attr.type_, attr.config) = (Perf::SOFTWARE, u64::from(bindings::PERF_COUNT_SW_PAGE_FAULTS));
        let directory = cgroup.fd();
        let mut faults = Faults(Vec::new());
        for cpu in online_cpus() {
            let place = EventTarget { cgroup: Some(directory.as_fd()), ..EventTarget::cpu(cpu as i32) };
            faults.0.push(Real.open(&attr, &place)?);
        }
        Ok(faults)
    }

    fn count(&self) -> u64 {
        let read = |event| {
            let mut count = [0];
            assert_eq!(Real.read(event, &mut count).unwrap(), 1);
            count[0]
        };
        self.0.iter().map(read).sum()
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        Real.close(std::mem::take(&mut self.0));
    }
}

fn opened(test: &str) -> Option<(OwnCgroup, Faults)> {
    let cgroup = OwnCgroup::create().map_err(|error| skip(test, error)).ok()?;
    let faults = Faults::open(&cgroup).map_err(|error| skip(test, error)).ok()?;
    Some((cgroup, faults))
}

fn run_in(cgroup: &OwnCgroup, script: &str) {
    let mut command = Workload::prepare(&["sh", "-c", script].map(OsString::from)).unwrap();
    cgroup.add(command.pid()).unwrap();
    command.start().unwrap();
    assert_eq!(command.wait().unwrap(), Exit::Code(0), "{script}");
}

/// Checks that the command and its children are counted, and that what others do meanwhile and
/// afterwards is not.
#[test]
fn counts_the_command_only() {
    let Some((cgroup, faults)) = opened("cgroup::counts_the_command_only") else { return };
    let outsider =
        || assert!(Command::new("sh").args(["-c", "/bin/true; /bin/true"]).status().unwrap().success());
    outsider();
    assert_eq!(faults.count(), 0);
    run_in(&cgroup, ":");
    let alone = faults.count();
    assert!(alone > 0);
    run_in(&cgroup, "for i in 1 2 3 4 5 6 7 8; do /bin/true; done");
    let with_children = faults.count() - alone;
    assert!(with_children > 2 * alone, "{with_children} faults with eight children, {alone} without");
    let before = faults.count();
    outsider();
    assert_eq!(faults.count(), before);
    let path = cgroup.path().to_owned();
    cgroup.remove().unwrap();
    assert!(!path.exists());
    assert_eq!(faults.count(), before, "the events outlive the cgroup");
}

/// Checks that a daemon (own session, its parents gone) is counted until the cgroup is removed,
/// then no more, and that it lives on.
#[test]
fn counts_daemons() {
    let Some((cgroup, faults)) = opened("cgroup::counts_daemons") else { return };
    let directory = tempfile::tempdir().unwrap();
    let (orders, answers) = (directory.path().join("orders"), directory.path().join("answers"));
    for pipe in [&orders, &answers] {
        assert!(Command::new("mkfifo").arg(pipe).status().unwrap().success());
    }
    // It ends when its orders do.
    let (to, from) = (orders.display(), answers.display());
    let daemon = format!(
        "while read order; do for i in 1 2 3 4 5 6 7 8; do /bin/true; done; echo done; done < {to} > {from}"
    );
    run_in(&cgroup, &format!("setsid sh -c '({daemon}) &'"));
    let mut orders = File::create(&orders).unwrap();
    let mut answers = File::open(&answers).unwrap();
    let mut work = || {
        orders.write_all(b"work\n").unwrap();
        let mut done = [0; 5];
        answers.read_exact(&mut done).unwrap();
        faults.count()
    };
    let (first, second) = (work(), work());
    assert!(second > first + 100, "{first} faults, then {second}");
    assert_eq!(cgroup.remove().unwrap().moved, 1);
    let moved = faults.count();
    work();
    assert_eq!(work(), moved);
}

/// What the scheduler has accounted to a task that waits, ns.
fn waiting(task: i32) -> u64 {
    let look = || {
        let text = std::fs::read_to_string(format!("/proc/{task}/schedstat")).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    };
    loop {
        let (first, stat) = (look(), std::fs::read_to_string(format!("/proc/{task}/stat")).unwrap());
        if stat.contains(") S ") && look() == first {
            return first;
        }
        std::thread::yield_now();
    }
}

/// Checks that the CPU time of a child before its exec, which no event tells here, is what an event
/// of the child tells that ends at the exec. Also where the exec takes milliseconds or moves to
/// another CPU.
#[test]
fn cpu_time_before_the_exec() {
    let test = "cgroup::cpu_time_before_the_exec";
    let mut attr = attr_zeroed();
    (attr.type_, attr.config) = (Perf::SOFTWARE, Perf::SW_TASK_CLOCK);
    attr.set_remove_on_exec(1);
    let mut far = Vec::new();
    for round in 0..30 {
        let cgroup = OwnCgroup::create().inspect_err(|error| skip(test, error));
        let Ok(cgroup) = cgroup else { return };
        // Arguments are copied before the exec is decided.
        let mut words = vec![OsString::from("true")];
        words.extend(std::iter::repeat_n(OsString::from("x".repeat(100_000)), round % 3 * 8));
        let mut command = Workload::prepare_marking(&words).unwrap();
        cgroup.add(command.pid()).unwrap();
        let tally = CgroupCounter::start(cgroup.path(), command.pid(), &[]);
        let Ok(tally) = tally.inspect_err(|error| skip(test, error)) else { return };
        let before = waiting(command.pid());
        let event = Real.open(&attr, &EventTarget::new(command.pid(), -1)).unwrap();
        command.start().unwrap();
        command.wait().unwrap();
        let mut count = [0];
        Real.read(&event, &mut count).unwrap();
        Real.close(vec![event]);
        let counted = tally.read();
        assert!(counted.begun && counted.before_exec_ns > before, "{counted:?}, {before} before");
        far.push((counted.before_exec_ns - before).abs_diff(count[0]));
        cgroup.remove().unwrap();
    }
    far.sort_unstable();
    assert!(far[far.len() / 2] < 50_000, "ns between the two: {far:?}");
    println!("ns between the two: {far:?}");
}
