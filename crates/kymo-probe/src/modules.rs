//! The programs and libraries that a target consists of.
use anyhow::{Context, bail};
use kymo_perf::caps;
use kymo_perf::explain::setcap_command;
use kymo_perf::proc::{self, Mappings};
use kymo_perf::suggest::nearest;
use kymo_symbols::sites::{MissingSite, ProbeModule, ProbeSelector, Search, Site, find, libraries};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that a command's name means, as exec finds it.
pub fn program(name: &OsStr) -> anyhow::Result<PathBuf> {
    let shown = Path::new(name).display().to_string();
    let absolute = |path: &Path| std::path::absolute(path).with_context(|| format!("failed to find {shown}"));
    if name.as_bytes().contains(&b'/') {
        return absolute(Path::new(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file());
    match found {
        Some(path) => absolute(&path),
        None if Path::new(name).is_file() => absolute(Path::new(name)),
        None => bail!("there is no program {shown} in PATH: check its name, or give its path"),
    }
}

/// What a script is run by: the program of its first line.
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut first = [0u8; 256];
    let read = kymo_files::open_regular(path).ok()?.read(&mut first).ok()?;
    let line = first[..read].strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let word = line.trim_ascii().split(|byte| byte.is_ascii_whitespace()).next()?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}

/// The file that is executed for a command: for a script, what it is run by.
pub fn executed(command: &[OsString]) -> anyhow::Result<PathBuf> {
    let first = command.first().context("there is no command")?;
    let mut path = program(first)?;
    // A script's interpreter may be a script.
    for _ in 0..4 {
        match interpreter(&path) {
            Some(next) => path = next,
            None => break,
        }
    }
    Ok(path.canonicalize().unwrap_or(path))
}

/// The program that a command has the dynamic linker load: `ld-linux-x86-64.so.2 ./program`.
fn loaded_by(executed: &Path, command: &[OsString]) -> Option<PathBuf> {
    const WITH_VALUE: [&[u8]; 6] = [
        b"--library-path",
        b"--inhibit-rpath",
        b"--audit",
        b"--preload",
        b"--argv0",
        b"--glibc-hwcaps-prepend",
    ];
    let name = executed.file_name()?.as_bytes();
    if !(name.starts_with(b"ld-") || name.starts_with(b"ld.so"))
        || !name.windows(3).any(|part| part == b".so")
    {
        return None;
    }
    let mut arguments = command.get(1..)?.iter();
    while let Some(argument) = arguments.next() {
        if WITH_VALUE.contains(&argument.as_bytes()) {
            arguments.next()?;
        } else if !argument.as_bytes().starts_with(b"--") {
            // As the linker finds it: by its path, not in PATH.
            let path = std::path::absolute(argument).ok()?;
            return path.is_file().then(|| path.canonicalize().unwrap_or(path));
        }
    }
    None
}

/// The modules of a command that has not started: its program first, then the libraries that it will load at once.
pub fn of_command(command: &[OsString]) -> anyhow::Result<Vec<Arc<ProbeModule>>> {
    let executed = executed(command)?;
    let program = loaded_by(&executed, command).unwrap_or(executed);
    let module = ProbeModule::open(&program, None)?;
    // Paths are bytes, in variables, too.
    let list = |name: &str, by: &[u8]| -> Vec<PathBuf> {
        let value = std::env::var_os(name).unwrap_or_default().into_vec();
        let parts = value.split(|byte| by.contains(byte)).filter(|part| !part.is_empty());
        parts.map(|part| PathBuf::from(OsString::from_vec(part.to_vec()))).collect()
    };
    let search = Search { library_path: list("LD_LIBRARY_PATH", b":;"), preload: list("LD_PRELOAD", b": ") };
    let others = libraries(&module, &search);
    let mut modules = vec![Arc::new(module)];
    modules.extend(others.iter().filter_map(|path| ProbeModule::open(path, None).ok()).map(Arc::new));
    Ok(modules)
}

/// Code that a process has mapped: addresses, and where they are in which file.
#[derive(Clone, Debug)]
pub(crate) struct CodeMapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub path: PathBuf,
}

impl CodeMapping {
    pub(crate) fn covers(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// The code that a process has mapped now.
pub(crate) fn mapped_code(pid: i32) -> Vec<CodeMapping> {
    let text = proc::maps(pid);
    let mapped = |map: proc::MapsEntry<'_>| {
        let path = PathBuf::from(OsStr::from_bytes(map.path));
        CodeMapping { start: map.start, end: map.end, offset: map.offset, path }
    };
    Mappings::new(&text).filter(|map| map.prot & 4 != 0).map(mapped).collect()
}

/// The modules that a process has mapped: its program first. Files are opened as the process sees them, in its container.
pub fn of_process(pid: i32) -> anyhow::Result<Vec<Arc<ProbeModule>>> {
    let gone = || format!("there is no process {pid}: it may have ended; `ps -e` lists processes");
    let exe = match std::fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(exe) => exe,
        Err(error)
            if error.kind() == std::io::ErrorKind::PermissionDenied
                && rustix::process::geteuid().is_root() =>
        {
            bail!(
                "root may not look into process {pid} here: CAP_SYS_PTRACE is missing (in a container: --cap-add SYS_PTRACE), or a security module forbids it"
            )
        }
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => bail!(
            "process {pid} belongs to another user: run kymo as root, or give it CAP_SYS_PTRACE with `{}`",
            setcap_command(&caps::probe())
        ),
        Err(_) if proc::tasks(pid).is_ok() => {
            bail!("process {pid} has no program: it is the kernel's or has ended")
        }
        Err(_) => bail!(gone()),
    };
    let mut paths: Vec<PathBuf> = vec![exe];
    let mut known: BTreeSet<PathBuf> = paths.iter().cloned().collect();
    let mapped = mapped_code(pid).into_iter().map(|mapping| mapping.path);
    paths.extend(mapped.filter(|path| path.has_root() && known.insert(path.clone())));
    // The same root as ours needs no detour, and gives names that hold when the process has ended.
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let same = |a: &Path, b: &Path| {
        let identity = |path: &Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
        identity(a).is_some() && identity(a) == identity(b)
    };
    let open = |path: &PathBuf| {
        let inside = root.join(path.strip_prefix("/").unwrap_or(path));
        // A process that only changed its root (chroot) has paths from the root of all, which is ours.
        let own = same(path, &inside) || (!inside.exists() && path.exists());
        ProbeModule::open(path, (!own).then_some(root.as_path()))
    };
    let mut modules = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        match open(path) {
            Ok(module) => modules.push(Arc::new(module)),
            Err(error) if index == 0 => {
                let deleted = path.as_os_str().as_bytes().ends_with(b" (deleted)");
                let hint =
                    if deleted { "; its file has been replaced or removed: restart the process" } else { "" };
                return Err(anyhow::anyhow!("{error}{hint}"));
            }
            // A library that was replaced meanwhile, or a file that is mapped executable and is none.
            Err(_) => {}
        }
    }
    Ok(modules)
}

/// The sites that a selector means among these modules, or in a file that it names by its path. What is missing is said with a near name.
pub fn sites(selector: &ProbeSelector, modules: &[Arc<ProbeModule>]) -> anyhow::Result<Vec<Site>> {
    let missing = match find(selector, modules) {
        Ok(sites) => return Ok(sites),
        Err(missing) => missing,
    };
    // A library that will be loaded later.
    if let Some(path) = selector.module.as_deref().filter(|module| module.contains('/'))
        && !modules.iter().any(|module| module.path() == Path::new(path))
        && let Ok(path) = Path::new(path).canonicalize()
    {
        let module = Arc::new(ProbeModule::open(&path, None)?);
        return find(selector, &[module]).map_err(|missing| said(&missing));
    }
    Err(said(&missing))
}

/// The sites that a probe may stand in; the others are said with the reason.
///
/// # Errors
/// There is none.
pub fn touchable(sites: Vec<Site>, say: &mut dyn FnMut(String)) -> anyhow::Result<Vec<Site>> {
    let (mut left, mut refused) = (Vec::new(), Vec::new());
    for site in sites {
        match site.untouchable() {
            Some(reason) => refused.push((reason.to_owned(), site.name)),
            None => left.push(site),
        }
    }
    let named = refused.iter().map(|(reason, name)| (reason.clone(), name.as_str()));
    let words = reasons_of("not probed", named);
    if left.is_empty()
        && let Some(word) = words.first()
    {
        bail!("{word}");
    }
    words.into_iter().for_each(say);
    Ok(left)
}

/// A line for each reason, with the names that it is about; a few of both.
pub(crate) fn reasons_of<'a>(verb: &str, reasons: impl Iterator<Item = (String, &'a str)>) -> Vec<String> {
    const NAMED: usize = 5;
    let mut known: Vec<(String, Vec<&str>)> = Vec::new();
    for (reason, name) in reasons {
        match known.iter_mut().find(|(same, _)| *same == reason) {
            Some((_, names)) => names.push(name),
            None => known.push((reason, vec![name])),
        }
    }
    let line = |(reason, names): &(String, Vec<&str>)| {
        let more = names.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{verb}: {}{more}: {reason}", names[..names.len().min(NAMED)].join(", "))
    };
    let mut lines: Vec<String> = known.iter().take(NAMED).map(line).collect();
    let rest: usize = known.iter().skip(NAMED).map(|(_, names)| names.len()).sum();
    if rest > 0 {
        lines.push(format!("{verb}: {rest} more, for other reasons"));
    }
    lines
}

/// The sentence, with the nearest name or what to do.
pub fn said(missing: &MissingSite) -> anyhow::Error {
    let plain = missing.wanted.trim_matches('*');
    let near =
        nearest(plain, missing.names.iter().map(String::as_str)).filter(|near| *near != missing.wanted);
    let hint = match (near, &missing.hint) {
        (Some(near), _) => format!("; did you mean `{near}`?"),
        (None, Some(hint)) => format!("; {hint}"),
        (None, None) => "; `kymo list --probes FILE` lists what there is".to_owned(),
    };
    anyhow::anyhow!("{}{hint}", missing.what)
}

#[cfg(test)]
mod tests {
    use super::loaded_by;
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    /// Checks that the program is found which a dynamic linker is given, behind options with and
    /// without values, and that other programs' arguments are not looked at.
    #[test]
    fn programs_that_the_linker_is_given() {
        let linker = Path::new("/lib64/ld-linux-x86-64.so.2");
        let find = |by: &Path, arguments: &[&str]| {
            let all = std::iter::once("x").chain(arguments.iter().copied());
            loaded_by(by, &all.map(OsString::from).collect::<Vec<_>>())
        };
        let own = std::env::current_exe().unwrap();
        let path = own.to_str().unwrap();
        assert_eq!(find(linker, &[path, "--flag"]), Some(own.canonicalize().unwrap()));
        let with_options = ["--library-path", "/lib", "--inhibit-cache", path];
        assert_eq!(find(linker, &with_options), Some(own.canonicalize().unwrap()));
        assert_eq!(find(linker, &["--list"]), None);
        assert_eq!(find(linker, &["/no/such/program"]), None);
        assert_eq!(find(&PathBuf::from("/usr/bin/ldd"), &[path]), None);
    }
}
