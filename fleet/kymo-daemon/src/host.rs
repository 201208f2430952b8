//! What this machine says of itself and of its processes.
use kymo_data::cgroup_of_process;
use kymo_dataset::ProcessNames;
use std::fs::File;
use std::io::Read;

/// The file with the number of the machine, which systemd makes once.
const MACHINE_ID: &str = "/etc/machine-id";
/// What is read of a file of /proc.
const MOST_BYTES: u64 = 64 << 10;

/// What tells this machine from all others, if it has that. It is secret: only hashes of it leave
/// the machine.
pub(crate) fn identity() -> Option<String> {
    let text = std::fs::read_to_string(MACHINE_ID).ok()?;
    Some(format!("machine-id {}", text.trim())).filter(|_| text.trim().len() == 32)
}

/// The names of a process that runs.
pub(crate) fn names_of_process(pid: i32) -> ProcessNames {
    let mut text = Vec::new();
    let read = File::open(format!("/proc/{pid}/cgroup"))
        .and_then(|file| file.take(MOST_BYTES).read_to_end(&mut text));
    match (read, cgroup_of_process(&String::from_utf8_lossy(&text))) {
        (Ok(_), Some(path)) => ProcessNames::of_cgroup(path),
        _ => ProcessNames::default(),
    }
}
