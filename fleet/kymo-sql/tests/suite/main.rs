//! kymo-sql as its users run it: the program, with datasets that kymo's own writer has made.
//!
//! | file | what it checks |
//! |---|---|
//! | `answers.rs` | answers and their formats |
//! | `refusals.rs` | what is wrong with a query or a dataset, in one sentence |

mod answers;
mod refusals;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

use kymo_dataset::rows::ON_CPU;
use kymo_dataset::{
    BuildRow, DatasetFolder, DatasetWriter, EventRow, FrameKind, FrameRow, HostRow, LocationRow, ProcessRow,
    SampleValue,
};
use tempfile::TempDir;

/// 2026-11-26 08:00 UTC.
const START_NS: i64 = 1_795_680_000_000_000_000;
const DAY_NS: i64 = 86_400_000_000_000;

/// Two hosts, two days, two services: `web` takes 2 ms in `parse`, called by `main`, for each day
/// that has passed, and `db` 3 ms in a function without a name.
fn dataset() -> TempDir {
    let target = tempfile::tempdir().expect("a folder");
    let folder = DatasetFolder::open_or_create(&target.path().join("profiles")).expect("a dataset");
    for host in ["a", "b"] {
        for day in [0, 1] {
            let start_ns = START_NS + day * DAY_NS;
            for file in files(host, day, start_ns) {
                folder.put(&file).expect("a file");
            }
        }
    }
    target
}

fn files(host: &str, day: i64, start_ns: i64) -> Vec<kymo_dataset::DatasetFile> {
    let row = HostRow { host: host.to_owned(), cpus: 2, rate_hz: 19.0, ..HostRow::default() };
    let mut writer = DatasetWriter::new(row, start_ns, 0);
    for build in ["01", "02"] {
        writer.build(BuildRow {
            build_id: build.to_owned(),
            path: "/usr/bin/web".to_owned(),
            module: "web".to_owned(),
            arch: "x86_64".to_owned(),
            first_seen_ns: start_ns,
            code_bias: None,
        });
    }
    let build = if day == 0 { "01" } else { "02" };
    let mut location = |function, module, address| {
        let frames = [FrameRow { function, file: None, line: None }];
        let build_id = Some(build);
        writer.location(&LocationRow { module, build_id, address, kind: FrameKind::User, frames: &frames })
    };
    let main = location(Some("main"), "web", 16);
    let parse = location(Some("parse"), "web", 32);
    let nameless = location(None, "db", 16);
    let web_stack = writer.stack(&[parse, main]);
    let db_stack = writer.stack(&[nameless]);
    let web = writer.process(&ProcessRow { pid: 1, command: "web", ..ProcessRow::default() });
    let db = writer.process(&ProcessRow { pid: 2, command: "db", ..ProcessRow::default() });
    let clock = EventRow { event: "cpu-clock", value_unit: "ns", state: ON_CPU, waker: None };
    let wait = EventRow { event: "wall-time", value_unit: "ns", state: "lock", waker: Some("web") };
    let (on_cpu, lock) = (writer.event(&clock), writer.event(&wait));
    let value = |value| SampleValue { time_ns: start_ns, value, samples: 1 };
    writer.sample(web, on_cpu, web_stack, value(2_000_000 * (day + 1))).expect("a sample");
    writer.sample(db, on_cpu, db_stack, value(3_000_000)).expect("a sample");
    writer.sample(db, lock, db_stack, value(5_000_000)).expect("a sample");
    writer.finish().expect("files")
}

/// What the program printed, and its status.
struct Ran {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

fn kymo_sql(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kymo-sql"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("AWS_") || name.starts_with("GOOGLE_") || name.starts_with("AZURE_") {
            command.env_remove(name);
        }
    }
    command.args(words);
    command
}

fn run(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().expect("a program that starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { status: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// The answer of a query, which succeeds.
fn ask(words: &[&str], dataset: &Path) -> String {
    let ran = run(kymo_sql(words).arg(dataset));
    assert_eq!((ran.status, &*ran.stderr), (Some(0), ""), "{words:?}");
    ran.stdout
}
