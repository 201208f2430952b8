//! Names of Python in call chains: the native frames of CPython's evaluation loop are replaced by
//! the Python functions that they run.
//!
//! ```text
//!  sample of a process not known -> finder: which CPython is mapped? -> walker enters it (kymo_perf::bpf)
//!  sample of CPython -> frames, code objects (samples of `bpf-output`) -> ring -> reducer
//!  reducer: code object -> name, file, lines -> mark;  frames -> addresses -> chain of the next sample of that thread
//! ```
//! The design, what is shown how, and what is not, is in
//! docs/internals/design/0007-python-by-name.md.
//!
//! - `finder`: looks at processes. `location`: where CPython is in one.
//! - `layouts`: offsets by version. `code`, `lines`: what a code object says.
//! - `reader`: the same walk from outside, for `kymo stacks`, and in core files.
//! - `chain`: Python's frames in the place of native ones. `stacks`: what the reducer keeps.
mod chain;
mod code;
mod finder;
mod layouts;
mod lines;
mod location;
mod reader;
mod stacks;

pub(crate) use finder::PythonFinder;
pub(crate) use reader::{PythonReader, ThreadIdentity};
pub(crate) use stacks::PythonStacks;

use crate::mapped_files::RecordedFile;
use code::TextLayout;
use kymo_perf::bpf::{Follower, PythonWalker};
use lines::LineFormat;
use location::is_named_python;
use std::collections::HashSet;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

/// Whether one of these processes runs a program that is named as Python. Of many processes the first
/// ones are looked at.
pub(crate) fn runs_in(processes: &[i32]) -> bool {
    const MOST: usize = 256;
    processes
        .iter()
        .take(MOST)
        .filter_map(|&pid| location::exe(pid))
        .any(|exe| is_named_python(exe.as_os_str().as_bytes()))
}

/// What to say where Python was recorded, and its functions have no names because programs may not
/// be loaded into the kernel, or because of what it says to the program that walks. `files`: all
/// that were mapped. A program that has libpython may never begin it, as perf and gdb: it is
/// Python's where it is called so, or has loaded a module of Python's.
pub(crate) fn without_names(files: &HashSet<RecordedFile>, refusal: Option<&str>) -> Option<String> {
    let runs_python = |file: &RecordedFile| {
        let name = file.path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        name.starts_with(b"python") || name.windows(9).any(|window| window == b".cpython-")
    };
    if !files.iter().any(runs_python) {
        return None;
    }
    let reason = match (refusal, Follower::available().err()) {
        (Some(refusal), _) => refusal.to_owned(),
        _ if !PythonWalker::knows_machine() => "kymo walks them on x86-64 only".to_owned(),
        (None, Some(unavailable)) => {
            let hint = unavailable.hint().unwrap_or_else(|| "there is no way around it".to_owned());
            format!("{unavailable}; {hint}")
        }
        (None, None) => return None,
    };
    Some(format!(
        "Python's functions are shown as native frames: {reason}, or start Python 3.12 or later with `-X perf`"
    ))
}

/// How a frame says where it is in its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PositionKind {
    /// In bytes (3.8, 3.9).
    Bytes,
    /// In instructions of two bytes (3.10).
    Instructions,
    /// In bytes from the start of the code object, whose instructions begin there.
    InObject(u32),
}

/// What the reducer needs to know of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CodeLayout {
    position: PositionKind,
    lines: LineFormat,
    text: TextLayout,
    /// `PyCodeObject.co_firstlineno`.
    first_line: usize,
}

/// CPython in a process.
#[derive(Clone, Debug)]
struct Interpreter {
    layout: CodeLayout,
    /// Native code that runs frames, where it is in that process.
    evaluate: Vec<Range<u64>>,
    /// The address of the type of code objects.
    code_type: u64,
    /// Below the frames that native code has entered is one that runs no code.
    is_separated: bool,
    /// Each frame is run by a native frame of its own.
    is_entered_each: bool,
}

/// The interpreters that were found, by the ids under which their frames are told.
#[derive(Debug, Default)]
pub(crate) struct Interpreters(Mutex<Vec<Interpreter>>);

impl Interpreters {
    fn get(&self, id: u32) -> Option<Interpreter> {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.get(id as usize).cloned()
    }

    fn add(&self, interpreter: Interpreter) -> u32 {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.push(interpreter);
        list.len() as u32 - 1
    }
}

#[cfg(test)]
mod tests {
    use super::without_names;
    use crate::mapped_files::RecordedFile;
    use std::collections::HashSet;

    /// Checks that a kernel that refuses the program is a matter only of recordings with Python.
    #[test]
    fn a_refusal_is_told_where_python_was() {
        let file = |name: &&str| RecordedFile { path: name.as_bytes().to_vec(), ..RecordedFile::default() };
        let files = |names: &[&str]| names.iter().map(file).collect::<HashSet<_>>();
        let refusal = Some("the kernel is too old");
        assert_eq!(without_names(&files(&["/bin/ls", "/lib/libc.so.6"]), refusal), None);
        let linked = ["/usr/bin/perf", "/lib/libpython3.11.so.1.0"];
        assert_eq!(without_names(&files(&linked), refusal), None);
        let begun = [linked[0], linked[1], "/lib/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so"];
        assert!(without_names(&files(&begun), refusal).is_some());
        let said = without_names(&files(&["/bin/ls", "/usr/bin/python3.11"]), refusal).unwrap();
        assert!(said.contains("native frames: the kernel is too old, or start"), "{said}");
    }
}
