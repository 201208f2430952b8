//! Options of `perf sched` that change nothing here, or that kymo has something else for.

use kymo_cli::perf_options::{PerfOption, PerfOptionTable, PerfValue};

const NONE: PerfValue = PerfValue::None;
const VALUE: PerfValue = PerfValue::Required;

const DUMP: PerfOption = PerfOption::refused(
    "dump-raw-trace",
    NONE,
    "`kymo script --show-switch-events` prints the records one by one",
)
.short('D');
const FORCE: PerfOption =
    PerfOption::accepted("force", NONE, "recordings of every owner are read").short('f');
const VERBOSE: PerfOption =
    PerfOption::accepted("verbose", NONE, "what is wrong with a recording is always said").short('v');

/// The table of `kymo sched latency`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LatencyPerfOptions;

impl PerfOptionTable for LatencyPerfOptions {
    const OPTIONS: &'static [PerfOption] = &[
        PerfOption::refused(
            "CPU",
            VALUE,
            "delays of one CPU are those of `kymo sched timehist -C CPU`; `kymo sched stats` has the sums of each",
        )
        .short('C'),
        DUMP,
        FORCE,
        VERBOSE,
    ];
}

/// The table of `kymo sched timehist`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimehistPerfOptions;

impl PerfOptionTable for TimehistPerfOptions {
    const OPTIONS: &'static [PerfOption] = &[DUMP, VERBOSE];
}

/// The table of `kymo sched map`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MapPerfOptions;

impl PerfOptionTable for MapPerfOptions {
    const OPTIONS: &'static [PerfOption] = &[DUMP, FORCE, VERBOSE];
}

/// The table of `kymo sched stats`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StatsPerfOptions;

impl PerfOptionTable for StatsPerfOptions {
    const OPTIONS: &'static [PerfOption] = &[
        FORCE,
        PerfOption::refused(
            "output",
            VALUE,
            "the totals come from a recording of switches: `kymo record -a -e 'sched:*' -o FILE` makes one",
        )
        .short('o'),
    ];
}

/// All of them, for the book's page.
pub(crate) fn page() -> Vec<PerfOption> {
    let mut options = vec![DUMP, FORCE, VERBOSE];
    let tables = [LatencyPerfOptions::OPTIONS, TimehistPerfOptions::OPTIONS, StatsPerfOptions::OPTIONS];
    let more = tables
        .into_iter()
        .flatten()
        .filter(|option| [DUMP.long, FORCE.long, VERBOSE.long].iter().all(|known| *known != option.long));
    options.extend(more);
    options
}
