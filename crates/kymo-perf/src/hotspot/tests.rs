//! A machine that answers late: this process, with a thread that listens at an attach socket.
use super::*;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::channel;

/// The two files of this process's machine, taken away at the end.
struct Files {
    socket: PathBuf,
    map: PathBuf,
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
        let _ = fs::remove_file(&self.map);
    }
}

/// Checks that a map which comes after the deadline is read and taken away by the next call, without
/// a second command, and that it is told of meanwhile.
#[test]
fn a_map_that_comes_late_is_taken_away() {
    let pid = std::process::id().cast_signed();
    let mut machine = Hotspot::find(pid).expect("this process");
    let tmp = PathBuf::from("/tmp");
    let files = Files { socket: tmp.join(machine.socket_name()), map: tmp.join(machine.map_name()) };
    let listener = UnixListener::bind(&files.socket).expect("a socket");
    let (may_answer, waits) = channel::<()>();
    let map = files.map.clone();
    let answers = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let mut request = [0; 64];
        let got = client.read(&mut request).expect("a request");
        waits.recv().expect("the test goes on");
        fs::write(&map, "1000 10 late\n").expect("a map");
        client.write_all(b"0\n").expect("an answer");
        String::from_utf8_lossy(&request[..got]).into_owned()
    });
    let early = machine.perf_map(Duration::from_millis(50));
    assert!(matches!(early, Err(HotspotError::Slow)), "{early:?}");
    assert!(machine.awaits_map());
    assert_eq!(machine.left_behind(), Some(files.map.display().to_string()));
    may_answer.send(()).expect("the machine waits");
    let text = machine.perf_map(Duration::from_secs(10)).expect("the map");
    assert_eq!(String::from_utf8_lossy(&text), "1000 10 late\n");
    assert_eq!(answers.join().expect("the machine"), "1\0jcmd\0Compiler.perfmap\0\0\0");
    assert!(!files.map.exists() && !machine.awaits_map());
    assert_eq!(machine.left_behind(), None);
}
