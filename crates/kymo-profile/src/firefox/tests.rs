//! The document of a real recording, held against its samples.
use super::*;
use crate::load::LoadOptions;
use crate::resolve::ResolveOptions;
use kymo_symbols::SymbolOptions;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

fn recording(name: &str) -> Recording {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings").join(name);
    let file = std::fs::File::open(path).expect("a fixture");
    Recording::open(Arc::new(file), Vec::new()).expect("readable")
}

fn dataset(recording: &Recording, store: &SymbolStore) -> Dataset {
    let load = LoadOptions { callchains: true, columns: true, workers: 1, ..LoadOptions::default() };
    let resolve = ResolveOptions::default();
    let profile = Profile::open(recording, &load, resolve, store, &|_, _, _| {}).expect("readable");
    Dataset::of_profile(recording, profile)
}

/// Checks ids against ones that other tools print for these build ids.
#[test]
fn ids() {
    let id: Vec<u8> = (1..=20).collect();
    assert_eq!(breakpad_id(&id), "0403020106050807090A0B0C0D0E0F100");
    assert_eq!(breakpad_id(&[0xab]), "000000AB0000000000000000000000000");
    assert_eq!(breakpad_id(&[]).len(), 33);
}

/// Checks P1 to P3: tables are whole, each sample is in its thread, each stack has as many frames
/// as the call chain, and modules have distinct ids.
#[test]
fn documents() {
    for name in ["callgraph.data", "plain.data"] {
        let recording = recording(name);
        let store = SymbolStore::new(SymbolOptions::default());
        let data = dataset(&recording, &store);
        let made = firefox_profile(&recording, &data, &store, ("test", Some(1_000_000))).expect("a profile");
        let document: Value = serde_json::from_slice(&made.json).expect("JSON");
        assert_eq!(document["meta"]["startTime"], 1.0);
        let list = |value: &Value| value.as_array().expect("a list").clone();
        let threads = list(&document["threads"]);
        let mut samples = 0;
        for thread in &threads {
            for table in [
                "samples",
                "stackTable",
                "frameTable",
                "funcTable",
                "resourceTable",
                "nativeSymbols",
                "markers",
            ] {
                let table = thread[table].as_object().expect("a table");
                let length = table["length"].as_u64().expect("a length");
                for (column, values) in table {
                    if let Value::Array(values) = values {
                        assert_eq!(values.len() as u64, length, "{column}");
                    }
                }
            }
            samples += thread["samples"]["length"].as_u64().expect("a count");
            for (at, prefix) in list(&thread["stackTable"]["prefix"]).iter().enumerate() {
                assert!(prefix.as_u64().is_none_or(|prefix| prefix < at as u64), "a prefix comes before");
            }
            for resource in list(&thread["funcTable"]["resource"]) {
                assert!(
                    resource.as_i64().is_some_and(|r| r < list(&thread["resourceTable"]["lib"]).len() as i64)
                );
            }
        }
        let profile = data.profile().expect("samples");
        assert_eq!(samples, profile.loaded.totals[0].samples, "{name}");
        let libs = list(&document["libs"]);
        assert_eq!(libs.len(), made.modules.len());
        let ids: std::collections::BTreeSet<_> =
            made.modules.iter().map(|m| (&m.debug_name, &m.breakpad_id)).collect();
        assert_eq!(ids.len(), libs.len());
        // The innermost frame is the sampled address, in the terms of its module's symbols.
        let resolver = Resolver::new(&profile.loaded.timeline, &store);
        let row = 0;
        let chain = profile.loaded.chains.get(data.columns().get(RowField::Stack, row) as ChainId);
        let expected = resolver.module_address(chain.maps, chain.mode, chain.ip).expect("mapped");
        let thread = data.columns().thread(row);
        let tables = threads.iter().find(|t| t["tid"] == thread.tid).expect("the thread");
        let stack = tables["samples"]["stack"][0].as_u64().expect("a stack") as usize;
        let frame = tables["stackTable"]["frame"][stack].as_u64().expect("a frame") as usize;
        let address = tables["frameTable"]["address"][frame].as_u64().expect("an address");
        let resource = tables["funcTable"]["resource"][frame].as_u64().expect("a resource") as usize;
        let lib = tables["resourceTable"]["lib"][resource].as_u64().expect("a module") as usize;
        assert_eq!(made.modules[lib].base + address, expected);
    }
}
