//! The words of the command line.
use std::path::PathBuf;

/// Midnight of 2026-11-24 (UTC), seconds since 1970: the same words make the same files.
const START_S: i64 = 1_795_478_400;

/// What is to be made.
pub(crate) struct Arguments {
    pub(crate) recordings: Vec<PathBuf>,
    /// How many of the recordings are there from the first day on; the others come when half of the
    /// days are over, as a new build does.
    pub(crate) from_the_first_day: usize,
    pub(crate) hosts: u32,
    /// At least so many; all hosts and recordings have the same number of repetitions.
    pub(crate) samples: u64,
    pub(crate) days: u32,
    pub(crate) out: PathBuf,
}

impl Arguments {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut arguments = Arguments {
            recordings: Vec::new(),
            from_the_first_day: usize::MAX,
            hosts: 100,
            samples: 1_000_000,
            days: 2,
            out: PathBuf::new(),
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text} is no number"));
            match &*word {
                "--hosts" => arguments.hosts = number(value()?)?.try_into().unwrap_or(u32::MAX),
                "--samples" => arguments.samples = number(value()?)?,
                "--days" => arguments.days = number(value()?)?.try_into().unwrap_or(u32::MAX),
                "--then" => arguments.from_the_first_day = arguments.recordings.len(),
                "--out" => arguments.out = value()?.into(),
                _ if word.starts_with("--") => return Err(format!("there is no {word}")),
                _ => arguments.recordings.push(word.into()),
            }
        }
        let is_complete = !arguments.recordings.is_empty() && !arguments.out.as_os_str().is_empty();
        match is_complete && arguments.hosts > 0 && arguments.days > 0 {
            true => Ok(arguments),
            false => {
                Err("RECORDING.. [--then RECORDING..] --out DIR [--hosts N] [--samples N] [--days N]"
                    .to_owned())
            }
        }
    }

    pub(crate) fn start_ns(&self) -> i64 {
        START_S * 1_000_000_000
    }
}
