//! The library of `tests/c/stress.cc`: its functions as sites, its acts, and what it counted
//! itself.
use super::loaded::Loaded;
use kymo_agent::patch::{EntryState, Memory, OwnMemory, Site, Surroundings, jump_targets, plan};
use std::ffi::{CStr, c_int, c_long};
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

pub(crate) struct Work {
    loaded: Loaded,
    pub(crate) functions: Vec<Counted>,
    acts: usize,
    /// Its count is not exact: a child of vfork calls it.
    pub(crate) inexact: usize,
    /// The act that recurses deeper than returns are looked at.
    pub(crate) deep: usize,
}

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
        let loaded = Loaded::load(file);
        let own = OwnMemory::open().expect("/proc");
        let code = loaded.text.iter().max_by_key(|(_, bytes)| bytes.len()).expect("code");
        let whole = code.0..code.0 + code.1.len() as u64;
        let targets = jump_targets(&own, whole.clone(), &[whole]);
        let (counts, names) =
            (loaded.address(c"stress_counts"), loaded.address(c"stress_names") as *const *const libc::c_char);
        let mut functions = Vec::new();
        for at in 0.. {
            // SAFETY: a list of C strings that ends with null.
            let name = unsafe { *names.wrapping_add(at) };
            if name.is_null() {
                break;
            }
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(name) }.to_str().expect("a name").to_owned();
            let function = loaded.functions.get(&name).unwrap_or_else(|| panic!("{name}"));
            let site = plan(
                &own,
                function,
                &Surroundings { targets: &targets, looks_at: Some(EntryState::NOTHING) },
            );
            let site = site.unwrap_or_else(|why| panic!("{name}: {why}"));
            let count = (counts as *const [AtomicU64; 8]).wrapping_add(at);
            // SAFETY: an array of so many counts of 64 bytes; who unloads the library forgets this
            // first.
            let count = unsafe { &*count };
            functions.push(Counted { name, site, count });
        }
        let number = |name: &CStr| {
            let at = loaded.address(name) as *const c_int;
            // SAFETY: a constant of the library.
            (unsafe { *at }) as usize
        };
        let (acts, inexact, deep) =
            (number(c"stress_acts"), number(c"stress_inexact"), number(c"stress_deep"));
        Work { acts, inexact, deep, functions, loaded }
    }

    pub(crate) fn acts(&self) -> usize {
        self.acts
    }

    /// To be called by each thread that acts, before.
    pub(crate) fn begin(&self) -> c_int {
        // SAFETY: its type there.
        let begin: extern "C" fn() -> c_int =
            unsafe { std::mem::transmute(self.loaded.address(c"stress_begin")) };
        begin()
    }

    /// And after.
    pub(crate) fn end(&self) {
        // SAFETY: its type there.
        let end: extern "C" fn() = unsafe { std::mem::transmute(self.loaded.address(c"stress_end")) };
        end();
    }

    /// 0, or the line of what was wrong.
    pub(crate) fn act(&self, act: usize, n: c_int, other: c_int) -> c_int {
        // SAFETY: its type there.
        let run: extern "C-unwind" fn(c_int, c_int, c_int) -> c_int =
            unsafe { std::mem::transmute(self.loaded.address(c"stress_act")) };
        run(act as c_int, n, other)
    }

    /// A clock that sends signals to the thread; 0: ends it.
    pub(crate) fn clock(&self, timer: &mut usize, tid: c_int, every_ns: c_long) -> c_int {
        // SAFETY: its type there.
        let clock: extern "C" fn(*mut usize, c_int, c_long) -> c_int =
            unsafe { std::mem::transmute(self.loaded.address(c"stress_clock")) };
        clock(timer, tid, every_ns)
    }

    pub(crate) fn calls_back(&self, callback: extern "C-unwind" fn(c_int) -> c_int, n: c_int) -> c_int {
        // SAFETY: its type there.
        let run: extern "C-unwind" fn(extern "C-unwind" fn(c_int) -> c_int, c_int) -> c_int =
            unsafe { std::mem::transmute(self.loaded.address(c"calls_back")) };
        run(callback, n)
    }

    /// Takes it out of the process. Nobody may be in it.
    pub(crate) fn unload(self) {
        let at = self.loaded.text[0].0;
        drop(self.functions);
        self.loaded.unload();
        assert!(OwnMemory::open().expect("/proc").bytes(at, 1).is_empty(), "the library was not unloaded");
    }

    /// Asserts that the code in memory is the file's.
    pub(crate) fn assert_untouched(&self) {
        self.loaded.assert_untouched();
    }
}
