//! perf as the judge: a recording made by hand that holds one sample per address, and what perf calls each of them.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kymo_symbols::{ModuleKey, SymbolOptions, SymbolStore};

const PERF_RECORD_MMAP: u32 = 1;
const PERF_RECORD_SAMPLE: u32 = 9;
const MISC_KERNEL: u16 = 1;
const MISC_USER: u16 = 2;
/// Where user modules are mapped in the made recording.
pub(crate) const BASE: u64 = 0x10_0000_0000;

/// What is mapped in the made recording.
pub(crate) enum Mapped<'a> {
    File(&'a Path),
    Kernel,
    Vdso,
    /// Anonymous memory of this process number.
    Jit(i32),
}

/// Writes a recording with one mapping and one sample per address (file offsets, or absolute for the kernel).
fn write_recording(path: &Path, mapped: &Mapped<'_>, addresses: &[u64]) {
    let pid = if let Mapped::Jit(pid) = mapped { *pid } else { 4711 };
    let (name, start, len, pgoff, misc, owner): (&[u8], u64, u64, u64, u16, i32) = match mapped {
        Mapped::File(file) => (file.as_os_str().as_bytes(), BASE, 1 << 36, 0, MISC_USER, pid),
        Mapped::Kernel => {
            let text = kernel_text().expect("the kernel's text address");
            (b"[kernel.kallsyms]_text", text, u64::MAX - text, text, MISC_KERNEL, -1)
        }
        Mapped::Vdso => (b"[vdso]", BASE, 8192, 0, MISC_USER, pid),
        Mapped::Jit(_) => (b"//anon", BASE, 1 << 36, 0, MISC_USER, pid),
    };
    let mut records: Vec<u8> = Vec::new();
    let mut body: Vec<u8> = Vec::new();
    body.extend(owner.to_le_bytes());
    body.extend(if owner < 0 { 0 } else { owner }.to_le_bytes());
    for word in [start, len, pgoff] {
        body.extend(word.to_le_bytes());
    }
    body.extend(name);
    body.resize((body.len() + 8) & !7, 0);
    let mut put = |kind: u32, misc: u16, body: &[u8]| {
        records.extend(kind.to_le_bytes());
        records.extend(misc.to_le_bytes());
        records.extend((body.len() as u16 + 8).to_le_bytes());
        records.extend(body);
    };
    put(PERF_RECORD_MMAP, misc, &body);
    for &address in addresses {
        let ip = if matches!(mapped, Mapped::File(_) | Mapped::Vdso) { BASE + address } else { address };
        let mut body = ip.to_le_bytes().to_vec();
        body.extend(pid.to_le_bytes());
        body.extend(pid.to_le_bytes());
        put(PERF_RECORD_SAMPLE, misc, &body);
    }
    // The attribute: software event 0 (cpu-clock), samples of address and thread.
    let mut attr = vec![0u8; 128];
    attr[0] = 1;
    attr[4] = 128;
    attr[16] = 1;
    attr[24] = 3;
    let mut file = b"PERFILE2".to_vec();
    let attr_at = 104u64;
    let data_at = attr_at + 128 + 16;
    for word in [104, 128 + 16, attr_at, 128 + 16, data_at, records.len() as u64, 0, 0, 0, 0, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(attr);
    file.extend([0; 16]);
    file.extend(records);
    std::fs::File::create(path).and_then(|mut f| f.write_all(&file)).expect("the made recording");
}

/// Where the running kernel's text starts.
pub(crate) fn kernel_text() -> Option<u64> {
    let list = std::fs::read_to_string("/proc/kallsyms").ok()?;
    let line = list.lines().find(|line| line.ends_with(" _text"))?;
    u64::from_str_radix(line.split(' ').next()?, 16).ok().filter(|&address| address != 0)
}

/// What perf calls each address: name and distance from its start.
pub(crate) fn perf_names(mapped: &Mapped<'_>, addresses: &[u64], dir: &Path) -> Vec<Option<(String, u64)>> {
    let data = dir.join("made.data");
    write_recording(&data, mapped, addresses);
    let output = kymo_testing::without_user(&mut Command::new("perf"))
        .args([OsStr::new("script"), OsStr::new("-f"), OsStr::new("-i"), data.as_os_str()])
        .args(["-F", "ip,sym,symoff"])
        .env("HOME", dir)
        .output()
        .expect("perf script");
    let text = String::from_utf8_lossy(&output.stdout);
    let names: Vec<_> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let (_, symbol) = line.trim_start().split_once(' ').unwrap_or((line, ""));
            let symbol = symbol.trim();
            if symbol == "[unknown]" {
                return None;
            }
            let (name, offset) = symbol.rsplit_once("+0x").unwrap_or((symbol, "0"));
            Some((name.to_owned(), u64::from_str_radix(offset, 16).unwrap_or(u64::MAX)))
        })
        .collect();
    assert_eq!(names.len(), addresses.len(), "{}", String::from_utf8_lossy(&output.stderr));
    names
}

/// Addresses that try every symbol of a table (its edges and its middle) and everything between.
pub(crate) fn probes(key: &ModuleKey, store: &SymbolStore, limit: usize, extent: u64) -> Vec<u64> {
    let module = store.get(key);
    let mut probes = HashSet::new();
    for symbol in module.table().iter() {
        let size = symbol.end.wrapping_sub(symbol.start);
        for address in [
            symbol.start.wrapping_sub(1),
            symbol.start,
            symbol.start.wrapping_add(1),
            symbol.start.wrapping_add(size / 2),
            symbol.end.wrapping_sub(1),
            symbol.end,
        ] {
            probes.insert(address);
        }
    }
    let step = (extent / 20_000).max(1);
    probes.extend((0..extent).step_by(step as usize));
    let mut probes: Vec<u64> =
        probes.into_iter().filter(|&address| extent == 0 || address < extent).collect();
    probes.sort_unstable();
    if probes.len() > limit {
        let step = probes.len().div_ceil(limit);
        probes = probes.into_iter().step_by(step).collect();
    }
    probes
}

/// Where the running kernel has symbols that neither tool keeps; `None` for files.
fn left_out(mapped: &Mapped<'_>) -> Option<Vec<u64>> {
    let Mapped::Kernel = mapped else { return None };
    let list = std::fs::read_to_string("/proc/kallsyms").expect("the kernel's list");
    let starts = list.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (address, kind) = (words.next()?, words.next()?);
        let is_left_out = !matches!(kind, "t" | "T" | "w" | "W" | "d" | "D" | "b" | "B" | "a" | "A");
        is_left_out.then(|| u64::from_str_radix(address, 16).ok())?
    });
    Some(starts.collect())
}

/// Whether perf names an address of the kernel by a symbol that ends before it: a marker of the
/// linker, the last code before a gap, or one before a symbol that is not kept.
fn is_padding(address: u64, theirs: Option<&(String, u64)>, left_out: Option<&[u64]>) -> bool {
    let (Some((name, distance)), Some(left_out)) = (theirs, left_out) else { return false };
    let is_marker = name.ends_with("_text_end")
        || name.starts_with("__stop_")
        || ["_etext", "_einittext", "_edata", "_end", "__bss_stop", "__end_rodata"].contains(&&name[..]);
    let start = address - distance;
    let is_behind = *distance >= 4096 || is_marker;
    *distance > 0 && (is_behind || left_out.iter().any(|other| (start + 1..=address).contains(other)))
}

/// Compares all addresses and fails with the first few that differ.
pub(crate) fn compare(
    what: &str,
    store: &SymbolStore,
    key: &ModuleKey,
    mapped: &Mapped<'_>,
    addresses: &[u64],
    dir: &Path,
) {
    let module = store.get(key);
    let theirs = perf_names(mapped, addresses, dir);
    let left_out = left_out(mapped);
    let mut wrong = Vec::new();
    let mut named = 0;
    for (&address, theirs) in addresses.iter().zip(&theirs) {
        let ours = module.find(address).map(|symbol| (symbol.name.to_owned(), address - symbol.start));
        named += usize::from(theirs.is_some());
        // perf's distance from the start of a symbol without a length is not a number that means anything.
        let empty = module.find(address).is_some_and(|symbol| symbol.start == symbol.end);
        let name = |found: &Option<(String, u64)>| found.as_ref().map(|(name, _)| name.clone());
        // perf 6.1 counts stubs in the order of their relocations: objdump is their judge.
        let is_stub =
            |found: &Option<(String, u64)>| found.as_ref().is_some_and(|(name, _)| name.ends_with("@plt"));
        if is_stub(&ours) || is_stub(theirs) {
            continue;
        }
        // Code of `.plt` that is no stub is `.plt`'s in kymo and newer perf. perf 6.1 gives it, and what is left between
        // sections of stubs, to nobody or to `_init`, which comes before and has no length.
        let named =
            |found: &Option<(String, u64)>, name: &str| found.as_ref().is_some_and(|found| found.0 == name);
        let after_init = theirs.is_none() || named(theirs, "_init");
        if after_init && (named(&ours, ".plt") || ours.is_none()) {
            continue;
        }
        if ours.is_none() && is_padding(address, theirs.as_ref(), left_out.as_deref()) {
            continue;
        }
        if ours != *theirs && !(empty && name(&ours) == name(theirs)) {
            wrong.push(format!("{address:#x}\n  perf {theirs:?}\n  kymo {ours:?}"));
        }
    }
    eprintln!("{what}: {} addresses, {named} with a name, {} differ", addresses.len(), wrong.len());
    assert!(
        wrong.is_empty(),
        "{what}: {} of {} addresses differ from perf; notes: {:?}\n{}",
        wrong.len(),
        addresses.len(),
        module.notes(),
        wrong[..wrong.len().min(12)].join("\n")
    );
}

/// Compares a whole file with perf.
pub(crate) fn compare_file(what: &str, path: &Path, limit: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    // perf names nothing in programs without symbols.
    let buildid_dir = Some(dir.path().join(".debug"));
    let options = SymbolOptions { buildid_dir, entry_names: false, ..SymbolOptions::default() };
    let store = SymbolStore::new(options);
    let key = ModuleKey::file(PathBuf::from(path), None);
    let extent = std::fs::metadata(path).expect("the file").len();
    let addresses = probes(&key, &store, limit, extent);
    compare(what, &store, &key, &Mapped::File(path), &addresses, dir.path());
}
