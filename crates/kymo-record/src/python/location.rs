//! Finds CPython in what a process, or a core file, has mapped as code.
use super::layouts::{VersionLayout, layout};
use super::{Interpreter, Interpreters};
use crate::core_file::CoreFile;
use crate::mapped_files;
use kymo_perf::bpf::FrameKind;
use kymo_perf::proc::{self, Mappings, ProcessMemory};
use kymo_symbols::unwind::{MappedFile, Seen};
use kymo_symbols::{Budget, PythonRuntime};
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// CPython that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundPython {
    pub(super) layout: VersionLayout,
    /// Where the address of its first interpreter is.
    pub(super) interpreters: u64,
    /// As [`Interpreters`] knows it.
    pub(super) id: u32,
}

/// What there is of CPython in a process.
#[derive(Clone, Copy, Debug)]
pub(super) enum LocatedPython {
    Running(FoundPython),
    /// It is mapped, and was not begun: a program that only links it, as perf and gdb do, begins it
    /// when it runs a script.
    NotBegun {
        /// Where the address of its first interpreter will be.
        interpreters: u64,
    },
}

impl LocatedPython {
    fn running(self) -> Option<FoundPython> {
        match self {
            LocatedPython::Running(found) => Some(found),
            LocatedPython::NotBegun { .. } => None,
        }
    }
}

/// What a mapped file holds of CPython, if it is a file that does.
type RuntimeOf<'a> = &'a mut dyn FnMut(&MappedFile<'_>) -> Option<Arc<PythonRuntime>>;

/// Code of a file.
struct MappedCode<'a> {
    file: MappedFile<'a>,
    start: u64,
    offset: u64,
}

/// CPython that runs in a process, if there is one.
///
/// # Errors
/// Why its frames are not read, for the user.
pub(super) fn find_python(
    pid: i32,
    budget: &Budget,
    interpreters: &Interpreters,
) -> Result<Option<FoundPython>, String> {
    let located = find_in_process(pid, &mut |file| runtime_of(file, budget), interpreters)?;
    Ok(located.and_then(LocatedPython::running))
}

/// CPython in a process, if there is one, with what is known of files already.
///
/// # Errors
/// See [`find_python`].
pub(super) fn find_in_process(
    pid: i32,
    runtime_of: RuntimeOf<'_>,
    interpreters: &Interpreters,
) -> Result<Option<LocatedPython>, String> {
    const DELETED: &[u8] = b" (deleted)";
    let path_of = |path| <[u8]>::strip_suffix(path, DELETED).unwrap_or(path);
    let (exe, maps) = (exe(pid), proc::maps(pid));
    let own = exe.as_ref().map(|exe| path_of(exe.as_os_str().as_bytes()));
    let maps = Mappings::new(&maps).filter(|map| map.prot & 4 != 0 && map.inode != 0);
    let code = maps.map(|map| MappedCode {
        file: MappedFile {
            path: path_of(map.path),
            build_id: &[],
            file_id: (map.major, map.minor, map.inode),
            seen: Some(Seen { pid, start: map.start, end: map.end }),
        },
        start: map.start,
        offset: map.offset,
    });
    find(own, code, (runtime_of, &|there| has_begun(pid, there)), interpreters)
}

/// Whether the interpreter of a process was begun. `interpreters`: where the address of its first
/// one is.
pub(super) fn has_begun(pid: i32, interpreters: u64) -> bool {
    let mut interpreter = [0; 8];
    let read = ProcessMemory::open(pid).and_then(|memory| memory.read(interpreters, &mut interpreter));
    // Where that cannot be read, the walker sees.
    read.is_err() || interpreter != [0; 8]
}

/// CPython in a core file, if there is one.
///
/// # Errors
/// See [`find_python`].
pub(super) fn find_python_in_core(
    core: &CoreFile,
    budget: &Budget,
    interpreters: &Interpreters,
) -> Result<Option<FoundPython>, String> {
    let own = core.program().map(|program| &program.path[..]);
    let code = core.mappings.iter().filter(|mapping| mapping.executable).map(|mapping| MappedCode {
        file: mapping.file(),
        start: mapping.start,
        offset: mapping.offset,
    });
    let located = find(own, code, (&mut |file| runtime_of(file, budget), &|_| true), interpreters)?;
    Ok(located.and_then(LocatedPython::running))
}

/// `own`: the path of the program, whose file counts whatever its name. `has_begun`: as the
/// function of that name.
fn find<'a>(
    own: Option<&[u8]>,
    code: impl Iterator<Item = MappedCode<'a>>,
    (runtime_of, has_begun): (RuntimeOf<'_>, &dyn Fn(u64) -> bool),
    interpreters: &Interpreters,
) -> Result<Option<LocatedPython>, String> {
    for MappedCode { file, start, offset } in code {
        if !is_named_python(file.path) && own != Some(file.path) {
            continue;
        }
        let Some(runtime) = runtime_of(&file) else { continue };
        let Some(bias) = runtime.load_bias(start, offset) else { continue };
        let layout = layout(&runtime).map_err(|why| {
            let (major, minor) = runtime.version;
            format!("frames of Python {major}.{minor} are shown as native ones: {why}")
        })?;
        let there = |linked: u64| linked.wrapping_add(bias);
        let first = there(runtime.runtime).wrapping_add(layout.interpreters);
        if !has_begun(first) {
            return Ok(Some(LocatedPython::NotBegun { interpreters: first }));
        }
        let evaluate = runtime.evaluate.iter().map(|range| there(range.start)..there(range.end));
        let id = interpreters.add(Interpreter {
            layout: layout.code,
            evaluate: evaluate.collect(),
            code_type: there(runtime.code_type),
            is_separated: layout.walk.frames == FrameKind::Separated,
            is_entered_each: layout.walk.frames == FrameKind::Object,
        });
        return Ok(Some(LocatedPython::Running(FoundPython { layout, interpreters: first, id })));
    }
    Ok(None)
}

/// What the file that is mapped holds, whatever its path means here.
pub(super) fn runtime_of(file: &MappedFile<'_>, budget: &Budget) -> Option<Arc<PythonRuntime>> {
    let opened = mapped_files::open(file).ok()?;
    let readable = format!("/proc/self/fd/{}", opened.file.as_raw_fd());
    let name = Path::new(OsStr::from_bytes(file.path));
    PythonRuntime::find(Path::new(&readable), name, budget).map(Arc::new)
}

/// The file of the program that a process runs.
pub(super) fn exe(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

pub(super) fn is_named_python(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.windows(6).any(|window| window.eq_ignore_ascii_case(b"python"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_testing::skip;
    use std::process::{Child, Command};
    use std::time::Duration;

    /// A program that has this library, once it has it.
    fn sleeping_with(library: &str) -> Child {
        let mut child = Command::new("sleep").arg("600").env("LD_PRELOAD", library).spawn().expect("sleep");
        let maps = format!("/proc/{}/maps", child.id());
        let maps = || std::fs::read_to_string(&maps).unwrap_or_default();
        // The C library comes last.
        while !(maps().contains("libpython") && maps().contains("libc.so")) {
            std::thread::sleep(Duration::from_millis(2));
            assert!(child.try_wait().expect("it is ours").is_none(), "{library} cannot be loaded");
        }
        child
    }

    /// Checks that a program which has CPython and has not begun it is not taken for Python, and
    /// that looking at it again keeps nothing.
    #[test]
    fn python_that_was_not_begun() {
        let known = Command::new("ldconfig").arg("-p").output().map(|output| output.stdout);
        let known = String::from_utf8_lossy(&known.unwrap_or_default()).into_owned();
        let line = known.lines().find(|line| line.trim().starts_with("libpython3."));
        let Some(library) = line.and_then(|line| line.rsplit(" => ").next()) else {
            return skip(
                "python::location::python_that_was_not_begun",
                "no shared library of CPython is installed",
            );
        };
        let mut child = sleeping_with(library);
        let (interpreters, budget) = (Interpreters::default(), Budget::new());
        let mut runtime = |file: &MappedFile<'_>| runtime_of(file, &budget);
        let found = [(); 2].map(|()| find_in_process(child.id() as i32, &mut runtime, &interpreters));
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
        for found in found {
            assert!(matches!(found, Ok(Some(LocatedPython::NotBegun { .. }))), "{found:?}");
        }
        assert!(interpreters.get(0).is_none());
    }
}
