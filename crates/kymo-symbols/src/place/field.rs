//! Fields: where they lie in a record, through unnamed members, base classes and variants.

use gimli::AttributeValue;

use super::debug::{Die, Entry, Reader, Slice, is_static, number, shown};
use super::types::Type;

/// Records inside records that are looked through for a field.
const DEEPEST: usize = 16;
/// Members that are looked at for one field.
const MOST_MEMBERS: usize = 1 << 16;

/// How to get from a record to a field of it.
#[derive(Clone, Debug)]
pub(super) struct Field<'d> {
    pub(super) steps: Vec<Step<'d>>,
    pub(super) kind: Type,
    pub(super) bits: Option<Bits>,
    /// The variants of an enum that the field is in.
    pub(super) variants: Vec<Variant>,
}

/// Part of the way to a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step<'d> {
    /// So many bytes further.
    Bytes(u64),
    /// Computed from the record's address and memory (virtual base classes), in the unit with this number.
    Computed(u32, gimli::Expression<Slice<'d>>),
}

/// Bits of a field, counted from the place of the field, low bits first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) first: u64,
    pub(super) width: u64,
}

/// A variant of an enum with fields, in which a field lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) name: String,
    /// Steps taken before the enum's own start.
    pub(super) steps_before: usize,
    /// The entry of the enum's variant part.
    pub(super) part: Die,
    /// Whether the variant was named, rather than taken since it is the one there now.
    pub(super) was_named: bool,
}

/// Finds a field of a record by name. `current` tells the variant of a variant part that the memory holds now; it is
/// asked only where no variant was named.
pub(super) fn find<'d>(
    reader: &Reader<'d>,
    record: Die,
    name: &str,
    current: &mut dyn FnMut(&[Step<'d>], Die) -> Option<Die>,
) -> Option<Field<'d>> {
    let mut search =
        Search { reader, name: name.as_bytes(), tuple: format!("__{name}"), left: MOST_MEMBERS, current };
    search.record(record, Vec::new(), Vec::new(), 0)
}

struct Search<'a, 'd> {
    reader: &'a Reader<'d>,
    name: &'a [u8],
    /// The entry of a tuple's field `0` is called `__0`.
    tuple: String,
    left: usize,
    current: &'a mut dyn FnMut(&[Step<'d>], Die) -> Option<Die>,
}

impl<'d> Search<'_, 'd> {
    fn is_wanted(&self, name: &[u8]) -> bool {
        name == self.name || (self.name.iter().all(u8::is_ascii_digit) && name == self.tuple.as_bytes())
    }

    fn record(
        &mut self,
        record: Die,
        steps: Vec<Step<'d>>,
        variants: Vec<Variant>,
        depth: usize,
    ) -> Option<Field<'d>> {
        if depth > DEEPEST {
            return None;
        }
        let mut found = None;
        // Unnamed members and base classes: a field of the record itself hides theirs.
        let mut inner: Vec<(Die, Step<'d>)> = Vec::new();
        let mut parts: Vec<Die> = Vec::new();
        let reader = self.reader;
        let _ = reader.children(record, |child, entry| {
            self.left = self.left.saturating_sub(1);
            match entry.tag() {
                gimli::DW_TAG_member if !is_static(entry) => {
                    match reader.text(child.unit, entry, gimli::DW_AT_name) {
                        Some(name) if self.is_wanted(name) => {
                            let mut steps = steps.clone();
                            let (step, bits) = place(reader, child, entry);
                            steps.push(step);
                            let kind = Type::of(reader, child);
                            found = Some(Field { steps, kind, bits, variants: variants.clone() });
                        }
                        Some(_) => {}
                        None => inner.push((child, place(reader, child, entry).0)),
                    }
                }
                gimli::DW_TAG_inheritance => inner.push((child, place(reader, child, entry).0)),
                gimli::DW_TAG_variant_part => parts.push(child),
                _ => {}
            }
            found.is_none() && self.left > 0
        });
        if found.is_some() {
            return found;
        }
        for (member, step) in inner {
            let Some(die) = Type::of(reader, member).die else { continue };
            let mut steps = steps.clone();
            steps.push(step);
            let field = self.record(die, steps, variants.clone(), depth + 1);
            if field.is_some() || self.left == 0 {
                return field;
            }
        }
        parts.into_iter().find_map(|part| self.variant_part(part, &steps, &variants, depth))
    }

    fn variant_part(
        &mut self,
        part: Die,
        steps: &[Step<'d>],
        variants: &[Variant],
        depth: usize,
    ) -> Option<Field<'d>> {
        let with = |name: &[u8], was_named| {
            let mut variants = variants.to_vec();
            variants.push(Variant { name: shown(name), steps_before: steps.len(), part, was_named });
            variants
        };
        for (_, member, name) in variants_of(self.reader, part) {
            if self.is_wanted(&name) {
                let entry = self.reader.entry(member).ok()?;
                let mut steps = steps.to_vec();
                steps.push(place(self.reader, member, &entry).0);
                let (kind, variants) = (Type::of(self.reader, member), with(&name, true));
                return Some(Field { steps, kind, bits: None, variants });
            }
        }
        // No variant of that name: a field of the variant that is there.
        let now = (self.current)(steps, part)?;
        let (_, member, name) =
            variants_of(self.reader, part).into_iter().find(|(variant, ..)| *variant == now)?;
        let entry = self.reader.entry(member).ok()?;
        let mut inside = steps.to_vec();
        inside.push(place(self.reader, member, &entry).0);
        self.record(Type::of(self.reader, member).die?, inside, with(&name, false), depth + 1)
    }
}

/// The variants of a variant part: the variant's entry, its member, the member's name.
pub(super) fn variants_of(reader: &Reader<'_>, part: Die) -> Vec<(Die, Die, Vec<u8>)> {
    let mut variants = Vec::new();
    let _ = reader.children(part, |child, entry| {
        if entry.tag() == gimli::DW_TAG_variant {
            variants.push(child);
        }
        variants.len() < MOST_MEMBERS
    });
    let mut members = Vec::new();
    for variant in variants {
        let _ = reader.children(variant, |child, entry| {
            if entry.tag() == gimli::DW_TAG_member
                && let Some(name) = reader.text(child.unit, entry, gimli::DW_AT_name)
            {
                members.push((variant, child, name.to_vec()));
            }
            true
        });
    }
    members
}

/// The names of fields that can be asked for, for suggestions.
pub(super) fn names(reader: &Reader<'_>, record: Die) -> Vec<String> {
    let mut found = Vec::new();
    collect(reader, record, &mut found, 0);
    found
}

fn collect(reader: &Reader<'_>, record: Die, found: &mut Vec<String>, depth: usize) {
    if depth > 4 {
        return;
    }
    let (mut inner, mut parts) = (Vec::new(), Vec::new());
    let _ = reader.children(record, |child, entry| {
        match entry.tag() {
            gimli::DW_TAG_member if !is_static(entry) => {
                match reader.text(child.unit, entry, gimli::DW_AT_name) {
                    Some(name) => {
                        let name = shown(name);
                        let tuple =
                            name.strip_prefix("__").filter(|rest| rest.bytes().all(|c| c.is_ascii_digit()));
                        found.push(tuple.map_or(name.clone(), str::to_owned));
                    }
                    None => inner.push(child),
                }
            }
            gimli::DW_TAG_inheritance => inner.push(child),
            gimli::DW_TAG_variant_part => parts.push(child),
            _ => {}
        }
        found.len() < 1000
    });
    for part in parts {
        found.extend(variants_of(reader, part).into_iter().map(|(_, _, name)| shown(&name)));
    }
    for member in inner.into_iter().take(100) {
        if let Some(die) = Type::of(reader, member).die {
            collect(reader, die, found, depth + 1);
        }
    }
}

/// Where a member lies in its record. Little-endian, as everything here.
fn place<'d>(reader: &Reader<'d>, die: Die, entry: &Entry<'d>) -> (Step<'d>, Option<Bits>) {
    let step = match entry.attr_value(gimli::DW_AT_data_member_location) {
        None => Step::Bytes(0),
        Some(AttributeValue::Exprloc(expression)) => Step::Computed(die.unit, expression),
        Some(AttributeValue::Block(bytes)) => Step::Computed(die.unit, gimli::Expression(bytes)),
        Some(value) => Step::Bytes(value.udata_value().unwrap_or(0)),
    };
    let Some(width) = number(entry, gimli::DW_AT_bit_size) else { return (step, None) };
    if let Some(first) = number(entry, gimli::DW_AT_data_bit_offset) {
        return (step, Some(Bits { first, width }));
    }
    // The old way: from the highest bit of a storage unit.
    let storage = number(entry, gimli::DW_AT_byte_size).or_else(|| Type::of(reader, die).size(reader));
    let from_top = number(entry, gimli::DW_AT_bit_offset).unwrap_or(0);
    let first = storage.unwrap_or(0).saturating_mul(8).saturating_sub(from_top.saturating_add(width));
    (step, Some(Bits { first, width }))
}
