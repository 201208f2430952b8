//! Expressions over parameters: from `req->uri` to a register and the loads behind it.

use super::super::debug::Reader;
use super::super::field::{self, Bits, Step};
use super::super::near;
use super::super::request::Expr;
use super::super::syntax;
use super::super::types::{Shape, Type};
use super::super::value::ValueKind;
use super::MOST_STEPS;
use super::error::CallError;
use super::home;
use super::register::{Home, Piece, Register};
use super::routine::Routine;
use super::signature::Language;

/// Pointers and references that are followed for one field.
const MOST_FOLLOWED: usize = 4;
/// Names that a sentence lists.
const MOST_NAMES: usize = 12;

/// A value that a probe can read: begin with a register, follow pointers, take so many bytes.
///
/// Each step adds a number to what was read until then and takes what lies there: eight bytes, or `len_bytes` of them at the last step. Without steps the value is (the lower
/// bytes of) the register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The expression as it was written, or the parameter's name.
    pub name: String,
    /// Where to begin.
    pub register: Register,
    /// At most [`MOST_STEPS`].
    pub steps: Vec<i32>,
    /// Length of the value: 1, 2, 4 or 8. Of a text, that of its address: 8.
    pub len_bytes: u8,
    /// The bits of it that are the value, counted from the lowest: the first, and how many; nothing for all.
    pub bits: Option<(u8, u8)>,
    /// How it is shown.
    pub kind: ValueKind,
    /// It is the address of characters, to which these bytes are added first.
    pub text: Option<Text>,
    /// Its type as the program spells it.
    pub type_name: String,
}

/// Characters in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Added to the value that was read, to get the address of the first character.
    pub offset: i32,
    /// How many bytes there are, where that is a value itself; else a zero ends them.
    pub length: Option<Box<Fetch>>,
    /// No more bytes than this belong to it, where its type is an array.
    pub most: Option<u32>,
}

impl Fetch {
    /// Whether the value has a sign.
    pub fn is_signed(&self) -> bool {
        matches!(self.kind, ValueKind::Signed | ValueKind::Enum { signed: true, .. })
            || matches!(self.kind, ValueKind::Bits { signed: true, .. })
            || (self.kind == ValueKind::Char && self.len_bytes == 1 && !self.type_name.contains("unsigned"))
    }

    /// The value, as the program's language would write it. `value` is what was read, extended to 64 bits; of a field of bits those bits, in the lowest places.
    pub fn show(&self, value: u64) -> String {
        let width =
            self.bits.map_or(u32::from(self.len_bytes.clamp(1, 8)) * 8, |(_, width)| u32::from(width));
        let unused = 64 - width.clamp(1, 64);
        let value = match self.is_signed() {
            true => (((value << unused) as i64) >> unused) as u64,
            false => (value << unused) >> unused,
        };
        let bytes = value.to_le_bytes();
        match &self.kind {
            ValueKind::Bits { signed: true, .. } => ValueKind::Signed.show(&bytes),
            ValueKind::Bits { .. } => ValueKind::Unsigned.show(&bytes),
            ValueKind::Float | ValueKind::Char => {
                self.kind.show(bytes.get(..usize::from(self.len_bytes)).unwrap_or(&bytes))
            }
            kind => kind.show(&bytes),
        }
    }
}

/// A place on the way.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    at: At,
    pub(super) kind: Type,
    bits: Option<Bits>,
}

#[derive(Clone, Debug)]
enum At {
    /// In registers, from so many bytes of them on.
    Registers(Vec<Piece>, u64),
    /// At an address: what a register holds, pointers that are followed, and an offset.
    Memory(Register, Vec<i32>, i64),
    /// There are no bytes.
    Nothing,
}

impl Routine<'_> {
    /// What an expression over the parameters means at the entry; over `ret`, what it means at the return.
    ///
    /// # Errors
    /// [`CallError`] says what is wrong with the expression, or why the value cannot be read.
    pub fn fetch(&self, text: &str) -> Result<Fetch, CallError> {
        let spot = self.spot(&syntax::expression(text)?)?;
        self.finish(&spot, text)
    }

    pub(super) fn spot(&self, tree: &Expr) -> Result<Spot, CallError> {
        match tree {
            Expr::Name { path, .. } => self.named(path),
            Expr::Field(inner, name) => self.field(self.spot(inner)?, &inner.to_string(), name, false),
            Expr::Arrow(inner, name) => self.field(self.spot(inner)?, &inner.to_string(), name, true),
            Expr::Follow(inner) => self.follow(&self.spot(inner)?, &inner.to_string()),
            Expr::Index(inner, index) => self.index(self.spot(inner)?, &inner.to_string(), *index),
            Expr::Address(_) | Expr::Offset(..) => Err(CallError::WrongType {
                of: tree.to_string(),
                type_name: "an address".to_owned(),
                wanted: "its value".to_owned(),
                why: "expressions begin with a parameter".to_owned(),
            }),
        }
    }

    fn named(&self, name: &str) -> Result<Spot, CallError> {
        if name == "ret" || name == "$retval" || name == "$ret" {
            return self.result();
        }
        let taken = self.takes.iter().find(|taken| taken.name == name).ok_or_else(|| CallError::Unknown {
            name: name.to_owned(),
            function: self.name.clone(),
            known: self.names(),
        })?;
        let at = self.at(&taken.home, name, false)?;
        Ok(Spot { at, kind: taken.kind, bits: None })
    }

    fn result(&self) -> Result<Spot, CallError> {
        if self.returned.shape(&self.reader) == Shape::Void {
            return Err(CallError::Void { function: self.name.clone() });
        }
        let home = home::of_result(&self.reader, self.returned, self.language);
        Ok(Spot { at: self.at(&home, "ret", true)?, kind: self.returned, bits: None })
    }

    fn at(&self, home: &Result<Home, home::Lost>, name: &str, at_return: bool) -> Result<At, CallError> {
        match home {
            Ok(Home::Registers(pieces)) => Ok(At::Registers(pieces.clone(), 0)),
            Ok(Home::Memory(register, offset)) => Ok(At::Memory(*register, Vec::new(), *offset)),
            Ok(Home::Indirect(register, offset)) => Ok(At::Memory(*register, vec![far(*offset, name)?], 0)),
            Ok(Home::Nothing) => Ok(At::Nothing),
            Err(lost) => Err(CallError::Lost {
                name: name.to_owned(),
                function: self.name.clone(),
                at_return,
                why: lost.to_string(),
            }),
        }
    }

    /// Where the pointer at a place points.
    pub(super) fn follow(&self, spot: &Spot, of: &str) -> Result<Spot, CallError> {
        let reader = &*self.reader;
        let pointer = match spot.kind.shape(reader) {
            Shape::Array => return self.index(spot.clone(), of, 0),
            Shape::Record => spot.kind.core(reader),
            _ => spot.kind,
        };
        if !matches!(pointer.shape(reader), Shape::Pointer | Shape::Reference) {
            return Err(self.wrong(of, spot.kind, &format!("*{of}"), "which is no pointer; leave the * out"));
        }
        let at = match &spot.at {
            At::Registers(pieces, offset) => {
                let whole = |piece: &&Piece| piece.offset == *offset && piece.len_bytes >= 8;
                let piece = pieces.iter().find(whole);
                let register = piece.and_then(|piece| piece.register);
                let general = register.filter(|register| register.general().is_some());
                let register =
                    general.ok_or_else(|| self.lost(of, "the pointer is in no general register"))?;
                At::Memory(register, Vec::new(), 0)
            }
            At::Memory(register, steps, offset) => {
                let mut steps = steps.clone();
                steps.push(far(*offset, of)?);
                if steps.len() >= MOST_STEPS {
                    return Err(self.lost(of, "it has too many steps"));
                }
                At::Memory(*register, steps, 0)
            }
            At::Nothing => return Err(self.lost(of, "it has no bytes")),
        };
        Ok(Spot { at, kind: pointer.target(reader), bits: None })
    }

    /// The place so many bytes into another one.
    fn inside(&self, spot: &Spot, bytes: i64, kind: Type, of: &str) -> Result<Spot, CallError> {
        let at = match &spot.at {
            At::Registers(pieces, offset) => {
                let offset = u64::try_from(bytes).ok().and_then(|bytes| offset.checked_add(bytes));
                At::Registers(pieces.clone(), offset.ok_or_else(|| damaged(of))?)
            }
            At::Memory(register, steps, offset) => {
                let offset = offset.checked_add(bytes).ok_or_else(|| damaged(of))?;
                At::Memory(*register, steps.clone(), offset)
            }
            At::Nothing => At::Nothing,
        };
        Ok(Spot { at, kind, bits: None })
    }

    pub(super) fn field(&self, spot: Spot, of: &str, name: &str, arrow: bool) -> Result<Spot, CallError> {
        let reader = &*self.reader;
        let wanted = format!("{}{name}", if arrow { "->" } else { "." });
        let (mut spot, mut arrow) = (spot, arrow);
        for _ in 0..=MOST_FOLLOWED {
            let shape = spot.kind.shape(reader);
            if matches!(shape, Shape::Pointer | Shape::Reference) {
                arrow &= shape == Shape::Reference;
                spot = self.follow(&spot, of)?;
                continue;
            }
            if shape == Shape::Array && arrow {
                (spot, arrow) = (self.index(spot, of, 0)?, false);
                continue;
            }
            let (Shape::Record, Some(record)) = (shape, spot.kind.die) else {
                return Err(self.wrong(of, spot.kind, &wanted, "which has no fields"));
            };
            if !arrow && let Some(found) = self.field_of(&spot, of, name)? {
                return Ok(found);
            }
            // What is all pointer: `Box`, `std::unique_ptr`.
            if spot.kind.core(reader).shape(reader) == Shape::Pointer {
                (spot, arrow) = (self.follow(&spot, of)?, false);
                continue;
            }
            if arrow {
                return Err(self.wrong(of, spot.kind, &wanted, &format!("not a pointer; write {of}.{name}")));
            }
            let names = field::names(reader, record);
            let mut near = near::nearest(name, names.iter().map(String::as_str));
            if near.is_empty() {
                near = names.into_iter().take(MOST_NAMES).collect();
            }
            return Err(CallError::NoField {
                type_name: spot.kind.spelled(reader),
                field: name.to_owned(),
                near,
            });
        }
        Err(self.lost(of, "pointers point at pointers without end"))
    }

    /// A field of a record itself.
    pub(super) fn field_of(&self, spot: &Spot, of: &str, name: &str) -> Result<Option<Spot>, CallError> {
        let reader = &*self.reader;
        let Some(record) = spot.kind.die else { return Ok(None) };
        // Which variant an enum is of changes from call to call: only a named one has fields.
        let Some(found) = field::find(reader, record, name, &mut |_, _| None) else { return Ok(None) };
        let mut bytes = 0i64;
        for step in &found.steps {
            match step {
                Step::Bytes(more) => {
                    let sum = i64::try_from(*more).ok().and_then(|more| bytes.checked_add(more));
                    bytes = sum.ok_or_else(|| damaged(of))?;
                }
                Step::Computed(..) => {
                    return Err(
                        self.lost(of, "the field is in a virtual base class, whose place is computed")
                    );
                }
            }
        }
        let place = self.inside(spot, bytes, found.kind, of)?;
        Ok(Some(Spot { bits: found.bits, ..place }))
    }

    fn index(&self, spot: Spot, of: &str, index: i64) -> Result<Spot, CallError> {
        let reader = &*self.reader;
        let wanted = format!("[{index}]");
        let mut spot = spot;
        if spot.kind.shape(reader) == Shape::Reference {
            spot = self.follow(&spot, of)?;
        }
        let (start, element, stride) = match spot.kind.shape(reader) {
            Shape::Array => {
                let unknown =
                    || CallError::Damaged { of: of.to_owned(), why: "the size of an element is not told" };
                let elements = spot.kind.elements(reader).ok_or_else(unknown)?;
                if index < 0 || elements.count.is_some_and(|count| index as u64 >= count) {
                    let why = "the array is shorter than that";
                    return Err(self.wrong(of, spot.kind, &wanted, why));
                }
                (spot, elements.element, elements.stride)
            }
            Shape::Pointer => self.run(&spot, of, &wanted)?,
            // A slice of Rust.
            Shape::Record => match self.field_of(&spot, of, "data_ptr")? {
                Some(data) => self.run(&data, of, &wanted)?,
                None if spot.kind.core(reader).shape(reader) == Shape::Pointer => {
                    self.run(&spot, of, &wanted)?
                }
                None => {
                    let why = "which has no elements that kymo knows; name the fields that lead to them";
                    return Err(self.wrong(of, spot.kind, &wanted, why));
                }
            },
            _ => return Err(self.wrong(of, spot.kind, &wanted, "which has no elements")),
        };
        let bytes = i64::try_from(stride).ok().and_then(|stride| stride.checked_mul(index));
        self.inside(&start, bytes.ok_or_else(|| damaged(of))?, element, of)
    }

    /// What a pointer points at, as the first of a run: place, type, bytes to the next.
    fn run(&self, pointer: &Spot, of: &str, wanted: &str) -> Result<(Spot, Type, u64), CallError> {
        let start = self.follow(pointer, of)?;
        let stride =
            start.kind.size(&self.reader).filter(|size| *size > 0).ok_or_else(|| {
                self.wrong(of, pointer.kind, wanted, "and what it points at has no known size")
            })?;
        let element = start.kind;
        Ok((start, element, stride))
    }

    pub(super) fn wrong(&self, of: &str, kind: Type, wanted: &str, why: &str) -> CallError {
        CallError::WrongType {
            of: of.to_owned(),
            type_name: kind.spelled(&self.reader),
            wanted: wanted.to_owned(),
            why: why.to_owned(),
        }
    }

    pub(super) fn lost(&self, name: &str, why: &str) -> CallError {
        let at_return = name.trim_start_matches(['*', '(']).starts_with("ret");
        CallError::Lost { name: name.to_owned(), function: self.name.clone(), at_return, why: why.to_owned() }
    }

    /// The value of a place.
    pub(super) fn finish(&self, spot: &Spot, name: &str) -> Result<Fetch, CallError> {
        let reader = &*self.reader;
        if let Some(text) = self.text(spot, name)? {
            return Ok(text);
        }
        let shape = spot.kind.shape(reader);
        // A reference is what it refers to, where that is a number.
        if shape == Shape::Reference
            && !matches!(
                spot.kind.target(reader).shape(reader),
                Shape::Record | Shape::Array | Shape::Function
            )
        {
            return self.finish(&self.follow(spot, name)?, name);
        }
        let kind = spot.kind.value_kind(reader);
        let size = match (shape, spot.kind.size(reader)) {
            (Shape::Function | Shape::Void, _) => {
                return Err(self.wrong(name, spot.kind, "its value", "name what it points at by its fields"));
            }
            (_, Some(size)) => size,
            (Shape::Other, None) => 8,
            (_, None) => {
                return Err(CallError::Large {
                    of: name.to_owned(),
                    type_name: spot.kind.spelled(reader),
                    near: Vec::new(),
                });
            }
        };
        let whole = matches!(size, 1 | 2 | 4 | 8);
        if !whole || (shape == Shape::Record && kind == ValueKind::Bytes) || shape == Shape::Array {
            let mut near = spot.kind.die.map(|die| field::names(reader, die)).unwrap_or_default();
            near.truncate(MOST_NAMES);
            let of = name.to_owned();
            return Err(CallError::Large { of, type_name: spot.kind.spelled(reader), near });
        }
        let fetch = self.load(spot, size as u8, name)?;
        let kind = match spot.bits {
            Some(bits) => {
                let signed = kind == ValueKind::Signed;
                ValueKind::Bits { shift: 0, width: (bits.width.clamp(1, 64)) as u32, signed }
            }
            None => kind,
        };
        Ok(Fetch { kind, type_name: spot.kind.spelled(reader), ..fetch })
    }

    /// So many bytes of a place, as a number.
    fn load(&self, spot: &Spot, len_bytes: u8, name: &str) -> Result<Fetch, CallError> {
        let fetch = |register, steps, len_bytes, bits| Fetch {
            name: name.to_owned(),
            register,
            steps,
            len_bytes,
            bits,
            kind: ValueKind::Unsigned,
            text: None,
            type_name: String::new(),
        };
        match &spot.at {
            At::Registers(pieces, offset) => {
                let end = offset.saturating_add(u64::from(len_bytes));
                let holds = |piece: &&Piece| {
                    piece.offset <= *offset && end <= piece.offset.saturating_add(piece.len_bytes)
                };
                let piece = pieces.iter().find(holds);
                let piece = piece.ok_or_else(|| self.lost(name, "it is in more than one register"))?;
                let register =
                    piece.register.ok_or_else(|| self.lost(name, "the compiler left out this part of it"))?;
                let first = (offset - piece.offset).saturating_mul(8);
                let (from, width) = match spot.bits {
                    Some(bits) => (first.saturating_add(bits.first), bits.width),
                    None => (first, u64::from(len_bytes) * 8),
                };
                if from == 0 && spot.bits.is_none() {
                    return Ok(fetch(register, Vec::new(), len_bytes, None));
                }
                if width == 0 || from.saturating_add(width) > 64 {
                    return Err(self.lost(name, "its bits are in more than one register"));
                }
                Ok(fetch(register, Vec::new(), 8, Some((from as u8, width as u8))))
            }
            At::Memory(register, steps, offset) => {
                let (mut offset, mut len_bytes, mut bits) = (*offset, len_bytes, None);
                if let Some(field) = spot.bits {
                    // Bits are counted from the record's beginning, which may be far before them.
                    let begin = field.first / 8;
                    let first = field.first % 8;
                    let needed = (first + field.width.min(64)).div_ceil(8).next_power_of_two();
                    if field.width == 0 || field.width > 64 || needed > 8 {
                        return Err(self.lost(name, "its bits do not fit into eight bytes"));
                    }
                    offset = i64::try_from(begin)
                        .ok()
                        .and_then(|more| offset.checked_add(more))
                        .ok_or_else(|| damaged(name))?;
                    len_bytes = needed as u8;
                    bits = Some((first as u8, field.width as u8));
                }
                let mut steps = steps.clone();
                steps.push(far(offset, name)?);
                if steps.len() > MOST_STEPS {
                    return Err(self.lost(name, "it has too many steps"));
                }
                Ok(fetch(*register, steps, len_bytes, bits))
            }
            At::Nothing => Err(self.lost(name, "it has no bytes")),
        }
    }

    /// The characters that a place means, if it means any.
    fn text(&self, spot: &Spot, name: &str) -> Result<Option<Fetch>, CallError> {
        let reader = &*self.reader;
        let type_name = || spot.kind.spelled(reader);
        let text = |fetch: Fetch, text: Text| Fetch {
            name: name.to_owned(),
            kind: ValueKind::Pointer,
            text: Some(text),
            type_name: type_name(),
            ..fetch
        };
        match spot.kind.shape(reader) {
            Shape::Pointer | Shape::Reference => {
                let target = spot.kind.target(reader);
                if spot.kind.shape(reader) == Shape::Pointer && is_char(reader, target) {
                    let fetch = self.load(spot, 8, name)?;
                    return Ok(Some(text(fetch, Text { offset: 0, length: None, most: None })));
                }
                // A reference to a string is a string; so is one of Rust, where references are pointers.
                let is_reference = spot.kind.shape(reader) == Shape::Reference
                    || (self.language == Language::Rust
                        && spot
                            .kind
                            .die
                            .and_then(|die| reader.name(die))
                            .is_some_and(|name| name.starts_with(b"&")));
                if is_reference && target.shape(reader) == Shape::Record {
                    let inner = self.text(&self.follow(spot, name)?, name)?;
                    return Ok(inner.map(|inner| Fetch { type_name: type_name(), ..inner }));
                }
                Ok(None)
            }
            Shape::Array => {
                let Some(elements) =
                    spot.kind.elements(reader).filter(|elements| is_char(reader, elements.element))
                else {
                    return Ok(None);
                };
                let At::Memory(register, steps, offset) = &spot.at else { return Ok(None) };
                let most = elements.count.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
                let fetch = Fetch {
                    name: String::new(),
                    register: *register,
                    steps: steps.clone(),
                    len_bytes: 8,
                    bits: None,
                    kind: ValueKind::Pointer,
                    text: None,
                    type_name: String::new(),
                };
                Ok(Some(text(fetch, Text { offset: far(*offset, name)?, length: None, most })))
            }
            Shape::Record => {
                let own = spot.kind.die.and_then(|die| reader.name(die)).unwrap_or_default();
                let (data, length): (&[&str], &[&str]) = match own {
                    b"&str" | b"&mut str" => (&["data_ptr"], &["length"]),
                    b"String" if self.language == Language::Rust => {
                        (&["vec", "buf", "inner", "ptr"], &["vec", "len"])
                    }
                    own if own.starts_with(b"basic_string<char,") => {
                        (&["_M_dataplus", "_M_p"], &["_M_string_length"])
                    }
                    own if own.starts_with(b"basic_string_view<char,") => (&["_M_str"], &["_M_len"]),
                    _ => return Ok(None),
                };
                let (Some(data), Some(length)) =
                    (self.path(spot, name, data)?, self.path(spot, name, length)?)
                else {
                    return Ok(None);
                };
                let fetch = self.load(&data, 8, name)?;
                let length = Box::new(self.load(&length, 8, name)?);
                Ok(Some(text(fetch, Text { offset: 0, length: Some(length), most: None })))
            }
            _ => Ok(None),
        }
    }

    /// Fields one inside the other.
    fn path(&self, spot: &Spot, of: &str, names: &[&str]) -> Result<Option<Spot>, CallError> {
        let mut spot = spot.clone();
        for name in names {
            match self.field_of(&spot, of, name)? {
                Some(next) => spot = next,
                None => return Ok(None),
            }
        }
        Ok(Some(spot))
    }
}

/// Whether a type is what texts are made of. `unsigned char` and `u8` are more often numbers.
fn is_char(reader: &Reader<'_>, kind: Type) -> bool {
    kind.shape(reader) == Shape::Base
        && kind.die.and_then(|die| reader.name(die)).is_some_and(|name| matches!(name, b"char" | b"char8_t"))
}

fn far(offset: i64, of: &str) -> Result<i32, CallError> {
    i32::try_from(offset).map_err(|_| damaged(of))
}

fn damaged(of: &str) -> CallError {
    CallError::Damaged { of: of.to_owned(), why: "an offset is larger than any value" }
}
