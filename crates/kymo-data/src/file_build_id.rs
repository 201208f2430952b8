//! Build IDs of files that share a path (docs/reference/formats/marks.md, kind 7).
//!
//! The table in a recording's header knows files by their paths. Where several files were mapped
//! from one path (containers, an update while the program ran), device and inode tell them apart.

use crate::mark;
use crate::record::RawRecord;
use crate::words::{u32_at, u64_at};

/// Bytes of a record's body before the build ID.
const FIELDS: usize = 36;
/// A build ID has at most so many bytes, as in records of mappings.
const MOST_ID_BYTES: usize = 20;
/// The kernel's longest path.
const MOST_PATH_BYTES: usize = 4096;

/// The build ID of a file that was mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileBuildId {
    /// The path of the mapping.
    pub path: Vec<u8>,
    /// Device (major, minor) and inode, as records of mappings have them.
    pub file_id: (u32, u32, u64),
    /// The build ID.
    pub id: Vec<u8>,
}

impl FileBuildId {
    /// What a record says; `None` for all other records and for damaged ones.
    pub fn parse(record: &RawRecord<'_>) -> Option<FileBuildId> {
        let body = mark::body_of_kind(record, mark::FILE_BUILD_ID)?;
        let size = |at: usize, most: usize| {
            usize::try_from(u32_at(body, at)?).ok().filter(|size| (1..=most).contains(size))
        };
        let (id_bytes, path_bytes) = (size(28, MOST_ID_BYTES)?, size(32, MOST_PATH_BYTES)?);
        let id = body.get(FIELDS..FIELDS + id_bytes)?;
        let path = body.get(FIELDS + id_bytes..)?.get(..path_bytes)?;
        let file_id = (u32_at(body, 12)?, u32_at(body, 16)?, u64_at(body, 20)?);
        Some(FileBuildId { path: path.to_vec(), file_id, id: id.to_vec() })
    }

    /// The whole record; `None` where a path or an ID is longer than there are.
    pub fn record(&self) -> Option<Vec<u8>> {
        if self.id.len() > MOST_ID_BYTES || self.path.len() > MOST_PATH_BYTES {
            return None;
        }
        let (major, minor, inode) = self.file_id;
        let mut fields = [major.to_le_bytes(), minor.to_le_bytes()].concat();
        fields.extend(inode.to_le_bytes());
        fields.extend((self.id.len() as u32).to_le_bytes());
        fields.extend((self.path.len() as u32).to_le_bytes());
        fields.extend(&self.id);
        fields.extend(&self.path);
        // Sizes of records are multiples of 8: the magic and the kind take 12 bytes.
        fields.resize((fields.len() + 12).next_multiple_of(8) - 12, 0);
        Some(mark::record_of_kind(mark::FILE_BUILD_ID, &fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Records;

    /// Checks that what was written is read, that cut records say nothing, and that what no file
    /// has is not written.
    #[test]
    fn round_trip() {
        for path in ["/p", "/srv/app/releases/current/bin/server"] {
            let known =
                FileBuildId { path: path.as_bytes().to_vec(), file_id: (8, 1, 1 << 40), id: vec![7; 20] };
            let record = known.record().expect("an ordinary path");
            assert!(record.len() >= 80 && record.len().is_multiple_of(8));
            let read: Vec<_> = Records::new(&record, 0).flatten().collect();
            assert_eq!(FileBuildId::parse(&read[0]), Some(known.clone()));
            for cut in 0..FIELDS + 20 {
                let cut = RawRecord { body: &read[0].body[..cut], ..read[0] };
                assert_eq!(FileBuildId::parse(&cut), None);
            }
            assert_eq!(FileBuildId { id: vec![7; 21], ..known.clone() }.record(), None);
            assert_eq!(FileBuildId { path: vec![b'/'; 5000], ..known }.record(), None);
        }
    }
}
