//! The values that an event of a program carries, and its description in the words of tracefs.
use crate::arguments::NumberStyle;
use kymo_core::probe::value::Operand;
use kymo_core::probe::wire::{Fetch, FetchKind, Layout};

/// The values of an event.
pub(crate) type Fields = Vec<EventField>;

/// One value of an event.
#[derive(Clone, Debug)]
pub(crate) struct EventField {
    pub(crate) name: String,
    pub(crate) fetch: Fetch,
    pub(crate) style: NumberStyle,
}

/// The values of an event: named, as the convention for calls has them.
pub(crate) fn fields(returns: bool, is_go: bool) -> Fields {
    // What is returned, or the first three arguments, as the kernel's events of the same places
    // have them.
    let named: &[(&str, u8)] = match returns {
        true => &[("ret", 0)],
        // Go passes them in registers of its own.
        false if is_go => &[],
        false => &[("arg1", 7), ("arg2", 6), ("arg3", 2)],
    };
    let field = |&(name, register): &(&str, u8)| EventField {
        name: name.to_owned(),
        fetch: Fetch { operand: Operand::register(register), kind: FetchKind::Number },
        style: NumberStyle::Hexadecimal,
    };
    named.iter().map(field).collect()
}

/// A name that readers of tracefs's descriptions take.
pub(crate) fn plain(name: &str) -> String {
    let name = name.strip_prefix("probe:").unwrap_or(name);
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(50).collect()
}

/// What the agent is to fetch for these.
pub(crate) fn fetches(fields: &[EventField]) -> Vec<Fetch> {
    fields.iter().map(|field| field.fetch.clone()).collect()
}

/// Describes an event as tracefs describes the kernel's own of programs.
pub(crate) fn format(name: &str, kind: u16, fields: &[EventField], returns: bool) -> String {
    let mut text = format!("name: {name}\nID: {kind}\nformat:\n");
    // Readers know the end of what all events have by an empty line.
    const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";
    text.push_str(COMMON);
    let mut field = |declaration: &str, at: u32, bytes: u32, signed: bool| {
        text.push_str(&format!(
            "\tfield:{declaration};\toffset:{at};\tsize:{bytes};\tsigned:{};\n",
            u8::from(signed)
        ));
    };
    let (mut shown, mut values) = if returns {
        field("unsigned long __probe_func", 8, 8, false);
        field("unsigned long __probe_ret_ip", 16, 8, false);
        ("(%lx <- %lx)".to_owned(), "REC->__probe_func, REC->__probe_ret_ip".to_owned())
    } else {
        field("unsigned long __probe_ip", 8, 8, false);
        ("(%lx)".to_owned(), "REC->__probe_ip".to_owned())
    };
    let layout = Layout::of(&fetches(fields), returns);
    for (EventField { name, fetch, style }, &at) in fields.iter().zip(&layout.at) {
        match fetch.kind {
            FetchKind::Number => {
                // Values are extended to 64 bits.
                let (kind, conversion) = match style {
                    NumberStyle::Signed => ("s64", "%Ld"),
                    NumberStyle::Unsigned => ("u64", "%Lu"),
                    NumberStyle::Hexadecimal => ("u64", "0x%Lx"),
                };
                field(&format!("{kind} {name}"), at, 8, *style == NumberStyle::Signed);
                shown.push_str(&format!(" {name}={conversion}"));
                values.push_str(&format!(", REC->{name}"));
            }
            FetchKind::String { .. } => {
                field(&format!("__data_loc char[] {name}"), at, 4, true);
                shown.push_str(&format!(" {name}=\\\"%s\\\""));
                values.push_str(&format!(", __get_str({name})"));
            }
        }
    }
    text.push_str(&format!("\nprint fmt: \"{shown}\", {values}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the description of an entry and of a return read back with every value where it
    /// is written, texts included.
    #[test]
    fn described() {
        let mut fields_at_entry = fields(false, false);
        let text = Fetch { operand: Operand::register(6), kind: FetchKind::String { offset: 0, most: 10 } };
        let style = NumberStyle::Hexadecimal;
        fields_at_entry.push(EventField { name: "name".into(), fetch: text, style });
        let text = format("f", 60_001, &fields_at_entry, false);
        let read =
            kymo_data::tracing_data::Format::parse("programs", text.as_bytes()).expect("a description");
        assert_eq!((read.id, read.name.as_str()), (60_001, "f"));
        let mut raw = vec![0; 44];
        raw[24..32].copy_from_slice(&7u64.to_le_bytes());
        raw[40..44].copy_from_slice(&(44u32 | 3 << 16).to_le_bytes());
        raw.extend(b"hi\0");
        assert_eq!(read.print_fields(&raw), " __probe_ip=0x0 arg1=0 arg2=7 arg3=0 name=hi");
        let text = format(&plain("probe:lib:a::b%return"), 60_002, &fields(true, false), true);
        let read =
            kymo_data::tracing_data::Format::parse("programs", text.as_bytes()).expect("a description");
        assert_eq!(read.name, "lib_a__b_return");
        assert_eq!(read.field("ret").map(|field| field.offset), Some(24));
    }

    /// Checks that a number is described as the kernel describes one of its type: `%Lu` where it has
    /// no sign, hexadecimal only for addresses and whole registers.
    #[test]
    fn numbers_are_described_as_the_kernel_does() {
        let styles = [NumberStyle::Signed, NumberStyle::Unsigned, NumberStyle::Hexadecimal];
        let field = |(name, style): (&str, NumberStyle)| EventField {
            name: name.into(),
            fetch: Fetch { operand: Operand::register(7), kind: FetchKind::Number },
            style,
        };
        let fields: Vec<EventField> = ["a", "b", "c"].into_iter().zip(styles).map(field).collect();
        let text = format("f", 60_001, &fields, false);
        let print_fmt = "\"(%lx) a=%Ld b=%Lu c=0x%Lx\", REC->__probe_ip, REC->a, REC->b, REC->c";
        assert!(text.ends_with(&format!("\nprint fmt: {print_fmt}\n")), "{text}");
    }
}
