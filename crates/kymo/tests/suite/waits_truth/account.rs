//! Programs that keep their own account of their waits, and recordings of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::programs::{build, sources};
use crate::tools::{Running, kymo, run, text};
use crate::wall::unseen_switches;

/// What a program says of its waits in a function, over all its threads.
pub(super) struct Account {
    pub(super) state: String,
    pub(super) function: String,
    /// `function` is how the names of threads begin whose functions have no names.
    pub(super) is_of_threads: bool,
    pub(super) ns: u64,
    pub(super) longest: u64,
    /// What the longest wait took at least; 0: not known.
    pub(super) least: u64,
    pub(super) waits: u64,
}

impl Account {
    /// `account STATE FUNCTION NS LONGEST LEAST WAITS`
    fn read(line: &str) -> Option<Account> {
        let words: Vec<&str> = line.strip_prefix("account ")?.split(' ').collect();
        let number = |at: usize| words.get(at)?.trim().parse().ok();
        Some(Account {
            state: (*words.first()?).to_owned(),
            function: words.get(1)?.rsplit([':', '.']).next()?.to_owned(),
            is_of_threads: words.get(1)?.starts_with("threads:"),
            ns: number(2)?,
            longest: number(3)?,
            least: number(4)?,
            waits: number(5)?,
        })
    }

    /// Whether it waits on a condition with a mutex, which threads that are woken together take one
    /// after the other: each may wait for it, the more so where it lost its CPU with it.
    pub(super) fn has_mutex(&self) -> bool {
        self.function == "awaits_condition"
    }

    /// Whether threads that wait so may have nothing to do.
    pub(super) fn may_be_idle(&self) -> bool {
        ["condition", "poll"].contains(&self.state.as_str())
    }
}

/// How a program comes to be recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// It is kymo's command.
    Run,
    /// The same, with records as before Linux 6.16.
    RunAtSwitch,
    /// Its threads are there, and begin when kymo records.
    Attach,
}

/// A program with its arguments.
#[derive(Clone)]
pub(super) struct Case {
    words: Vec<String>,
    mode: Mode,
    label: String,
    has_no_runtime: bool,
}

/// A node that names its functions, and leaves no log in the folder.
const NODE_NAMES: [&str; 5] = [
    "node",
    "--perf-basic-prof",
    "--interpreted-frames-native-stack",
    "--no-logfile-per-isolate",
    "--logfile=/dev/null",
];

/// Kind of wait, threads, rounds, microseconds.
type Kind = (&'static str, u32, u32, u32);

/// A recording, and what its program said.
pub(super) struct Recorded {
    pub(super) file: PathBuf,
    pub(super) accounts: Vec<Account>,
    /// Its CPU time, if it says that.
    pub(super) ran_ns: Option<u64>,
    pub(super) has_no_runtime: bool,
    pub(super) is_go: bool,
    /// Switches that the kernel has left out.
    pub(super) unseen: u64,
}

/// The folder of a built program, built once by each run of the tests: it takes a moment, and no
/// cache can be stale. Other tests run it meanwhile, whose files must stay.
fn built(name: &'static str, command: &mut Command) -> PathBuf {
    static BUILT: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let build = || {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("accounts-{name}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        run(command.current_dir(&folder)).ends(0);
        folder
    };
    let mut known = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(name).or_insert_with(build).clone()
}

impl Case {
    fn of(language: &str, program: &[&str], (kind, threads, rounds, us): Kind, mode: Mode) -> Case {
        let numbers = [threads, rounds, us].map(|number| number.to_string());
        let mut words: Vec<String> = program.iter().map(|word| (*word).to_owned()).collect();
        words.push(kind.to_owned());
        words.extend(numbers);
        let how = match mode {
            Mode::Run => "",
            Mode::RunAtSwitch => "-at-switch",
            Mode::Attach => "-attached",
        };
        if mode == Mode::Attach {
            words.push("attached".to_owned());
        }
        let label = format!("{language}-{kind}-{threads}{how}");
        Case { words, mode, label, has_no_runtime: language == "c" }
    }

    pub(super) fn of_c(kind: Kind, mode: Mode) -> Case {
        Case::of("c", &[text(&build("accounts.c", &[]))], kind, mode)
    }

    pub(super) fn of_python(kind: Kind, mode: Mode) -> Case {
        // What is in PATH may be a script that looks for it.
        let here = run(Command::new("python3").args(["-c", "import sys; print(sys.executable)"])).ends(0);
        Case::of("python", &[here.stdout.trim(), text(&sources().join("accounts.py"))], kind, mode)
    }

    pub(super) fn of_go(kind: Kind, mode: Mode) -> Case {
        let source = sources().join("accounts.go");
        let folder = built("go", Command::new("go").args(["build", "-o", "accounts"]).arg(source));
        Case::of("go", &[text(&folder.join("accounts"))], kind, mode)
    }

    pub(super) fn of_java(kind: Kind, mode: Mode) -> Case {
        let source = sources().join("Accounts.java");
        let folder = built("java", Command::new("javac").args(["-d", "."]).arg(source));
        Case::of("java", &["java", "-Xmx64m", "-cp", text(&folder), "Accounts"], kind, mode)
    }

    pub(super) fn of_node(kind: Kind, mode: Mode) -> Case {
        let source = sources().join("accounts.js");
        Case::of("node", &[&NODE_NAMES[..], &[text(&source)]].concat(), kind, mode)
    }

    pub(super) fn of_node_without_names(kind: Kind, mode: Mode) -> Case {
        Case::of("node", &["node", text(&sources().join("accounts.js"))], kind, mode)
    }

    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// Records it into a folder.
    pub(super) fn record(&self, folder: &Path) -> Recorded {
        let file = folder.join("wall.data");
        let options = ["record", "-q", "--wall", "-e", "cpu-clock", "-o", text(&file)];
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let recorded = |more: &[&str]| {
            let mut command = kymo().command([&options[..], more].concat());
            let said = run(command.env("KYMO_LOG", "kymo_record=debug")).ends(0);
            (unseen_switches(&said.stderr), said.stdout)
        };
        let (unseen, said) = match self.mode {
            Mode::Run => recorded(&[&["--"], &words[..]].concat()),
            Mode::RunAtSwitch => recorded(&[&["--wall-at-switch", "--"], &words[..]].concat()),
            Mode::Attach => {
                let mut program = Running::start(Command::new(words[0]).args(&words[1..]));
                assert_eq!(program.line(), "ready\n", "{}", self.label);
                // It begins when the command runs, which is when kymo records, and ends both.
                let pid = program.pid();
                let begin = format!(
                    "echo > /proc/{pid}/fd/0; until grep -q '^State:.Z' /proc/{pid}/status; do sleep 0.1; done"
                );
                let (unseen, _) = recorded(&["-p", &pid, "--", "sh", "-c", &begin]);
                (unseen, program.end().0)
            }
        };
        let ran_ns = said.lines().find_map(|line| line.strip_prefix("ran ")?.trim().parse().ok());
        let accounts = said.lines().filter_map(Account::read).collect();
        let is_go = self.label.starts_with("go-");
        Recorded { file, accounts, ran_ns, has_no_runtime: self.has_no_runtime, is_go, unseen }
    }
}
