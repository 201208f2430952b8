//! Types: their size, their spelling, their elements, how their values are printed.

use std::sync::Arc;

use gimli::{AttributeValue, DwTag};

use super::debug::{Die, Entry, Reader, is_flag, is_static, number, shown};
use super::scan;
use super::value::ValueKind;

/// Typedefs and qualifiers of one type, pointers of one spelling, single members inside each other.
const DEEPEST: usize = 32;
/// A type's spelling is cut here.
const LONGEST_SPELLING: usize = 512;
const MOST_DIMENSIONS: usize = 16;
const MOST_ENUMERATORS: usize = 4096;

/// A type, without typedefs and qualifiers around it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Type {
    /// Nothing is `void`.
    pub(super) die: Option<Die>,
    /// Dimensions of an array that were taken by indices already.
    pub(super) taken: usize,
    /// The type as it was written, with them.
    written: Option<Die>,
}

/// What kind of type it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Void,
    Base,
    Pointer,
    Reference,
    Record,
    Array,
    Enum,
    Function,
    Other,
}

impl Shape {
    fn of(tag: DwTag) -> Shape {
        match tag {
            gimli::DW_TAG_base_type => Shape::Base,
            gimli::DW_TAG_pointer_type => Shape::Pointer,
            gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type => Shape::Reference,
            gimli::DW_TAG_structure_type
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_interface_type => Shape::Record,
            gimli::DW_TAG_array_type => Shape::Array,
            gimli::DW_TAG_enumeration_type => Shape::Enum,
            gimli::DW_TAG_subroutine_type | gimli::DW_TAG_subprogram => Shape::Function,
            _ => Shape::Other,
        }
    }
}

/// Elements one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements {
    pub(super) element: Type,
    /// From one element to the next, in bytes.
    pub(super) stride: u64,
    /// How many there are; nothing if the type does not tell.
    pub(super) count: Option<u64>,
}

impl Type {
    pub(super) const VOID: Type = Type { die: None, taken: 0, written: None };

    /// The type that an entry has, if it has one.
    pub(super) fn of(reader: &Reader<'_>, die: Die) -> Type {
        let target =
            reader.attr(die, gimli::DW_AT_type).and_then(|(die, value)| reader.refers(die.unit, value));
        Type::at(reader, target)
    }

    /// The type at an entry, looking through typedefs and qualifiers.
    pub(super) fn at(reader: &Reader<'_>, die: Option<Die>) -> Type {
        let (written, mut die) = (die, die);
        for _ in 0..DEEPEST {
            let Some(now) = die else { return Type::VOID };
            let Ok(entry) = reader.entry(now) else { break };
            match entry.tag() {
                gimli::DW_TAG_typedef
                | gimli::DW_TAG_const_type
                | gimli::DW_TAG_volatile_type
                | gimli::DW_TAG_restrict_type
                | gimli::DW_TAG_atomic_type
                | gimli::DW_TAG_packed_type
                | gimli::DW_TAG_shared_type
                | gimli::DW_TAG_immutable_type
                | gimli::DW_TAG_template_alias => die = reader.link(now.unit, &entry, gimli::DW_AT_type),
                _ => {
                    let die = Some(complete(reader, now, &entry));
                    return Type { die, taken: 0, written };
                }
            }
        }
        Type { die, taken: 0, written }
    }

    fn entry<'d>(self, reader: &Reader<'d>) -> Option<(Die, Entry<'d>)> {
        let die = self.die?;
        Some((die, reader.entry(die).ok()?))
    }

    pub(super) fn shape(self, reader: &Reader<'_>) -> Shape {
        match (self.die, self.entry(reader)) {
            (None, _) => Shape::Void,
            (_, Some((_, entry))) => Shape::of(entry.tag()),
            (_, None) => Shape::Other,
        }
    }

    /// What a pointer or reference points at.
    pub(super) fn target(self, reader: &Reader<'_>) -> Type {
        self.entry(reader).map_or(Type::VOID, |(die, entry)| {
            Type::at(reader, reader.link(die.unit, &entry, gimli::DW_AT_type))
        })
    }

    /// Bytes of a value; nothing where that cannot be known.
    pub(super) fn size(self, reader: &Reader<'_>) -> Option<u64> {
        self.size_within(reader, DEEPEST)
    }

    fn size_within(self, reader: &Reader<'_>, left: usize) -> Option<u64> {
        let (die, entry) = self.entry(reader)?;
        if self.taken == 0
            && let Some(size) = number(&entry, gimli::DW_AT_byte_size)
        {
            return Some(size);
        }
        match Shape::of(entry.tag()) {
            Shape::Pointer | Shape::Reference => {
                Some(u64::from(reader.unit(die.unit).ok()?.encoding().address_size))
            }
            Shape::Array if left > 0 => {
                let elements = self.elements_within(reader, left - 1)?;
                elements.stride.checked_mul(elements.count?)
            }
            Shape::Enum if left > 0 => self.target(reader).size_within(reader, left - 1),
            _ => None,
        }
    }

    /// The elements of an array, one dimension of it.
    pub(super) fn elements(self, reader: &Reader<'_>) -> Option<Elements> {
        self.elements_within(reader, DEEPEST)
    }

    fn elements_within(self, reader: &Reader<'_>, left: usize) -> Option<Elements> {
        let (die, entry) = self.entry(reader)?;
        if Shape::of(entry.tag()) != Shape::Array {
            return None;
        }
        let inner = self.target(reader);
        let counts = dimensions(reader, die);
        let count = counts.get(self.taken).copied().flatten();
        let later = counts.get(self.taken + 1..).unwrap_or(&[]);
        let stride = match number(&entry, gimli::DW_AT_byte_stride) {
            Some(stride) => stride,
            None if left > 0 => inner.size_within(reader, left - 1)?,
            None => return None,
        };
        let stride = later.iter().try_fold(stride, |bytes, count| bytes.checked_mul((*count)?))?;
        let element = if later.is_empty() { inner } else { Type { taken: self.taken + 1, ..self } };
        Some(Elements { element, stride, count })
    }

    /// The type as the program spells it, as far as its entries tell.
    pub(super) fn spelled(self, reader: &Reader<'_>) -> String {
        match self.taken {
            0 => spelling(reader, self.written.or(self.die), DEEPEST),
            _ => self.spelled_array(reader, DEEPEST),
        }
    }

    /// `int [3][4]`, without the dimensions that were taken.
    fn spelled_array(self, reader: &Reader<'_>, left: usize) -> String {
        let Some((die, entry)) = self.entry(reader) else { return "?".to_owned() };
        let inner = spelling(reader, reader.link(die.unit, &entry, gimli::DW_AT_type), left);
        let counts = dimensions(reader, die);
        let brackets =
            |count: &Option<u64>| count.map_or_else(|| "[]".to_owned(), |count| format!("[{count}]"));
        let brackets: String = counts.iter().skip(self.taken).map(brackets).collect();
        format!("{inner} {brackets}")
    }

    pub(super) fn value_kind(self, reader: &Reader<'_>) -> ValueKind {
        // Rust keeps it in a number.
        if self.die.and_then(|die| reader.name(die)) == Some(b"AtomicBool") {
            return ValueKind::Bool;
        }
        let Some((die, entry)) = self.core(reader).entry(reader) else { return ValueKind::Bytes };
        match Shape::of(entry.tag()) {
            Shape::Pointer | Shape::Reference => ValueKind::Pointer,
            Shape::Enum => enumeration(reader, die, &entry),
            Shape::Base => {
                let Some(AttributeValue::Encoding(encoding)) = entry.attr_value(gimli::DW_AT_encoding) else {
                    return ValueKind::Bytes;
                };
                match encoding {
                    gimli::DW_ATE_boolean => ValueKind::Bool,
                    gimli::DW_ATE_float => ValueKind::Float,
                    gimli::DW_ATE_signed => ValueKind::Signed,
                    gimli::DW_ATE_signed_char | gimli::DW_ATE_unsigned_char => {
                        let is_u8 = reader.name(die) == Some(b"u8");
                        if is_u8 { ValueKind::Unsigned } else { ValueKind::Char }
                    }
                    gimli::DW_ATE_UTF => ValueKind::Char,
                    gimli::DW_ATE_unsigned => ValueKind::Unsigned,
                    gimli::DW_ATE_address => ValueKind::Pointer,
                    _ => ValueKind::Bytes,
                }
            }
            _ => ValueKind::Bytes,
        }
    }

    /// What a record is all of: the number in an atomic, the pointer in a smart pointer. Else the type itself.
    pub(super) fn core(self, reader: &Reader<'_>) -> Type {
        let mut now = self;
        for _ in 0..DEEPEST {
            match now.sole_member(reader) {
                Some(inner) => now = inner,
                None => break,
            }
        }
        now
    }

    /// The type of the only member (or base class) that is as large as the record, at its start.
    fn sole_member(self, reader: &Reader<'_>) -> Option<Type> {
        let (die, entry) = self.entry(reader)?;
        let tags = [gimli::DW_TAG_structure_type, gimli::DW_TAG_class_type];
        let size = self.size(reader).filter(|size| *size > 0 && tags.contains(&entry.tag()))?;
        let (mut sole, mut is_one) = (None, true);
        let told = reader.children(die, |child, entry| {
            match entry.tag() {
                gimli::DW_TAG_variant_part => is_one = false,
                gimli::DW_TAG_member | gimli::DW_TAG_inheritance if !is_static(entry) => {
                    let inner = Type::of(reader, child);
                    let is_bits = entry.attr(gimli::DW_AT_bit_size).is_some();
                    if inner.size(reader) == Some(size) && !is_bits {
                        is_one &= sole.is_none();
                        sole = Some(inner);
                    }
                }
                _ => {}
            }
            is_one
        });
        told.ok()?;
        sole.filter(|_| is_one)
    }
}

/// The definition, where an entry only declares a type.
fn complete<'d>(reader: &Reader<'d>, die: Die, entry: &Entry<'d>) -> Die {
    // In a unit of its own.
    if let Some(definition) = reader.link(die.unit, entry, gimli::DW_AT_signature) {
        return definition;
    }
    if !is_flag(entry, gimli::DW_AT_declaration) {
        return die;
    }
    reader.defined(die, || find_definition(reader, die)).unwrap_or(die)
}

/// Looks for the definition of a type that an entry declares.
fn find_definition(reader: &Reader<'_>, die: Die) -> Option<Die> {
    let name = std::str::from_utf8(reader.name(die)?).ok()?;
    let entry = reader.entry(die).ok()?;
    let scopes =
        |around: &[Die]| -> Vec<Option<&[u8]>> { around.iter().map(|&die| reader.name(die)).collect() };
    let own = reader.around(die);
    let hits = scan::named(reader, name, &[entry.tag()]);
    let is_definition =
        |die: Die| reader.entry(die).is_ok_and(|entry| entry.attr(gimli::DW_AT_declaration).is_none());
    hits.iter().find(|hit| is_definition(hit.die) && scopes(&hit.around) == scopes(&own)).map(|hit| hit.die)
}

fn dimensions(reader: &Reader<'_>, array: Die) -> Vec<Option<u64>> {
    let mut counts = Vec::new();
    let signed = |entry: &Entry<'_>, name| -> Option<i64> {
        let value = entry.attr_value(name)?;
        value.sdata_value().or_else(|| value.udata_value().and_then(|value| i64::try_from(value).ok()))
    };
    let told = reader.children(array, |_, entry| {
        if entry.tag() == gimli::DW_TAG_subrange_type {
            let lower = signed(entry, gimli::DW_AT_lower_bound).unwrap_or(0);
            counts.push(number(entry, gimli::DW_AT_count).or_else(|| {
                let upper = signed(entry, gimli::DW_AT_upper_bound)?;
                u64::try_from(upper.checked_sub(lower)?.checked_add(1)?).ok()
            }));
        }
        counts.len() < MOST_DIMENSIONS
    });
    if told.is_err() || counts.is_empty() {
        counts = vec![None];
    }
    counts
}

fn enumeration<'d>(reader: &Reader<'d>, die: Die, entry: &Entry<'d>) -> ValueKind {
    let (mut names, mut any_negative) = (Vec::new(), false);
    let _ = reader.children(die, |child, entry| {
        if entry.tag() == gimli::DW_TAG_enumerator
            && let Some(name) = reader.name(child)
            && let Some(value) = entry.attr_value(gimli::DW_AT_const_value)
        {
            let signed = value.sdata_value().map(i128::from);
            let number = signed.or_else(|| value.udata_value().map(i128::from)).unwrap_or(0);
            any_negative |= number < 0;
            names.push((shown(name), number));
        }
        names.len() < MOST_ENUMERATORS
    });
    let underlying = Type::at(reader, reader.link(die.unit, entry, gimli::DW_AT_type));
    let signed = match underlying.shape(reader) {
        Shape::Base => underlying.value_kind(reader) == ValueKind::Signed,
        _ => any_negative,
    };
    if !signed {
        // Numbers are compared without a sign, as wide as the type.
        let bits = Type { die: Some(die), ..Type::VOID }.size(reader).unwrap_or(8).min(8) * 8;
        let mask = if bits == 64 { i128::from(u64::MAX) } else { (1i128 << bits) - 1 };
        names.iter_mut().for_each(|(_, number)| *number &= mask);
    }
    ValueKind::Enum { names: Arc::from(names), signed }
}

/// The name of a type, or how it is made of others.
fn spelling(reader: &Reader<'_>, die: Option<Die>, left: usize) -> String {
    let Some(die) = die else { return "void".to_owned() };
    let Ok(entry) = reader.entry(die) else { return "?".to_owned() };
    if left == 0 {
        return "...".to_owned();
    }
    let inner = || spelling(reader, reader.link(die.unit, &entry, gimli::DW_AT_type), left - 1);
    let mut text = match (entry.tag(), reader.name(die)) {
        (gimli::DW_TAG_const_type, _) => format!("const {}", inner()),
        (gimli::DW_TAG_volatile_type, _) => format!("volatile {}", inner()),
        (gimli::DW_TAG_atomic_type, _) => format!("_Atomic {}", inner()),
        (gimli::DW_TAG_restrict_type, _) => inner(),
        (tag, Some(name)) => {
            let keyword = match tag {
                gimli::DW_TAG_structure_type => "struct ",
                gimli::DW_TAG_union_type => "union ",
                gimli::DW_TAG_enumeration_type => "enum ",
                gimli::DW_TAG_class_type => "class ",
                _ => "",
            };
            match (keyword, reader.is_c(die.unit)) {
                ("", _) => shown(name),
                (keyword, true) => format!("{keyword}{}", shown(name)),
                (_, false) => {
                    let scopes = reader.around(die).into_iter().filter_map(|scope| reader.name(scope));
                    let path: Vec<String> = scopes.chain([name]).map(shown).collect();
                    path.join("::")
                }
            }
        }
        (gimli::DW_TAG_pointer_type, None) => {
            let inner = inner();
            if inner.ends_with('*') { format!("{inner}*") } else { format!("{inner} *") }
        }
        (gimli::DW_TAG_reference_type, None) => format!("{} &", inner()),
        (gimli::DW_TAG_rvalue_reference_type, None) => format!("{} &&", inner()),
        (gimli::DW_TAG_array_type, None) => {
            Type { die: Some(die), ..Type::VOID }.spelled_array(reader, left - 1)
        }
        (gimli::DW_TAG_subroutine_type, None) => format!("{} (...)", inner()),
        (gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type, None) => "struct {...}".to_owned(),
        (gimli::DW_TAG_union_type, None) => "union {...}".to_owned(),
        (gimli::DW_TAG_enumeration_type, None) => "enum {...}".to_owned(),
        _ => "?".to_owned(),
    };
    if let Some((end, _)) = text.char_indices().nth(LONGEST_SPELLING) {
        text.truncate(end);
        text += "...";
    }
    text
}
