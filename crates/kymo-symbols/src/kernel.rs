//! The kernel: an image with symbols if there is one that fits, else its symbol list.

use kymo_files::Input;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::elf::{ElfFile, build_id_of_notes, same_build_id};
use super::elf_symbols::{self, AddressSpace};
use super::kallsyms::{self, Kallsyms};
use super::locate;
use super::options::{Note, SymbolOptions};
use super::perf_map;
use super::table::{SymbolTable, TableBuilder};
use super::user::Loaded;

const RUNNING: &str = "/proc/kallsyms";
/// No kernel's list is longer; a file given by mistake may be.
const LARGEST_LIST: u64 = 64 << 20;

pub(super) fn load_kallsyms(options: &SymbolOptions, path: &Path) -> Result<Kallsyms, Note> {
    let failed = |error: std::io::Error| {
        Note(format!("failed to read the kernel's symbols {}: {error}", path.display()))
    };
    let file = match kymo_files::open_input(path).map_err(failed)? {
        Input::File(file) | Input::Stream(file) => file,
        Input::Folder(_) => return Err(failed(std::io::ErrorKind::IsADirectory.into())),
    };
    let mut text = Vec::with_capacity(12 << 20);
    file.take(LARGEST_LIST).read_to_end(&mut text).map_err(failed)?;
    // The kernel's own list is what it is; of any other only as much is read as its table may take.
    if !is_running(path) {
        let room = options.budget.reserve(0).map_or(0, |charge| charge.room_left());
        perf_map::cut_to(&mut text, room);
    }
    let list = kallsyms::parse(text, options.demangle && options.demangle_kernel);
    if list.hidden {
        return Err(Note(format!(
            "{} shows only zeros: the kernel hides its addresses from this user; run as root or set \
             /proc/sys/kernel/kptr_restrict to 0",
            path.display()
        )));
    }
    Ok(list)
}

/// The symbol list that belongs to the kernel with this build id.
pub(super) fn find_kallsyms(options: &SymbolOptions, build_id: Option<&[u8]>) -> Result<PathBuf, Note> {
    if let Some(path) = &options.kallsyms {
        return Ok(path.clone());
    }
    if build_id.is_none()
        && let Some(why) = options.kernel_refusal()
    {
        return Err(why);
    }
    let running = std::fs::read("/sys/kernel/notes").ok().and_then(|notes| build_id_of_notes(&notes));
    let fits = match (build_id, &running) {
        (Some(recorded), Some(running)) => same_build_id(recorded, running),
        _ => true,
    };
    if fits {
        return Ok(RUNNING.into());
    }
    let id = build_id.unwrap_or_default();
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let cached = [
        locate::in_build_id_cache(options, id, "kallsyms"),
        locate::build_id_cache(options).map(|dir| dir.join("[kernel.kallsyms]").join(&hex).join("kallsyms")),
    ];
    cached.into_iter().flatten().find(|path| path.is_file()).ok_or_else(|| {
        Note(format!(
            "the recorded kernel ({hex}) is not the running one, and the build-id cache has no copy of its symbols; \
             give them with --kallsyms or --vmlinux"
        ))
    })
}

/// Whether a symbol list is that of the running kernel.
pub(super) fn is_running(list: &Path) -> bool {
    list == Path::new(RUNNING)
}

/// The kernel's own table, moved to where the recorded kernel lay.
pub(super) fn table_of(list: &Kallsyms, reference: Option<&(String, u64)>) -> SymbolTable {
    let mut table = list.kernel.clone();
    match moved_by(list, reference) {
        0 => {}
        by => table.shift(by),
    }
    table
}

/// How much further up the recorded kernel lay than that of a symbol list.
pub(super) fn moved_by(list: &Kallsyms, reference: Option<&(String, u64)>) -> u64 {
    let moved = reference.and_then(|(name, at)| Some(at.wrapping_sub(*list.references.get(name.as_str())?)));
    moved.unwrap_or(0)
}

/// The table of a kernel image: the one that was asked for, or one of the usual ones whose build id is the
/// recorded kernel's. Nothing if the symbol list has to serve.
pub(super) fn load_vmlinux(
    options: &SymbolOptions,
    build_id: Option<&[u8]>,
    reference: Option<&(String, u64)>,
) -> Option<Loaded> {
    // perf prefers a list that the user named.
    if options.kallsyms.is_some() {
        return None;
    }
    if let Some(path) = &options.vmlinux {
        return Some(match ElfFile::open(path, &options.budget) {
            Ok(elf) => load_image(options, elf, reference),
            Err(error) => Note(error.to_string()).into(),
        });
    }
    let elf = match build_id {
        Some(build_id) => find_image(options, build_id)?,
        None => image_of_release(options)?,
    };
    Some(load_image(options, elf, reference))
}

/// Whether a kernel's names come from an image.
pub(super) fn has_image(options: &SymbolOptions, build_id: Option<&[u8]>) -> bool {
    let is_found = || match build_id {
        Some(wanted) => find_image(options, wanted).is_some(),
        None => image_of_release(options).is_some(),
    };
    options.kallsyms.is_none() && (options.vmlinux.is_some() || is_found())
}

/// Where images of a release are installed.
fn installed_images(release: &str) -> [String; 5] {
    [
        format!("/boot/vmlinux-{release}"),
        format!("/usr/lib/debug/boot/vmlinux-{release}"),
        format!("/lib/modules/{release}/build/vmlinux"),
        format!("/usr/lib/debug/lib/modules/{release}/vmlinux"),
        format!("/usr/lib/debug/boot/vmlinux-{release}.debug"),
    ]
}

/// The image of another kernel in the copy of its machine's files, which the user vouches for.
fn image_of_release(options: &SymbolOptions) -> Option<ElfFile> {
    options.symfs.as_ref()?;
    let images = installed_images(options.machine.other_release()?);
    let mut paths = images.iter().map(|path| locate::below_root(options, Path::new(path)));
    let has_symbols = |elf: &ElfFile| elf_symbols::symtab(elf).is_some();
    paths.find_map(|path| ElfFile::open(&path, &options.budget).ok().filter(has_symbols))
}

/// The image of the kernel with this build id, at one of the usual places.
fn find_image(options: &SymbolOptions, wanted: &[u8]) -> Option<ElfFile> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut paths: Vec<PathBuf> = locate::in_debug_dirs(options, wanted);
    paths.extend(locate::in_build_id_cache(options, wanted, "elf"));
    paths.extend(locate::in_build_id_cache(options, wanted, "vmlinux"));
    let releases = [Some(release.trim()), options.machine.other_release()];
    let installed = releases.into_iter().flatten().flat_map(installed_images);
    for path in std::iter::once("/boot/vmlinux".to_owned()).chain(installed) {
        paths.push(locate::below_root(options, Path::new(&path)));
    }
    if let Some((first, rest)) = locate::split_build_id(wanted) {
        paths.push(format!("/usr/lib/debug/.build-id/{first}/{rest}.debug").into());
    }
    let fits = |elf: &ElfFile| {
        elf_symbols::symtab(elf).is_some() && elf.build_id().is_some_and(|own| same_build_id(wanted, &own))
    };
    paths.iter().find_map(|path| ElfFile::open(path, &options.budget).ok().filter(fits))
}

fn load_image(options: &SymbolOptions, elf: ElfFile, reference: Option<&(String, u64)>) -> Loaded {
    let mut builder = TableBuilder::new(Vec::new(), options.demangle && options.demangle_kernel);
    elf_symbols::add_symbols(&mut builder, &elf, &elf, AddressSpace::Linked);
    let linked = reference.and_then(|(name, recorded)| Some((builder.address_of(name)?, *recorded)));
    let mut table = builder.finish();
    let delta = linked.map_or(0, |(linked, recorded)| recorded.wrapping_sub(linked));
    table.shift(delta);
    Loaded { table, symbols: Some(Arc::new(elf)), delta, ..Loaded::default() }
}
