//! `kymo sched` beside `perf sched` of three releases, beside the kernel's own counts, and on
//! recordings that are damaged or have no such events.

mod beside_perf;
mod own;

use std::path::{Path, PathBuf};

use crate::tools::{Said, Tool, kymo, text};

/// Shells that compete for the CPUs, sleep, and start programs that wait for each other.
const LOAD: &str = "for n in 1 2 3; do (i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; sleep 0.05; \
                    i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done) & done; \
                    for i in 1 2 3 4 5 6 7 8 9; do echo hi | cat >/dev/null; done; wait";

/// The events of `perf sched record`, without those that the kernel may lack.
const EVENTS: &str = "sched:sched_switch,sched:sched_waking,sched:sched_wakeup_new,\
                      sched:sched_migrate_task,sched:sched_stat_runtime";

/// A view of a recording.
fn view(tool: &Tool, file: &Path, words: &[&str]) -> Said {
    tool.succeed([&["sched"], words, &["-i", text(file)]].concat())
}

/// A recording by kymo of the whole machine, with these options.
fn recorded_by_kymo(folder: &tempfile::TempDir, options: &[&str], script: &str) -> PathBuf {
    let file = folder.path().join("kymo.data");
    let head = ["record", "-a", "-o", text(&file)];
    kymo().succeed([&head, options, &["--", "sh", "-c", script]].concat());
    file
}
