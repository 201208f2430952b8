//! `--dry-run`: what would be recorded, and whether everything that it needs is there.
use crate::config::{Config, Protocol, Stacks};
use crate::store::writable;
use crate::{recording, run};
use anyhow::bail;
use std::io::Write;

/// Prints what would be done, each line with what is wrong with it.
///
/// # Errors
/// The number of things that are wrong.
pub(crate) fn run(config: &Config) -> anyhow::Result<()> {
    let mut report = Report { lines: Vec::new(), wrong: 0 };
    let stacks = match config.stacks {
        Stacks::Unwound => "stacks by unwind data",
        Stacks::FramePointers => "stacks along frame pointers",
        Stacks::None => "no stacks",
    };
    let waits = if config.off_cpu { ", and the time off the CPU" } else { "" };
    let text = format!("{} at {} Hz on every CPU, {stacks}{waits}", recording::EVENT, config.frequency);
    let opened = recording::plan(config).and_then(recording::open);
    report.line("record", &text, opened.map(drop));
    report.line("add up", &format!("every {} s", config.interval_s), Ok(()));
    let spool = config.state.join("spool");
    let text = format!("{}, at most {} bytes", spool.display(), config.max_spool.0);
    report.line("spool", &text, writable(&spool));
    let receivers = run::receivers(config)?;
    if let Some(store) = &receivers.store {
        match store.probe() {
            Ok(false) => report.not_tried("dataset", store.name()),
            tried => report.line("dataset", store.name(), tried.map(drop)),
        }
    }
    if let (Some(collector), Some(otlp)) = (&receivers.collector, &config.otlp) {
        let protocol = match otlp.protocol {
            Protocol::Http => "HTTP",
            Protocol::Grpc => "gRPC",
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answer = runtime.block_on(collector.probe());
        report.line("collector", &format!("{} by {protocol}", collector.name()), answer);
    }
    if let Some(address) = config.health_address()? {
        let bound = std::net::TcpListener::bind(address).map(drop).map_err(|error| error.to_string());
        report.line("health", &format!("http://{address}/"), bound);
    }
    let mut stdout = std::io::stdout().lock();
    for line in &report.lines {
        writeln!(stdout, "{line}")?;
    }
    match report.wrong {
        0 => Ok(()),
        1 => bail!("1 thing is not as it has to be"),
        wrong => bail!("{wrong} things are not as they have to be"),
    }
}

struct Report {
    lines: Vec<String>,
    wrong: usize,
}

impl Report {
    fn line(&mut self, name: &str, text: &str, state: Result<(), String>) {
        let state = match state {
            Ok(()) => "ok".to_owned(),
            Err(reason) => {
                self.wrong += 1;
                reason
            }
        };
        self.lines.push(format!("{name:<10} {text}: {state}"));
    }

    /// What is right as far as its words go.
    fn not_tried(&mut self, name: &str, text: &str) {
        self.lines.push(format!("{name:<10} {text}: not tried"));
    }
}
