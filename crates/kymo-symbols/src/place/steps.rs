//! Steps of an expression: to a field, to an element, to where a pointer points.

use std::rc::Rc;

use gimli::{EvaluationResult, Value};

use super::debug::{Die, Reader, number};
use super::error::ResolveError;
use super::field::{self, Step};
use super::near;
use super::resolve::{Resolver, Spot};
use super::types::{Shape, Type};

/// Pointers that are followed to get to one field.
const MOST_FOLLOWED: usize = 8;
/// Operations of an expression that computes where a field is.
const MOST_OPERATIONS: u32 = 256;

impl<'t> Resolver<'t, '_> {
    /// The field `name` of the place `of`.
    pub(super) fn field(
        &mut self,
        mut spot: Spot<'t>,
        of: &str,
        name: &str,
        mut arrow: bool,
    ) -> Result<Spot<'t>, ResolveError> {
        let wanted = format!("{}{name}", if arrow { "->" } else { "." });
        let mut shown = of.to_owned();
        for _ in 0..=MOST_FOLLOWED {
            let Some((reader, kind)) = spot.typed.clone() else {
                return Err(self.untyped(&spot, of, &wanted));
            };
            let shape = kind.shape(&reader);
            if shape == Shape::Reference || shape == Shape::Pointer {
                arrow &= shape == Shape::Reference;
                let through = format!("*{shown}");
                spot = self.follow(&spot, &shown, &through)?;
                shown = through;
                continue;
            }
            if shape == Shape::Array && arrow {
                spot = self.index(spot, &shown, 0)?;
                (shown, arrow) = (format!("{shown}[0]"), false);
                continue;
            }
            let (Shape::Record, Some(record)) = (shape, kind.die) else {
                return Err(wrong_type(of, &reader, kind, &wanted, "which has no fields"));
            };
            // A smart pointer is a record whose whole content is a pointer.
            let is_pointer = kind.core(&reader).shape(&reader) == Shape::Pointer;
            let content = self.counted(&spot)?;
            if let Some(content) = &content
                && let Some((reader, Type { die: Some(record), .. })) = &content.typed
                && let Some(found) = self.field_of(content, reader, *record, &shown, name)?
            {
                return Ok(found);
            }
            if !arrow && let Some(found) = self.field_of(&spot, &reader, record, &shown, name)? {
                return Ok(found);
            }
            if is_pointer {
                let through = format!("*{shown}");
                spot = self.follow(&spot, &shown, &through)?;
                (shown, arrow) = (through, false);
                continue;
            }
            if let Some(content) = content {
                spot = content;
                continue;
            }
            if arrow {
                let why = format!("not a pointer; write {of}.{name}");
                return Err(wrong_type(of, &reader, kind, &wanted, &why));
            }
            let names = field::names(&reader, record);
            let mut near = near::nearest(name, names.iter().map(String::as_str));
            if near.is_empty() {
                near = names.into_iter().take(near::MOST_NEAR).collect();
            }
            return Err(ResolveError::NoField {
                of: shown,
                type_name: kind.spelled(&reader),
                field: name.to_owned(),
                near,
            });
        }
        Err(damaged(&spot, of, "pointers point at pointers without end"))
    }

    /// The content of what Rust's `Arc` and `Rc` point at, which has the counts before it.
    pub(super) fn counted(&mut self, spot: &Spot<'t>) -> Result<Option<Spot<'t>>, ResolveError> {
        let Some((reader, Type { die: Some(record), .. })) = spot.typed.clone() else { return Ok(None) };
        let name = reader.name(record).unwrap_or_default();
        let field = match name {
            name if name.starts_with(b"ArcInner<") => "data",
            name if name.starts_with(b"RcInner<") || name.starts_with(b"RcBox<") => "value",
            _ => return Ok(None),
        };
        self.field_of(spot, &reader, record, field, field)
    }

    fn field_of(
        &mut self,
        spot: &Spot<'t>,
        reader: &Rc<Reader<'t>>,
        record: Die,
        of: &str,
        name: &str,
    ) -> Result<Option<Spot<'t>>, ResolveError> {
        let mut failed = None;
        let found = {
            let this = &*self;
            let mut current = |steps: &[Step<'t>], part: Die| match this.walk(spot, reader, steps, of) {
                Ok(avma) => this.variant_now(avma, reader, part),
                Err(error) => {
                    failed = Some(error);
                    None
                }
            };
            field::find(reader, record, name, &mut current)
        };
        let Some(found) = found else { return failed.map_or(Ok(None), Err) };
        let avma = self.walk(spot, reader, &found.steps, of)?;
        for variant in &found.variants {
            let start = self.walk(spot, reader, &found.steps[..variant.steps_before], of)?;
            let now = self.variant_now(start, reader, variant.part);
            let members = field::variants_of(reader, variant.part);
            let now = members.iter().find(|(die, ..)| Some(*die) == now);
            let now = now.map(|(_, _, name)| String::from_utf8_lossy(name).into_owned());
            match now {
                Some(now) if variant.was_named && now != variant.name => {
                    self.warnings.push(format!("{of} is {now} now, not {}", variant.name));
                }
                _ if !variant.was_named => self.warnings.push(format!(
                    "{of} is {0} now; the watch is on the field of {0} whatever it becomes",
                    variant.name
                )),
                _ => {}
            }
        }
        Ok(Some(Spot {
            typed: Some((Rc::clone(reader), found.kind)),
            bits: found.bits,
            ..Spot::bare(avma, spot.module)
        }))
    }

    /// Where steps from a record lead.
    fn walk(
        &self,
        spot: &Spot<'t>,
        reader: &Reader<'t>,
        steps: &[Step<'t>],
        of: &str,
    ) -> Result<u64, ResolveError> {
        let mut avma = spot.avma;
        for step in steps {
            avma = match *step {
                Step::Bytes(bytes) => avma.wrapping_add(bytes),
                Step::Computed(unit, expression) => self
                    .computed(spot, reader, unit, expression, avma, of)?
                    .ok_or_else(|| damaged(spot, of, "the place of a field cannot be computed"))?,
            };
        }
        Ok(avma)
    }

    fn computed(
        &self,
        spot: &Spot<'t>,
        reader: &Reader<'t>,
        unit: u32,
        expression: gimli::Expression<super::debug::Slice<'t>>,
        avma: u64,
        of: &str,
    ) -> Result<Option<u64>, ResolveError> {
        let Ok(unit) = reader.unit(unit) else { return Ok(None) };
        let mut evaluation = expression.evaluation(unit.encoding());
        evaluation.set_initial_value(avma);
        evaluation.set_object_address(avma);
        evaluation.set_max_iterations(MOST_OPERATIONS);
        let mut state = evaluation.evaluate();
        for _ in 0..MOST_OPERATIONS {
            state = match state {
                Ok(EvaluationResult::Complete) => {
                    return Ok(match evaluation.as_result() {
                        [gimli::Piece { location: gimli::Location::Address { address }, .. }] => {
                            Some(*address)
                        }
                        _ => None,
                    });
                }
                Ok(EvaluationResult::RequiresMemory { address, size, .. }) => {
                    let word = self.read(address, usize::from(size).clamp(1, 8), of)?;
                    evaluation.resume_with_memory(Value::Generic(word))
                }
                Ok(EvaluationResult::RequiresRelocatedAddress(svma)) => {
                    let bias = spot.module.map_or(0, |module| module.bias);
                    evaluation.resume_with_relocated_address(svma.wrapping_add(bias))
                }
                _ => return Ok(None),
            };
        }
        Ok(None)
    }

    /// The variant whose number the memory holds.
    fn variant_now(&self, avma: u64, reader: &Reader<'t>, part: Die) -> Option<Die> {
        let entry = reader.entry(part).ok()?;
        let member = reader.link(part.unit, &entry, gimli::DW_AT_discr)?;
        let offset = number(&reader.entry(member).ok()?, gimli::DW_AT_data_member_location);
        let size = Type::of(reader, member).size(reader).filter(|size| (1..=8).contains(size))?;
        let mask = u64::MAX >> (64 - size * 8);
        let number = self.read(avma.wrapping_add(offset.unwrap_or(0)), size as usize, "").ok()?;
        let (mut exact, mut otherwise) = (None, None);
        let told = reader.children(part, |child, entry| {
            if entry.tag() == gimli::DW_TAG_variant {
                let value = entry.attr_value(gimli::DW_AT_discr_value);
                let value = value.and_then(|value| {
                    value.udata_value().or_else(|| value.sdata_value().map(|value| value as u64))
                });
                match value {
                    Some(value) if value & mask == number => exact = Some(child),
                    Some(_) => {}
                    None => otherwise = Some(child),
                }
            }
            exact.is_none()
        });
        told.ok()?;
        exact.or(otherwise)
    }

    /// Where the pointer at a place points; `through` is how that is written.
    pub(super) fn follow(
        &mut self,
        spot: &Spot<'t>,
        of: &str,
        through: &str,
    ) -> Result<Spot<'t>, ResolveError> {
        let Some((reader, kind)) = spot.typed.clone() else {
            let avma = self.pointer(spot.avma, 8, of)?;
            return Ok(Spot::bare(avma, None));
        };
        let pointer = match kind.shape(&reader) {
            Shape::Pointer | Shape::Reference => kind,
            // The name of an array means its first element.
            Shape::Array => return self.index(spot.clone(), of, 0),
            Shape::Record => kind.core(&reader),
            _ => kind,
        };
        if !matches!(pointer.shape(&reader), Shape::Pointer | Shape::Reference) {
            return Err(wrong_type(of, &reader, kind, through, "which is no pointer; leave the * out"));
        }
        let size = pointer.size(&reader).filter(|size| matches!(size, 4 | 8)).unwrap_or(8);
        let avma = self.pointer(spot.avma, size as usize, of)?;
        let target = pointer.target(&reader);
        let typed = target.die.is_some().then_some((reader, target));
        Ok(Spot { typed, ..Spot::bare(avma, None) })
    }

    fn pointer(&mut self, avma: u64, size: usize, of: &str) -> Result<u64, ResolveError> {
        let pointer = self.read(avma, size, of)?;
        if pointer == 0 {
            return Err(ResolveError::NullPointer { of: of.to_owned() });
        }
        self.followed = true;
        Ok(pointer)
    }

    /// A number of up to 8 bytes in the target's memory.
    fn read(&self, avma: u64, size: usize, of: &str) -> Result<u64, ResolveError> {
        let mut word = [0u8; 8];
        (self.target.memory)(avma, &mut word[..size]).map_err(|source| ResolveError::Memory {
            of: of.to_owned(),
            avma,
            len_bytes: size as u64,
            source,
        })?;
        Ok(u64::from_le_bytes(word))
    }

    /// The element `index` of the place `of`.
    pub(super) fn index(&mut self, spot: Spot<'t>, of: &str, index: i64) -> Result<Spot<'t>, ResolveError> {
        let wanted = format!("[{index}]");
        let Some((reader, kind)) = spot.typed.clone() else {
            return Err(self.untyped(&spot, of, &wanted));
        };
        match kind.shape(&reader) {
            Shape::Reference => {
                let target = self.follow(&spot, of, of)?;
                if target.typed.as_ref().is_some_and(|(reader, kind)| kind.shape(reader) == Shape::Reference)
                {
                    return Err(damaged(&spot, of, "a reference refers to a reference"));
                }
                self.index(target, of, index)
            }
            Shape::Array => {
                let elements = kind
                    .elements(&reader)
                    .ok_or_else(|| damaged(&spot, of, "the size of an element is not told"))?;
                match elements.count {
                    Some(count) => in_range(of, index, count)?,
                    None if index < 0 => {
                        return Err(ResolveError::OutOfRange { of: of.to_owned(), index, count: 0 });
                    }
                    None => {
                        self.warnings.push(format!("the type of {of} does not say how many elements it has"))
                    }
                }
                Ok(element(&spot, &reader, spot.avma, elements.element, elements.stride, index))
            }
            Shape::Pointer => {
                let start = self.follow(&spot, of, &format!("*{of}"))?;
                self.element_at(&start, &reader, kind, of, index, &wanted)
            }
            Shape::Record => self.index_of_record(&spot, &reader, kind, of, index, &wanted),
            _ => Err(wrong_type(of, &reader, kind, &wanted, "which has no elements")),
        }
    }

    /// The element of a run that starts where a pointer of type `pointer` pointed.
    fn element_at(
        &mut self,
        start: &Spot<'t>,
        reader: &Rc<Reader<'t>>,
        pointer: Type,
        of: &str,
        index: i64,
        wanted: &str,
    ) -> Result<Spot<'t>, ResolveError> {
        let target = pointer.target(reader);
        let Some(stride) = target.size(reader).filter(|size| *size > 0) else {
            return Err(wrong_type(of, reader, pointer, wanted, "and what it points at has no known size"));
        };
        Ok(element(start, reader, start.avma, target, stride, index))
    }

    /// Elements of the containers of the standard libraries: slices, `Vec`, `std::vector`, `std::array`.
    fn index_of_record(
        &mut self,
        spot: &Spot<'t>,
        reader: &Rc<Reader<'t>>,
        kind: Type,
        of: &str,
        index: i64,
        wanted: &str,
    ) -> Result<Spot<'t>, ResolveError> {
        let Some(record) = kind.die else { return Err(self.untyped(spot, of, wanted)) };
        // std::array.
        if let Some(elements) = self.field_of(spot, reader, record, of, "_M_elems")? {
            return self.index(elements, of, index);
        }
        let type_of = |spot: &Spot<'t>| spot.typed.as_ref().map_or(Type::VOID, |(_, kind)| *kind);
        // A slice or a boxed one.
        if let (Some(data), Some(length)) = (
            self.field_of(spot, reader, record, of, "data_ptr")?,
            self.field_of(spot, reader, record, of, "length")?,
        ) {
            in_range(of, index, self.read(length.avma, 8, of)?)?;
            let start = self.follow(&data, of, of)?;
            return self.element_at(&start, reader, type_of(&data), of, index, wanted);
        }
        // std::vector.
        if let Some(inner) = self.field_of(spot, reader, record, of, "_M_impl")?
            && let Some(die) = type_of(&inner).die
            && let (Some(first), Some(end)) = (
                self.field_of(&inner, reader, die, of, "_M_start")?,
                self.field_of(&inner, reader, die, of, "_M_finish")?,
            )
        {
            let bytes = self.read(end.avma, 8, of)?.wrapping_sub(self.read(first.avma, 8, of)?);
            let size = type_of(&first).target(reader).size(reader).unwrap_or(0).max(1);
            in_range(of, index, bytes / size)?;
            let start = self.follow(&first, of, of)?;
            return self.element_at(&start, reader, type_of(&first), of, index, wanted);
        }
        // Vec: its pointer is to bytes, the type of elements is its parameter.
        if reader.name(record).is_some_and(|name| name.starts_with(b"Vec<"))
            && let Some(length) = self.field_of(spot, reader, record, of, "len")?
            && let Some(buffer) = self.field_of(spot, reader, record, of, "buf")?
            && let Some(element_type) = parameter(reader, record, b"T")
            && let Some(stride) = element_type.size(reader).filter(|size| *size > 0)
        {
            let mut pointer = buffer;
            for name in ["inner", "ptr"] {
                if let Some(die) = type_of(&pointer).die
                    && let Some(next) = self.field_of(&pointer, reader, die, of, name)?
                {
                    pointer = next;
                }
            }
            in_range(of, index, self.read(length.avma, 8, of)?)?;
            let start = self.follow(&pointer, of, of)?;
            return Ok(element(&start, reader, start.avma, element_type, stride, index));
        }
        let core = kind.core(reader);
        if core.shape(reader) == Shape::Pointer {
            let start = self.follow(spot, of, &format!("*{of}"))?;
            return self.element_at(&start, reader, core, of, index, wanted);
        }
        Err(wrong_type(
            of,
            reader,
            kind,
            wanted,
            "which has no elements that kymo knows; name the fields that lead to them",
        ))
    }

    fn untyped(&self, spot: &Spot<'t>, of: &str, wanted: &str) -> ResolveError {
        let (name, wanted) = (of.to_owned(), wanted.to_owned());
        let Some(module) = spot.module else {
            return ResolveError::WrongType {
                of: name,
                type_name: "not known".to_owned(),
                wanted,
                why: "since it is only an address; write ADDRESS+OFFSET:LENGTH".to_owned(),
            };
        };
        if let Some(why) = spot.why_untyped {
            return ResolveError::NoPlace { name: format!("{name}{wanted}"), why: why.to_owned() };
        }
        let split = module.file.debug_info(false).is_some_and(|info| info.reader().is_split());
        let module = module.file.short_name();
        if split {
            ResolveError::SplitDwarf { name, wanted, module }
        } else {
            ResolveError::NoDwarf { name, wanted, module }
        }
    }
}

fn element<'t>(
    spot: &Spot<'t>,
    reader: &Rc<Reader<'t>>,
    start: u64,
    kind: Type,
    stride: u64,
    index: i64,
) -> Spot<'t> {
    let avma = start.wrapping_add((index as u64).wrapping_mul(stride));
    Spot { typed: Some((Rc::clone(reader), kind)), ..Spot::bare(avma, spot.module) }
}

fn in_range(of: &str, index: i64, count: u64) -> Result<(), ResolveError> {
    match u64::try_from(index) {
        Ok(at) if at < count => Ok(()),
        _ => Err(ResolveError::OutOfRange { of: of.to_owned(), index, count }),
    }
}

/// The type that a generic parameter of a record stands for.
fn parameter(reader: &Reader<'_>, record: Die, name: &[u8]) -> Option<Type> {
    let mut found = None;
    reader
        .children(record, |child, entry| {
            if entry.tag() == gimli::DW_TAG_template_type_parameter
                && reader.text(child.unit, entry, gimli::DW_AT_name) == Some(name)
            {
                found = Some(Type::of(reader, child));
            }
            found.is_none()
        })
        .ok()?;
    found
}

fn wrong_type(of: &str, reader: &Reader<'_>, kind: Type, wanted: &str, why: &str) -> ResolveError {
    let (of, wanted) = (of.to_owned(), wanted.to_owned());
    ResolveError::WrongType { of, type_name: kind.spelled(reader), wanted, why: why.to_owned() }
}

fn damaged(spot: &Spot<'_>, of: &str, why: &str) -> ResolveError {
    let module = spot.module.map_or_else(|| "the target".to_owned(), |module| module.file.short_name());
    ResolveError::Damaged { module, of: of.to_owned(), why: why.to_owned() }
}
