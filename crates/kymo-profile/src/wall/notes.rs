//! What wall time cannot tell of some runtimes: sentences.
use super::{WaitRow, Wall};
use crate::functions::Level;
use crate::runtimes;
use crate::text::shown;
use crate::timeline::ModuleKind;
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;

/// Functions of Go's runtime in which its threads wait or look for goroutines.
const OF_GO: [&str; 8] = [
    "runtime.futex",
    "runtime.mstart",
    "runtime.mcall",
    "runtime.goexit",
    "runtime.schedule",
    "runtime.notesleep",
    "runtime.netpoll",
    "runtime.usleep",
];

/// In which V8 runs functions that it has not compiled: they have no code of their own.
const V8_INTERPRETER: &str = "Builtins_InterpreterEntryTrampoline";
const V8_ADVICE: &str = "start it as `node --perf-basic-prof --interpreted-frames-native-stack`";

/// One in a hundred is worth a sentence, as with samples.
const NAMELESS_PART: u64 = 100;
const ESTIMATED_PART: u64 = 100;
const UNSEEN_PART: u64 = 100;

/// What the stacks of a process tell.
#[derive(Debug, Default)]
struct ProcessStacks {
    is_go: bool,
    /// How long it waited, and how much of it below code without names, ns.
    waited_ns: u64,
    nameless_ns: u64,
    /// What to do about such code.
    advice: Option<&'static str>,
}

/// What one stack tells.
#[derive(Clone, Copy, Debug, Default)]
struct StackFacts {
    is_go: bool,
    is_nameless: bool,
    advice: Option<&'static str>,
}

impl Wall {
    /// What the user should know of what these waits cannot tell: sentences.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    pub(super) fn find_notes(&self) -> Vec<String> {
        let facts: Vec<StackFacts> =
            (0..self.stacks.len()).map(|chain| self.facts_of(chain as u32)).collect();
        let mut processes: BTreeMap<i32, ProcessStacks> = BTreeMap::new();
        for row in &self.waits {
            let process = processes.entry(row.thread.0).or_default();
            let of_stack = facts.get(row.chain as usize).copied().unwrap_or_default();
            let waited = row.blocked_ns.saturating_add(row.all_short_ns());
            process.is_go |= of_stack.is_go;
            process.waited_ns = process.waited_ns.saturating_add(waited);
            if of_stack.is_nameless {
                process.nameless_ns = process.nameless_ns.saturating_add(waited);
            }
            if of_stack.is_nameless {
                process.advice = process.advice.or(of_stack.advice);
            }
        }
        let go = processes.iter().filter(|(_, process)| process.is_go);
        let of_go = self.names_of(go.map(|(pid, _)| *pid)).map(|names| {
            format!(
                "{names} runs Go: only waits of its threads are seen here, not those of its goroutines, which wait without a thread"
            )
        });
        let is_nameless = |process: &ProcessStacks| {
            process.nameless_ns > 0 && process.nameless_ns.saturating_mul(NAMELESS_PART) >= process.waited_ns
        };
        let mut by_advice: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
        for (pid, process) in processes.iter().filter(|(_, process)| is_nameless(process)) {
            // Virtual machines of Java are asked for names, and have no advice.
            if let Some(advice) = process.advice {
                by_advice.entry(advice).or_default().push(*pid);
            }
        }
        let of_code = by_advice.into_iter().filter_map(|(advice, pids)| {
            let waited = pids.iter().fold(0, |sum: u64, pid| sum.saturating_add(processes[pid].nameless_ns));
            let names = self.names_of(pids.into_iter())?;
            Some(format!(
                "{} of waits lie below code that {names} made without names: {advice}",
                super::time(waited)
            ))
        });
        let of_times = [self.note_of_estimates(), self.note_of_unseen()];
        of_go.into_iter().chain(of_code).chain(of_times.into_iter().flatten()).collect()
    }

    /// How much time may have the wrong state because it is not known where it was, where that is
    /// much.
    fn note_of_estimates(&self) -> Option<String> {
        let sum = |times: &mut dyn Iterator<Item = u64>| times.fold(0, u64::saturating_add);
        let estimated = sum(&mut self.short.iter().flatten().map(|short| short.estimated_ns));
        let blocked = |row: &WaitRow| row.blocked_ns.saturating_add(row.all_short_ns());
        let waited = sum(&mut self.waits.iter().map(blocked));
        (estimated > 0 && estimated.saturating_mul(ESTIMATED_PART) >= waited).then(|| {
            format!(
                "{} of waits, {:.1} % of all, were too short to be recorded one by one, and were added up with waits at other \
                 places: they count as most of these do, and so much may be of another state",
                super::time(estimated),
                estimated as f64 * 100.0 / waited as f64,
            )
        })
    }

    /// How much time has no place because the kernel has left out switches, where that is much.
    fn note_of_unseen(&self) -> Option<String> {
        let is_unseen = |row: &&WaitRow| row.chain == self.no_stack && !row.is_end;
        let sum = |rows: &mut dyn Iterator<Item = &WaitRow>| {
            rows.fold(0, |sum: u64, row| sum.saturating_add(row.blocked_ns))
        };
        let unseen = sum(&mut self.waits.iter().filter(is_unseen));
        let waited = sum(&mut self.waits.iter());
        (unseen > 0 && unseen.saturating_mul(UNSEEN_PART) >= waited).then(|| {
            format!(
                "{} of waits have no place: the kernel told when these threads were woken, and not when they had a CPU again",
                super::time(unseen),
            )
        })
    }

    fn facts_of(&self, chain: u32) -> StackFacts {
        let mut facts = StackFacts::default();
        for id in self.stacks.frames(chain) {
            let function = self.functions.get(*id);
            if function.level != Level::User {
                continue;
            }
            let module = function.module.map(|module| self.timeline.modules.get(module));
            let name = function.name.as_deref();
            facts.is_go |= name.is_some_and(|name| OF_GO.iter().any(|begin| name.starts_with(begin)));
            let of_code = module.is_some_and(|module| matches!(module.kind, ModuleKind::Jit { .. }));
            facts.is_nameless |= of_code && name.is_none();
            if name.is_some_and(|name| name.starts_with(V8_INTERPRETER)) {
                facts = StackFacts { is_nameless: true, advice: Some(V8_ADVICE), ..facts };
            }
            let runtime = module.and_then(|module| runtimes::known(&module.short_name));
            facts.advice = facts.advice.or(runtime.map(|runtime| runtime.advice));
        }
        facts
    }

    /// The names of processes, the first ones; `None`: there are none.
    fn names_of(&self, pids: impl Iterator<Item = i32>) -> Option<String> {
        const MOST: usize = 3;
        let mut seen = FxHashSet::default();
        let names: Vec<String> =
            pids.map(|pid| self.thread_name(pid)).filter(|name| seen.insert(name.clone())).collect();
        let more = names.len().saturating_sub(MOST);
        let first: Vec<String> = names.iter().take(MOST).map(|name| shown(name).into_owned()).collect();
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!first.is_empty()).then(|| first.join(", ") + &rest)
    }
}
