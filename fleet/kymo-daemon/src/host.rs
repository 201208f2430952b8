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

/// The code that is loaded into the kernel, name and address of each module: what its list of
/// symbols was read for. Empty where the kernel has no modules.
pub(crate) fn kernel_modules() -> Vec<String> {
    let mut text = Vec::new();
    // No more than is read of it is compared.
    _ = File::open("/proc/modules").and_then(|file| file.take(MOST_BYTES).read_to_end(&mut text));
    modules_of(&String::from_utf8_lossy(&text))
}

/// Of the text of `/proc/modules` (proc_modules(5)): name, size, users, who they are, state, address.
fn modules_of(text: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Some(format!("{} {}", words.first()?, words.get(5)?))
    };
    text.lines().filter_map(of_line).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that modules are known by name and address; who uses them changes all the time.
    #[test]
    fn modules_by_name_and_address() {
        let modules = |users| {
            modules_of(&format!(
                "xfs 2043904 {users} - Live 0xffffffffc0a00000\nnf_tables 376832 0 - Live 0xffffffffc0900000 (E)\n"
            ))
        };
        assert_eq!(modules(1), ["xfs 0xffffffffc0a00000", "nf_tables 0xffffffffc0900000"]);
        assert_eq!(modules(1), modules(2));
        assert!(modules_of("").is_empty());
    }
}
