//! From the recording of an interval to batches in the spool.
use crate::config::{Config, Stacks};
use crate::host;
use crate::sender::REQUEST;
use crate::spool::{Destination, Spool};
use crate::status::{Interval, Status};
use flate2::Compression;
use flate2::write::GzEncoder;
use kymo_data::Recording;
use kymo_dataset::{ProcessNames, RecordingOptions, RecordingRows};
use kymo_profile::export::{ExportSamples, RowFilter, otlp};
use kymo_profile::load::{Dims, LoadOptions};
use kymo_profile::profile::Profile;
use kymo_profile::resolve::ResolveOptions;
use kymo_profile::wall::Wall;
use kymo_record::LiveSnapshot;
use kymo_symbols::{ModuleKey, SymbolOptions, SymbolStore};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// What the recording of an interval is called.
const SOURCE: &str = "kymo-daemon";

/// Adds up intervals, one after the other.
pub(crate) struct IntervalReader {
    load: LoadOptions,
    resolve: ResolveOptions,
    symbols: SymbolStore,
    /// The kernel modules that `symbols` knows.
    kernel_modules: Vec<String>,
    without_symbols: bool,
    interval_s: u64,
    off_cpu: bool,
    service: Option<String>,
    host_identity: Option<String>,
    is_written: bool,
    is_pushed: bool,
    spool: Arc<Spool>,
    status: Arc<Status>,
}

impl IntervalReader {
    /// A reader for the destinations of this configuration.
    pub(crate) fn new(config: &Config, spool: Arc<Spool>, status: Arc<Status>) -> IntervalReader {
        let load = LoadOptions {
            dims: Dims { pid: true, cgroup: true, ..Dims::default() },
            callchains: config.stacks != Stacks::None,
            without_wait_stacks: true,
            columns: true,
            workers: 1,
            ..LoadOptions::default()
        };
        let resolve = ResolveOptions { inline: config.symbols, ..ResolveOptions::default() };
        let options = SymbolOptions { without_files: !config.symbols, ..SymbolOptions::default() };
        IntervalReader {
            load,
            resolve,
            symbols: SymbolStore::new(options),
            kernel_modules: host::kernel_modules(),
            without_symbols: !config.symbols,
            interval_s: config.interval_s,
            off_cpu: config.off_cpu,
            service: Some(config.service.clone()).filter(|service| !service.is_empty()),
            host_identity: host::identity(),
            is_written: config.dataset.is_some(),
            is_pushed: config.otlp.is_some(),
            spool,
            status,
        }
    }

    /// Adds up the recording of an interval that began at `start` since 1970. What fails is noted;
    /// what cannot be put into the spool is counted as lost.
    pub(crate) fn add(&mut self, file: LiveSnapshot, start: Duration) {
        self.forget_other_modules();
        match self.try_add(file.file, start) {
            Ok(interval) => self.status.change(|counters| {
                counters.intervals += 1;
                counters.samples += interval.samples;
                counters.lost_samples += interval.lost;
                counters.last_interval = Some(interval);
            }),
            Err(reason) => self.status.failed(&format!("an interval could not be read: {reason}")),
        }
        // Code of programs changes; the kernel's stays.
        self.symbols.retain(|key| matches!(key, ModuleKey::Kernel { .. } | ModuleKey::KernelModule { .. }));
        kymo_perf::sys::memory::return_free_memory();
    }

    /// Code of the kernel is known by a list that is read once: anew where modules came or went.
    fn forget_other_modules(&mut self) {
        let modules = host::kernel_modules();
        if modules != self.kernel_modules {
            self.symbols = SymbolStore::new(self.symbols.options().clone());
            self.kernel_modules = modules;
        }
    }

    fn try_add(&self, file: File, start: Duration) -> Result<Interval, String> {
        let recording = Recording::open(Arc::new(file), Vec::new()).map_err(|error| error.to_string())?;
        let profile = Profile::open(&recording, &self.load, self.resolve, &self.symbols, &|_, _, _| {});
        let profile = profile.map_err(|error| error.to_string())?;
        let mut waits = if self.off_cpu { self.waits(&recording) } else { None };
        let mut samples = ExportSamples::of_profile(&recording, &profile, &self.symbols, SOURCE);
        let (sampled, waited) = (sampled(&samples), waits.as_ref().map_or(0, waited));
        // What both destinations lack is lost once.
        let (mut lacks_samples, mut lacks_waits) = (false, false);
        let mut rows = 0;
        let names = Names::of(&profile, &samples);
        if self.is_written {
            match self.write_files(&samples, waits.as_ref(), &names, start) {
                Ok(written) => rows = written,
                Err(reason) => {
                    self.lose(&reason);
                    (lacks_samples, lacks_waits) = (true, true);
                }
            }
        }
        if self.is_pushed {
            samples.attributes = names.attributes(&samples);
            if let Err(error) = self.put_request(&samples, (RowFilter::Samples, sampled), start) {
                self.lose(&error.to_string());
                lacks_samples = true;
            }
            if let Some(spans) = &mut waits {
                spans.attributes = names.attributes(spans);
                if let Err(error) = self.put_request(spans, (RowFilter::OffCpu, waited), start) {
                    self.lose(&error.to_string());
                    lacks_waits = true;
                }
            }
        }
        let counts = &profile.loaded.counts;
        let lost = counts.lost_samples.max(counts.lost_records)
            + if lacks_samples { sampled } else { 0 }
            + if lacks_waits { waited } else { 0 };
        Ok(Interval { start_s: start.as_secs(), samples: sampled + waited, rows, lost })
    }

    /// The time of all threads of an interval, if it has records of waits that can be read.
    fn waits(&self, recording: &Recording) -> Option<ExportSamples<'static>> {
        let wall = Wall::open(recording, (&self.load, None), self.resolve, &self.symbols, &|_, _, _| {});
        let wall = wall.unwrap_or_else(|error| {
            self.status.failed(&format!("the waits of an interval could not be read: {error}"));
            None
        })?;
        Some(ExportSamples::of_wall_with_addresses(recording, &wall, &self.symbols, SOURCE))
    }

    /// Puts the files of a dataset into the spool; how many rows they have.
    fn write_files(
        &self,
        samples: &ExportSamples<'_>,
        waits: Option<&ExportSamples<'_>>,
        names: &Names,
        start: Duration,
    ) -> Result<u64, String> {
        let options = RecordingOptions {
            service: self.service.as_deref(),
            without_symbols: self.without_symbols,
            host_identity: self.host_identity.as_deref(),
        };
        let rows = RecordingRows::new(samples, options, self.symbols.options());
        let rows = match waits {
            Some(spans) => rows.with_waits(spans, self.symbols.options()),
            None => rows,
        };
        // Those of all machines are the same, though each begins a little later.
        let begin_s = start.as_secs() - start.as_secs() % self.interval_s.max(1);
        let start_ns = i64::try_from(begin_s).unwrap_or(0).saturating_mul(1_000_000_000);
        let summed = rows.into_sums(start_ns, &|pid, extra| names.of_process(pid, extra));
        let summed = summed.map_err(|error| error.to_string())?;
        let put = self.spool.put(Destination::Dataset, start.as_nanos() as u64, |folder| {
            for file in &summed.files {
                let path = folder.join(&file.path);
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                std::fs::write(path, &file.bytes)?;
            }
            Ok(summed.samples)
        });
        put.map(|()| summed.rows).map_err(|error| error.to_string())
    }

    /// Puts a request for a collector into the spool, with so many samples of this kind.
    fn put_request(
        &self,
        rows: &ExportSamples<'_>,
        (filter, count): (RowFilter, u64),
        start: Duration,
    ) -> io::Result<()> {
        self.spool.put(Destination::Otlp, start.as_nanos() as u64, |folder| {
            write_request(rows, filter, &folder.join(REQUEST)).map(|()| count)
        })
    }

    /// Says that a batch could not be kept, in the same words each time, so that they are said once.
    fn lose(&self, reason: &str) {
        let folder = self.spool.folder().display();
        self.status.failed(&format!("failed to write to {folder}: {reason}; what an interval has is lost"));
    }
}

/// The samples of an interval, without the records of waits.
fn sampled(samples: &ExportSamples<'_>) -> u64 {
    samples.by_time().filter(|row| RowFilter::Samples.keeps(samples, row)).map(|row| row.samples).sum()
}

/// The waits of an interval, as the rows of a dataset count them.
fn waited(spans: &ExportSamples<'_>) -> u64 {
    let waits = spans.by_time().filter(|row| RowFilter::OffCpu.keeps(spans, row));
    waits.map(|row| row.waits.max(1)).sum()
}

/// A gzipped request for a collector.
fn write_request(samples: &ExportSamples<'_>, filter: RowFilter, path: &Path) -> io::Result<()> {
    let file = BufWriter::new(File::create_new(path)?);
    let mut packed = GzEncoder::new(file, Compression::fast());
    otlp(samples, filter, &mut packed)?;
    packed.finish()?.flush()
}

/// Containers, pods and units of the processes of an interval.
struct Names {
    /// By process and the cgroup of a sample.
    of_samples: HashMap<(i32, u32), ProcessNames>,
    /// By process the first of those that is in something.
    of_processes: HashMap<i32, ProcessNames>,
}

impl Names {
    fn of(profile: &Profile, samples: &ExportSamples<'_>) -> Names {
        let loaded = &profile.loaded;
        let (mut of_samples, mut of_processes) = (HashMap::new(), HashMap::new());
        for row in samples.by_time() {
            let pid = samples.thread(row.thread).pid;
            of_samples.entry((pid, row.extra)).or_insert_with(|| {
                let cgroup = loaded.extras.get(row.extra).cgroup;
                let names = ProcessNames::of_cgroup(&loaded.counts.cgroups.get(cgroup).path);
                // Samples know one hierarchy; the names may be in another one of version 1.
                let names = if names.is_empty() { host::names_of_process(pid) } else { names };
                if !names.is_empty() {
                    of_processes.entry(pid).or_insert_with(|| names.clone());
                }
                names
            });
        }
        Names { of_samples, of_processes }
    }

    /// Those of a process; of a sample of it by its cgroup.
    fn of_process(&self, pid: i32, extra: Option<u32>) -> ProcessNames {
        let names = match extra {
            Some(extra) => self.of_samples.get(&(pid, extra)),
            None => self.of_processes.get(&pid),
        };
        names.cloned().unwrap_or_default()
    }

    /// As OpenTelemetry calls them, by process.
    fn attributes<Map>(&self, samples: &ExportSamples<'_>) -> Map
    where
        Map: FromIterator<(i32, Vec<(&'static str, String)>)>,
    {
        let threads = samples.profile.threads.iter().map(|thread| thread.pid);
        let named = |pid: i32| {
            let names = self.of_processes.get(&pid)?;
            let facts = [
                ("container.id", &names.container),
                ("k8s.pod.uid", &names.pod),
                ("systemd.unit", &names.systemd_unit),
            ];
            let facts = facts.into_iter().filter_map(|(key, value)| Some((key, value.clone()?)));
            Some((pid, facts.collect()))
        };
        threads.filter_map(named).collect()
    }
}
