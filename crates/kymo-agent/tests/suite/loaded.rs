//! A shared library in this process, and what its file says of it.
#![allow(unsafe_code)]
use kymo_agent::patch::{Function, Memory, OwnMemory};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::path::Path;

/// A library. It stays loaded unless it is unloaded.
pub(crate) struct Loaded {
    handle: *mut c_void,
    pub(crate) functions: BTreeMap<String, Function>,
    /// Its code, by address, as the file has it.
    pub(crate) text: Vec<(u64, Vec<u8>)>,
}

// SAFETY: a handle that is only used to look up, and to close by the owner.
unsafe impl Sync for Loaded {}

impl Loaded {
    pub(crate) fn load(file: &Path) -> Loaded {
        let bytes = std::fs::read(file).expect("the library");
        let elf = object::File::parse(&*bytes).expect("an ELF file");
        let path = CString::new(file.to_str().expect("a path")).expect("a path");
        // SAFETY: a library of these tests, whose initializers do nothing.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} does not load", file.display());
        let mut loaded = Loaded { handle, functions: BTreeMap::new(), text: Vec::new() };
        let is_function =
            |symbol: &object::Symbol<'_, '_>| symbol.kind() == SymbolKind::Text && symbol.size() > 0;
        let known = elf.dynamic_symbols().find(is_function).expect("a function");
        let name = CString::new(known.name().expect("a name")).expect("a name");
        let base = loaded.address(&name) as u64 - known.address();
        let mut list: Vec<(u64, u64, String)> = (elf.symbols().filter(is_function))
            .filter_map(|symbol| Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_owned())))
            .collect();
        list.sort();
        let starts: Vec<u64> = list.iter().map(|(start, ..)| *start).collect();
        for (start, bytes, name) in list {
            let next = starts.get(starts.partition_point(|other| *other <= start));
            let next = next.copied().unwrap_or(u64::MAX).min(start + bytes + 16);
            loaded.functions.insert(name, Function { start: base + start, bytes, next: base + next });
        }
        let text = elf.sections().filter(|section| section.kind() == SectionKind::Text);
        loaded.text =
            text.map(|section| (base + section.address(), section.data().expect("bytes").to_vec())).collect();
        loaded
    }

    pub(crate) fn address(&self, name: &CStr) -> *mut c_void {
        // SAFETY: a loaded library and a C string.
        let at = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        assert!(!at.is_null(), "{name:?}");
        at
    }

    /// Takes it out of the process. Nobody may be in it.
    pub(crate) fn unload(self) {
        // SAFETY: loaded by load(); the functions that were called have returned.
        let closed = unsafe { libc::dlclose(self.handle) };
        assert_eq!(closed, 0);
    }

    /// Asserts that the code in memory is the file's.
    pub(crate) fn assert_untouched(&self) {
        let own = OwnMemory::open().expect("/proc");
        for (address, bytes) in &self.text {
            let now = own.bytes(*address, bytes.len() as u64);
            let differs = now.iter().zip(bytes).position(|(a, b)| a != b);
            assert_eq!((now.len(), differs), (bytes.len(), None), "of the section at {address:#x}");
        }
    }
}
