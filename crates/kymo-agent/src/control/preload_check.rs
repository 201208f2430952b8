//! Whether a program that is about to be executed can have the agent in it, by what its file says;
//! and the agent's library, by whether it is there.
//!
//! It is asked in children of `vfork` and on any stack: nothing is allocated, no function of any
//! library is called, and little of the stack is used. Files are the program's and not to be
//! believed: what is read is bounded.
//!
//! # Safety
//! System calls with numbers, texts that end with a zero, and memory of this file.
#![allow(unsafe_code)]
use crate::sys::raw::call;
use std::ffi::{CStr, c_int};

/// What becomes of a program with the agent's library in its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreloadCheck {
    /// It comes up with the agent in it.
    Well,
    /// There is nothing that could be executed.
    Nothing,
    /// It would not come up, or say something, or the library is ignored: the reason.
    Not(&'static str),
}

/// Runtimes that end a program which loads any library before them.
const FIRST: [&[u8]; 3] = [b"libasan.so", b"libhwasan.so", b"libtsan.so"];
/// A script that is run by a script, and so on: no kernel goes further.
const SCRIPTS: u32 = 6;
const LINE_BYTES: usize = 256;

/// A file of this process, closed when it is not needed any more.
struct File(c_int);

impl File {
    fn open(folder: c_int, path: &CStr, flags: u64) -> Result<File, PreloadCheck> {
        const EMPTY_PATH: u64 = libc::AT_EMPTY_PATH as u64;
        // A pipe is not waited for.
        let access = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY) as u64;
        let opened = if path.is_empty() && flags & EMPTY_PATH != 0 {
            // A descriptor that may have been opened for being executed only is opened anew.
            let mut own = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
            digits(folder, &mut own[14..25]);
            // SAFETY: a text that ends with a zero, and numbers.
            unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as u64, own.as_ptr() as u64, access, 0, 0, 0]) }
        } else {
            // SAFETY: as above.
            unsafe { call(libc::SYS_openat, [folder as u64, path.as_ptr() as u64, access, 0, 0, 0]) }
        };
        match -opened as c_int {
            libc::EACCES | libc::EPERM => Err(PreloadCheck::Not("not readable")),
            1.. => Err(PreloadCheck::Nothing),
            _ => Ok(File(opened as c_int)),
        }
    }

    /// Reads as much as there is.
    fn some(&self, at: u64, into: &mut [u8]) -> usize {
        crate::sys::raw::read_at(self.0, into, at).unwrap_or(0)
    }

    /// Numbers at a place of the file, or nothing.
    fn words<const N: usize>(&self, at: u64) -> Option<[u64; N]> {
        let mut words = [0_u64; N];
        let into = (&raw mut words).cast::<u8>();
        // SAFETY: the bytes of our own words, which any bytes are.
        let into = unsafe { std::slice::from_raw_parts_mut(into, N * 8) };
        (self.some(at, into) == N * 8).then_some(words)
    }

    /// Whether executing it gives rights, so that its dynamic linker ignores the environment.
    fn gives_rights(&self) -> Result<bool, PreloadCheck> {
        // SAFETY: plain numbers, for which 0 is a value.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: writes what is ours.
        let asked = unsafe { call(libc::SYS_fstat, [self.0 as u64, (&raw mut about) as u64, 0, 0, 0, 0]) };
        if asked != 0 || about.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(PreloadCheck::Nothing);
        }
        let name = c"security.capability".as_ptr() as u64;
        // SAFETY: a text that ends with a zero; nothing is written.
        let rights = unsafe { call(libc::SYS_fgetxattr, [self.0 as u64, name, 0, 0, 0, 0]) };
        Ok(about.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0 || rights > 0)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: our own descriptor.
        unsafe { call(libc::SYS_close, [self.0 as u64, 0, 0, 0, 0, 0]) };
    }
}

/// Writes a number of at least 0.
fn digits(number: c_int, into: &mut [u8]) {
    let (mut left, mut count) = (number.max(0), 1);
    while left >= 10 {
        left /= 10;
        count += 1;
    }
    left = number.max(0);
    for at in (0..count).rev() {
        into[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
}

/// Whether the program fits, and the library is where the environment says that it is. Scripts are
/// what their first lines name.
pub(super) fn check(folder: c_int, path: &CStr, flags: u64, library: &CStr) -> PreloadCheck {
    let there = library.as_ptr() as u64;
    // SAFETY: a text that ends with a zero, and numbers.
    let found =
        unsafe { call(libc::SYS_faccessat, [libc::AT_FDCWD as u64, there, libc::R_OK as u64, 0, 0, 0]) };
    if found != 0 {
        return PreloadCheck::Not("where the agent's library is not found");
    }
    match File::open(folder, path, flags) {
        Ok(file) => check_file(&file, SCRIPTS),
        Err(fit) => fit,
    }
}

fn check_file(file: &File, scripts: u32) -> PreloadCheck {
    match file.gives_rights() {
        Err(fit) => return fit,
        Ok(true) => return PreloadCheck::Not("setuid, setgid, or with capabilities"),
        Ok(false) => {}
    }
    let mut head = [0; LINE_BYTES + 1];
    let got = file.some(0, &mut head[..LINE_BYTES]);
    match head {
        [b'#', b'!', ..] => match interpreter(&mut head) {
            Some(at) if scripts > 1 => {
                let Ok(path) = CStr::from_bytes_until_nul(&head[at..]) else { return PreloadCheck::Nothing };
                // No deeper than needed: the stack may be small.
                match File::open(libc::AT_FDCWD, path, 0) {
                    Ok(next) => check_file(&next, scripts - 1),
                    Err(fit) => fit,
                }
            }
            _ => PreloadCheck::Nothing,
        },
        [0x7f, b'E', b'L', b'F', class, order, ..] if got >= 64 => {
            let machine = u16::from(head[18]) | u16::from(head[19]) << 8;
            if class != 2 || order != 1 || i32::from(machine) != libc::EM_X86_64 as i32 {
                return PreloadCheck::Not("of 32 bits or for another processor");
            }
            let word = |at: usize| {
                let bytes = head.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
                bytes.map_or(0, u64::from_le_bytes)
            };
            check_program(file, word(32), (word(54) & 0xffff, word(56) & 0xffff))
        }
        // Whoever runs it, it is not the kernel alone.
        _ if got > 0 => PreloadCheck::Not("neither a program nor a script"),
        _ => PreloadCheck::Nothing,
    }
}

/// Where the name of a script's interpreter begins; a zero is put behind it.
fn interpreter(head: &mut [u8; LINE_BYTES + 1]) -> Option<usize> {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let from = 2 + head[2..].iter().position(|byte| !blank(byte))?;
    let bytes = head[from..].iter().position(|byte| blank(byte) || matches!(byte, b'\n' | 0))?;
    head[from + bytes] = 0;
    (bytes > 0).then_some(from)
}

/// A part of a program that is loaded: offset, address, bytes.
type Load = [u64; 3];

/// By its parts: `table` has `count` entries of so many bytes.
fn check_program(file: &File, table: u64, (bytes, count): (u64, u64)) -> PreloadCheck {
    const MOST_PARTS: u64 = 256;
    const MOST_LOADS: usize = 12;
    if bytes != 56 || count > MOST_PARTS {
        return PreloadCheck::Not("of an odd kind");
    }
    let (mut linker, mut dynamic, mut loads, mut loaded) = (None, None, [[0; 3]; MOST_LOADS], 0);
    for number in 0..count {
        let Some([kind, offset, address, _, bytes]) = file.words(table.saturating_add(number * 56)) else {
            return PreloadCheck::Nothing;
        };
        match kind as u32 {
            libc::PT_LOAD if loaded < MOST_LOADS => {
                loads[loaded] = [offset, address, bytes];
                loaded += 1;
            }
            libc::PT_DYNAMIC => dynamic = Some((offset, bytes)),
            libc::PT_INTERP => linker = Some((offset, bytes)),
            _ => {}
        }
    }
    let Some((at, bytes)) = linker else { return PreloadCheck::Not("linked statically") };
    let mut name = [0; LINE_BYTES];
    let got = file.some(at, &mut name[..(bytes as usize).min(LINE_BYTES)]);
    let last = name[..got].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    if !starts_with(&name[last..got], b"ld-linux") {
        return PreloadCheck::Not("not for the GNU C library");
    }
    match dynamic {
        Some((at, bytes)) if needs_to_be_first(file, at, bytes, &loads[..loaded]) => {
            PreloadCheck::Not("with a sanitizer that must be loaded first")
        }
        _ => PreloadCheck::Well,
    }
}

pub(super) fn starts_with(bytes: &[u8], with: &[u8]) -> bool {
    bytes.len() >= with.len() && bytes.iter().zip(with).all(|(a, b)| a == b)
}

/// Whether one of the libraries that it needs must be loaded before all others.
fn needs_to_be_first(file: &File, at: u64, bytes: u64, loads: &[Load]) -> bool {
    const NEEDED: u64 = 1;
    const STRINGS: u64 = 5;
    const MOST_ENTRIES: u64 = 4096;
    let entry = |number: u64| file.words::<2>(at.saturating_add(number * 16)).filter(|entry| entry[0] != 0);
    let entries = || (0..(bytes / 16).min(MOST_ENTRIES)).map_while(entry);
    let Some([_, strings]) = entries().find(|[tag, _]| *tag == STRINGS) else { return false };
    let holds = |load: &&Load| strings.checked_sub(load[1]).is_some_and(|at| at < load[2]);
    let Some([offset, address, _]) = loads.iter().find(holds) else { return false };
    let strings = offset.saturating_add(strings - address);
    entries().filter(|[tag, _]| *tag == NEEDED).any(|[_, name]| {
        let mut start = [0; 16];
        let got = file.some(strings.saturating_add(name), &mut start);
        FIRST.iter().any(|first| starts_with(&start[..got], first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn fit(path: &Path) -> PreloadCheck {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        check(libc::AT_FDCWD, &path, 0, c"/dev/null")
    }

    /// Checks that this program fits, a script of it does, and copies do not that are setuid, cut,
    /// of 32 bits, unknown, or not there; and none where the library is not.
    #[test]
    fn files() {
        let folder = std::env::temp_dir().join(format!("kymo-fits-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (own, copy) = (std::env::current_exe().unwrap(), folder.join("copy"));
        assert_eq!(fit(&own), PreloadCheck::Well);
        let name = CString::new(own.as_os_str().as_encoded_bytes()).unwrap();
        assert!(matches!(check(libc::AT_FDCWD, &name, 0, c"/no/such/library"), PreloadCheck::Not(_)));
        let content = std::fs::read(&own).unwrap();
        let write = |bytes: &[u8], mode: u32| {
            std::fs::write(&copy, bytes).unwrap();
            std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(mode)).unwrap();
            fit(&copy)
        };
        assert!(matches!(write(&content, 0o4755), PreloadCheck::Not(why) if why.contains("setuid")));
        let mut other = content[..4096].to_vec();
        other[4] = 1;
        assert!(matches!(write(&other, 0o755), PreloadCheck::Not(why) if why.contains("32 bits")));
        assert!(matches!(write(b"words\n", 0o755), PreloadCheck::Not(_)));
        assert_eq!(write(b"", 0o755), PreloadCheck::Nothing);
        let script = |path: &Path| format!("#! \t{} -x\necho\n", path.display());
        assert_eq!(write(script(&own).as_bytes(), 0o755), PreloadCheck::Well);
        assert_eq!(write(b"#!/no/such/interpreter\n", 0o755), PreloadCheck::Nothing);
        // By itself, for ever.
        assert_eq!(write(script(&copy).as_bytes(), 0o755), PreloadCheck::Nothing);
        for bytes in (0..4096).step_by(7) {
            // Whatever is cut off.
            _ = write(&content[..bytes], 0o755);
        }
        assert_eq!(fit(&folder), PreloadCheck::Nothing);
        assert_eq!(fit(Path::new("/no/such/program")), PreloadCheck::Nothing);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Checks that a program is known by its descriptor, too.
    #[test]
    fn by_descriptor() {
        use std::os::fd::AsRawFd;
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let empty = libc::AT_EMPTY_PATH as u64;
        assert_eq!(check(file.as_raw_fd(), c"", empty, c"/dev/null"), PreloadCheck::Well);
        assert_eq!(check(1_234_567, c"", empty, c"/dev/null"), PreloadCheck::Nothing);
    }
}
