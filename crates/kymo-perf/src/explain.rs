//! Why the kernel refused an event, in a sentence: event, task, CPU, reason, and what to run.
//!
//! The kernel answers with one number; the reason follows from that number, what was asked, and
//! what this process may do ([`Caps`]). Libraries return the number; only the program's surface
//! calls this module.

use crate::caps::{self, Capability, Caps};
use crate::cpu_list;
use crate::event_filter;
use crate::evlist::{OpenError, Request, Stage, user_only_name};
use crate::sys::{ANY, attr_bytes, perf_event_attr};
use perf_event_open_sys::bindings;
use std::fmt;

/// What was tried and refused.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// The event's name.
    pub event: &'a str,
    /// What the kernel was given.
    pub attr: &'a perf_event_attr,
    /// The thread, 0 for this one, or [`ANY`].
    pub task: i32,
    /// The CPU, or [`ANY`].
    pub cpu: i32,
    /// The user that the task belongs to, if known.
    pub task_owner: Option<u32>,
    /// The event joins a group that another event leads.
    pub in_group: bool,
    /// How many descriptors the whole list needs, if known.
    pub descriptors: Option<u64>,
}

impl<'a> Attempt<'a> {
    /// An attempt to open one event for a task and a CPU.
    pub fn new(event: &'a str, attr: &'a perf_event_attr, task: i32, cpu: i32) -> Self {
        Self { event, attr, task, cpu, task_owner: None, in_group: false, descriptors: None }
    }

    /// The attempt that an event list's opening ended with. Looks the task's owner up.
    pub fn of(error: &'a OpenError, requests: &'a [Request], descriptors: Option<u64>) -> Option<Self> {
        let request = requests.get(error.index)?;
        // Which place was the last is no news where descriptors ran out: the words are about none
        // then.
        let task = error.task.unwrap_or(if error.shortage.is_some() { 0 } else { ANY });
        Some(Self {
            event: &error.event,
            attr: &error.attr,
            task,
            cpu: error.cpu.unwrap_or(ANY),
            task_owner: owner(task),
            in_group: request.leader.is_some(),
            descriptors: error.shortage.map(|shortage| shortage.needed).or(descriptors),
        })
    }

    /// A word of the attr by its place in the ABI; the kernel's struct has unions there.
    fn word(&self, number: usize) -> u64 {
        u64::from_ne_bytes(attr_bytes(self.attr).as_chunks().0[number])
    }

    fn sample_period(&self) -> u64 {
        self.word(2)
    }

    fn is(&self, kind: u32) -> bool {
        self.attr.type_ == kind
    }

    /// Counted by a CPU's PMU under a fixed number: hardware, cache or raw.
    fn on_core(&self) -> bool {
        [bindings::PERF_TYPE_HARDWARE, bindings::PERF_TYPE_HW_CACHE, bindings::PERF_TYPE_RAW]
            .contains(&self.attr.type_)
    }

    fn subject(&self) -> String {
        let whom = match (self.task, self.cpu) {
            (ANY, ANY) => " for all tasks on any CPU".to_owned(),
            (ANY, cpu) => format!(" for all tasks on CPU {cpu}"),
            (0, ANY) => String::new(),
            (task, ANY) => format!(" for task {task}"),
            (0, cpu) => format!(" on CPU {cpu}"),
            (task, cpu) => format!(" for task {task} on CPU {cpu}"),
        };
        format!("cannot open `{}`{whom}", self.event)
    }
}

/// The user that a task belongs to.
fn owner(task: i32) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    (task > 0).then(|| std::fs::metadata(format!("/proc/{task}")).ok().map(|meta| meta.uid())).flatten()
}

/// Why something was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What failed, on what, and why: one sentence without a full stop.
    pub sentence: String,
    /// What to do about it, if anything can be done.
    pub hint: Option<String>,
    /// The one command of the hint that permits it, to be pasted into a shell.
    pub command: Option<String>,
}

impl Explanation {
    fn new(sentence: String) -> Self {
        Self { sentence, hint: None, command: None }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// A hint that begins with a command; `more` goes on behind it.
    fn run(self, command: impl Into<String>, more: &str) -> Self {
        let command = command.into();
        Self { hint: Some(format!("run `{command}`{more}")), command: Some(command), ..self }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, "\n  {hint}"))
    }
}

/// The capabilities that kymo has a use for, as setcap(8) takes them.
const RIGHTS: &str = "cap_perfmon,cap_bpf,cap_sys_ptrace,cap_syslog,cap_sys_nice,cap_ipc_lock=ep";

/// The command that gives this program every capability it has a use for, whoever runs it. It is
/// the same in every message: setcap(8) replaces, so a shorter list would take rights away.
pub fn setcap_command(caps: &Caps) -> String {
    let program =
        caps.program.as_ref().map_or_else(|| "$(command -v kymo)".into(), |path| path.display().to_string());
    let plain = program.chars().all(|c| c.is_alphanumeric() || "/._-+$() ".contains(c));
    let spaced = program.contains(' ') && !program.starts_with('$');
    match (plain, spaced) {
        (true, false) => format!("sudo setcap {RIGHTS} {program}"),
        _ => format!("sudo setcap {RIGHTS} '{}'", program.replace('\'', "'\\''")),
    }
}

/// Lets the sysctl be changed to `level`, and names the other ways.
fn lower_paranoid(explanation: Explanation, level: i32, caps: &Caps) -> Explanation {
    if caps.user_namespace {
        return explanation.hint(
            "root in this user namespace is an ordinary user outside: on the host, as root, \
             set `sysctl kernel.perf_event_paranoid` lower, or start the container with CAP_PERFMON in the host's namespace",
        );
    }
    if let Some(container) = &caps.container
        && caps.euid == 0
    {
        return explanation.hint(match container.as_str() {
            "docker" | "podman" => format!("start the container with `{container} run --cap-add PERFMON`"),
            _ => "give the container CAP_PERFMON".to_owned(),
        });
    }
    let others = if caps.no_new_privileges {
        ", or run kymo as root".to_owned()
    } else {
        format!(", or run kymo as root, or permit this program alone: `{}`", setcap_command(caps))
    };
    explanation.run(format!("sudo sysctl kernel.perf_event_paranoid={level}"), &others)
}

/// Why a list of events could not be opened, and what helps. `descriptors`: as many as it needs.
#[must_use]
pub fn explain_list(error: &OpenError, requests: &[Request], descriptors: Option<u64>) -> String {
    let errno = error.source.raw_os_error().unwrap_or(0);
    if error.stage == Stage::Filter {
        let filter = requests.get(error.index).and_then(|request| request.filter.as_ref());
        let fault = filter.and_then(|filter| event_filter::fault(&filter.text, &filter.tracepoint));
        let refused =
            || format!("{error}; the kernel does not understand it, or compares a number with a text");
        return fault.map_or_else(refused, |fault| format!("--filter of {}: {fault}", error.event));
    }
    let attempt = Attempt::of(error, requests, descriptors);
    attempt.map_or_else(
        || error.to_string(),
        |attempt| explain_open(errno, &attempt, &caps::probe()).to_string(),
    )
}

/// Explains why `perf_event_open` answered with `errno`.
pub fn explain_open(errno: i32, attempt: &Attempt<'_>, caps: &Caps) -> Explanation {
    let subject = attempt.subject();
    let because = |why: &str| Explanation::new(format!("{subject}: {why}"));
    match errno {
        libc::EACCES | libc::EPERM => refused(errno, attempt, caps),
        libc::ENOENT if attempt.on_core() && caps.core_pmus.is_empty() => because(
            "this machine has no hardware counters, as is common in virtual machines",
        )
        .hint("use a software event such as `cpu-clock`"),
        libc::ENOENT if attempt.on_core() => {
            because("this CPU has no such counter").hint("`kymo list` shows which hardware events can be counted here")
        }
        libc::ENOENT if attempt.is(bindings::PERF_TYPE_TRACEPOINT) => {
            because("the kernel no longer has this tracepoint; its module was probably unloaded")
        }
        libc::ENOENT => because(&format!("no PMU of type {} knows this event", attempt.attr.type_))
            .hint("`kymo list` shows the PMUs of this machine and their events"),
        libc::ENODEV if attempt.cpu >= 0 => because(&format!("CPU {} is not online, or its PMU does not serve it", attempt.cpu))
            .hint(format!("choose some of CPUs {} with `-C`", cpu_list::format(&caps.cpus.cpus))),
        libc::ENODEV | libc::ENXIO => because("the device that counts this event is not there")
            .hint("`kymo list` shows the events that can be opened here"),
        libc::EINVAL => invalid(attempt, caps),
        libc::EOVERFLOW => too_deep(attempt, caps),
        libc::EMFILE => out_of_descriptors(attempt, caps),
        libc::ENFILE => because("the whole system has no descriptor left").run(
            "sudo sysctl fs.file-max=9223372036854775807",
            ", or end programs that hold many files open",
        ),
        libc::ESRCH => because(&format!("there is no task {}; it has ended", attempt.task))
            .hint("`ps -eLf` shows the tasks that run now"),
        libc::ENOSPC if attempt.is(bindings::PERF_TYPE_BREAKPOINT) => because(
            "all debug registers are in use (x86-64 has 4 for each CPU, shared by all watchpoints and debuggers)",
        )
        .hint("watch fewer addresses at once, or end a debugger that watches memory"),
        libc::ENOSPC => because("the counters are all taken").hint("record fewer events at once"),
        libc::EBUSY => because("someone else holds the counter for themselves alone: a pinned event, another profiler, or the NMI watchdog")
            .run("sudo sysctl kernel.nmi_watchdog=0", ", or end the other profiler"),
        libc::EOPNOTSUPP => unsupported(attempt),
        libc::ENOSYS if refused_by_filter(errno, caps) => because(
            "a seccomp filter hides the system call perf_event_open, as container runtimes do",
        )
        .hint(container_hint(caps)),
        libc::ENOSYS => because("this kernel is built without perf events (CONFIG_PERF_EVENTS)")
            .hint("boot a kernel that has them; every distribution's standard kernel does"),
        libc::E2BIG => because("this kernel is older than a setting of this event").hint("leave out `config3` and `config4` terms"),
        libc::ENOMEM => because("the kernel has no memory for it").hint("record fewer tasks or events, or use smaller rings with `-m`"),
        libc::EINTR | libc::EAGAIN => because("the kernel was interrupted").hint("try again"),
        _ => because(&std::io::Error::from_raw_os_error(errno).to_string()),
    }
}

/// What to tell someone in a container whose runtime refuses.
fn container_hint(caps: &Caps) -> String {
    match caps.container.as_deref() {
        Some(kind @ ("docker" | "podman")) => {
            format!(
                "start the container with `{kind} run --cap-add PERFMON`, or with `--security-opt seccomp=unconfined`"
            )
        }
        Some("kubernetes") => {
            "add PERFMON to the pod's securityContext.capabilities, or use an unconfined seccompProfile"
                .into()
        }
        _ => "start the service or container without the filter, or with one that permits perf_event_open"
            .into(),
    }
}

/// EACCES and EPERM: permission, by which rule.
/// Whether a filter of system calls refuses every event, rather than the kernel.
pub fn refused_by_filter(errno: i32, caps: &Caps) -> bool {
    match errno {
        libc::EPERM => caps.seccomp && caps.trials.own_user.is_err(),
        // The kernel has events if it has this setting.
        libc::ENOSYS => caps.paranoid.is_some(),
        _ => false,
    }
}

fn refused(errno: i32, attempt: &Attempt<'_>, caps: &Caps) -> Explanation {
    let subject = attempt.subject();
    let because = |why: String| Explanation::new(format!("{subject}: {why}"));
    let paranoid = caps.paranoid.unwrap_or(2);
    let nothing_works = caps.trials.own_user.is_err();
    if refused_by_filter(errno, caps) {
        return because(
            "a seccomp filter refuses perf_event_open, as container runtimes do by default".into(),
        )
        .hint(container_hint(caps));
    }
    if !caps.perfmon() {
        if nothing_works && paranoid > 2 {
            let why = format!(
                "this system lets no ordinary user open events (kernel.perf_event_paranoid is {paranoid})"
            );
            return lower_paranoid(because(why), level_for(attempt), caps);
        }
        // The kernel refuses the kernel side first, but without it the task would be refused all
        // the same.
        let foreign = attempt.task_owner.is_some_and(|owner| owner != caps.euid);
        if attempt.task > 0 && foreign && !caps.has(Capability::SysPtrace) {
            return other_task(attempt, caps);
        }
        if attempt.task == ANY && paranoid > 0 {
            let why = format!(
                "observing all tasks of a CPU is not permitted to ordinary users (kernel.perf_event_paranoid is {paranoid}; 0 would permit it)"
            );
            return lower_paranoid(because(why), level_for(attempt), caps);
        }
        let raw = attempt.attr.sample_type & u64::from(bindings::PERF_SAMPLE_RAW) != 0;
        if attempt.is(bindings::PERF_TYPE_TRACEPOINT) && raw && paranoid > -1 {
            let why = format!(
                "a tracepoint's data is not shown to ordinary users (kernel.perf_event_paranoid is {paranoid}; -1 would permit it)"
            );
            return lower_paranoid(because(why), -1, caps);
        }
        // From Linux 7.2 on, call chains count as observing the kernel unless they exclude it.
        let chains = attempt.attr.sample_type & u64::from(bindings::PERF_SAMPLE_CALLCHAIN) != 0
            && attempt.attr.exclude_callchain_kernel() == 0;
        if (attempt.attr.exclude_kernel() == 0 || chains) && paranoid > 1 {
            let why = format!(
                "observing the kernel is not permitted to ordinary users (kernel.perf_event_paranoid is {paranoid}; 1 would permit it)"
            );
            let explanation = lower_paranoid(because(why), 1, caps);
            // An event of the kernel alone has nothing left in user space.
            if attempt.attr.exclude_user() != 0 || attempt.attr.exclude_kernel() != 0 {
                return explanation;
            }
            let hint = explanation.hint.clone().unwrap_or_default();
            let name = user_only_name(attempt.event);
            return explanation.hint(format!("observe user space only, as `{name}`, or {hint}"));
        }
    }
    if attempt.task > 0 {
        return other_task(attempt, caps);
    }
    if nothing_works && caps.perfmon() {
        return because(
            "a security module (SELinux, lockdown) or a filter refuses events even to privileged users"
                .into(),
        )
        .hint("`journalctl -k` or `ausearch -m avc` may name the rule");
    }
    let explanation = because("permission denied".to_owned());
    if caps.perfmon() { explanation } else { lower_paranoid(explanation, level_for(attempt), caps) }
}

/// The highest level of `perf_event_paranoid` that permits the attempt.
fn level_for(attempt: &Attempt<'_>) -> i32 {
    let raw = attempt.attr.sample_type & u64::from(bindings::PERF_SAMPLE_RAW) != 0;
    match attempt {
        _ if attempt.is(bindings::PERF_TYPE_TRACEPOINT) && raw => -1,
        _ if attempt.task == ANY => 0,
        _ if attempt.attr.exclude_kernel() == 0 => 1,
        _ => 2,
    }
}

/// A task that may not be looked into.
fn other_task(attempt: &Attempt<'_>, caps: &Caps) -> Explanation {
    let why = match attempt.task_owner {
        Some(owner) if owner != caps.euid => {
            format!("task {} belongs to user {owner}, and kymo runs as user {}", attempt.task, caps.euid)
        }
        _ => format!(
            "task {} may not be looked into (it runs a setuid program, or has protected itself)",
            attempt.task
        ),
    };
    let explanation = Explanation::new(format!("{}: {why}", attempt.subject()));
    if caps.has(Capability::SysPtrace) {
        return explanation.hint("a security module may refuse it; `journalctl -k` may name the rule");
    }
    if caps.no_new_privileges || caps.user_namespace {
        return explanation.hint("run kymo as that user, or as root of the host");
    }
    let command = setcap_command(caps);
    let hint = format!("run kymo as that user or as root, or permit this program alone: `{command}`");
    Explanation { hint: Some(hint), command: Some(command), ..explanation }
}

/// EINVAL: the kernel does not like what was asked; which part, is inferred.
fn invalid(attempt: &Attempt<'_>, caps: &Caps) -> Explanation {
    let subject = attempt.subject();
    let because = |why: String| Explanation::new(format!("{subject}: {why}"));
    let attr = attempt.attr;
    if attr.freq() != 0
        && let Some(most) = caps.max_sample_rate
        && attempt.sample_period() > most
    {
        let asked = attempt.sample_period();
        return because(format!("{asked} samples per second are more than the kernel permits ({most})")).run(
            format!("sudo sysctl kernel.perf_event_max_sample_rate={asked}"),
            ", or record with `-F max`",
        );
    }
    if attr.freq() == 0 && attempt.sample_period() >> 63 != 0 {
        return because(format!("a period of {} does not fit 63 bits", attempt.sample_period()))
            .hint("use a smaller `-c`");
    }
    if caps.max_stack.is_some_and(|most| u32::from(attr.sample_max_stack) > most) {
        return too_deep(attempt, caps);
    }
    if attempt.task == ANY && attempt.cpu == ANY {
        return because("neither a task nor a CPU is named, and the kernel wants one".into())
            .hint("record a command, a task (`-p`, `-t`), or all CPUs (`-a`)");
    }
    if attempt.is(bindings::PERF_TYPE_BREAKPOINT) {
        return bad_breakpoint(attempt);
    }
    if !attr.sample_stack_user.is_multiple_of(8) || attr.sample_stack_user > 65_528 {
        return because(format!("a stack copy of {} bytes is not possible", attr.sample_stack_user))
            .hint("use a multiple of 8 up to 65528 in `--call-graph dwarf,BYTES`");
    }
    if attr.precise_ip() != 0 {
        return because(format!("this event has no precision level {} here", attr.precise_ip()))
            .hint("use fewer `p`, or `P` for the highest level that works");
    }
    if attempt.task != ANY && attr.type_ > bindings::PERF_TYPE_BREAKPOINT {
        return because("its PMU counts for whole CPUs and cannot follow a task".into())
            .hint("record all CPUs with `-a`, or some with `-C`");
    }
    if attr.inherit() != 0 && attr.read_format & u64::from(bindings::PERF_FORMAT_GROUP) != 0 {
        return because("this kernel cannot read a group (`:S`) of inherited events".into())
            .hint("add `--no-inherit`, or leave out `S`");
    }
    if attempt.in_group {
        return because("it cannot be in one group with its leader".into())
            .hint("name it outside the braces, or append `:W` to the group so that kymo may dissolve it");
    }
    because("the kernel does not accept this combination of settings".into())
        .hint("try the event alone and without modifiers; `dmesg` may say more")
}

fn bad_breakpoint(attempt: &Attempt<'_>) -> Explanation {
    let (addr, len) = (attempt.word(7), attempt.word(8));
    let because = |why: String| Explanation::new(format!("{}: {why}", attempt.subject()));
    if attempt.attr.bp_type & bindings::HW_BREAKPOINT_X != 0 && len != 8 {
        return because(format!("a breakpoint on code must be 8 bytes long here, not {len}"))
            .hint("leave out the length");
    }
    if !matches!(len, 1 | 2 | 4 | 8) {
        return because(format!("a watchpoint cannot be {len} bytes long")).hint("use 1, 2, 4 or 8");
    }
    if !addr.is_multiple_of(len) && attempt.attr.bp_type & bindings::HW_BREAKPOINT_X == 0 {
        let aligned = addr - addr % len;
        return because(format!("{addr:#x} is not a multiple of the length, {len} bytes"))
            .hint(format!("watch `mem:{aligned:#x}/{len}`, or a shorter piece such as `mem:{addr:#x}/1`"));
    }
    if attempt.attr.bp_type == bindings::HW_BREAKPOINT_R {
        return because("this CPU cannot watch for reads alone".into())
            .hint("use `:rw`, which stops at reads and writes");
    }
    if addr >> 63 != 0 && attempt.attr.exclude_kernel() != 0 {
        return because("the address is in the kernel, which this event excludes".into())
            .hint("leave out `:u`");
    }
    because("this CPU cannot watch that address".into()).hint("the address must be one that the task can use")
}

fn too_deep(attempt: &Attempt<'_>, caps: &Caps) -> Explanation {
    let asked = attempt.attr.sample_max_stack;
    let most = caps.max_stack.unwrap_or(127);
    Explanation::new(format!(
        "{}: call chains of {asked} frames are deeper than the kernel permits ({most})",
        attempt.subject()
    ))
    .run(
        format!("sudo sysctl kernel.perf_event_max_stack={asked}"),
        &format!(", or use `--max-stack {most}` (no recording may be running when the setting is changed)"),
    )
}

fn out_of_descriptors(attempt: &Attempt<'_>, caps: &Caps) -> Explanation {
    /// What the kernel lets a limit be raised to unless it was told otherwise (fs.nr_open).
    const MOST: u64 = 1 << 20;
    let have = caps.nofile_soft.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let need = attempt.descriptors;
    let wanted =
        need.unwrap_or_else(|| caps.nofile_soft.unwrap_or(1024).saturating_mul(4)).saturating_add(64);
    let needed =
        need.map_or(String::new(), |need| format!(", and {need} are needed (one per event, task and CPU)"));
    let explanation = Explanation::new(format!(
        "{}: this process has no descriptor left; its limit of open files (RLIMIT_NOFILE) is {have}{needed}",
        attempt.subject()
    ));
    let fewer = " in this shell; or record fewer events, tasks or CPUs; or use `--scope filtered` or `-a`, \
                 which need one per event and CPU however many tasks there are";
    let command = match caps.nofile_hard {
        Some(hard) if hard < wanted => format!("sudo prlimit --pid $$ --nofile={wanted}"),
        _ => format!("ulimit -n {wanted}"),
    };
    let nr_open = if wanted > MOST { format!("sudo sysctl fs.nr_open={wanted} && ") } else { String::new() };
    explanation.run(nr_open + &command, fewer)
}

fn unsupported(attempt: &Attempt<'_>) -> Explanation {
    let because = |why: &str| Explanation::new(format!("{}: {why}", attempt.subject()));
    let attr = attempt.attr;
    if attr.precise_ip() != 0 {
        return because("this machine has no precise sampling of it")
            .hint("use fewer `p`, or `P` for the highest level that works");
    }
    if attr.sample_type & u64::from(bindings::PERF_SAMPLE_BRANCH_STACK) != 0 {
        return because("this machine records no branch stacks")
            .hint("leave out `-b`, `-j` and `--call-graph lbr`");
    }
    if attr.sample_type & u64::from(bindings::PERF_SAMPLE_REGS_USER | bindings::PERF_SAMPLE_STACK_USER) != 0 {
        return because("this architecture gives no user registers").hint("use `--call-graph fp`");
    }
    if attempt.sample_period() != 0 && (attempt.on_core() || attr.type_ > bindings::PERF_TYPE_BREAKPOINT) {
        return because("its PMU has no interrupt, so it can count but not sample")
            .hint("use `cpu-clock` to sample by time");
    }
    if attempt.is(bindings::PERF_TYPE_BREAKPOINT) {
        return because("this machine has no debug registers for it");
    }
    because("this kernel or CPU does not support it")
        .hint("`kymo list` shows the events that can be opened here")
}

/// Explains why mapping a ring answered with `errno`: `rings` rings of `bytes` bytes each were
/// wanted in all.
pub fn explain_map(errno: i32, event: &str, bytes: u64, rings: u64, caps: &Caps) -> Explanation {
    let kib = bytes.div_ceil(1024);
    let subject = format!("cannot map a ring of {kib} KiB for `{event}`");
    match errno {
        libc::EPERM => {
            let free = caps.mlock_kib.unwrap_or(516);
            let limit = caps.memlock_bytes.map_or_else(|| "unlimited".into(), |bytes| format!("{} KiB", bytes / 1024));
            let per_ring = caps.ring_bytes().map(|all| all / rings.max(1) / 1024);
            let smaller = match per_ring {
                // One page of each ring is its head; the kernel wants a power of two behind it.
                Some(kib) if kib >= 8 => format!(", or use smaller rings: `-m {}K`", 1_u64 << (kib - 4).ilog2()),
                _ => String::new(),
            };
            let needed = kib.saturating_add(4);
            Explanation::new(format!(
                "{subject}: {rings} of them exceed the memory that this user may lock \
                 (kernel.perf_event_mlock_kb is {free} per CPU for all of a user's rings, and `ulimit -l` is {limit})"
            ))
            .run(format!("sudo sysctl kernel.perf_event_mlock_kb={needed}"), &format!("{smaller}, or give kymo CAP_IPC_LOCK"))
        }
        libc::ENOMEM => Explanation::new(format!("{subject}: the kernel has no memory for {rings} of them"))
            .hint("use smaller rings with `-m`, or fewer CPUs with `-C`"),
        libc::EINVAL => Explanation::new(format!("{subject}: the kernel does not accept this size, or maps no inherited event that is not bound to a CPU"))
            .hint("`-m` takes a power of two of pages; `--per-thread` needs `--no-inherit`"),
        libc::ENODEV => Explanation::new(format!("{subject}: the event or its CPU is gone")),
        _ => Explanation::new(format!("{subject}: {}", std::io::Error::from_raw_os_error(errno))),
    }
}

/// Why a command could not be executed, and what to do about it.
pub fn not_executed(command: &str, source: &std::io::Error) -> String {
    format!("failed to execute {command}: {source}{}", exec_advice(command, source))
}

fn exec_advice(command: &str, source: &std::io::Error) -> &'static str {
    let is_number = command.bytes().all(|byte| byte.is_ascii_digit());
    match source.kind() {
        std::io::ErrorKind::NotFound if is_number => {
            "; it was taken for a command: several processes are named as `-p 123,456`"
        }
        std::io::ErrorKind::NotFound if command.contains(char::is_whitespace) => {
            "; quotes made one word of it: give its arguments as words of their own, or run `sh -c`"
        }
        std::io::ErrorKind::NotFound => "; check its name, its #! line and PATH",
        _ if matches!(source.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) && caps::is_filtered() => {
            "; a seccomp filter of this process may refuse to start programs: run kymo outside of this sandbox"
        }
        std::io::ErrorKind::PermissionDenied => {
            "; it must be a file that may be executed: `chmod +x` it, or name its interpreter"
        }
        _ => limit_advice(source),
    }
}

/// What to do where descriptors ran out.
pub fn limit_advice(source: &std::io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE) => "; permit more in this shell: `ulimit -n 1024`",
        Some(libc::EAGAIN) => {
            "; the number of processes and threads is limited: see `ulimit -u`, and pids.max of the cgroup"
        }
        Some(libc::ENOMEM) => "; memory is limited: see `ulimit -v`, and memory.max of the cgroup",
        _ => "",
    }
}

#[cfg(test)]
mod tests;
