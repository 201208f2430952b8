//! Servers of Debian that fork their workers beforehand, entered and left again and again under load: nginx and PostgreSQL.
//!
//! Each round attaches to a worker from inside; every other one is killed. No request fails, no worker is another one afterwards,
//! and the servers' logs tell of nothing. `KYMO_SOAK` asks for ten times as many rounds.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::faults::Dice;
use crate::probe_lifetimes::soon;
use crate::tools::{Need, find, kymo, require, run, skip};

const ROUNDS: u32 = 100;

fn rounds() -> u32 {
    if std::env::var_os("KYMO_SOAK").is_some() { 10 * ROUNDS } else { ROUNDS }
}

/// A process that is ended with the test.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
        Running(command.stdin(Stdio::null()).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    fn end(&mut self, signal: Signal) {
        if self.0.try_wait().is_ok_and(|status| status.is_none()) {
            _ = kill_process(Pid::from_child(&self.0), signal);
            _ = self.0.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both servers end their workers with themselves.
        self.end(Signal::INT);
    }
}

/// One server at a time: each keeps all CPUs busy with its clients, and an agent that gets none for
/// half a minute counts as one that does not answer.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that other users may look into.
fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("ours");
    let path = folder.path().canonicalize().expect("a path");
    (folder, path)
}

fn children(pid: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Attaches to workers in turn, and leaves or is killed. Those that leave must have been inside.
fn attach_and_leave(test: &str, workers: &[u32], probes: &[&str]) {
    let mut dice = Dice::of(test);
    let mut inside = 0;
    for round in 0..rounds() {
        let pid = workers[round as usize / 2 % workers.len()].to_string();
        let mut arguments = vec!["probe", "--json", "--engine", "inproc", "-d", "0.01", "-p", &pid];
        arguments.extend(probes);
        if round % 2 == 0 {
            let said = kymo().run(&arguments);
            assert_eq!(said.code, Some(0), "{test}, round {round}: {}", said.stderr);
            let found = said.json();
            let probes = found["probes"].as_array().expect("a list");
            assert!(!probes.is_empty() && probes.iter().all(|probe| probe["engine"] == "inproc"), "{found}");
            inside += 1;
        } else {
            let mut killed = kymo().command(&arguments);
            let mut killed = killed.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("kymo starts");
            std::thread::sleep(Duration::from_millis(dice.below(300)));
            killed.kill().expect("a child");
            killed.wait().expect("its end");
        }
    }
    eprintln!("{test}: {inside} of {} entered", rounds().div_ceil(2));
    // Threads that were left inside by killed ones are gone, and nobody is held.
    for pid in workers {
        let threads = || {
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the worker lives");
            let comm = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
            tasks.flatten().flat_map(comm).collect::<Vec<_>>()
        };
        soon("the end of the agent's thread", || !threads().iter().any(|name| name.trim() == "kymo-agent"));
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the worker lives");
        assert!(status.contains("TracerPid:\t0") && !status.contains("\nState:\tT"), "{status}");
    }
}

/// Asks for one page again and again on one connection; how often the answer was right, until told to stop or one is wrong.
fn ask(socket: &Path, stop: &AtomicBool, right: &AtomicU64) -> Result<(), String> {
    let said = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    let stream = UnixStream::connect(socket).map_err(|error| said("connecting", &error))?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(|error| said("limiting", &error))?;
    let mut answers = BufReader::new(stream.try_clone().map_err(|error| said("copying", &error))?);
    while !stop.load(Ordering::Relaxed) {
        (&stream)
            .write_all(b"GET /page HTTP/1.1\r\nHost: here\r\n\r\n")
            .map_err(|error| said("asking", &error))?;
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let before = head.len();
            if answers.read_line(&mut head).map_err(|error| said("reading", &error))? == 0 {
                return Err(format!("the connection ended after {head:?}"));
            }
            if let Some(bytes) = head[before..].strip_prefix("Content-Length: ") {
                length = bytes.trim().parse().map_err(|error| said("its length", &error))?;
            }
        }
        let mut page = vec![0; length];
        answers.read_exact(&mut page).map_err(|error| said("reading the page", &error))?;
        if !head.starts_with("HTTP/1.1 200") || page != PAGE {
            return Err(format!("{head} {page:?}"));
        }
        // Relaxed: a number for people.
        right.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

const PAGE: &[u8] = b"the page\n";

/// Checks nginx: two workers that wait in `epoll_wait` or serve are entered each time, no answer is missing or wrong, the workers stay
/// the same, and the log is as without kymo.
#[test]
fn nginx() {
    const TEST: &str = "servers::nginx";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("nginx")]) else { return };
    let _alone = alone();
    let (_folder, path) = folder();
    std::fs::write(path.join("page"), PAGE).expect("our folder");
    let at = path.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {at}/{kind};"))
        .join(" ");
    let configuration = format!(
        "daemon off; worker_processes 2; user root; pid {at}/pid; error_log {at}/log notice;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; {temporary}\n\
         server {{ listen unix:{at}/socket; root {at}; }} }}\n"
    );
    std::fs::write(path.join("conf"), configuration).expect("our folder");
    let (conf, log, socket) = (path.join("conf"), path.join("log"), path.join("socket"));
    let mut nginx = Command::new("nginx");
    let mut nginx = Running::start(nginx.arg("-c").arg(&conf).arg("-e").arg(&log));
    soon("its workers", || socket.exists() && children(nginx.0.id()).len() == 2);
    let workers = children(nginx.0.id());
    let (stop, right) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| ask(&socket, &stop, &right))).collect();
        let rounds = std::panic::AssertUnwindSafe(|| {
            attach_and_leave(TEST, &workers, &["ngx_http_*", "ngx_event_*", "libc.so.6:*recv*"]);
        });
        let rounds = std::panic::catch_unwind(rounds);
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("it ends").unwrap_or_else(|wrong| panic!("a request failed: {wrong}"));
        }
        rounds.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    eprintln!("{TEST}: {} requests", right.load(Ordering::Relaxed));
    assert!(right.load(Ordering::Relaxed) > 0);
    assert_eq!(children(nginx.0.id()), workers);
    let log = std::fs::read_to_string(&log).expect("its log");
    let bad = ["[emerg]", "[alert]", "[crit]", "[error]", "[warn]", "exited"];
    assert!(!bad.iter().any(|word| log.contains(word)), "{log}");
    nginx.end(Signal::QUIT);
}

/// The folder of PostgreSQL's programs, of whatever version is there.
fn postgres_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    versions.flatten().map(|version| version.path().join("bin")).find(|bin| bin.join("initdb").is_file())
}

/// As an ordinary user: PostgreSQL does not run as root.
fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C").current_dir("/");
    command
}

/// Checks PostgreSQL: backends that wait for their clients and such that work all the time are entered each time, no transaction fails,
/// sessions go on as they were, and the log tells of nothing.
#[test]
fn postgresql() {
    const TEST: &str = "servers::postgresql";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("setpriv")]) else { return };
    let Some(programs) = postgres_programs() else {
        return skip(TEST, "postgresql is not installed");
    };
    let Some(psql) = find("psql") else { return skip(TEST, "psql is not installed") };
    let _alone = alone();
    let (_folder, path) = folder();
    let (data, log) = (path.join("data"), path.join("log"));
    std::fs::create_dir(&data).expect("our folder");
    std::os::unix::fs::chown(&path, Some(65534), Some(65534)).expect("we are root");
    std::os::unix::fs::chown(&data, Some(65534), Some(65534)).expect("we are root");
    let initdb = run(as_user(&programs.join("initdb"))
        .args(["-A", "trust", "-U", "postgres", "--no-sync", "-D"])
        .arg(&data));
    assert_eq!(initdb.code, Some(0), "{}", initdb.stderr);
    let settings = ["listen_addresses=", "fsync=off", "shared_buffers=16MB", "autovacuum=off"];
    let mut postgres = as_user(&programs.join("postgres"));
    postgres.arg("-D").arg(&data).arg("-k").arg(&path);
    settings.iter().for_each(|setting| _ = postgres.args(["-c", setting]));
    let file = std::fs::File::create(&log).expect("our folder");
    let mut postgres = Running::start(postgres.stdout(Stdio::null()).stderr(file));
    let client = |program: &Path| {
        let mut command = as_user(program);
        command.arg("-h").arg(&path).args(["-U", "postgres"]);
        command
    };
    soon("that it is ready", || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("ready to accept"))
    });
    run(client(&programs.join("pgbench")).args(["-i", "-q", "postgres"])).ends(0);
    // A session that waits, and remembers something.
    let mut session = client(&psql);
    let session = session.args(["-At", "postgres"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut session = session.spawn().expect("psql starts");
    let (mut words, mut answers) =
        (session.stdin.take().expect("piped"), BufReader::new(session.stdout.take().expect("piped")));
    let mut ask = |question: &str| {
        words.write_all(format!("{question}\n").as_bytes()).expect("psql reads");
        let mut answer = String::new();
        answers.read_line(&mut answer).expect("psql answers");
        answer.trim().to_owned()
    };
    let idle: u32 = ask("set kymo.word = 'remembered'; select pg_backend_pid();")
        .parse()
        .or_else(|_| ask("").parse())
        .expect("a backend");
    let mut bench = client(&programs.join("pgbench"));
    let bench = bench.args(["-c", "2", "-S", "-n", "-T", "100000", "postgres"]).stdin(Stdio::null());
    let bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pgbench starts");
    let active = "select pid from pg_stat_activity where application_name = 'pgbench'";
    let busy = || -> Vec<u32> {
        let said = run(client(&psql).args(["-At", "-c", active, "postgres"]));
        said.stdout.lines().filter_map(|pid| pid.parse().ok()).collect()
    };
    soon("its two sessions", || busy().len() == 2);
    let before = busy();
    attach_and_leave(TEST, &[idle, before[0], before[1]], &["Exec*", "palloc*", "libc.so.6:*recv*"]);
    assert_eq!(busy(), before);
    assert_eq!(ask("select current_setting('kymo.word');"), "remembered");
    let no_line_has = |words: &[&str]| {
        let log = std::fs::read_to_string(&log).expect("its log");
        let found = log.lines().find(|line| words.iter().any(|word| line.contains(word)));
        assert!(found.is_none(), "{log}");
    };
    // Before this test ends the clients, which can be fatal to a backend that answers one of them.
    no_line_has(&["terminated by signal", "PANIC", "FATAL", "ERROR", "WARNING"]);
    kill_process(Pid::from_child(&bench), Signal::TERM).expect("a child");
    let ended = bench.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!said.contains("error") && !said.contains("failed"), "{said}");
    drop(words);
    assert!(session.wait().expect("its end").success());
    postgres.end(Signal::INT);
    no_line_has(&["terminated by signal", "PANIC", "ERROR", "WARNING"]);
}
