//! Where parameters are at a function's first instruction, and its result at the return.

use gimli::{AttributeValue, Operation};
use thiserror::Error;

use super::super::debug::{Die, Reader, Slice};
use super::super::types::Type;
use super::classes::{self, Passing, Supply};
use super::register::{FIRST_ON_STACK, Home, Piece, Register};
use super::signature::{Declared, Language};

/// Operations of one location that are looked at.
const MOST_OPERATIONS: usize = 32;
/// Entries of one location list that are looked at.
const MOST_LOCATIONS: usize = 1 << 12;
/// Why it is not known where a value is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Lost {
    #[error("the compiler made it the constant {0}")]
    Constant(i64),
    #[error("the compiler left it out of {0}")]
    LeftOut(String),
    #[error(
        "the compiler made {0} of the function, and the debug information does not say where the parameter is in it"
    )]
    Changed(String),
    #[error("the debug information places it where it cannot be read at the entry")]
    Odd,
    #[error("{0}")]
    Convention(&'static str),
    #[error("it stands behind `{0}`, of which it is not known how it is passed")]
    Behind(String),
}

/// A function, as far as its parameters depend on it.
pub(super) struct Called<'a> {
    pub(super) die: Die,
    pub(super) svma: u64,
    pub(super) symbol: &'a str,
    pub(super) language: Language,
    pub(super) returned: Type,
}

impl Called<'_> {
    /// Whether the compiler has made another function of it than the source has.
    fn is_changed(&self, reader: &Reader<'_>) -> bool {
        let suffixes = [".isra.", ".constprop.", ".part.", ".cold", ".llvm.", ".argelim", ".argprom"];
        let told = reader.attr(self.die, gimli::DW_AT_calling_convention).map(|(_, value)| value);
        suffixes.iter().any(|suffix| self.symbol.contains(suffix))
            || matches!(told, Some(AttributeValue::CallingConvention(gimli::DW_CC_nocall)))
    }
}

/// What the debug information says of a parameter at the entry.
enum Location {
    Home(Home),
    /// Something that cannot be read then.
    Lost(Lost),
    /// Nothing that holds at the first instruction. Whether it shows that the value is passed by its address.
    Nothing {
        by_address: bool,
    },
}

impl Location {
    const NOTHING: Location = Location::Nothing { by_address: false };
}

/// Where each parameter is; and those that the convention would place elsewhere than the debug information does.
pub(super) fn homes(
    reader: &Reader<'_>,
    called: &Called<'_>,
    parameters: &[Declared],
) -> (Vec<Result<Home, Lost>>, Vec<String>) {
    let is_changed = called.is_changed(reader);
    let mut supply = Supply::new();
    // From here on nothing is known of the convention.
    let mut broken: Option<Lost> = match called.language {
        Language::Other => {
            Some(Lost::Convention("the calling convention of its language is not known to kymo"))
        }
        _ => None,
    };
    if broken.is_none() {
        match classes::of_result(reader, called.returned, called.language) {
            Ok(Passing::Memory { .. } | Passing::Address) => supply.take_hidden(),
            Ok(_) => {}
            Err(why) => broken = Some(Lost::Convention(why)),
        }
    }
    let (mut found, mut odd) = (Vec::with_capacity(parameters.len()), Vec::new());
    for parameter in parameters {
        let told = parameter.die.map_or(Location::NOTHING, |die| told(reader, called, die));
        let by_address = match &told {
            Location::Nothing { by_address } => *by_address,
            Location::Home(Home::Memory(register, 0)) => *register != Register::STACK,
            Location::Home(_) | Location::Lost(_) => false,
        };
        let has_place = parameter.die.is_some_and(|die| reader.attr(die, gimli::DW_AT_location).is_some());
        let convention = match &broken {
            Some(lost) => Err(lost.clone()),
            None => {
                let passing = match by_address {
                    true => Ok(Passing::Address),
                    false => classes::of_parameter(reader, parameter.kind, called.language, has_place),
                };
                passing.map(|passing| supply.give(&passing)).map_err(Lost::Convention)
            }
        };
        if convention.is_err() && broken.is_none() {
            broken = Some(Lost::Behind(parameter.name.clone()));
        }
        found.push(match told {
            Location::Home(home) => {
                // Lengths of pieces may differ, and what has no bytes may be anywhere.
                if let Ok(other) = &convention
                    && *other != Home::Nothing
                    && !is_changed
                    && other.to_string() != home.to_string()
                {
                    odd.push(format!("{}: {home}, by convention {other}", parameter.name));
                }
                Ok(home)
            }
            Location::Lost(lost) => Err(lost),
            Location::Nothing { .. } if is_changed => Err(match has_place {
                true => Lost::Changed(called.symbol.to_owned()),
                false => Lost::LeftOut(called.symbol.to_owned()),
            }),
            Location::Nothing { .. } => convention,
        });
    }
    (found, odd)
}

/// Where the result is, at the return.
pub(super) fn of_result(reader: &Reader<'_>, called: Type, language: Language) -> Result<Home, Lost> {
    if language == Language::Other {
        return Err(Lost::Convention("the calling convention of its language is not known to kymo"));
    }
    let passing = classes::of_result(reader, called, language).map_err(Lost::Convention)?;
    Ok(classes::result(&passing))
}

/// What the debug information says of a parameter at the first instruction.
fn told(reader: &Reader<'_>, called: &Called<'_>, die: Die) -> Location {
    let Ok(unit) = reader.unit(die.unit) else { return Location::NOTHING };
    let Some((_, value)) = reader.attr(die, gimli::DW_AT_location) else {
        return match reader.attr(die, gimli::DW_AT_const_value) {
            Some((_, value)) => {
                let number = value.sdata_value().or_else(|| value.udata_value().map(|value| value as i64));
                Location::Lost(number.map_or(Lost::Odd, Lost::Constant))
            }
            None => Location::NOTHING,
        };
    };
    if let AttributeValue::Exprloc(expression) = value {
        return read(reader, called, &unit, expression, false);
    }
    let Ok(Some(mut list)) = reader.dwarf.attr_locations(&unit, value) else { return Location::NOTHING };
    for _ in 0..MOST_LOCATIONS {
        match list.next() {
            Ok(Some(entry)) if entry.range.begin <= called.svma && called.svma < entry.range.end => {
                return read(reader, called, &unit, entry.data, true);
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    Location::NOTHING
}

/// Where one piece is, on the way through a location.
enum At {
    Register(Register),
    Memory(Register, i64),
    Constant(i64),
}

/// Takes a location apart. `exact`: it was made for the first instruction; else for the whole function, whose prologue may have to run first.
fn read(
    reader: &Reader<'_>,
    called: &Called<'_>,
    unit: &gimli::Unit<Slice<'_>>,
    expression: gimli::Expression<Slice<'_>>,
    exact: bool,
) -> Location {
    let odd = || if exact { Location::Lost(Lost::Odd) } else { Location::NOTHING };
    let is_cfa = frame_is_cfa(reader, called.die);
    let mut operations = expression.operations(unit.encoding());
    let mut at: Option<At> = None;
    let (mut pieces, mut offset): (Vec<Piece>, u64) = (Vec::new(), 0);
    for _ in 0..MOST_OPERATIONS {
        let operation = match operations.next() {
            Ok(Some(operation)) => operation,
            Ok(None) => break,
            Err(_) => return odd(),
        };
        at = match (operation, at) {
            (Operation::Register { register }, None) => match Register::of_dwarf(register.0) {
                Some(register) => Some(At::Register(register)),
                None => return odd(),
            },
            (Operation::EntryValue { expression }, None) => {
                let mut inner = gimli::Expression(expression).operations(unit.encoding());
                match (inner.next(), inner.next()) {
                    (Ok(Some(Operation::Register { register })), Ok(None)) => {
                        Register::of_dwarf(register.0).map(At::Register)
                    }
                    _ => return odd(),
                }
            }
            (Operation::FrameOffset { offset }, None) if is_cfa => {
                Some(At::Memory(Register::STACK, offset.saturating_add(FIRST_ON_STACK)))
            }
            (Operation::CallFrameCFA, None) => Some(At::Memory(Register::STACK, FIRST_ON_STACK)),
            (Operation::PlusConstant { value }, Some(At::Memory(register, offset))) => {
                Some(At::Memory(register, offset.wrapping_add(value as i64)))
            }
            (Operation::RegisterOffset { register, offset, .. }, None) => {
                match Register::of_dwarf(register.0) {
                    Some(register) => Some(At::Memory(register, offset)),
                    None => return odd(),
                }
            }
            (Operation::FrameOffset { .. }, None) => return frame_local(&mut operations),
            (Operation::Deref { .. }, Some(At::Memory(register, _))) => {
                let by_address = !exact && (register == Register::STACK || register == Register::FRAME);
                return if by_address { Location::Nothing { by_address } } else { odd() };
            }
            (Operation::UnsignedConstant { value }, None) => Some(At::Constant(value as i64)),
            (Operation::SignedConstant { value }, None) => Some(At::Constant(value)),
            // The register's content is the value, as it is for a plain register.
            (Operation::StackValue, Some(At::Memory(register, 0))) => Some(At::Register(register)),
            (Operation::StackValue, Some(At::Register(register))) => Some(At::Register(register)),
            (Operation::StackValue, Some(At::Constant(number))) => {
                return Location::Lost(Lost::Constant(number));
            }
            (Operation::Piece { size_in_bits, bit_offset: None }, known) => {
                let register = match known {
                    Some(At::Register(register)) => Some(register),
                    None => None,
                    Some(At::Memory(..) | At::Constant(_)) => return odd(),
                };
                let len_bytes = size_in_bits / 8;
                pieces.push(Piece { offset, len_bytes, register });
                offset = offset.saturating_add(len_bytes);
                None
            }
            _ => return odd(),
        };
    }
    if !pieces.is_empty() {
        return Location::Home(Home::Registers(pieces));
    }
    match at {
        // Of the whole function it can only be told where it is kept behind the prologue.
        Some(At::Register(register)) if !exact && register.is_kept() => Location::NOTHING,
        Some(At::Memory(register, 0)) if !exact && register.is_kept() && register != Register::FRAME => {
            Location::Nothing { by_address: true }
        }
        Some(At::Memory(register, _)) if !exact && register.is_kept() => odd(),
        Some(At::Register(register)) => Location::Home(Home::whole(register, register.len_bytes())),
        // Below the return address there is nothing yet, and the frame pointer is the caller's.
        Some(At::Memory(Register::STACK, offset)) if offset < FIRST_ON_STACK => odd(),
        // Relative to a stack pointer that the prologue has moved, unless it was told as of the canonical frame.
        Some(At::Memory(Register::STACK, _)) if !exact && !is_cfa => odd(),
        Some(At::Memory(register, offset)) => Location::Home(Home::Memory(register, offset)),
        Some(At::Constant(_)) => odd(),
        // An empty location: the compiler left it out.
        None if exact => Location::Lost(Lost::LeftOut(called.symbol.to_owned())),
        None => Location::NOTHING,
    }
}

/// A place in a frame that does not exist yet; whether there is the value or its address.
fn frame_local(operations: &mut gimli::OperationIter<Slice<'_>>) -> Location {
    let by_address = matches!(operations.next(), Ok(Some(Operation::Deref { .. })));
    Location::Nothing { by_address }
}

/// Whether offsets in the frame are counted from where the stack was before the call, which is known at the entry.
fn frame_is_cfa(reader: &Reader<'_>, die: Die) -> bool {
    let Some((at, AttributeValue::Exprloc(expression))) = reader.attr(die, gimli::DW_AT_frame_base) else {
        return false;
    };
    let Ok(unit) = reader.unit(at.unit) else { return false };
    let mut operations = expression.operations(unit.encoding());
    matches!((operations.next(), operations.next()), (Ok(Some(Operation::CallFrameCFA)), Ok(None)))
}
