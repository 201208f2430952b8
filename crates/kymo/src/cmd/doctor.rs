//! `kymo doctor`: what this machine permits, and the one command that permits more.

use std::io::{self, Write};
use std::process::ExitCode;

use kymo_perf::caps::{self, Capability, Caps, TracefsState};
use kymo_perf::checklist::{Check, ThisMachine, checklist};
use serde_json::json;

use kymo_cli::terminal;

/// The shape of `--json`; raised when a field changes its meaning or goes.
const SCHEMA_VERSION: u32 = 1;

/// Say what this machine permits, and how to permit more
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Prints the list on stdout. A machine that permits nothing is a finding, not a failure: the exit status is 0.
pub(crate) fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let caps = caps::probe();
    let checks = checklist(&caps, &ThisMachine);
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        writeln!(out, "{}", kymo_profile::text::json_pretty(&as_json(&caps, &checks))?)?;
    } else {
        write_text(&mut out, &caps, &checks)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The release of the running kernel.
fn kernel() -> String {
    let name = rustix::system::uname();
    format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy())
}

fn write_text(out: &mut dyn Write, caps: &Caps, checks: &[Check]) -> io::Result<()> {
    let look = terminal::look();
    let paint = |code: &'static str| if look.color { code } else { "" };
    let (green, red, dim, plain) = (paint("\x1b[32m"), paint("\x1b[31m"), paint("\x1b[2m"), paint("\x1b[0m"));
    let place = caps.container.as_ref().map_or(String::new(), |kind| format!(", in a {kind} container"));
    writeln!(out, "{}, {} CPUs, as {}{place}", kernel(), caps.cpus.cpus.len(), who(caps))?;
    writeln!(out)?;
    for check in checks {
        let (colour, word) = if check.ok { (green, "yes") } else { (red, "no ") };
        let detail = if check.detail.is_empty() { String::new() } else { format!(": {}", check.detail) };
        writeln!(out, "  {colour}{word}{plain}  {}{detail}", check.name)?;
        if let Some(command) = &check.command {
            writeln!(out, "         {command}")?;
        } else if let Some(hint) = &check.hint {
            writeln!(out, "         {dim}{hint}{plain}")?;
        }
    }
    writeln!(out)?;
    writeln!(out, "{dim}settings: {}{plain}", settings(caps).join(", "))
}

fn who(caps: &Caps) -> String {
    match (caps.euid, caps.user_namespace) {
        (0, true) => "root of a user namespace (an ordinary user outside)".into(),
        (0, false) => "root".into(),
        (uid, _) if caps.perfmon() => format!("user {uid} with privileges"),
        (uid, _) => format!("user {uid}"),
    }
}

/// The kernel's settings that decide, as `name value`.
fn settings(caps: &Caps) -> Vec<String> {
    let number = |name: &str, value: Option<i64>| value.map(|value| format!("{name} {value}"));
    let small = |value: Option<i32>| value.map(i64::from);
    let large = |value: Option<u64>| value.and_then(|value| i64::try_from(value).ok());
    [
        number("perf_event_paranoid", small(caps.paranoid)),
        number("kptr_restrict", small(caps.kptr_restrict)),
        number("perf_event_mlock_kb", large(caps.mlock_kib)),
        number("perf_event_max_sample_rate", large(caps.max_sample_rate)),
        number("perf_event_max_stack", caps.max_stack.map(i64::from)),
        number("ptrace_scope", small(caps.ptrace_scope)),
        number("open files", large(caps.nofile_soft)),
        number("locked KiB", large(caps.memlock_bytes.map(|bytes| bytes >> 10))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn as_json(caps: &Caps, checks: &[Check]) -> serde_json::Value {
    let capabilities: Vec<&str> = Capability::ALL
        .into_iter()
        .filter(|capability| caps.has(*capability))
        .map(Capability::name)
        .collect();
    let checks: Vec<serde_json::Value> = checks
        .iter()
        .map(|check| {
            json!({
                "id": check.id,
                "name": check.name,
                "ok": check.ok,
                "detail": check.detail,
                "hint": check.hint,
                "command": check.command,
            })
        })
        .collect();
    json!({
        "schema": "kymo-doctor",
        "schema_version": SCHEMA_VERSION,
        "kernel": kernel(),
        "cpus": caps.cpus.cpus.len(),
        "euid": caps.euid,
        "capabilities": capabilities,
        "user_namespace": caps.user_namespace,
        "no_new_privileges": caps.no_new_privileges,
        "seccomp": caps.seccomp,
        "container": caps.container,
        "settings": {
            "perf_event_paranoid": caps.paranoid,
            "kptr_restrict": caps.kptr_restrict,
            "perf_event_mlock_kb": caps.mlock_kib,
            "perf_event_max_sample_rate": caps.max_sample_rate,
            "perf_event_max_stack": caps.max_stack,
            "ptrace_scope": caps.ptrace_scope,
            "unprivileged_bpf_disabled": caps.unprivileged_bpf_disabled,
            "nofile_soft": caps.nofile_soft,
            "nofile_hard": caps.nofile_hard,
            "memlock_bytes": caps.memlock_bytes,
            "rtprio": caps.rtprio,
        },
        "core_pmus": caps.core_pmus,
        "tracefs": match &caps.tracefs { TracefsState::Readable(path) => Some(path.to_string_lossy()), TracefsState::Refused(_) => None },
        "cgroup2": caps.cgroup2.as_ref().map(|(path, writable)| json!({ "path": path.to_string_lossy(), "writable": writable })),
        "checks": checks,
    })
}
