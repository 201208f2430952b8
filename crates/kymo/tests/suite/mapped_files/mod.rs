//! Names and build ids of the files that were mapped: in other roots and mount namespaces, deleted,
//! replaced, without a path. A name of another file is worse than none.

mod copies;
mod intervals;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kymo_symbols::SymbolOptions;
use kymo_symbols::build_id_cache::build_id_of;

use crate::programs::build;
use crate::scenario::{fresh_folder, run_alone, run_beside_others};
use crate::tools::{Need, Running, Said, kymo, ready, run, skip, text};

/// So many rounds take about half a second.
const ROUNDS: &str = "1000";

/// The program that runs, with the functions `work` and `even`.
fn right() -> PathBuf {
    build("two.c", &["-static"])
}

/// One that lies in its place for others, with the functions `travail` and `oeuf`.
fn wrong() -> PathBuf {
    build("two.c", &["-static", "-DFIRST=travail", "-DSECOND=oeuf"])
}

/// The program that runs, without a build id.
fn unidentified() -> PathBuf {
    build("two.c", &["-static", "-Wl,--build-id=none"])
}

/// A folder of a test, with its own cache of build ids and a recording.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn new(name: &str) -> Place {
        Place { folder: fresh_folder(&format!("mapped-{name}")) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Copies a program here.
    fn copy(&self, program: &Path, name: &str) -> PathBuf {
        let path = self.file(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::copy(program, &path).expect("copied");
        path
    }

    fn kymo(&self, words: &[&str]) -> Command {
        let mut command = kymo().command(words);
        command.env("PERF_BUILDID_DIR", self.file("cache")).current_dir(&self.folder);
        command
    }

    /// Records with these words; what it says.
    #[track_caller]
    fn record(&self, words: &[&str]) -> Said {
        let recording = self.file("perf.data");
        let start = ["record", "-e", "cpu-clock:u", "-F", "499", "-o", text(&recording)];
        let mut command = self.kymo(&[&start[..], words].concat());
        let said =
            if words.contains(&"-a") { run_alone(&mut command) } else { run_beside_others(&mut command) };
        said.ends(0)
    }

    /// Percentages of samples by name of function, of processes with this name.
    #[track_caller]
    fn shares(&self, comm: &str) -> BTreeMap<String, f64> {
        self.shares_of("perf.data", comm)
    }

    /// The same of another recording.
    #[track_caller]
    fn shares_of(&self, recording: &str, comm: &str) -> BTreeMap<String, f64> {
        let words = ["script", "-i", recording, "--hide-call-graph", "-F", "comm,ip,sym"];
        let said = run(&mut self.kymo(&words)).ends(0);
        let of_comm =
            said.stdout.lines().filter_map(|line| line.trim().strip_prefix(comm)?.strip_prefix(' '));
        let names: Vec<&str> =
            of_comm.map(|line| line.trim().split_once(' ').map_or("", |(_, name)| name)).collect();
        let mut shares = BTreeMap::new();
        for name in &names {
            *shares.entry((*name).to_owned()).or_default() += 100.0 / names.len() as f64;
        }
        shares
    }

    /// Checks that the two functions of the program that ran have nearly all of the time, and those
    /// of the other one none.
    #[track_caller]
    fn is_named(&self, comm: &str) {
        self.is_named_in("perf.data", comm);
    }

    /// The same of another recording.
    #[track_caller]
    fn is_named_in(&self, recording: &str, comm: &str) {
        let shares = self.shares_of(recording, comm);
        let share = |name: &str| shares.get(name).copied().unwrap_or(0.0);
        assert!(share("work") > 50.0 && share("even") > 0.0, "{shares:?}");
        assert!(share("work") + share("even") > 90.0, "{shares:?}");
        assert!(share("travail") + share("oeuf") == 0.0, "{shares:?}");
    }

    /// Build ids of the recording, of files with this name.
    fn build_ids(&self, name: &str) -> Vec<String> {
        let said = run(&mut self.kymo(&["buildid-list", "-i", "perf.data", "-H"])).ends(0);
        let lines = said.stdout.lines().filter(|line| {
            let path = line.split_once(' ').map_or("", |(_, path)| path);
            path.strip_suffix(" (deleted)").unwrap_or(path).ends_with(name)
        });
        lines
            .filter_map(|line| Some(line.split(' ').next()?.to_owned()))
            .filter(|id| !id.is_empty())
            .collect()
    }

    /// Whether each export names the program's function, and none the other one's.
    #[track_caller]
    fn exports_are_named(&self) {
        for format in ["speedscope", "folded"] {
            let out = self.file(format);
            run(&mut self.kymo(&["export", "-i", "perf.data", "--to", format, "-o", text(&out)])).ends(0);
            let exported = fs::read_to_string(&out).expect("text");
            assert!(exported.contains("work") && !exported.contains("travail"), "{format}: {exported}");
        }
    }
}

#[track_caller]
fn id_of(program: &Path) -> String {
    build_id_of(program, &SymbolOptions::default()).expect("linked with a build id")
}

/// A program that says that it is ready, and computes until it is dropped.
fn started(command: &mut Command) -> Running {
    let mut program = Running::start(command);
    assert_eq!(program.line(), "ready\n");
    program
}

/// A shell that runs `m/NAME` where only its own mount namespace has it: a copy of this program.
/// What records the whole machine sees the programs of other tests, too: each test has its name.
fn in_namespace(place: &Place, program: &Path, name: &str) -> Running {
    fs::create_dir_all(place.file("m")).expect("made");
    let script = "mount -t tmpfs none m && cp \"$1\" \"m/$2\" && exec \"$PWD/m/$2\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(program).arg(name).current_dir(&place.folder);
    started(&mut command)
}

fn has_namespaces(test: &str) -> bool {
    if !ready(test, &[Need::Root, Need::Program("unshare"), Need::Program("cc")]) {
        return false;
    }
    let works = run(Command::new("unshare").args(["-m", "true"])).code == Some(0);
    if !works {
        skip(test, "unshare -m does not work here");
    }
    works
}

/// Checks that a program of a private mount namespace has its own names and build id, while it runs
/// and after it has ended, though another program lies at its path here: by -p, -a, top, exports.
#[test]
fn private_mount_namespace_two_files_one_path() {
    if !has_namespaces("mapped_files::private_mount_namespace_two_files_one_path") {
        return;
    }
    let place = Place::new("namespace");
    let path = place.copy(&wrong(), "m/private");
    let program = in_namespace(&place, &right(), "private");
    let pid = program.pid();
    let words = ["top", "-p", &pid, "-n", "2", "-d", "400ms", "-e", "cpu-clock:u"];
    let said = run(&mut place.kymo(&words)).ends(0);
    assert!(said.stdout.contains("work") && !said.stdout.contains("travail"), "{}", said.stdout);
    for words in [&["-p", &pid, "--", "sleep", "0.5"][..], &["-a", "--", "sleep", "0.5"]] {
        let said = place.record(words);
        assert!(!said.stderr.contains("stripped (private"), "{}", said.stderr);
        place.is_named("private");
        assert_eq!(place.build_ids(text(&path)), [id_of(&right())], "{words:?}");
    }
    drop(program);
    place.is_named("private");
    place.exports_are_named();
}

/// Checks that of two containers with different programs at one path each has its own names, also
/// when both have ended, and that a file that comes to that path later names neither.
#[test]
fn two_containers_with_one_path() {
    if !has_namespaces("mapped_files::two_containers_with_one_path") {
        return;
    }
    let place = Place::new("containers");
    let third = build("two.c", &["-static", "-DFIRST=third", "-DSECOND=fourth"]);
    let (one, two) = (in_namespace(&place, &right(), "prog"), in_namespace(&place, &third, "prog"));
    let pids = format!("{},{}", one.pid(), two.pid());
    place.record(&["-p", &pids, "--", "sleep", "0.6"]);
    drop((one, two));
    place.copy(&wrong(), "m/prog");
    let shares = place.shares("prog");
    let share = |name: &str| shares.get(name).copied().unwrap_or(0.0);
    assert!(share("work") > 15.0 && share("third") > 15.0, "{shares:?}");
    assert!(share("work") + share("even") + share("third") + share("fourth") > 90.0, "{shares:?}");
    place.exports_are_named();
}

/// Checks that a program of a chroot that has ended has its own names and build id, where another
/// one lies at the same path here.
#[test]
fn chroot_that_ended() {
    if !ready("mapped_files::chroot_that_ended", &[Need::Root, Need::Program("chroot"), Need::Program("cc")])
    {
        return;
    }
    for (name, options) in [("chroot", &[][..]), ("chroot-system", &["-a"])] {
        let place = Place::new(name);
        let outside = place.copy(&wrong(), "rooted");
        let inside = format!("root{}", outside.display());
        place.copy(&right(), &inside);
        place.record(
            &[options, &["--", "chroot", text(&place.file("root")), text(&outside), ROUNDS]].concat(),
        );
        place.is_named("rooted");
        assert_eq!(place.build_ids(text(&outside)), [id_of(&right())]);
        place.exports_are_named();
    }
}

/// Checks that a program that is replaced while it is recorded keeps its names and its build id.
#[test]
fn replaced_while_recorded() {
    if !ready("mapped_files::replaced_while_recorded", &[Need::Program("cc"), Need::Program("mkfifo")]) {
        return;
    }
    let place = Place::new("replaced");
    place.copy(&right(), "prog");
    place.copy(&wrong(), "new");
    let script = "mkfifo said; ./prog 1500 > said & read line < said; mv new prog; wait";
    place.record(&["--", "sh", "-c", script]);
    place.is_named("prog");
    assert_eq!(place.build_ids("/prog"), [id_of(&right())]);
    place.exports_are_named();
}

/// Checks that a program that was replaced before it is attached to has its names, by record and
/// top, also when it has ended.
#[test]
fn replaced_before_attach() {
    if !ready("mapped_files::replaced_before_attach", &[Need::Program("cc")]) {
        return;
    }
    let place = Place::new("attach");
    let path = place.copy(&right(), "prog");
    let program = started(&mut Command::new(&path));
    fs::rename(place.copy(&wrong(), "new"), &path).expect("replaced");
    let pid = program.pid();
    let words = ["top", "-p", &pid, "-n", "2", "-d", "400ms", "-e", "cpu-clock:u"];
    let said = run(&mut place.kymo(&words)).ends(0);
    assert!(said.stdout.contains("work") && !said.stdout.contains("travail"), "{}", said.stdout);
    let said = place.record(&["-p", &pid, "--", "sleep", "0.5"]);
    assert!(!said.stderr.contains("stripped"), "{}", said.stderr);
    drop(program);
    place.is_named("prog");
    assert_eq!(place.build_ids("/prog"), [id_of(&right())]);
}

/// Checks that a program that removes its own file has names and its build id, with a build id by a
/// copy, and without one by names in the recording; and that -N makes no copy.
#[test]
fn deleted_program() {
    if !ready("mapped_files::deleted_program", &[Need::Program("cc")]) {
        return;
    }
    for (name, program) in [("deleted", right()), ("deleted-unidentified", unidentified())] {
        let place = Place::new(name);
        place.copy(&program, "prog");
        let said = place.record(&["--", "./prog", "1500", "unlink"]);
        assert!(!said.stderr.contains("stripped"), "{}", said.stderr);
        place.is_named("prog");
        let has_id = program == right();
        assert_eq!(said.stderr.contains("copied 1 file"), has_id, "{}", said.stderr);
        let ids = if has_id { vec![id_of(&program)] } else { Vec::new() };
        assert_eq!(place.build_ids("/prog"), ids);
        place.exports_are_named();
    }
    let place = Place::new("deleted-no-copy");
    place.copy(&right(), "prog");
    let said = place.record(&["-N", "--", "./prog", ROUNDS, "unlink"]);
    assert!(!said.stderr.contains("copied") && !place.file("cache").exists(), "{}", said.stderr);
    let said = run(&mut place.kymo(&["report", "-i", "perf.data", "--stdio"])).ends(0);
    assert!(!said.stdout.contains("travail") && !said.stderr.contains("stripped"), "{}", said.stderr);
}

/// Checks that a program which `go run` has built, and removed after it ran, has names.
#[test]
fn go_run() {
    if !ready("mapped_files::go_run", &[Need::Program("go")]) {
        return;
    }
    let place = Place::new("go");
    let source = "package main\n\nvar sum int\n\n//go:noinline\nfunc work(n int) {\n\tfor i := 0; i < n; i++ {\n\t\tsum += i * i\n\t}\n}\n\nfunc main() {\n\tfor i := 0; i < 300; i++ {\n\t\twork(3000000)\n\t}\n}\n";
    fs::write(place.file("main.go"), source).expect("written");
    fs::write(place.file("go.mod"), "module gorun\n\ngo 1.18\n").expect("written");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache");
    let mut command = place.kymo(&["record", "-e", "cpu-clock:u", "-F", "499", "-o", "perf.data", "--"]);
    command.args(["go", "run", "."]).env("GOCACHE", cache).env("GOFLAGS", "-mod=mod");
    let said = run_beside_others(&mut command).ends(0);
    assert!(!said.stderr.contains("stripped"), "{}", said.stderr);
    let shares = place.shares("gorun");
    assert!(shares.get("main.work").copied().unwrap_or(0.0) > 80.0, "{shares:?}\n{}", said.stderr);
}

/// Checks that a program that is executed from a memfd has its names and its build id, and is not
/// called generated code.
#[test]
fn memfd_program() {
    if !ready("mapped_files::memfd_program", &[Need::Program("python3"), Need::Program("cc")]) {
        return;
    }
    for (name, program) in [("memfd", right()), ("memfd-unidentified", unidentified())] {
        let place = Place::new(name);
        let script = "import os, sys; fd = os.memfd_create('prog', 0); os.write(fd, open(sys.argv[1], 'rb').read()); os.execv(f'/proc/self/fd/{fd}', ['prog', sys.argv[2]])";
        let said = place.record(&["--", "python3", "-c", script, text(&program), "400"]);
        for wrong in ["stripped", "without names"] {
            assert!(!said.stderr.contains(wrong), "{}", said.stderr);
        }
        // The kernel calls it by its descriptor.
        let comm = (3..9).map(|fd| fd.to_string()).find(|comm| !place.shares(comm).is_empty());
        place.is_named(&comm.expect("it was sampled"));
        let ids = if program == right() { vec![id_of(&program)] } else { Vec::new() };
        assert_eq!(place.build_ids("/memfd:prog"), ids);
    }
}

/// Checks that generated code in a memfd or a deleted file of /dev/shm is named by the program's
/// perf map, by record, after its end, and by top; and that no file is called stripped.
#[test]
fn memfd_jit_with_perf_map() {
    if !ready("mapped_files::memfd_jit_with_perf_map", &[Need::Program("cc")]) {
        return;
    }
    let program = build("memfdjit.c", &[]);
    for mode in ["memfd", "shm"] {
        let place = Place::new(&format!("jit-{mode}"));
        let said = place.record(&["--", text(&program), mode, "3000"]);
        assert!(!said.stderr.contains("stripped"), "{}", said.stderr);
        let shares = place.shares("memfdjit");
        let share = |name: &str| shares.get(name).copied().unwrap_or(0.0);
        assert!(share("jit_first") > 50.0 && share("jit_second") > 10.0, "{shares:?}");
        let words = ["top", "-n", "2", "-d", "400ms", "-e", "cpu-clock:u", "--"];
        let said = run(&mut place.kymo(&[&words[..], &[text(&program), mode, "1000000"]].concat())).ends(0);
        assert!(said.stdout.contains("jit_first"), "{}", said.stdout);
    }
}

/// Checks that a program whose file is gone before anything could read it is said to be that, and
/// nobody is told to install its debug symbols.
#[test]
fn a_file_that_is_gone_is_not_called_stripped() {
    if !ready("mapped_files::a_file_that_is_gone_is_not_called_stripped", &[Need::Program("cc")]) {
        return;
    }
    let place = Place::new("gone");
    let path = place.copy(&right(), "prog");
    place.record(&["-N", "--", "./prog", ROUNDS]);
    fs::remove_file(&path).expect("removed");
    let said = run(&mut place.kymo(&["report", "-i", "perf.data", "--stdio"])).ends(0);
    assert!(!said.stdout.contains("work"), "{}", said.stdout);
    assert!(!said.stderr.contains("stripped"), "{}", said.stderr);
}

/// Checks that --buildid-mmap takes build ids from the kernel, into the records of mappings, and
/// that perf reads them.
#[test]
fn build_ids_from_the_kernel() {
    if !ready("mapped_files::build_ids_from_the_kernel", &[Need::Root, Need::Perf, Need::Program("cc")]) {
        return;
    }
    let place = Place::new("kernel-ids");
    place.copy(&right(), "prog");
    let recording = place.file("perf.data");
    // Alone: the kernel marks the records of others, too.
    let words =
        ["record", "--buildid-mmap", "-e", "cpu-clock:u", "-o", text(&recording), "--", "./prog", ROUNDS];
    run_alone(&mut place.kymo(&words)).ends(0);
    let said = run(&mut place.kymo(&["script", "-i", "perf.data", "--show-mmap-events"])).ends(0);
    let id = id_of(&right());
    let mapping = said.stdout.lines().find(|line| line.contains("/prog") && line.contains("r-xp"));
    let mapping = mapping.unwrap_or_else(|| panic!("{}", said.stdout));
    if !mapping.contains(&id) {
        assert!(kernel_is_before(5, 12), "{mapping}");
        return skip("mapped_files::build_ids_from_the_kernel", "Linux before 5.12 has none");
    }
    place.is_named("prog");
    let by_perf = crate::tools::perf().succeed(["buildid-list", "-i", text(&recording)]);
    assert!(by_perf.stdout.contains(&id), "{}", by_perf.stdout);
}

fn kernel_is_before(major: u32, minor: u32) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (major, minor)
}
