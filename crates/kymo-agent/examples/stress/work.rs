//! The library of `tests/c/stress.cc`: its functions as sites, its acts, and what it counted
//! itself.
use kymo_agent::patch::{Function, Memory, OwnMemory, Site, Surroundings, jump_targets, plan};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};
use std::collections::BTreeMap;
use std::ffi::{CString, c_int, c_long, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A function that counts its own calls.
pub(crate) struct Counted {
    pub(crate) name: String,
    pub(crate) site: Site,
    count: &'static [AtomicU64; 8],
}

impl Counted {
    /// Calls that began, and that returned.
    pub(crate) fn counts(&self) -> (u64, u64) {
        // Relaxed: read when nobody calls.
        (self.count[0].load(Ordering::Relaxed), self.count[1].load(Ordering::Relaxed))
    }
}

/// The library in this process.
pub(crate) struct Work {
    handle: *mut c_void,
    pub(crate) functions: Vec<Counted>,
    text: Vec<(u64, Vec<u8>)>,
    acts: usize,
    /// Its count is not exact: a child of vfork calls it.
    pub(crate) inexact: usize,
    /// The act that recurses deeper than returns are looked at.
    pub(crate) deep: usize,
}

// SAFETY: a handle that is only used to look up and to close, by its owner.
unsafe impl Sync for Work {}

/// Compiles the library.
pub(crate) fn compile(into: &Path, options: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/stress.cc");
    let compiled = std::process::Command::new("g++")
        .args(["-O2", "-g0", "-fPIC", "-shared", "-pthread", "-fno-stack-protector", "-Wl,-Bsymbolic", "-o"])
        .args([into, &source])
        .args(options)
        .output();
    match compiled {
        Ok(compiled) => assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr)),
        Err(error) => super::skip(&format!("no g++ here: {error}")),
    }
}

impl Work {
    pub(crate) fn load(file: &Path) -> Work {
        let bytes = std::fs::read(file).expect("the library");
        let elf = object::File::parse(&*bytes).expect("an ELF file");
        let path = CString::new(file.to_str().expect("a path")).expect("a path");
        // SAFETY: a library of ours, whose initializers do nothing.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} does not load", file.display());
        let find = |name: &str| {
            let name = CString::new(name).expect("a name");
            // SAFETY: a loaded library and a C string.
            let at = unsafe { libc::dlsym(handle, name.as_ptr()) } as u64;
            assert!(at != 0, "{name:?}");
            at
        };
        let mut list: Vec<(u64, u64, String)> = elf
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
            .filter_map(|symbol| Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_owned())))
            .collect();
        list.sort();
        let known = list.iter().find(|(_, _, name)| name == "leaf").expect("a function");
        let base = find("leaf") - known.0;
        let starts: Vec<u64> = list.iter().map(|(start, ..)| *start).collect();
        let mut symbols: BTreeMap<&str, Function> = BTreeMap::new();
        for (start, bytes, name) in &list {
            let next = starts.get(starts.partition_point(|other| other <= start));
            let next = next.copied().unwrap_or(u64::MAX).min(start + bytes + 16);
            symbols.insert(name, Function { start: base + start, bytes: *bytes, next: base + next });
        }
        let text: Vec<(u64, Vec<u8>)> = elf
            .sections()
            .filter(|section| section.kind() == SectionKind::Text)
            .map(|section| (base + section.address(), section.data().expect("bytes").to_vec()))
            .collect();
        let own = OwnMemory::open().expect("/proc");
        let code = text.iter().max_by_key(|(_, bytes)| bytes.len()).expect("code");
        let targets = jump_targets(&own, code.0, code.1.len() as u64);
        let (counts, names) = (find("stress_counts"), find("stress_names") as *const *const libc::c_char);
        let mut functions = Vec::new();
        for at in 0.. {
            // SAFETY: a list of C strings that ends with null.
            let name = unsafe { *names.wrapping_add(at) };
            if name.is_null() {
                break;
            }
            // SAFETY: as above.
            let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_str().expect("a name").to_owned();
            let function = symbols.get(name.as_str()).unwrap_or_else(|| panic!("{name}"));
            let site = plan(&own, function, &Surroundings { targets: &targets });
            let site = site.unwrap_or_else(|why| panic!("{name}: {why}"));
            let count = (counts as *const [AtomicU64; 8]).wrapping_add(at);
            // SAFETY: an array of so many counts of 64 bytes; who unloads the library forgets this
            // first.
            let count = unsafe { &*count };
            functions.push(Counted { name, site, count });
        }
        let number = |name| {
            let at = find(name) as *const c_int;
            // SAFETY: a constant of the library.
            (unsafe { *at }) as usize
        };
        let (acts, inexact, deep) = (number("stress_acts"), number("stress_inexact"), number("stress_deep"));
        Work { handle, functions, text, acts, inexact, deep }
    }

    pub(crate) fn acts(&self) -> usize {
        self.acts
    }

    fn address(&self, name: &std::ffi::CStr) -> *mut c_void {
        // SAFETY: a loaded library and a C string.
        unsafe { libc::dlsym(self.handle, name.as_ptr()) }
    }

    /// To be called by each thread that acts, before.
    pub(crate) fn begin(&self) -> c_int {
        // SAFETY: its type there.
        let begin: extern "C" fn() -> c_int = unsafe { std::mem::transmute(self.address(c"stress_begin")) };
        begin()
    }

    /// And after.
    pub(crate) fn end(&self) {
        // SAFETY: its type there.
        let end: extern "C" fn() = unsafe { std::mem::transmute(self.address(c"stress_end")) };
        end();
    }

    /// 0, or the line of what was wrong.
    pub(crate) fn act(&self, act: usize, n: c_int, other: c_int) -> c_int {
        // SAFETY: its type there.
        let run: extern "C-unwind" fn(c_int, c_int, c_int) -> c_int =
            unsafe { std::mem::transmute(self.address(c"stress_act")) };
        run(act as c_int, n, other)
    }

    /// A clock that sends signals to the thread; 0: ends it.
    pub(crate) fn clock(&self, timer: &mut usize, tid: c_int, every_ns: c_long) -> c_int {
        // SAFETY: its type there.
        let clock: extern "C" fn(*mut usize, c_int, c_long) -> c_int =
            unsafe { std::mem::transmute(self.address(c"stress_clock")) };
        clock(timer, tid, every_ns)
    }

    pub(crate) fn calls_back(&self, callback: extern "C-unwind" fn(c_int) -> c_int, n: c_int) -> c_int {
        // SAFETY: its type there.
        let run: extern "C-unwind" fn(extern "C-unwind" fn(c_int) -> c_int, c_int) -> c_int =
            unsafe { std::mem::transmute(self.address(c"calls_back")) };
        run(callback, n)
    }

    /// Takes it out of the process. Nobody may be in it.
    pub(crate) fn unload(self) {
        let at = self.text[0].0;
        drop(self.functions);
        // SAFETY: loaded above, and nobody runs it.
        let closed = unsafe { libc::dlclose(self.handle) };
        assert_eq!(closed, 0);
        assert!(OwnMemory::open().expect("/proc").bytes(at, 1).is_empty(), "the library was not unloaded");
    }

    /// Asserts that the code in memory is the file's.
    pub(crate) fn assert_untouched(&self) {
        let own = OwnMemory::open().expect("/proc");
        for (address, bytes) in &self.text {
            let now = own.bytes(*address, bytes.len() as u64);
            assert_eq!(now.len(), bytes.len());
            let differs = now.iter().zip(bytes).position(|(a, b)| a != b);
            assert_eq!(differs, None, "of the section at {address:#x}");
        }
    }
}
