//! `kymo stat --tasks`: what a program counts of its own tasks is what kymo shows.
use std::path::Path;
use std::process::{Command, Stdio};

use kymo_agent::table;
use kymo_agent::task::{Counter, Group, count, publish};
use serde_json::Value;

use crate::tools::{Need, Running, kymo, require, run};

/// Has this very program run as one with tasks, in `tasks::a_program_with_tasks`.
const AS_PROGRAM: &str = "KYMO_TEST_PROGRAM_WITH_TASKS";

/// No test unless asked for: a program with tasks of known counts, which shows them, says so and waits for a line before it ends.
#[test]
fn a_program_with_tasks() {
    if std::env::var_os(AS_PROGRAM).is_none() {
        return;
    }
    publish().expect("memory for a table");
    let group = Group::builder("known").per_task().count(Counter::Own(0)).build().expect("a group");
    let sums = Group::builder("sums").count(Counter::Own(0)).build().expect("a group");
    let tasks: Vec<_> = [1, 20, 300]
        .into_iter()
        .map(|hits| {
            let mut task = group.task(format!("hits \x1b[31m{hits}")).expect("a task");
            (0..hits).for_each(|_| task.scope(|| count(0, 1)).expect("it runs"));
            task
        })
        .collect();
    let mut only = sums.task("only sums").expect("a task");
    only.scope(|| count(0, 4000)).expect("it runs");
    println!("\nready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    if line == "go on\n" {
        only.scope(|| count(0, 7)).expect("it runs");
        drop((tasks, group));
    }
}

fn program() -> Command {
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program.args(["tasks::a_program_with_tasks", "--exact", "--nocapture"]).env(AS_PROGRAM, "1");
    program
}

/// Starts a program and waits until it is ready. The rest of what it prints is little.
fn waiting(program: &mut Command) -> Running {
    let mut program = Running::start(program);
    while program.line() != "ready\n" {
        assert!(program.child.try_wait().expect("a child").is_none(), "the program did not come so far");
    }
    program
}

/// Whether this descriptor is of a table that holds an answer.
fn has_answered(fd: &Path) -> bool {
    let is_table = std::fs::read_link(fd).is_ok_and(|link| link.to_string_lossy().starts_with(table::LINK));
    let bytes = if is_table { std::fs::read(fd).unwrap_or_default() } else { Vec::new() };
    table::header(&bytes).is_ok_and(|header| header.newest.is_some())
}

fn group<'a>(shown: &'a Value, name: &str) -> &'a Value {
    let groups = shown["groups"].as_array().expect("groups");
    groups.iter().find(|group| group["name"] == name).unwrap_or_else(|| panic!("no {name} in {shown}"))
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Checks that a running program's groups and tasks are shown with exactly the counts that it made, as JSON and as a table in which names
/// cannot act on the terminal.
#[test]
fn a_running_programs_tasks_are_shown() {
    let program = waiting(&mut program());
    let pid = program.pid();
    let said = kymo().succeed(["stat", "--tasks", "-j", "-p", &pid]);
    let [shown] = &lines(&said.stdout)[..] else { panic!("{}", said.stdout) };
    assert_eq!(shown["schema"], "kymo-stat-tasks");
    assert_eq!(
        (&shown["last"], &shown["problem"], &shown["span_ns"]),
        (&false.into(), &Value::Null, &Value::Null)
    );
    let known = group(shown, "known");
    assert_eq!(
        (&known["counts"]["own:0"], &known["switches"], &known["spawned"]),
        (&321.into(), &321.into(), &3.into())
    );
    let mut tasks = Vec::new();
    for task in known["tasks"].as_array().expect("tasks") {
        assert_eq!(task["switches"], task["counts"]["own:0"]);
        assert!(task["counts"]["cpu-time"].as_u64() > Some(0), "{task}");
        tasks.push(task["name"].as_str().expect("a name").to_owned());
    }
    assert_eq!(tasks, ["hits \x1b[31m1", "hits \x1b[31m20", "hits \x1b[31m300"]);
    let sums = group(shown, "sums");
    assert_eq!(
        (&sums["counts"]["own:0"], &sums["tasks"][0]["counts"]["own:0"]),
        (&4000.into(), &Value::Null)
    );

    let table = kymo().succeed(["stat", "--tasks", "-p", &pid]).stdout;
    assert!(!table.contains('\x1b'), "{table}");
    let row = table
        .lines()
        .find(|line| line.ends_with("known (3 tasks, 3 live)"))
        .unwrap_or_else(|| panic!("{table}"));
    assert!(row.split_whitespace().any(|cell| cell == "321"), "{row}");
    assert!(table.contains("the group keeps sums only"), "{table}");
}

/// Checks that spans show what was added in them: nothing, for tasks that rest, but totals that stay.
#[test]
fn spans_show_what_was_added() {
    let program = waiting(&mut program());
    let said =
        kymo().succeed(["stat", "--tasks", "-j", "-I", "20", "--interval-count", "2", "-p", &program.pid()]);
    let shown = lines(&said.stdout);
    assert_eq!(shown.len(), 2);
    for shown in &shown {
        assert!(shown["span_ns"].as_u64() >= Some(20_000_000), "{shown}");
        assert_eq!(group(shown, "known")["counts"]["own:0"], 0);
        assert_eq!(group(shown, "known")["tasks"][2]["switches"], 0);
    }
}

/// Checks that a command's totals are told at its end, with what it did last and groups that are gone by then, and that its status is passed on.
#[test]
fn a_commands_totals_come_at_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("tasks.json");
    let mut command = kymo().command(["stat", "--tasks", "-j", "-o"]);
    command.arg(&out).arg("--");
    let own = program();
    command.arg(own.get_program()).args(own.get_args()).env(AS_PROGRAM, "1");
    // kymo waits for the program, and so do we: kymo has looked at it once it asked for the last word.
    let mut waiting = waiting(&mut command);
    let kymos = format!("/proc/{}/fd", waiting.pid());
    let asked =
        || std::fs::read_dir(&kymos).is_ok_and(|fds| fds.flatten().any(|fd| has_answered(&fd.path())));
    while !asked() {
        std::thread::yield_now();
    }
    waiting.tell("go on\n");
    assert_eq!(waiting.end().1, Some(0));
    let shown = lines(&std::fs::read_to_string(&out).expect("written"));
    let [.., last] = &shown[..] else { panic!("nothing was told") };
    assert_eq!(last["last"], true, "{last}");
    let known = group(last, "known");
    assert_eq!(
        (&known["number"], &known["counts"]["own:0"]),
        (&0.into(), &321.into()),
        "gone, and not forgotten"
    );
    assert_eq!(group(last, "sums")["counts"]["own:0"], 4007);

    let status =
        run(kymo().command(["stat", "--tasks", "--", "sh", "-c", "exit 7"]).stdin(Stdio::null())).ends(7);
    status.says("the command showed no tasks");
}

/// Checks that whatever has no tasks to show is told in words, with what to do.
#[test]
fn who_shows_no_tasks_is_told() {
    let own = std::process::id().to_string();
    let refused = |arguments: &[&str], code: i32, words: &str| {
        kymo().run(["stat", "--tasks"].iter().chain(arguments)).ends(code).says(words);
    };
    refused(&["-p", &own], 1, "does not show tasks");
    refused(&["-p", "4194999"], 1, "there is no process 4194999");
    refused(&[], 129, "--tasks is for one process");
    refused(&["-p", &format!("{own},1")], 129, "--tasks is for one process");
    refused(&["-p", &own, "-e", "page-faults"], 129, "cannot be used with");
    refused(&["--", "/there/is/no/such/program"], 255, "such file or directory (os error 2); check its name");
}

/// Checks that processes that show nonsense, or lead the request elsewhere, are refused in words: nothing is believed, nothing hangs, nothing is
/// written to what is no pipe.
#[test]
fn tables_that_lie_are_refused() {
    const NAME: &str = "tasks::tables_that_lie_are_refused";
    let Some(()) = require(NAME, &[Need::Program("python3")]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let bait = folder.path().join("bait");
    std::fs::write(&bait, "untouched").expect("a writable folder");
    // A table as kymo-agent's, with parts to be replaced.
    let lie = |what: &str| {
        let script = format!(
            r#"
import os, struct, sys
fd = os.memfd_create("kymo-tasks")
pid, request = os.getpid(), os.open({bait:?}, os.O_RDWR)
reading, writing = os.pipe()
def header(pid=pid, request=writing, magic=b"kymotask", version=1, number=0, offset=4096, size=0, check=0):
    os.pwrite(fd, struct.pack("<8sIIIi40x4Q32x", magic, version, 64, pid, request, number, offset, size, check), 0)
{what}
print("ready", flush=True)
sys.stdin.readline()
"#
        );
        let process = waiting(Command::new("python3").args(["-c", &script]));
        let said = kymo().run(["stat", "--tasks", "-p", &process.pid()]);
        assert_eq!((said.code, said.stdout.as_str()), (Some(1), ""), "{what}: {}", said.stderr);
        said.stderr
    };
    assert!(lie("os.pwrite(fd, b'x' * 500, 0)").contains("does not begin as a table of tasks"));
    assert!(lie("os.pwrite(fd, b'kymo', 0)").contains("too short"));
    assert!(lie("header(version=9)").contains("version"));
    assert!(lie("header(pid=1)").contains("was forked from process 1"));
    assert!(lie("header(number=1, size=1 << 60)").contains("where none can be"));
    assert!(lie("header(request=request)").contains("the place to ask is"), "a file is no pipe");
    assert!(lie("header(request=999)").contains("cannot be asked"));
    // It reads the question and answers with rubbish: of the right checksum, so that it comes to the rows.
    let answer = "header()\nimport threading\n\
        rubbish = b'\\xff' * 64\nsum = 0xcbf29ce484222325\n\
        for at in range(0, 64, 8): sum = ((sum ^ int.from_bytes(rubbish[at:at + 8], 'little')) * 0x100000001b3) % 2 ** 64\n\
        def answer():\n  os.read(reading, 1)\n  os.pwrite(fd, rubbish, 4096)\n  header(number=1, size=64, check=sum)\n\
        threading.Thread(target=answer, daemon=True).start()";
    assert!(lie(answer).contains("is not as it should be"));
    assert!(lie("header()").contains("did not tell its tasks"), "never answers");
    assert_eq!(std::fs::read_to_string(&bait).expect("readable"), "untouched");
}

/// Checks that docs/reference/formats/tasks-json.md lists every key of the JSON and no other.
#[test]
fn the_document_lists_every_key() {
    let document = include_str!("../../../../docs/reference/formats/tasks-json.md");
    let mut listed: Vec<&str> =
        document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let program = waiting(&mut program());
    let said = kymo().succeed(["stat", "--tasks", "-j", "-p", &program.pid()]);
    let shown = &lines(&said.stdout)[0];
    let mut keys = Vec::new();
    let of = |prefix: &str, object: &Value| -> Vec<String> {
        let object = object.as_object().expect("an object");
        object.keys().map(|key| format!("{prefix}{key}")).collect()
    };
    keys.extend(of("", shown));
    keys.extend(of("groups[].", group(shown, "known")));
    keys.extend(of("groups[].tasks[].", &group(shown, "known")["tasks"][0]));
    listed.sort_unstable();
    keys.sort_unstable();
    assert_eq!(listed, keys);
}
