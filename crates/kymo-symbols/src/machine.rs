//! Whether what this machine has may be what a recording's machine had.
//!
//! A build id proves that a file or a kernel is the one that was recorded. Where a recording has
//! none, its names come from the files and the kernel of the machine that reads it. They can only
//! be right on the same machine, and as long as the files are those that were mapped.

/// What a recording says of the machine that it was made on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// Host name, as `uname -n`.
    pub host: Option<String>,
    /// Release of the kernel, as `uname -r`.
    pub release: Option<String>,
    /// Instruction set, as `uname -m`.
    pub arch: Option<String>,
}

/// Whether a recording is of the machine that reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RecordedMachine {
    /// Nothing speaks against it.
    #[default]
    This,
    /// The recording has no facts of its machine.
    Unknown,
    /// Another host, with the same kernel: a container, or a machine of the same system.
    OtherHost {
        /// The host as messages name it.
        shown: String,
    },
    /// Another kernel, so another machine or another boot of this one.
    OtherKernel {
        /// The host and its kernel as messages name them.
        shown: String,
        /// Release of its kernel, if the recording has it.
        release: Option<String>,
        /// The host has the name of this one: a file may be the one that was mapped.
        same_host: bool,
    },
}

impl RecordedMachine {
    /// Compares what a recording says with this machine.
    #[must_use]
    pub fn of(facts: &MachineFacts) -> RecordedMachine {
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| Some(part.to_string_lossy().into_owned());
        let here = MachineFacts {
            host: text(uname.nodename()),
            release: text(uname.release()),
            arch: text(uname.machine()),
        };
        RecordedMachine::compare(facts, &here)
    }

    fn compare(facts: &MachineFacts, here: &MachineFacts) -> RecordedMachine {
        if *facts == MachineFacts::default() {
            return RecordedMachine::Unknown;
        }
        let differs = |there: &Option<String>, here: &Option<String>| there.is_some() && there != here;
        let family = |arch: &Option<String>| arch.as_deref().map(|arch| family(arch).to_owned());
        let same_host = !differs(&facts.host, &here.host);
        let other_arch = differs(&family(&facts.arch), &family(&here.arch));
        if other_arch || differs(&facts.release, &here.release) {
            let kernel = match (&facts.release, &facts.arch) {
                (Some(release), Some(arch)) => format!("Linux {release} on {arch}"),
                (Some(release), None) => format!("Linux {release}"),
                (None, arch) => format!("Linux on {}", arch.as_deref().unwrap_or("another architecture")),
            };
            return RecordedMachine::OtherKernel {
                shown: match &facts.host {
                    Some(host) => format!("{host}, {kernel}"),
                    None => kernel,
                },
                release: facts.release.clone(),
                same_host: same_host && facts.host.is_some() && !other_arch,
            };
        }
        match same_host {
            true => RecordedMachine::This,
            false => RecordedMachine::OtherHost { shown: facts.host.clone().unwrap_or_default() },
        }
    }

    /// Why names of the running kernel, its modules and its vdso cannot be right for a recording
    /// without its kernel's build id, if that is so.
    pub(crate) fn kernel_refusal(&self) -> Option<String> {
        match self {
            RecordedMachine::This | RecordedMachine::OtherHost { .. } => None,
            RecordedMachine::Unknown => Some(
                "the recording does not say which kernel it is of: addresses of the kernel have no names \
                 (if it is of this machine, `--kallsyms /proc/kallsyms` names them)"
                    .to_owned(),
            ),
            RecordedMachine::OtherKernel { shown, .. } => Some(format!(
                "the recording is of another kernel ({shown}), whose build id it does not have: addresses of \
                 the kernel have no names; give that kernel's symbols with --kallsyms or --vmlinux"
            )),
        }
    }

    /// Release of the recorded kernel, where it is another one than the running one.
    pub(crate) fn other_release(&self) -> Option<&str> {
        match self {
            RecordedMachine::OtherKernel { release, .. } => release.as_deref(),
            _ => None,
        }
    }

    /// Why files of this machine cannot be those of a recording that has no build id of them.
    pub(crate) fn files_refusal(&self) -> Option<String> {
        let of = match self {
            RecordedMachine::This => return None,
            RecordedMachine::Unknown => "does not say which machine it is of".to_owned(),
            RecordedMachine::OtherHost { shown } => format!("is of another machine ({shown})"),
            RecordedMachine::OtherKernel { shown, .. } => {
                format!("is of another machine or kernel ({shown})")
            }
        };
        Some(format!(
            "the recording {of}: files whose build id it does not have are not named by the files here; \
             name a copy of its files with --symfs DIR (`--symfs /`: those of this machine)"
        ))
    }
}

/// Machines with one kernel: a 64-bit kernel names itself after the 32-bit personality, too.
fn family(arch: &str) -> &str {
    match arch {
        "i386" | "i486" | "i586" | "i686" => "x86_64",
        "armv8l" | "armv8b" => "aarch64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(host: &str, release: &str, arch: &str) -> MachineFacts {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        MachineFacts { host: some(host), release: some(release), arch: some(arch) }
    }

    /// Checks that release and architecture decide about the kernel, and the host about files.
    #[test]
    fn which_machine_a_recording_is_of() {
        let here = facts("desk", "6.1.0-18-amd64", "x86_64");
        let refusals = |host, release, arch| {
            let machine = RecordedMachine::compare(&facts(host, release, arch), &here);
            (machine.kernel_refusal().is_some(), machine.files_refusal().is_some())
        };
        assert_eq!(refusals("desk", "6.1.0-18-amd64", "x86_64"), (false, false));
        assert_eq!(refusals("desk", "6.1.0-18-amd64", "i686"), (false, false));
        assert_eq!(refusals("", "6.1.0-18-amd64", ""), (false, false));
        // A container has the host's kernel and files of its own.
        assert_eq!(refusals("c0ffee", "6.1.0-18-amd64", "x86_64"), (false, true));
        // Another boot of this machine, or another one of its name: the inode decides about files.
        assert_eq!(refusals("desk", "6.1.0-17-amd64", "x86_64"), (true, true));
        assert_eq!(refusals("desk", "6.1.0-18-amd64", "aarch64"), (true, true));
        assert_eq!(refusals("huginn", "6.6.7-arch1-1", "x86_64"), (true, true));
        assert_eq!(refusals("", "6.6.7-arch1-1", ""), (true, true));
        assert_eq!(refusals("", "", ""), (true, true));
    }
}
