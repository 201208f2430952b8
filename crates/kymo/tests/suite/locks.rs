//! `kymo locks`: locks for which threads wait in known ways, by their own clocks, and waits that
//! are no contention.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::programs::build;
use crate::reference::keys;
use crate::scenario::fresh_folder;
use crate::tools::{Need, Running, kymo, perf, require, run, skip, text};

const NEEDS: [Need; 2] = [Need::Root, Need::Program("cc")];

/// What the program `waits` said, what, thread, ns, and what kymo found.
struct LocksRun {
    said: Vec<(String, i64, u64)>,
    locks: Value,
}

/// Observes `waits` in a mode, with debug information, and these options; `None`, said, where that
/// is not possible.
fn observe(test: &str, options: &[&str], mode: &str) -> Option<LocksRun> {
    require(test, &NEEDS)?;
    let program = build("waits.c", &["-g"]);
    let found = kymo().run([&["locks", "--json"], options, &["--", text(&program), mode]].concat());
    if found.code == Some(77) {
        skip(test, "priorities are not permitted here");
        return None;
    }
    let found = found.ends(0);
    // What the program says stands before the object.
    let begin = found.stdout.find("\n{").map_or(0, |at| at + 1);
    let (said, json) = found.stdout.split_at(begin);
    let line = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    let locks = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {}", found.stdout));
    Some(LocksRun { said: said.lines().filter_map(line).collect(), locks })
}

impl LocksRun {
    /// What the program measured of a kind of wait, over all its threads.
    fn measured(&self, what: &str) -> u64 {
        self.said.iter().filter(|(said, ..)| said == what).map(|(.., ns)| ns).sum()
    }

    fn rows(&self) -> &Vec<Value> {
        self.locks["locks"].as_array().expect("a list")
    }

    /// The contended locks.
    fn contended(&self) -> Vec<&Value> {
        self.rows().iter().filter(|row| row["contention"] == true).collect()
    }

    fn named(&self, name: &str) -> &Value {
        let found = self.rows().iter().find(|row| row["name"] == name);
        found.unwrap_or_else(|| panic!("no lock {name}: {:#}", self.locks))
    }
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row:#}"))
}

/// Within a tenth and 10 ms: what lies between the program's clock and the kernel's is other
/// programs' work.
fn is_about(found: u64, measured: u64, what: &str) {
    let margin = measured / 10 + 10_000_000;
    assert!(found.abs_diff(measured) <= margin, "{what}: {found} ns, by the program's clock {measured} ns");
}

/// Checks a convoy at a lock: its name, how long threads waited for it, where, and who held it; the
/// same where programs run at tracepoints.
#[test]
fn convoy() {
    for options in [&[][..], &["--tracepoints"]] {
        let Some(found) = observe("locks::convoy", options, "convoy") else { return };
        assert_eq!(found.contended().len(), 1, "{:#}", found.locks);
        let lock = found.named("lock");
        assert_eq!(
            (&lock["kind"], &lock["exact"], &lock["module"]),
            (&"lock".into(), &true.into(), &"waits".into())
        );
        is_about(number(lock, "total_ns"), found.measured("convoy"), "the lock");
        // Who gives it back may take it again at once, and never wait.
        assert!((8..=12).contains(&number(lock, "waits")), "{lock:#}");
        assert!((3..=4).contains(&number(lock, "threads")) && number(lock, "most_waiting") <= 3, "{lock:#}");
        // Each holds it for 20 ms, and others may come between.
        assert!(number(lock, "p50_ns") >= 15_000_000 && number(lock, "p99_ns") <= number(lock, "max_ns"));
        assert!(number(lock, "max_ns") <= number(lock, "total_ns"));
        assert_eq!(lock["waiters"][0]["functions"][0], "wants_lock", "{lock:#}");
        assert_eq!(lock["holders"][0]["functions"][0], "holds_lock", "{lock:#}");
        let sum = |places: &str| -> u64 {
            lock[places].as_array().expect("a list").iter().map(|place| number(place, "time_ns")).sum()
        };
        assert_eq!(sum("waiters"), number(lock, "total_ns"), "{lock:#}");
        assert!(sum("holders") * 10 >= number(lock, "total_ns") * 9, "{lock:#}");
    }
}

/// Checks that a lock in an element of a table has the names of both, and that one on the heap has
/// its address and the function that takes it.
#[test]
fn names_of_fields() {
    let Some(found) = observe("locks::names_of_fields", &[], "fields") else { return };
    let shelf = found.named("shelves[2].lock");
    is_about(number(shelf, "total_ns"), found.measured("shelf"), "the shelf");
    assert_eq!(shelf["waiters"][0]["functions"][0], "wants_shelf");
    assert_eq!(shelf["holders"][0]["functions"][0], "holds_shelf");
    let of = |row: &&&Value| row["waiters"][0]["functions"][0] == "wants_catalogue";
    let catalogue = *found.contended().iter().find(of).unwrap_or_else(|| panic!("{:#}", found.locks));
    assert_eq!((&catalogue["name"], &catalogue["kind"]), (&Value::Null, &"lock".into()));
    assert!(catalogue["address"].as_str().is_some_and(|address| address.starts_with("0x")));
    assert_eq!(catalogue["holders"][0]["functions"][0], "holds_catalogue", "{catalogue:#}");
    is_about(number(catalogue, "total_ns"), found.measured("catalogue"), "the catalogue");
}

/// Checks that waits on conditions, and for the ends of threads, are no contention.
#[test]
fn conditions_are_no_contention() {
    let Some(found) = observe("locks::conditions_are_no_contention", &[], "chain") else { return };
    assert!(found.contended().is_empty(), "{:#}", found.locks);
    assert_eq!(found.locks["total_ns"], 0);
    let conditions: u64 =
        found.rows().iter().filter(|row| row["kind"] == "condition").map(|row| number(row, "total_ns")).sum();
    // Two threads wait, one for the other.
    is_about(conditions, 2 * found.measured("chain"), "the conditions");
}

/// Checks an inversion of priorities: the lock's holder is the one that has no CPU.
#[test]
fn inversion_of_priorities() {
    let Some(found) = observe("locks::inversion_of_priorities", &[], "inversion") else { return };
    let lock = found.named("lock");
    is_about(number(lock, "total_ns"), found.measured("inversion"), "the lock");
    assert_eq!(lock["waiters"][0]["functions"][0], "wants_lock", "{lock:#}");
    assert_eq!(lock["holders"][0]["functions"][0], "holds_long", "{lock:#}");
    assert_eq!(number(lock, "waits"), 1, "{lock:#}");
}

/// Checks that a pool of 64 workers with nothing to do is no finding.
#[test]
fn idle_pool_is_no_finding() {
    let Some(found) = observe("locks::idle_pool_is_no_finding", &[], "pool") else { return };
    assert!(found.contended().is_empty(), "{:#}", found.locks);
    let pool = found.rows().first().unwrap_or_else(|| panic!("{:#}", found.locks));
    assert_eq!(number(pool, "most_waiting"), 64, "{pool:#}");
    assert!(number(pool, "total_ns") > 64 * 200_000_000, "{pool:#}");
}

/// Checks a process that waits already when kymo comes, and ends while it is observed; and that
/// processes that come and go do no harm.
#[test]
fn processes_that_end_meanwhile() {
    const TEST: &str = "locks::processes_that_end_meanwhile";
    if require(TEST, &NEEDS).is_none() {
        return;
    }
    let program = build("waits.c", &["-g"]);
    let mut command = Command::new("sh");
    command.args([
        "-c",
        &format!("read go; {0} convoy >/dev/null; exec {0} convoy >/dev/null", program.display()),
    ]);
    let mut observed = Running::start(&mut command);
    let pid = observed.pid();
    let mut locks = kymo().command(["locks", "-q", "--json", "-p", &pid]);
    locks.stdout(std::process::Stdio::piped());
    let locks = locks.spawn().expect("kymo starts");
    // It is ready some time; what it misses are whole programs at most.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    observed.tell("go\n");
    let output = locks.wait_with_output().expect("it ends with what it observes");
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let named = json["locks"].as_array().expect("a list").iter().filter(|row| row["name"] == "lock");
    assert!(named.count() >= 1, "{json:#}");
}

/// Checks two threads that have each the lock that the other wants, since before they were
/// observed: both locks have names, one waiter each, and its place.
#[test]
fn deadlock_that_was_there_before() {
    const TEST: &str = "locks::deadlock_that_was_there_before";
    if require(TEST, &NEEDS).is_none() {
        return;
    }
    let mut observed = Running::start(Command::new(build("waits.c", &["-g"])).arg("deadlock"));
    assert!(observed.line().starts_with("deadlock"));
    let pid = observed.pid();
    let json = kymo().succeed(["locks", "-q", "--json", "-p", &pid, "-d", "0.5"]).json();
    assert_eq!(observed.end().1, Some(0), "it goes on");
    for lock in ["account_a", "account_b"] {
        let mut rows = json["locks"].as_array().expect("a list").iter();
        let row = rows.find(|row| row["name"] == lock).unwrap_or_else(|| panic!("no {lock}: {json:#}"));
        assert!(row["kind"] == "lock" && row["waiting"] == 1, "{json:#}");
        assert!(row["waiters"].to_string().contains("transfers"), "{json:#}");
    }
}

/// Checks that the recording is read again with the same result, by `kymo locks`; that other
/// recordings are none of locks; and that perf reads it.
#[test]
fn recordings() {
    const TEST: &str = "locks::recordings";
    let folder = fresh_folder("locks-recording");
    let file = folder.join("locks.data");
    let Some(found) = observe(TEST, &["-o", text(&file)], "convoy") else { return };
    let again = kymo().succeed(["locks", "--json", "-i", text(&file)]).json();
    assert_eq!(again, found.locks);
    let table = kymo().succeed(["locks", "-i", text(&file)]).stdout;
    for words in
        ["lock  (waits, process ", "waits in 100.00%  wants_lock < in_convoy", "held by 100.00%  holds_lock"]
    {
        assert!(table.contains(words), "{table}");
    }
    let plain = folder.join("plain.data");
    kymo().succeed(["record", "-e", "cpu-clock", "-o", text(&plain), "--", "true"]);
    kymo().run(["locks", "-i", text(&plain)]).ends(129).says("record with `kymo locks -o FILE`");
    if require(TEST, &[Need::Perf]).is_none() {
        return;
    }
    let fields = perf().succeed(["script", "-F", "tid,event,trace", "-i", text(&file)]).stdout;
    assert!(fields.contains("lock-wait:") && fields.contains(" address="), "{fields}");
    assert!(fields.contains("lock-sums:"), "{fields}");
}

/// Checks what is refused: no target, an ordinary user, a folder in the way.
#[test]
fn refusals() {
    const TEST: &str = "locks::refusals";
    kymo().run(["locks"]).ends(129).says("nothing to observe: name processes with -p");
    if require(TEST, &[Need::Root]).is_none() {
        return;
    }
    let folder = fresh_folder("locks-refusals");
    std::fs::create_dir(folder.join("locks.data")).expect("its own folder");
    let said = kymo().run(["locks", "-o", text(&folder.join("locks.data")), "--", "true"]);
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    kymo().run(["locks", "-o", "-", "--", "true"]).ends(129).says("-o wants a file");
    kymo().run(["locks", "--", "/nowhere"]).ends(255).says("failed to execute /nowhere");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(kymo().path());
    let said = run(command.args(["locks", "--", "true"]));
    if said.stderr.contains("setpriv") {
        return skip(TEST, "setpriv is not there");
    }
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    said.says("locks cannot be observed: ").says("run kymo as root");
}

/// Checks that docs/reference/formats/locks-json.md lists every key of the JSON and no other.
#[test]
fn the_document_lists_every_key() {
    let document = include_str!("../../../../docs/reference/formats/locks-json.md");
    let listed: BTreeSet<String> = document
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned()))
        .collect();
    let Some(found) = observe("locks::the_document_lists_every_key", &["--holds"], "convoy") else { return };
    let mut of_json = BTreeSet::new();
    keys(&found.locks, "", &mut of_json);
    assert_eq!(of_json, listed);
}

/// Checks real programs: the lock of a program in Rust by the name of its variable.
#[test]
fn a_lock_of_rust() {
    const TEST: &str = "locks::a_lock_of_rust";
    if require(TEST, &[Need::Root, Need::Program("rustc")]).is_none() {
        return;
    }
    let folder: PathBuf = fresh_folder("locks-rust");
    let source = folder.join("contended.rs");
    std::fs::write(
        &source,
        "use std::{sync::Mutex, thread, time::Duration};
static STATE: Mutex<u64> = Mutex::new(0);
#[inline(never)]
fn takes_state() {
    {
        let mut state = STATE.lock().unwrap();
        *state += 1;
        thread::sleep(Duration::from_millis(5));
    }
    std::hint::black_box(());
}
fn main() {
    let threads: Vec<_> =
        (0..3).map(|_| thread::spawn(|| (0..10).for_each(|_| takes_state()))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
",
    )
    .expect("its own folder");
    let program = folder.join("contended");
    let mut rustc = Command::new("rustc");
    let built = run(rustc.args(["-g", "-O", "-o", text(&program), text(&source)]));
    if built.code != Some(0) {
        return skip(TEST, format!("rustc: {}", built.stderr));
    }
    let json = kymo().succeed(["locks", "-q", "--json", "--", text(&program)]).json();
    let lock = &json["locks"][0];
    assert!(lock["name"].as_str().is_some_and(|name| name.ends_with("::STATE")), "{json:#}");
    assert_eq!(lock["kind"], "lock", "{json:#}");
    let place = |places: &str| lock[places][0]["functions"][0].as_str().unwrap_or("").to_owned();
    assert!(place("waiters").ends_with("::takes_state"), "{json:#}");
    assert!(place("holders").ends_with("::takes_state"), "{json:#}");
}
