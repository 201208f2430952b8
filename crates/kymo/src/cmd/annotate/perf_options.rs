//! Options of `perf annotate` that change nothing here, or that kymo has something else for.

use kymo_cli::perf_options::{PerfOption, PerfOptionTable, PerfValue};

/// The table of `kymo annotate`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnnotateOptions;

const NONE: PerfValue = PerfValue::None;
const VALUE: PerfValue = PerfValue::Required;
const OPTIONAL: PerfValue = PerfValue::Optional;

const BY_ITSELF: &str = "kymo disassembles and reads debug information by itself";
const TEXT: &str = "kymo prints the text of --stdio";
const TYPES: &str = "it does not annotate types of data; `perf annotate` does";

impl PerfOptionTable for AnnotateOptions {
    const OPTIONS: &'static [PerfOption] = &[
        PerfOption::accepted("addr2line", VALUE, BY_ITSELF),
        PerfOption::refused("code-with-type", NONE, TYPES),
        PerfOption::refused("data-type", OPTIONAL, TYPES),
        PerfOption::accepted("demangle-kernel", NONE, "names of the kernel are shown as it stores them"),
        PerfOption::refused("dump-raw-trace", NONE, "`kymo report -D` prints the records").short('D'),
        PerfOption::accepted("group", NONE, "events of a group are shown one after another"),
        PerfOption::accepted(
            "ignore-vmlinux",
            NONE,
            "an image is used only if its build id is that of the recorded kernel",
        ),
        PerfOption::refused("insn-stat", NONE, TYPES),
        PerfOption::refused("itrace", OPTIONAL, "it decodes no traces of instructions"),
        PerfOption::accepted("modules", NONE, "modules of the running kernel are looked at in any case")
            .short('m'),
        PerfOption::accepted("objdump", VALUE, BY_ITSELF),
        PerfOption::accepted("skip-empty", NONE, "events without samples are left out"),
        PerfOption::accepted("stdio2", NONE, TEXT),
        PerfOption::accepted("tui", NONE, TEXT),
        PerfOption::refused("type-stat", NONE, TYPES),
        PerfOption::accepted("verbose", NONE, "what is wrong with a recording is always said").short('v'),
    ];
}
