//! Names and paths of debug information: each made readable and kept once, however many addresses
//! have it.
use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use gimli::Reader as _;
use hashbrown::{HashMap, HashSet};

use super::sections::Reader;
use crate::demangle;
use crate::name::shortened;

/// Where an entry is: whether in the shared file, and where in its `.debug_info`.
pub(super) type EntryPlace = (bool, usize);

/// The name of a function, if it has one.
type FunctionName = Option<Arc<str>>;

/// The texts of one module.
#[derive(Default)]
pub(super) struct Texts {
    demangle: bool,
    all: Mutex<HashSet<Arc<str>>>,
    /// By the entry that has the name.
    functions: Mutex<HashMap<EntryPlace, FunctionName>>,
}

impl Texts {
    pub(super) fn new(demangle: bool) -> Texts {
        Texts { demangle, ..Texts::default() }
    }

    fn interned(&self, text: &str) -> Arc<str> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.get_or_insert_with(text, |text| Arc::from(text)))
    }

    /// A path of a source file.
    pub(super) fn path(&self, path: &str) -> Arc<str> {
        self.interned(&shortened(path.as_bytes()))
    }

    /// The name of the function of an entry, as it was found before or as `find` has it.
    pub(super) fn function(&self, entry: EntryPlace, find: impl FnOnce() -> Option<Reader>) -> FunctionName {
        let known = self.functions.lock().unwrap_or_else(PoisonError::into_inner).get(&entry).cloned();
        if let Some(known) = known {
            return known;
        }
        // Nothing is held meanwhile: two threads may find the same.
        let name = find().and_then(|name| {
            let bytes = name.to_slice().ok()?;
            let name = shortened(&bytes);
            let shown = if self.demangle { demangle::readable(&name) } else { Cow::Borrowed(&*name) };
            Some(self.interned(&shown))
        });
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.insert(entry, name.clone());
        name
    }
}
