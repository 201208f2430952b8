//! How each form of recording is made.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kymo_testing::copy_program;

use super::kinds::{Form, Kind};
use crate::programs;
use crate::scenario::{Recording, fresh_folder, record, run_beside_others};
use crate::tools::{Need, Running, Tool, kymo, require, skip, text};
use crate::{probe_inside, watch};

/// How long a recorder stays attached.
const ATTACHED_SECONDS: &str = "0.3";
/// What `watched.c` ends with.
const WATCHED_STATUS: i32 = 3;

/// A cgroup of the second version; it is removed with this.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes one where such cgroups are mounted.
    fn make(name: &str) -> Option<Cgroup> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
        let folder = Path::new(line.split(' ').nth(1)?).join(name);
        std::fs::create_dir(&folder).ok()?;
        Some(Cgroup(folder))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Records a kind with a tool; there may be several files. `None`: it cannot be made here, and a skip was printed.
pub(super) fn recordings(
    perf: &Tool,
    tool: &Tool,
    suite: &str,
    kind: &Kind,
) -> Result<Option<Vec<Recording>>, String> {
    let name = format!("{suite}-{}", kind.name.replace([' ', ','], "-"));
    let flags: Vec<&str> = kind.flags.split_whitespace().collect();
    let one = |recording: Recording| Ok(Some(vec![recording]));
    match kind.form {
        Form::File => one(record(tool, &name, &flags, kind.target)),
        Form::Pipe => {
            let path = fresh_folder(&format!("{}-{name}", tool.name)).join("perf.data");
            let quiet = ["sh", "-c", "exec \"$@\" >/dev/null", "sh"];
            let arguments = [&["record", "-o", "-"], &flags[..], &["--"], &quiet, kind.target].concat();
            let mut command = tool.command(&arguments);
            command.stdout(Stdio::from(File::create(&path).map_err(|error| error.to_string())?));
            one(finished(command, path, &[0])?)
        }
        Form::Attached => {
            let (program, arguments) = (kind.target[0], &kind.target[1..]);
            let running = Running::start(Command::new(program).args(arguments).stderr(Stdio::null()));
            let pid = running.pid();
            let flags = [&flags[..], &["-p", &pid]].concat();
            one(record(tool, &name, &flags, &["sleep", ATTACHED_SECONDS]))
        }
        Form::Series => {
            let first = record(tool, &name, &flags, kind.target);
            let folder = first.path.parent().unwrap_or(Path::new("."));
            let files = std::fs::read_dir(folder).map_err(|error| error.to_string())?;
            let named = |path: &PathBuf| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("perf.data"))
            };
            let paths = files.flatten().map(|entry| entry.path()).filter(named);
            Ok(Some(paths.map(|path| Recording { path, command: first.command.clone() }).collect()))
        }
        Form::Jitdump => {
            let made = record(tool, &name, &flags, kind.target);
            let path = made.path.with_file_name("injected.data");
            let said = perf.run(["inject", "--jit", "-i", text(&made.path), "-o", text(&path)]);
            match said.code {
                Some(0) => one(Recording { path, command: made.command }),
                _ => Err(format!("{} failed: {}", said.command, said.stderr)),
            }
        }
        Form::Cgroup => {
            let group = format!("kymo-matrix-{}-{suite}", std::process::id());
            let Some(made) = Cgroup::make(&group) else {
                skip(&format!("matrix::{suite}: {}", kind.name), "no cgroup can be made here");
                return Ok(None);
            };
            let procs = made.0.join("cgroup.procs");
            let entering = format!("echo $$ > {} && exec \"$@\"", procs.display());
            let target = [&["sh", "-c", &entering, "sh"], kind.target].concat();
            let flags = [&flags[..], &["-G", &group]].concat();
            one(record(tool, &name, &flags, &target))
        }
        Form::Watch => {
            let Some(_alone) = watch::alone(&format!("matrix::{suite}: {}", kind.name)) else {
                return Ok(None);
            };
            let path = fresh_folder(&format!("kymo-{name}")).join("perf.data");
            one(finished(verb("watch", &path, &flags, kind), path, &[WATCHED_STATUS])?)
        }
        Form::Probe => {
            let path = fresh_folder(&format!("kymo-{name}")).join("perf.data");
            one(finished(verb("probe", &path, &flags, kind), path, &[0])?)
        }
        Form::ProbeInside => {
            let test = format!("matrix::{suite}: {}", kind.name);
            let Some(()) = require(&test, &[Need::X86]) else { return Ok(None) };
            let path = fresh_folder(&format!("kymo-{name}")).join("perf.data");
            // A copy: other tests probe the same program, and both tools look for its names later.
            let program = path.with_file_name("probed");
            copy_program(&programs::build(kind.target[0], &[]), &program);
            let arguments = [&["probe", "--engine", "shadow", "-o", text(&path)], &flags[..]].concat();
            let functions = flags.iter().filter(|flag| flag.starts_with("probed_")).count();
            probe_inside::record(&program, kind.target[1], functions, &arguments);
            let command = format!("kymo {}", arguments.join(" "));
            one(Recording { path, command })
        }
    }
}

/// `kymo VERB -o FILE FLAGS -- TARGET`, where the target's first word is a source in `fixtures/programs`.
fn verb(verb: &str, path: &Path, flags: &[&str], kind: &Kind) -> Command {
    let program = crate::copied::built(kind.target[0], &[]);
    let arguments = [&[verb, "-o", text(path)], flags, &["--", program], &kind.target[1..]].concat();
    kymo().command(&arguments)
}

/// Runs a recorder to its end.
fn finished(mut command: Command, path: PathBuf, statuses: &[i32]) -> Result<Recording, String> {
    let said = run_beside_others(&mut command);
    match said.code {
        Some(code) if statuses.contains(&code) => Ok(Recording { path, command: said.command }),
        code => Err(format!("{} ended with {code:?}: {}", said.command, said.stderr)),
    }
}
