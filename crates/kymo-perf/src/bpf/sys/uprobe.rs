//! The parts of `bpf(2)` for uprobes: maps of other shapes, and links to many addresses at once.
//!
//! # Safety
//! As in the parent module; a [`WideMap`] knows the sizes of its keys and values, and every call
//! checks its buffers against them.
use super::{CreateAttr, ElementAttr, LINK_CREATE, SharedWords, bpf, bpf_open};
use super::{
    MAP_CREATE, MAP_DELETE_ELEM, MAP_GET_NEXT_KEY, MAP_LOOKUP_ELEM, MAP_UPDATE_ELEM, MAPPABLE, NO_PREALLOC,
    TYPE_ARRAY, TYPE_HASH,
};
use crate::sys::{attr_zeroed, bindings, in_vfork_child};
use perf_event_open_sys::ioctls;
use rustix::mm::ProtFlags;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

const TYPE_LRU_HASH: u32 = 9;
/// For keys that have no value yet.
const ONLY_NEW: u64 = 1;
/// Kinds of attachment.
const PERF_EVENT: u32 = 41;
/// The same, for many places of one file (Linux 6.6).
pub(in crate::bpf) const UPROBE_MULTI: u32 = 48;
const MULTI_RETURN: u32 = 1;

/// A map whose keys and values are several words.
#[derive(Debug)]
pub(in crate::bpf) struct WideMap {
    fd: OwnedFd,
    key_words: usize,
    value_words: usize,
}

impl WideMap {
    /// Makes a hash that forgets the key that was not used for longest when it is full.
    pub(in crate::bpf) fn forgetful(
        key_words: usize,
        value_words: usize,
        entries: u32,
        name: [u8; 16],
    ) -> io::Result<WideMap> {
        WideMap::create(TYPE_LRU_HASH, 0, 8 * key_words as u32, key_words, value_words, entries, name)
    }

    /// Makes a hash whose memory grows with what is in it; a new key finds no place when it is
    /// full.
    pub(in crate::bpf) fn hash(
        key_words: usize,
        value_words: usize,
        entries: u32,
        name: [u8; 16],
    ) -> io::Result<WideMap> {
        WideMap::create(TYPE_HASH, NO_PREALLOC, 8 * key_words as u32, key_words, value_words, entries, name)
    }

    /// Makes an array whose values are mapped here, all 0.
    pub(in crate::bpf) fn shared(
        value_words: usize,
        entries: u32,
        name: [u8; 16],
    ) -> io::Result<(WideMap, SharedWords)> {
        let map = WideMap::create(TYPE_ARRAY, MAPPABLE, 4, 0, value_words, entries, name)?;
        let words = (entries as usize)
            .checked_mul(value_words)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::E2BIG))?;
        // Values of whole words stand one behind the other, from a page's start on.
        let words = SharedWords::map(&map.fd, ProtFlags::READ | ProtFlags::WRITE, 0, words)?;
        Ok((map, words))
    }

    fn create(
        kind: u32,
        flags: u32,
        key_bytes: u32,
        key_words: usize,
        value_words: usize,
        max_entries: u32,
        name: [u8; 16],
    ) -> io::Result<WideMap> {
        let value_bytes = 8 * value_words as u32;
        let mut attr =
            CreateAttr { kind, key_bytes, value_bytes, max_entries, flags, name, ..CreateAttr::default() };
        // SAFETY: no addresses in it.
        let fd = unsafe { bpf_open(MAP_CREATE, &mut attr) }?;
        Ok(WideMap { fd, key_words, value_words })
    }

    pub(in crate::bpf) fn number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The value of a key of a hash.
    pub(in crate::bpf) fn lookup(&self, key: &[u64]) -> io::Result<Vec<u64>> {
        assert!(self.key_words > 0 && key.len() == self.key_words, "a key of the map's size");
        let mut value = vec![0u64; self.value_words];
        let mut attr = ElementAttr {
            map: self.number() as u32,
            key: key.as_ptr().expose_provenance() as u64,
            value_or_next: value.as_mut_ptr().expose_provenance() as u64,
            ..ElementAttr::default()
        };
        // SAFETY: key and value are as long as the map's: checked above, and made so.
        unsafe { bpf(MAP_LOOKUP_ELEM, &mut attr) }?;
        Ok(value)
    }

    /// Sets the value of a key of a hash that has none.
    pub(in crate::bpf) fn insert(&self, key: &[u64], value: &[u64]) -> io::Result<()> {
        assert!(
            self.key_words > 0 && (key.len(), value.len()) == (self.key_words, self.value_words),
            "the map's sizes"
        );
        let mut attr = ElementAttr {
            map: self.number() as u32,
            key: key.as_ptr().expose_provenance() as u64,
            value_or_next: value.as_ptr().expose_provenance() as u64,
            flags: ONLY_NEW,
            ..ElementAttr::default()
        };
        // SAFETY: key and value are as long as the map's: checked above.
        unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }.map(drop)
    }

    /// Removes a key of a hash; ENOENT if it is not there.
    pub(in crate::bpf) fn remove(&self, key: &[u64]) -> io::Result<()> {
        assert!(self.key_words > 0 && key.len() == self.key_words, "a key of the map's size");
        let mut attr = ElementAttr {
            map: self.number() as u32,
            key: key.as_ptr().expose_provenance() as u64,
            ..ElementAttr::default()
        };
        // SAFETY: the key is as long as the map's: checked above; nothing else is read or written.
        unsafe { bpf(MAP_DELETE_ELEM, &mut attr) }.map(drop)
    }

    /// The key behind `key` in a hash's own order; ENOENT at the end.
    fn next_key(&self, key: Option<&[u64]>) -> io::Result<Vec<u64>> {
        assert!(
            self.key_words > 0 && key.is_none_or(|key| key.len() == self.key_words),
            "a key of the map's size"
        );
        let mut next = vec![0u64; self.key_words];
        let mut attr = ElementAttr {
            map: self.number() as u32,
            key: key.map_or(0, |key| key.as_ptr().expose_provenance() as u64),
            value_or_next: next.as_mut_ptr().expose_provenance() as u64,
            ..ElementAttr::default()
        };
        // SAFETY: both keys are as long as the map's: checked above, and made so; address 0 asks
        // for the first.
        unsafe { bpf(MAP_GET_NEXT_KEY, &mut attr) }?;
        Ok(next)
    }

    /// The keys of a hash of at most `most`; each is a system call. Keys that come and go meanwhile
    /// may be among them once, more than once or not at all: when the key at hand goes, the kernel
    /// starts again, so the steps are bounded.
    pub(in crate::bpf) fn keys(&self, most: u32) -> impl Iterator<Item = Vec<u64>> + '_ {
        let mut key: Option<Vec<u64>> = None;
        let keys = std::iter::from_fn(move || {
            let next = self.next_key(key.as_deref()).ok()?;
            key = Some(next.clone());
            Some(next)
        });
        keys.take(2 * most as usize)
    }

    /// Keys and values of a hash, as [`keys`](Self::keys).
    pub(in crate::bpf) fn entries(&self, most: u32) -> impl Iterator<Item = (Vec<u64>, Vec<u64>)> + '_ {
        self.keys(most).filter_map(|key| {
            let value = self.lookup(&key).ok()?;
            Some((key, value))
        })
    }

    /// Removes the keys that a hash of at most `most` has.
    pub(in crate::bpf) fn clear(&self, most: u32) {
        let keys: Vec<Vec<u64>> = self.keys(most).collect();
        // One that has gone meanwhile is not there any more.
        keys.iter().for_each(|key| _ = self.remove(key));
    }
}

#[repr(C)]
#[derive(Default)]
struct MultiAttr {
    program: u32,
    target: u32,
    attach: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    semaphores: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    pad: u32,
}

/// Places in one file, each with the number that the program is told at a hit.
#[derive(Clone, Debug, Default)]
pub(in crate::bpf) struct UprobeTargets {
    pub(in crate::bpf) offsets: Vec<u64>,
    /// Offsets of counters, 0 for none; as many as offsets.
    pub(in crate::bpf) semaphores: Vec<u64>,
    /// As many as offsets.
    pub(in crate::bpf) cookies: Vec<u64>,
}

/// Attaches a program to many places of a file at once (Linux 6.6), in one process or (0) in all;
/// closing the link detaches it.
pub(in crate::bpf) fn link_uprobes(
    program: BorrowedFd<'_>,
    path: &CStr,
    places: &UprobeTargets,
    pid: u32,
    returns: bool,
) -> io::Result<OwnedFd> {
    let count = places.offsets.len();
    assert!(places.semaphores.len() == count && places.cookies.len() == count, "as many of each");
    let counted = places.semaphores.iter().any(|&offset| offset != 0) && !returns;
    let mut attr = MultiAttr {
        program: program.as_raw_fd() as u32,
        attach: UPROBE_MULTI,
        path: path.as_ptr().expose_provenance() as u64,
        offsets: places.offsets.as_ptr().expose_provenance() as u64,
        semaphores: if counted { places.semaphores.as_ptr().expose_provenance() as u64 } else { 0 },
        cookies: places.cookies.as_ptr().expose_provenance() as u64,
        count: count as u32,
        multi_flags: if returns { MULTI_RETURN } else { 0 },
        pid,
        ..MultiAttr::default()
    };
    let mut made = Err(io::ErrorKind::Other.into());
    in_vfork_child(|| {
        // SAFETY: the path is ended by a zero, the arrays hold `count` words each (checked above);
        // all outlive the call.
        made = unsafe { bpf_open(LINK_CREATE, &mut attr) };
    });
    made
}

/// What keeps programs attached to places; closed in one go, and whole, also if this process is
/// killed meanwhile.
#[derive(Debug, Default)]
pub(in crate::bpf) struct Links(Vec<OwnedFd>);

impl Links {
    pub(in crate::bpf) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::bpf) fn add(&mut self, links: impl IntoIterator<Item = OwnedFd>) {
        self.0.extend(links);
    }

    pub(in crate::bpf) fn append(&mut self, mut more: Links) {
        self.0.append(&mut more.0);
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let numbers: Vec<RawFd> = self.0.drain(..).map(IntoRawFd::into_raw_fd).collect();
        if !numbers.is_empty() {
            in_vfork_child(|| {
                for &number in &numbers {
                    // SAFETY: ours, and nobody uses it any more.
                    unsafe { libc::syscall(libc::SYS_close, number) };
                }
            });
        }
    }
}

#[repr(C)]
#[derive(Default)]
struct EventLinkAttr {
    program: u32,
    target: u32,
    attach: u32,
    flags: u32,
    cookie: u64,
}

/// One place, as an event of the `uprobe` PMU.
#[derive(Clone, Copy, Debug)]
pub(in crate::bpf) struct EventPlace<'a> {
    /// The PMU's number.
    pub(in crate::bpf) kind: u32,
    /// The bits that say return and counter.
    pub(in crate::bpf) config: u64,
    pub(in crate::bpf) path: &'a CStr,
    pub(in crate::bpf) offset: u64,
    /// A process, or -1: all.
    pub(in crate::bpf) pid: i32,
}

/// Opens the event, gives it the program with the number that it is told, and enables it. Closing
/// both detaches.
pub(in crate::bpf) fn link_event(
    program: BorrowedFd<'_>,
    place: &EventPlace<'_>,
    cookie: u64,
) -> io::Result<[OwnedFd; 2]> {
    let mut made = Err(io::ErrorKind::Other.into());
    in_vfork_child(|| made = link_event_here(program, place, cookie));
    made
}

/// The same, in the calling process. System calls, and nothing else.
fn link_event_here(program: BorrowedFd<'_>, place: &EventPlace<'_>, cookie: u64) -> io::Result<[OwnedFd; 2]> {
    let mut attr = attr_zeroed();
    attr.type_ = place.kind;
    attr.config = place.config;
    attr.__bindgen_anon_3.config1 = place.path.as_ptr().expose_provenance() as u64;
    attr.__bindgen_anon_4.config2 = place.offset;
    attr.set_disabled(1);
    let cpu = if place.pid < 0 { 0 } else { -1 };
    let cloexec = bindings::PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: attr is initialised and as long as its size field says; the path in it is ended by a
    // zero and outlives the call.
    let fd = unsafe { perf_event_open_sys::perf_event_open(&mut attr, place.pid, cpu, -1, cloexec) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let event = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    let mut link = EventLinkAttr {
        program: program.as_raw_fd() as u32,
        target: event.as_raw_fd() as u32,
        attach: PERF_EVENT,
        cookie,
        ..EventLinkAttr::default()
    };
    // SAFETY: no addresses in it.
    let link = unsafe { bpf_open(LINK_CREATE, &mut link) }?;
    // SAFETY: no pointer argument.
    let enabled = unsafe { ioctls::ENABLE(event.as_raw_fd(), 0) };
    if enabled < 0 { Err(io::Error::last_os_error()) } else { Ok([event, link]) }
}
