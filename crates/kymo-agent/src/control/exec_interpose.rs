//! Programs that cannot have the agent in them come up without it: what this program executes is
//! looked at when it is executed.
//!
//! ```text
//!   execve in the C library               here                                           kernel
//!     mov eax, 59  --jmp-->   does the program fit? (preload_check.rs)
//!     syscall                 no: the environment without us, and kymo is told
//!                             the system call itself          ------------------------>  executes
//!     cmp rax, -4095  <--jmp--  it has failed
//! ```
//! All ways of the C library to execute a program (`execvp`, `posix_spawn`, `system`, `popen`, ...)
//! come to one of three system calls of it, whose instruction is replaced when the program begins
//! and has one thread (where the kernel forbids it that, by the tracer, a moment later). It is one
//! whole instruction of five bytes, so a probe of kymo or of the
//! kernel at the function works as ever. A C library that is made otherwise stays as it is.
//!
//! # Invariants
//! - **X1** The caller's memory is not changed, and what is made here is not in the way of a
//!   program that goes on: a child of `vfork` runs in its parent's.
//! - **X2** Nothing is allocated by the C library, no lock is taken, and whatever fails leaves the
//!   call as it was asked for.
//! - **X3** Where a filter of system calls was put on since the program began, nothing is asked
//!   that a program does not need to begin.
//!
//! # Safety
//! What callers pass is read as the kernel would read it; the rest is system calls with numbers and
//! memory of this file. The ways in are code that keeps all registers but those that the system
//! call changes.
#![allow(unsafe_code)]
use super::peer;
use super::preload_check::{PreloadCheck, check, starts_with};
use crate::patch::{self, Holder, OwnMemory};
use crate::sys::lock;
use crate::sys::raw::{self, call};
use std::arch::naked_asm;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// The file of this library, as the environment names it; null before [`install`].
static LIBRARY: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
/// Filters of system calls that there were when the program began.
static FILTERS: AtomicU32 = AtomicU32::new(0);
/// Where a thread's own words have its number, from the thread pointer; 0: not known.
static TID_AT: AtomicU64 = AtomicU64::new(0);

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const WHERE: &[u8] = b"KYMO_AGENT_AT=";
/// The kernel takes fewer.
const MOST_VARIABLES: usize = 1 << 20;

/// A way in: a place in the C library jumps here, and it goes on behind that system call.
macro_rules! way {
    ($way:ident, $next:ident, $instead:ident) => {
        /// Where it goes on.
        static $next: AtomicU64 = AtomicU64::new(0);

        #[unsafe(naked)]
        unsafe extern "C" fn $way() {
            naked_asm!(
                "lea rsp, [rsp - 128]",
                "push rbp",
                "mov rbp, rsp",
                "push r9",
                "push r8",
                "push r10",
                "push rdx",
                "push rsi",
                "push rdi",
                "mov rdi, rsp",
                "and rsp, -16",
                "call {instead}",
                "lea rsp, [rbp - 48]",
                "pop rdi",
                "pop rsi",
                "pop rdx",
                "pop r10",
                "pop r8",
                "pop r9",
                "pop rbp",
                "lea rsp, [rsp + 128]",
                "mov rcx, qword ptr [rip + {next}]",
                "jmp rcx",
                instead = sym $instead,
                next = sym $next,
            )
        }
    };
}

way!(way_of_execve, EXECVE_NEXT, execve);
way!(way_of_execveat, EXECVEAT_NEXT, execveat);
way!(way_of_fexecve, FEXECVE_NEXT, execveat);

extern "C" fn execve(registers: &[u64; 6]) -> i64 {
    let [path, _, environment, ..] = *registers;
    executes(libc::SYS_execve, registers, (libc::AT_FDCWD, path, 0), (environment, 2))
}

extern "C" fn execveat(registers: &[u64; 6]) -> i64 {
    let [folder, path, _, environment, flags, _] = *registers;
    executes(libc::SYS_execveat, registers, (folder as c_int, path, flags), (environment, 3))
}

/// Makes the call, with another environment if it must be. `number` says which of the registers has
/// that.
fn executes(
    name: libc::c_long,
    registers: &[u64; 6],
    (folder, path, flags): (c_int, u64, u64),
    (environment, number): (u64, usize),
) -> i64 {
    let mut changed = *registers;
    let mut room = None;
    // What is nowhere is the kernel's to refuse.
    let is_there = |at: u64, bytes: usize| raw::peek(at, &mut [0; 8][..bytes]) == bytes;
    let library = LIBRARY.load(Ordering::Relaxed);
    if !library.is_null() && is_there(path, 1) && is_there(environment, 8) {
        // SAFETY: a text that stays, as the loader keeps it.
        let library = unsafe { CStr::from_ptr(library) };
        // SAFETY: there, and a text for the kernel.
        let path = unsafe { CStr::from_ptr(path as *const c_char) };
        let environment = Environment { at: environment as *const *const c_char, library };
        if environment.has_us() {
            let fit = if is_filtered() {
                // Not another word (X3).
                PreloadCheck::Not("")
            } else {
                check(folder, path, flags, library)
            };
            if let PreloadCheck::Not(why) = fit {
                room = environment.without_us();
                if let Some(room) = &room {
                    changed[number] = room.at;
                    if !why.is_empty() {
                        environment.tell(why, path);
                    }
                }
            }
        }
    }
    // SAFETY: the call that was asked for.
    let failed = unsafe { call(name, changed) };
    if let Some(room) = room {
        room.give_back();
    }
    failed
}

struct Environment<'a> {
    at: *const *const c_char,
    library: &'a CStr,
}

impl Environment<'_> {
    fn each(&self) -> impl Iterator<Item = &CStr> {
        let word = |number: usize| {
            // SAFETY: of a list that ends with a null, for the kernel.
            let text = unsafe { self.at.wrapping_add(number).read() };
            // SAFETY: a text of that list.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
        };
        (0..MOST_VARIABLES).map_while(word)
    }

    /// Where the library is named in a variable: from, to.
    fn named(&self, variable: &[u8]) -> Option<(usize, usize)> {
        if !starts_with(variable, PRELOAD) {
            return None;
        }
        let library = self.library.to_bytes();
        let is_end = |at: usize| variable.get(at).is_none_or(|byte| matches!(byte, b':' | b' '));
        let begins = |at: &usize| *at == PRELOAD.len() || is_end(*at - 1);
        let starts = (PRELOAD.len()..variable.len()).filter(begins);
        let mut places = starts.map(|from| (from, from + library.len()));
        places.find(|(from, to)| is_end(*to) && starts_with(&variable[*from..], library))
    }

    fn has_us(&self) -> bool {
        self.each().any(|variable| self.named(variable.to_bytes()).is_some())
    }

    /// The same without what is ours.
    fn without_us(&self) -> Option<ExecMemory> {
        let (mut variables, mut text_bytes) = (1, 0);
        for variable in self.each() {
            variables += 1;
            if self.named(variable.to_bytes()).is_some() {
                text_bytes += variable.to_bytes().len() + 1;
            }
        }
        let room = ExecMemory::of(variables * 8 + text_bytes)?;
        let (mut list, mut text) = (room.at as *mut u64, room.at + variables as u64 * 8);
        let mut put = |word: u64| {
            // SAFETY: inside of the room, which has a word for each variable and one more.
            unsafe { list.write(word) };
            list = list.wrapping_add(1);
        };
        for variable in self.each() {
            let bytes = variable.to_bytes();
            match self.named(bytes) {
                // With the separator before it, or behind it.
                Some((from, to)) if bytes.len() > PRELOAD.len() + (to - from) => {
                    let (from, to) = if from > PRELOAD.len() { (from - 1, to) } else { (from, to + 1) };
                    put(text);
                    for byte in bytes[..from].iter().chain(&bytes[to..]).chain(&[0]) {
                        // SAFETY: inside of the room, which has place for the whole variable.
                        unsafe { (text as *mut u8).write(*byte) };
                        text += 1;
                    }
                }
                Some(_) => {}
                None if starts_with(bytes, WHERE) => {}
                None => put(variable.as_ptr() as u64),
            }
        }
        put(0);
        Some(room)
    }

    /// Tells the one who listens which program comes up without us. If nobody does, nobody is told.
    fn tell(&self, why: &str, path: &CStr) {
        const MOST_PATH_BYTES: usize = 160;
        let Some(at) = self.each().find_map(|variable| variable.to_bytes().strip_prefix(WHERE)) else {
            return;
        };
        let mut parts = at.split(|byte| *byte == b'.');
        let (Some(name), Some(password)) = (parts.next(), parts.next()) else { return };
        let mut said = Sentence { bytes: [0; 320], used: 0 };
        let path = path.to_bytes();
        for part in [password, b".", why.as_bytes(), b"\n", &path[..path.len().min(MOST_PATH_BYTES)]] {
            said.add(part);
        }
        let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
        // SAFETY: three numbers.
        let socket = unsafe { call(libc::SYS_socket, [libc::AF_UNIX as u64, kind, 0, 0, 0, 0]) };
        let Ok(socket) = c_int::try_from(socket) else { return };
        if socket < 0 {
            return;
        }
        if connect(socket, name) && may_be_told(socket) && raw::send(socket, &said.bytes[..said.used]).is_ok()
        {
            // Who has heard it hangs up; so it is known before the program can end.
            const MOST_MS: u64 = 1000;
            let mut end = libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry that is ours.
            unsafe { call(libc::SYS_poll, [(&raw mut end) as u64, 1, MOST_MS, 0, 0, 0]) };
        }
        // SAFETY: our own.
        unsafe { call(libc::SYS_close, [socket as u64, 0, 0, 0, 0, 0]) };
    }
}

struct Sentence {
    bytes: [u8; 320],
    used: usize,
}

impl Sentence {
    fn add(&mut self, part: &[u8]) {
        for (place, byte) in self.bytes[self.used..].iter_mut().zip(part) {
            *place = *byte;
            self.used += 1;
        }
    }
}

fn connect(socket: c_int, name: &[u8]) -> bool {
    let Some((address, length)) = peer::address(name) else { return false };
    let length = u64::from(length);
    // SAFETY: an address that is ours and as long as said.
    unsafe { call(libc::SYS_connect, [socket as u64, (&raw const address) as u64, length, 0, 0, 0]) == 0 }
}

/// Whether the listener is of a user who may command this program.
fn may_be_told(socket: c_int) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: peer::NO_USER, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, what) = (libc::SOL_SOCKET as u64, libc::SO_PEERCRED as u64);
    let (into, bytes) = ((&raw mut peer) as u64, (&raw mut length) as u64);
    // SAFETY: fills what is ours and as long as said.
    let asked = unsafe { call(libc::SYS_getsockopt, [socket as u64, level, what, into, bytes, 0]) };
    // SAFETY: asks for a number.
    let own = unsafe { call(libc::SYS_geteuid, [0; 6]) } as libc::uid_t;
    // SAFETY: our own variable, which the kernel has written.
    let listener = unsafe { (&raw const peer.uid).read_volatile() };
    asked == 0 && peer::may_command(listener, own, peer::users_are_known())
}

/// Memory until a program is executed.
struct ExecMemory {
    at: u64,
    bytes: u64,
    /// A child of `vfork` has one of these, as the memory is its parent's and stays.
    place: Option<&'static VforkMemory>,
}

/// Memory of children of `vfork`, used again.
struct VforkMemory {
    /// The child; 0: nobody. The kernel clears it when that ends or executes a program, which
    /// nobody else could notice.
    owner: AtomicU32,
    at: AtomicU64,
    bytes: AtomicU64,
}

const PLACES: usize = 32;
static SHARED_MEMORY: [VforkMemory; PLACES] =
    [const { VforkMemory { owner: AtomicU32::new(0), at: AtomicU64::new(0), bytes: AtomicU64::new(0) } };
        PLACES];

impl ExecMemory {
    fn of(bytes: usize) -> Option<ExecMemory> {
        let bytes = (bytes as u64).next_multiple_of(4096);
        let guest = guest();
        // Acquire: pairs with the Release in give_back(); what a child whose place the kernel has
        // freed wrote is long there.
        let free = |place: &&VforkMemory| {
            place.owner.compare_exchange(0, guest, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let Some(place) = (guest != 0).then(|| SHARED_MEMORY.iter().find(free)).flatten() else {
            // Of more children at a time than there are places one page each is lost.
            return Some(ExecMemory { at: map(bytes)?, bytes, place: None });
        };
        // SAFETY: a word that stays. Such a child has none of its own.
        unsafe { call(libc::SYS_set_tid_address, [place.owner.as_ptr() as u64, 0, 0, 0, 0, 0]) };
        let (at, had) = (place.at.load(Ordering::Relaxed), place.bytes.load(Ordering::Relaxed));
        let room = |at: u64, bytes: u64| ExecMemory { at, bytes, place: Some(place) };
        if had >= bytes {
            return Some(room(at, had));
        }
        unmap(at, had);
        place.bytes.store(0, Ordering::Relaxed);
        let Some(at) = map(bytes) else {
            room(0, 0).give_back();
            return None;
        };
        place.at.store(at, Ordering::Relaxed);
        place.bytes.store(bytes, Ordering::Relaxed);
        Some(room(at, bytes))
    }

    /// The call has failed.
    fn give_back(self) {
        match self.place {
            Some(place) => {
                // SAFETY: it has none, as before.
                unsafe { call(libc::SYS_set_tid_address, [0; 6]) };
                // Release: pairs with the Acquire in of().
                place.owner.store(0, Ordering::Release);
            }
            None => unmap(self.at, self.bytes),
        }
    }
}

fn map(bytes: u64) -> Option<u64> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, wherever the kernel likes.
    let at = unsafe { call(libc::SYS_mmap, [0, bytes, access as u64, flags as u64, u64::MAX, 0]) };
    u64::try_from(at).ok()
}

fn unmap(at: u64, bytes: u64) {
    if bytes > 0 {
        // SAFETY: a mapping of ours that nobody uses.
        unsafe { call(libc::SYS_munmap, [at, bytes, 0, 0, 0, 0]) };
    }
}

/// The calling thread's number, if it is a child of `vfork`: then its thread pointer is its
/// parent's, and so is the number there. 0 otherwise.
fn guest() -> u32 {
    let (at, own) = (TID_AT.load(Ordering::Relaxed), raw::thread());
    if at == 0 || own_word(at) as u32 == own { 0 } else { own }
}

/// A word behind the thread pointer.
fn own_word(at: u64) -> u64 {
    let word: u64;
    // SAFETY: inside of what the C library keeps of a thread.
    unsafe {
        std::arch::asm!("mov {}, qword ptr fs:[{}]", out(reg) word, in(reg) at, options(nostack, readonly))
    };
    word
}

/// Whether system calls are filtered that were not when the program began.
fn is_filtered() -> bool {
    let mut text = [0; 2048];
    // That it cannot be told counts as none: a program that has no such files is filtered by other
    // means, if it is.
    let got = raw::text(c"/proc/self/status", &mut text);
    filters(&text[..got]) > FILTERS.load(Ordering::Relaxed)
}

/// The number of filters that a status file tells; 1 for a mode, where it tells no number.
fn filters(status: &[u8]) -> u32 {
    let number = |name: &[u8]| {
        let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
        let digits = line.iter().filter(|byte| byte.is_ascii_digit());
        Some(digits.fold(0_u32, |number, digit| number.wrapping_mul(10) + u32::from(*digit - b'0')))
    };
    number(b"Seccomp_filters:").or(number(b"Seccomp:")).unwrap_or(0)
}

/// A place in the C library, what is there, and what is to be there.
type PendingWrite = (u64, [u8; JUMP_BYTES], [u8; JUMP_BYTES]);

/// What is to be written into the C library.
static TO_WRITE: Mutex<Vec<PendingWrite>> = Mutex::new(Vec::new());

/// Has the one who holds the threads write what this process could not.
pub(super) fn finish(holder: &mut Holder<'_>) {
    let mut left = lock(&TO_WRITE);
    if !left.is_empty() && patch::write_code(&left, holder).is_ok() {
        left.clear();
    }
}

/// To be called by the program's only thread, before it begins: where nobody could write the way
/// in, what it executes comes up without the agent, because the variables are taken out.
pub(super) fn settle() {
    let library = LIBRARY.load(Ordering::Relaxed);
    if library.is_null() || lock(&TO_WRITE).is_empty() {
        return;
    }
    // SAFETY: a text that stays, as the loader keeps it.
    let library = unsafe { CStr::from_ptr(library) };
    // SAFETY: a name. Nobody else has begun who could change the environment.
    let variable = unsafe { libc::getenv(c"LD_PRELOAD".as_ptr()) };
    let mut rest = Vec::new();
    if !variable.is_null() {
        // SAFETY: a text of the environment.
        let variable = unsafe { CStr::from_ptr(variable) }.to_bytes();
        let parts = variable.split(|byte| matches!(byte, b':' | b' '));
        let others: Vec<&[u8]> = parts.filter(|part| *part != library.to_bytes()).collect();
        rest = others.join(&b':');
    }
    // SAFETY: a name; likewise.
    unsafe { libc::unsetenv(c"KYMO_AGENT_AT".as_ptr()) };
    match CString::new(rest) {
        // SAFETY: two texts; likewise.
        Ok(rest) if !rest.is_empty() => _ = unsafe { libc::setenv(c"LD_PRELOAD".as_ptr(), rest.as_ptr(), 1) },
        // SAFETY: a name; likewise.
        _ => _ = unsafe { libc::unsetenv(c"LD_PRELOAD".as_ptr()) },
    }
}

/// From now on what this program executes is looked at. To be called before it has threads; does
/// nothing where the C library is of a kind that is not known.
///
/// Where the kernel does not let the process write its own code, [`finish`] does it, or [`settle`].
pub(super) fn install() {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let Some(library) = own_file() else { return };
    // Relaxed, here and below: there is one thread.
    if threads != 1 || !LIBRARY.load(Ordering::Relaxed).is_null() {
        return;
    }
    let status = std::fs::read("/proc/self/status").unwrap_or_default();
    FILTERS.store(filters(&status), Ordering::Relaxed);
    /// In all C libraries that have it there.
    const OFTEN_AT: u64 = 0x2d0;
    if own_word(OFTEN_AT) as u32 == raw::thread() {
        TID_AT.store(OFTEN_AT, Ordering::Relaxed);
    }
    let memory = OwnMemory::open();
    // SAFETY: a name; the C library is there, and stays.
    let c_library = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    let (Ok(memory), false) = (memory, c_library.is_null()) else { return };
    let ways = [
        (c"execve", libc::SYS_execve, 16, way_of_execve as *const () as u64, &EXECVE_NEXT),
        (c"execveat", libc::SYS_execveat, 16, way_of_execveat as *const () as u64, &EXECVEAT_NEXT),
        (c"fexecve", libc::SYS_execveat, 256, way_of_fexecve as *const () as u64, &FEXECVE_NEXT),
    ];
    LIBRARY.store(library.cast_mut(), Ordering::Relaxed);
    for (name, number, within, way, next) in ways {
        // SAFETY: a module and a name.
        let function = unsafe { libc::dlsym(c_library, name.as_ptr()) } as u64;
        let Some(at) = call_of(function, number as u32, within) else { continue };
        let Ok(distance) = i32::try_from(way.wrapping_sub(at + 5).cast_signed()) else { continue };
        next.store(at + CALL_BYTES as u64, Ordering::Relaxed);
        let [a, b, c, d] = distance.to_le_bytes();
        let jump = [0xe9, a, b, c, d];
        // By the kernel, so that no page is writable and executable.
        if memory.is_forced() {
            _ = memory.write(at, &jump);
        } else {
            let mut there = [0; JUMP_BYTES];
            if raw::peek(at, &mut there) == JUMP_BYTES {
                lock(&TO_WRITE).push((at, there, jump));
            }
        }
    }
    // SAFETY: what was opened above.
    unsafe { libc::dlclose(c_library) };
}

const CALL_BYTES: usize = 7;
const JUMP_BYTES: usize = 5;

/// Where a function makes a system call of this number: `mov eax, number; syscall`.
fn call_of(function: u64, number: u32, within: usize) -> Option<u64> {
    let [a, b, c, d] = number.to_le_bytes();
    let call: [u8; CALL_BYTES] = [0xb8, a, b, c, d, 0x0f, 0x05];
    let mut code = [0; 256];
    let got = if function == 0 { 0 } else { raw::peek(function, &mut code[..within]) };
    let at = code[..got].windows(CALL_BYTES).position(|bytes| bytes == call)?;
    Some(function + at as u64)
}

/// As the loader has it, which is as it was told.
fn own_file() -> Option<*const c_char> {
    // SAFETY: plain pointers, for which 0 is a value.
    let mut about: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address of this library, and a structure that is ours.
    let found = unsafe { libc::dladdr(install as *const c_void, &mut about) };
    (found != 0 && !about.dli_fname.is_null()).then_some(about.dli_fname)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn environment<T>(variables: &[&str], with: impl FnOnce(&Environment<'_>) -> T) -> T {
        let texts: Vec<CString> = variables.iter().map(|text| CString::new(*text).unwrap()).collect();
        let mut list: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        list.push(std::ptr::null());
        with(&Environment { at: list.as_ptr(), library: c"/a/agent.so" })
    }

    fn without(variables: &[&str]) -> Vec<String> {
        environment(variables, |environment| {
            let room = environment.without_us().unwrap();
            let left = Environment { at: room.at as *const *const c_char, library: c"" };
            let left = left.each().map(|text| text.to_str().unwrap().to_owned()).collect();
            room.give_back();
            left
        })
    }

    /// Checks that what is ours goes and all else stays, in its order: libraries that others
    /// preload, too.
    #[test]
    fn what_is_ours() {
        let has = |variable: &str| environment(&["A=b", variable], |environment| environment.has_us());
        assert!(has("LD_PRELOAD=/a/agent.so") && has("LD_PRELOAD=x.so:/a/agent.so y.so"));
        for other in ["LD_PRELOAD=", "LD_PRELOAD=/a/agent.so.1", "LD_PRELOAD=/b/a/agent.so", "X=/a/agent.so"]
        {
            assert!(!has(other), "{other}");
        }
        let of = |variable: &str| without(&["A=b", variable, "KYMO_AGENT_AT=a.b", "C="]);
        assert_eq!(of("LD_PRELOAD=/a/agent.so"), ["A=b", "C="]);
        assert_eq!(of("LD_PRELOAD=x.so:/a/agent.so"), ["A=b", "LD_PRELOAD=x.so", "C="]);
        assert_eq!(of("LD_PRELOAD=/a/agent.so:x.so"), ["A=b", "LD_PRELOAD=x.so", "C="]);
        assert_eq!(of("LD_PRELOAD=x.so:/a/agent.so y.so"), ["A=b", "LD_PRELOAD=x.so y.so", "C="]);
        let many: Vec<String> = (0..3000).map(|number| format!("V{number}={number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(without(&[&many[..], &["LD_PRELOAD=/a/agent.so"]].concat()), many);
    }

    /// Checks that filters are counted as the kernel tells them, old and new.
    #[test]
    fn filters_are_told() {
        assert_eq!(filters(b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t13\nA:\t1\n"), 13);
        assert_eq!(filters(b"Name:\tx\nSeccomp:\t2\n"), 2);
        assert_eq!(filters(b"Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"), 0);
        assert_eq!(filters(b""), 0);
    }

    /// Checks that the system calls are where they are looked for, in the C library that this
    /// program has.
    #[test]
    fn calls_of_the_c_library() {
        let [execve, execveat, fexecve] = [c"execve", c"execveat", c"fexecve"].map(|name| {
            // SAFETY: a name.
            unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as u64 }
        });
        assert!(call_of(execve, libc::SYS_execve as u32, 16).is_some());
        assert!(call_of(execveat, libc::SYS_execveat as u32, 16).is_some());
        assert!(call_of(fexecve, libc::SYS_execveat as u32, 256).is_some());
        assert_eq!(call_of(0, 59, 16), None);
        assert_eq!(guest(), 0);
    }
}
