//! Folded stacks: `command;outer;inner count`, a line for each stack, as flamegraph.pl reads them:
//! the count is a weight, has fractions or not, and comes after a space or a tab; lines without one
//! are left out.
use super::{
    ImportError, ImportedCount, ImportedEvent, ImportedFunction, ImportedProfile, ImportedThread, MOST_BYTES,
    NO_LABELS, Numbered, ProfileBuilder,
};
use crate::text::SEMICOLON_IN_STACK;
use std::io::{BufRead, Read};

/// The longest line, bytes.
const MOST_LINE_BYTES: u64 = 1 << 20;
/// Digits after the point that are kept of counts with fractions.
const DECIMALS: usize = 6;
/// The unit of counts of a file that has fractions: whole numbers of this.
pub(crate) const MILLIONTHS: &str = "millionths";

/// Reads folded stacks. The first word of a line names the command, as `stackcollapse-perf.pl` and
/// kymo write it; a line of one word is the command itself.
///
/// # Errors
/// [`ImportError`]: for files of two counts a line (`difffolded.pl`), and for those of which most
/// lines have none.
pub fn folded(mut from: impl BufRead) -> Result<ImportedProfile, ImportError> {
    let mut lines = FoldedLines::default();
    let (mut line, mut number, mut all) = (Vec::new(), 0_u64, 0_u64);
    loop {
        line.clear();
        let read = Read::take(&mut from, MOST_LINE_BYTES).read_until(b'\n', &mut line)? as u64;
        if read == 0 {
            break;
        }
        (number, all) = (number + 1, all + read);
        if read == MOST_LINE_BYTES || all > MOST_BYTES {
            return Err(ImportError::Large(format!("line {number} is too long, or the file too large")));
        }
        let text = String::from_utf8_lossy(&line);
        // Editors of Windows put a byte-order mark before everything.
        let text = if number == 1 { text.trim_start_matches('\u{feff}') } else { &text };
        let text = text.trim_end();
        if !text.is_empty() && !text.starts_with('#') {
            lines.add(text, number)?;
        }
    }
    lines.finish()
}

/// The lines so far.
#[derive(Default)]
struct FoldedLines {
    builder: ProfileBuilder,
    commands: Numbered<String>,
    /// By count: its digits after the point, as millionths.
    fractions: Vec<u32>,
    /// Lines of two counts.
    with_two_counts: u64,
    without_count: u64,
    first_without_count: u64,
    sum: u128,
}

impl FoldedLines {
    fn add(&mut self, text: &str, number: u64) -> Result<(), ImportError> {
        let Some((stack, digits)) = with_count(text) else {
            if self.without_count == 0 {
                self.first_without_count = number;
            }
            self.without_count += 1;
            return Ok(());
        };
        self.with_two_counts += u64::from(with_count(stack).is_some());
        let (whole, fraction) = count_of(digits).ok_or_else(|| {
            ImportError::Large(format!("line {number} has a count that is larger than any recording holds"))
        })?;
        self.sum += u128::from(whole);
        let (command, frames) = stack.split_once(';').unwrap_or((stack, stack));
        let function = |name: &str| ImportedFunction { name: named(name), module: "[imported]".to_owned() };
        let frames: Vec<u32> =
            frames.rsplit(';').map(|name| self.builder.functions.number(function(name))).collect();
        // Each command is a process: the lines do not say which one it was.
        let comm = named(command);
        let pid = self.commands.number(comm.clone()) as i32 + 1;
        let thread = self.builder.threads.number(ImportedThread { pid, tid: pid, comm });
        let stack = self.builder.stack(frames)?;
        self.fractions.push(fraction);
        let count = ImportedCount { event: 0, thread, stack, labels: NO_LABELS, samples: 1, period: whole };
        self.builder.add(count)
    }

    fn finish(self) -> Result<ImportedProfile, ImportError> {
        let lines = self.builder.counts.len() as u64;
        if self.without_count > lines {
            return Err(ImportError::Damaged(format!(
                "{} of {} lines have no count, the first is line {}; folded stacks are lines \
                 `command;outer;inner count`",
                self.without_count,
                lines + self.without_count,
                self.first_without_count
            )));
        }
        if lines > 0 && self.with_two_counts == lines {
            return Err(ImportError::Damaged(
                "every line has two counts, as difffolded.pl writes them: it is a comparison of two profiles; \
                 import each of them, and compare with `kymo diff`"
                    .to_owned(),
            ));
        }
        let has_fractions = self.fractions.iter().any(|fraction| *fraction > 0);
        let factor = if has_fractions { 10_u64.pow(DECIMALS as u32) } else { 1 };
        if self.sum * u128::from(factor) > i64::MAX as u128 {
            return Err(ImportError::Large("the counts add up to more than any recording holds".to_owned()));
        }
        let unit = if has_fractions { MILLIONTHS } else { "count" };
        let event = ImportedEvent { name: "samples".to_owned(), unit: unit.to_owned(), samples_type: None };
        let mut profile = self.builder.finish(vec![event]);
        for (count, fraction) in profile.counts.iter_mut().zip(&self.fractions) {
            count.period = count.period * factor + if has_fractions { u64::from(*fraction) } else { 0 };
        }
        profile.counts.retain(|count| count.period > 0);
        if self.without_count > 0 {
            profile.notes.push(format!(
                "left out {} lines without a count, the first is line {}",
                self.without_count, self.first_without_count
            ));
        }
        Ok(profile)
    }
}

/// A line's stack, and the digits of its count.
fn with_count(text: &str) -> Option<(&str, &str)> {
    let (stack, digits) = text.rsplit_once([' ', '\t'])?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    let stack = stack.trim_end();
    (!whole.is_empty() && is_number(whole) && is_number(fraction) && !stack.is_empty())
        .then_some((stack, digits))
}

/// A count, and its millionths.
fn count_of(digits: &str) -> Option<(u64, u32)> {
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let fraction = &fraction[..fraction.len().min(DECIMALS)];
    Some((whole.parse().ok()?, format!("{fraction:0<DECIMALS$}").parse().ok()?))
}

/// A name as kymo writes it into folded stacks, back.
fn named(name: &str) -> String {
    let name = name.replace(SEMICOLON_IN_STACK, ";");
    match name.rsplit_once("\\x20") {
        Some((head, tail)) if tail.parse::<f64>().is_ok() && !head.ends_with('\\') => {
            format!("{head} {tail}")
        }
        _ => name,
    }
}
