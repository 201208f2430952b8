//! The catalog of all events of this machine, with descriptions and whether each can be opened.
//!
//! Fixed events are tried, each opened and closed at once, because only the kernel knows which of
//! them a CPU or a hypervisor serves. Tracepoints are too many and too dear to try (each open
//! patches the kernel): one of them stands for all.

use crate::caps::{Caps, TracefsState, Trial};
use crate::machine::Machine;
use crate::pmu::Pmu;
use crate::selector::{EventAttr, KnownEventKind, cache_events, known_events};
use crate::sys::{ANY, EventTarget, Kernel};
use crate::tracefs::{Tracepoint, glob};
use perf_event_open_sys::bindings;

/// The kind of an event, in the order of the listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CatalogSection {
    /// Counted by the CPU's PMU under a fixed name.
    Hardware,
    /// Counted by the kernel.
    Software,
    /// Cache and TLB events of the CPU's PMU.
    Cache,
    /// Ready-made events of PMUs, and PMUs that take terms.
    Pmu,
    /// Tracepoints of the kernel.
    Tracepoint,
    /// Watchpoints and breakpoints.
    Breakpoint,
    /// Events by number.
    Raw,
}

impl CatalogSection {
    /// All, in order.
    pub const ALL: [Self; 7] = [
        Self::Hardware,
        Self::Software,
        Self::Cache,
        Self::Pmu,
        Self::Tracepoint,
        Self::Breakpoint,
        Self::Raw,
    ];

    /// The section's name, one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Software => "software",
            Self::Cache => "cache",
            Self::Pmu => "pmu",
            Self::Tracepoint => "tracepoint",
            Self::Breakpoint => "breakpoint",
            Self::Raw => "raw",
        }
    }
}

/// Whether an event can be opened by this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// For this process's own tasks, the kernel side included.
    Yes,
    /// For own tasks in user space only (`:u`).
    UserOnly,
    /// For whole CPUs only (`-a`, `-C`).
    CpusOnly,
    /// Not at all: the errno.
    No(i32),
}

impl Availability {
    fn of(trial: Trial) -> Self {
        trial.map_or_else(Self::No, |()| Self::Yes)
    }

    /// The word of listings and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::UserOnly => "user-only",
            Self::CpusOnly => "cpus-only",
            Self::No(_) => "no",
        }
    }
}

/// One event, or one form of events, of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogEntry {
    /// The kind.
    pub section: CatalogSection,
    /// What to give to `-e`; for breakpoints, raw events and PMUs with terms, the form of it.
    pub name: String,
    /// Other spellings.
    pub aliases: Vec<String>,
    /// What it counts, one line.
    pub description: String,
    /// Whether it can be opened here.
    pub available: Availability,
    /// A form with parts to fill in, not a name to be used as it stands.
    pub is_form: bool,
}

/// What a machine offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalog {
    /// The events, by section and then in the kernel's or the alphabet's order.
    pub entries: Vec<CatalogEntry>,
    /// What could not be listed, and what to run: one sentence each.
    pub notes: Vec<String>,
}

/// Lists the events whose name, alias or section matches a filter: a glob, or a part of the name.
/// Without filters: all.
pub fn catalog(machine: &Machine, caps: &Caps, kernel: &dyn Kernel, filters: &[&str]) -> Catalog {
    let mut lister = Lister { kernel, filters, entries: Vec::new() };
    lister.fixed();
    lister.cache();
    for pmu in machine.pmus() {
        lister.pmu(pmu);
    }
    let notes = lister.tracepoints(machine, caps);
    lister.forms(machine, caps);
    Catalog { entries: lister.entries, notes }
}

struct Lister<'a> {
    kernel: &'a dyn Kernel,
    filters: &'a [&'a str],
    entries: Vec<CatalogEntry>,
}

impl Lister<'_> {
    fn wanted<'n>(&self, section: CatalogSection, names: impl IntoIterator<Item = &'n str> + Clone) -> bool {
        let has_part = |filter: &&&str| match filter.contains(['*', '?', '[']) {
            true => names.clone().into_iter().any(|name| glob(filter, name)),
            false => names.clone().into_iter().any(|name| name.contains(**filter)),
        };
        self.filters.is_empty()
            || self.filters.contains(&section.name())
            || self.filters.iter().any(|filter| has_part(&filter))
    }

    /// Lists an event, if it is wanted, as `available` finds it.
    fn push(
        &mut self,
        section: CatalogSection,
        name: &str,
        description: String,
        available: impl FnOnce(&Self) -> Availability,
    ) {
        if self.wanted(section, [name]) {
            let (aliases, available) = (Vec::new(), available(self));
            let name = name.to_owned();
            self.entries.push(CatalogEntry {
                section,
                name,
                aliases,
                description,
                available,
                is_form: false,
            });
        }
    }

    /// The same of a form.
    fn push_form(
        &mut self,
        section: CatalogSection,
        name: &str,
        description: String,
        available: Availability,
    ) {
        let listed = self.entries.len();
        self.push(section, name, description, |_| available);
        self.entries[listed..].iter_mut().for_each(|form| form.is_form = true);
    }

    fn fixed(&mut self) {
        for known in known_events() {
            let (section, kind) = match known.kind {
                KnownEventKind::Hardware => (CatalogSection::Hardware, bindings::PERF_TYPE_HARDWARE),
                KnownEventKind::Software => (CatalogSection::Software, bindings::PERF_TYPE_SOFTWARE),
                KnownEventKind::Tool => continue,
            };
            if !self.wanted(section, std::iter::once(known.name).chain(known.alias)) {
                continue;
            }
            let available =
                self.attempt(EventAttr { kind, config: known.config, ..EventAttr::default() }, None);
            self.entries.push(CatalogEntry {
                section,
                name: known.name.into(),
                aliases: known.alias.map(str::to_owned).into_iter().collect(),
                description: known.description.into(),
                available,
                is_form: false,
            });
        }
    }

    fn cache(&mut self) {
        for (name, config, description) in cache_events() {
            let attr = EventAttr { kind: bindings::PERF_TYPE_HW_CACHE, config, ..EventAttr::default() };
            self.push(CatalogSection::Cache, &name, description, |lister| lister.attempt(attr, None));
        }
    }

    fn pmu(&mut self, pmu: &Pmu) {
        // Those have sections or commands of their own.
        if matches!(pmu.name.as_str(), "software" | "tracepoint" | "breakpoint" | "uprobe" | "kprobe") {
            return;
        }
        let cpu = pmu.cpus.as_ref().filter(|_| pmu.system_wide).and_then(|cpus| cpus.first().copied());
        for event in &pmu.events {
            let name = format!("{}/{}/", pmu.name, event.name);
            let unit = match (&event.unit, event.scale) {
                (Some(unit), Some(scale)) => format!(", {scale:e} {unit} each"),
                (Some(unit), None) => format!(", in {unit}"),
                _ => String::new(),
            };
            self.push(CatalogSection::Pmu, &name, format!("{}{unit}", event.terms), |lister| {
                let groups = crate::selector::parse(&name).ok();
                let attr =
                    groups.and_then(|groups| crate::selector::resolve_on(&groups, pmu)).unwrap_or_default();
                lister.attempt(EventAttr { exclude_guest: false, ..attr }, cpu)
            });
        }
        let terms: Vec<&str> = pmu.formats.iter().map(|format| format.name.as_str()).collect();
        let Some(first) = terms.first() else { return };
        let name = format!("{}/{first}=N,../", pmu.name);
        let terms = terms.join(", ");
        let description = format!("any event of PMU {} (type {}); terms: {terms}", pmu.name, pmu.kind);
        let available = if cpu.is_some() { Availability::CpusOnly } else { Availability::Yes };
        self.push_form(CatalogSection::Pmu, &name, description, available);
    }

    /// Lists tracepoints; what is returned says why none can be listed.
    fn tracepoints(&mut self, machine: &Machine, caps: &Caps) -> Vec<String> {
        if let TracefsState::Refused(error) = &caps.tracefs {
            let may_name = |filter: &&str| filter.contains([':', '*']) || *filter == "tracepoint";
            if !self.filters.is_empty() && !self.filters.iter().any(may_name) {
                return Vec::new();
            }
            let hint = error.hint().map_or(String::new(), |hint| format!("; {hint}"));
            return vec![format!("{error}{hint}")];
        }
        let points = match machine.tracefs().all() {
            Ok(points) => points,
            Err(error) => return vec![error.to_string()],
        };
        let available = caps.trials.tracepoint.map_or(Availability::Yes, Availability::of);
        for point in points {
            let name = format!("{}:{}", point.system, point.name);
            if self.wanted(CatalogSection::Tracepoint, [name.as_str()]) {
                self.push(CatalogSection::Tracepoint, &name, fields(machine, &point), |_| available);
            }
        }
        Vec::new()
    }

    fn forms(&mut self, machine: &Machine, caps: &Caps) {
        let hardware = if machine.has_hardware_pmu() { caps.trials.hardware } else { Err(libc::ENOENT) };
        let accesses = "accesses to memory (default: reads and writes of 4 bytes), by debug registers";
        let raw = "the CPU's event number NNN, hexadecimal, as in its manual";
        for (section, name, description, trial) in [
            (CatalogSection::Breakpoint, "mem:ADDRESS[/LENGTH][:rwx]", accesses, caps.trials.breakpoint),
            (CatalogSection::Raw, "rNNN", raw, hardware),
        ] {
            self.push_form(section, name, description.into(), Availability::of(trial));
        }
    }

    /// Opens the event in the ways that a user would, from the freest to the most restricted.
    fn attempt(&self, attr: EventAttr, cpu: Option<u32>) -> Availability {
        let open = |attr: EventAttr, task: i32, cpu: i32| {
            let mut raw = attr.to_raw();
            raw.set_disabled(1);
            let opened = self.kernel.open(&raw, &EventTarget::new(task, cpu));
            opened
                .map(|event| self.kernel.close(vec![event]))
                .map_err(|error| error.raw_os_error().unwrap_or(0))
        };
        let on_cpu = |cpu| open(attr, ANY, cpu).map_or_else(Availability::No, |()| Availability::CpusOnly);
        if let Some(cpu) = cpu {
            return on_cpu(cpu as i32);
        }
        match open(attr, 0, ANY) {
            Err(errno @ (libc::EACCES | libc::EPERM)) => {
                let user = EventAttr { exclude_kernel: true, exclude_hv: true, ..attr };
                open(user, 0, ANY).map_or(Availability::No(errno), |()| Availability::UserOnly)
            }
            // A PMU that cannot follow tasks says EINVAL; nothing in sysfs tells it beforehand.
            Err(libc::EINVAL) if attr.kind > bindings::PERF_TYPE_BREAKPOINT => on_cpu(0),
            opened => Availability::of(opened),
        }
    }
}

/// The names of a tracepoint's own fields, from the kernel's description of it.
fn fields(machine: &Machine, point: &Tracepoint) -> String {
    const SHOWN: usize = 8;
    let Ok(format) = machine.tracefs().format(point) else { return String::new() };
    let mut names = format.lines().filter_map(|line| {
        let declaration = line.trim().strip_prefix("field:")?.split(';').next()?;
        let name = declaration.rsplit(' ').next()?.split('[').next()?;
        (!name.starts_with("common_") && !name.is_empty()).then(|| name.trim_start_matches('*').to_owned())
    });
    let shown: Vec<String> = names.by_ref().take(SHOWN).collect();
    let more = if names.next().is_some() { ", .." } else { "" };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::probe_at;
    use crate::machine::made_up;
    use crate::sys::Fake;

    fn machine() -> (tempfile::TempDir, Machine) {
        made_up(&[
            ("sys/bus/event_source/devices/cpu/type", "4\n"),
            ("sys/bus/event_source/devices/cpu/format/event", "config:0-7\n"),
            ("sys/bus/event_source/devices/cpu/events/mem-loads", "event=0xcd\n"),
            ("sys/bus/event_source/devices/power/type", "11\n"),
            ("sys/bus/event_source/devices/power/cpumask", "2\n"),
            ("sys/bus/event_source/devices/power/format/event", "config:0-7\n"),
            ("sys/bus/event_source/devices/power/events/energy-pkg", "event=0x02\n"),
            ("sys/bus/event_source/devices/power/events/energy-pkg.scale", "2.3e-10\n"),
            ("sys/bus/event_source/devices/power/events/energy-pkg.unit", "Joules\n"),
            ("sys/kernel/tracing/events/sched/sched_switch/id", "372\n"),
            (
                "sys/kernel/tracing/events/sched/sched_switch/format",
                "name: sched_switch\n\tfield:unsigned short common_type;\toffset:0;\n\n\tfield:char prev_comm[16];\toffset:8;\n\tfield:pid_t prev_pid;\toffset:24;\n",
            ),
        ])
    }

    fn list(kernel: &Fake, filter: Option<&str>) -> Catalog {
        let (_dir, machine) = machine();
        catalog(&machine, &probe_at(&machine, kernel), kernel, filter.as_slice())
    }

    fn find<'a>(catalog: &'a Catalog, name: &str) -> &'a CatalogEntry {
        catalog
            .entries
            .iter()
            .find(|entry| entry.name == name)
            .unwrap_or_else(|| panic!("no {name} in {catalog:#?}"))
    }

    /// Checks that every section is there, in order, with a description for each event.
    #[test]
    fn lists_every_section() {
        let all = list(&Fake::new(), None);
        let mut sections: Vec<CatalogSection> = all.entries.iter().map(|entry| entry.section).collect();
        assert!(sections.is_sorted());
        sections.dedup();
        assert_eq!(sections, CatalogSection::ALL);
        assert!(all.entries.iter().all(|entry| !entry.description.is_empty()));
        assert!(all.notes.is_empty());
        assert_eq!(find(&all, "page-faults").aliases, ["faults"]);
        assert_eq!(find(&all, "sched:sched_switch").description, "prev_comm, prev_pid");
        assert_eq!(find(&all, "power/energy-pkg/").description, "event=0x02, 2.3e-10 Joules each");
        assert_eq!(find(&all, "power/energy-pkg/").available, Availability::CpusOnly);
        assert!(find(&all, "power/event=N,../").is_form);
    }

    /// Checks that what is opened for a PMU's event is that event, on that PMU's CPU.
    #[test]
    fn opens_pmu_events_where_they_count() {
        let kernel = Fake::new();
        list(&kernel, Some("energy"));
        let opened = kernel.opened();
        let last = opened.last().unwrap();
        assert_eq!((last.attr.type_, last.attr.config, last.task, last.cpu), (11, 2, ANY, 2));
    }

    /// Checks how restrictions show: no PMU, an ordinary user, a PMU that cannot follow tasks.
    #[test]
    fn availability() {
        let no_pmu = list(&Fake::new().without_pmu(), None);
        assert_eq!(find(&no_pmu, "cycles").available, Availability::No(libc::ENOENT));
        assert_eq!(find(&no_pmu, "L1-dcache-loads").available, Availability::No(libc::ENOENT));
        assert_eq!(find(&no_pmu, "context-switches").available, Availability::Yes);
        let user = list(&Fake::new().unprivileged(), None);
        assert_eq!(find(&user, "cycles").available, Availability::UserOnly);
        assert_eq!(find(&user, "power/energy-pkg/").available, Availability::No(libc::EACCES));
        let fixed =
            Fake::new().rule(|call| (call.attr.type_ == 4 && call.task != ANY).then_some(libc::EINVAL));
        assert_eq!(find(&list(&fixed, None), "cpu/mem-loads/").available, Availability::No(libc::EINVAL));
    }

    /// Checks filters: a part of a name, an alias, a glob, a section, and one that matches nothing.
    #[test]
    fn filters() {
        let names = |filter| -> Vec<String> {
            list(&Fake::new(), Some(filter)).entries.into_iter().map(|entry| entry.name).collect()
        };
        assert_eq!(names("faults").len(), 5);
        assert_eq!(names("cs"), ["context-switches"]);
        assert_eq!(names("sched:*"), ["sched:sched_switch"]);
        assert_eq!(names("raw"), ["rNNN"]);
        assert_eq!(names("tracepoint"), ["sched:sched_switch"]);
        assert!(names("nosuchthing").is_empty());
    }

    /// Checks that absent tracepoints are a note with the command, unless nobody asked for them.
    #[test]
    fn notes_absent_tracefs() {
        let (_dir, machine) = made_up(&[]);
        let kernel = Fake::new();
        let caps = probe_at(&machine, &kernel);
        let notes = |filter| catalog(&machine, &caps, &kernel, Option::as_slice(&filter)).notes;
        assert!(notes(None)[0].contains("run `sudo mount -t tracefs"));
        assert_eq!(notes(Some("sched:*")).len(), 1);
        assert!(notes(Some("cycles")).is_empty());
    }
}
