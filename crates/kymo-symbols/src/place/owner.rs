//! From an address of data back to the variable that it lies in, and the field of it.

use gimli::{AttributeValue, DwTag};

use super::debug::{Die, Reader, is_static, shown};
use super::module::ModuleFile;
use super::types::{Shape, Type};
use super::variable::{self, Location};

/// Records and arrays inside each other that are looked into.
const DEEPEST: usize = 16;
/// Members of one record that are looked at.
const MOST_MEMBERS: usize = 1 << 12;

/// The place of an address in a module's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataAt {
    /// The variable, with the fields and elements that the debug information has: `table.locks[3]`.
    pub name: String,
    /// How many bytes behind its start the address is.
    pub offset: u64,
}

impl std::fmt::Display for DataAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.offset {
            0 => f.write_str(&self.name),
            offset => write!(f, "{}+{offset:#x}", self.name),
        }
    }
}

/// The variable of a module that covers an address (as linked). Fields are named as far as
/// `is_whole`, asked with the spelling of each type, does not say that what it is in is one thing.
pub fn data_at(module: &ModuleFile, svma: u64, is_whole: &dyn Fn(&str) -> bool) -> Option<DataAt> {
    let (name, offset) = module.symbols().covering(svma)?;
    let path = module.debug_info(false).and_then(|debug| {
        let reader = debug.reader();
        let is_it = |place: &Location| *place == Location::Svma(svma - offset);
        let found = variable::find(&reader, None, &name).into_iter().find(|found| is_it(&found.location))?;
        Some(path(&reader, Type::of(&reader, found.die), offset, is_whole))
    });
    let (fields, offset) = path.unwrap_or((String::new(), offset));
    Some(DataAt { name: name + &fields, offset })
}

/// The fields and elements that lead to an offset, and what is left of it.
fn path(reader: &Reader<'_>, whole: Type, offset: u64, is_whole: &dyn Fn(&str) -> bool) -> (String, u64) {
    let (mut text, mut at, mut left) = (String::new(), whole, offset);
    for _ in 0..DEEPEST {
        if is_whole(&at.spelled(reader)) {
            break;
        }
        match at.shape(reader) {
            Shape::Record => {
                let Some(member) = at.die.and_then(|record| member_at(reader, record, left)) else { break };
                left -= member.offset;
                at = member.kind;
                if let Some(name) = member.name {
                    text.push('.');
                    text.push_str(name.strip_prefix("__").filter(|rest| is_number(rest)).unwrap_or(&name));
                }
            }
            Shape::Array => {
                let Some(elements) = at.elements(reader).filter(|elements| elements.stride > 0) else {
                    break;
                };
                let index = left / elements.stride;
                if elements.count.is_some_and(|count| index >= count) {
                    break;
                }
                left %= elements.stride;
                at = elements.element;
                text.push_str(&format!("[{index}]"));
            }
            _ => break,
        }
    }
    (text, left)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit())
}

struct CoveringField {
    name: Option<String>,
    offset: u64,
    kind: Type,
}

/// The first member of a record that covers an offset; base classes have no names.
fn member_at(reader: &Reader<'_>, record: Die, offset: u64) -> Option<CoveringField> {
    let (mut found, mut left) = (None, MOST_MEMBERS);
    let is_member = |tag: DwTag| tag == gimli::DW_TAG_member || tag == gimli::DW_TAG_inheritance;
    let _ = reader.children(record, |child, entry| {
        left -= 1;
        if is_member(entry.tag()) && !is_static(entry) {
            let start = match entry.attr_value(gimli::DW_AT_data_member_location) {
                None => Some(0),
                Some(AttributeValue::Exprloc(_)) => None,
                Some(value) => value.udata_value(),
            };
            let kind = Type::of(reader, child);
            let size = kind.size(reader).unwrap_or(0);
            if let Some(start) = start.filter(|start| offset >= *start && offset - start < size) {
                let name = reader.text(child.unit, entry, gimli::DW_AT_name).map(shown);
                found = Some(CoveringField { name, offset: start, kind });
            }
        }
        found.is_none() && left > 0
    });
    found
}
