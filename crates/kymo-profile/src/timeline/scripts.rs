//! Functions that interpreters run, as the recording tells them: addresses that no process maps.
use super::modules::{ModuleId, ModuleKind, Modules};
use kymo_data::InterpretedFunction;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// A function at some addresses. Several processes that run the same function tell it at addresses
/// of their own: the first one's count as those of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScriptFunction {
    /// Its source file.
    pub(crate) module: ModuleId,
    /// The first address under which it is counted.
    pub(crate) start: u64,
    /// The first address behind those.
    pub(crate) end: u64,
    /// Its name.
    pub(crate) name: Arc<str>,
}

/// All functions of interpreters in a recording.
#[derive(Debug, Default)]
pub struct Scripts {
    /// By their first addresses, not overlapping.
    list: Vec<(InterpretedFunction, ScriptFunction)>,
}

impl Scripts {
    /// The functions of a recording; their files become modules.
    pub(crate) fn new(mut functions: Vec<InterpretedFunction>, modules: &mut Modules) -> Scripts {
        // Each has a name and a place in its file: what is told twice is the same.
        functions.sort_by_key(|function| function.address);
        functions.dedup_by_key(|function| function.address);
        let mut first: FxHashMap<(ModuleId, u32, Arc<str>), (u64, u64)> = FxHashMap::default();
        let list = functions.into_iter().map(|function| {
            let file = if function.file.is_empty() { "[python]" } else { &function.file };
            let module = modules.intern(file.as_bytes(), ModuleKind::Script, (0, 0, 0), &[]);
            let name: Arc<str> = function.name.as_str().into();
            let own = (function.address, function.address.saturating_add(function.size.into()));
            let key = (module, function.first_line, Arc::clone(&name));
            let (start, end) = *first.entry(key).or_insert(own);
            (function, ScriptFunction { module, start, end, name })
        });
        Scripts { list: list.collect() }
    }

    /// The function at an address, the address under which it is counted, and the line.
    pub(crate) fn find(&self, address: u64) -> Option<(&ScriptFunction, u64, Option<u32>)> {
        if !InterpretedFunction::holds(address) {
            return None;
        }
        let behind = self.list.partition_point(|(function, _)| function.address <= address);
        let (told, function) = self.list.get(behind.checked_sub(1)?)?;
        let offset = address - told.address;
        (offset < told.size.into()).then(|| (function, function.start + offset, told.line(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that functions are found by address with their lines and files, that the same function
    /// of two processes is one, and that nothing is found beside them.
    #[test]
    fn functions_of_two_processes() {
        let first = InterpretedFunction::FIRST_ADDRESS;
        let function = |at: u64, name: &str, file: &str| InterpretedFunction {
            address: first + at,
            size: 16,
            first_line: 3,
            lines: vec![(0, 3), (4, 9)],
            name: name.into(),
            file: file.into(),
        };
        let told = vec![
            function(64, "main", "/srv/a.py"),
            function(0, "main", "/srv/a.py"),
            function(16, "main", "/srv/b.py"),
            function(32, "turn", ""),
        ];
        let mut modules = Modules::default();
        let scripts = Scripts::new(told, &mut modules);
        let found = |at: u64| {
            let (function, address, line) = scripts.find(first + at)?;
            let file = modules.get(function.module).short_name.clone();
            Some((function.name.to_string(), file, address - first, line))
        };
        let main = |file: &str, at, line| Some(("main".to_owned(), file.to_owned(), at, Some(line)));
        assert_eq!(found(0), main("a.py", 0, 3));
        assert_eq!(found(69), main("a.py", 5, 9), "counted as the first one");
        assert_eq!(found(20), main("b.py", 20, 9));
        assert_eq!(found(33), Some(("turn".into(), "[python]".into(), 33, Some(3))));
        assert_eq!((found(48), found(80), scripts.find(16).is_none()), (None, None, true));
    }
}
