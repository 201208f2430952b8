//! The first screen: the hottest functions, the program's own functions that led to them, and which
//! files hide their names.
//!
//! The hottest functions alone mislead where a program works in the kernel, in the C library, in
//! an interpreter or in code without names. Then a second list says which functions of the program
//! were the innermost ones.
use crate::functions::{Function, FunctionId, Functions, Level};
use crate::hist::{Hist, HistOptions, SortKey};
use crate::profile::Profile;
use crate::timeline::{Module, ModuleId, ModuleKind, Modules, is_memory_file};
use crate::wall;
use kymo_data::Event;
use kymo_symbols::Absence;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// What all nameless code of a module is counted under.
const NO_SYMBOLS: &str = "[no symbols]";
/// Libraries that nearly every program has: time in them belongs to their callers.
const SYSTEM_LIBRARIES: [&str; 8] =
    ["libc.so", "libc-", "libm.so", "libpthread", "libstdc++", "libgcc_s", "ld-linux", "ld-musl"];
/// Generated code of a Java virtual machine that runs functions, and is none of the program's.
const OF_MACHINES: [&str; 2] = ["Interpreter", "StubRoutines"];
/// Packages of Go through which a program's own functions come to wait, and what is inside of them.
const GO_PACKAGES: [&str; 4] = ["runtime.", "syscall.", "internal/", "sync."];
/// Files that are named for one cause.
const MOST_NAMES: usize = 3;
/// Nameless code below this percentage of all samples is not worth a sentence.
const NAMELESS_PERCENT: f64 = 20.0;

/// Where a part of the time went.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// Of all periods of the event.
    pub percent: f64,
    /// Name of the function.
    pub function: String,
    /// Short name of its module.
    pub module: String,
}

/// The first screen of a recording.
#[derive(Debug, Default, PartialEq)]
pub struct FirstLook {
    /// Functions by the time in themselves.
    pub hottest: Vec<Share>,
    /// The program's innermost functions by the time in themselves and what they called. Empty
    /// where most of the time is in the program's own code.
    pub callers: Vec<Share>,
    /// What to do about code without names.
    pub nameless: Option<String>,
}

/// Looks at the event with most samples, those of waits not counted; both lists have up to `count`
/// functions.
pub fn first_look(profile: &Profile, events: &[Event], count: usize) -> FirstLook {
    // Of several events the one with most samples is what the recording is about.
    let totals = &profile.loaded.totals;
    let is_of_waits = |event: usize| events.get(event).is_some_and(|event| wall::is_of_waits(&event.name));
    let Some(event) =
        (0..totals.len()).filter(|event| !is_of_waits(*event)).max_by_key(|&event| totals[event].samples)
    else {
        return FirstLook::default();
    };
    FirstLook {
        hottest: hottest(profile, event, count),
        callers: callers(profile, event, count),
        nameless: nameless(profile),
    }
}

fn hottest(profile: &Profile, event: usize, count: usize) -> Vec<Share> {
    let options = HistOptions { keys: vec![SortKey::Dso, SortKey::Symbol], ..HistOptions::default() };
    let hist = Hist::new(profile, event, &options);
    let mut nameless: FxHashMap<String, usize> = FxHashMap::default();
    let mut shares: Vec<Share> = Vec::new();
    for row in hist.rows.iter().filter(|row| row.own.samples > 0) {
        let percent = percent_of(row.own.period, hist.total.period);
        let module = profile.module_name(row.function).to_owned();
        // A row for each address would say nothing.
        if profile.functions.get(row.function).name.is_none() {
            let at = *nameless.entry(module.clone()).or_insert(shares.len());
            if let Some(share) = shares.get_mut(at) {
                share.percent += percent;
                continue;
            }
            shares.push(Share { percent, function: NO_SYMBOLS.to_owned(), module });
        } else {
            shares.push(Share { percent, function: profile.frame_name(row.function), module });
        }
    }
    // Stable: rows of equal shares stay in the order of the table.
    shares.sort_by(|a, b| b.percent.total_cmp(&a.percent));
    shares.truncate(count);
    shares
}

fn callers(profile: &Profile, event: usize, count: usize) -> Vec<Share> {
    let (mut total, mut elsewhere) = (0_u64, 0_u64);
    let mut periods: BTreeMap<FunctionId, u64> = BTreeMap::new();
    for (key, samples) in profile.loaded.groups.iter().filter(|(key, _)| key.event as usize == event) {
        total = total.saturating_add(samples.period);
        let frames = profile.stacks.frames(key.chain);
        let Some(own) = own_function(&profile.functions, &profile.loaded.timeline.modules, frames) else {
            continue;
        };
        let period = periods.entry(own).or_default();
        *period = period.saturating_add(samples.period);
        let leaf = profile.functions.get(profile.stacks.leaf(key.chain));
        if leaf.name.is_none() || leaf.module != profile.functions.get(own).module {
            elsewhere = elsewhere.saturating_add(samples.period);
        }
    }
    if elsewhere < total.div_ceil(2) {
        return Vec::new();
    }
    let mut shares: Vec<Share> = periods
        .into_iter()
        .map(|(function, period)| Share {
            percent: percent_of(period, total),
            function: profile.frame_name(function),
            module: profile.module_name(function).to_owned(),
        })
        .filter(|share| share.percent >= 1.0)
        .collect();
    shares.sort_by(|a, b| b.percent.total_cmp(&a.percent));
    shares.truncate(count);
    shares
}

/// The innermost function of the program itself: in its interpreted language, else in generated
/// code, else in a file that is no system library.
pub(crate) fn own_function(
    functions: &Functions,
    modules: &Modules,
    frames: &[FunctionId],
) -> Option<FunctionId> {
    // What the program begins with is no answer.
    let named = |id: &&FunctionId| functions.get(**id).name.as_deref().is_some_and(|name| name != "_start");
    let module = |function: &Function| function.module.map(|id| modules.get(id));
    let kind = |function: &Function| module(function).map(|module| module.kind);
    let is_script = |id: &&FunctionId| kind(functions.get(**id)) == Some(ModuleKind::Script);
    let is_generated = |id: &&FunctionId| {
        let function = functions.get(**id);
        let is_made = function.generated || matches!(kind(function), Some(ModuleKind::Jit { .. }));
        let name = function.name.as_deref().unwrap_or("");
        is_made && !OF_MACHINES.iter().any(|begin| name.starts_with(begin))
    };
    let is_of_program = |id: &&FunctionId| {
        let function = functions.get(**id);
        let is_system = || {
            let name = module(function).map_or("", |module| &module.short_name);
            SYSTEM_LIBRARIES.iter().any(|library| name.starts_with(library))
        };
        function.level == Level::User && kind(function) == Some(ModuleKind::File) && !is_system()
    };
    let is_of_library = |id: &FunctionId| {
        let name = functions.get(*id).name.as_deref().unwrap_or("");
        GO_PACKAGES.iter().any(|package| name.starts_with(package))
    };
    let named_frames = || frames.iter().filter(named);
    (named_frames().find(is_script))
        .or_else(|| named_frames().find(is_generated))
        .or_else(|| named_frames().find(|id| is_of_program(id) && !is_of_library(id)))
        .or_else(|| named_frames().find(is_of_program))
        .copied()
}

/// What to do where much of the time is in files without symbols.
pub fn nameless(profile: &Profile) -> Option<String> {
    let modules = &profile.loaded.timeline.modules;
    let mut total = 0_u64;
    let mut periods: BTreeMap<ModuleId, u64> = BTreeMap::new();
    for (key, samples) in &profile.loaded.groups {
        total = total.saturating_add(samples.samples);
        let function = profile.functions.get(profile.stacks.leaf(key.chain));
        let file = function.module.filter(|id| modules.get(*id).kind == ModuleKind::File);
        if let (None, Some(file)) = (&function.name, file) {
            *periods.entry(file).or_default() += samples.samples;
        }
    }
    let percent = percent_of(periods.values().sum(), total);
    if percent < NAMELESS_PERCENT {
        return None;
    }
    let mut files: Vec<(ModuleId, u64)> = periods.into_iter().collect();
    files.sort_by_key(|&(_, samples)| std::cmp::Reverse(samples));
    let mut causes: Vec<(&str, Vec<&str>)> = Vec::new();
    for (id, _) in files {
        let absence = profile.absences.iter().find(|(known, _)| *known == id).map(|(_, why)| *why);
        let (module, cause) = (modules.get(id), cause_of(absence, modules.get(id)));
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, names)) if names.len() >= MOST_NAMES || names.contains(&&*module.short_name) => {}
            Some((_, names)) => names.push(&module.short_name),
            None => causes.push((cause, vec![&module.short_name])),
        }
    }
    let causes: Vec<String> =
        causes.into_iter().map(|(cause, names)| cause.replace("{}", &names.join(", "))).collect();
    Some(format!(
        "{percent:.0} % of the samples are in functions without names, because {}",
        causes.join("; and because ")
    ))
}

/// Why a file has no names, and what can be done; `{}` stands for the files.
fn cause_of(absence: Option<Absence>, module: &Module) -> &'static str {
    match absence {
        Some(Absence::NoFile | Absence::OtherFile) if is_memory_file(&module.path) => {
            "files in memory were gone before they could be read, or hold generated code ({}): let the compiler write /tmp/perf-PID.map"
        }
        Some(Absence::NoFile | Absence::OtherFile) if module.path.ends_with(b" (deleted)") => {
            "files were deleted or replaced before they could be read ({}): record once more with the program started by kymo, or as root"
        }
        Some(Absence::OtherFile) => {
            "other files than those that were recorded lie at their paths ({}): they were replaced, or are in another root; --symfs FOLDER names one that has them"
        }
        Some(Absence::NoFile) => {
            "files are not here ({}): they were deleted, or are in another root; --symfs FOLDER names one that has them"
        }
        Some(Absence::Stripped) | None => {
            "files are stripped ({}): install their debug symbols (Debian: packages *-dbgsym), or set DEBUGINFOD_URLS; then run `kymo report` again"
        }
    }
}

fn percent_of(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_profile::{Kind, Spec, Stack, profile};

    const FUNCTIONS: [Spec; 5] = [
        (3, Kind::Symbol, "vfs_write", 0x3100),
        (1, Kind::Symbol, "write", 0x1100),
        (0, Kind::Symbol, "answer", 0x100),
        (0, Kind::Address, "", 0x310),
        (0, Kind::Address, "", 0x320),
    ];

    fn stack(frames: &[usize], samples: u64) -> Stack {
        Stack { event: 0, comm: 0, leaf: frames[0], frames: frames.to_vec(), samples, period: 10 * samples }
    }

    fn names(shares: &[Share]) -> Vec<(&str, u64)> {
        shares.iter().map(|share| (share.function.as_str(), share.percent.round() as u64)).collect()
    }

    /// Checks that time in the kernel is also shown under the innermost named function of the
    /// program, and that system libraries and nameless frames are passed over.
    #[test]
    fn kernel_time_under_the_programs_function() {
        let of = [stack(&[0, 1, 3, 2], 60), stack(&[2], 40)];
        let look = first_look(&profile(&["app"], &FUNCTIONS, &of), &[], 5);
        assert_eq!(names(&look.hottest), [("vfs_write", 60), ("answer", 40)]);
        assert_eq!(names(&look.callers), [("answer", 100)]);
        assert_eq!(look.callers[0].module, "app");
        assert_eq!(look.nameless, None);
    }

    /// Checks that there is no second list where most of the time is in the program itself.
    #[test]
    fn one_list_where_the_program_itself_works() {
        let of = [stack(&[0, 1, 2], 40), stack(&[2], 60)];
        assert_eq!(first_look(&profile(&["app"], &FUNCTIONS, &of), &[], 5).callers, []);
    }

    /// Checks that a file that is gone or was replaced is not called stripped, and that each cause
    /// names its files.
    #[test]
    fn files_that_are_gone_are_not_stripped() {
        let of = [stack(&[3, 2], 30), stack(&[4, 2], 30), stack(&[2], 40)];
        let mut profile = profile(&["app"], &FUNCTIONS, &of);
        for (absence, cause) in [
            (Absence::NoFile, "because files are not here (app)"),
            (
                Absence::OtherFile,
                "because other files than those that were recorded lie at their paths (app)",
            ),
            (Absence::Stripped, "because files are stripped (app)"),
        ] {
            profile.absences = vec![(ModuleId(0), absence)];
            let words = nameless(&profile).expect("more than a fifth has no name");
            assert!(words.contains(cause), "{words}");
            assert_eq!(words.contains("stripped"), absence == Absence::Stripped, "{words}");
        }
    }

    /// Checks that addresses of a stripped file are one row, and that a sentence names the file.
    #[test]
    fn a_stripped_file_is_one_row() {
        let of = [stack(&[3, 2], 30), stack(&[4, 2], 30), stack(&[2], 40)];
        let look = first_look(&profile(&["app"], &FUNCTIONS, &of), &[], 5);
        assert_eq!(names(&look.hottest), [(NO_SYMBOLS, 60), ("answer", 40)]);
        let words = look.nameless.expect("more than a fifth has no name");
        assert!(words.starts_with("60 % of the samples") && words.contains("(app)"), "{words}");
    }
}
