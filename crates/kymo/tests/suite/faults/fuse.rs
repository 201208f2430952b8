//! A file system that fails as it is told: one folder in memory, whose files refuse to be written at a chosen place.
//!
//! A disk that breaks under a usual file system shows at fsync, if at all: `write` fills the page cache and succeeds. Here each write of the
//! program comes to this server before it returns (FUSE without a cache), so the error is that of the write, at the byte that was chosen. So it
//! takes the place of a device-mapper error target, and needs neither a spare disk nor that driver.
//!
//! The protocol is that of `linux/fuse.h`, version 7.31: a request is read from /dev/fuse, its answer is written there.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

/// When and how writes fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No byte is taken from this offset on; what is before it is, the header's new sizes too.
    From(u64, Errno),
    /// After so many writes nothing is taken any more.
    After(u32, Errno),
    /// Each so-manyth write is refused, so many times in all: fewer than a recorder tries.
    Passing { times: u32, every: u32, error: Errno },
    /// Each write takes so long, and none is refused.
    Slow(Duration),
    /// No read is ever answered. Files have this inode number, and the file system is of this user.
    MuteReads { inode: u64, user: u32 },
    /// After so many writes none is ever answered.
    MuteAfter(u32),
}

/// The folder's files, by the number that the kernel knows them by: 2, 3, ...
#[derive(Debug, Default)]
struct State {
    files: Vec<(Option<Vec<u8>>, Vec<u8>)>,
    writes: u32,
    refused: u32,
    /// Requests that are never answered.
    unanswered: u32,
}

/// A mounted file system.
#[derive(Debug)]
pub(super) struct Faulty {
    folder: PathBuf,
    state: Arc<Mutex<State>>,
    server: Option<JoinHandle<()>>,
}

impl Faulty {
    /// Mounts one there. `Err` says why that is not possible here.
    pub(super) fn mount(folder: &Path, fault: Fault) -> Result<Faulty, String> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|error| format!("/dev/fuse: {error}"))?;
        let copy = device.try_clone().map_err(|error| error.to_string())?;
        // The program has it as its standard input, so that its number is known.
        let mut mount = Command::new("mount");
        mount
            .args(["-i", "-t", "fuse", "-o"])
            .arg(match fault {
                Fault::MuteReads { user, .. } => {
                    format!("fd=0,rootmode=40000,user_id={user},group_id={user}")
                }
                _ => "fd=0,rootmode=40000,user_id=0,group_id=0,default_permissions".to_owned(),
            })
            .args(["none"])
            .arg(folder)
            .stdin(Stdio::from(copy))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mount = mount.spawn().map_err(|error| format!("mount: {error}"))?;
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let server = std::thread::spawn(move || serve(device, fault, &shared));
        let mounted = mount.wait_with_output().map_err(|error| error.to_string())?;
        let faulty = Faulty { folder: folder.to_owned(), state, server: Some(server) };
        if mounted.status.success() {
            Ok(faulty)
        } else {
            Err(format!("mount -t fuse: {}", String::from_utf8_lossy(&mounted.stderr).trim()))
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the server does not panic")
    }

    /// What is in a file; `None`: there is none of this name.
    pub(super) fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let file = state.files.iter().find(|file| file.0.as_deref() == Some(name.as_bytes()))?;
        Some(file.1.clone())
    }

    /// Waits until something waits for an answer that never comes.
    pub(super) fn wait_until_asked_in_vain(&self) {
        while self.state().unanswered == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends every wait for an answer, by an error.
    pub(super) fn abort(&self) {
        // It is busy; what waits for it is let go all the same.
        let _ = Command::new("umount").arg("-f").arg(&self.folder).stderr(Stdio::null()).status();
    }

    /// How many writes were refused.
    pub(super) fn refused(&self) -> u32 {
        self.state().refused
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        // Lazily: a failed test may have files open. The server ends with the last of them.
        let unmounted = Command::new("umount").arg("-l").arg(&self.folder).stderr(Stdio::null()).status();
        if unmounted.is_ok_and(|status| status.success())
            && let Some(server) = self.server.take()
            && !std::thread::panicking()
        {
            server.join().expect("the server ends with its file system");
        }
    }
}

const ROOT: u64 = 1;
const READ: u32 = 15;
const WRITE: u32 = 16;
const REQUEST_BYTES: usize = 40;
const MOST_WRITTEN: u32 = 128 << 10;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The name that ends with the first 0.
fn name_at(bytes: &[u8], at: usize) -> Vec<u8> {
    bytes[at..].split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
}

/// Answers until the file system is gone.
fn serve(mut device: File, fault: Fault, state: &Mutex<State>) {
    let mut request = vec![0; MOST_WRITTEN as usize + 4096];
    let given_up = SystemTime::now() + Duration::from_secs(10);
    loop {
        let len = match device.read(&mut request) {
            Ok(len) => len,
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                // It is not mounted yet.
                Some(Errno::PERM) if SystemTime::now() < given_up => {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                // Somebody has given up waiting for the answer.
                Some(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                _ => return,
            },
        };
        let request = &request[..len];
        let (opcode, unique) = (u32_at(request, 4), u64_at(request, 8));
        match (fault, opcode) {
            (Fault::Slow(time), WRITE) => std::thread::sleep(time),
            (Fault::MuteReads { .. }, READ) => {
                state.lock().expect("no test panics while it looks").unanswered += 1;
                continue;
            }
            (Fault::MuteAfter(writes), WRITE) => {
                let mut state = state.lock().expect("no test panics while it looks");
                if state.writes >= writes {
                    state.unanswered += 1;
                    continue;
                }
            }
            _ => {}
        }
        let answer = answer(opcode, u64_at(request, 16), &request[REQUEST_BYTES..], fault, state);
        let (error, body) = match answer {
            Answer::None => continue,
            Answer::Body(body) => (0, body),
            Answer::Error(errno) => (-errno.raw_os_error(), Vec::new()),
        };
        let mut out = (16 + body.len() as u32).to_le_bytes().to_vec();
        out.extend(error.to_le_bytes());
        out.extend(unique.to_le_bytes());
        out.extend(body);
        // Whoever asked may be gone.
        let _ = device.write(&out);
    }
}

enum Answer {
    None,
    Body(Vec<u8>),
    Error(Errno),
}

/// `struct fuse_attr`.
fn attributes(node: u64, size: u64, fault: Fault) -> Vec<u8> {
    let inode = match fault {
        Fault::MuteReads { inode, .. } if node != ROOT => inode,
        _ => node,
    };
    let mode: u32 = if node == ROOT { 0o40755 } else { 0o100_600 };
    let mut out: Vec<u8> =
        [inode, size, size.div_ceil(512), 0, 0, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
    out.extend([0, 0, 0, mode, 1, 0, 0, 0, 4096, 0].iter().flat_map(|word: &u32| word.to_le_bytes()));
    out
}

/// `struct fuse_entry_out`; nothing is valid for longer than the answer.
fn entry(node: u64, size: u64, fault: Fault) -> Vec<u8> {
    let mut out: Vec<u8> = [node, 0, 0, 0, 0].iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
    out.extend(attributes(node, size, fault));
    out
}

/// `struct fuse_open_out` of a file whose reads and writes all come here.
fn opened(direct: bool) -> Vec<u8> {
    [0, u64::from(direct)].iter().flat_map(|word: &u64| word.to_le_bytes()).collect()
}

fn answer(opcode: u32, node: u64, body: &[u8], fault: Fault, state: &Mutex<State>) -> Answer {
    let mut state = state.lock().expect("no test panics while it looks");
    let index = node.wrapping_sub(2) as usize;
    let size = |state: &State| state.files.get(index).map_or(0, |file| file.1.len() as u64);
    let find = |state: &State, name: &[u8]| {
        state.files.iter().position(|file| file.0.as_deref() == Some(name)).map(|at| at as u64 + 2)
    };
    match opcode {
        // LOOKUP
        1 => match find(&state, &name_at(body, 0)) {
            Some(node) => Answer::Body(entry(node, state.files[node as usize - 2].1.len() as u64, fault)),
            None => Answer::Error(Errno::NOENT),
        },
        // FORGET, INTERRUPT, BATCH_FORGET
        2 | 36 | 42 => Answer::None,
        // GETATTR, SETATTR
        3 | 4 => {
            const SIZE: u32 = 1 << 3;
            if opcode == 4
                && u32_at(body, 0) & SIZE != 0
                && let Some(file) = state.files.get_mut(index)
            {
                file.1.resize(u64_at(body, 16) as usize, 0);
            }
            let mut out = vec![0; 16];
            out.extend(attributes(node, size(&state), fault));
            Answer::Body(out)
        }
        // UNLINK
        10 => {
            let Some(node) = find(&state, &name_at(body, 0)) else { return Answer::Error(Errno::NOENT) };
            state.files[node as usize - 2].0 = None;
            Answer::Body(Vec::new())
        }
        // RENAME, RENAME2
        12 | 45 => {
            let from = name_at(body, if opcode == 12 { 8 } else { 16 });
            let to = name_at(body, if opcode == 12 { 8 } else { 16 } + from.len() + 1);
            let Some(node) = find(&state, &from) else { return Answer::Error(Errno::NOENT) };
            if let Some(replaced) = find(&state, &to) {
                state.files[replaced as usize - 2].0 = None;
            }
            state.files[node as usize - 2].0 = Some(to);
            Answer::Body(Vec::new())
        }
        // OPEN, OPENDIR
        14 | 27 => Answer::Body(opened(opcode == 14)),
        READ => {
            let (offset, most) = (u64_at(body, 8) as usize, u32_at(body, 16) as usize);
            let bytes = state.files.get(index).map_or(&[][..], |file| &file.1);
            Answer::Body(bytes.iter().skip(offset).take(most).copied().collect())
        }
        WRITE => write(&mut state, index, u64_at(body, 8), &body[40..], fault),
        // READDIR: the tests know what is there.
        28 => Answer::Body(Vec::new()),
        // RELEASE, FSYNC, FLUSH, RELEASEDIR, DESTROY
        18 | 20 | 25 | 29 | 38 => Answer::Body(Vec::new()),
        // INIT: writes of more than a page.
        26 => {
            const BIG_WRITES: u32 = 1 << 5;
            const MAX_PAGES: u32 = 1 << 22;
            let mut out: Vec<u8> =
                [7, 31, 0, BIG_WRITES | MAX_PAGES].iter().flat_map(|w: &u32| w.to_le_bytes()).collect();
            out.extend([0; 4]);
            out.extend(MOST_WRITTEN.to_le_bytes());
            out.extend(1u32.to_le_bytes());
            out.extend((MOST_WRITTEN / 4096).to_le_bytes());
            out.resize(64, 0);
            Answer::Body(out)
        }
        // CREATE
        35 => {
            state.files.push((Some(name_at(body, 16)), Vec::new()));
            let mut out = entry(state.files.len() as u64 + 1, 0, fault);
            out.extend(opened(true));
            Answer::Body(out)
        }
        _ => Answer::Error(Errno::NOSYS),
    }
}

fn write(state: &mut State, index: usize, offset: u64, bytes: &[u8], fault: Fault) -> Answer {
    let number = state.writes;
    state.writes += 1;
    let (room, error) = match fault {
        Fault::From(place, error) => (place.saturating_sub(offset), error),
        Fault::After(writes, error) => (if number < writes { u64::MAX } else { 0 }, error),
        Fault::Slow(_) | Fault::MuteReads { .. } | Fault::MuteAfter(_) => (u64::MAX, Errno::IO),
        Fault::Passing { times, every, error } => {
            let refused = number % every == every - 1 && state.refused < times;
            (if refused { 0 } else { u64::MAX }, error)
        }
    };
    let bytes = &bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
    if bytes.is_empty() {
        state.refused += 1;
        return Answer::Error(error);
    }
    let Some(file) = state.files.get_mut(index) else { return Answer::Error(Errno::BADF) };
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    if file.1.len() < end {
        file.1.resize(end, 0);
    }
    file.1[start..end].copy_from_slice(bytes);
    let mut out = (bytes.len() as u32).to_le_bytes().to_vec();
    out.extend([0; 4]);
    Answer::Body(out)
}
