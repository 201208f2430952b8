//! Every kind of question about a module; the fuzz target asks the same.

use std::path::Path;
use std::sync::Arc;

use kymo_symbols::place::call::Routines;
use kymo_symbols::place::{self, Module, ModuleFile, Target};

const QUESTIONS: &[&str] = &[
    "counter",
    "own",
    "grid[2][3][4]",
    "chain[1].name[5]",
    "head->next->next->value",
    "**head_pointer",
    "outer.deep",
    "outer.hidden->inside[2]",
    "outer.flags.c",
    "word.high",
    "both.left",
    "both.id",
    "base->id",
    "unique->plain",
    "vec[2].inner.deep",
    "arr[5]",
    "ns::Box<int>::last",
    "ns::(anonymous namespace)::hidden",
    "reference",
    "inner::HEAD.0.next.0.value",
    "STATE.code",
    "VEC[1].number",
    "SLICE[2]",
    "LOCKED.data.value.1",
    "*REF",
    "MODE",
    "places::work::CALLS",
    "calls::local.value",
    "PER_THREAD",
    "main:x",
    "conuter",
    "other.c:twice",
];

/// Asks everything of a module; memory answers every read with bytes made of the address.
pub(crate) fn exercise(bytes: &[u8], salt: u64) {
    let module = ModuleFile::from_bytes(Path::new("damaged"), Arc::from(bytes), None);
    let Ok(file) = module else { return };
    calls(&file);
    let memory = |avma: u64, out: &mut [u8]| {
        let word = (avma ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let len = out.len();
        out.copy_from_slice(&word[..len]);
        Ok(())
    };
    let target =
        Target { modules: vec![Module { file: Arc::new(file), bias: 0x5555_0000_0000 }], memory: &memory };
    for text in QUESTIONS {
        let request = place::parse(text).expect("an expression");
        match place::resolve(&request, &target) {
            Ok(watch) => {
                assert!(watch.len_bytes > 0, "{text}: {watch:?}");
                watch.pieces(16);
                watch.value.show(&[0xff; 8]);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Asks what functions take, and what expressions over that mean.
fn calls(file: &ModuleFile) {
    let Ok(routines) = Routines::of(file) else { return };
    for svma in routines.beginnings().into_iter().take(200) {
        let Ok(routine) = routines.at(svma, "any.isra.0") else { continue };
        routine.parameters();
        routine.return_type();
        let all = routine.everything();
        assert!(all.iter().flatten().all(|fetch| fetch.steps.len() <= place::call::MOST_STEPS));
        for name in routine.names().into_iter().take(8).chain(["ret".to_owned(), "none".to_owned()]) {
            for text in [format!("*{name}"), format!("{name}->next.value[1]"), format!("{name}[3]")] {
                match routine.fetch_all(&text) {
                    Ok(found) => found.iter().for_each(|fetch| drop(fetch.show(u64::MAX))),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
        }
    }
}
