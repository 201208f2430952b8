//! Formats by hand, formats of this kernel, and formats that nobody should have written.

use super::*;
use crate::tracing_data::{Field, FieldKind};
use proptest::prelude::*;

/// A tracepoint with these fields one after the other: name, C type, bytes, kind.
fn format(fields: &[(&str, &str, usize, FieldKind)], print_fmt: &str) -> Format {
    let mut offset = 8;
    let mut format = Format { print_fmt: print_fmt.to_owned(), ..Format::default() };
    for &(name, type_name, size, kind) in fields {
        let signed = !type_name.starts_with('u');
        let (name, type_name) = (name.to_owned(), type_name.to_owned());
        format.fields.push(Field { name, type_name, offset, size, signed, kind });
        offset += size;
    }
    format
}

const NUMBER: FieldKind = FieldKind::Number;
const DYNAMIC: FieldKind = FieldKind::Dynamic { text: false, relative: false };

/// What `arguments` print for the numbers `a` (32 bits, signed) and `b` (64 bits, unsigned), and 16
/// bytes of `data`.
fn print(print_fmt: &str, a: i32, b: u64, data: &[u8]) -> String {
    let fields = [
        ("a", "int", 4, NUMBER),
        ("b", "unsigned long", 8, NUMBER),
        ("data", "__data_loc u8[]", 4, DYNAMIC),
        ("words", "u16 [2]", 4, FieldKind::Array { element_bytes: 2 }),
        ("comm", "char [4]", 4, FieldKind::Text),
    ];
    let format = format(&fields, print_fmt);
    let mut raw = vec![0; 8];
    raw.extend(a.to_le_bytes());
    raw.extend(b.to_le_bytes());
    raw.extend((32u32 | (data.len() as u32) << 16).to_le_bytes());
    raw.extend([1, 0, 255, 255]);
    raw.extend(b"me\0\0");
    raw.extend(data);
    let parsed = PrintFormat::parse(&format).unwrap_or_else(|error| panic!("{print_fmt}: {error}"));
    parsed.print(&format, &raw, &NoKernelNames)
}

/// Checks numbers in all shapes: signs, bases, widths, precisions and cut lengths, as C prints
/// them.
#[test]
fn numbers() {
    for (print_fmt, expected) in [
        (r#""%d %u %x", REC->a, REC->a, REC->a"#, "-5 4294967291 fffffffb"),
        (r#""%ld %hd %hhu", REC->a, REC->a, REC->a"#, "4294967291 -5 251"),
        (r#""[%5d] [%-5d] [%05d] [%.3d]", REC->a, REC->a, REC->a, REC->a"#, "[   -5] [-5   ] [-0005] [-005]"),
        (
            r#""0x%08lx %#lx %#010x %lX %lo", REC->b, REC->b, REC->b, REC->b, REC->b"#,
            "0x000000ff 0xff 0x000000ff FF 377",
        ),
        (r#""%p %p %c%%", REC->b, 0, 'A'"#, "0xff (nil) \0%"),
        (r#""%*d|%-*d|", 4, 7, 4, 7"#, "   7|7   |"),
        (r#""a\tb\n""#, "a\tb\n"),
    ] {
        assert_eq!(print(print_fmt, -5, 255, b""), expected, "{print_fmt}");
    }
}

/// Checks that a short field with a sign is an `int` with that sign, as the kernel prints it, and
/// one without a sign is not.
#[test]
fn short_fields_keep_their_sign() {
    let fields = [("a", "s16", 2, NUMBER), ("b", "s8", 1, NUMBER), ("c", "u16", 2, NUMBER)];
    let format = format(&fields, r#""%d %d %d %x", REC->a, REC->b, REC->c, REC->a"#);
    let raw = [0, 0, 0, 0, 0, 0, 0, 0, 0xf8, 0xff, 0xff, 0xff, 0xff];
    let parsed = PrintFormat::parse(&format).unwrap();
    assert_eq!(parsed.print(&format, &raw, &NoKernelNames), "-8 -1 65535 fffffff8");
}

/// Checks arrays in probe events, whose declaration has no length: elements are as large as their
/// type says, keep their sign, and one of several texts is chosen by its number.
#[test]
fn arrays_of_probe_events() {
    const EVENT: &str = "name: probe\nID: 9\nformat:\n\
        \tfield:u16 xs[];\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:s8 ss[];\toffset:12;\tsize:2;\tsigned:1;\n\
        \tfield:u64 ys[];\toffset:14;\tsize:16;\tsigned:0;\n\
        \tfield:__data_loc char[][2] names;\toffset:30;\tsize:8;\tsigned:1;\n\
        \nprint fmt: \"xs={0x%x,0x%x} ss={%d,%d} ys={%Lu} names={\\\"%s\\\",\\\"%s\\\"}\", REC->xs[0], \
        REC->xs[1], REC->ss[0], REC->ss[1], REC->ys[1], __get_str(names[0]), __get_str(names[1])\n";
    let format = Format::parse("probes", EVENT.as_bytes()).expect("a format");
    let mut raw = vec![0; 8];
    raw.extend(b"work");
    raw.extend([0xff, 2]);
    raw.extend([0; 8]);
    raw.extend(7u64.to_le_bytes());
    raw.extend((38u32 | 3 << 16).to_le_bytes());
    raw.extend((41u32 | 4 << 16).to_le_bytes());
    raw.extend(b"ab\0cde\0");
    let parsed = PrintFormat::parse(&format).expect("a print format");
    let expected = r#"xs={0x6f77,0x6b72} ss={-1,2} ys={7} names={"ab","cde"}"#;
    assert_eq!(parsed.print(&format, &raw, &NoKernelNames), expected);
}

/// Checks that a mask of several names in parentheses is applied as a whole: no flag of
/// `timer:timer_start` is shown that is not set.
#[test]
fn masks_in_parentheses() {
    const FLAGS: &str = r#""%s", __print_flags(REC->b & (0x40000 | 0x80000 | 0x100000), "|", { 0x40000, "M" }, { 0x80000, "D" }, { 0x100000, "P" })"#;
    assert_eq!(print(FLAGS, 0, 0x3, b""), "");
    assert_eq!(print(FLAGS, 0, 0x8_0003, b""), "D");
}

/// Checks operators with their precedence, casts, choices and elements of arrays.
#[test]
fn expressions() {
    for (print_fmt, expected) in [
        (r#""%d", 1 + 2 * 3 - 4 / 2"#, "5"),
        (r#""%d", (1 + 2) * 3"#, "9"),
        (r#""%d", 1 << 2 | 3 & 2 ^ 1"#, "7"),
        (r#""%d", 1 == 1 && 2 != 2 || !0"#, "1"),
        (r#""%x", ~(u32)0xf0 & 0xfff"#, "f0f"),
        (r#""%lx", (u8)(REC->b + 1)"#, "0"),
        (r#""%d", (unsigned int) ((REC->b) >> 4)"#, "15"),
        (r#""%d", (REC->b) - 5"#, "250"),
        (r#""%d %d", REC->words[0], REC->words[1]"#, "1 65535"),
        (r#""%s", REC->a ? "yes" : "no""#, "yes"),
        (r#""%s", REC->a ? REC->b ? "both" : "a" : "none""#, "both"),
        (r#""%d", REC->b / 0"#, "0"),
        (r#""%zu", sizeof(u32) + sizeof(REC->comm)"#, "8"),
        (r#""%d", __builtin_expect(!!(REC->a), 0)"#, "1"),
        (r#""%s" "=%d", "x" "y", 1"#, "xy=1"),
    ] {
        assert_eq!(print(print_fmt, -5, 255, b""), expected, "{print_fmt}");
    }
}

/// Checks what functions of formats print: flags with a rest, symbols without a match, texts,
/// bytes, arrays, masks.
#[test]
fn functions() {
    const NAMES: &str = r#"{ 1, "S" }, { 2, "D" }, { (1 << 4), "X" }"#;
    for (print_fmt, b, expected) in [
        (format!(r#""%s", __print_flags(REC->b, "|", {NAMES})"#), 3, "S|D"),
        (format!(r#""%s", __print_flags(REC->b, "|", {NAMES})"#), 0x30, "X|0x20"),
        (format!(r#""%s", __print_flags(REC->b, "|", {NAMES})"#), 0x20, "0x20"),
        (format!(r#""%s", __print_flags(REC->b, "|", {NAMES})"#), 0, ""),
        (
            r#""%s", __print_flags(REC->b & (0x00040000 | 0x00080000), "|", { 0x00040000, "M" })"#.into(),
            0x40001,
            "M",
        ),
        (format!(r#""%s", __print_symbolic(REC->b, {NAMES})"#), 16, "X"),
        (format!(r#""%s", __print_symbolic(REC->b, {NAMES})"#), 17, "0x11"),
        (r#""%s", __print_symbolic(REC->b, { UNKNOWN, "U" }, { HRTIMER_RESTART, "R" })"#.into(), 1, "R"),
        (r#""%s", __print_symbolic(REC->b, { UNKNOWN, "U" })"#.into(), 0, "0x0"),
        (r#""[%-4s] [%.1s] %s", REC->comm, REC->comm, __get_str(data)"#.into(), 0, "[me  ] [m] hi"),
        (r#""%s", __print_hex(__get_dynamic_array(data), 2)"#.into(), 0, "68 69"),
        (
            r#""%s", __print_hex_str(__get_dynamic_array(data), __get_dynamic_array_len(data))"#.into(),
            0,
            "686900ff",
        ),
        (r#""%s", __print_array(__get_dynamic_array(data), 2, 2)"#.into(), 0, "26984 65280"),
        (r#""%s", __get_bitmask(data)"#.into(), 0, "ff006968"),
        (r#""%s", __get_cpumask(data)"#.into(), 0, "3,5-6,8,11,13-14,24-31"),
        (r#""%d", ((u8*)__get_dynamic_array(data))[1]"#.into(), 0, "105"),
        (
            r#""%pI4 %pM", __get_dynamic_array(data), __get_dynamic_array(data)"#.into(),
            0,
            "104.105.0.255 INVALIDMAC",
        ),
        (r#""%ps %pS", REC->b, REC->b"#.into(), 16, "0x10 0x10"),
    ] {
        assert_eq!(print(&print_fmt, 0, b, b"hi\0\xff"), expected, "{print_fmt}");
    }
}

/// Checks that a socket address is printed by its family.
#[test]
fn socket_addresses() {
    let v4 = [2, 0, 0, 80, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(print(r#""%pISpc", __get_sockaddr(data)"#, 0, 0, &v4), "127.0.0.1:80");
    let mut v6 = vec![10, 0, 1, 0, 0, 0, 0, 0];
    v6.extend([0; 15]);
    v6.extend([1, 0, 0, 0, 0]);
    assert_eq!(print(r#""%pISpc", __get_sockaddr(data)"#, 0, 0, &v6), "[::1]:256");
    assert_eq!(print(r#""%pISpc", __get_sockaddr(data)"#, 0, 0, &[9; 8]), "INVALIDIPv4");
}

/// Checks that what cannot be printed is refused with the reason, and never by a panic, a loop or a
/// full stack.
#[test]
fn hostile_formats_are_refused() {
    let refused = |text: &str| PrintFormat::parse(&format(&[("a", "int", 4, NUMBER)], text)).unwrap_err();
    let unknown = refused(r#""%s", call_me(REC->a)"#);
    assert_eq!(unknown, PrintFormatError::UnknownFunction("call_me".into()));
    assert_eq!(refused(r#""%d", REC->b"#), PrintFormatError::UnknownField("b".into()));
    assert_eq!(refused(r#""%d %d", REC->a"#), PrintFormatError::MissingArgument);
    for text in ["", "1", r#""%d", REC->"#, r#""%d", REC->a REC->a"#, r#""%s", ({ int x; })"#, r#""%d", @"#] {
        assert!(matches!(refused(text), PrintFormatError::Syntax { .. }), "{text}");
    }
    for deep in ["(", "!", "-", "REC->a ? ", "1 + (", "(u8)", "__print_flags(", "REC->a[", "& "] {
        let text = format!("\"%d\", {}1", deep.repeat(100_000));
        let long = format!("\"%d\", {}1", deep.repeat(10_000));
        assert_eq!(refused(&text), PrintFormatError::TooLarge);
        assert!(PrintFormat::parse(&format(&[("a", "int", 4, NUMBER)], &long)).is_err(), "{deep}");
    }
    let chain = format!("\"%d\", 1{}", " + 1".repeat(10_000));
    assert_eq!(refused(&chain), PrintFormatError::TooLarge);
    // Widths and counts are claims.
    let wide =
        print(r#""%999999999d %s", 1, __print_hex(__get_dynamic_array(data), 0xffffffffff)"#, 0, 0, b"x");
    assert_eq!(wide.trim(), "1 78");
    let many = print(&format!("\"{}\"", "%4000d".repeat(100)).replace("%4000d", "%%"), 0, 0, b"");
    assert_eq!(many.len(), 100);
    let args = ", 1".repeat(1000);
    assert_eq!(print(&format!("\"{}\"{args}", "%4000d".repeat(1000)), 0, 0, b"").len(), MAX_PRINTED_BYTES);
}

/// Checks every print format of this kernel: each parses, or has what libtraceevent cannot parse
/// either (statements of C, and functions of the kernel), so that its samples are printed field by
/// field; and each prints bytes of any content.
#[test]
fn formats_of_this_kernel() {
    let events = std::path::Path::new("/sys/kernel/tracing/events");
    let (mut all, mut refused) = (0, Vec::new());
    for system in std::fs::read_dir(events).into_iter().flatten().flatten() {
        for event in std::fs::read_dir(system.path()).into_iter().flatten().flatten() {
            let Ok(text) = std::fs::read(event.path().join("format")) else { continue };
            let Some(format) = Format::parse(&system.file_name().to_string_lossy(), &text) else { continue };
            if format.fields.iter().any(|field| field.name == "__probe_ip") {
                // Somebody's own probe: of arrays of strings the kernel prints what is not C.
                continue;
            }
            all += 1;
            match PrintFormat::parse(&format) {
                Ok(parsed) => {
                    for raw in [vec![], vec![0; 4096], vec![0xff; 4096], (0..=255).collect::<Vec<u8>>()] {
                        parsed.print(&format, &raw, &NoKernelNames);
                    }
                }
                Err(error) => refused.push((format, error)),
            }
        }
    }
    if all == 0 {
        return kymo_testing::skip("print_format::formats_of_this_kernel", "tracefs is not readable here");
    }
    let unexplained: Vec<String> = refused
        .iter()
        .filter(|(format, error)| {
            let statement = format.print_fmt.contains("({");
            !statement && !matches!(error, PrintFormatError::UnknownFunction(_))
        })
        .map(|(format, error)| {
            format!("{}:{}: {error}: {:.300}", format.system, format.name, format.print_fmt)
        })
        .collect();
    assert!(unexplained.is_empty(), "{} of {all}:\n{}", unexplained.len(), unexplained.join("\n"));
    assert!(refused.len() * 20 < all, "{} of {all} are not understood", refused.len());
}

/// Checks whose values the names in a format are.
#[test]
fn names_of_values() {
    const FORMAT: &str = r#""%s %s", (REC->a & 7) ? __print_flags(REC->a & 7, "|", { 1, "ONE" }, { 2, "TWO" }) : "-", \
        __print_symbolic(REC->b, { 0, "idle" })"#;
    let format = format(&[("a", "int", 4, NUMBER), ("b", "int", 4, NUMBER)], &FORMAT.replace('\\', " "));
    let parsed = PrintFormat::parse(&format).expect("a format");
    let flags =
        FieldNames { field: "a", delimiter: Some("|"), names: vec![(1, "ONE"), (2, "TWO"), (0, "-")] };
    let symbols = FieldNames { field: "b", delimiter: None, names: vec![(0, "idle")] };
    assert_eq!(parsed.names(&format), [flags, symbols]);
}

/// Formats that look like formats.
fn any_format() -> impl Strategy<Value = String> {
    const WORDS: &str = "REC->a REC->data REC->text ( ) [ ] { } , ? : + - * / % << >> ~ ! && 1 0xffffffffffffffff \
                         \"x\" \"|\" __print_flags( __print_symbolic( __print_array( __print_hex( \
                         __get_str(data) __get_dynamic_array(data) __get_dynamic_array_len(data) \
                         __get_bitmask(data) sizeof( (u8) data NAME";
    const CONVERSIONS: &str = "%d %s %-8.*s %*d %p %pS %pISpc %pI6c %pM %pUb %*pbl %c %lo";
    let words: Vec<&str> = WORDS.split(' ').chain(["(unsigned long)"]).collect();
    let conversions: Vec<&str> = CONVERSIONS.split(' ').collect();
    let text = proptest::collection::vec(proptest::sample::select(conversions), 0..4);
    let rest = proptest::collection::vec(proptest::sample::select(words), 0..40);
    (text, rest).prop_map(|(text, rest)| format!("\"{}\", {}", text.join(" "), rest.join(" ")))
}

proptest! {
    /// Checks that any words, and any bytes, are refused or printed within bounds.
    #[test]
    fn anything(
        print_fmt in prop_oneof![any_format(), ".{0,80}"],
        offsets in proptest::collection::vec(0usize..5000, 3),
        sizes in proptest::collection::vec(0usize..5000, 3),
        raw in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let kinds = [NUMBER, DYNAMIC, FieldKind::Array { element_bytes: sizes[2] }];
        let names = ["a", "data", "text"];
        let fields = names.iter().zip(kinds).map(|(name, kind)| (*name, "int", 4, kind)).collect::<Vec<_>>();
        let mut format = format(&fields, &print_fmt);
        for (index, field) in format.fields.iter_mut().enumerate() {
            (field.offset, field.size) = (offsets[index], sizes[index]);
        }
        format.print_fields(&raw);
        if let Ok(parsed) = PrintFormat::parse(&format) {
            prop_assert!(parsed.print(&format, &raw, &NoKernelNames).len() <= MAX_PRINTED_BYTES);
            parsed.names(&format);
        }
    }
}
