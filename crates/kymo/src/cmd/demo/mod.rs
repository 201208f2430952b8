//! `kymo demo`: records a program that is part of kymo, and shows the report and the page.

mod workload;

use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

/// The recording and the page, in the current folder.
const RECORDING: &str = "kymo-demo.data";
const PAGE: &str = "kymo-demo.html";

/// Record a bundled program, and show its report and its page: the first minute with kymo.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// How many seconds the program runs
    #[arg(value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Be that program
    #[arg(long, hide = true)]
    workload: bool,
}

/// Runs kymo with these words, as a user would; what is printed stands between.
fn step(program: &Path, words: &[&str], shown: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "$ {shown}")?;
    let status = Command::new(program).args(words).status();
    let status = status.with_context(|| format!("failed to run {}", program.display()))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}; `kymo doctor` says what this machine permits");
    }
    writeln!(std::io::stdout().lock())?;
    Ok(())
}

/// Runs the verb.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    if args.workload {
        let (customers, checksum) = workload::run(Duration::from_secs(args.seconds));
        writeln!(std::io::stdout().lock(), "{customers} customers served, checksum {checksum:x}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let program = std::env::current_exe().context("failed to find kymo's own program")?;
    let name = program.to_str().context("the path of kymo's own program is no text")?;
    let seconds = args.seconds.to_string();
    let workload = ["record", "-q", "-o", RECORDING, "--", name, "demo", "--workload", &seconds];
    step(&program, &workload, &format!("kymo record -o {RECORDING} -- ./demo"))?;
    let report =
        ["--no-pager", "report", "-i", RECORDING, "--no-children", "-g", "none", "--percent-limit", "1"];
    step(&program, &report, &format!("kymo report -i {RECORDING} --no-children -g none --percent-limit 1"))?;
    let page = ["report", "-q", "-i", RECORDING, "--html", PAGE];
    step(&program, &page, &format!("kymo report -i {RECORDING} --html {PAGE}"))?;
    writeln!(
        std::io::stdout().lock(),
        "{PAGE} has the flame graph, the table and a timeline of each thread: open it in a browser.\nYour own program: kymo record -- ./program, then kymo report"
    )?;
    Ok(ExitCode::SUCCESS)
}
