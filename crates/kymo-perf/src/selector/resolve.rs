//! Resolves the syntax tree to attrs, with the PMUs and tracepoints of this machine.

use super::attr::{EventAttr, Sampling};
use super::cache::{self, CacheName};
use super::error::{ResolveError, ResolveErrorKind};
use super::names::{self, KnownEventKind};
use super::parse::did_you_mean;
use super::syntax::{Access, EventGroup, EventSelector, Head, Modifiers, Term};
use super::terms::{self, Applied};
use super::{Selected, Unit};
use crate::machine::Machine;
use crate::pmu::Pmu;
use crate::suggest::nearest;
use crate::tracefs::{TracefsError, Tracepoint, glob};
use perf_event_open_sys::bindings;

/// Matches a syntax tree to this machine: looks up PMUs and tracepoints, expands globs, and applies
/// modifiers.
///
/// The result is in the order of the text; a glob or a PMU that exists several times yields several
/// events. A leader stands before its group's other members.
///
/// # Errors
/// [`ResolveError`] with the place of the first event that this machine does not have.
pub fn resolve(groups: &[EventGroup], machine: &Machine) -> Result<Vec<Selected>, ResolveError> {
    let mut selected = Vec::new();
    for group in groups {
        let first = selected.len();
        for event in &group.events {
            let resolver = Resolver { group, event, machine };
            for mut found in resolver.event()? {
                resolver.modify(&mut found.selected)?;
                selected.push(found);
            }
        }
        lead(group, &mut selected, first);
    }
    Ok(selected.into_iter().map(|found: ResolvedEvent| found.selected).collect())
}

/// The event to record when none was named: `cycles`, or `cpu-clock` where no PMU counts cycles.
///
/// The second part is the sentence to tell the user in the latter case.
pub fn default_event(machine: &Machine) -> (Selected, Option<String>) {
    let (name, note) = if machine.has_hardware_pmu() {
        ("cycles", None)
    } else {
        (
            "cpu-clock",
            Some("no hardware counters here (common in VMs): using cpu-clock instead of cycles".to_owned()),
        )
    };
    let known = names::find(name);
    let attr = EventAttr {
        kind: if note.is_none() { bindings::PERF_TYPE_HARDWARE } else { bindings::PERF_TYPE_SOFTWARE },
        config: known.map_or(0, |known| known.config),
        exclude_guest: true,
        ..EventAttr::default()
    };
    (Selected { name: name.to_owned(), attr, ..Selected::default() }, note)
}

/// The attr of `pmu/terms/` on that PMU, if the terms fit; for listings, which know the PMU
/// already.
pub(crate) fn resolve_on(groups: &[EventGroup], pmu: &Pmu) -> Option<EventAttr> {
    let group = groups.first()?;
    let terms = group.events.first()?.terms.as_deref()?;
    let attr = EventAttr { kind: pmu.kind, exclude_guest: true, ..EventAttr::default() };
    terms::apply(group, terms, attr, Some(pmu)).ok().map(|applied| applied.attr)
}

/// One resolved event, and which PMU's instance it is if the name stood for several.
struct ResolvedEvent {
    selected: Selected,
    pmu_kind: Option<u32>,
}

impl ResolvedEvent {
    fn one(selected: Selected) -> Vec<Self> {
        vec![Self { selected, pmu_kind: None }]
    }
}

/// Sets the leaders of the events from `first` on, and clears what only leaders may have.
///
/// Where a name stood for several PMUs, each PMU gets its own group: the kernel groups hardware
/// events within one PMU.
fn lead(group: &EventGroup, selected: &mut [ResolvedEvent], first: usize) {
    for index in first..selected.len() {
        let pmu_kind = selected[index].pmu_kind;
        let leader = if group.braced {
            (first..index)
                .find(|before| pmu_kind.is_none() || selected[*before].pmu_kind == pmu_kind)
                .unwrap_or(index)
        } else {
            index
        };
        let event = &mut selected[index].selected;
        event.leader = leader;
        if leader != index {
            event.attr.pinned = false;
            event.attr.exclusive = false;
        }
    }
}

struct Resolver<'a> {
    group: &'a EventGroup,
    event: &'a EventSelector,
    machine: &'a Machine,
}

impl Resolver<'_> {
    fn fault(
        &self,
        kind: ResolveErrorKind,
        message: impl Into<String>,
        hint: Option<String>,
    ) -> ResolveError {
        ResolveError {
            kind,
            input: self.group.input.to_string(),
            span: self.event.head_span.clone(),
            message: message.into(),
            hint,
        }
    }

    fn terms(&self) -> &[Term] {
        self.event.terms.as_deref().unwrap_or(&[])
    }

    fn base(&self, kind: u32, config: u64) -> EventAttr {
        EventAttr { kind, config, exclude_guest: true, ..EventAttr::default() }
    }

    /// Applies the terms and gives the event its name.
    fn build(
        &self,
        attr: EventAttr,
        pmu: Option<&Pmu>,
        default_name: &str,
    ) -> Result<Selected, ResolveError> {
        let Applied { attr, overrides, name, alias } = terms::apply(self.group, self.terms(), attr, pmu)?;
        let unit = alias
            .filter(|alias| alias.scale.is_some() || alias.unit.is_some())
            .map(|alias| Unit { scale: alias.scale.unwrap_or(1.0), name: alias.unit.unwrap_or_default() });
        Ok(Selected {
            name: name.unwrap_or_else(|| default_name.to_owned()),
            attr,
            overrides,
            unit,
            cpus: pmu.and_then(|pmu| pmu.cpus.clone()),
            system_wide_only: pmu.is_some_and(|pmu| pmu.system_wide),
            span: self.event.span.clone(),
            ..Selected::default()
        })
    }

    fn event(&self) -> Result<Vec<ResolvedEvent>, ResolveError> {
        match &self.event.head {
            Head::Name(name) => self.name(name),
            Head::Raw(config) => {
                self.on_cores(|pmu| self.base(pmu.map_or(bindings::PERF_TYPE_RAW, |pmu| pmu.kind), *config))
            }
            Head::Numeric { kind, config } => {
                Ok(ResolvedEvent::one(self.build(self.base(*kind, *config), None, &self.event.text)?))
            }
            Head::Tracepoint { system, event } => self.tracepoint(system, event),
            Head::Breakpoint { addr, len, access } => self.breakpoint(*addr, *len, *access),
        }
    }

    /// An event of the CPU cores: one, or one for each kind of core on a hybrid machine.
    fn on_cores(&self, attr: impl Fn(Option<&Pmu>) -> EventAttr) -> Result<Vec<ResolvedEvent>, ResolveError> {
        let cores: Vec<&Pmu> = self.machine.core_pmus().collect();
        if cores.len() < 2 {
            return Ok(ResolvedEvent::one(self.build(attr(None), None, &self.event.text)?));
        }
        cores
            .into_iter()
            .map(|pmu| {
                let name = format!("{}/{}/{}", pmu.name, self.event.head, self.event.modifiers);
                let mut selected = self.build(attr(Some(pmu)), None, &name)?;
                selected.cpus.clone_from(&pmu.cpus);
                Ok(ResolvedEvent { selected, pmu_kind: Some(pmu.kind) })
            })
            .collect()
    }

    fn name(&self, name: &str) -> Result<Vec<ResolvedEvent>, ResolveError> {
        // The kernel takes the PMU of a fixed hardware event in the upper half of config.
        let extended = |pmu: Option<&Pmu>| pmu.map_or(0, |pmu| u64::from(pmu.kind) << 32);
        if let Some(known) = names::find(name) {
            return match known.kind {
                KnownEventKind::Hardware => {
                    self.on_cores(|pmu| self.base(bindings::PERF_TYPE_HARDWARE, known.config | extended(pmu)))
                }
                KnownEventKind::Software => {
                    let attr = self.base(bindings::PERF_TYPE_SOFTWARE, known.config);
                    Ok(ResolvedEvent::one(self.build(attr, None, &self.event.text)?))
                }
                KnownEventKind::Tool => {
                    let attr = self.base(bindings::PERF_TYPE_SOFTWARE, bindings::PERF_COUNT_SW_DUMMY.into());
                    let selected = self.build(attr, None, &self.event.text)?;
                    Ok(ResolvedEvent::one(Selected { tool: Some(known.name), ..selected }))
                }
            };
        }
        match cache::parse(name) {
            Some(CacheName::Event(config)) => {
                return self.on_cores(|pmu| self.base(bindings::PERF_TYPE_HW_CACHE, config | extended(pmu)));
            }
            Some(CacheName::NoSuchOperation) => {
                return Err(self.fault(
                    ResolveErrorKind::Unknown,
                    format!("`{name}` does not exist: this cache has no such operation"),
                    Some("`kymo list '*-load*'` shows the cache events".into()),
                ));
            }
            None => {}
        }
        if self.event.terms.is_some() {
            return self.pmu(name);
        }
        let owners: Vec<&Pmu> = self.machine.pmus().iter().filter(|pmu| pmu.event(name).is_some()).collect();
        if owners.is_empty() {
            return Err(self.unknown_name(name));
        }
        let term = Term {
            name: name.to_owned(),
            value: None,
            span: self.event.head_span.clone(),
            value_span: self.event.head_span.end..self.event.head_span.end,
        };
        let named = EventSelector { terms: Some(vec![term]), ..self.event.clone() };
        Resolver { event: &named, ..*self }.on_pmus(&owners)
    }

    fn unknown_name(&self, name: &str) -> ResolveError {
        let pmus = self.machine.pmus();
        let events = || pmus.iter().flat_map(|pmu| pmu.events.iter().map(|event| event.name.as_str()));
        let hint = if let Some(pmu) = pmus.iter().find(|pmu| pmu.name == name) {
            match pmu.events.first() {
                Some(event) => {
                    Some(format!("`{name}` is a PMU: name its event too, such as `{name}/{}/`", event.name))
                }
                None => Some(format!("`{name}` is a PMU: say what to count, such as `{name}/config=1/`")),
            }
        } else {
            did_you_mean(name, events()).or_else(|| {
                Some(if name.contains('.') {
                    "vendor names are not built in: use its number, as in `r1a8` or `cpu/event=0xa8,umask=0x1/`".into()
                } else {
                    "`kymo list` shows the events of this machine".into()
                })
            })
        };
        self.fault(ResolveErrorKind::Unknown, format!("unknown event `{name}`"), hint)
    }

    /// `name/terms/`, where the name is a PMU, a glob over PMUs, or the common part of numbered
    /// ones.
    fn pmu(&self, name: &str) -> Result<Vec<ResolvedEvent>, ResolveError> {
        let pmus = self.machine.pmus();
        let mut matching: Vec<&Pmu> = pmus.iter().filter(|pmu| pmu.name == name).collect();
        if matching.is_empty() {
            matching = pmus.iter().filter(|pmu| stands_for(name, &pmu.name)).collect();
        }
        if matching.is_empty() {
            let names = || pmus.iter().map(|pmu| pmu.name.as_str());
            let hint = nearest(name, names()).map(|near| format!("did you mean `{near}`?")).or_else(|| {
                let all: Vec<&str> = names().take(32).collect();
                Some(match (name, all.is_empty()) {
                    (_, true) => "the kernel lists no PMU in /sys/bus/event_source/devices".into(),
                    ("cpu", _) => {
                        "this machine has no hardware counters (common in VMs); use cpu-clock".into()
                    }
                    _ => format!("PMUs here are {}", all.join(", ")),
                })
            });
            return Err(self.fault(ResolveErrorKind::Unknown, format!("no PMU is named `{name}`"), hint));
        }
        if let Some(probe) = matching.iter().find(|pmu| matches!(pmu.name.as_str(), "uprobe" | "kprobe")) {
            return Err(self.fault(
                ResolveErrorKind::NotRecordable,
                format!(
                    "`{}` events need a path or a symbol, which the event grammar cannot give",
                    probe.name
                ),
                Some("make a tracepoint of it with `perf probe` and record that".into()),
            ));
        }
        self.on_pmus(&matching)
    }

    fn on_pmus(&self, pmus: &[&Pmu]) -> Result<Vec<ResolvedEvent>, ResolveError> {
        let several = pmus.len() > 1;
        pmus.iter()
            .map(|pmu| {
                let selected = self.build(self.base(pmu.kind, 0), Some(pmu), &self.event.text)?;
                Ok(ResolvedEvent { selected, pmu_kind: several.then_some(pmu.kind) })
            })
            .collect()
    }

    fn tracepoint(&self, system: &str, name: &str) -> Result<Vec<ResolvedEvent>, ResolveError> {
        let tracefs = self.machine.tracefs();
        let is_glob = |part: &str| part.contains(['*', '?', '[']);
        let points = if is_glob(system) || is_glob(name) {
            tracefs.matching(system, name)
        } else {
            tracefs.find(system, name).map(|point| vec![point])
        };
        let points = points.map_err(|error| {
            let kind = match error {
                TracefsError::NotMounted(_) => ResolveErrorKind::TracefsNotMounted,
                TracefsError::Unreadable(_) => ResolveErrorKind::TracefsUnreadable,
                TracefsError::Unknown { .. } => ResolveErrorKind::Unknown,
                TracefsError::Io { .. } => ResolveErrorKind::BrokenSystemFile,
            };
            self.fault(kind, error.to_string(), error.hint())
        })?;
        points.into_iter().map(|point| self.one_tracepoint(point)).collect()
    }

    fn one_tracepoint(&self, point: Tracepoint) -> Result<ResolvedEvent, ResolveError> {
        let attr = EventAttr {
            sampling: Sampling::Natural(1),
            ..self.base(bindings::PERF_TYPE_TRACEPOINT, point.id)
        };
        let mut selected = self.build(attr, None, &format!("{}:{}", point.system, point.name))?;
        selected.tracepoint = Some(point);
        Ok(ResolvedEvent { selected, pmu_kind: None })
    }

    fn breakpoint(
        &self,
        addr: u64,
        len: Option<u64>,
        access: Option<Access>,
    ) -> Result<Vec<ResolvedEvent>, ResolveError> {
        let access = access.unwrap_or(Access { read: true, write: true, execute: false });
        // What perf takes if no length is given: an `int` for data, a word for code.
        let len = len.unwrap_or(if access.execute { 8 } else { 4 });
        let attr = EventAttr {
            config1: addr,
            config2: len,
            bp_type: access.bits(),
            sampling: Sampling::Natural(1),
            ..self.base(bindings::PERF_TYPE_BREAKPOINT, 0)
        };
        Ok(ResolvedEvent::one(self.build(attr, None, &self.event.text)?))
    }

    /// Applies the event's own modifiers, then its group's.
    fn modify(&self, event: &mut Selected) -> Result<(), ResolveError> {
        let own = self.event.modifiers;
        let group = self.group.modifiers;
        if own.bpf || group.bpf {
            return Err(self.fault(
                ResolveErrorKind::NotRecordable,
                "the modifier `b` (count through BPF) is for counting only",
                Some("leave it out".into()),
            ));
        }
        if !own.is_empty() {
            // As in perf, an event's own modifiers replace the defaults, `exclude_guest` among
            // them.
            event.attr.exclude_guest = false;
            add(event, own);
        }
        if !group.is_empty() {
            add(event, group);
        }
        let precise = own.precise + group.precise;
        if precise > 3 {
            return Err(self.fault(
                ResolveErrorKind::BadTerm,
                format!(
                    "{precise} `p` are given, {} here and {} after the group; at most 3 have a meaning",
                    own.precise, group.precise
                ),
                None,
            ));
        }
        event.attr.precise_ip = if event.precise_max { 3 } else { precise };
        Ok(())
    }
}

/// Adds modifiers to an event as perf does: `u` on an event that is already `k` counts in both.
fn add(event: &mut Selected, modifiers: Modifiers) {
    let attr = &mut event.attr;
    if modifiers.user || modifiers.kernel || modifiers.hypervisor {
        if !(attr.exclude_user || attr.exclude_kernel || attr.exclude_hv) {
            (attr.exclude_user, attr.exclude_kernel, attr.exclude_hv) = (true, true, true);
        }
        attr.exclude_user &= !modifiers.user;
        attr.exclude_kernel &= !modifiers.kernel;
        attr.exclude_hv &= !modifiers.hypervisor;
    }
    if modifiers.guest || modifiers.host {
        if !event.guest_host_given {
            (attr.exclude_guest, attr.exclude_host) = (true, true);
            event.guest_host_given = true;
        }
        attr.exclude_guest &= !modifiers.guest;
        attr.exclude_host &= !modifiers.host;
    } else if !event.guest_host_given && (modifiers.user || modifiers.precise > 0) {
        attr.exclude_guest = true;
    }
    attr.exclude_idle |= modifiers.not_idle;
    attr.pinned |= modifiers.pinned;
    attr.exclusive |= modifiers.exclusive;
    event.precise_max |= modifiers.precise_max;
    event.group_read |= modifiers.group_read;
    event.weak |= modifiers.weak;
}

/// Whether a PMU's name as typed stands for this PMU: as a glob, without `uncore_`, or without its
/// number.
fn stands_for(typed: &str, pmu: &str) -> bool {
    let short = pmu.strip_prefix("uncore_").unwrap_or(pmu);
    [pmu, short].iter().any(|name| {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let stem = if stem.len() < name.len() { stem.trim_end_matches('_') } else { name };
        glob(typed, name) || glob(typed, stem)
    })
}
