use super::find::{HierarchyVersion, below, membership, mounts};
use super::{CgroupError, OwnCgroup, Parent, disabled, leave, takes_events};
use crate::sys::Fake;
use crate::workload::{Exit, Workload};
use kymo_testing::skip;
use proptest::prelude::*;
use rustix::fs::{CWD, FlockOperation, Mode, flock, openat};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Long enough for any machine; nothing waits that long when it works.
const LONG: Duration = Duration::from_secs(600);

fn own(test: &str) -> Option<OwnCgroup> {
    let own = OwnCgroup::create().map_err(|error| skip(test, error)).ok()?;
    if !own.path().join("cgroup.type").exists() {
        skip(test, "events are bound to an old cgroup hierarchy here");
        return None;
    }
    Some(own)
}

fn shell(script: &str) -> Workload {
    Workload::prepare(&["sh", "-c", script].map(OsString::from)).unwrap()
}

/// The command in a cgroup, run to its end.
fn run_in(cgroup: &OwnCgroup, script: &str) {
    let mut command = shell(script);
    cgroup.add(command.pid()).unwrap();
    command.start().unwrap();
    assert_eq!(command.wait().unwrap(), Exit::Code(0), "{script}");
}

/// The line of the unified hierarchy.
fn cgroup_of(pid: i32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    text.lines().find(|line| line.starts_with("0::")).unwrap().to_owned()
}

/// A process that outlives its parent ends with the test.
struct Killed(i32);

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Checks that a kernel which has no place for events in a cgroup is found out by trying, with what
/// to do, and that other refusals are left to the events themselves.
#[test]
fn a_cgroup_without_place_for_events() {
    let directory = fs::File::open("/").unwrap();
    let takes = |errno: Option<i32>| {
        let kernel = Fake::new().rule(move |call| errno.filter(|_| call.cgroup));
        let taken = takes_events(&kernel, "/a".as_ref(), directory.as_fd());
        assert_eq!((kernel.live(), kernel.mistakes()), (vec![], vec![]));
        taken
    };
    let error = takes(Some(libc::ENOENT)).unwrap_err();
    let words = error.to_string();
    assert!(matches!(error, CgroupError::NoEvents { .. }), "{words}");
    assert!(words.contains("cgroup.subtree_control") && words.contains("--scope"), "{words}");
    assert!(takes(None).is_ok() && takes(Some(libc::EACCES)).is_ok());
}

/// Checks that a command runs in its cgroup, and that nothing of it stays.
#[test]
fn life() {
    let Some(cgroup) = own("cgroup::life") else { return };
    let path = cgroup.path().to_owned();
    let mut command = shell("grep -q /kymo-$PPID- /proc/self/cgroup");
    cgroup.add(command.pid()).unwrap();
    assert_eq!(cgroup.processes(), [command.pid()]);
    command.start().unwrap();
    assert_eq!(command.wait().unwrap(), Exit::Code(0));
    assert!(path.is_dir());
    leave::remove_stale(Parent::find().unwrap().directory.as_fd());
    assert!(path.is_dir(), "a living one's cgroup was taken for a dead one's");
    assert_eq!(cgroup.remove().unwrap().moved, 0);
    assert!(!path.exists());
}

/// Checks that a process that ended before it could be added is an error, and that 0, which means
/// the caller to the kernel, is one, too.
#[test]
fn add_nobody() {
    let Some(cgroup) = own("cgroup::add_nobody") else { return };
    for pid in [i32::MAX, 0, -1] {
        let error = cgroup.add(pid).unwrap_err().to_string();
        assert!(error.starts_with("cannot move the command into the cgroup /"), "{error}");
        assert!(error.contains("No such process"), "{error}");
    }
    assert!(cgroup.processes().is_empty());
}

/// Checks that a daemon (own session, parent gone) stays in the cgroup, and that it runs on in ours
/// when the cgroup is removed; also when the command has put it into a cgroup that it made itself,
/// even a threaded one.
#[test]
fn daemons_go_back() {
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pid");
    for (before, below) in [
        ("", ""),
        ("mkdir -p $CG/a/b && echo $$ > $CG/a/b/cgroup.procs &&", "/a/b"),
        ("mkdir $CG/a && echo threaded > $CG/a/cgroup.type && echo $$ > $CG/a/cgroup.procs &&", "/a"),
    ] {
        let Some(cgroup) = own("cgroup::daemons_go_back") else { return };
        let path = cgroup.path().to_owned();
        let daemon =
            format!("setsid sh -c 'sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > {}'", pids.display());
        run_in(&cgroup, &format!("CG={} && {before} {daemon}", path.display()));
        let daemon = Killed(fs::read_to_string(&pids).unwrap().trim().parse().unwrap());
        let inside = format!("/{}{below}", path.file_name().unwrap().display());
        assert!(cgroup_of(daemon.0).ends_with(&inside), "{}", cgroup_of(daemon.0));
        assert_eq!(cgroup.remove().unwrap().moved, 1, "{below}");
        assert!(!path.exists());
        assert_eq!(cgroup_of(daemon.0), cgroup_of(std::process::id() as i32));
    }
}

/// Checks that chains of processes that do nothing but fork and end are caught and moved out, too.
#[test]
fn forks_without_end() {
    let Some(cgroup) = own("cgroup::forks_without_end") else { return };
    let path = cgroup.path().to_owned();
    // The chains end when this directory is gone.
    let directory = tempfile::tempdir().unwrap();
    let chain = format!("x() {{ test -e {} && x & }}", directory.path().display());
    run_in(&cgroup, &format!("{chain}; for i in 1 2 3 4 5 6 7 8; do x; done"));
    assert!(cgroup.remove().unwrap().moved >= 8);
    assert!(!path.exists());
}

/// Checks that frozen processes stand still until they are thawed, and that removing the cgroup
/// leaves nobody frozen.
#[test]
fn freeze() {
    let Some(cgroup) = own("cgroup::freeze") else { return };
    let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut to, mut from) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
    cgroup.add(cat.id() as i32).unwrap();
    let mut byte = [0];
    assert!(cgroup.freeze(LONG).unwrap());
    to.write_all(b"a").unwrap();
    let mut ready = [rustix::event::PollFd::new(&from, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut ready, Some(&Default::default())).unwrap(), 0, "it ran");
    cgroup.thaw().unwrap();
    from.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"a");

    assert!(cgroup.freeze(LONG).unwrap());
    to.write_all(b"b").unwrap();
    assert_eq!(cgroup.remove().unwrap().moved, 1);
    from.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"b");
    drop(to);
    assert!(cat.wait().unwrap().success());
}

/// Checks which cgroups of earlier kymos are removed: empty ones, of exactly our names, whose owner
/// is dead and which nobody holds.
#[test]
fn stale() {
    let Some(cgroup) = own("cgroup::stale") else { return };
    // Not among everybody's, where other test runs tidy up, too.
    let parent = cgroup.path();
    let clean_up = || leave::remove_stale(cgroup.directory.as_fd());
    let mut ended = Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let dead = ended.id();
    let made = |name: String| {
        fs::create_dir(parent.join(&name)).unwrap();
        parent.join(name)
    };
    let empty = made(format!("kymo-{dead}-0"));
    let kept = [
        made("kymo-1-4000000000".into()),
        made(format!("kymo-{dead}-00")),
        made(format!("kymo-{dead}-1x")),
        made(format!("xkymo-{dead}-1")),
    ];
    let held = made(format!("kymo-{dead}-2"));
    let lock = openat(CWD, &held, super::find::directory_flags(), Mode::empty()).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockShared).unwrap();
    let used = made(format!("kymo-{dead}-3"));
    let mut user = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    fs::write(used.join("cgroup.procs"), user.id().to_string()).unwrap();
    fs::write(used.join("cgroup.freeze"), "1").unwrap();

    assert_eq!(clean_up(), 1);
    assert!(!empty.exists());
    assert!(kept.iter().all(|path| path.is_dir()) && held.is_dir() && used.is_dir());
    // Nobody else could thaw it: the program would not end when its input does.
    drop(user.stdin.take());
    assert!(user.wait().unwrap().success());
    drop(lock);
    assert_eq!(clean_up(), 2);
    assert!(!held.exists() && !used.exists());
    assert!(kept.iter().all(|path| path.is_dir()));
}

fn parent(path: PathBuf) -> Parent {
    Parent { directory: openat(CWD, &path, super::find::directory_flags(), Mode::empty()).unwrap(), path }
}

/// Checks the sentences for limits and threaded cgroups, in cgroups made to refuse.
#[test]
fn refusals() {
    let Some(cgroup) = own("cgroup::refusals") else { return };
    let (domain, threaded) = (cgroup.path().join("domain"), cgroup.path().join("domain/threaded"));
    fs::create_dir_all(&threaded).unwrap();
    fs::write(threaded.join("cgroup.type"), "threaded").unwrap();
    for (path, expected) in [(threaded, "threaded"), (domain, "domain threaded")] {
        match OwnCgroup::create_in(parent(path)) {
            Err(CgroupError::Threaded { kind, .. }) => assert_eq!(kind, expected),
            other => panic!("{other:?}"),
        }
    }
    fs::write(cgroup.path().join("cgroup.max.depth"), "0").unwrap();
    let error = OwnCgroup::create_in(parent(cgroup.path().to_owned())).unwrap_err();
    assert!(matches!(error, CgroupError::Limit(_)), "{error:?}");
    let shown = error.to_string();
    assert!(
        shown.contains(&*cgroup.path().to_string_lossy()) && shown.contains("cgroup.max.depth"),
        "{shown}"
    );
}

/// Checks which words the kernel's refusals become.
#[test]
fn words() {
    let error = |errno| {
        let error = std::io::Error::from_raw_os_error(errno);
        CgroupError::new("make a cgroup", "/sys/fs/cgroup/x".into(), error).to_string()
    };
    assert!(
        error(libc::EROFS).starts_with("cannot make a cgroup in /sys/fs/cgroup/x: it is mounted read-only; ")
    );
    for errno in [libc::EACCES, libc::EPERM] {
        assert!(
            error(errno)
                .starts_with("cannot make a cgroup in /sys/fs/cgroup/x: permission denied; run as root")
        );
        assert!(error(errno).contains("`systemd-run --user --scope -p Delegate=yes kymo ...`"));
    }
    assert!(error(libc::EAGAIN).contains("cgroup.max.descendants"));
    assert_eq!(
        error(libc::ENOENT),
        "cannot make a cgroup /sys/fs/cgroup/x: No such file or directory (os error 2)"
    );
}

/// The path of our cgroup as found in samples of the two files, with the kind of hierarchy.
fn found(mountinfo: &str, cgroup: &str) -> Option<(HierarchyVersion, Vec<PathBuf>)> {
    let own = membership(cgroup.as_bytes())?;
    let paths = mounts(mountinfo.as_bytes(), own.kind)
        .into_iter()
        .filter_map(|mount| Some(super::find::shown(&mount.point, &below(&mount.root, &own.path)?)));
    Some((own.kind, paths.collect()))
}

/// Checks where our cgroup is on machines with one hierarchy, with both kinds, in containers, and
/// where it is not to be seen.
#[test]
fn where_it_is() {
    let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    let at =
        |paths: &[&str]| Some((HierarchyVersion::V2, paths.iter().map(PathBuf::from).collect::<Vec<_>>()));
    assert_eq!(found(unified, "0::/\n"), at(&["/sys/fs/cgroup"]));
    let session = "0::/user.slice/user-1000.slice/session-2.scope\n";
    assert_eq!(found(unified, session), at(&["/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope"]));
    // Both kinds, as here: the old hierarchies do not have perf_event.
    let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                  39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                  41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    assert_eq!(found(hybrid, "8:pids:/x\n0::/a:b\n"), at(&["/sys/fs/cgroup/unified/a:b"]));
    // An old hierarchy has taken the events.
    let old = "35 31 0:30 / /sys/fs/cgroup/perf_event rw - cgroup cgroup rw,perf_event\n\
               36 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    assert_eq!(
        found(old, "5:net_cls,perf_event:/docker/1\n0::/x\n"),
        Some((HierarchyVersion::V1, vec!["/sys/fs/cgroup/perf_event/docker/1".into()]))
    );
    // A container that shares the host's names of cgroups but is shown only its own.
    let container = "900 880 0:26 /docker/1f /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n";
    assert_eq!(found(container, "0::/docker/1f\n"), at(&["/sys/fs/cgroup"]));
    assert_eq!(found(container, "0::/docker/1f/inner\n"), at(&["/sys/fs/cgroup/inner"]));
    assert_eq!(found(container, "0::/docker/1fe\n"), at(&[]));
    assert_eq!(found(container, "0::/other\n"), at(&[]));
    // Moved out of its own cgroup namespace.
    assert_eq!(found(unified, "0::/../sibling\n"), at(&[]));
    assert_eq!(found("1 2 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup rw\n", "0::/\n"), at(&[]));
    // Writable mounts first, the later of two before the earlier; spaces are escaped, and optional
    // fields may be many or none.
    let many = "1 0 0:9 / /ro ro - cgroup2 a rw\n2 0 0:9 / /first rw - cgroup2 a rw\n\
                3 0 0:9 / /a\\040b\\134 rw shared:1 master:2 unbindable - cgroup2 a rw\n4 0 0:9 / /super rw - cgroup2 a ro,x\n";
    assert_eq!(found(many, "0::/\n"), at(&["/a b\\", "/first", "/super", "/ro"]));
    assert_eq!(found("", "0::/\n"), at(&[]));
    assert_eq!(found(unified, ""), None);
}

/// Checks that a kernel without events for cgroups is told from one with them, and from one that
/// does not say.
#[test]
fn controller() {
    let line = |enabled| {
        format!("#subsys_name\thierarchy\tnum_cgroups\tenabled\nperf_event\t0\t1\t{enabled}\npids\t8\t1\t0\n")
    };
    assert!(disabled(line(0).as_bytes()));
    assert!(!disabled(line(1).as_bytes()) && !disabled(b""));
}

proptest! {
    /// Checks that no text breaks the readers, that what is found is an absolute path without `..`,
    /// and that a way down never leaves the mount.
    #[test]
    fn garbage(
        lines in prop::collection::vec(
            prop_oneof![
                any::<Vec<u8>>(),
                "[0-9: ]{0,9}(/|\\.\\.|[0-7\\\\])* (rw|ro)( -| [a-z:]*){0,3} cgroup2? [a-z]* (rw|perf_event|,)*".prop_map(String::into_bytes),
                "[0-9]{0,2}:(perf_event|,|)*:(/|\\.\\.|[ab])*".prop_map(String::into_bytes),
            ],
            0..8,
        ),
    ) {
        let text = lines.join(&b'\n');
        for kind in [HierarchyVersion::V1, HierarchyVersion::V2] {
            for mount in mounts(&text, kind) {
                prop_assert!(mount.point.is_absolute());
                if let Some(own) = membership(&text) && let Some(names) = below(&mount.root, &own.path) {
                    let shown = super::find::shown(&mount.point, &names);
                    prop_assert!(shown.starts_with(&mount.point));
                    let behind = shown.strip_prefix(&mount.point).unwrap();
                    prop_assert!(behind.components().all(|part| matches!(part, std::path::Component::Normal(_))));
                }
            }
        }
        let _ = disabled(&text);
        let _ = leave::owner(&text);
    }

    /// Checks that our names are recognised, and that no name that we would not write is.
    #[test]
    fn names(pid in 1..i32::MAX, number in any::<u32>(), other in "kymo-[-+0-9 ]{0,12}") {
        let ours = format!("kymo-{pid}-{number}");
        prop_assert_eq!(leave::owner(ours.as_bytes()), Some(pid));
        if let Some(pid) = leave::owner(other.as_bytes()) {
            let start = format!("kymo-{pid}-");
            prop_assert!(other.starts_with(&start));
            let number = &other[start.len()..];
            prop_assert_eq!(number.parse::<u32>().unwrap().to_string(), number);
        }
    }
}
