//! Where the symbols of a module may lie, in the order in which perf looks.

use std::path::{Component, Path, PathBuf};

use super::elf::ElfFile;
use super::options::SymbolOptions;

const DEBUG_ROOT: &str = "/usr/lib/debug";

/// A file that may hold a module's symbols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    /// The checksum that a `.gnu_debuglink` asks for.
    pub(crate) checksum: Option<u32>,
}

/// `path` below the directory that stands for the recorded machine's root.
pub(super) fn below_root(options: &SymbolOptions, path: &Path) -> PathBuf {
    match &options.symfs {
        Some(root) => {
            let parts =
                path.components().filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir));
            root.join(parts.collect::<PathBuf>())
        }
        None => path.to_owned(),
    }
}

pub(super) fn build_id_cache(options: &SymbolOptions) -> Option<PathBuf> {
    if let Some(dir) = &options.buildid_dir {
        return Some(dir.clone());
    }
    if let Some(dir) = std::env::var_os("PERF_BUILDID_DIR") {
        return Some(dir.into());
    }
    std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".debug")).filter(|folder| is_own(folder))
}

/// Whether a folder of files below `HOME` is taken. sudo may keep the `HOME` of another user, who
/// could have put any file into it: root takes nothing from there.
fn is_own(folder: &Path) -> bool {
    refusal_of_home(folder).is_none()
}

/// Why a folder below `HOME` is not read by root; `None` for other users, and where there is none.
fn refusal_of_home(folder: &Path) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    match kymo_files::Folder::exclusive(folder) {
        Err(why) if why.kind() != std::io::ErrorKind::NotFound => Some(why.to_string()),
        _ => None,
    }
}

/// A sentence for each folder below `HOME` that root does not take files from.
pub fn refused_home_folders() -> Vec<String> {
    let Some(home) = std::env::var_os("HOME").map(PathBuf::from) else { return Vec::new() };
    let folders = [
        (home.join(".debug"), "--buildid-dir"),
        (home.join(".cache/debuginfod_client"), "DEBUGINFOD_CACHE_PATH"),
    ];
    let sentence = |(folder, option): (PathBuf, &str)| {
        let why = folder.exists().then(|| refusal_of_home(&folder)).flatten()?;
        Some(format!(
            "as root, kymo takes no files from {}: {why}; {option} names the folder all the same",
            folder.display()
        ))
    };
    folders.into_iter().filter_map(sentence).collect()
}

/// `ab/cdef...` of a build id.
pub(super) fn split_build_id(build_id: &[u8]) -> Option<(String, String)> {
    let hex: String = build_id.iter().map(|b| format!("{b:02x}")).collect();
    (hex.len() > 2).then(|| (hex[..2].to_owned(), hex[2..].to_owned()))
}

/// A file of the build-id cache: `elf`, `debug`, `vdso`, `kallsyms`.
pub(super) fn in_build_id_cache(options: &SymbolOptions, build_id: &[u8], name: &str) -> Option<PathBuf> {
    let (first, rest) = split_build_id(build_id)?;
    let link = build_id_cache(options)?.join(".build-id").join(first).join(rest);
    // Old caches link to the file itself.
    if name == "elf" && link.is_file() { Some(link) } else { Some(link.join(name)) }
}

/// The files that the folders with debug files may have for a build id.
pub(super) fn in_debug_dirs(options: &SymbolOptions, build_id: &[u8]) -> Vec<PathBuf> {
    let Some((first, rest)) = split_build_id(build_id) else { return Vec::new() };
    let of_folder = |folder: &PathBuf| {
        let below = [folder.join(".build-id").join(&first), folder.join(&first)];
        below.map(|folder| [folder.join(format!("{rest}.debug")), folder.join(&rest)])
    };
    options.debug_dirs.iter().flat_map(of_folder).flatten().collect()
}

/// Every file to try for a user module, first one first. `held`: the file that was mapped, where
/// its path leads to another one or to none.
pub(crate) fn candidates(
    options: &SymbolOptions,
    path: &Path,
    build_id: Option<&[u8]>,
    held: Option<&Path>,
) -> Vec<Candidate> {
    let mut found = Vec::new();
    let plain = |path: PathBuf| Candidate { path, checksum: None };
    let own = below_root(options, path);
    if let (Some(held), None) = (held, build_id) {
        // Nothing could be held against any other file.
        return vec![plain(held.to_owned())];
    }
    found.extend(build_id.into_iter().flat_map(|id| in_debug_dirs(options, id)).map(plain));
    found.extend(debuglink(options, &own, held.unwrap_or(&own)));
    if let Some(id) = build_id {
        found.extend(in_build_id_cache(options, id, "elf").map(plain));
        found.extend(in_build_id_cache(options, id, "debug").map(plain));
    }
    let debug_root = below_root(options, Path::new(DEBUG_ROOT));
    let relative = path.strip_prefix("/").unwrap_or(path);
    let mut with_suffix = debug_root.join(relative).into_os_string();
    with_suffix.push(".debug");
    found.push(plain(with_suffix.into()));
    found.push(plain(debug_root.join(relative)));
    if let Some((first, rest)) = build_id.and_then(split_build_id) {
        found.push(plain(debug_root.join(".build-id").join(first).join(format!("{rest}.debug"))));
    }
    // What debuginfod's client has fetched for this user before; nothing is fetched here.
    if let (Some(id), Some(cache)) = (build_id, debuginfod_cache(|name| std::env::var_os(name))) {
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        found.push(plain(cache.join(hex).join("debuginfo")));
    }
    found.push(plain(held.unwrap_or(&own).to_owned()));
    if let (Some(dir), Some(name)) = (own.parent(), own.file_name()) {
        found.push(plain(dir.join(".debug").join(name)));
    }
    // Ubuntu keeps the debug files of /usr/lib below lib.
    if let Ok(rest) = path.strip_prefix("/usr/lib") {
        found.push(plain(debug_root.join("lib").join(rest)));
    }
    found
}

/// Where debuginfod's client keeps files, as `debuginfod_find_debuginfo(3)` says.
fn debuginfod_cache(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Option<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let below = |cache: PathBuf| Some(cache.join("debuginfod_client")).filter(|cache| is_own(cache));
    folder("DEBUGINFOD_CACHE_PATH").or_else(|| match folder("XDG_CACHE_HOME") {
        Some(cache) => below(cache),
        None => folder("HOME").and_then(|home| below(home.join(".cache"))),
    })
}

/// The file that the `.gnu_debuglink` of `file` names, a module whose path is `own`.
fn debuglink(options: &SymbolOptions, own: &Path, file: &Path) -> Option<Candidate> {
    use std::os::unix::ffi::OsStrExt;
    let (name, checksum) = ElfFile::open(file, &options.budget).ok()?.debuglink()?;
    let name = Path::new(std::ffi::OsStr::from_bytes(&name));
    let candidate = |path: PathBuf| Candidate { path, checksum: Some(checksum) };
    if name.is_absolute() {
        return Some(candidate(name.to_owned()));
    }
    let dir = own.parent()?;
    let recorded_dir = options.symfs.as_ref().and_then(|root| dir.strip_prefix(root).ok()).unwrap_or(dir);
    let recorded_dir = recorded_dir.strip_prefix("/").unwrap_or(recorded_dir);
    let tries = [
        dir.join(name),
        dir.join(".debug").join(name),
        below_root(options, Path::new(DEBUG_ROOT)).join(recorded_dir).join(name),
    ];
    tries.into_iter().find(|path| path.is_file() && path != own).map(candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which folder debuginfod's client uses, and that a fetched file is tried by its build id
    /// before the program itself.
    #[test]
    fn fetched_debug_files() {
        let cache = |pairs: &[(&str, &str)]| {
            let value = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.into());
            debuginfod_cache(value).map(|path| path.display().to_string())
        };
        let (home, xdg) = (("HOME", "/h"), ("XDG_CACHE_HOME", "/x"));
        assert_eq!(cache(&[home]).as_deref(), Some("/h/.cache/debuginfod_client"));
        assert_eq!(cache(&[home, xdg]).as_deref(), Some("/x/debuginfod_client"));
        assert_eq!(cache(&[xdg, ("DEBUGINFOD_CACHE_PATH", "/d")]).as_deref(), Some("/d"));
        assert_eq!(cache(&[("HOME", "")]), None);
        let options = SymbolOptions::default();
        let all = candidates(&options, Path::new("/bin/x"), Some(&[0xab, 0xcd, 0xef]), None);
        let at = |end: &str| all.iter().rposition(|candidate| candidate.path.ends_with(end));
        if debuginfod_cache(|name| std::env::var_os(name)).is_some() {
            assert!(at("abcdef/debuginfo").expect("tried") < at("/bin/x").expect("tried"), "{all:?}");
        }
    }
}
