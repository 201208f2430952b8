//! The libraries of a program that has not started, found as the dynamic linker will find them.
//!
//! Where it looks for each name: the paths of LD_PRELOAD as they are; then DT_RPATH of who needs it (without DT_RUNPATH), LD_LIBRARY_PATH,
//! DT_RUNPATH, the cache `/etc/ld.so.cache`, and the folders that are always there. What is opened later (dlopen) cannot be known.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::super::budget::Budget;
use super::super::elf::{ElfFile, Fields};
use super::module::ProbeModule;

/// What the environment of the program adds to where its libraries are looked for.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// `LD_LIBRARY_PATH`.
    pub library_path: Vec<PathBuf>,
    /// `LD_PRELOAD`.
    pub preload: Vec<PathBuf>,
}

const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
const SHT_DYNAMIC: u32 = 6;
/// More libraries than a program has.
const MOST: usize = 4096;
/// More folders to look in than a program names.
const MOST_FOLDERS: usize = 64;
/// Files that are tried; a hostile program names thousands of libraries in thousands of folders.
const MOST_TRIED: usize = 1 << 16;
const CACHE_BYTES: u64 = 64 << 20;

/// The paths of all libraries that the program will have when it starts, the program not among them.
pub fn libraries(program: &ProbeModule, search: &Search) -> Vec<PathBuf> {
    let cache = std::fs::metadata("/etc/ld.so.cache")
        .ok()
        .filter(|meta| meta.len() <= CACHE_BYTES)
        .and_then(|_| std::fs::read("/etc/ld.so.cache").ok())
        .unwrap_or_default();
    let cache = cached(&cache);
    let (mut found, mut known) = (Vec::<PathBuf>::new(), HashSet::new());
    let (is_64, machine) = (program.elf().is_64, program.elf().machine);
    let budget = Budget::default();
    let fits = |path: &Path| {
        ElfFile::open(path, &budget).ok().filter(|elf| elf.is_64 == is_64 && elf.machine == machine)
    };
    let mut wanted: Vec<NeededLibrary> =
        search.preload.iter().map(|path| (path.clone().into_os_string(), Rc::default())).collect();
    wanted.extend(needed(program.elf(), program.file(), search));
    let (mut at, mut tried) = (0, 0);
    while let Some((name, folders)) = wanted.get(at).cloned() {
        at += 1;
        if !known.insert(name.clone()) || found.len() >= MOST || tried >= MOST_TRIED {
            continue;
        }
        let always = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"].map(PathBuf::from);
        let candidates: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
            vec![PathBuf::from(&name)]
        } else {
            let listed = cache.iter().filter(|(known, _)| *known == name).map(|(_, path)| path.clone());
            let beside = |folder: &PathBuf| folder.join(&name);
            folders.iter().map(beside).chain(listed).chain(always.iter().map(beside)).collect()
        };
        tried += candidates.len();
        let Some((path, elf)) = candidates.into_iter().find_map(|path| fits(&path).map(|elf| (path, elf)))
        else {
            continue;
        };
        // What is mapped has the name of the file itself, not of a link to it.
        let path = path.canonicalize().unwrap_or(path);
        wanted.extend(needed(&elf, &path, search).into_iter().take(MOST_TRIED.saturating_sub(wanted.len())));
        if !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

/// The name of a library that is needed, with the folders that the file which needs it has to look in.
type NeededLibrary = (OsString, Rc<[PathBuf]>);

fn needed(elf: &ElfFile, path: &Path, search: &Search) -> Vec<NeededLibrary> {
    let Some(section) = elf.sections.iter().find(|section| section.kind == SHT_DYNAMIC) else {
        return Vec::new();
    };
    let Some(bytes) = elf.read_section(section) else { return Vec::new() };
    let word = if elf.is_64 { 8 } else { 4 };
    let entries: Vec<(u64, u64)> = bytes
        .chunks_exact(2 * word)
        .map(|entry| (Fields(entry).word(elf.is_64, 0, 0), Fields(entry).word(elf.is_64, 8, 4)))
        .take_while(|&(tag, _)| tag != 0)
        .take(1 << 16)
        .collect();
    let table = entries.iter().find(|(tag, _)| *tag == DT_STRTAB).map(|&(_, address)| address);
    let strings = elf
        .sections
        .get(section.link as usize)
        .filter(|strings| table.is_none_or(|address| address == strings.addr))
        .and_then(|strings| elf.read_section(strings))
        .unwrap_or_default();
    let text = |at: u64| text_at(&strings, usize::try_from(at).ok()?);
    let origin =
        path.canonicalize().ok().and_then(|path| Some(path.parent()?.to_owned())).unwrap_or_default();
    let folders = |wanted: u64| -> Vec<PathBuf> {
        let paths = entries.iter().filter(|(tag, _)| *tag == wanted).filter_map(|&(_, at)| text(at));
        let each = paths.flat_map(|list| {
            list.as_bytes().split(|&byte| byte == b':').map(<[u8]>::to_vec).collect::<Vec<_>>()
        });
        each.filter(|folder| !folder.is_empty())
            .take(MOST_FOLDERS)
            .map(|folder| with_origin(&folder, &origin))
            .collect()
    };
    let run = folders(DT_RUNPATH);
    let old = if run.is_empty() { folders(DT_RPATH) } else { Vec::new() };
    let own: Rc<[PathBuf]> = old.into_iter().chain(search.library_path.iter().cloned()).chain(run).collect();
    let names = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED).filter_map(|&(_, at)| text(at));
    names.map(|name| (name.to_owned(), Rc::clone(&own))).collect()
}

/// A folder with `$ORIGIN` replaced by where the file lies. Paths are bytes.
fn with_origin(folder: &[u8], origin: &Path) -> PathBuf {
    let mut rest = folder;
    let mut path = Vec::new();
    while let Some((&first, after)) = rest.split_first() {
        let named = [&b"${ORIGIN}"[..], b"$ORIGIN"].into_iter().find(|name| rest.starts_with(name));
        match named {
            Some(name) => {
                path.extend(origin.as_os_str().as_bytes());
                rest = &rest[name.len()..];
            }
            None => {
                path.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

/// The entries of `/etc/ld.so.cache`: name and path.
///
/// ```text
///  "glibc-ld.so.cache1.1" | u32 entries | u32 bytes of strings | 20 bytes | entries of 24 bytes: i32 flags, u32 name, u32 path, ..
/// ```
/// Offsets of strings count from the magic, before which an older table may stand.
fn cached(bytes: &[u8]) -> Vec<(OsString, PathBuf)> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    let Some(start) = memchr::memmem::find(bytes, MAGIC) else { return Vec::new() };
    let table = &bytes[start..];
    let count = Fields(table).u32(20) as usize;
    let Some(entries) = table.get(48..) else { return Vec::new() };
    let each = entries.chunks_exact(24).take(count.min(1 << 20)).filter_map(|entry| {
        let text = |at: usize| text_at(table, Fields(entry).u32(at) as usize);
        Some((text(4)?.to_owned(), PathBuf::from(text(8)?)))
    });
    each.collect()
}

/// A path or a name that ends with a zero.
fn text_at(strings: &[u8], at: usize) -> Option<&OsStr> {
    let rest = strings.get(at..)?;
    let rest = &rest[..rest.len().min(4096)];
    Some(OsStr::from_bytes(&rest[..memchr::memchr(0, rest)?]))
}

#[cfg(test)]
mod tests {
    use super::{cached, with_origin};
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    /// Checks that a path with the file's own folder in it is made of bytes, whether they are text or not.
    #[test]
    fn paths_of_libraries_are_bytes() {
        let origin = Path::new(std::ffi::OsStr::from_bytes(b"/opt/gr\xf6sse"));
        let path = with_origin(b"$ORIGIN/../\xff:${ORIGIN}x", origin);
        assert_eq!(path.as_os_str().as_bytes(), b"/opt/gr\xf6sse/../\xff:/opt/gr\xf6ssex");
    }

    /// Checks a cache of one entry behind an older table, and that cut and damaged ones give what they have.
    #[test]
    fn caches() {
        let mut bytes = b"ld.so-1.7.0\0older".to_vec();
        let start = bytes.len();
        bytes.extend(b"glibc-ld.so.cache1.1");
        bytes.extend(1u32.to_le_bytes());
        bytes.extend([0; 24]);
        for word in [3u32, 72, 79, 0, 0, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(b"liba.so\0/lib/liba.so\0");
        // The second string begins behind the first and its zero.
        bytes[start + 48 + 8..start + 48 + 12].copy_from_slice(&80u32.to_le_bytes());
        assert_eq!(cached(&bytes), [("liba.so".into(), "/lib/liba.so".into())]);
        for end in 0..bytes.len() {
            let _ = cached(&bytes[..end]);
        }
        bytes[start + 20..start + 24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(cached(&bytes).len(), 1);
    }
}
