//! What stubs call of the agent, as the compiler made it: nothing of the C library, whose functions
//! may be probed and would come here again.
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind, SymbolKind};
use std::collections::{BTreeMap, BTreeSet};

/// The functions that stubs call, as symbols have them.
const ROOTS: [&str; 4] =
    ["6shadow5calls5adopt", "6shadow5calls5enter", "6shadow5calls5leave", "7runtime9slow_path6handle"];
const ENDS: [&str; 5] = ["panic", "precondition_check", "unwrap_failed", "expect_failed", "_fail"];
/// What a process does once, when it attaches for the first time.
const DONE_BEFORE: [&str; 2] = ["mmap", "madvise"];

enum Leads {
    Inside(u64),
    Outside(String),
}

struct Code<'f> {
    sections: Vec<(u64, &'f [u8])>,
    /// By address: bytes, name.
    functions: BTreeMap<u64, (u64, String)>,
    table: BTreeMap<u64, Leads>,
}

impl<'f> Code<'f> {
    fn of(elf: &object::File<'f>) -> Code<'f> {
        let sections = elf.sections().filter(|section| section.kind() == SectionKind::Text);
        let sections = sections.filter_map(|section| Some((section.address(), section.data().ok()?)));
        let functions = elf.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
        let functions = functions
            .map(|symbol| (symbol.address(), (symbol.size(), symbol.name().unwrap_or_default().to_owned())));
        let symbols = elf.dynamic_symbol_table().expect("a library has one");
        let table = elf.dynamic_relocations().into_iter().flatten().map(|(at, relocation)| {
            let named = match relocation.target() {
                RelocationTarget::Symbol(index) => {
                    use object::ObjectSymbolTable;
                    symbols.symbol_by_index(index).ok().filter(|symbol| symbol.is_undefined())
                }
                _ => None,
            };
            let leads = match named {
                Some(symbol) => Leads::Outside(symbol.name().unwrap_or_default().to_owned()),
                None => Leads::Inside(relocation.addend() as u64),
            };
            (at, leads)
        });
        Code { sections: sections.collect(), functions: functions.collect(), table: table.collect() }
    }

    /// The instructions of a function, or of an entry of the linkage table, which no symbol names.
    fn instructions(&self, at: u64) -> Vec<Instruction> {
        let named = self.functions.get(&at).map(|(bytes, _)| *bytes);
        let bytes = named.unwrap_or(16);
        let section =
            self.sections.iter().find(|(begin, data)| (*begin..begin + data.len() as u64).contains(&at));
        let Some((begin, data)) = section else { return Vec::new() };
        let from = (at - begin) as usize;
        let data = &data[from..data.len().min(from + bytes as usize)];
        let mut all: Vec<Instruction> =
            Decoder::with_ip(64, data, at, DecoderOptions::NONE).into_iter().collect();
        if named.is_none()
            && let Some(end) = all.iter().position(|one| one.flow_control() == FlowControl::IndirectBranch)
        {
            all.truncate(end + 1);
        }
        all
    }

    /// The functions outside that one inside reaches by direct calls, each with its caller.
    fn reached(&self, root: u64) -> BTreeSet<(String, String)> {
        let (mut seen, mut open, mut outside) = (BTreeSet::from([root]), vec![root], BTreeSet::new());
        while let Some(at) = open.pop() {
            let (bytes, name) =
                self.functions.get(&at).cloned().unwrap_or((16, "a linkage table".to_owned()));
            for instruction in self.instructions(at) {
                let to = match instruction.flow_control() {
                    FlowControl::Call | FlowControl::UnconditionalBranch => instruction.near_branch_target(),
                    FlowControl::IndirectCall | FlowControl::IndirectBranch
                        if instruction.op0_kind() == OpKind::Memory
                            && instruction.memory_base() == Register::RIP =>
                    {
                        match self.table.get(&instruction.ip_rel_memory_address()) {
                            Some(Leads::Inside(to)) => *to,
                            Some(Leads::Outside(to)) => {
                                outside.insert((to.clone(), name.clone()));
                                continue;
                            }
                            None => continue,
                        }
                    }
                    _ => continue,
                };
                let ends = |name: &str| ENDS.iter().any(|end| name.contains(end));
                let elsewhere = to != 0 && !(at..at + bytes).contains(&to);
                if elsewhere
                    && !self.functions.get(&to).is_some_and(|(_, name)| ends(name))
                    && seen.insert(to)
                {
                    open.push(to);
                }
            }
        }
        outside
    }
}

/// Checks that no function of the C library, such as a `memset` for an array, is reached from what
/// stubs call, with optimisation or without.
#[test]
fn stubs_call_nothing_of_the_c_library() {
    let Some(library) = super::compiled::built("libkymo_agent.so") else {
        kymo_testing::skip("called::stubs_call_nothing_of_the_c_library", "the shared library was not built");
        return;
    };
    let bytes = std::fs::read(library).expect("the library");
    let elf = object::File::parse(&*bytes).expect("an ELF file");
    let code = Code::of(&elf);
    for root in ROOTS {
        let found: Vec<u64> =
            code.functions.iter().filter(|(_, (_, name))| name.contains(root)).map(|(at, _)| *at).collect();
        assert!(!found.is_empty(), "{root} is not among the symbols");
        for at in found {
            let mut outside = code.reached(at);
            outside.retain(|(name, _)| !DONE_BEFORE.contains(&name.as_str()));
            assert!(outside.is_empty(), "{root} calls {outside:?}");
        }
    }
}
