//! What the tests of several crates share. A dependency of tests only; it knows nothing of kymo.
#![forbid(unsafe_code)]

mod browser;
mod browser_tab;
mod hung;

pub use browser::Browser;
pub use browser_tab::BrowserTab;
pub use hung::kill_hung_children;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::channel;

/// Says that a test did not run and why, on stderr and in the list that `ci/test.sh` prints at its end (`KYMO_SKIP_LOG`).
///
/// `test` is the test's path, with what was left out in brackets where it is a part of the test. A reason of several lines
/// becomes one.
pub fn skip(test: &str, reason: impl Display) {
    let reason = reason.to_string();
    let words: Vec<&str> = reason.lines().map(str::trim).collect();
    let line = format!("SKIPPED {test}: {}\n", words.join(" "));
    eprint!("{line}");
    if let Some(log) = std::env::var_os("KYMO_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(log);
        // One write, so that lines of tests that run at the same time stay whole. An ordinary user may not write there.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// Where perf and kymo keep binaries by build ID in tests: beside the built tests, not in the user's `~/.debug`,
/// which knows what was recorded on this machine before.
pub fn build_id_cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let tests = std::env::current_exe().ok();
        let folder = tests.as_deref().and_then(Path::parent).map_or_else(std::env::temp_dir, Path::to_owned);
        folder.join("perf-build-ids")
    })
}

/// Takes a command's user out of its environment: no settings of perf, no cache of binaries, no
/// debuginfod or files that it has fetched, no pager, width or language. What a tool prints then
/// depends on its input and the installed files alone.
///
/// The home folder stays: programs that are recorded may need it.
pub fn without_user(command: &mut Command) -> &mut Command {
    for name in ["DEBUGINFOD_URLS", "COLUMNS", "NO_COLOR", "TZ"] {
        command.env_remove(name);
    }
    command
        .env("PERF_BUILDID_DIR", build_id_cache())
        .env("DEBUGINFOD_CACHE_PATH", build_id_cache().join("nothing-fetched"))
        .env("KYMO_SYMBOL_CACHE", "off")
        .env("PERF_CONFIG_NOSYSTEM", "1")
        .env("PERF_CONFIG_NOGLOBAL", "1")
        .env("PAGER", "cat")
        .env("LC_ALL", "C")
}

/// A perf without its user ([`without_user`]) and without plugins of libtraceevent, before its
/// first argument.
///
/// The plugins (Debian's libtraceevent1-plugin, which trace-cmd brings) print some tracepoints in
/// another form, and no option of perf leaves them out. As root it runs in a mount namespace in
/// which their folder is empty.
pub fn perf_command(program: impl AsRef<OsStr>) -> Command {
    let plugins = plugin_folders();
    let mut command = if plugins.is_empty() || !is_root() {
        Command::new(program)
    } else {
        const HIDE: &str =
            r#"until [ "$1" = -- ]; do mount -t tmpfs none "$1" || exit 1; shift; done; shift; exec "$@""#;
        let mut hidden = Command::new("unshare");
        hidden.args(["--mount", "sh", "-c", HIDE, "sh"]).args(plugins).arg("--").arg(program);
        hidden
    };
    without_user(&mut command).arg("--buildid-dir").arg(build_id_cache());
    command
}

/// Where libtraceevent looks for plugins, as far as there are such folders.
fn plugin_folders() -> &'static [PathBuf] {
    static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FOLDERS.get_or_init(|| {
        let machine = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let libraries = [machine.as_str(), "/usr/lib", "/usr/lib64"].map(Path::new);
        libraries
            .map(|folder| folder.join("traceevent/plugins"))
            .into_iter()
            .filter(|it| it.is_dir())
            .collect()
    })
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Whether this machine has a perf that runs. Debian's is a script that fails without one for the kernel.
pub fn perf_works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let version = perf_command("perf").arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    })
}

/// This machine's perf, without its user's settings and caches ([`without_user`]); `None`, and the test says
/// so, where there is none. Its input is no terminal and no pipe, which perf would read as a recording.
pub fn perf(test: &str) -> Option<Command> {
    if !perf_works() {
        skip(test, "no working perf here (Debian: apt-get install linux-perf)");
        return None;
    }
    let mut command = perf_command("perf");
    command.stdin(Stdio::null());
    Some(command)
}

/// Runs `body` with the ids of `count` threads of this process that wait until it is done, whichever way that ends.
pub fn with_waiting_threads<T>(count: usize, body: impl FnOnce(Vec<i32>) -> T) -> T {
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        // Threads wait until their sender is gone: a panic in `body` drops it, too.
        let mut senders = Vec::new();
        for _ in 0..count {
            let tell = tell.clone();
            let (sender, end) = channel::<()>();
            senders.push(sender);
            scope.spawn(move || {
                let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get());
                let _ = end.recv();
            });
        }
        let result = body(told.iter().take(count).collect());
        drop(senders);
        result
    })
}

/// Copies a program that is then to be executed.
///
/// Not `std::fs::copy`: a child that another test forks meanwhile holds what this process has open for writing until its
/// exec, and a file that anyone may write to cannot be executed ("Text file busy").
///
/// # Panics
///
/// When it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("--").args([from, to]).output().expect("cp runs");
    let words = String::from_utf8_lossy(&copied.stderr);
    assert!(copied.status.success(), "cp {} {}: {words}", from.display(), to.display());
    // Others run it, too, whatever this user's umask says of new files.
    std::fs::set_permissions(to, Permissions::from_mode(0o755)).expect("the copy is ours");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Checks that the threads are there with an id each while the body runs, and that its value comes back.
    #[test]
    fn threads_wait() {
        let (ids, alive) = with_waiting_threads(3, |tids| {
            let alive = |tid: &i32| Path::new(&format!("/proc/self/task/{tid}")).exists();
            (tids.iter().copied().collect::<BTreeSet<_>>(), tids.iter().all(alive))
        });
        assert_eq!((ids.len(), alive), (3, true));
    }

    /// Checks that a body that panics fails its test instead of leaving it waiting.
    #[test]
    #[should_panic(expected = "the body's own words")]
    fn a_panic_ends_the_wait() {
        with_waiting_threads(2, |_| panic!("the body's own words"));
    }
}
