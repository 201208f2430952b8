//! The kernel's own mappings: its text, its modules, and code that came at run time.

use super::{MapSet, Mapping, Mappings, ModuleId, ModuleKind, Modules, SideEvent};

/// The kernel's mappings. They are the same for all processes; a module that goes away and another that takes its
/// place during one recording is rare enough that the last one wins.
#[derive(Debug, Default)]
pub struct KernelMaps {
    set: MapSet,
    /// The kernel's own text, once it is known.
    pub text: Option<ModuleId>,
    /// Address of the reference symbol (`_text` or `_stext`) when the recording was made, 0 if hidden.
    pub reference_address: u64,
    /// Name of that symbol.
    pub reference_symbol: String,
    /// First address of the kernel's text.
    pub start: u64,
}

impl KernelMaps {
    /// The mapping that covers a kernel address.
    pub fn find<'a>(&self, mappings: &'a Mappings, address: u64) -> Option<&'a Mapping> {
        self.set.find(mappings, address)
    }

    pub(super) fn apply(&mut self, event: &SideEvent, modules: &mut Modules, mappings: &mut Mappings) {
        match event {
            SideEvent::Map { start, end, pgoff, path, file_id, build_id, .. } => {
                let name = String::from_utf8_lossy(path);
                // perf names the kernel's text "[kernel.kallsyms]_text" or "_stext": file, then reference symbol.
                let (kind, path, identity) = match name.strip_prefix("[kernel.kallsyms]") {
                    Some(symbol) => {
                        self.reference_symbol = symbol.to_string();
                        self.reference_address = *pgoff;
                        self.start = *start;
                        (ModuleKind::Kernel, &b"[kernel.kallsyms]"[..], true)
                    }
                    None => (ModuleKind::KernelModule, path.as_slice(), true),
                };
                let module = modules.intern(path, kind, *file_id, build_id);
                if kind == ModuleKind::Kernel {
                    self.text = Some(module);
                }
                self.set.insert(
                    mappings,
                    Mapping { start: *start, end: *end, pgoff: *pgoff, module, identity, executable: true },
                );
            }
            SideEvent::Ksymbol { start, len, name, unregister: false } => {
                let module = modules.intern(name, ModuleKind::Ksymbol, (0, 0, *start), &[]);
                let end = start.saturating_add(*len);
                self.set.insert(
                    mappings,
                    Mapping { start: *start, end, pgoff: 0, module, identity: true, executable: true },
                );
            }
            _ => {}
        }
    }
}
