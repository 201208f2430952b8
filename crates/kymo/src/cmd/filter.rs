//! What several verbs that read recordings take: the recording, CPUs, tasks, spans of time.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use kymo_data::Recording;
use kymo_profile::emptied;
use kymo_profile::load::{LoadOptions, TimeSpans};
use kymo_profile::stat::is_count_recording;

use kymo_cli::open;

/// The recording that is read.
#[derive(Debug, Args)]
pub(crate) struct InputArgs {
    /// The recording: a file, a directory of `perf record --threads`, or - for stdin
    #[arg(short, long, value_name = "FILE", default_value = open::DEFAULT)]
    input: PathBuf,

    /// The recording, as a plain argument
    #[arg(value_name = "FILE", conflicts_with = "input")]
    file: Option<PathBuf>,
}

impl InputArgs {
    pub(crate) fn path(&self) -> &Path {
        self.file.as_ref().unwrap_or(&self.input)
    }
}

/// The samples that are looked at.
#[derive(Debug, Args)]
pub(crate) struct FilterArgs {
    /// Only samples of these CPUs, for example 0,4-7
    #[arg(short = 'C', long, value_name = "LIST")]
    cpu: Option<String>,

    /// Only samples of these processes
    #[arg(long, value_name = "PIDS", value_delimiter = ',')]
    pid: Vec<i32>,

    /// Only samples of these threads
    #[arg(long, value_name = "TIDS", value_delimiter = ',')]
    tid: Vec<i32>,

    /// Only samples of these times: FROM,TO in seconds of the recording's clock (either may be
    /// empty; more spans after spaces), or parts of the recording such as 10%/2 (the second tenth)
    /// or 0%-10%,40%-50%
    #[arg(long, value_name = "TIMES")]
    time: Option<String>,
}

impl FilterArgs {
    pub(crate) fn are_given(&self) -> bool {
        !(self.cpu.is_none() && self.pid.is_empty() && self.tid.is_empty() && self.time.is_none())
    }

    /// The filters for one recording; all else is as usual.
    pub(crate) fn load(&self, recording: &Recording) -> anyhow::Result<LoadOptions> {
        Ok(LoadOptions {
            cpus: self.cpu.as_deref().map(|list| numbers("-C", list)).transpose()?,
            pids: (!self.pid.is_empty()).then(|| self.pid.iter().copied().collect()),
            tids: (!self.tid.is_empty()).then(|| self.tid.iter().copied().collect()),
            time: self.time.as_deref().map(|text| TimeSpans::parse(text, recording)).transpose()?,
            ..LoadOptions::default()
        })
    }
}

/// Why no sample was shown: which filter left none, or that the recording has none.
pub(crate) fn why_empty(recording: &Recording, options: &LoadOptions) -> String {
    if recording.features.imported.is_some() && recording.data_bytes() == 0 {
        return "the imported profile has no samples".into();
    }
    if recording.data_bytes() == 0 {
        return "the recording holds no records: its recorder has just begun, or was ended before it could write any; record again".into();
    }
    if is_count_recording(recording) {
        return "the recording has counts, not samples: `kymo stat report` prints them".into();
    }
    emptied::of_samples(recording, options).unwrap_or_else(|error| error.to_string())
}

/// `0,4-7` as a set of numbers, of CPUs or threads.
pub(crate) fn numbers(option: &str, text: &str) -> anyhow::Result<rustc_hash::FxHashSet<u32>> {
    let mut numbers = rustc_hash::FxHashSet::default();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |word: &str| -> anyhow::Result<u32> {
            let number = word.trim().parse().ok().filter(|number| *number < 1 << 16);
            number.with_context(|| {
                format!("{option} {text}: '{word}' is no number below 65536; write for example 0,4-7")
            })
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            bail!("{option} {text}: {part} goes backwards; write {to}-{from}");
        }
        numbers.extend(from..=to);
    }
    Ok(numbers)
}

/// A share in percent.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let value = text.trim().trim_end_matches('%').parse().ok();
    value.filter(|v| (0.0..=100.0).contains(v)).ok_or_else(|| "write a number from 0 to 100".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks lists and ranges of CPUs, and that a wrong one is named.
    #[test]
    fn cpu_lists() {
        let mut cpus: Vec<u32> = numbers("-C", "0,4-6").unwrap().into_iter().collect();
        cpus.sort_unstable();
        assert_eq!(cpus, [0, 4, 5, 6]);
        assert!(numbers("-C", "0,x").unwrap_err().to_string().contains("'x' is no number below 65536"));
        assert!(numbers("-C", "5-2").unwrap_err().to_string().contains("write 2-5"));
        assert!(numbers("-C", "0-99999999").is_err(), "a range that no machine has is refused, not walked");
    }

    /// Checks that a share is a number from 0 to 100, with or without its sign.
    #[test]
    fn percents() {
        assert_eq!((percent("2.5"), percent("7%")), (Ok(2.5), Ok(7.0)));
        for wrong in ["nan", "-1", "101", "x", ""] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }
}
