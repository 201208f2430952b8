//! Options of `perf stat` that change nothing here, or that kymo has something else for.

use kymo_cli::perf_options::{PerfOption, PerfOptionTable, PerfValue};

/// The table of `kymo stat`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StatOptions;

const NONE: PerfValue = PerfValue::None;
const VALUE: PerfValue = PerfValue::Required;
const OPTIONAL: PerfValue = PerfValue::Optional;

const METRICS: &str = "it has no tables of vendors' metrics; instructions per cycle, shares of misses and rates are printed behind the counts (-d: more of them)";
const NO_METRICS: &str = "there are no metric groups";
const TPEBS: &str = "it counts, and samples no retirement latencies";

impl PerfOptionTable for StatOptions {
    const OPTIONS: &'static [PerfOption] = &[
        PerfOption::accepted("affinity", NONE, "events are opened and read on their own CPUs anyway"),
        PerfOption::refused("cputype", VALUE, "name the kind of core in the event: -e cpu_core/cycles/"),
        PerfOption::refused("group", NONE, "write the events of a group in braces: -e '{a,b}'").short('g'),
        PerfOption::accepted("hybrid-merge", NONE, "events of each kind of core have lines of their own"),
        PerfOption::refused(
            "iostat",
            OPTIONAL,
            "it has no tables of uncore events; `kymo list` shows those of this machine, for -e",
        ),
        PerfOption::accepted("metric-no-group", NONE, NO_METRICS),
        PerfOption::accepted("metric-no-merge", NONE, NO_METRICS),
        PerfOption::accepted("metric-no-threshold", NONE, NO_METRICS),
        PerfOption::refused(
            "percore-show-thread",
            NONE,
            "--per-core sums the threads of a core, -A shows each",
        ),
        PerfOption::refused("pmu-filter", VALUE, "name the PMU in the event: -e hisi_sccl1_ddrc0/flux_rd/"),
        PerfOption::refused("record-tpebs", NONE, TPEBS),
        PerfOption::accepted("scale", NONE, "counts are scaled unless --no-scale is given"),
        PerfOption::refused("smi-cost", NONE, "count the events: -e msr/aperf/,msr/smi/,cycles"),
        PerfOption::refused("td-level", VALUE, METRICS),
        PerfOption::refused("topdown", NONE, METRICS),
        PerfOption::refused("tpebs-mode", VALUE, TPEBS),
        PerfOption::refused(
            "transaction",
            NONE,
            "count the events: -e cpu/tx-start/,cpu/el-start/,cpu/cycles-t/",
        )
        .short('T'),
    ];
}
