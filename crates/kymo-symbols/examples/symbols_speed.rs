//! How long symbols take: `cargo run --release -p kymo-profile --example symbols_speed -- FILE...`
//!
//! For the kernel and each file: the time to load, then lookups of addresses spread over the table.

use std::path::PathBuf;
use std::time::Instant;

use kymo_symbols::{ModuleKey, SymbolOptions, SymbolStore};

fn main() {
    let store = SymbolStore::new(SymbolOptions::default());
    let mut keys = vec![ModuleKey::Kernel { build_id: None, reference: None }];
    keys.extend(
        std::env::args_os().skip(1).map(|path| ModuleKey::Elf { path: PathBuf::from(path), build_id: None }),
    );
    let text = std::fs::read("/proc/kallsyms").unwrap_or_default();
    let start = Instant::now();
    let again = std::fs::read("/proc/kallsyms").unwrap_or_default();
    println!("reading /proc/kallsyms alone, {} bytes: {:?}", text.len().min(again.len()), start.elapsed());
    for key in keys {
        let start = Instant::now();
        let module = store.get(&key);
        let loaded = start.elapsed();
        let table = module.table();
        let starts: Vec<u64> =
            (0..table.len() as u32).filter_map(|i| table.get(i)).map(|s| s.start + 1).collect();
        let start = Instant::now();
        let mut found = 0u64;
        let lookups = 1_000_000u64;
        let mut at = 1u64;
        for _ in 0..lookups {
            at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if !starts.is_empty() {
                let address = starts[(at >> 33) as usize % starts.len()];
                found += u64::from(table.find(address).is_some());
            }
        }
        let per_lookup = start.elapsed().as_nanos() as u64 / lookups;
        let start = Instant::now();
        let bytes: usize = table.iter().map(|s| s.name.len()).sum();
        println!(
            "{key:?}: {} symbols in {loaded:?}, {per_lookup} ns a lookup ({found} found), names again {:?} ({bytes} bytes)",
            table.len(),
            start.elapsed()
        );
    }
}
