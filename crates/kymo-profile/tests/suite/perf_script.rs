//! What `perf script` says about a recording: the oracle of the unwinder.
use kymo_symbols::unwind::AddressSpace;
use kymo_testing::perf_command;
use std::collections::HashMap;
use std::path::Path;

/// User frames by thread and time; samples of one thread at one time are taken from the end in the file's order.
pub(crate) type Stacks = HashMap<(i32, u64), Vec<Vec<u64>>>;

/// The user frames of all samples by thread and time, as perf shows them. `None` when perf is missing or fails.
pub(crate) fn stacks(path: &Path) -> Option<Stacks> {
    let output = perf_command("perf")
        .args(["script", "--no-inline", "--ns", "-F", "tid,time,ip", "-i"])
        .arg(path)
        .output()
        .ok()
        .filter(|o| o.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut stacks = Stacks::new();
    let mut key = (0, 0);
    for line in text.lines().map(str::trim) {
        if let Some((tid, time)) = line.strip_suffix(':').and_then(|l| l.split_once(char::is_whitespace)) {
            let (seconds, nanoseconds) = time.trim().split_once('.')?;
            key = (
                tid.parse().ok()?,
                seconds.parse::<u64>().ok()? * 1_000_000_000 + nanoseconds.parse::<u64>().ok()?,
            );
            stacks.entry(key).or_default().insert(0, Vec::new());
        } else if let Ok(ip) = u64::from_str_radix(line, 16)
            && ip < 0xffff_8000_0000_0000
        {
            stacks.get_mut(&key)?.first_mut()?.push(ip);
        }
    }
    Some(stacks)
}

/// perf shows an address as its offset in the mapped file, where there is one.
pub(crate) fn shown(space: &AddressSpace, avma: u64) -> u64 {
    space.find(avma).map_or(avma, |m| avma - m.start + m.pgoff)
}

/// How two walks of one stack relate.
pub(crate) fn compare(ours: &[u64], theirs: &[u64]) -> &'static str {
    if ours == theirs {
        "equal"
    } else if ours.starts_with(theirs) {
        "perf stops earlier"
    } else if theirs.starts_with(ours) {
        "perf goes further"
    } else {
        "different"
    }
}
