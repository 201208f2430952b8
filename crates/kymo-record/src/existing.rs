//! Existing processes, mappings and the kernel, enumerated after the events are enabled.
use crate::background::BackgroundTask;
use crate::mapped_files::RecordedFile;
use crate::observe::Observer;
use crate::plan::RecordingPlan;
use crate::synth::{self, TaskSynthesis};
use kymo_data::Attr;
use kymo_perf::proc::{self, KernelModule, KernelText};
use std::collections::HashSet;

/// The kernel's text and its modules, which take as long to read as everything else at the start.
pub(crate) type KernelThread = BackgroundTask<(Option<KernelText>, Vec<KernelModule>)>;

/// Begins to read the kernel's symbols and modules.
pub(crate) fn read_kernel() -> KernelThread {
    BackgroundTask::begin(|| (proc::kernel_text(), proc::modules()))
}

/// Makes up records for what is there already.
pub(crate) struct Existing<'a> {
    pub(crate) plan: &'a RecordingPlan,
    pub(crate) observer: &'a Observer,
    pub(crate) attr: Attr,
    pub(crate) kernel: KernelThread,
    /// The name of the command's process, as it is before its exec.
    pub(crate) command: Vec<u8>,
}

/// What was listed.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// The records.
    pub(crate) records: Vec<u8>,
    /// Files that are mapped as code.
    pub(crate) files: HashSet<RecordedFile>,
    /// The kernel's modules.
    pub(crate) modules: Vec<KernelModule>,
}

impl Existing<'_> {
    pub(crate) fn run(self) -> Listed {
        let options = &self.plan.options;
        let pids = self.observer.processes(self.plan);
        // Processes first, because they may end; the kernel stays.
        let wanted = TaskSynthesis {
            mappings: options.synthesis.mappings,
            data: options.data_mappings(),
            namespaces: options.tracking.namespaces,
            build_ids: options.tracking.build_ids,
        };
        let tasks = if options.synthesis.tasks {
            synth::tasks(&self.attr, &pids, wanted)
        } else {
            synth::Tasks::default()
        };
        let (text, modules) = self.kernel.join();
        let mut records = synth::kernel(&self.attr, text, &modules);
        if options.tracking.cgroups && options.synthesis.cgroups {
            records.extend(synth::cgroups(&self.attr));
        }
        records.extend(self.command);
        records.extend(tasks.records);
        synth::never_empty(&mut records);
        Listed { records, files: tasks.files, modules }
    }
}
