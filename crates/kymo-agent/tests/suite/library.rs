//! A shared library that a test compiles, loads, and probes.
#![allow(unsafe_code)]
use kymo_agent::patch::{Function, Memory, OwnMemory, Refusal, Site, Surroundings, plan, plan_inside};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library in this process. It stays loaded unless it is unloaded.
pub(crate) struct Library {
    handle: *mut libc::c_void,
    /// Address in the file, bytes, where the next function begins.
    functions: BTreeMap<String, Function>,
    text: Vec<(u64, Vec<u8>)>,
    /// Has the file, which is removed with it.
    _folder: tempfile::TempDir,
}

// SAFETY: a handle that is only closed, by the one who owns the library.
unsafe impl Sync for Library {}

impl Library {
    /// Compiles a file of `tests/c` and loads it; `None`, loudly, without a compiler.
    pub(crate) fn of(test: &str, source: &str, options: &[&str]) -> Option<Library> {
        let scratch = tempfile::tempdir().expect("a folder");
        let file = Library::compile(test, source, options, scratch.path())?;
        Some(Library::load(&file, scratch))
    }

    fn compile(test: &str, source: &str, options: &[&str], scratch: &Path) -> Option<PathBuf> {
        let compiler = if source.ends_with(".cc") { "g++" } else { "gcc" };
        if Command::new(compiler).arg("--version").output().is_err() {
            kymo_testing::skip(test, format!("no {compiler} here"));
            return None;
        }
        let file = scratch.join(format!("{}.so", source.replace('.', "_")));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
        let compiled = Command::new(compiler)
            .args(["-O1", "-g0", "-fPIC", "-shared", "-fno-stack-protector", "-fno-inline", "-o"])
            .args([&file, &source])
            .args(options)
            .output()
            .expect("the compiler runs");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Some(file)
    }

    fn load(file: &Path, folder: tempfile::TempDir) -> Library {
        let bytes = std::fs::read(file).expect("the library");
        let elf = object::File::parse(&*bytes).expect("an ELF file");
        let path = CString::new(file.to_str().expect("a path")).expect("a path");
        // SAFETY: a library of this test, whose initializers do nothing.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{} does not load", file.display());
        let mut list: Vec<(u64, u64, String)> = elf
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
            .filter_map(|symbol| Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_string())))
            .collect();
        list.sort();
        let known =
            elf.dynamic_symbols().find(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
        let known = known.expect("a function");
        let name = CString::new(known.name().expect("a name")).expect("a name");
        // SAFETY: a loaded library and a C string.
        let there = unsafe { libc::dlsym(handle, name.as_ptr()) } as u64;
        let base = there - known.address();
        let ends: Vec<u64> = list.iter().map(|entry| entry.0).skip(1).chain([u64::MAX]).collect();
        let function = |((start, bytes, name), next): ((u64, u64, String), u64)| {
            let next = next.min(start + bytes + 16);
            (name, Function { start: base + start, bytes, next: base + next })
        };
        let functions = list.into_iter().zip(ends).map(function).collect();
        let text = elf
            .sections()
            .filter(|section| section.kind() == SectionKind::Text)
            .map(|section| (base + section.address(), section.data().expect("bytes").to_vec()))
            .collect();
        Library { handle, functions, text, _folder: folder }
    }

    /// Compiles a file of `tests/c`, and loads and unloads it so often; `false`, loudly, without a
    /// compiler.
    pub(crate) fn comes_and_goes(test: &str, source: &str, options: &[&str], times: usize) -> bool {
        let scratch = tempfile::tempdir().expect("a folder");
        let Some(file) = Library::compile(test, source, options, scratch.path()) else { return false };
        let path = CString::new(file.to_str().expect("a path")).expect("a path");
        for _ in 0..times {
            // SAFETY: a library of this test, whose initializers do nothing.
            let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            assert!(!handle.is_null(), "{} does not load", file.display());
            // SAFETY: loaded above; nobody calls its functions.
            assert_eq!(unsafe { libc::dlclose(handle) }, 0);
        }
        true
    }

    pub(crate) fn plan(&self, name: &str) -> Result<Site, Refusal> {
        let own = OwnMemory::open().expect("/proc");
        plan(&own, &self.functions[name], &Surroundings::default())
    }

    /// A plan for an instruction inside a function.
    pub(crate) fn plan_inside(&self, name: &str, offset: u64) -> Result<Site, Refusal> {
        let own = OwnMemory::open().expect("/proc");
        let function = &self.functions[name];
        plan_inside(&own, function, function.start.wrapping_add(offset), &Surroundings::default())
    }

    /// The function as one that C could call, with one number or two.
    pub(crate) fn function(&self, name: &str) -> extern "C" fn(u64, u64) -> u32 {
        let address = self.functions[name].start as usize;
        // SAFETY: all functions of these libraries that tests call take numbers and return one.
        unsafe { std::mem::transmute(address) }
    }

    /// Takes it out of the process. Nobody may be in it.
    pub(crate) fn unload(self) {
        // SAFETY: loaded by load(); the test has called its functions and they have returned.
        let closed = unsafe { libc::dlclose(self.handle) };
        assert_eq!(closed, 0);
    }

    /// Asserts that the code in memory is the file's.
    pub(crate) fn assert_untouched(&self) {
        let own = OwnMemory::open().expect("/proc");
        for (address, bytes) in &self.text {
            let now = own.bytes(*address, bytes.len() as u64);
            let differs = now.iter().zip(bytes).position(|(a, b)| a != b);
            assert_eq!(now.len(), bytes.len());
            assert_eq!(differs, None, "of the section at {address:#x}");
        }
    }
}

/// `calls_back` of `returns.cc`, through which panics pass.
pub(crate) fn calls_back(
    address: usize,
) -> extern "C-unwind" fn(extern "C-unwind" fn(i32) -> i32, i32) -> i32 {
    // SAFETY: its declaration there.
    unsafe { std::mem::transmute(address) }
}
