//! What is to be watched: the answer to a request.

use std::path::PathBuf;

use super::request::Access;
use super::value::ValueKind;

/// Where a place lies in a symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SymbolAt {
    /// The symbol's name, readable.
    pub name: String,
    /// How far behind its start, in bytes.
    pub offset: u64,
}

impl std::fmt::Display for SymbolAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.offset {
            0 => f.write_str(&self.name),
            offset => write!(f, "{}+{offset:#x}", self.name),
        }
    }
}

/// A place to watch, found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The address in the process.
    pub avma: u64,
    /// How many bytes, at least 1. 1, 2, 4 or 8 where the request gave a length; the size of the variable where it did
    /// not, which may be anything: see [`pieces`](Watch::pieces). 8 for [`Access::Execute`], as the kernel wants it.
    pub len_bytes: u64,
    /// Which accesses stop.
    pub access: Access,
    /// The expression as it was written, without length and access.
    pub expression: String,
    /// The file of the module that the place was found in.
    pub module: Option<PathBuf>,
    /// The symbol that covers the address, if any.
    pub symbol: Option<SymbolAt>,
    /// The type as the program spells it, where debug information tells.
    pub type_name: Option<String>,
    /// How to print the bytes.
    pub value: ValueKind,
    /// What the user should know, a sentence each.
    pub warnings: Vec<String>,
}

impl Watch {
    /// The bytes as ranges that debug registers can hold: 1, 2, 4 or 8 bytes, each aligned to its length, in order and
    /// without a gap or an overlap. As few as there can be; they cover exactly what was asked for.
    ///
    /// At most `most` of them; a second value of true says that there would be more.
    pub fn pieces(&self, most: usize) -> (Vec<(u64, u8)>, bool) {
        if self.access == Access::Execute {
            return (vec![(self.avma, 8)], false);
        }
        let (mut at, mut left) = (self.avma, self.len_bytes);
        let mut pieces = Vec::new();
        while left > 0 {
            if pieces.len() == most {
                return (pieces, true);
            }
            let fits = |len: &u64| at.is_multiple_of(*len) && *len <= left;
            let len = [8u64, 4, 2].into_iter().find(fits).unwrap_or(1);
            pieces.push((at, len as u8));
            at = at.wrapping_add(len);
            left -= len;
        }
        (pieces, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn watch(avma: u64, len_bytes: u64) -> Watch {
        Watch {
            avma,
            len_bytes,
            access: Access::Write,
            expression: "a".to_owned(),
            module: None,
            symbol: None,
            type_name: None,
            value: ValueKind::Bytes,
            warnings: Vec::new(),
        }
    }

    proptest! {
        /// Checks that the pieces cover exactly the bytes asked for, each aligned.
        #[test]
        fn pieces_cover_the_place_and_nothing_else(avma in 0u64..1 << 20, len in 1u64..200) {
            let (pieces, more) = watch(avma, len).pieces(1000);
            prop_assert!(!more);
            let mut at = avma;
            for (start, len) in pieces {
                prop_assert_eq!(start, at);
                prop_assert!(matches!(len, 1 | 2 | 4 | 8) && start % u64::from(len) == 0);
                at += u64::from(len);
            }
            prop_assert_eq!(at, avma + len);
        }
    }

    /// Checks that a huge object ends at the number of pieces asked for.
    #[test]
    fn pieces_are_bounded() {
        let (pieces, more) = watch(8, u64::MAX - 16).pieces(4);
        assert_eq!((pieces, more), (vec![(8, 8), (16, 8), (24, 8), (32, 8)], true));
    }
}
