//! Commands that come up with the agent in them and execute programs that cannot have it: these must not notice.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::copied::Program;
use crate::tools::{Need, Said, Tool, kymo, ready, require, run, skip};

/// What an ordinary program executes, in a folder of its own.
struct Programs {
    executes: Program,
    folder: PathBuf,
    _scratch: tempfile::TempDir,
}

impl Programs {
    fn of(test: &str) -> Option<Programs> {
        require(test, &[Need::X86, Need::Program("cc")])?;
        let scratch = tempfile::tempdir().expect("a folder");
        let folder = scratch.path().canonicalize().expect("a path");
        Some(Programs { executes: Program::of("executes.c", &[]), folder, _scratch: scratch })
    }

    /// `says.c` compiled so; nothing where that is not possible here.
    fn says(&self, name: &str, compiler: &str, flags: &[&str]) -> Option<PathBuf> {
        let program = self.folder.join(name);
        let source = crate::programs::sources().join("says.c");
        let compiled =
            Command::new(compiler).args(["-O1", "-g", "-o"]).args([&program, &source]).args(flags).output();
        compiled.is_ok_and(|output| output.status.success()).then_some(program)
    }

    /// A command that executes a program, or a script of it, in this way; under kymo, if that is given.
    fn command(&self, tool: Option<&Tool>, way: &str, program: &Path) -> Command {
        let mut command = match tool {
            Some(kymo) => {
                let probe = format!("{}:probed_says", program.with_extension("").display());
                let mut command = kymo.command(["probe", "--engine", "inproc", "--json", &probe]);
                command.args([&format!("{}:main", self.executes.text()), "--"]).arg(&self.executes.path);
                command
            }
            None => Command::new(&self.executes.path),
        };
        let path = std::env::var("PATH").unwrap_or_default();
        // What kymo's commands have, so that the environment is the same.
        kymo_testing::without_user(&mut command);
        command.env("PATH", format!("{}:{path}", self.folder.display()));
        command.arg(way).arg(program);
        command
    }
}

/// What the command has printed, without kymo's document.
fn printed(said: &Said) -> &str {
    &said.stdout[..said.stdout.find("{\n").or_else(|| said.stdout.find("{\"")).unwrap_or(said.stdout.len())]
}

fn hits(said: &Said) -> u64 {
    let document: Value = serde_json::from_str(&said.stdout[printed(said).len()..])
        .unwrap_or_else(|_| panic!("{}", said.stdout));
    let probes = document["probes"].as_array().expect("a list");
    let of = |probe: &&Value| probe["name"].as_str().is_some_and(|name| name.ends_with("probed_says"));
    probes.iter().find(of).map_or(0, |probe| probe["hits"].as_u64().expect("a number"))
}

/// Runs it with and without kymo; both must print the same, down to the environment, and kymo must say why.
fn same(programs: &Programs, way: &str, program: &Path, why: &str) {
    let plain = run(&mut programs.command(None, way, program));
    assert!(plain.stdout.ends_with(&format!("{way} 0\n")), "{}", plain.stdout);
    let said = run(&mut programs.command(Some(&kymo()), way, program));
    assert_eq!(printed(&said), plain.stdout, "{way} {}: {}", program.display(), said.stderr);
    assert_eq!((said.code, hits(&said)), (Some(0), 0), "{}", said.stderr);
    assert!(said.stderr.contains(&format!("{why}: ")), "{way} {}: {}", program.display(), said.stderr);
    let noise = ["ERROR: ld.so", "cannot be preloaded", "ASan", "Error relocating"];
    assert!(noise.iter().all(|noise| !said.stderr.contains(noise)), "{}", said.stderr);
}

/// Checks that a program which cannot have the agent in it comes up as without kymo, in whichever way it is executed; and that one which can is counted.
#[test]
fn in_every_way() {
    const TEST: &str = "probe_foreign::in_every_way";
    let Some(programs) = Programs::of(TEST) else { return };
    let Some(ordinary) = programs.says("ordinary", "cc", &[]) else { return skip(TEST, "nothing compiles") };
    let foreign =
        programs.says("musl", "musl-gcc", &[]).map(|program| (program, "not for the GNU C library"));
    let fixed = || programs.says("fixed", "cc", &["-static"]).map(|program| (program, "linked statically"));
    let Some((foreign, why)) = foreign.or_else(fixed) else {
        return skip(TEST, "neither musl nor a static C library");
    };
    let ways = "execve execv execvp execvpe execl execlp execle fexecve execveat spawn spawnp system popen vfork-execve \
                vfork-execvp nothing";
    for way in ways.split(' ') {
        if way != "nothing" {
            same(&programs, way, &foreign, why);
        }
        let said = run(&mut programs.command(Some(&kymo()), way, &ordinary));
        let expected = if way == "nothing" { 0 } else { 10 };
        assert_eq!(hits(&said), expected, "{way}: {}{}", said.stdout, said.stderr);
        assert!(!said.stderr.contains("without the agent"), "{way}: {}", said.stderr);
    }
}

/// Checks programs of all kinds that cannot have the agent in them, and scripts of them.
#[test]
fn of_every_kind() {
    const TEST: &str = "probe_foreign::of_every_kind";
    let Some(programs) = Programs::of(TEST) else { return };
    let kinds: [(&str, &str, &[&str], &str); 4] = [
        ("fixed", "cc", &["-static"], "linked statically"),
        ("musl", "musl-gcc", &[], "not for the GNU C library"),
        ("narrow", "cc", &["-m32"], "of 32 bits or for another processor"),
        ("sane", "cc", &["-fsanitize=address"], "with a sanitizer that must be loaded first"),
    ];
    for (name, compiler, flags, why) in kinds {
        let Some(program) = programs.says(name, compiler, flags) else {
            skip(TEST, format!("{compiler} {flags:?} does not work here"));
            continue;
        };
        let script = programs.folder.join(format!("{name}.script"));
        std::fs::write(&script, format!("#!{} script\n", program.display())).expect("a script");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("our file");
        for program in [&program, &script] {
            same(&programs, "execv", program, why);
            same(&programs, "spawn", program, why);
        }
    }
    let program = programs.says("own", "cc", &[]).expect("an ordinary one compiles");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).expect("our file");
    same(&programs, "execv", &program, "setuid, setgid, or with capabilities");
}

/// Checks that libraries which the user preloads stay, before the agent and without it.
#[test]
fn other_libraries_stay() {
    const TEST: &str = "probe_foreign::other_libraries_stay";
    let Some(programs) = Programs::of(TEST) else { return };
    let library = programs.folder.join("other.so");
    let source = programs.folder.join("other.c");
    std::fs::write(&source, "int other(void) { return 0; }\n").expect("a source");
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    let Some(program) = programs.says("fixed", "cc", &["-static"]) else {
        return skip(TEST, "no static C library");
    };
    assert!(compiled.expect("cc").success());
    let ordinary = programs.says("ordinary", "cc", &[]).expect("it compiles");
    let said = |tool: Option<&Tool>, program: &Path| {
        let mut command = programs.command(tool, "execv", program);
        run(command.env("LD_PRELOAD", &library))
    };
    assert_eq!(printed(&said(Some(&kymo()), &program)), said(None, &program).stdout);
    let inside = said(Some(&kymo()), &ordinary);
    let preloaded = format!("LD_PRELOAD={}:/", library.display());
    assert!(inside.stdout.lines().any(|line| line.starts_with(&preloaded)), "{}", inside.stdout);
    assert_eq!(hits(&inside), 10, "{}", inside.stderr);
}

/// Checks that a program in another root, where the agent's library is not, says nothing about that.
#[test]
fn in_another_root() {
    const TEST: &str = "probe_foreign::in_another_root";
    if !ready(TEST, &[Need::Root, Need::Program("chroot"), Need::Program("ldd")]) {
        return;
    }
    let Some(programs) = Programs::of(TEST) else { return };
    let program = programs.says("ordinary", "cc", &[]).expect("it compiles");
    let root = programs.folder.join("root");
    let libraries = Command::new("ldd").arg(&program).output().expect("ldd");
    let libraries = String::from_utf8_lossy(&libraries.stdout).into_owned();
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let place = root.join(&library[1..]);
        std::fs::create_dir_all(place.parent().expect("a folder")).expect("our folder");
        std::fs::copy(library, place).expect("a copy");
    }
    std::fs::copy(&program, root.join("ordinary")).expect("a copy");
    let chroot = |tool: Option<&Tool>| {
        let mut command = match tool {
            Some(kymo) => {
                let main = format!("{}:probed_says", program.display());
                kymo.command(["probe", "--engine", "inproc", "--json", &main, "--", "env"])
            }
            None => {
                let mut command = Command::new("env");
                kymo_testing::without_user(&mut command);
                command
            }
        };
        run(command.arg("chroot").arg(&root).arg("/ordinary"))
    };
    let (plain, said) = (chroot(None), chroot(Some(&kymo())));
    assert_eq!(printed(&said), plain.stdout, "{}", said.stderr);
    assert!(!said.stderr.contains("ERROR: ld.so"), "{}", said.stderr);
    said.says("where the agent's library is not found: /ordinary");
}
