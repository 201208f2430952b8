//! The vdso: code that the kernel maps into every process, and that no file holds.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::elf::{ElfFile, same_build_id};
use super::locate;
use super::options::{Note, SymbolOptions};
use super::user::{self, Loaded};

/// Loads the vdso's symbols: this machine's own, or the copy in the build-id cache if the recorded one differs.
pub(super) fn load(options: &SymbolOptions, build_id: Option<&[u8]>) -> Loaded {
    let fits = |elf: &ElfFile| match (build_id, elf.build_id()) {
        _ if options.other_machine(elf.machine).is_some() => false,
        (Some(wanted), Some(own)) => same_build_id(wanted, &own),
        (Some(_), None) => false,
        // It belongs to its kernel.
        (None, _) => options.kernel_refusal().is_none(),
    };
    if let Some(elf) = own().filter(fits) {
        return user::load_image(options, elf);
    }
    let cached = build_id.and_then(|id| locate::in_build_id_cache(options, id, "vdso"));
    if let Some(elf) = cached.and_then(|path| ElfFile::open(&path, &options.budget).ok()).filter(fits) {
        return user::load_image(options, elf);
    }
    let why = "[vdso]: this kernel's vdso is not the recorded one, and the build-id cache has no copy: no names for it";
    Note(why.to_owned()).into()
}

/// The vdso of this process, read through `/proc/self/mem`.
fn own() -> Option<ElfFile> {
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let range = maps.lines().find(|line| line.ends_with("[vdso]"))?.split(' ').next()?;
    let (start, end) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let size = u64::from_str_radix(end, 16).ok()?.checked_sub(start)?;
    let mut bytes = vec![0; usize::try_from(size.min(1 << 20)).ok()?];
    File::open("/proc/self/mem").ok()?.read_exact_at(&mut bytes, start).ok()?;
    ElfFile::from_bytes(Path::new("[vdso]"), Arc::from(bytes)).ok()
}
