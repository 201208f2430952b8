//! A daemon that a test starts, asks and ends.
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::fake_collector::unused_address;

/// How long a test waits for what has to come, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(240);

/// A running daemon; killed when it goes out of scope.
pub(crate) struct Daemon {
    child: Child,
    health: SocketAddr,
}

/// A daemon's command with a private folder.
pub(crate) fn command(state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kymo-daemon"));
    command.arg("--state").arg(state);
    command
}

impl Daemon {
    /// Starts one with intervals of a second. Stacks are the kernel's: a build without optimization
    /// unwinds so slowly that several at once fall behind.
    pub(crate) fn start(state: &Path, arguments: &[&str]) -> Daemon {
        let health = unused_address();
        let mut command = command(state);
        command.args(["--interval", "1", "--stacks", "frame-pointers", "--health", &health.to_string()]);
        command.args(arguments);
        let child = command.stderr(Stdio::inherit()).spawn().expect("the daemon starts");
        Daemon { child, health }
    }

    /// The answer of the health endpoint, once there is one.
    pub(crate) fn health(&mut self) -> serde_json::Value {
        let begun = Instant::now();
        loop {
            if let Some(answer) = ask(self.health) {
                return answer;
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the daemon ended: {status}");
            }
            assert!(begun.elapsed() < PATIENCE, "the health endpoint does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the health endpoint says so.
    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        is_so: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        let begun = Instant::now();
        loop {
            let health = self.health();
            if is_so(&health) {
                return health;
            }
            assert!(begun.elapsed() < PATIENCE, "{what} did not happen: {health}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// SIGTERM.
    pub(crate) fn terminate(mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        Command::new("kill").arg(pid).status().expect("kill");
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "the daemon does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("a child");
        self.child.wait().expect("a child");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(health: SocketAddr) -> Option<serde_json::Value> {
    let mut stream = TcpStream::connect(health).ok()?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// Whether this machine can be profiled; says why not.
pub(crate) fn is_permitted(test: &str) -> bool {
    let state = tempfile::tempdir().expect("a folder");
    let dataset = state.path().join("dataset");
    let mut command = command(state.path());
    let output = command.args(["--dry-run", "--dataset"]).arg(dataset).output().expect("the daemon starts");
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("SKIPPED {test}: {}", text.lines().next().unwrap_or_default());
    }
    output.status.success()
}
