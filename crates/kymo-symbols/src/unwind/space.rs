//! Which module lies where in one process at one moment.

use std::sync::Arc;

use super::module::Module;

/// One executable mapping of a process.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// First address (AVMA).
    pub start: u64,
    /// First address behind it (AVMA).
    pub end: u64,
    /// File offset of the first byte, in bytes.
    pub pgoff: u64,
    /// What is mapped; `None` for memory without a file, such as generated code.
    pub module: Option<Arc<Module>>,
}

impl Mapping {
    /// The offset in the module's file of an address in this mapping.
    #[inline]
    pub(super) fn file_offset(&self, avma: u64) -> u64 {
        self.pgoff.wrapping_add(avma.wrapping_sub(self.start))
    }
}

/// The executable mappings of one process at one moment.
///
/// Cloning costs one reference count, so that every moment of a timeline can keep its own; changing a clone copies
/// the list once. Each address is placed by its own mapping's file offset and the module's program headers, never by
/// the module's first mapping, so layouts with a read-only segment before the code come out right.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    /// Sorted by `start`, not overlapping.
    mappings: Arc<Vec<Mapping>>,
}

impl AddressSpace {
    /// An address space with nothing in it.
    pub fn new() -> AddressSpace {
        AddressSpace::default()
    }

    /// Puts a mapping in; what it covers of older mappings is gone, as in the kernel. An empty range changes nothing.
    pub fn map(&mut self, start: u64, end: u64, pgoff: u64, module: Option<Arc<Module>>) {
        if start >= end {
            return;
        }
        let list = Arc::make_mut(&mut self.mappings);
        // Programs mostly map upwards and rarely over something: the common case is one insertion.
        let at = clear(list, start, end);
        list.insert(at, Mapping { start, end, pgoff, module });
    }

    /// Takes a range of addresses out.
    pub fn unmap(&mut self, start: u64, end: u64) {
        if start < end {
            clear(Arc::make_mut(&mut self.mappings), start, end);
        }
    }

    /// The mapping that holds an address.
    #[inline]
    pub fn find(&self, avma: u64) -> Option<&Mapping> {
        let behind = self.mappings.partition_point(|m| m.start <= avma);
        let mapping = self.mappings.get(behind.checked_sub(1)?)?;
        (avma < mapping.end).then_some(mapping)
    }

    /// All mappings, by address.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }
}

/// Makes a range free and returns where in the list a mapping of that range belongs.
fn clear(list: &mut Vec<Mapping>, start: u64, end: u64) -> usize {
    let first = list.partition_point(|m| m.end <= start);
    let behind = list.partition_point(|m| m.start < end);
    if first >= behind {
        return first;
    }
    let head = list[first].start < start;
    let head = head.then(|| Mapping { end: start, ..list[first].clone() });
    let last = &list[behind - 1];
    let tail = (last.end > end).then(|| Mapping {
        start: end,
        pgoff: last.pgoff.wrapping_add(end - last.start),
        ..last.clone()
    });
    let at = first + usize::from(head.is_some());
    list.splice(first..behind, head.into_iter().chain(tail));
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(space: &AddressSpace) -> Vec<(u64, u64, u64)> {
        space.mappings().iter().map(|m| (m.start, m.end, m.pgoff)).collect()
    }

    /// Checks that a mapping put over others cuts them as the kernel does, and that a clone keeps the old state.
    #[test]
    fn later_mappings_cut_earlier_ones() {
        let mut space = AddressSpace::new();
        space.map(0x1000, 0x5000, 0x100, None);
        space.map(0x8000, 0x9000, 0, None);
        let before = space.clone();
        space.map(0x2000, 0x3000, 0x7000, None);
        assert_eq!(
            ranges(&space),
            [
                (0x1000, 0x2000, 0x100),
                (0x2000, 0x3000, 0x7000),
                (0x3000, 0x5000, 0x2100),
                (0x8000, 0x9000, 0)
            ]
        );
        assert_eq!(ranges(&before), [(0x1000, 0x5000, 0x100), (0x8000, 0x9000, 0)]);
        space.map(0x1800, 0x8800, 1, None);
        assert_eq!(ranges(&space), [(0x1000, 0x1800, 0x100), (0x1800, 0x8800, 1), (0x8800, 0x9000, 0x800)]);
        space.unmap(0, u64::MAX);
        assert!(ranges(&space).is_empty());
    }

    /// Checks that the first and last byte of a mapping are found, and that bytes beside it are not.
    #[test]
    fn edges_of_a_mapping() {
        let mut space = AddressSpace::new();
        space.map(0x1000, 0x2000, 0x3000, None);
        assert_eq!(space.find(0x1000).map(|m| m.file_offset(0x1000)), Some(0x3000));
        assert_eq!(space.find(0x1fff).map(|m| m.file_offset(0x1fff)), Some(0x3fff));
        assert!(space.find(0xfff).is_none() && space.find(0x2000).is_none());
    }
}
