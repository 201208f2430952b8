//! The CPUs that the kernel schedules, whatever a sandbox shows of them.
//!
//! `/sys/devices/system/cpu/online` is missing in sandboxes that mount no sysfs, and in containers
//! it may be a file of lxcfs that lists as many CPUs as the container's quota. Programs run on the
//! other CPUs all the same, and an event that is not opened there misses them without a word. So
//! several sources are combined:
//!
//! | source | what it proves |
//! |---|---|
//! | `sched_getaffinity(2)` of a task | these CPUs are online; others may be, too |
//! | `/sys/devices/system/cpu/online`, `/proc/stat` | hints: each may be missing, or made up |
//! | `/sys/devices/system/cpu/possible` | the CPUs to ask for, if no source lists them |
//! | `perf_event_open(2)` on a CPU | whether it is online; needs the privilege of `-a` |
//!
//! A CPU that is listed anywhere is kept unless the kernel denies it. One that is listed nowhere is
//! asked for. Where the kernel does not answer, [`OnlineCpus::doubt`] says so.
use super::{ANY, EventTarget, Kernel, Perf, Real, attr_zeroed, cpu_number_bound};
use crate::cpu_list;
use crate::machine::Machine;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The first process of this namespace: it is seldom bound to some CPUs, even if this one is.
const FIRST_PROCESS: i32 = 1;

/// CPUs that no source listed and that the kernel denied. They are not asked for again: one that
/// comes online is listed then.
static DENIED: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// The online CPUs, and how that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnlineCpus {
    /// Their numbers, ascending.
    pub cpus: Vec<u32>,
    /// What is wrong with the list in sysfs, if anything is.
    pub listing: Option<String>,
    /// Why there may be more CPUs, or fewer, than these; `None`: the kernel confirmed them.
    pub doubt: Option<String>,
}

/// What the kernel says of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CpuAnswer {
    Online,
    Offline,
    /// No answer: privileges are missing, or a filter of system calls denies the question.
    Refused,
}

/// What each source lists; `None`: it cannot be read, or lists no CPU.
struct CpuSources {
    sysfs: Option<BTreeSet<u32>>,
    stat: Option<BTreeSet<u32>>,
    possible: Option<BTreeSet<u32>>,
    permitted: BTreeSet<u32>,
    /// A number that no CPU reaches.
    bound: u32,
}

/// The CPUs that are online now, ascending.
pub fn online_cpus() -> Vec<u32> {
    OnlineCpus::here(&[]).cpus
}

impl OnlineCpus {
    /// Of the machine that runs this program. `tasks`: tasks that are to be observed; the CPUs on
    /// which they may run are among the result.
    pub fn here(tasks: &[i32]) -> OnlineCpus {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let tasks = [&[own, FIRST_PROCESS], tasks].concat();
        let mut denied = DENIED.lock().unwrap_or_else(PoisonError::into_inner);
        CpuSources::read(&Machine::here(), &Real, &tasks).combine(&Real, &mut denied)
    }

    /// Of any machine and kernel.
    pub(crate) fn at(machine: &Machine, kernel: &dyn Kernel) -> OnlineCpus {
        CpuSources::read(machine, kernel, &[0, FIRST_PROCESS]).combine(kernel, &mut BTreeSet::new())
    }

    /// What a user should know: there may be CPUs that are not observed.
    pub fn warning(&self) -> Option<String> {
        let doubt = self.doubt.as_ref()?;
        Some(format!(
            "observing CPUs {}, but {doubt}; `nproc --all` outside of this sandbox tells how many there are",
            cpu_list::format(&self.cpus)
        ))
    }
}

impl CpuSources {
    fn read(machine: &Machine, kernel: &dyn Kernel, tasks: &[i32]) -> CpuSources {
        let set = |list: Vec<u32>| (!list.is_empty()).then(|| list.into_iter().collect::<BTreeSet<u32>>());
        let listed =
            |name: &str| set(cpu_list::parse(&text(&machine.sys().join("devices/system/cpu").join(name))));
        CpuSources {
            sysfs: listed("online"),
            stat: set(cpus_of_stat(&text(&machine.proc().join("stat")))),
            possible: listed("possible"),
            permitted: tasks.iter().flat_map(|&task| kernel.permitted_cpus(task)).collect(),
            bound: cpu_number_bound(),
        }
    }

    fn combine(&self, kernel: &dyn Kernel, denied: &mut BTreeSet<u32>) -> OnlineCpus {
        let listed: BTreeSet<u32> =
            [&self.sysfs, &self.stat].into_iter().flatten().flatten().copied().collect();
        let agree = self.sysfs == self.stat && self.permitted.is_subset(&listed);
        let mut online = self.permitted.clone();
        let mut refused = false;
        for &cpu in listed.difference(&self.permitted) {
            let answer = if agree { CpuAnswer::Online } else { ask(kernel, cpu) };
            refused |= answer == CpuAnswer::Refused;
            if answer != CpuAnswer::Offline {
                online.insert(cpu);
            }
        }
        let others = match &self.possible {
            Some(possible) => possible.clone(),
            None => (0..self.bound).collect(),
        };
        let unlisted = |cpu: &&u32| !listed.contains(cpu) && !self.permitted.contains(cpu);
        for &cpu in others.iter().filter(unlisted) {
            if denied.contains(&cpu) {
                continue;
            }
            match ask(kernel, cpu) {
                CpuAnswer::Online => _ = online.insert(cpu),
                CpuAnswer::Offline => _ = denied.insert(cpu),
                // Neither would it say of the next one.
                CpuAnswer::Refused => {
                    refused = true;
                    break;
                }
            }
        }
        if online.is_empty() {
            online.insert(0);
        }
        let listing = self.listing(&online);
        let doubt = (refused && !agree).then(|| {
            let reason = listing.clone().unwrap_or_else(|| "/proc/stat does not list the same CPUs".into());
            format!("{reason}, and the kernel does not say which others are online")
        });
        OnlineCpus { cpus: online.into_iter().collect(), listing, doubt }
    }

    /// What is wrong with the list in sysfs, seen from these CPUs.
    fn listing(&self, online: &BTreeSet<u32>) -> Option<String> {
        const PATH: &str = "/sys/devices/system/cpu/online";
        let Some(sysfs) = &self.sysfs else { return Some(format!("{PATH} cannot be read")) };
        let list = |set: &BTreeSet<u32>| cpu_list::format(&set.iter().copied().collect::<Vec<_>>());
        (sysfs != online).then(|| format!("{PATH} lists CPUs {} instead of {}", list(sysfs), list(online)))
    }
}

/// How many CPUs this kernel can ever have, so that every number of a CPU is smaller: at least as
/// many as the kernel copies values for of a BPF map that has one for each CPU.
pub(crate) fn possible_cpus() -> u32 {
    static POSSIBLE: OnceLock<u32> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let listed = cpu_list::parse(&text(Path::new("/sys/devices/system/cpu/possible"))).last().copied();
        match listed {
            // The kernel takes no such number even for an event of a task.
            Some(last) if ask_of(&Real, 0, last + 1) != Ok(()) => last + 1,
            _ => cpu_number_bound(),
        }
    })
}

/// Asks the kernel whether a CPU is online.
fn ask(kernel: &dyn Kernel, cpu: u32) -> CpuAnswer {
    match ask_of(kernel, ANY, cpu) {
        Ok(()) => return CpuAnswer::Online,
        Err(libc::ENODEV | libc::EINVAL) => return CpuAnswer::Offline,
        Err(_) => {}
    }
    // An event of a task may be opened on any CPU that the machine could have, without privilege.
    match ask_of(kernel, 0, cpu) {
        Err(libc::ENODEV | libc::EINVAL) => CpuAnswer::Offline,
        _ => CpuAnswer::Refused,
    }
}

/// Opens an event on a CPU, which counts nothing; the error's number.
fn ask_of(kernel: &dyn Kernel, task: i32, cpu: u32) -> Result<(), i32> {
    let number = i32::try_from(cpu).map_err(|_| libc::EINVAL)?;
    let mut attr = attr_zeroed();
    attr.type_ = Perf::SOFTWARE;
    attr.config = Perf::SW_CPU_CLOCK;
    attr.set_disabled(1);
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    let event = kernel.open(&attr, &EventTarget::new(task, number));
    let event = event.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    kernel.close(vec![event]);
    Ok(())
}

/// The CPUs of the lines `cpu0 ...`, `cpu1 ...` of `/proc/stat`.
fn cpus_of_stat(stat: &str) -> Vec<u32> {
    let number = |line: &str| line.split_ascii_whitespace().next()?.strip_prefix("cpu")?.parse().ok();
    stat.lines().filter_map(number).filter(|&cpu| cpu < 1 << 16).collect()
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::made_up;
    use crate::sys::Fake;

    /// A kernel with CPUs 0 to 3, of which the last is offline.
    fn kernel() -> Fake {
        Fake::new().rule(|call| match call.cpu {
            4.. => Some(libc::EINVAL),
            3 if call.task == ANY => Some(libc::ENODEV),
            _ => None,
        })
    }

    fn cpus(kernel: &Fake, files: &[(&str, &str)]) -> OnlineCpus {
        OnlineCpus::at(&made_up(files).1, kernel)
    }

    const SYSFS: &str = "sys/devices/system/cpu/online";
    const POSSIBLE: &str = "sys/devices/system/cpu/possible";
    const STAT: (&str, &str) = ("proc/stat", "cpu  9 9\ncpu0 1 2\ncpu1 1 2\ncpu2 1 2\nintr 7\n");

    /// Checks that lists that agree are believed without a question, but for CPUs beyond them.
    #[test]
    fn lists_that_agree() {
        let kernel = kernel();
        let online = cpus(&kernel, &[(SYSFS, "0-2\n"), (POSSIBLE, "0-2\n"), STAT]);
        assert_eq!(online, OnlineCpus { cpus: vec![0, 1, 2], ..OnlineCpus::default() });
        assert_eq!(kernel.opened().len(), 0);
        assert_eq!(cpus(&kernel, &[(SYSFS, "0-2\n"), (POSSIBLE, "0-3\n"), STAT]), online);
    }

    /// Checks that no CPU is missing without sysfs, with a list that lxcfs shortened, with both
    /// lists shortened or missing, and that CPUs which a list invents are left out.
    #[test]
    fn lists_that_are_wrong() {
        let one = ("proc/stat", "cpu  9 9\ncpu0 1 2\n");
        let all: [&[(&str, &str)]; 6] = [
            &[STAT],
            &[(SYSFS, "0\n"), STAT],
            &[(SYSFS, "0\n"), one, (POSSIBLE, "0-3\n")],
            &[],
            &[(SYSFS, "0-1023\n"), STAT],
            &[(SYSFS, "nonsense"), one],
        ];
        for files in all {
            let online = cpus(&kernel(), files);
            assert_eq!((&online.cpus[..], &online.doubt), (&[0, 1, 2][..], &None), "{files:?}");
            assert!(online.listing.is_some(), "{files:?}");
        }
    }

    /// Checks that a kernel that answers nothing leaves a doubt, and no CPU out that is listed.
    #[test]
    fn no_answer() {
        let silent = Fake::new().rule(|_| Some(libc::ENOSYS));
        let online = cpus(&silent, &[(SYSFS, "0\n"), STAT]);
        assert_eq!(online.cpus, [0, 1, 2]);
        assert!(online.warning().unwrap().contains("lists CPUs 0 instead of 0-2"), "{online:?}");
        let online = cpus(&silent, &[(SYSFS, "0-2\n"), (POSSIBLE, "0-7\n"), STAT]);
        assert_eq!((online.cpus.len(), online.warning()), (3, None));
    }

    /// Checks that the kernel that runs here has every CPU on which this process may run, and that
    /// none of its CPUs is beyond those that are possible.
    #[test]
    fn this_machine() {
        let online = OnlineCpus::here(&[]).cpus;
        let permitted = Real.permitted_cpus(0);
        assert!(!permitted.is_empty() && permitted.iter().all(|cpu| online.contains(cpu)));
        assert!(online.iter().all(|&cpu| cpu < possible_cpus()) && possible_cpus() <= cpu_number_bound());
    }
}
