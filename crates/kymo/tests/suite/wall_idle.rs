//! What `kymo report --wall` calls idle: threads for which nobody waits. Servers wait for clients,
//! and a client for its answer, both in event loops.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::scenario::fresh_folder;
use crate::tools::{Need, Running, kymo, require, skip, text};
use crate::wall::ready;

/// A program of Python whose threads wait as its argument says, after it has written a line; its
/// standard input has the ports.
const LOOPS: &str = r#"
import ctypes, mmap, os, select, signal, socket, struct, sys, threading
words = sys.argv[1:]
def epoll(*files):
    loop = select.epoll()
    for file in files:
        loop.register(file, select.EPOLLIN)
    while True:
        loop.poll()
def poll(*files):
    loop = select.poll()
    for file in files:
        loop.register(file, select.POLLIN)
    while True:
        loop.poll()
def poll_by_select(*files):
    while True:
        select.select(files, [], [])
def listener():
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    return listening
def connected():
    return socket.create_connection(("127.0.0.1", int(input())))
def ring(has_request):
    call, params = ctypes.CDLL(None).syscall, ctypes.create_string_buffer(120)
    file = call(425, 8, params)
    print("refused" if file < 0 else "ready", flush=True)
    if has_request:
        # A read of a pipe that nobody writes to.
        (entries,), (tail,), (array,) = (struct.unpack_from("I", params, at) for at in (0, 44, 64))
        ring, requests = mmap.mmap(file, array + 4 * entries), mmap.mmap(file, 64 * entries, offset=0x10000000)
        byte = ctypes.create_string_buffer(1)
        requests[:28] = struct.pack("=BBHiQQI", 22, 0, 0, os.pipe()[0], 0, ctypes.addressof(byte), 1)
        ring[tail:tail + 4] = struct.pack("I", 1)
    call(426, file, int(has_request), 1, 1, None, 8)
if words[0] == "ring":
    ring(words[1] == "request")
if words[0] == "signals":
    signals = [signal.SIGTERM] if words[1] == "sent" else [signal.SIGTERM, signal.SIGCHLD]
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    print("ready", flush=True)
    signal.sigwait(signals)
if words[0] == "server":
    listening = listener()
    accepted, _ = listening.accept()
    print("accepted", flush=True)
    if words[1] == "recv":
        accepted.recv(1)
    {"epoll": epoll, "poll": poll, "select": poll_by_select}[words[1]](listening, accepted)
if words[0] == "accepts":
    listener().accept()
if words[0] == "client":
    files = [connected()]
    print("connected", flush=True)
    threading.Thread(target=epoll, args=files).start()
if words[0] == "both":
    files = [listener(), connected()]
    print("connected", flush=True)
    epoll(*files)
"#;

fn start(words: &[&str]) -> Running {
    Running::start(Command::new("python3").args(["-c", LOOPS]).args(words))
}

/// The idle and the whole time of a program's threads in a state, ns.
fn recorded(program: &Running, folder: &Path, state: &str) -> (u64, u64) {
    let file = folder.join(format!("{}.data", program.pid()));
    let pid = program.pid();
    kymo().succeed(["record", "--wall", "-o", text(&file), "-p", &pid, "--duration", "0.5s"]);
    let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&file)]).json();
    let places = report["places"].as_array().expect("a list");
    let sum = |is_idle: bool| {
        let is = |place: &&Value| place["state"] == state && (place["idle"] == true || !is_idle);
        places.iter().filter(is).filter_map(|place| place["time_ns"].as_u64()).sum()
    };
    let (idle, all) = (sum(true), sum(false));
    assert!(all > 200_000_000, "{state}: {report:#}");
    (idle, all)
}

fn port(program: &mut Running) -> u16 {
    program.line().trim().parse().expect("a port")
}

/// Checks servers of one thread, whatever call they wait in: with nobody connected, and with a
/// client that wants nothing.
#[test]
fn servers_of_one_thread_are_idle() {
    const TEST: &str = "wall_idle::servers_of_one_thread_are_idle";
    if !ready(TEST) || require(TEST, &[Need::Program("python3")]).is_none() {
        return;
    }
    let folder = fresh_folder("wall-idle-servers");
    for call in ["epoll", "poll", "select", "recv"] {
        let mut program = start(&["server", call]);
        let client = TcpStream::connect(("127.0.0.1", port(&mut program))).expect("it listens");
        assert_eq!(program.line(), "accepted\n");
        let state = if call == "recv" { "network" } else { "poll" };
        let (idle, all) = recorded(&program, &folder, state);
        assert_eq!(idle, all, "{call}");
        drop(client);
    }
    let mut program = start(&["accepts"]);
    port(&mut program);
    let (idle, all) = recorded(&program, &folder, "network");
    assert_eq!(idle, all, "accepts");
}

/// Checks that one who waits for an answer is not idle, in a thread of its own and where it is a
/// server, too; nor is the first thread, which waits for that one.
#[test]
fn who_waits_for_an_answer_is_not_idle() {
    const TEST: &str = "wall_idle::who_waits_for_an_answer_is_not_idle";
    if !ready(TEST) || require(TEST, &[Need::Program("python3")]).is_none() {
        return;
    }
    let folder = fresh_folder("wall-idle-clients");
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port_of_server = server.local_addr().expect("it has one").port();
    for words in [&["client"], &["both"]] {
        let mut program = start(words);
        if words == &["both"] {
            port(&mut program);
        }
        let mut input = program.child.stdin.take().expect("a pipe");
        writeln!(input, "{port_of_server}").expect("it reads");
        assert_eq!(program.line(), "connected\n");
        assert_eq!(recorded(&program, &folder, "poll").0, 0, "{words:?}");
    }
}

/// Checks a thread that waits for an io_uring without a request in flight, one with a request, one
/// that waits for a signal that others send, and one that may wait for a child.
#[test]
fn rings_without_requests_and_signals_are_idle() {
    const TEST: &str = "wall_idle::rings_without_requests_and_signals_are_idle";
    if !ready(TEST) || require(TEST, &[Need::Program("python3")]).is_none() {
        return;
    }
    let folder = fresh_folder("wall-idle-rings");
    for (words, state, is_idle) in [
        (&["signals", "sent"][..], "other", true),
        (&["signals", "child"], "other", false),
        (&["ring", "empty"], "io_uring", true),
        (&["ring", "request"], "io_uring", false),
    ] {
        let mut program = start(words);
        if program.line() == "refused\n" {
            skip(TEST, "io_uring is refused");
            continue;
        }
        let (idle, all) = recorded(&program, &folder, state);
        assert_eq!(idle, if is_idle { all } else { 0 }, "{words:?}");
    }
}
