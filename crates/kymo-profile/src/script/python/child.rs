//! The child that runs a script: `python3` with the driver, a pipe of events and a socket for
//! questions.
use super::pickle::Pickle;
use rustix::io::{FdFlags, fcntl_setfd};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, BufWriter, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

const DRIVER: &str = include_str!("driver.py");
/// Modules that perf's scripts import, where perf is not installed.
const HELPERS: [(&str, &str); 2] = [("Core", include_str!("core.py")), ("Util", include_str!("util.py"))];
/// Where perf's packages put its scripts, for scripts that look there by `PERF_EXEC_PATH`.
const SCRIPT_FOLDERS: [&str; 3] = ["/usr/libexec/perf-core", "/usr/lib/perf-core", "/usr/share/perf-core"];
/// What a script may announce: names of functions.
const MAX_ANNOUNCEMENT_BYTES: u64 = 4 << 20;

/// A script in Python, with perf's interface.
#[derive(Debug, Clone)]
pub struct PythonScript {
    /// The file.
    pub path: PathBuf,
    /// What the script has in `sys.argv` after its name.
    pub arguments: Vec<OsString>,
}

/// Why a script could not run.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// The interpreter could not be started.
    #[error("failed to start python3, which runs the script: {0}; install python3")]
    Start(#[source] io::Error),
    /// A pipe or socket could not be made, or the child could not be waited for.
    #[error("failed to talk to python3, which runs the script")]
    Talk(#[source] io::Error),
    /// The script wants tables for a database.
    #[error("the script sets perf_db_export_mode: kymo has no tables for databases; use `perf script -s`")]
    Export,
}

/// What a script said about itself once it was loaded and `trace_begin` had returned.
#[derive(Debug, Default)]
pub(super) struct Announcement {
    /// Its functions with their numbers of parameters.
    pub(super) handlers: HashMap<String, usize>,
}

/// A script that runs.
#[derive(Debug)]
pub(super) struct ScriptChild {
    child: Child,
    events: Option<BufWriter<PipeWriter>>,
    questions: BufReader<UnixStream>,
}

impl ScriptChild {
    pub(super) fn start(script: &PythonScript) -> Result<ScriptChild, PythonError> {
        let (events_out, events) = io::pipe().map_err(PythonError::Talk)?;
        let (questions, asked) = UnixStream::pair().map_err(PythonError::Talk)?;
        for descriptor in [events_out.as_fd(), asked.as_fd()] {
            fcntl_setfd(descriptor, FdFlags::empty()).map_err(|errno| PythonError::Talk(errno.into()))?;
        }
        let mut command = Command::new("python3");
        command.arg("-c").arg(DRIVER);
        command.arg(events_out.as_raw_fd().to_string()).arg(asked.as_raw_fd().to_string());
        command.arg(&script.path).args(&script.arguments);
        if std::env::var_os("PERF_EXEC_PATH").is_none() {
            let is_there = |folder: &&str| std::path::Path::new(folder).join("scripts/python").is_dir();
            command.env(
                "PERF_EXEC_PATH",
                SCRIPT_FOLDERS.into_iter().find(is_there).unwrap_or(SCRIPT_FOLDERS[1]),
            );
        }
        let child = command.spawn().map_err(PythonError::Start)?;
        let mut child =
            ScriptChild { child, events: Some(BufWriter::new(events)), questions: BufReader::new(questions) };
        let mut helpers = Pickle::new();
        helpers.dict(|dict| {
            for (name, source) in HELPERS {
                dict.text(name).text(source);
            }
        });
        child.send(helpers)?;
        child.flush()?;
        Ok(child)
    }

    /// Waits until the script is loaded; `None` when it ended before.
    pub(super) fn announcement(&mut self) -> Result<Option<Announcement>, PythonError> {
        #[derive(serde::Deserialize)]
        struct Said {
            handlers: HashMap<String, usize>,
            export: bool,
        }
        let mut line = String::new();
        let mut bounded = (&mut self.questions).take(MAX_ANNOUNCEMENT_BYTES);
        if bounded.read_line(&mut line).map_err(PythonError::Talk)? == 0 {
            return Ok(None);
        }
        let said: Said = serde_json::from_str(&line).map_err(|error| PythonError::Talk(error.into()))?;
        if said.export {
            return Err(PythonError::Export);
        }
        Ok(Some(Announcement { handlers: said.handlers }))
    }

    /// The socket on which the script asks.
    pub(super) fn questions(&self) -> io::Result<UnixStream> {
        self.questions.get_ref().try_clone()
    }

    /// Sends an object. `Ok(false)`: the script has ended.
    pub(super) fn send(&mut self, object: Pickle) -> Result<bool, PythonError> {
        let Some(events) = &mut self.events else { return Ok(false) };
        unless_gone(events.write_all(&object.finish()))
    }

    fn flush(&mut self) -> Result<bool, PythonError> {
        self.events.as_mut().map_or(Ok(false), |events| unless_gone(events.flush()))
    }

    /// Lets the script end, and waits for it.
    pub(super) fn finish(mut self) -> Result<ExitStatus, PythonError> {
        let mut end = Pickle::new();
        end.tuple(|tuple| {
            tuple.text("end");
        });
        self.send(end)?;
        self.flush()?;
        self.events = None;
        self.child.wait().map_err(PythonError::Talk)
    }
}

impl Drop for ScriptChild {
    /// A script that was not finished ends without `trace_end`.
    fn drop(&mut self) {
        if let Some(events) = self.events.take() {
            // What is still in the buffer is of no use without its rest.
            drop(events.into_parts());
        }
        let _ = self.child.wait();
    }
}

fn unless_gone(written: io::Result<()>) -> Result<bool, PythonError> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(PythonError::Talk(error)),
    }
}
