//! Options of `perf report` that change nothing here, or that kymo has something else for.

use kymo_cli::perf_options::{PerfOption, PerfOptionTable, PerfValue};

/// The table of `kymo report`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReportOptions;

const NONE: PerfValue = PerfValue::None;
const VALUE: PerfValue = PerfValue::Required;
const OPTIONAL: PerfValue = PerfValue::Optional;

const BY_ITSELF: &str = "kymo disassembles and reads debug information by itself";
const BRANCHES: &str = "it shows samples and no records of branches; `perf report` does";
const MEMORY: &str = "kymo does not read memory samples; `perf report` does";
const SOURCES: &str = "`kymo annotate` shows sources";

impl PerfOptionTable for ReportOptions {
    const OPTIONS: &'static [PerfOption] = &[
        PerfOption::accepted("addr2line", VALUE, BY_ITSELF),
        PerfOption::refused("branch-history", NONE, BRANCHES),
        PerfOption::refused("branch-stack", NONE, BRANCHES).short('b'),
        PerfOption::accepted("demangle-kernel", NONE, "names of the kernel are shown as it stores them"),
        PerfOption::accepted("disable-order", NONE, "records are put in order in any case"),
        PerfOption::accepted("full-source-path", NONE, SOURCES),
        PerfOption::accepted(
            "ignore-vmlinux",
            NONE,
            "an image is used only if its build id is that of the recorded kernel",
        ),
        PerfOption::refused("itrace", OPTIONAL, "it decodes no traces of instructions"),
        PerfOption::refused("mem-mode", NONE, MEMORY),
        PerfOption::accepted("objdump", VALUE, BY_ITSELF),
        PerfOption::accepted("prefix", VALUE, SOURCES),
        PerfOption::accepted("prefix-strip", VALUE, SOURCES),
        PerfOption::accepted("raw-trace", NONE, "`kymo script -F trace` prints fields of tracepoints"),
        PerfOption::refused("samples", VALUE, "`kymo script` prints the samples one by one"),
        PerfOption::refused(
            "stitch-lbr",
            NONE,
            "calls that the processor's records of branches have lost are left out, not guessed",
        ),
        PerfOption::accepted("threads", NONE, "`kymo report -s tid` shows each thread").short('T'),
        PerfOption::refused("total-cycles", NONE, BRANCHES),
    ];
}
