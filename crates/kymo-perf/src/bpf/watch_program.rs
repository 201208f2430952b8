//! [`WatchProgram`]: reads memory at the moment a watchpoint is hit, in the thread that hit it.
//!
//! Watchpoints on every CPU trap whoever touches the address. A program at the trap drops
//! strangers, reads the word around the address before the thread goes on, and puts it with the
//! thread's name into a sample of another event: `bpf-output`, one on every CPU, whose ring is read
//! as any other. So a hit is one sample with the time, the thread, the instruction behind the
//! access, the call chain, and the value; the watchpoint itself writes none.
//!
//! ```text
//!  write to the address -> trap -> program: followed? -> word, name -> bpf-output's sample -> ring of this CPU
//!                                             no -> STRANGERS += 1          full -> LOST += 1
//! ```
//! Each hit adds to exactly one of SEEN, LOST and STRANGERS, so nothing is lost silently.
use super::attach::load;
use super::error::BpfError;
use super::insn::{Assembler, BpfHelper, FP, R0, R1, R2, R3, R4, R5, R6, R7};
use super::program::{FollowKey, NOW, Program};
use super::sys::{self, MapFd, MapKind, ProgramKind, SharedWords};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

/// The words that the program counts in.
const SEEN: u32 = 0;
const LOST: u32 = 1;
const STRANGERS: u32 = 2;
const WORDS: u32 = 3;

/// On the stack of the program.
const KEY: i16 = -4;
const INDEX: i16 = -8;
/// What it tells: address, word, why the word could not be read, name.
const TOLD: i16 = -56;
const TOLD_WORD: i16 = TOLD + 8;
const TOLD_ERROR: i16 = TOLD + 16;
const TOLD_COMM: i16 = TOLD + 20;
const TOLD_BYTES: i32 = 36;
const COMM_BYTES: i32 = 16;

/// Where the program's context has the watchpoint's address: behind the registers and the period.
#[cfg(target_arch = "x86_64")]
const ADDRESS_AT: i16 = 168 + 8;
#[cfg(target_arch = "aarch64")]
const ADDRESS_AT: i16 = 272 + 8;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ADDRESS_AT: i16 = -1;

/// The CPU on which the program runs, as an index of events.
const THIS_CPU: u64 = 0xffff_ffff;
const SIGSTOP: i32 = 19;

/// How often watchpoints were hit so far, by what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchCounts {
    /// Hits of the followed that are samples in a ring.
    pub seen: u64,
    /// Hits of the followed for which a ring had no room.
    pub lost: u64,
    /// Hits of processes that are not followed, at the same address of theirs.
    pub strangers: u64,
}

/// What the program told about one hit: the raw bytes of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchSample {
    /// Where the watchpoint begins.
    pub address: u64,
    /// The 8 aligned bytes around it, as they were behind the access; `None` if they could not be
    /// read.
    pub word: Option<[u8; 8]>,
    /// The thread's name, ended by zeros.
    pub comm: [u8; 16],
}

impl WatchSample {
    /// Reads the raw bytes of a sample; `None` if they are not what the program writes.
    pub fn parse(raw: &[u8]) -> Option<WatchSample> {
        let at = |from: i16, bytes: usize| {
            let from = usize::try_from(from - TOLD).ok()?;
            raw.get(from..from + bytes)
        };
        let address = u64::from_le_bytes(at(TOLD, 8)?.try_into().ok()?);
        let word: [u8; 8] = at(TOLD_WORD, 8)?.try_into().ok()?;
        let error = i32::from_le_bytes(at(TOLD_ERROR, 4)?.try_into().ok()?);
        let comm = at(TOLD_COMM, 16)?.try_into().ok()?;
        Some(WatchSample { address, word: (error == 0).then_some(word), comm })
    }
}

/// The program for watchpoints, and what it counts in. Programs that events have stay with them
/// when this is dropped.
#[derive(Debug)]
pub(crate) struct WatchProgram {
    program: OwnedFd,
    events: MapFd,
    words: SharedWords,
}

impl WatchProgram {
    pub(super) fn new(followed: i32, key: FollowKey, stop: bool) -> Result<WatchProgram, BpfError> {
        if ADDRESS_AT < 0 {
            let words = "this architecture's registers are not known to it".into();
            return Err(BpfError::Unavailable(super::Unavailable::Refused(words)));
        }
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        if cfg!(target_arch = "aarch64") && repeats_traps(&release) {
            let words = format!(
                "Linux {release} would let a thread trap at a watchpoint for ever, Linux 6.6 does not"
            );
            return Err(BpfError::Unavailable(super::Unavailable::Refused(words)));
        }
        let cpus = crate::sys::possible_cpus();
        let map = |what, entries| move |cause| BpfError::Map { what, entries, cause };
        let events = sys::create_map(MapKind::Events, cpus, sys::name("kymo_hits"));
        let events = events.map_err(map("events for hits", cpus))?;
        let (counts, words) =
            sys::create_shared(WORDS, sys::name("kymo_hit_words")).map_err(map("counts of hits", WORDS))?;
        let program = hit(followed, key, &events, &counts, stop);
        let program = load(ProgramKind::PerfEvent, "kymo_hit", &program, None)?;
        Ok(WatchProgram { program, events, words })
    }

    /// The program: give it to watchpoints on every CPU ([`crate::sys::Kernel::set_bpf`]).
    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// Where hits on a CPU are told: an open `bpf-output` event of that CPU. It must stay open.
    ///
    /// # Errors
    /// EINVAL for an event of another kind, E2BIG for a CPU that cannot be.
    pub(crate) fn tell(&self, cpu: u32, event: BorrowedFd<'_>) -> io::Result<()> {
        sys::update(&self.events, cpu, event.as_raw_fd() as u64)
    }

    /// How often watchpoints were hit until now.
    pub(crate) fn counts(&self) -> WatchCounts {
        // Relaxed: statistics; exact once the watchpoints are off.
        let word = |at: u32| self.words.words()[at as usize].load(Ordering::Relaxed);
        WatchCounts { seen: word(SEEN), lost: word(LOST), strangers: word(STRANGERS) }
    }
}

/// Whether a kernel for aarch64 steps over the instruction at a watchpoint only where the event has
/// no program: with one, the thread would trap at the same instruction again and again.
fn repeats_traps(release: &str) -> bool {
    super::error::version(release).is_none_or(|version| version < (6, 6))
}

impl Assembler {
    /// *TOLD_WORD = the 8 aligned bytes around R7; *TOLD_ERROR = 0 if they could be read
    fn read_word(&mut self) {
        let (user, done) = (self.label(), self.label());
        let read = |a: &mut Assembler, helper| {
            a.stack_address(R1, TOLD_WORD);
            a.mov_imm(R2, 8);
            a.mov(R3, R7);
            a.and_imm(R3, -8);
            a.call(helper);
        };
        self.mov(R1, R7);
        self.shift_right_imm(R1, 63); // the upper half of all addresses is the kernel's
        self.jump_if(R1, 0, user);
        read(self, BpfHelper::ReadKernel);
        self.jump(done);
        self.place(user);
        read(self, BpfHelper::ReadUser);
        self.place(done);
        self.store32(FP, TOLD_ERROR, R0);
    }
}

/// Runs at each hit, in the thread that made the access, behind it.
fn hit(followed: i32, key: FollowKey, events: &MapFd, counts: &MapFd, stop: bool) -> Program {
    let mut a = Assembler::new();
    let (stranger, drop, full) = (a.label(), a.label(), a.label());
    a.mov(R6, R1); // R6 = the context
    a.running(KEY, key);
    a.look_up(followed, KEY, stranger);
    a.load64(R0, R0, 0);
    a.jump_unless(R0, NOW as i32, stranger);
    a.load64(R7, R6, ADDRESS_AT); // R7 = the watchpoint's address
    a.store64(FP, TOLD, R7);
    a.read_word();
    a.stack_address(R1, TOLD_COMM);
    a.mov_imm(R2, COMM_BYTES);
    a.call(BpfHelper::CurrentComm);
    if stop {
        a.mov_imm(R1, SIGSTOP);
        a.call(BpfHelper::SendSignal);
    }
    a.mov(R1, R6);
    a.load_map(R2, events.number());
    a.mov_imm64(R3, THIS_CPU);
    a.stack_address(R4, TOLD);
    a.mov_imm(R5, TOLD_BYTES);
    a.call(BpfHelper::EventOutput);
    a.jump_unless(R0, 0, full);
    a.add_one(counts.number(), SEEN, INDEX);
    a.jump(drop);
    a.place(full);
    a.add_one(counts.number(), LOST, INDEX);
    a.jump(drop);
    a.place(stranger);
    a.add_one(counts.number(), STRANGERS, INDEX);
    a.place(drop);
    a.mov_imm(R0, 0); // the watchpoint itself writes no sample
    a.exit();
    a.finish().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which kernels for aarch64 would let a thread trap for ever.
    #[test]
    fn kernels_that_do_not_step() {
        for (release, repeats) in
            [("6.1.0-39-arm64", true), ("6.12.117+deb13-cloud-arm64", false), ("6.6.0", false), ("odd", true)]
        {
            assert_eq!(repeats_traps(release), repeats, "{release}");
        }
    }

    /// Checks that the raw bytes are read as they are written, and that shorter ones are none.
    #[test]
    fn testimonies() {
        let mut raw = Vec::new();
        raw.extend(0x1234u64.to_le_bytes());
        raw.extend([1, 2, 3, 4, 5, 6, 7, 8]);
        raw.extend(0i32.to_le_bytes());
        raw.extend(*b"worker-7\0\0\0\0\0\0\0\0");
        let found = WatchSample::parse(&raw).unwrap();
        assert_eq!((found.address, found.word), (0x1234, Some([1, 2, 3, 4, 5, 6, 7, 8])));
        assert_eq!(&found.comm[..9], b"worker-7\0");
        raw[16] = 0xf2;
        assert_eq!(WatchSample::parse(&raw).unwrap().word, None, "EFAULT");
        for length in 0..raw.len() {
            assert_eq!(WatchSample::parse(&raw[..length]), None);
        }
    }
}
