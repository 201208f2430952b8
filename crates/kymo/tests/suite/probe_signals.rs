//! A signal while the kernel attaches thousands of places, step by step.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::probe_lifetimes::{Many, is_untouched, soon};
use crate::tools::{Running, kymo, run, signal, skip};

/// How many functions the program of [`thousands`] has.
const THOUSANDS: usize = 4096;

/// A program of thousands of functions, which it calls at each line that it reads, to print what
/// they made of it.
fn thousands(folder: &Path) -> PathBuf {
    let (source, program) = (folder.join("thousands.c"), folder.join("thousands"));
    let all = |line: fn(usize) -> String| (0..THOUSANDS).map(line).collect::<String>();
    let functions =
        all(|n| format!("__attribute__((noinline)) int f_{n}(int x) {{ return x * 3 + {n}; }}\n"));
    let calls = all(|n| format!("sum ^= f_{n}(sum);\n"));
    let text = format!(
        "#include <stdio.h>\n{functions}int main(void) {{ char line[64]; while (fgets(line, 64, stdin)) {{ \
         int sum = 0;\n{calls}printf(\"%d\\n\", sum); fflush(stdout); }} return 0; }}\n"
    );
    std::fs::write(&source, text).expect("our folder");
    let said = run(Command::new("cc").arg("-O0").arg(&source).arg("-o").arg(&program));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    program
}

/// How many links of BPF programs to places a process holds.
fn bpf_links(pid: u32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links.filter(|link| link.to_string_lossy().contains("bpf_link")).count()
}

/// Checks a signal that comes while the kernel attaches thousands of places, step by step: kymo
/// ends before it has attached all, says so, nothing stays attached, and the programs go on.
#[test]
fn a_signal_between_steps_of_attaching() {
    const TEST: &str = "probe_signals::a_signal_between_steps_of_attaching";
    /// Each makes a step longer.
    const PROCESSES: usize = 40;
    let Some(folder) = Many::folder(TEST) else { return };
    let path = folder.path().canonicalize().expect("a path");
    let program = thousands(&path);
    let mut programs: Vec<Running> =
        (0..PROCESSES).map(|_| Running::start(&mut Command::new(&program))).collect();
    let call = |programs: &mut [Running]| {
        let answer = |program: &mut Running| {
            program.tell("\n");
            program.line()
        };
        programs.iter_mut().map(answer).collect::<Vec<_>>()
    };
    let plain = call(&mut programs);
    assert!(plain.iter().all(|line| *line == plain[0] && line.ends_with('\n')), "{plain:?}");
    let pid = programs[0].pid();
    let words = ["probe", "--ret", "--engine", "kernel", "-p", &pid, "f_*"];
    let mut between = 0;
    for (round, sent) in [Signal::TERM, Signal::INT, Signal::TERM, Signal::HUP].into_iter().enumerate() {
        let mut command = kymo().command(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kymo");
        while bpf_links(child.id()) <= round && child.try_wait().expect("a child").is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        signal(&child, sent);
        let told = Instant::now();
        let output = child.wait_with_output().expect("its end");
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("no uprobes") {
            return skip(TEST, said.trim());
        }
        assert!(told.elapsed() < Duration::from_secs(30), "{round}: {:?}", told.elapsed());
        // What came after the last step has a table.
        if said.contains("a signal came before all were attached, and none is attached any more") {
            assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{round}: {said}");
            between += 1;
        } else {
            assert_eq!(output.status.code(), Some(0), "{round}: {said}");
        }
        assert_eq!(call(&mut programs), plain, "{round}");
    }
    assert!(between > 0, "of so many signals some come between two steps");
    for program in &programs {
        let pid = program.child.id();
        soon("the program has its file's code again", || is_untouched(pid, "/thousands"));
    }
}
