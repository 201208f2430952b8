//! Where the code of an entry is.
use gimli::{AttributeValue, UnitRef};

use super::sections::Reader;

/// The attributes of an entry that say where its code is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ranges {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    list: Option<gimli::RangeListsOffset<usize>>,
}

impl Ranges {
    /// Takes over an attribute, if it is one of them.
    pub(super) fn add(
        &mut self,
        unit: UnitRef<'_, Reader>,
        attribute: &gimli::Attribute<Reader>,
    ) -> gimli::Result<()> {
        let address = |value: AttributeValue<Reader>| match value {
            AttributeValue::Addr(address) => Ok(Some(address)),
            AttributeValue::DebugAddrIndex(index) => unit.address(index).map(Some),
            _ => Ok(None),
        };
        match attribute.name() {
            gimli::DW_AT_low_pc => self.low = address(attribute.value())?.or(self.low),
            gimli::DW_AT_high_pc => match attribute.value() {
                AttributeValue::Udata(size) => self.size = Some(size),
                value => self.high = address(value)?.or(self.high),
            },
            gimli::DW_AT_ranges => self.list = unit.attr_ranges_offset(attribute.value())?,
            _ => {}
        }
        Ok(())
    }

    /// Calls `each` with the ranges that are not empty.
    pub(super) fn each(
        &self,
        unit: UnitRef<'_, Reader>,
        mut each: impl FnMut(gimli::Range),
    ) -> gimli::Result<()> {
        let mut add = |begin: u64, end: u64| {
            if begin < end {
                each(gimli::Range { begin, end });
            }
        };
        if let Some(list) = self.list {
            let mut ranges = unit.ranges(list)?;
            while let Some(range) = ranges.next()? {
                add(range.begin, range.end);
            }
        } else if let (Some(begin), Some(end)) = (self.low, self.high) {
            add(begin, end);
        } else if let (Some(begin), Some(size)) = (self.low, self.size) {
            // The address of code that the linker left out overflows, and is passed over.
            add(begin, begin.wrapping_add(size));
        }
        Ok(())
    }
}
