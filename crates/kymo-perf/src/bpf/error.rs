//! Why tasks could not be followed in the kernel.
use crate::tracefs::TracefsError;
use std::io;

/// What failed, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// This process may not.
    #[error("tasks cannot be followed in the kernel: {0}")]
    Unavailable(super::Unavailable),
    /// A map was refused.
    #[error("failed to make the BPF map of {what} ({entries} entries): {cause}{}", memory_hint(cause))]
    Map {
        /// What it is to hold.
        what: &'static str,
        /// How many at most.
        entries: u32,
        /// The system's words.
        cause: io::Error,
    },
    /// The kernel's verifier refused a program.
    #[error("this kernel refuses the BPF program `{program}`: {cause}{}", load_hint(cause))]
    Load {
        /// Its name.
        program: &'static str,
        /// The end of what the verifier said, for those who repair it; may be empty.
        log: String,
        /// The system's words.
        cause: io::Error,
    },
    /// A program could not be attached.
    #[error("failed to attach the BPF program `{program}` to `{point}`: {cause}")]
    Attach {
        /// Its name.
        program: &'static str,
        /// The tracepoint.
        point: String,
        /// The system's words.
        cause: io::Error,
    },
    /// The kernel takes no type information.
    #[error("failed to load type information into the kernel: {0}")]
    Types(io::Error),
    /// Tracepoints cannot be looked up.
    #[error("{}{}", .0, .0.hint().map(|hint| format!("; {hint}")).unwrap_or_default())]
    Tracefs(TracefsError),
    /// This kernel's tracepoint lacks a field.
    #[error("the tracepoint `{point}` of this kernel has no field `{field}`")]
    Field {
        /// The tracepoint.
        point: String,
        /// The field.
        field: String,
    },
    /// Targets could not be entered into the map.
    #[error("failed to enter {targets} targets into the BPF map of followed tasks: {cause}")]
    Enter {
        /// How many.
        targets: usize,
        /// The system's words.
        cause: io::Error,
    },
    /// Neither way of attaching works here.
    #[error("{raw}; and by events of tracepoints: {tracepoint}")]
    Both {
        /// Why not by raw tracepoints.
        raw: Box<BpfError>,
        /// Why not by tracepoint events.
        tracepoint: Box<BpfError>,
    },
}

/// The verifier's words are no help to a user: what helps is a later kernel.
fn load_hint(cause: &io::Error) -> String {
    if cause.raw_os_error() == Some(libc::EPERM) {
        return memory_hint(cause).to_owned();
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    match version(&release) {
        Some((major, minor)) if (major, minor) < LATEST_NEED => {
            format!(
                "; Linux {major}.{minor} lacks what it needs, Linux {}.{} has it",
                LATEST_NEED.0, LATEST_NEED.1
            )
        }
        _ => String::new(),
    }
}

/// From this version on the kernel has all that any of the programs needs: `bpf_loop`, and type
/// information that it resolves itself.
const LATEST_NEED: (u32, u32) = (5, 17);

/// The first two numbers of a release.
pub(super) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn memory_hint(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::EPERM) => {
            "; before Linux 5.11 its memory must be permitted: run `ulimit -l unlimited` as root first"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that what a user reads of a program that the kernel refuses is one line without the
    /// verifier's words, and that versions are read from any release.
    #[test]
    fn a_refused_program_in_one_line() {
        let log = "0: R1=ctx(id=0,off=0,imm=0) R10=fp0\nunknown func bpf_loop#181".to_owned();
        let cause = io::Error::from_raw_os_error(libc::EINVAL);
        let words = BpfError::Load { program: "kymo_sample", log, cause }.to_string();
        assert!(
            words.contains("kymo_sample") && !words.contains("R10") && words.lines().count() == 1,
            "{words}"
        );
        for (release, expected) in [
            ("5.10.0-28-cloud-amd64", Some((5, 10))),
            ("6.18.5", Some((6, 18))),
            ("7.2-rc1", Some((7, 2))),
            ("x", None),
        ] {
            assert_eq!(version(release), expected);
        }
    }
}
