//! The grammar of expressions.

use kymo_symbols::place::{Access, parse};
use proptest::prelude::*;

/// Checks expression, length and access of what people write.
#[test]
fn lengths_and_accesses_are_taken_off_the_end() {
    use Access::{Execute, ReadWrite, Write};
    for (text, expression, len, access) in [
        ("counter", "counter", None, None),
        ("counter:8", "counter", Some(8), None),
        ("counter:w", "counter", None, Some(Write)),
        ("counter:4:rw", "counter", Some(4), Some(ReadWrite)),
        (" counter : 4 : r ", "counter", Some(4), Some(ReadWrite)),
        ("main:x", "main", None, Some(Execute)),
        ("0x404040/8:w", "0x404040", Some(8), Some(Write)),
        ("symbol+0x10:2", "symbol+0x10", Some(2), None),
        ("ns::Class::member:8:w", "ns::Class::member", Some(8), Some(Write)),
        ("ns::w", "ns::w", None, None),
        ("pool.c:counter:8", "pool.c:counter", Some(8), None),
        ("src/pool.c:x:rw", "src/pool.c:x", None, Some(ReadWrite)),
        ("a->b[3].c:w", "a->b[3].c", None, Some(Write)),
        ("'operator new(unsigned long)':x", "'operator new(unsigned long)'", None, Some(Execute)),
        ("krate::{impl#0}::f::COUNT:8", "krate::{impl#0}::f::COUNT", Some(8), None),
        ("Box<ns::A>::count:8", "Box<ns::A>::count", Some(8), None),
        ("(anonymous namespace)::x:w", "(anonymous namespace)::x", None, Some(Write)),
    ] {
        let request = parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            (request.expression(), request.len_bytes(), request.access()),
            (expression, len, access),
            "{text}"
        );
        assert_eq!(request.text(), text);
    }
}

/// Checks that each mistake gets a sentence that says what to write.
#[test]
fn mistakes_are_told_with_what_to_write() {
    for (text, words) in [
        ("", "has to stand here"),
        (":8", "nothing before the colon"),
        ("counter:q", "'q' after the colon is neither a length (1, 2, 4 or 8) nor an access (r, w, rw or x)"),
        ("counter:8:8", "neither a length"),
        ("a..b", "a field's name"),
        ("a->", "a field's name"),
        ("a[", "an index is a number"),
        ("a[x]", "an index is a number"),
        ("a[3", "not closed"),
        ("(a", "not closed"),
        ("a b", "'b' does not belong here"),
        ("*", "has to stand here"),
        ("&a", "leave the & out"),
        ("*(int*)0x404040", "no casts"),
        ("*(p+8)", "unclear"),
        ("a+b", "a number of bytes"),
        ("12ab", "no address"),
        ("'abc", "quote is not closed"),
        ("pool.c:(0x1234)", "not among addresses"),
    ] {
        let error = parse(text).map(|request| format!("{request:?}")).expect_err(text).to_string();
        assert!(error.contains(words) && error.contains(text), "{text}: {error}");
    }
    for deep in ["*".repeat(100_000), "(".repeat(60_000), format!("a{}", "[1]".repeat(20_000))] {
        assert!(parse(&deep).is_err());
    }
}

proptest! {
    /// Checks that no text makes the parser panic, and that what it took apart is the text.
    #[test]
    fn any_text_is_survived(text in "[a-z0-9.:>*()<{}'&+/ \\[\\]-]{0,40}") {
        if let Ok(request) = parse(&text) {
            prop_assert!(!request.expression().is_empty());
        }
    }
}
