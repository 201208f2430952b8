//! Progress of a query on the terminal: how much of its files is read.

use std::sync::Arc;
use std::time::Duration;

use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// Queries that take less time than this show nothing.
const SILENT: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_millis(100);

/// A line on stderr, if that is a terminal, until it is dropped.
pub(crate) struct QueryProgress(tokio::task::JoinHandle<()>);

impl QueryProgress {
    /// Of a query that is about to run.
    pub(crate) fn start(plan: Arc<dyn ExecutionPlan>) -> QueryProgress {
        QueryProgress(tokio::spawn(async move {
            tokio::time::sleep(SILENT).await;
            let bar = Line::new();
            loop {
                bar.0.set_message(FilesRead::of(&*plan).words());
                bar.0.tick();
                tokio::time::sleep(INTERVAL).await;
            }
        }))
    }

    /// Takes the line away; when this returns, nothing writes to the terminal any more.
    pub(crate) async fn finish(self) {
        self.0.abort();
        let _ = self.0.await;
    }
}

/// The task may end at any moment; the line goes with it.
struct Line(ProgressBar);

impl Line {
    fn new() -> Line {
        let bar = ProgressBar::new_spinner().with_elapsed(SILENT);
        // SANITY: the template is a constant and parses.
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}, {elapsed}").expect("a valid template"));
        Line(bar)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// What the scans of a plan have read until now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FilesRead {
    /// Files, or parts of large ones, that were read.
    done: usize,
    /// All that are to be read.
    all: usize,
    bytes: usize,
}

impl FilesRead {
    fn of(plan: &dyn ExecutionPlan) -> FilesRead {
        let mut sum = FilesRead::default();
        sum.add(plan);
        sum
    }

    fn add(&mut self, plan: &dyn ExecutionPlan) {
        let scan = plan.downcast_ref::<DataSourceExec>();
        let files = scan.and_then(|scan| scan.data_source().downcast_ref::<FileScanConfig>());
        if let Some(files) = files {
            self.all += files.file_groups.iter().map(|group| group.len()).sum::<usize>();
            let metrics = plan.metrics();
            let of = |name: &str| {
                metrics.as_ref().and_then(|all| all.sum_by_name(name)).map_or(0, |sum| sum.as_usize())
            };
            self.done += of("files_processed");
            self.bytes += of("bytes_scanned");
        }
        plan.children().into_iter().for_each(|child| self.add(&**child));
    }

    fn words(self) -> String {
        format!("{} of {} files, {} read", self.done, self.all, HumanBytes(self.bytes as u64))
    }
}
