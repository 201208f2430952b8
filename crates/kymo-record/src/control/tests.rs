//! The control channel on real pipes.
use super::{ACK, Answer, COMPLAINTS, Command, ControlChannel, ControlSpec, Detail, LINE_BYTES, Lines};
use proptest::prelude::*;
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, mknodat, open};
use rustix::pipe::pipe;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

fn descriptors(commands: &OwnedFd, acks: Option<&OwnedFd>) -> ControlSpec {
    ControlSpec::Descriptors { commands: commands.as_raw_fd(), acks: acks.map(AsRawFd::as_raw_fd) }
}

/// A channel over two pipes, the other side's ends, and what was said.
fn channel() -> (ControlChannel, OwnedFd, OwnedFd, Arc<Mutex<Vec<String>>>) {
    let (commands, write) = pipe().unwrap();
    let (read, acks) = pipe().unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let ears = Arc::clone(&said);
    let channel = descriptors(&commands, Some(&acks)).open().unwrap();
    let channel = channel.on_answer(move |answer| match answer {
        Answer::Note(text) | Answer::Listing(text) => ears.lock().unwrap().push(text.to_owned()),
    });
    (channel, write, read, said)
}

fn send(to: &OwnedFd, bytes: &[u8]) {
    assert_eq!(rustix::io::write(to, bytes), Ok(bytes.len()));
}

/// Checks both spellings of the option, and that what is neither is refused with what was expected.
#[test]
fn option() {
    let numbers = |commands, acks| Ok(ControlSpec::Descriptors { commands, acks });
    assert_eq!(ControlSpec::parse("fd:3"), numbers(3, None));
    assert_eq!(ControlSpec::parse("fd:3,4"), numbers(3, Some(4)));
    let fifos = |commands: &str, acks: Option<&str>| {
        Ok(ControlSpec::Fifos { commands: commands.into(), acks: acks.map(PathBuf::from) })
    };
    assert_eq!(ControlSpec::parse("fifo:/tmp/a"), fifos("/tmp/a", None));
    assert_eq!(ControlSpec::parse("fifo:a,b"), fifos("a", Some("b")));
    for wrong in [
        "",
        "fd",
        "fd:",
        "fd:-1",
        "fd:3,",
        "fd:3,x",
        "fd:99999999999",
        "fifo:",
        "fifo:,b",
        "fifo:a,",
        "pipe:3",
    ] {
        assert!(ControlSpec::parse(wrong).unwrap_err().starts_with("expected"), "{wrong}");
    }
}

/// Checks every command, and that other lines are errors that repeat them without control
/// characters.
#[test]
fn commands() {
    let parsed = |line: &str| Command::parse(line.as_bytes());
    assert_eq!(parsed("enable"), Ok(Command::Enable(None)));
    assert_eq!(
        parsed(" disable  sched:sched_switch "),
        Ok(Command::Disable(Some("sched:sched_switch".into())))
    );
    assert_eq!(parsed("ping"), Ok(Command::Ping));
    assert_eq!(parsed("stop"), Ok(Command::Stop));
    assert_eq!(parsed("snapshot"), Ok(Command::Snapshot));
    assert_eq!(parsed("evlist"), Ok(Command::Evlist(Detail::Names)));
    assert_eq!(parsed("evlist -v"), Ok(Command::Evlist(Detail::Attrs)));
    assert_eq!(parsed("evlist -g"), Ok(Command::Evlist(Detail::Groups)));
    assert_eq!(parsed("evlist -F"), Ok(Command::Evlist(Detail::Rates)));
    for wrong in ["enablefoo", "ping pong", "stop now", "evlist -x", "\x1b[2J"] {
        let error = parsed(wrong).unwrap_err();
        assert!(error.starts_with("unknown command \"") && !error.contains('\x1b'), "{error}");
    }
    assert!(Command::parse(b"\xff").is_err());
}

/// Checks that commands come out in order, wrong ones are said, and each acknowledgement is `ack`
/// and a newline.
#[test]
fn a_conversation() {
    let (mut channel, write, read, said) = channel();
    assert_eq!(channel.take(), []);
    send(&write, b"ping\nbogus\n\nenable x\nst");
    assert_eq!(channel.take(), [Command::Ping, Command::Enable(Some("x".into()))]);
    send(&write, b"op\0");
    assert_eq!(channel.take(), [Command::Stop]);
    assert_eq!(said.lock().unwrap().len(), 1);
    assert!(said.lock().unwrap()[0].starts_with("ignored: unknown command \"bogus\""));
    channel.ack();
    let mut bytes = [0; 16];
    let count = rustix::io::read(&read, &mut bytes).unwrap();
    assert_eq!(&bytes[..count], ACK);
}

/// Checks that a last line without its end still counts, and that a channel without writers is
/// closed and stays silent.
#[test]
fn the_other_side_goes() {
    let (mut channel, write, read, said) = channel();
    send(&write, b"ping");
    drop((write, read));
    assert_eq!(channel.take(), []);
    assert_eq!(channel.take(), [Command::Ping]);
    assert!(channel.poll_fd().is_none());
    channel.ack();
    channel.ack();
    assert_eq!(channel.take(), []);
    // The test's own end of the pipe for acknowledgements may still be open; a failure is said at
    // most once.
    assert!(said.lock().unwrap().len() <= 1, "{:?}", said.lock().unwrap());
}

/// Checks that unread acknowledgements never block, and that neither they nor a flood of wrong
/// lines is repeated without end.
#[test]
fn a_hostile_peer() {
    let (mut channel, write, _read, said) = channel();
    for _ in 0..100_000 {
        channel.ack();
    }
    for _ in 0..10 {
        send(&write, &b"no\n".repeat(1000));
        assert_eq!(channel.take(), []);
    }
    assert_eq!(said.lock().unwrap().len() as u32, COMPLAINTS + 1);
}

/// Checks that the descriptors that were passed stay blocking for whoever shares them.
#[test]
fn the_peer_keeps_its_mode() {
    let (commands, _write) = pipe().unwrap();
    let channel = descriptors(&commands, None).open().unwrap();
    assert!(!fcntl_getfl(&commands).unwrap().contains(OFlags::NONBLOCK));
    assert!(fcntl_getfl(channel.poll_fd().unwrap()).unwrap().contains(OFlags::NONBLOCK));
}

/// Checks that ends that cannot work are refused by name: not open, the wrong direction, no fifo,
/// not there.
#[test]
fn wrong_ends() {
    let error = |spec: ControlSpec| spec.open().unwrap_err().to_string();
    let closed = error(ControlSpec::Descriptors { commands: i32::MAX, acks: None });
    assert!(closed.starts_with(&format!("--control: descriptor {}: is not open", i32::MAX)), "{closed}");
    let (read, write) = pipe().unwrap();
    assert!(error(descriptors(&write, None)).contains("is open for writing only"));
    assert!(error(descriptors(&read, Some(&read))).contains("is open for reading only"));
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &Path| ControlSpec::Fifos { commands: path.to_owned(), acks: None };
    let file = folder.path().join("file");
    assert!(error(at(&file)).contains("mkfifo"));
    std::fs::write(&file, "ping\n").unwrap();
    assert!(error(at(&file)).contains("is no named pipe"));
}

/// Checks that a fifo opens without anyone at its other end, and that it stays when a writer comes
/// and goes.
#[test]
fn fifos() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("commands");
    mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut channel = ControlSpec::Fifos { commands: path.clone(), acks: Some(path.clone()) }.open().unwrap();
    for _ in 0..2 {
        let writer = open(&path, OFlags::WRONLY, Mode::empty()).unwrap();
        send(&writer, b"evlist -v\n");
        drop(writer);
        assert_eq!(channel.take(), [Command::Evlist(Detail::Attrs)]);
        assert!(channel.poll_fd().is_some());
    }
}

proptest! {
    /// Checks that lines come out the same however their bytes are cut, and are never longer than
    /// the bound.
    #[test]
    fn cuts_do_not_matter(bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'a'), any::<u8>()], 0..3000), cut in 1usize..700) {
        let mut whole = Lines::default();
        let expected = whole.push(&bytes);
        let mut lines = Lines::default();
        let got: Vec<_> = bytes.chunks(cut).flat_map(|chunk| lines.push(chunk)).collect();
        prop_assert_eq!(&got, &expected);
        prop_assert!(got.iter().flatten().all(|line| line.len() <= LINE_BYTES));
        for line in got.iter().flatten() {
            let _ = Command::parse(line);
        }
    }
}
