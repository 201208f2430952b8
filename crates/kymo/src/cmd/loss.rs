//! `kymo report --loss`: what the recording lost, as a picture, a page, a table or JSON.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use kymo_data::Recording;
use kymo_profile::loss::{self, LossTimeline, json, picture, text};

use kymo_cli::terminal::ReadProgress;
use kymo_cli::{damage, exit, open};

/// The form in which the account is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Table,
    Json,
    Svg,
    Html,
}

/// The form that a file's name, or `--json`, asks for.
fn form(output: &Path, json: bool) -> anyhow::Result<Form> {
    if output == Path::new("-") {
        return Ok(if json { Form::Json } else { Form::Table });
    }
    match output.extension().and_then(|e| e.to_str()) {
        Some("json") => Ok(Form::Json),
        Some("svg") => Ok(Form::Svg),
        Some("html" | "htm") => Ok(Form::Html),
        Some("txt") => Ok(Form::Table),
        _ => bail!(
            "--loss {}: the name's end says what to write: .svg, .html, .json, .txt; or - for a table on stdout",
            output.display()
        ),
    }
}

/// Reads the recording's losses.
pub(crate) fn scan(
    recording: &Recording,
    input: &Path,
    jobs: usize,
    quiet: bool,
) -> anyhow::Result<LossTimeline> {
    let progress = ReadProgress::new(quiet);
    let loss = loss::scan(recording, jobs, &|done, all| progress.at(1, done, all))
        .with_context(|| format!("failed to read {}", input.display()))?;
    progress.finish();
    Ok(loss)
}

/// Writes the account to `output`, - being `out`.
pub(crate) fn write(
    out: &mut dyn Write,
    recording: &Recording,
    loss: &LossTimeline,
    input: &Path,
    output: &Path,
    json: bool,
    quiet: bool,
) -> anyhow::Result<ExitCode> {
    let form = form(output, json).map_err(exit::usage)?;
    if !quiet {
        damage::tell(recording.problems.iter().chain(&loss.problems));
    }
    let mut bytes = Vec::new();
    let source = input.display().to_string();
    let caption = || picture::Caption::of(recording, &source);
    match form {
        Form::Table => text::write_table(loss, &mut bytes)?,
        Form::Json => json::write_json(loss, &source, &mut bytes)?,
        Form::Svg => picture::svg(loss, &caption(), &mut bytes)?,
        Form::Html => picture::html(loss, &caption(), &mut bytes)?,
    }
    if output == Path::new("-") {
        out.write_all(&bytes).and_then(|()| out.flush()).context("failed to write the loss account")?;
    } else {
        let write = |mut file: kymo_files::Export| file.write_all(&bytes).and_then(|()| file.finish());
        write(open::export(output)?).with_context(|| format!("failed to write {}", output.display()))?;
    }
    Ok(exit::of_reading(recording, &loss.problems))
}
