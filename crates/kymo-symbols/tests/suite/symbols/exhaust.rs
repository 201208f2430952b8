//! Every question about the symbols, lines, sites and unwind data of a file; the fuzz target asks the same.

use std::path::Path;
use std::sync::Arc;

use kymo_symbols::sites::{ProbeModule, ProbeSelector, Search, find, libraries};
use kymo_symbols::unwind::{AddressSpace, Convention, Image, MAX_FRAMES, UnwindModules, Unwinder, UserRegs};
use kymo_symbols::{Budget, ModuleKey, SymbolOptions, SymbolStore};

const SELECTORS: &[&str] = &["*", "main", "a.c:7", "f.c:1", "usdt:*", "usdt:p:n"];
/// Offsets and addresses beside those that symbols say.
const PLACES: &[u64] = &[0, 1, 0x40, 0x1000, 0x1005, 0x1800, 0x2000, 0x40_1000, u64::MAX];
/// Of each kind so many are asked.
const MOST: usize = 24;

/// Asks everything of the file, which holds `bytes`.
pub(crate) fn exercise(file: &Path, bytes: &[u8]) {
    symbols(file);
    sites(file);
    unwinding(bytes);
}

fn symbols(file: &Path) {
    let options = SymbolOptions {
        buildid_dir: Some("/nonexistent".into()),
        budget: Budget::new(),
        ..SymbolOptions::default()
    };
    let store = SymbolStore::new(options);
    let module = store.get(&ModuleKey::file(file.to_owned(), None));
    let starts: Vec<u64> = module.table().iter().take(MOST).map(|symbol| symbol.start).collect();
    for &address in starts.iter().chain(PLACES) {
        if let Some(symbol) = module.find(address) {
            assert!(!symbol.name.contains('\0') && symbol.raw_name.len() <= 16 << 10);
        }
        assert!(module.inline_frames(address).len() <= 256);
    }
    assert!(module.notes().iter().all(|note| !note.0.is_empty()));
}

fn sites(file: &Path) {
    let Ok(module) = ProbeModule::open(file, None) else { return };
    let module = Arc::new(module);
    for function in module.functions().iter().take(MOST) {
        assert!(module.is_code(function.offset));
        assert!(!function.name().is_empty());
    }
    let _ = (module.runtime(), module.markers().len(), libraries(&module, &Search::default()).len());
    for text in SELECTORS {
        let Ok(selector) = ProbeSelector::parse(text) else { continue };
        match find(&selector, &[Arc::clone(&module)]) {
            Ok(sites) => {
                for site in sites.iter().take(MOST) {
                    let _ = (site.untouchable(), site.immovable(), site.call_sites().is_ok());
                    let _ = site.counted_offset();
                }
            }
            Err(missing) => assert!(!missing.to_string().is_empty()),
        }
    }
}

fn unwinding(bytes: &[u8]) {
    let image: Arc<[u8]> = bytes.into();
    let modules =
        UnwindModules::with_opener(Box::new(move |_| Ok(Image::Bytes(Arc::clone(&image)))), u64::MAX);
    let mut space = AddressSpace::new();
    space.map(0x7000_0000, 0x7100_0000, 0, modules.module(b"/image", b""));
    // Return addresses into the module, one word after the other.
    let stack: Vec<u8> =
        (0..256u64).flat_map(|word| (0x7000_0000 + 0x1000 * (word % 5) + 7 * word).to_le_bytes()).collect();
    let mut unwinder = Unwinder::new(Convention::Perf);
    let mut out = Vec::new();
    for &place in PLACES {
        let regs = UserRegs::new(0x7000_0000 + (place & 0xff_ffff), 0x6000_0000, 0x6000_0040);
        unwinder.unwind(&space, &regs, &stack, MAX_FRAMES, &mut out);
    }
    assert!(out.len() <= MAX_FRAMES * PLACES.len());
}
