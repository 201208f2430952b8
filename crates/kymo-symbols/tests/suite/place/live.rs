//! Places in this very process, which knows its own addresses.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kymo_symbols::SymbolOptions;
use kymo_symbols::place::{self, Access, Mapping, ModuleFile, ResolveError, Target, Watch};

use super::programs::mappings_of;

#[unsafe(no_mangle)]
static KYMO_TEST_PLACE: AtomicU64 = AtomicU64::new(1);
static WATCHED_HERE: AtomicU64 = AtomicU64::new(2);

fn resolve(text: &str) -> Result<Watch, ResolveError> {
    let program = std::env::current_exe().expect("this program");
    let open = |mapping: &Mapping| {
        let path: &Path = &mapping.path;
        ModuleFile::open(path, path, &SymbolOptions::default()).ok().map(Arc::new)
    };
    let modules = place::modules_of(&mappings_of("/proc/self/maps"), Some(&program), open);
    let memory = |avma: u64, bytes: &mut [u8]| {
        use std::os::unix::fs::FileExt;
        std::fs::File::open("/proc/self/mem")?.read_exact_at(bytes, avma)
    };
    place::resolve(&place::parse(text).expect("an expression"), &Target { modules, memory: &memory })
}

/// Checks symbols of this position-independent program against the addresses that it has itself.
#[test]
fn symbols_are_where_the_program_has_them() {
    let here = &raw const KYMO_TEST_PLACE as u64;
    let watch = resolve("KYMO_TEST_PLACE").expect("a place");
    assert_eq!((watch.avma, watch.len_bytes, watch.access), (here, 8, Access::Write));
    assert_eq!(watch.symbol.as_ref().map(ToString::to_string).as_deref(), Some("KYMO_TEST_PLACE"));
    let watch = resolve("KYMO_TEST_PLACE+4:2:rw").expect("a place");
    assert_eq!((watch.avma, watch.len_bytes, watch.access), (here + 4, 2, Access::ReadWrite));
    assert_eq!(watch.symbol.as_ref().map(ToString::to_string).as_deref(), Some("KYMO_TEST_PLACE+0x4"));

    WATCHED_HERE.store(KYMO_TEST_PLACE.load(Ordering::Relaxed), Ordering::Relaxed);
    let here = &raw const WATCHED_HERE as u64;
    for path in ["WATCHED_HERE", "live::WATCHED_HERE", "suite::place::live::WATCHED_HERE"] {
        assert_eq!(resolve(path).expect("a place").avma, here, "{path}");
    }
    // A function of a library, and an address.
    let malloc = resolve("malloc").expect("a place");
    assert_eq!((malloc.access, malloc.len_bytes), (Access::Execute, 8));
    assert_eq!(resolve("0x1001").expect("a place").len_bytes, 1);
}

/// Checks that a pointer is followed without any type, to where it points now.
#[test]
fn untyped_pointers_are_followed() {
    let pointer: Box<u64> = Box::new(&raw const KYMO_TEST_PLACE as u64);
    let text = format!("*{:#x}", &raw const *pointer as u64);
    let watch = resolve(&text).expect("a place");
    assert_eq!(watch.avma, *pointer);
    assert!(watch.warnings[0].contains("stays there"), "{watch:?}");
}

/// Checks the sentence of each refusal.
#[test]
fn refusals_say_what_to_do() {
    for (text, words) in [
        ("KYMO_TEST_PLCAE", "did you mean 'KYMO_TEST_PLACE'"),
        ("KYMO_TEST_PLACE:3", "bad length 3"),
        ("KYMO_TEST_PLACE+1:8", "not a multiple of 8"),
        ("KYMO_TEST_PLACE.head", "built without debug information; rebuild it with -g"),
        ("malloc:4:x", "bad length 4"),
        ("*0x8", "cannot read 8 bytes of the target at 0x8"),
        ("deadbeefcafe", "write 0xdeadbeefcafe"),
    ] {
        let error = resolve(text).expect_err(text).to_string();
        assert!(error.contains(words), "{text}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}
