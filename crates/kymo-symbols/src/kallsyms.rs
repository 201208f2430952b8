//! The kernel's own symbol list, `/proc/kallsyms`, and saved copies of it.
//!
//! The text becomes the arena of names: they move to its begin, each ended by a zero byte, and the
//! rest is given back. So reading 200,000 symbols allocates no names at all, and half of the text
//! stays.

use hashbrown::HashMap;

use super::table::{Binding, EndRule, SymbolTable, TableBuilder};

/// A parsed symbol list: the kernel's table and one per module.
#[derive(Debug, Default)]
pub(super) struct Kallsyms {
    pub(super) kernel: SymbolTable,
    pub(super) modules: HashMap<String, SymbolTable>,
    /// Addresses of the symbols that a recording may name as its reference.
    pub(super) references: HashMap<String, u64>,
    /// Whether there were symbols, all of them at address 0: the kernel hides them.
    pub(super) hidden: bool,
}

/// One line: `address type name[\tmodule]`.
struct Line<'a> {
    address: u64,
    kind: u8,
    name: &'a [u8],
    /// Offset of the name in the text.
    name_at: usize,
    module: Option<&'a [u8]>,
}

fn parse_line(text: &[u8], start: usize, end: usize) -> Option<Line<'_>> {
    let line = &text[start..end];
    let digits = line.iter().take(17).position(|&c| c == b' ')?;
    let mut address = 0u64;
    for &c in &line[..digits] {
        address = address << 4 | u64::from((c as char).to_digit(16)?);
    }
    let kind = *line.get(digits + 1)?;
    if line.get(digits + 2) != Some(&b' ') {
        return None;
    }
    let rest = &line[digits + 3..];
    let (name, module) = match memchr::memchr(b'\t', rest) {
        Some(tab) => (&rest[..tab], rest[tab + 1..].trim_ascii().strip_prefix(b"[")),
        None => (rest, None),
    };
    let module = module.and_then(|module| module.strip_suffix(b"]"));
    Some(Line { address, kind, name, name_at: start + digits + 3, module })
}

/// The rule by which a symbol ends. Functions may be called `__something_end`, so markers of code
/// are told by their whole names, and those of data by a prefix that no variable has.
fn end_rule(kind: u8, name: &[u8]) -> EndRule {
    let is_code = matches!(kind, b't' | b'T' | b'w' | b'W');
    let is_marker = match is_code {
        true => {
            matches!(name, b"_etext" | b"_einittext")
                || (name.starts_with(b"__") && name.ends_with(b"_text_end"))
        }
        false => {
            matches!(name, b"_edata" | b"_end" | b"__bss_stop" | b"__end_rodata")
                || name.starts_with(b"__stop_")
        }
    };
    match (is_marker, is_code) {
        (true, _) => EndRule::Marker,
        (false, true) => EndRule::Code,
        (false, false) => EndRule::Next,
    }
}

/// Parses the list. Lines that make no sense are passed over.
pub(super) fn parse(mut text: Vec<u8>, demangle: bool) -> Kallsyms {
    // Offsets into the text are 32 bits; the real list has about 10 MB.
    text.truncate(u32::MAX as usize - 1);
    let mut groups: HashMap<Vec<u8>, u16> = HashMap::new();
    let mut module_names: Vec<String> = Vec::new();
    let mut references = HashMap::new();
    let mut found = Vec::with_capacity(text.len() / 48);
    // Where symbols start that are not kept, as read-only data.
    let mut others = Vec::new();
    // Where the names of the arena end: before the line that is read.
    let mut arena = 0;
    let mut last_module: (Vec<u8>, u16) = (Vec::new(), 0);
    let mut start = 0;
    let mut seen = false;
    let mut hidden = true;
    while start < text.len() {
        let end = memchr::memchr(b'\n', &text[start..]).map_or(text.len(), |n| start + n);
        if let Some(line) = parse_line(&text, start, end) {
            seen = true;
            hidden &= line.address == 0;
            // What perf keeps: text, weak symbols, data and bss, local or global.
            if matches!(line.kind.to_ascii_uppercase(), b'T' | b'W' | b'D' | b'B') {
                let group = match line.module {
                    None => 0,
                    Some(module) if module == last_module.0 => last_module.1,
                    Some(module) => {
                        let next = module_names.len() as u16 + 1;
                        let group = *groups.entry_ref(module).or_insert(next);
                        if group == next {
                            module_names.push(String::from_utf8_lossy(module).into_owned());
                        }
                        last_module = (module.to_vec(), group);
                        group
                    }
                };
                let binding = match line.kind {
                    b'W' => Binding::Weak,
                    kind if kind.is_ascii_uppercase() => Binding::Global,
                    _ => Binding::Local,
                };
                if matches!(line.name, b"_text" | b"_stext") {
                    references.insert(String::from_utf8_lossy(line.name).into_owned(), line.address);
                }
                let end_rule = end_rule(line.kind, line.name);
                found.push((line.address, arena as u32, (binding, group, end_rule)));
                let name = line.name_at..line.name_at + line.name.len();
                let behind = arena + name.len();
                // A line is longer than its name and a zero byte.
                text.copy_within(name, arena);
                text[behind] = 0;
                arena = behind + 1;
            } else if !matches!(line.kind, b'A' | b'a') {
                // Absolute symbols are numbers, no places.
                others.push(line.address);
            }
        }
        start = end + 1;
        if module_names.len() >= usize::from(u16::MAX) - 1 {
            break;
        }
    }
    if seen && hidden {
        return Kallsyms { hidden: true, ..Kallsyms::default() };
    }
    text.truncate(arena);
    text.shrink_to_fit();
    let mut builder = TableBuilder::new(text, demangle);
    for (address, name, kind) in found {
        builder.insert_listed(address, name, kind);
    }
    others.sort_unstable();
    builder.end_at(others);
    builder.fix(true);
    let mut tables = builder.finish_groups(module_names.len() + 1).into_iter();
    let kernel = tables.next().unwrap_or_default();
    Kallsyms { kernel, modules: module_names.into_iter().zip(tables).collect(), references, hidden: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIST: &str = "ffffffff81000000 T srso_alias_untrain_ret\n\
        ffffffff81000000 T _stext\n\
        ffffffff81000000 T _text\n\
        ffffffff81000010 r some_constant\n\
        ffffffff81000040 t do_it.isra.0\n\
        ffffffff81000080 W maybe\n\
        ffffffffc0001000 t probe\t[driver]\n\
        ffffffffc0001040 T init\t[driver]\n\
        ffffffffc0003000 T other\t[second]\n";

    fn names(table: &SymbolTable) -> Vec<(u64, u64, String)> {
        table.iter().map(|s| (s.start, s.end, s.name.to_owned())).collect()
    }

    /// Checks which lines become symbols, that the last of several aliases is kept (as perf 6.1 does), and that a
    /// module's last symbol ends on a page beyond, not at the next module.
    #[test]
    fn reads_the_list_as_perf_does() {
        let list = parse(LIST.into(), false);
        assert_eq!(
            names(&list.kernel),
            [
                // The constant is not kept, and is not a part of this one.
                (0xffffffff81000000, 0xffffffff81000010, "_text".into()),
                (0xffffffff81000040, 0xffffffff81000080, "do_it.isra.0".into()),
                (0xffffffff81000080, 0xffffffff81002000, "maybe".into()),
            ]
        );
        assert_eq!(
            names(&list.modules["driver"]),
            [
                (0xffffffffc0001000, 0xffffffffc0001040, "probe".into()),
                (0xffffffffc0001040, 0xffffffffc0003000, "init".into()),
            ]
        );
        assert_eq!(list.kernel.find(0xffffffff81000041).map(|s| s.name), Some("do_it.isra.0"));
        assert_eq!(list.kernel.find(0xffffffff90000000), None);
        assert_eq!(list.references["_text"], 0xffffffff81000000);
    }

    /// Checks that markers and thunks of a kernel's end do not reach over the padding behind them,
    /// as Debian's 6.12 has it, that functions with names like markers keep their code, and that a
    /// marker that shares its address with a function has it, as with perf.
    #[test]
    fn padding_has_no_name() {
        let list = "ffffffff81ccc680 T __static_call_text_start\n\
            ffffffff81cd3ef0 t __SCT__tp_func_sched_switch\n\
            ffffffff81cd3ef8 T __static_call_text_end\n\
            ffffffff81e00000 T srso_alias_untrain_ret\n\
            ffffffff81e00010 T __entry_text_start\n\
            ffffffff81e02200 T entry_SYSENTER_compat\n\
            ffffffff81e0224b T __entry_text_end\n\
            ffffffff81f04104 T srso_alias_safe_ret\n\
            ffffffff81f0410b T srso_alias_return_thunk\n\
            ffffffff82000000 T _etext\n\
            ffffffff82001000 D __start_rodata\n\
            ffffffff8262cc40 D __stop___modver\n\
            ffffffff8262e98c r _note_44\n\
            ffffffff82800000 D init_task\n\
            ffffffff82801000 t __delayacct_blkio_end\n\
            ffffffff82802000 t real\n\
            ffffffff82802000 T __hot_text_end\n\
            ffffffff82803000 t behind\n";
        let table = parse(list.into(), false).kernel;
        let name = |address| table.find(address).map(|symbol| symbol.name.to_owned());
        for (last_byte, wanted) in [
            (0xffffffff81cd3ef7, "__SCT__tp_func_sched_switch"),
            (0xffffffff81cd3ef8, "__static_call_text_end"),
            (0xffffffff81e0224a, "entry_SYSENTER_compat"),
            (0xffffffff81f0410a, "srso_alias_safe_ret"),
            (0xffffffff81f04111, "srso_alias_return_thunk"),
            (0xffffffff82800fff, "init_task"),
            (0xffffffff82801fff, "__delayacct_blkio_end"),
            (0xffffffff82802fff, "__hot_text_end"),
        ] {
            assert_eq!(name(last_byte).as_deref(), Some(wanted), "{last_byte:x}");
        }
        for padding in [
            0xffffffff81cd3ef9,
            0xffffffff81dfffff,
            0xffffffff81e0224c,
            0xffffffff81f04103,
            0xffffffff81f06000,
            0xffffffff81ffffff,
            0xffffffff82000fff,
            0xffffffff8262d000,
            0xffffffff8262f000,
        ] {
            assert_eq!(name(padding), None, "{padding:x}");
        }
    }

    /// Checks that the last function of a module does not reach to the next module.
    #[test]
    fn gaps_between_modules() {
        let list = "ffffffffc0001000 t first\t[one]\nffffffffc0040000 t second\t[two]\n";
        let list = parse(list.into(), false);
        assert_eq!(names(&list.modules["one"]), [(0xffffffffc0001000, 0xffffffffc0002000, "first".into())]);
    }

    /// Checks that a list whose addresses are all zero is told apart from an empty one.
    #[test]
    fn hidden_addresses_are_noticed() {
        assert!(parse(b"0000000000000000 T _text\n0000000000000000 t a\n".to_vec(), false).hidden);
        assert!(!parse(Vec::new(), false).hidden);
    }

    proptest! {
        /// Checks that no text makes the parser panic.
        #[test]
        fn survives_any_text(text in "([0-9a-f]{0,18} [a-zA-Z]? ?[a-z_\t\\[\\]]{0,9}\n?){0,20}") {
            let list = parse(text.into_bytes(), true);
            for symbol in list.kernel.iter() {
                list.kernel.find(symbol.start);
            }
        }
    }
}
