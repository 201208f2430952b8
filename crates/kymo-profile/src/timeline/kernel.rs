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

    /// Lets the kernel's text reach up to the next mapping, when all are known: recorders end it before the code that
    /// runs at boot, which idle tasks still have at the bottom of their stacks.
    pub(super) fn stretch(&mut self, mappings: &mut Mappings) {
        let Some(text) = self.text else { return };
        let maps: Vec<Mapping> = self.set.iter(mappings).copied().collect();
        // The highest piece: a module that was mapped over the text has cut it.
        let Some(at) = maps.iter().rposition(|m| m.module == text) else { return };
        let piece = maps[at];
        let next = maps.get(at + 1).map_or(u64::MAX, |m| m.start);
        let end = image_end(piece.start).min(next);
        if end > piece.end {
            self.set.insert(mappings, Mapping { start: piece.end, end, ..piece });
        }
    }

    pub(super) fn apply(&mut self, event: &SideEvent, modules: &mut Modules, mappings: &mut Mappings) {
        let (module, start, end, pgoff) = match event {
            SideEvent::Map { start, end, pgoff, path, file_id, build_id, .. } => {
                let name = String::from_utf8_lossy(path);
                // perf names the kernel's text "[kernel.kallsyms]_text" or "_stext": file, then reference symbol.
                let (kind, path) = match name.strip_prefix("[kernel.kallsyms]") {
                    Some(symbol) => {
                        self.reference_symbol = symbol.to_string();
                        self.reference_address = *pgoff;
                        self.start = *start;
                        (ModuleKind::Kernel, &b"[kernel.kallsyms]"[..])
                    }
                    None => (ModuleKind::KernelModule, path.as_slice()),
                };
                let module = modules.intern(path, kind, *file_id, build_id);
                if kind == ModuleKind::Kernel {
                    self.text = Some(module);
                }
                (module, *start, *end, *pgoff)
            }
            SideEvent::Ksymbol { start, len, name, unregister: false } => {
                let module = modules.intern(name, ModuleKind::Ksymbol, (0, 0, *start), &[]);
                (module, *start, start.saturating_add(*len), 0)
            }
            _ => return,
        };
        let mapping = Mapping { start, end, pgoff, module, pid: 0, identity: true, executable: true };
        self.set.insert(mappings, mapping);
    }
}

/// The kernel's image lies within one gigabyte, aligned to as much; modules come behind it.
/// Source: `Documentation/arch/x86/x86_64/mm.rst`.
pub(crate) fn image_end(text: u64) -> u64 {
    const IMAGE_BYTES: u64 = 1 << 30;
    (text & !(IMAGE_BYTES - 1)).saturating_add(IMAGE_BYTES)
}
