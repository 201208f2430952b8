//! How the bytes of a section of debug information are packed, and how they are unpacked within
//! what a file may cost.
//!
//! | form | the section is marked by | before the packed bytes |
//! |---|---|---|
//! | plain | nothing | nothing |
//! | ELF | the flag `SHF_COMPRESSED` | a `Chdr`: kind (zlib or zstd), length, alignment |
//! | GNU | the name: `.zdebug_info` for `.debug_info` | `ZLIB`, length in eight bytes, big-endian |

use thiserror::Error;

use crate::budget::{Budget, Charge};

/// In the flags of a section.
pub(crate) const SHF_COMPRESSED: u64 = 0x800;
/// A packed section is not believed beyond this. Sections of debug information unpack to 2 to 20
/// times their length; the formats could do 1000 (zlib) and more.
const BEST_RATIO: u64 = 64;
/// Sections up to this length may be as empty as they like.
const SMALL_SECTION: u64 = 1 << 20;

/// The form in which the bytes of a section are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// The bytes themselves.
    Plain,
    /// `SHF_COMPRESSED`.
    Elf,
    /// `.zdebug_*`, as `gcc -gz=zlib-gnu` and linkers before 2016 wrote them.
    Gnu,
}

/// Why a packed section was not read.
#[derive(Debug, Error)]
pub(crate) enum UnpackError {
    /// Its length is a claim that is not believed.
    #[error("claims to unpack to {unpacked} bytes, more than {BEST_RATIO} times its {packed}")]
    Ratio {
        /// The length that it claims.
        unpacked: u64,
        /// Bytes that are stored.
        packed: u64,
    },
    /// There is no room for so many bytes.
    #[error("takes {0} bytes, more than is left for a file of its size")]
    Room(u64),
    /// It is cut off, or packed in a way that is not known.
    #[error("cannot be unpacked")]
    Damaged,
}

impl Packing {
    /// How the section with this name and these flags is packed, if it is the `wanted` one:
    /// `.zdebug_frame` is a `.debug_frame`, too.
    pub(crate) fn of(name: &[u8], flags: u64, wanted: &[u8]) -> Option<Packing> {
        if name == wanted {
            return Some(if flags & SHF_COMPRESSED == 0 { Packing::Plain } else { Packing::Elf });
        }
        let is_gnu = name.strip_prefix(b".z").is_some_and(|rest| wanted.strip_prefix(b".") == Some(rest));
        is_gnu.then_some(Packing::Gnu)
    }

    /// The bytes of a section, and the room that they take. `stored`: as they are in the file;
    /// `is_64`: the class of the file.
    ///
    /// # Errors
    /// Why they cannot be had.
    pub(crate) fn unpack(
        self,
        stored: Vec<u8>,
        is_64: bool,
        budget: &Budget,
    ) -> Result<(Vec<u8>, Charge), UnpackError> {
        use object::CompressionFormat::{Zlib, Zstandard};
        let reserve = |bytes: u64| budget.reserve(bytes).ok_or(UnpackError::Room(bytes));
        let word = |at: usize| stored.get(at..)?.first_chunk::<4>();
        let long = |at: usize| stored.get(at..)?.first_chunk::<8>();
        let (format, uncompressed_size, header_size) = match self {
            Packing::Plain => {
                let charge = reserve(stored.len() as u64)?;
                return Ok((stored, charge));
            }
            Packing::Elf => {
                let format = match word(0).map(|word| u32::from_le_bytes(*word)) {
                    Some(1) => Zlib,
                    Some(2) => Zstandard,
                    _ => return Err(UnpackError::Damaged),
                };
                let size = match is_64 {
                    true => long(8).map(|size| u64::from_le_bytes(*size)),
                    false => word(4).map(|size| u32::from_le_bytes(*size).into()),
                };
                (format, size.ok_or(UnpackError::Damaged)?, if is_64 { 24 } else { 12 })
            }
            Packing::Gnu if stored.starts_with(b"ZLIB") => {
                (Zlib, long(4).map(|size| u64::from_be_bytes(*size)).ok_or(UnpackError::Damaged)?, 12)
            }
            Packing::Gnu => return Err(UnpackError::Damaged),
        };
        let data = stored.get(header_size..).ok_or(UnpackError::Damaged)?;
        let packed = data.len() as u64;
        if uncompressed_size > SMALL_SECTION && uncompressed_size / BEST_RATIO > packed {
            return Err(UnpackError::Ratio { unpacked: uncompressed_size, packed });
        }
        let charge = reserve(uncompressed_size)?;
        let compressed = object::read::CompressedData { format, data, uncompressed_size };
        let unpacked = compressed.decompress().map_err(|_| UnpackError::Damaged)?.into_owned();
        Ok((unpacked, charge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which sections are the wanted one, and how each is packed.
    #[test]
    fn names_and_flags() {
        let of = |name: &str, flags| Packing::of(name.as_bytes(), flags, b".debug_frame");
        assert_eq!(of(".debug_frame", 0), Some(Packing::Plain));
        assert_eq!(of(".debug_frame", SHF_COMPRESSED), Some(Packing::Elf));
        assert_eq!(of(".zdebug_frame", 0), Some(Packing::Gnu));
        for other in [".debug_frame2", ".zdebug_info", "zdebug_frame", ".z", ""] {
            assert_eq!(of(other, 0), None, "{other}");
        }
    }

    /// Checks that the old form is unpacked, and that what is cut off or claims too much is not.
    #[test]
    fn the_old_form() {
        // "kymo" as one stored block of zlib.
        let zlib = [&[0x78, 0x01, 1, 4, 0, 0xfb, 0xff][..], b"kymo", &[0x04, 0x64, 0x01, 0xc1]].concat();
        let section = |length: u64| [&b"ZLIB"[..], &length.to_be_bytes(), &zlib].concat();
        let unpack = |bytes: Vec<u8>| Packing::Gnu.unpack(bytes, true, &Budget::new()).map(|all| all.0);
        assert_eq!(unpack(section(4)).expect("whole"), b"kymo");
        assert!(matches!(unpack(section(4)[..14].to_vec()), Err(UnpackError::Damaged)));
        assert!(matches!(unpack(b"ZLI".to_vec()), Err(UnpackError::Damaged)));
        assert!(matches!(unpack(section(1 << 40)), Err(UnpackError::Ratio { .. })));
    }
}
