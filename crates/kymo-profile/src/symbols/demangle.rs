//! Readable names, spelled as perf spells them.
//!
//! perf asks the GNU demangler for names without parameters. A name that is spelled differently here would split one
//! function into two rows when a report is held against perf's, so C++ has a demangler of its own
//! (the module `itanium`). The oracle of the tests is `c++filt -p -i`, the same code as perf's.

use std::borrow::Cow;
use std::fmt;

use super::itanium;

/// Longest readable name; the rest of it is not made. Hostile names grow exponentially.
const LONGEST: usize = 64 << 10;
/// perf builds PLT names in a buffer of this size, with the ending zero.
const LONGEST_PLT: usize = 1023;

/// Whether a name that starts with these bytes could be mangled.
pub(super) fn is_candidate(name: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 4] = [b"_Z", b"_R", b"caml", b"_GLOBAL_"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The name as perf shows it; the same name if it is not mangled.
pub fn readable(raw: &str) -> Cow<'_, str> {
    if !is_candidate(raw.as_bytes()) {
        return Cow::Borrowed(raw);
    }
    if let Some(function) = raw.strip_suffix("@plt") {
        return match demangle(function) {
            Some(mut name) => {
                name.push_str("@plt");
                let end = (0..=name.len().min(LONGEST_PLT)).rev().find(|&i| name.is_char_boundary(i));
                name.truncate(end.unwrap_or(0));
                Cow::Owned(name)
            }
            None => Cow::Borrowed(raw),
        };
    }
    demangle(raw).map_or(Cow::Borrowed(raw), Cow::Owned)
}

fn demangle(raw: &str) -> Option<String> {
    if raw.starts_with("caml") {
        return ocaml(raw);
    }
    rust(raw).or_else(|| cplusplus(raw))
}

/// Text that refuses to grow beyond [`LONGEST`].
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

fn rust(raw: &str) -> Option<String> {
    let mangled = if raw.starts_with("_R") {
        // Suffixes of the compiler (`.llvm.123`, `.cold`) are not shown.
        raw.split('.').next()?
    } else {
        let body = raw.strip_prefix("_ZN")?;
        // A legacy name ends with a path segment that is a hash: 17h, 16 digits, E.
        let hash = body.rfind("17h")?;
        let end = hash + 3 + 16;
        let digits = body.get(hash + 3..end)?;
        let after = body.get(end..)?;
        let is_hash = digits.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hash || !(after == "E" || after.starts_with("E.")) {
            return None;
        }
        &raw[..3 + end + 1]
    };
    let name = rustc_demangle::try_demangle(mangled).ok()?;
    let mut out = Bounded(String::new());
    fmt::write(&mut out, format_args!("{name:#}")).ok()?;
    Some(if mangled.starts_with("_R") { wide_constants(&out.0) } else { out.0 })
}

/// The GNU demangler writes constants of more than 64 bits one digit late: the first is missing, and the `_` that
/// ends the number comes along. A name that is right would be another row than perf's.
fn wide_constants(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find("0x") {
        let (before, number) = rest.split_at(at + 2);
        out.push_str(before);
        let digits = number.bytes().take_while(u8::is_ascii_hexdigit).count();
        if digits > 16 {
            out.push_str(&number[1..digits]);
            out.push('_');
        } else {
            out.push_str(&number[..digits]);
        }
        rest = &number[digits..];
    }
    out + rest
}

fn cplusplus(raw: &str) -> Option<String> {
    if let Some(rest) = raw.strip_prefix("_GLOBAL_") {
        return global_keyed(rest);
    }
    itanium::demangle(raw, false).or_else(|| second_opinion(raw))
}

/// `_GLOBAL__I_name`, the constructors and destructors that old compilers made per file.
fn global_keyed(rest: &str) -> Option<String> {
    let bytes = rest.as_bytes();
    if !matches!(bytes.first()?, b'.' | b'_' | b'$') || *bytes.get(2)? != b'_' {
        return None;
    }
    let what = match bytes[1] {
        b'I' => "constructors",
        b'D' => "destructors",
        _ => return None,
    };
    let of = rest.get(3..)?;
    let of = if of.starts_with("_Z") { itanium::demangle(of, true)? } else { of.to_owned() };
    Some(format!("global {what} keyed to {of}"))
}

/// What the other demangler makes of a name that ours does not know: newer C++ than perf's own demangler reads.
fn second_opinion(raw: &str) -> Option<String> {
    let (symbol, _suffix) = cpp_demangle::BorrowedSymbol::with_tail(raw.as_bytes()).ok()?;
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let mut out = Bounded(String::new());
    symbol.structured_demangle(&mut out, &options).ok()?;
    Some(out.0)
}

/// OCaml: `camlStdlib__List__map_154` is `Stdlib.List.map_154`.
fn ocaml(raw: &str) -> Option<String> {
    let body = raw.strip_prefix("caml")?;
    if !body.starts_with(|c: char| c.is_ascii_uppercase()) {
        return None;
    }
    let mut out: Vec<u8> = Vec::with_capacity(body.len());
    let mut rest = body.as_bytes();
    while let Some((&c, tail)) = rest.split_first() {
        if rest.starts_with(b"__") {
            out.push(b'.');
            rest = &rest[2..];
        } else if let (b'$', Some(code)) = (c, hex_pair(tail)) {
            out.push(code);
            rest = &rest[3..];
        } else {
            out.push(c);
            rest = tail;
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

fn hex_pair(bytes: &[u8]) -> Option<u8> {
    let digit = |c: &u8| (*c as char).to_digit(16);
    Some((digit(bytes.first()?)? * 16 + digit(bytes.get(1)?)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks that names come out as perf 6.1 prints them (captured from perf and from `c++filt -p -i`).
    #[test]
    fn spells_as_perf() {
        for (raw, shown) in [
            ("main", "main"),
            ("_ZN12_GLOBAL__N_13Foo4spinIlEET_S2_", "(anonymous namespace)::Foo::spin<long>"),
            ("_ZZ4mainENKUliE_clEi", "main::{lambda(int)#1}::operator()"),
            ("_ZZ4mainENKUliE_clEi@plt", "main::{lambda(int)#1}::operator()@plt"),
            ("_Z1fILj1EEvv", "f<1u>"),
            ("_ZTV10dom_walker", "vtable for dom_walker"),
            (
                "_ZNSsC1Ev",
                "std::basic_string<char, std::char_traits<char>, std::allocator<char> >::basic_string",
            ),
            ("_ZNSi3getEv", "std::istream::get"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_ZN4core3fmt5write17h0123456789abcdefE.llvm.42", "core::fmt::write"),
            ("camlStdlib__Array__map_154", "Stdlib.Array.map_154"),
            ("camlFoo__Bar$21baz", "Foo.Bar!baz"),
            ("_Zzz", "_Zzz"),
            (
                "_RNvXs8Z_NtNtCsgVdDwkt78Uu_4jiff4util8rangeintINtB6_5ri128Knn80000000000000000000000000000000_Kn7fffffffffffffffffffffffffffffff_ENtNtCs8NwYtU1Mohg_4core3fmt7Display3fmtBa_",
                "<jiff::util::rangeint::ri128<-0x0000000000000000000000000000000_, 0xfffffffffffffffffffffffffffffff_> as core::fmt::Display>::fmt",
            ),
            ("_ZTCSd0_Si", "construction vtable for std::istream-in-std::iostream"),
            ("_ZTv0_n24_NSt9strstreamD0Ev.cold", "virtual thunk to std::strstream::~strstream()"),
            (
                "_ZN4llvm12function_refIFNS_5ErrorERKNS_5TwineEEE11callback_fnIPS5_EES1_lS4_",
                "llvm::function_ref<llvm::Error (llvm::Twine const&)>::callback_fn<llvm::Error (*)(llvm::Twine const&)>",
            ),
            (
                "_ZGTtNSt11logic_errorC1EPKc.cold",
                "transaction clone for std::logic_error::logic_error(char const*)",
            ),
            (
                "_ZTVN4llvm9sandboxir13GenericSetterIXadL_ZNKS0_11Instruction6isFastEvEEXadL_ZNS2_7setFastEbEEEE",
                "vtable for llvm::sandboxir::GenericSetter<&(llvm::sandboxir::Instruction::isFast() const), &llvm::sandboxir::Instruction::setFast>",
            ),
            (
                "_ZN4llvm6detail18UniqueFunctionBaseINS_8ExpectedImEEJEED2Ev",
                "llvm::detail::UniqueFunctionBase<llvm::Expected<unsigned long>>::~UniqueFunctionBase",
            ),
            (
                "_ZThn32_N12_GLOBAL__N_113MPPassManagerD0Ev.llvm.2049004417421520800",
                "non-virtual thunk to (anonymous namespace)::MPPassManager::~MPPassManager()",
            ),
            ("_ZTCSd16_So", "construction vtable for std::ostream-in-std::iostream"),
            (
                "_ZZSt9call_onceIRFvvEJEEvRSt9once_flagOT_DpOT0_ENUlvE0_4_FUNEv",
                "std::call_once<void (&)()>(std::once_flag&, void (&)())::{lambda()#2}::_FUN",
            ),
            (
                "_ZN4node12_GLOBAL__N_16Parser5ProxyIMS1_FiPKcmEXadL_ZNS1_6on_urlES4_mEEE3RawEP18llhttp__internal_sS4_m",
                "node::(anonymous namespace)::Parser::Proxy<int (node::(anonymous namespace)::Parser::*)(char const*, unsigned long), &node::(anonymous namespace)::Parser::on_url>::Raw",
            ),
            (
                "_ZNSt8functionIFN4llvm4json5ValueEvEEaSERKS4_",
                "std::function<llvm::json::Value ()>::operator=",
            ),
        ] {
            assert_eq!(readable(raw), shown, "{raw}");
        }
    }

    proptest! {
        /// Checks that real names with bytes replaced, repeated or cut out neither panic nor run away.
        #[test]
        fn survives_damaged_names(
            which in 0usize..5, cuts in proptest::collection::vec((0usize..200, 0usize..200, 0usize..40), 1..5),
        ) {
            let mut name = [
                "_ZNSt6vectorISt4pairINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEiESaIS7_EE17_M_realloc_insertIJRKS6_RiEEEvN9__gnu_cxx17__normal_iteratorIPS7_S9_EEDpOT_",
                "_ZZNSt9once_flag18_Prepare_executionC4IZSt9call_onceIMSt6threadFvvEJPS3_EEvRS_OT_DpOT0_EUlvE_EERS8_ENUlvE_4_FUNEv",
                "_ZN17ResourceHashtableIPK13InstanceKlass9OopHandleXadL_Z14primitive_hashIS2_EjRKT_EELm107EE3putES2_",
                "_RNvXs8Z_NtNtCsgVdDwkt78Uu_4jiff4util8rangeintINtB6_5ri128Kn80_Kj7f_ENtNtCs8NwYtU1Mohg_4core3fmt7Display3fmtBa_",
                "_ZN4llvm12function_refIFiPNS_7msgpack7DocNodeES2_S2_EE11callback_fnIZNS1_8Document12readFromBlobENS_9StringRefEbS5_Ed_UlS3_E_EEblS3_",
            ][which].to_owned();
            for (at, from, len) in cuts {
                let (at, from) = (at % name.len().max(1), from % name.len().max(1));
                let piece = name[from..(from + len).min(name.len())].to_owned();
                if len % 2 == 0 {
                    name.insert_str(at, &piece);
                } else {
                    name.replace_range(at..(at + len).min(name.len()), "S_");
                }
            }
            prop_assert!(readable(&name).len() <= LONGEST + 64);
        }

        /// Checks that no name makes the demangler panic or run away.
        #[test]
        fn survives_any_name(name in "(_Z|_R|_ZN|caml|_GLOBAL_)[A-Za-z0-9_$.@]{0,60}") {
            prop_assert!(readable(&name).len() <= LONGEST * 8);
        }
    }
}
