//! BPF maps whose keys and values have any size.
//!
//! # Safety
//! As in the parent module: what the kernel reads or writes by address is a slice whose length was
//! held against the map's sizes.
use super::{
    CreateAttr, ElementAttr, MAP_CREATE, MAP_DELETE_ELEM, MAP_UPDATE_ELEM, NO_PREALLOC, TYPE_ARRAY,
    TYPE_HASH, bpf, bpf_open,
};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// What a map does with its keys, by the number of the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bpf) enum SizedMapKind {
    /// Any keys; memory grows with what is in it.
    Hash = TYPE_HASH as isize,
    /// Keys 0 to the size.
    Array = TYPE_ARRAY as isize,
    /// Descriptors of programs that others can go on with.
    Programs = 3,
    /// Keys 0 to the size; each CPU has values of its own.
    PerCpuArray = 6,
    /// Any keys; the one that was not used for longest makes room for a new one.
    RecentlyUsed = 9,
}

/// A map and the sizes that it was made with.
#[derive(Debug)]
pub(in crate::bpf) struct SizedMap {
    fd: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

impl SizedMap {
    pub(in crate::bpf) fn new(
        kind: SizedMapKind,
        (key_bytes, value_bytes): (usize, usize),
        entries: u32,
        name: [u8; 16],
    ) -> io::Result<SizedMap> {
        let mut attr = CreateAttr {
            kind: kind as u32,
            key_bytes: key_bytes as u32,
            value_bytes: value_bytes as u32,
            max_entries: entries,
            flags: if kind == SizedMapKind::Hash { NO_PREALLOC } else { 0 },
            name,
            ..CreateAttr::default()
        };
        // SAFETY: no addresses in it.
        let fd = unsafe { bpf_open(MAP_CREATE, &mut attr) }?;
        Ok(SizedMap { fd, key_bytes, value_bytes })
    }

    pub(in crate::bpf) fn number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Sets a value. Not for maps whose values are per CPU.
    pub(in crate::bpf) fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.check(key, Some(value.len()))?;
        let value = value.as_ptr().expose_provenance() as u64;
        // SAFETY: key and value have the map's sizes (checked).
        unsafe { self.element(MAP_UPDATE_ELEM, key, value) }
    }

    /// Sets the program that others go on with under this number.
    pub(in crate::bpf) fn set_program(&self, index: u32, program: BorrowedFd<'_>) -> io::Result<()> {
        self.update(&index.to_ne_bytes(), &program.as_raw_fd().to_ne_bytes())
    }

    /// Fills in a value. Not for maps whose values are per CPU.
    #[cfg(test)]
    pub(in crate::bpf) fn look_up(&self, key: &[u8], value: &mut [u8]) -> io::Result<()> {
        self.check(key, Some(value.len()))?;
        let value = value.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: key and value have the map's sizes (checked); the slice may be written.
        unsafe { self.element(super::MAP_LOOKUP_ELEM, key, value) }
    }

    /// Removes a key; `false`: there was none.
    pub(in crate::bpf) fn remove(&self, key: &[u8]) -> io::Result<bool> {
        self.check(key, None)?;
        // SAFETY: the key has the map's size (checked).
        match unsafe { self.element(MAP_DELETE_ELEM, key, 0) } {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn check(&self, key: &[u8], value_bytes: Option<usize>) -> io::Result<()> {
        let fits = key.len() == self.key_bytes && value_bytes.is_none_or(|bytes| bytes == self.value_bytes);
        if fits { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// # Safety
    /// The key, and the value at the address, have the map's sizes; a value that is looked up may
    /// be written.
    unsafe fn element(&self, command: libc::c_long, key: &[u8], value: u64) -> io::Result<()> {
        let mut attr = ElementAttr {
            map: self.number() as u32,
            key: key.as_ptr().expose_provenance() as u64,
            value_or_next: value,
            ..ElementAttr::default()
        };
        // SAFETY: the caller's promise.
        unsafe { bpf(command, &mut attr) }.map(drop)
    }
}
