//! How values are passed: System V for x86-64, and what Rust's compilers do.
//!
//! ```text
//!  type --of_parameter--> Passing --Supply::give--> Home        rdi rsi rdx rcx r8 r9 | xmm0 .. xmm7 | [rsp+8] [rsp+16] ...
//! ```
//! A value of up to 16 bytes is divided into eights of bytes, each of which is of the class of what lies in it. Larger ones lie on the stack. If there are not enough
//! registers for all of a value, all of it is on the stack.

use super::super::debug::{Die, Entry, Reader, is_flag, is_static, number};
use super::super::types::{Shape, Type};
use super::register::{FIRST_ON_STACK, Home, Piece, Register};
use super::signature::Language;

/// Records inside records.
const DEEPEST: usize = 8;
/// Members of one record that are looked at.
const MOST_MEMBERS: usize = 256;
/// Records that are looked at for one value: types inside each other may be more than there are bytes of them.
const MOST_RECORDS: usize = 1024;

/// The class of eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Nothing,
    Vector,
    Integer,
}

/// How a value is passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Passing {
    /// It has no bytes that are passed.
    Nothing,
    /// In registers: the class of each eight bytes, and how many bytes there are.
    Registers(Vec<Class>, u64),
    /// Each part in a register of its own: offset, bytes, class.
    Parts(Vec<(u64, u64, Class)>),
    /// In one vector register of whatever length.
    Wide(u64),
    /// On the stack.
    Memory { size: u64, align: u64 },
    /// Its address is passed.
    Address,
    /// In the floating-point stack, where results of `long double` are.
    X87,
}

type Unknown = &'static str;

const ODD_TYPE: Unknown = "how a value of its type is passed is not known to kymo";

/// The registers and stack that are left.
#[derive(Clone, Debug)]
pub(super) struct Supply {
    integers: usize,
    vectors: usize,
    stack: i64,
}

impl Supply {
    pub(super) fn new() -> Supply {
        Supply { integers: 0, vectors: 0, stack: FIRST_ON_STACK }
    }

    /// The address that a large result is to be put at comes first.
    pub(super) fn take_hidden(&mut self) {
        self.integers += 1;
    }

    /// The next register for eight bytes of a class, where `integers` are those for integers.
    fn next(&mut self, class: Class, integers: &[Register]) -> Option<Register> {
        match class {
            Class::Integer => {
                self.integers += 1;
                integers.get(self.integers - 1).copied()
            }
            Class::Vector => {
                self.vectors += 1;
                Some(Register::Vector(self.vectors as u8 - 1))
            }
            Class::Nothing => None,
        }
    }

    /// Where the next value is.
    pub(super) fn give(&mut self, passing: &Passing) -> Home {
        match passing {
            Passing::Nothing => Home::Nothing,
            Passing::Registers(classes, size) => {
                let count = |wanted| classes.iter().filter(|class| **class == wanted).count();
                let (integers, vectors) = (count(Class::Integer), count(Class::Vector));
                if self.integers + integers > Register::ARGUMENTS.len() || self.vectors + vectors > 8 {
                    return self.on_stack(*size, 8);
                }
                Home::Registers(pieces(classes, *size, |class| self.next(class, &Register::ARGUMENTS)))
            }
            Passing::Parts(parts) => {
                let one = |&(offset, len_bytes, class): &(u64, u64, Class)| {
                    let register = match self.give(&Passing::Registers(vec![class], len_bytes)) {
                        Home::Registers(pieces) => pieces.first().and_then(|piece| piece.register),
                        // A part on the stack, another in a register: nobody asks for that.
                        _ => None,
                    };
                    Piece { offset, len_bytes, register }
                };
                Home::Registers(parts.iter().map(one).collect())
            }
            Passing::Wide(size) if self.vectors < 8 => {
                self.vectors += 1;
                Home::whole(Register::Vector(self.vectors as u8 - 1), *size)
            }
            Passing::Wide(size) => self.on_stack(*size, *size),
            Passing::Memory { size, align } => self.on_stack(*size, *align),
            Passing::X87 => self.on_stack(16, 16),
            Passing::Address => match self.give(&Passing::Registers(vec![Class::Integer], 8)) {
                Home::Registers(pieces) => match pieces.first().and_then(|piece| piece.register) {
                    Some(register) => Home::Memory(register, 0),
                    None => Home::Nothing,
                },
                // The address itself is on the stack.
                Home::Memory(register, offset) => Home::Indirect(register, offset),
                other => other,
            },
        }
    }

    fn on_stack(&mut self, size: u64, align: u64) -> Home {
        let align = i64::try_from(align.clamp(8, 64).next_power_of_two()).unwrap_or(8);
        // Counted from the end of the return address, where the caller's stack was aligned.
        let from = (self.stack - FIRST_ON_STACK).saturating_add(align - 1) / align * align + FIRST_ON_STACK;
        let size = i64::try_from(size.min(1 << 32)).unwrap_or(0);
        self.stack = from.saturating_add((size + 7) / 8 * 8);
        Home::Memory(Register::STACK, from)
    }
}

fn pieces(classes: &[Class], size: u64, mut next: impl FnMut(Class) -> Option<Register>) -> Vec<Piece> {
    let piece = |(number, &class): (usize, &Class)| {
        let offset = number as u64 * 8;
        Piece { offset, len_bytes: size.saturating_sub(offset).min(8), register: next(class) }
    };
    classes.iter().enumerate().map(piece).collect()
}

/// Where a result is that is returned in this way.
pub(super) fn result(passing: &Passing) -> Home {
    let mut supply = Supply::new();
    let mut next = |class| supply.next(class, &Register::RESULTS);
    match passing {
        Passing::Nothing => Home::Nothing,
        Passing::Registers(classes, size) => Home::Registers(pieces(classes, *size, next)),
        Passing::Parts(parts) => {
            let one = |&(offset, len_bytes, class)| Piece { offset, len_bytes, register: next(class) };
            Home::Registers(parts.iter().map(one).collect())
        }
        Passing::Wide(size) => Home::whole(Register::Vector(0), *size),
        Passing::Memory { .. } | Passing::Address => Home::Memory(Register::RESULTS[0], 0),
        Passing::X87 => Home::whole(Register::Float, 16),
    }
}

/// How a parameter is passed. `has_place`: its debug information has a place for it, which does not say that its address is passed.
pub(super) fn of_parameter(
    reader: &Reader<'_>,
    kind: Type,
    language: Language,
    has_place: bool,
) -> Result<Passing, Unknown> {
    if language == Language::Rust {
        return of_rust(reader, kind, false);
    }
    let passing = of_value(reader, kind)?;
    if language == Language::Cplusplus && kind.shape(reader) == Shape::Record && !has_place {
        // What has a destructor or copies itself is passed by its address; only a place would tell.
        return Err("whether its class is passed by value or by address is not told");
    }
    Ok(passing)
}

/// How a result is returned.
pub(super) fn of_result(reader: &Reader<'_>, kind: Type, language: Language) -> Result<Passing, Unknown> {
    if kind.shape(reader) == Shape::Void {
        return Ok(Passing::Nothing);
    }
    if language == Language::Rust {
        return of_rust(reader, kind, true);
    }
    if language == Language::Cplusplus
        && kind.shape(reader) == Shape::Record
        && is_special(reader, kind, 0, &mut { MOST_RECORDS })
    {
        return Ok(Passing::Address);
    }
    match of_value(reader, kind)? {
        Passing::Memory { size: 16, align: 16 } if kind.shape(reader) == Shape::Base => Ok(Passing::X87),
        other => Ok(other),
    }
}

/// Whether objects of a class have a destructor or copy themselves in a way of their own, so that they are never in registers.
fn is_special(reader: &Reader<'_>, kind: Type, depth: usize, left: &mut usize) -> bool {
    let Some(die) = kind.die.filter(|_| depth < DEEPEST && *left > 0) else { return false };
    *left -= 1;
    if let Some((_, gimli::AttributeValue::CallingConvention(told))) =
        reader.attr(die, gimli::DW_AT_calling_convention)
    {
        return told == gimli::DW_CC_pass_by_reference;
    }
    let own = reader.name(die).unwrap_or_default();
    // Names of templates' constructors are without parameters.
    let own = own.split(|&byte| byte == b'<').next().unwrap_or_default();
    let (mut special, mut inner, mut members) = (false, Vec::new(), 0);
    let _ = reader.children(die, |child, entry| {
        members += 1;
        let is_plain =
            entry.attr_value(gimli::DW_AT_defaulted).is_some() || is_flag(entry, gimli::DW_AT_deleted);
        let is_written = !is_flag(entry, gimli::DW_AT_artificial);
        match entry.tag() {
            gimli::DW_TAG_subprogram if !is_plain => {
                let name = reader.text(child.unit, entry, gimli::DW_AT_name).unwrap_or_default();
                let is_virtual = entry.attr(gimli::DW_AT_vtable_elem_location).is_some();
                special |= name.first() == Some(&b'~') && (is_virtual || is_written);
                special |= name == own && is_written && copies(reader, child, die);
            }
            gimli::DW_TAG_member if entry.attr(gimli::DW_AT_external).is_none() => {
                special |= reader
                    .text(child.unit, entry, gimli::DW_AT_name)
                    .is_some_and(|name| name.starts_with(b"_vptr"));
                inner.push(Type::of(reader, child));
            }
            gimli::DW_TAG_inheritance => {
                special |= entry.attr(gimli::DW_AT_virtuality).is_some();
                inner.push(Type::of(reader, child));
            }
            _ => {}
        }
        !special && members < MOST_MEMBERS
    });
    special
        || inner
            .into_iter()
            .filter(|kind| kind.shape(reader) == Shape::Record)
            .any(|kind| is_special(reader, kind, depth + 1, left))
}

/// Whether a constructor takes another object of the class.
fn copies(reader: &Reader<'_>, constructor: Die, class: Die) -> bool {
    let mut kinds = Vec::new();
    let _ = reader.children(constructor, |child, entry| {
        if entry.tag() == gimli::DW_TAG_formal_parameter && entry.attr(gimli::DW_AT_artificial).is_none() {
            kinds.push(Type::of(reader, child));
        }
        kinds.len() < 2
    });
    let first = kinds.first().filter(|kind| kinds.len() == 1 && kind.shape(reader) == Shape::Reference);
    first.is_some_and(|kind| kind.target(reader).die == Some(class))
}

/// C's way.
fn of_value(reader: &Reader<'_>, kind: Type) -> Result<Passing, Unknown> {
    let shape = kind.shape(reader);
    let size = match (shape, kind.size(reader)) {
        (Shape::Void | Shape::Function, _) => return Err(ODD_TYPE),
        (_, Some(size)) => size,
        // `nullptr_t` and pointers to members have no size.
        (Shape::Other, None) => {
            match kind.die.and_then(|die| reader.entry(die).ok()).map(|entry| entry.tag()) {
                Some(gimli::DW_TAG_unspecified_type) => 8,
                Some(gimli::DW_TAG_ptr_to_member_type)
                    if kind.target(reader).shape(reader) == Shape::Function =>
                {
                    return Ok(Passing::Registers(vec![Class::Integer; 2], 16));
                }
                Some(gimli::DW_TAG_ptr_to_member_type) => 8,
                _ => return Err(ODD_TYPE),
            }
        }
        (_, None) => return Err(ODD_TYPE),
    };
    if is_vector(reader, kind) {
        return match size {
            8 | 16 | 32 | 64 => Ok(Passing::Wide(size)),
            _ => Err(ODD_TYPE),
        };
    }
    if shape == Shape::Base {
        return of_base(reader, kind, size);
    }
    if size == 0 {
        return Ok(Passing::Nothing);
    }
    if size > 16 {
        let align = kind.die.and_then(|die| reader.attr(die, gimli::DW_AT_alignment));
        let align = align.and_then(|(_, value)| value.udata_value()).unwrap_or(8);
        return Ok(Passing::Memory { size, align });
    }
    let classes = vec![Class::Nothing; size.div_ceil(8) as usize];
    let mut classifier = Classifier { reader, classes, left: MOST_MEMBERS };
    match classifier.add(kind, 0, 0)? {
        true if classifier.classes.iter().all(|class| *class == Class::Nothing) => Ok(Passing::Nothing),
        true => Ok(Passing::Registers(classifier.classes, size)),
        false => Ok(Passing::Memory { size, align: 8 }),
    }
}

fn is_vector(reader: &Reader<'_>, kind: Type) -> bool {
    kind.die.is_some_and(|die| reader.attr(die, gimli::DW_AT_GNU_vector).is_some())
}

fn encoding(reader: &Reader<'_>, kind: Type) -> Option<gimli::DwAte> {
    match reader.attr(kind.die?, gimli::DW_AT_encoding)?.1 {
        gimli::AttributeValue::Encoding(encoding) => Some(encoding),
        _ => None,
    }
}

fn of_base(reader: &Reader<'_>, kind: Type, size: u64) -> Result<Passing, Unknown> {
    let name = kind.die.and_then(|die| reader.name(die)).unwrap_or_default();
    match (encoding(reader, kind), size) {
        (None, _) | (_, 0) => Err(ODD_TYPE),
        (Some(gimli::DW_ATE_float), 2 | 4 | 8) => Ok(Passing::Registers(vec![Class::Vector], size)),
        (Some(gimli::DW_ATE_float), 16) if name.ends_with(b"loat128") => Ok(Passing::Wide(16)),
        (Some(gimli::DW_ATE_float), _) => Ok(Passing::Memory { size: 16, align: 16 }),
        (Some(gimli::DW_ATE_complex_float), 8) => Ok(Passing::Registers(vec![Class::Vector], 8)),
        (Some(gimli::DW_ATE_complex_float), 16) => Ok(Passing::Registers(vec![Class::Vector; 2], 16)),
        (Some(gimli::DW_ATE_complex_float), _) => Ok(Passing::Memory { size, align: 16 }),
        (Some(gimli::DW_ATE_decimal_float), _) => Err(ODD_TYPE),
        (Some(_), 1..=8) => Ok(Passing::Registers(vec![Class::Integer], size)),
        (Some(_), 16) => Ok(Passing::Registers(vec![Class::Integer; 2], 16)),
        _ => Err(ODD_TYPE),
    }
}

/// Finds the classes of a value's eights of bytes. Its methods add what lies at an offset; they
/// give `false` if a part is not aligned, so that all is in memory.
struct Classifier<'a, 'd> {
    reader: &'a Reader<'d>,
    classes: Vec<Class>,
    /// Types that may still be looked at.
    left: usize,
}

impl Classifier<'_, '_> {
    fn add(&mut self, kind: Type, at: u64, depth: usize) -> Result<bool, Unknown> {
        if depth > DEEPEST || self.left == 0 {
            return Err(ODD_TYPE);
        }
        self.left -= 1;
        let size = kind.size(self.reader);
        match kind.shape(self.reader) {
            Shape::Base => self.base(kind, at, size.filter(|size| *size <= 16).ok_or(ODD_TYPE)?),
            Shape::Pointer | Shape::Reference => self.mark(at, 8, Class::Integer),
            Shape::Enum => self.mark(at, size.filter(|size| *size <= 8).ok_or(ODD_TYPE)?, Class::Integer),
            Shape::Array => self.array(kind, at, depth),
            Shape::Record => self.record(kind.die.ok_or(ODD_TYPE)?, at, depth),
            Shape::Other if size.is_none() => self.mark(at, 8, Class::Integer),
            Shape::Void | Shape::Function | Shape::Other => Err(ODD_TYPE),
        }
    }

    fn mark(&mut self, at: u64, size: u64, class: Class) -> Result<bool, Unknown> {
        if size == 0 || at.checked_rem(size) != Some(0) {
            return Ok(false);
        }
        for eight in at / 8..=(at + size - 1) / 8 {
            let known = self.eight(eight)?;
            *known = class.max(*known);
        }
        Ok(true)
    }

    fn eight(&mut self, number: u64) -> Result<&mut Class, Unknown> {
        usize::try_from(number).ok().and_then(|number| self.classes.get_mut(number)).ok_or(ODD_TYPE)
    }

    fn base(&mut self, kind: Type, at: u64, size: u64) -> Result<bool, Unknown> {
        match encoding(self.reader, kind).ok_or(ODD_TYPE)? {
            gimli::DW_ATE_float if size <= 8 => self.mark(at, size, Class::Vector),
            gimli::DW_ATE_complex_float => {
                let half = size / 2;
                Ok(self.mark(at, half, Class::Vector)? && self.mark(at + half, half, Class::Vector)?)
            }
            // A `long double` fills all of it, and is in memory.
            gimli::DW_ATE_float => Ok(false),
            gimli::DW_ATE_decimal_float => Err(ODD_TYPE),
            _ => self.mark(at, size, Class::Integer),
        }
    }

    fn array(&mut self, kind: Type, at: u64, depth: usize) -> Result<bool, Unknown> {
        if is_vector(self.reader, kind) {
            return Err(ODD_TYPE);
        }
        let elements = kind.elements(self.reader).ok_or(ODD_TYPE)?;
        for number in 0..elements.count.unwrap_or(0).min(17) {
            let at = elements.stride.checked_mul(number).and_then(|far| far.checked_add(at));
            if !self.add(elements.element, at.ok_or(ODD_TYPE)?, depth + 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn record(&mut self, die: Die, at: u64, depth: usize) -> Result<bool, Unknown> {
        let reader = self.reader;
        let (mut members, mut odd) = (Vec::new(), false);
        let told = reader.children(die, |child, entry| {
            match entry.tag() {
                gimli::DW_TAG_variant_part => odd = true,
                gimli::DW_TAG_member | gimli::DW_TAG_inheritance if !is_static(entry) => {
                    match offset_and_bit(entry) {
                        Some((offset, bit)) => members.push((offset, Type::of(reader, child), bit)),
                        None => odd = true,
                    }
                }
                _ => {}
            }
            members.len() < MOST_MEMBERS
        });
        if told.is_err() || odd {
            return Err(ODD_TYPE);
        }
        for (offset, inner, bit) in members {
            let size = inner.size(reader);
            let fits = match bit {
                // Bits are integers, wherever they lie.
                Some(bit) => {
                    *self.eight(at.saturating_mul(8).saturating_add(bit) / 64)? = Class::Integer;
                    true
                }
                None if size == Some(0) => true,
                None if size.is_none() && inner.shape(reader) == Shape::Array => true,
                None => self.add(inner, at.checked_add(offset).ok_or(ODD_TYPE)?, depth + 1)?,
            };
            if !fits {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Where a member lies in its record, in bytes, and the first bit of one that is bits. Nothing
/// where the place is computed.
fn offset_and_bit(entry: &Entry<'_>) -> Option<(u64, Option<u64>)> {
    let offset = match entry.attr_value(gimli::DW_AT_data_member_location) {
        Some(value) => value.udata_value()?,
        None => 0,
    };
    let first = || number(entry, gimli::DW_AT_data_bit_offset).unwrap_or(offset.saturating_mul(8));
    Some((offset, number(entry, gimli::DW_AT_bit_size).map(|_| first())))
}

/// Rust's way: numbers and pointers in a register each, two of them as two values, what is larger than two registers by its address.
fn of_rust(reader: &Reader<'_>, kind: Type, is_result: bool) -> Result<Passing, Unknown> {
    let size = kind.size(reader).ok_or(ODD_TYPE)?;
    match size {
        0 => return Ok(Passing::Nothing),
        17.. => return Ok(Passing::Address),
        _ => {}
    }
    let class = |float: bool| if float { Class::Vector } else { Class::Integer };
    let parts = scalars(reader, kind, 0, 0, &mut { MOST_RECORDS });
    match parts.as_deref() {
        Some([]) => Ok(Passing::Nothing),
        Some(&[(0, bytes, float)]) if bytes == size => Ok(match (bytes, float) {
            (16, false) => Passing::Registers(vec![Class::Integer; 2], 16),
            (16, true) => Passing::Wide(16),
            _ => Passing::Registers(vec![class(float)], size),
        }),
        Some(&[(a, first_bytes, first), (b, second_bytes, second)]) => {
            Ok(Passing::Parts(vec![(a, first_bytes, class(first)), (b, second_bytes, class(second))]))
        }
        // An array or a record of many parts is passed as one number, or, if that is longer than a register, by its address.
        _ if is_result => Ok(Passing::Registers(vec![Class::Integer; size.div_ceil(8) as usize], size)),
        _ if size <= 8 => Ok(Passing::Registers(vec![Class::Integer], size)),
        _ => Ok(Passing::Address),
    }
}

/// A number or pointer in a value: offset, bytes, whether it is a float.
type Scalar = (u64, u64, bool);

/// The numbers and pointers that a value consists of, one or two; `None` if it is of more parts, or of different ones at different times.
fn scalars(reader: &Reader<'_>, kind: Type, at: u64, depth: usize, left: &mut usize) -> Option<Vec<Scalar>> {
    if depth > DEEPEST || *left == 0 {
        return None;
    }
    *left -= 1;
    match kind.shape(reader) {
        Shape::Base => {
            let size = kind.size(reader)?;
            let is_float = encoding(reader, kind) == Some(gimli::DW_ATE_float);
            Some(if size == 0 { Vec::new() } else { vec![(at, size, is_float)] })
        }
        Shape::Pointer | Shape::Reference => Some(vec![(at, 8, false)]),
        Shape::Enum => Some(vec![(at, kind.size(reader)?, false)]),
        Shape::Record => {
            let die = kind.die?;
            let is_union = reader.entry(die).is_ok_and(|entry| entry.tag() == gimli::DW_TAG_union_type);
            let (members, parts) = members(reader, die)?;
            if is_union {
                return None;
            }
            let mut found = of_members(reader, &members, at, depth, left)?;
            match parts[..] {
                [] => {}
                [part] if found.is_empty() => found = of_variants(reader, part, at, depth, left)?,
                _ => return None,
            }
            found.sort_unstable();
            (found.len() <= 2).then_some(found)
        }
        _ => None,
    }
}

/// Members with their offsets, and parts with variants.
type Members = (Vec<(u64, Type)>, Vec<Die>);

/// The members of a record, each with its offset, and the parts of it that have variants.
fn members(reader: &Reader<'_>, record: Die) -> Option<Members> {
    let (mut members, mut parts, mut count) = (Vec::new(), Vec::new(), 0);
    let told = reader.children(record, |child, entry| {
        count += 1;
        match entry.tag() {
            gimli::DW_TAG_variant_part => parts.push(child),
            gimli::DW_TAG_member => {
                let offset = number(entry, gimli::DW_AT_data_member_location).unwrap_or(0);
                members.push((offset, Type::of(reader, child)));
            }
            _ => {}
        }
        count < MOST_MEMBERS
    });
    told.ok().map(|()| (members, parts))
}

fn of_members(
    reader: &Reader<'_>,
    members: &[(u64, Type)],
    at: u64,
    depth: usize,
    left: &mut usize,
) -> Option<Vec<Scalar>> {
    let mut found = Vec::new();
    for &(offset, inner) in members {
        if inner.size(reader) != Some(0) {
            found.extend(scalars(reader, inner, at.checked_add(offset)?, depth + 1, left)?);
        }
        if found.len() > 2 {
            return None;
        }
    }
    Some(found)
}

/// Of an enum with fields: what tells the variant, and the one number that all variants have at the same place; or, where a value of the one variant with
/// fields tells that it is another one, what that has.
fn of_variants(
    reader: &Reader<'_>,
    part: Die,
    at: u64,
    depth: usize,
    left: &mut usize,
) -> Option<Vec<Scalar>> {
    let entry = reader.entry(part).ok()?;
    let tag = reader.link(part.unit, &entry, gimli::DW_AT_discr).and_then(|member| {
        let offset = reader.attr(member, gimli::DW_AT_data_member_location)?.1.udata_value()?;
        Some((at.checked_add(offset)?, Type::of(reader, member).size(reader)?, false))
    });
    let mut full: Vec<Vec<Scalar>> = Vec::new();
    for (_, member, _) in super::super::field::variants_of(reader, part).into_iter().take(MOST_MEMBERS) {
        let offset = reader.attr(member, gimli::DW_AT_data_member_location);
        let offset = offset.and_then(|(_, value)| value.udata_value()).unwrap_or(0);
        let kind = Type::of(reader, member);
        let (members, _) = members(reader, kind.die?)?;
        let mut found = of_members(reader, &members, at.checked_add(offset)?, depth, left)?;
        found.sort_unstable();
        if !found.is_empty() {
            full.push(found);
        }
    }
    let Some(tag) = tag else { return if full.len() == 1 { full.pop() } else { None } };
    let Some(first) = full.first() else { return Some(vec![tag]) };
    let is_inside = |scalar: &Scalar| scalar.0 <= tag.0 && tag.0 < scalar.0 + scalar.1;
    if full.iter().flatten().any(is_inside) {
        // Another variant is told by a number that the only one with fields cannot have.
        return (full.len() == 1).then(|| first.clone());
    }
    let alike = full.iter().all(|other| other == first);
    (alike && first.len() == 1).then(|| vec![tag, first[0]])
}
