//! Folded stacks: `command;outer;inner count`, a line for each stack.
use super::{
    ImportError, ImportedCount, ImportedEvent, ImportedFunction, ImportedProfile, ImportedThread, MOST_BYTES,
    Numbered, ProfileBuilder,
};
use crate::text::SEMICOLON_IN_STACK;
use std::io::BufRead;

/// The longest line, bytes.
const MOST_LINE_BYTES: u64 = 1 << 20;

/// Reads folded stacks. The first word of a line names the command, as `stackcollapse-perf.pl` and
/// kymo write it; a line of one word is the command itself.
///
/// # Errors
/// [`ImportError`], with the number of the line.
pub fn folded(mut from: impl BufRead) -> Result<ImportedProfile, ImportError> {
    let (mut builder, mut commands) = (ProfileBuilder::default(), Numbered::default());
    let (mut line, mut number, mut all) = (Vec::new(), 0_u64, 0_u64);
    loop {
        line.clear();
        let read = std::io::Read::take(&mut from, MOST_LINE_BYTES).read_until(b'\n', &mut line)? as u64;
        if read == 0 {
            break;
        }
        (number, all) = (number + 1, all + read);
        if read == MOST_LINE_BYTES || all > MOST_BYTES {
            return Err(ImportError::Large(format!("line {number} is too long, or the file too large")));
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if !text.is_empty() && !text.starts_with('#') {
            add_line(&mut builder, &mut commands, text, number)?;
        }
    }
    Ok(builder.finish(vec![ImportedEvent { name: "samples".to_owned(), is_time: false }]))
}

fn add_line(
    builder: &mut ProfileBuilder,
    commands: &mut Numbered<String>,
    text: &str,
    number: u64,
) -> Result<(), ImportError> {
    let damaged = |why: &str| {
        ImportError::Damaged(format!(
            "line {number} {why}; folded stacks are lines `command;outer;inner count`"
        ))
    };
    let (stack, count) = text.rsplit_once(' ').ok_or_else(|| damaged("has no count"))?;
    let samples: u64 = count.parse().map_err(|_| damaged("ends with no number"))?;
    let (command, frames) = stack.split_once(';').unwrap_or((stack, stack));
    let function = |name: &str| ImportedFunction { name: name.to_owned(), module: "[imported]".to_owned() };
    // As kymo writes them.
    let named = |name: &str| name.replace(SEMICOLON_IN_STACK, ";");
    let frames: Vec<u32> =
        frames.rsplit(';').map(|name| builder.functions.number(function(&named(name)))).collect();
    // Each command is a process: the lines do not say which one it was.
    let pid = commands.number(command.to_owned()) as i32 + 1;
    let thread = builder.threads.number(ImportedThread { pid, tid: pid, comm: command.to_owned() });
    let stack = builder.stack(frames)?;
    builder.add(ImportedCount { event: 0, thread, stack, samples, period: samples })
}
