//! The symbol cache: the second run resolves nothing again, and says the same.

use std::fs;
use std::path::{Path, PathBuf};

use kymo_symbols::build_id_cache::{BuildIdCache, build_id_bytes};
use kymo_symbols::{ModuleKey, SymbolCache, SymbolOptions, SymbolStore};
use kymo_testing::skip;

use crate::tools::{run, workshop};

const SOURCE: &str = "
static inline __attribute__((always_inline)) int twice(int x) { return x * 2 + (x >> 3); }
static __attribute__((noinline)) int local(int x) { return twice(x) + 1; }
int shared(int x) { return local(x) + twice(x); }
int main(int argc, char **argv) { (void)argv; return shared(argc) & 1; }
";

/// A program with debug information, and caches of its own.
struct Shop {
    folder: tempfile::TempDir,
    program: PathBuf,
}

/// What is said of each address: the symbol, and the inlined functions with their lines.
type Said = Vec<(Option<(u64, u64, String, String)>, Vec<(Option<String>, Option<String>, Option<u32>)>)>;

impl Shop {
    fn open(test: &str) -> Option<Shop> {
        let folder = workshop(test, &["cc", "strip"], &[("p.c", SOURCE)])?;
        run(folder.path(), "cc", &["-O2", "-g", "-Wl,--build-id", "p.c", "-o", "p"]);
        let program = folder.path().join("p");
        Some(Shop { program, folder })
    }

    fn options(&self) -> SymbolOptions {
        SymbolOptions {
            buildid_dir: Some(self.folder.path().join("copies")),
            cache: Some(SymbolCache::below(self.folder.path().join("cache"), 1 << 20)),
            ..SymbolOptions::default()
        }
    }

    fn key(&self) -> ModuleKey {
        ModuleKey::file(self.program.clone(), None)
    }

    /// What a new run says of these addresses, and whether it read the program for it.
    fn ask(&self, options: SymbolOptions, addresses: &[u64]) -> (Said, usize) {
        let store = SymbolStore::new(options);
        let module = store.get(&self.key());
        let said = addresses.iter().map(|&address| {
            let symbol = module
                .find(address)
                .map(|symbol| (symbol.start, symbol.end, symbol.name.to_owned(), symbol.raw_name.to_owned()));
            let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(str::to_owned);
            let frames = module.inline_frames(address);
            (symbol, frames.iter().map(|f| (text(&f.function), text(&f.file), f.line)).collect())
        });
        let said = said.collect();
        assert_eq!(module.notes(), []);
        (said, store.modules_resolved())
    }

    /// Every fourth address of the program's code, and some outside of it.
    fn addresses(&self) -> Vec<u64> {
        let store = SymbolStore::new(SymbolOptions { cache: None, ..self.options() });
        let module = store.get(&self.key());
        let own = |name: &str| ["main", "shared", "local"].contains(&name);
        let of = module.table().iter().filter(|symbol| own(symbol.name));
        of.flat_map(|symbol| (symbol.start..symbol.end).step_by(4)).chain([0, 1 << 40]).collect()
    }

    fn cache_file(&self) -> PathBuf {
        let list = fs::read_dir(self.folder.path().join("cache/kymo/symbols")).expect("the cache");
        let mut files = list.map(|entry| entry.expect("an entry").path());
        let file = files.next().expect("a file");
        assert_eq!(files.next(), None);
        file
    }
}

/// Checks that the second run reads no file of a program, and says the same as the first one and as
/// a run without a cache; also where the options differ, which have answers of their own.
#[test]
fn the_second_run_resolves_nothing() {
    let Some(shop) = Shop::open("symbols::the_second_run_resolves_nothing") else { return };
    let addresses = shop.addresses();
    assert!(addresses.len() > 10);
    let (without, _) = shop.ask(SymbolOptions { cache: None, ..shop.options() }, &addresses);
    assert!(without.iter().any(|(_, frames)| frames.len() > 1), "{without:?}");
    assert_eq!(shop.ask(shop.options(), &addresses), (without.clone(), 1));
    assert_eq!(shop.ask(shop.options(), &addresses), (without.clone(), 0));
    assert_eq!(shop.ask(shop.options(), &addresses[3..9]), (without[3..9].to_vec(), 0));
    let mangled = || SymbolOptions { demangle: false, ..shop.options() };
    assert_eq!(shop.ask(mangled(), &addresses), (without.clone(), 1));
    assert_eq!(shop.ask(mangled(), &addresses), (without, 0));
}

/// Checks that an address that was not asked before is resolved, and that the answers come
/// together.
#[test]
fn new_addresses_are_added() {
    let Some(shop) = Shop::open("symbols::new_addresses_are_added") else { return };
    let addresses = shop.addresses();
    let (without, _) = shop.ask(SymbolOptions { cache: None, ..shop.options() }, &addresses);
    let (first, second) = addresses.split_at(addresses.len() / 2);
    assert_eq!(shop.ask(shop.options(), first).1, 1);
    assert_eq!(shop.ask(shop.options(), second).1, 1);
    assert_eq!(shop.ask(shop.options(), &addresses), (without, 0));
}

/// Checks that a debug file that is found later is not hidden by what was kept before, and that one
/// that goes away is not remembered.
#[test]
fn a_later_debug_file_is_found() {
    let Some(shop) = Shop::open("symbols::a_later_debug_file_is_found") else { return };
    let addresses = shop.addresses();
    let whole = shop.folder.path().join("whole");
    fs::copy(&shop.program, &whole).expect("copied");
    run(shop.folder.path(), "strip", &["p"]);
    let (nameless, _) = shop.ask(SymbolOptions { cache: None, ..shop.options() }, &addresses);
    assert_eq!(shop.ask(shop.options(), &addresses), (nameless.clone(), 1));
    assert_eq!(shop.ask(shop.options(), &addresses), (nameless.clone(), 0));
    let copies = BuildIdCache::of(&shop.options()).expect("our own folder");
    let id = copies.add(&whole, &shop.options()).expect("a copy");
    let (named, resolved) = shop.ask(shop.options(), &addresses);
    assert_eq!(resolved, 1);
    assert!(
        named != nameless && named.iter().any(|(symbol, _)| symbol.as_ref().is_some_and(|s| s.2 == "local"))
    );
    assert_eq!(shop.ask(shop.options(), &addresses), (named, 0));
    assert!(copies.remove(&id).expect("removed"));
    assert_eq!(shop.ask(shop.options(), &addresses), (nameless, 1));
}

/// Checks that a program that was built anew under its name is resolved anew, with a recorded build
/// id or without.
#[test]
fn a_program_that_was_rebuilt() {
    let Some(shop) = Shop::open("symbols::a_program_that_was_rebuilt") else { return };
    let addresses = shop.addresses();
    let (before, _) = shop.ask(shop.options(), &addresses);
    let longer = SOURCE.replace("int shared", "int first(int x) { return x; }\nint shared");
    fs::write(shop.folder.path().join("p.c"), longer).expect("the source");
    run(shop.folder.path(), "cc", &["-O2", "-g", "-Wl,--build-id", "p.c", "-o", "p"]);
    let (without, _) = shop.ask(SymbolOptions { cache: None, ..shop.options() }, &addresses);
    assert_ne!(without, before);
    assert_eq!(shop.ask(shop.options(), &addresses), (without, 1));
}

/// Checks that damaged and foreign files in the place of the cache's change nothing but the work.
#[test]
fn damaged_files_are_resolved_anew() {
    let Some(shop) = Shop::open("symbols::damaged_files_are_resolved_anew") else { return };
    let addresses = shop.addresses();
    let (said, _) = shop.ask(shop.options(), &addresses);
    let file = shop.cache_file();
    let whole = fs::read(&file).expect("the file");
    let mut version = whole.clone();
    version[7] += 1;
    let mut turned = whole.clone();
    turned[whole.len() / 2] ^= 0x10;
    for bytes in [&[][..], &whole[..40], &whole[..whole.len() - 1], &version, &turned, &[0xff; 5000]] {
        fs::write(&file, bytes).expect("written");
        assert_eq!(shop.ask(shop.options(), &addresses), (said.clone(), 1));
        assert_eq!(shop.ask(shop.options(), &addresses), (said.clone(), 0), "it was written anew");
    }
}

/// Checks that a module without a build id is kept by the state of its file: not while that is new,
/// and not after it was built anew. The tools of Rust have none, and their reports read 200 MB
/// again each time.
#[test]
fn a_module_without_a_build_id() {
    let test = "symbols::a_module_without_a_build_id";
    let Some(shop) = Shop::open(test) else { return };
    let build = || run(shop.folder.path(), "cc", &["-O2", "-g", "-Wl,--build-id=none", "p.c", "-o", "p"]);
    build();
    if build_id_bytes(&shop.program, &shop.options()).is_ok() {
        return skip(test, "the linker writes a build id always");
    }
    let addresses = shop.addresses();
    let settled = || std::thread::sleep(std::time::Duration::from_millis(300));
    settled();
    let (without, _) = shop.ask(SymbolOptions { cache: None, ..shop.options() }, &addresses);
    assert_eq!(shop.ask(shop.options(), &addresses), (without.clone(), 1));
    assert_eq!(shop.ask(shop.options(), &addresses), (without.clone(), 0));
    let longer = SOURCE.replace("int shared", "int first(int x) { return x; }\nint shared");
    fs::write(shop.folder.path().join("p.c"), longer).expect("the source");
    build();
    settled();
    let (rebuilt, resolved) = shop.ask(shop.options(), &addresses);
    assert_eq!(resolved, 1);
    assert_ne!(rebuilt, without);
    assert_eq!(shop.ask(shop.options(), &addresses), (rebuilt, 0));
}

/// Checks that a module of which a part was refused is not kept.
#[test]
fn what_is_not_kept() {
    let Some(shop) = Shop::open("symbols::what_is_not_kept") else { return };
    let is_empty = |shop: &Shop| {
        let folder: &Path = &shop.folder.path().join("cache/kymo/symbols");
        fs::read_dir(folder).map_or(true, |mut list| list.next().is_none())
    };
    // A file that is there and is not that of the recording: the note is said each time.
    let store = SymbolStore::new(shop.options());
    let other = ModuleKey::file(shop.program.clone(), Some(vec![7; 20]));
    store.get(&other).find(0x1000);
    assert!(!store.get(&other).notes().is_empty());
    drop(store);
    assert!(is_empty(&shop));
}

/// Checks that runs that write at the same time all say the same, and that what they leave is
/// whole.
#[test]
fn runs_at_once() {
    let Some(shop) = Shop::open("symbols::runs_at_once") else { return };
    let addresses = shop.addresses();
    let (without, _) = shop.ask(SymbolOptions { cache: None, ..shop.options() }, &addresses);
    std::thread::scope(|scope| {
        for part in 1..=6 {
            let (shop, addresses, without) = (&shop, &addresses, &without);
            scope.spawn(move || {
                let length = addresses.len() * part / 6;
                for _ in 0..5 {
                    assert_eq!(shop.ask(shop.options(), &addresses[..length]).0, without[..length]);
                }
            });
        }
    });
    shop.cache_file();
    assert_eq!(shop.ask(shop.options(), &addresses).0, without);
    assert_eq!(shop.ask(shop.options(), &addresses), (without, 0));
}
