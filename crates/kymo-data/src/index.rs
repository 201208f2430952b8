//! Where the chunks of a stream lie, remembered from its first complete reading.

use crate::problem::Problem;
use crate::stream::{ChunkPlace, StreamReader};

/// The chunks of a stream without compression, remembered from its first complete reading.
pub(crate) struct Index {
    pub(crate) places: Vec<ChunkPlace>,
    pub(crate) problems: Vec<Problem>,
}

impl Index {
    /// What a finished reader found, unless the stream is compressed.
    pub(crate) fn of(reader: StreamReader) -> Option<Index> {
        let usable = reader.finished && !reader.is_packed();
        usable.then_some(Index { places: reader.places, problems: reader.problems })
    }
}
