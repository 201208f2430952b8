//! The programs of `fixtures/programs` themselves.

use std::process::Command;

use crate::programs::{build, sources};
use crate::tools::{Need, ready, run, skip};

/// Checks that every C and C++ program builds without a warning, ends well, and says what its header promises.
#[test]
fn programs_build_and_end_well() {
    if !ready("programs_build_and_end_well", &[Need::Program("cc"), Need::Program("c++")]) {
        return;
    }
    let strict = ["-Wall", "-Wextra", "-Werror"];
    let plug = build("plug.c", &["-Wall", "-Werror", "-shared", "-fPIC"]);
    let plug = plug.to_str().expect("a path of text");
    let runs: [(&str, &[&str], usize); 17] = [
        ("brood.c", &["7", "2", "1"], 1),
        ("counted.c", &["pages", "3"], 0),
        ("called.c", &["10"], 11),
        ("called_text.cc", &[], 4),
        ("probed.c", &["10", "2", "1"], 1),
        ("stamped.c", &["10"], 1),
        ("spin.c", &["1"], 1),
        ("spawn.c", &["20"], 1),
        ("threads.c", &["3", "1"], 1),
        ("sleepers.c", &["20", "0.01"], 1),
        ("forkexec.c", &["2"], 0),
        ("dlopen.c", &[plug, plug], 1),
        ("deep.c", &["3"], 0),
        ("exceptions.cc", &["3"], 0),
        ("inline.cc", &["1"], 1),
        ("pidreuse.c", &["2"], 2),
        ("bomb.c", &["50", "10"], 1),
    ];
    for (name, arguments, lines) in runs {
        let said = run(Command::new(build(name, &strict)).args(arguments));
        if name == "pidreuse.c" && said.code == Some(77) {
            skip("programs_build_and_end_well (pidreuse)", "setting process ids is not permitted here");
            continue;
        }
        assert_eq!(said.code, Some(0), "{name}: {}", said.stderr);
        assert_eq!(said.stdout.lines().count(), lines, "{name}: {}", said.stdout);
        if name == "pidreuse.c" {
            let ids: Vec<_> = said.stdout.lines().collect();
            assert_eq!(ids[0], ids[1], "two children, one id");
        }
    }
}

/// Checks that the Rust program builds and catches its own panics, and that the script ends well.
#[test]
fn rust_program_and_script_end_well() {
    if ready("rust_program_and_script_end_well (hot.rs)", &[Need::Program("rustc")]) {
        let said = run(Command::new(build("hot.rs", &[])).arg("1"));
        assert_eq!((said.code, said.stdout.lines().count()), (Some(0), 1), "{}", said.stderr);
    }
    let said = run(Command::new(sources().join("crowd.sh")).arg("11"));
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), ""), "{}", said.stderr);
}
