//! Whether tasks can be followed in the kernel here, and why not.
use super::attach::load;
use super::error::BpfError;
use super::program::Program;
use super::sys::ProgramKind;
use crate::caps::{self, Capability, is_first_namespace};
use crate::explain::setcap_command;
use crate::pmu::text;
use crate::tracefs::Tracefs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The first pid namespace's inode: the same number on every Linux.
const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

/// The same of cgroups.
const FIRST_CGROUP_NAMESPACE: u64 = 0xefff_fffb;

/// Why tasks cannot be followed in the kernel. `Display` is a sentence without its end;
/// [`hint`](Self::hint) is what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The ids that the kernel sees are not those that /proc shows here.
    #[error("this process is not in the first pid namespace, so its ids are not the kernel's")]
    PidNamespace,
    /// These capabilities are missing, as the kernel names them.
    #[error("this process lacks {}", .0.join(" and "))]
    Capabilities(Vec<&'static str>),
    /// The capabilities are those of a user namespace.
    #[error("this process has its capabilities in a user namespace only, where they do not count for BPF")]
    UserNamespace,
    /// The kernel is locked down for confidentiality.
    #[error("the kernel is locked down (confidentiality)")]
    Lockdown,
    /// The system call is filtered.
    #[error("a seccomp filter refuses the system call bpf")]
    Seccomp,
    /// The kernel has no BPF.
    #[error("this kernel is built without BPF")]
    NoBpf,
    /// Neither type information nor tracefs is there.
    #[error("the kernel has no type information (/sys/kernel/btf/vmlinux), and tracefs is not readable")]
    NoTracepoints,
    /// Any other refusal: what was said.
    #[error("{0}")]
    Refused(String),
}

impl Unavailable {
    /// What to do about it, one sentence; `None` if nothing helps.
    pub fn hint(&self) -> Option<String> {
        let fixed = match self {
            Self::PidNamespace => "run kymo outside the container, or with `--pid=host`",
            Self::Capabilities(_) => {
                let command = setcap_command(&caps::probe());
                return Some(format!("run kymo as root, or give it the capabilities with `{command}`"));
            }
            Self::UserNamespace => "run kymo outside the user namespace",
            Self::Seccomp => {
                "run the container with `--security-opt seccomp=unconfined` and `--cap-add BPF --cap-add PERFMON`"
            }
            Self::NoTracepoints => "run `sudo mount -t tracefs none /sys/kernel/tracing`",
            Self::Lockdown | Self::NoBpf | Self::Refused(_) => return None,
        };
        Some(fixed.to_owned())
    }
}

/// What the judgement is made from.
#[derive(Clone, Debug)]
struct Facts {
    /// The inode of our pid namespace.
    pid_namespace: Option<u64>,
    /// Effective capabilities, as bits.
    effective: u64,
    user_namespace: bool,
    lockdown: bool,
    seccomp: bool,
    /// Type information or tracefs.
    tracepoints: bool,
    /// What loading the least program came to: errno and words.
    trial: Result<(), (Option<i32>, String)>,
}

impl Facts {
    fn here() -> Facts {
        let status = text(Path::new("/proc/self/status")).unwrap_or_default();
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let map = text(Path::new("/proc/self/uid_map")).unwrap_or_default();
        Facts {
            pid_namespace: pid_namespace(),
            effective: field("CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(0),
            user_namespace: !map.is_empty() && !is_first_namespace(&map),
            lockdown: text(Path::new("/sys/kernel/security/lockdown"))
                .is_some_and(|modes| modes.contains("[confidentiality]")),
            seccomp: field("Seccomp:").is_some_and(|mode| mode != "0"),
            tracepoints: Path::new("/sys/kernel/btf/vmlinux").exists() || Tracefs::here().events().is_ok(),
            trial: load(ProgramKind::PerfEvent, "kymo_trial", &Program::nothing(), None).map(drop).map_err(
                |error| match error {
                    BpfError::Load { ref cause, .. } => (cause.raw_os_error(), error.to_string()),
                    _ => (None, error.to_string()),
                },
            ),
        }
    }

    fn judge(&self) -> Result<(), Unavailable> {
        same_ids(self.pid_namespace)?;
        if let Err((errno, words)) = &self.trial {
            let refused = matches!(*errno, Some(libc::EPERM | libc::EACCES));
            let has = |capability: Capability| self.effective & capability.bit() != 0;
            let needed = [Capability::Bpf, Capability::Perfmon].into_iter();
            let missing = needed.filter(|&one| !has(one) && !has(Capability::SysAdmin));
            let missing: Vec<&str> = missing.map(Capability::name).collect();
            return Err(match *errno {
                Some(libc::ENOSYS) if self.seccomp => Unavailable::Seccomp,
                Some(libc::ENOSYS) => Unavailable::NoBpf,
                _ if refused && !missing.is_empty() => Unavailable::Capabilities(missing),
                _ if refused && self.user_namespace => Unavailable::UserNamespace,
                _ if refused && self.seccomp => Unavailable::Seccomp,
                _ if refused && self.lockdown => Unavailable::Lockdown,
                _ => Unavailable::Refused(words.clone()),
            });
        }
        // Programs load then, but what they read of the kernel is refused, and tracepoints are.
        if self.lockdown {
            return Err(Unavailable::Lockdown);
        }
        if self.tracepoints { Ok(()) } else { Err(Unavailable::NoTracepoints) }
    }
}

fn pid_namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|meta| meta.ino())
}

fn same_ids(namespace: Option<u64>) -> Result<(), Unavailable> {
    let other = namespace.is_some_and(|inode| inode != FIRST_PID_NAMESPACE);
    if other { Err(Unavailable::PidNamespace) } else { Ok(()) }
}

/// Whether the ids that we see are the kernel's: without that, strangers would be followed.
pub(super) fn ids_are_the_kernels() -> Result<(), Unavailable> {
    same_ids(pid_namespace())
}

/// Whether the cgroups that we see are the kernel's, from its first cgroup on.
pub(super) fn cgroups_are_the_kernels() -> bool {
    let inode = std::fs::metadata("/proc/self/ns/cgroup").ok().map(|meta| meta.ino());
    inode == Some(FIRST_CGROUP_NAMESPACE)
}

/// Whether programs may be loaded at all.
pub(super) fn may_load() -> Result<(), Unavailable> {
    match Facts::here().judge() {
        // Counting where functions are hit needs neither.
        Err(Unavailable::PidNamespace | Unavailable::NoTracepoints) => Ok(()),
        other => other,
    }
}

/// Whether tasks can be followed here. Loads the least program and forgets it; well under a
/// millisecond.
pub(super) fn available() -> Result<(), Unavailable> {
    Facts::here().judge()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Facts {
        Facts {
            pid_namespace: Some(FIRST_PID_NAMESPACE),
            effective: u64::MAX,
            user_namespace: false,
            lockdown: false,
            seccomp: false,
            tracepoints: true,
            trial: Ok(()),
        }
    }

    /// Checks that each reason is told apart, and that the more telling one wins.
    #[test]
    fn reasons() {
        let refused = |errno: i32| Err((Some(errno), "words".to_owned()));
        let eperm = Facts { trial: refused(libc::EPERM), ..root() };
        let cases = [
            (root(), Ok(())),
            (Facts { pid_namespace: Some(4_026_532_200), ..root() }, Err(Unavailable::PidNamespace)),
            (
                Facts { effective: Capability::Perfmon.bit(), seccomp: true, ..eperm.clone() },
                Err(Unavailable::Capabilities(vec!["CAP_BPF"])),
            ),
            (
                Facts { effective: 0, ..eperm.clone() },
                Err(Unavailable::Capabilities(vec!["CAP_BPF", "CAP_PERFMON"])),
            ),
            (Facts { user_namespace: true, ..eperm.clone() }, Err(Unavailable::UserNamespace)),
            (Facts { seccomp: true, ..eperm.clone() }, Err(Unavailable::Seccomp)),
            (Facts { lockdown: true, ..eperm.clone() }, Err(Unavailable::Lockdown)),
            (eperm, Err(Unavailable::Refused("words".to_owned()))),
            (Facts { trial: refused(libc::ENOSYS), ..root() }, Err(Unavailable::NoBpf)),
            (Facts { trial: refused(libc::ENOSYS), seccomp: true, ..root() }, Err(Unavailable::Seccomp)),
            (Facts { lockdown: true, ..root() }, Err(Unavailable::Lockdown)),
            (Facts { tracepoints: false, ..root() }, Err(Unavailable::NoTracepoints)),
        ];
        for (facts, expected) in cases {
            assert_eq!(facts.judge(), expected, "{facts:?}");
        }
    }
}
