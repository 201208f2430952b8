//! Ids that are hashes of content: writers on different hosts agree on them without talking.
//!
//! An id is the lower 63 bits of XXH3-64 (seed 0) of the fields, each with its length in front, so
//! that it is never negative: some engines have signed integers only. Ten million stacks have two
//! of the same id with a probability of one in 180,000.
use crate::rows::{FrameRow, LocationRow};
use twox_hash::XxHash3_64;

/// Bytes of content for a hash. What it does to fields is part of the layout.
struct Content {
    bytes: Vec<u8>,
}

impl Content {
    fn of(kind: &str) -> Content {
        let mut content = Content { bytes: Vec::with_capacity(256) };
        content.text(kind);
        content
    }

    fn number(&mut self, number: i64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as i64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// A text that may be missing, which is not the same as an empty one.
    fn optional(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.number(-1),
        }
    }

    fn id(&self) -> i64 {
        (XxHash3_64::oneshot(&self.bytes) & (i64::MAX as u64)) as i64
    }
}

/// The id of a host, by its name or by whatever tells it from all others.
pub fn host(name: &str) -> i64 {
    let mut content = Content::of("host");
    content.text(name);
    content.id()
}

/// A number of a recording that does not know when it was made: of its times on its own clock, and
/// of the name, samples and periods of each event.
pub fn recording<'a>(
    kernel: &str,
    own_times: [u64; 2],
    events: impl Iterator<Item = (&'a str, u64, u64)>,
) -> u32 {
    let mut content = Content::of("recording");
    content.text(kernel);
    own_times.iter().for_each(|time| content.number(*time as i64));
    for (name, samples, period) in events {
        content.text(name);
        content.number(samples as i64);
        content.number(period as i64);
    }
    content.id() as u32
}

/// The id of a location.
///
/// With a build id, that and the address say which code it is. Without one, the module's path and
/// the host do, where there is an address; generated code has names only. The functions are hashed,
/// too: hosts with and without debug information then have two locations for one address, and
/// neither is given half of the functions of the other.
pub fn location(host_id: i64, location: &LocationRow<'_>) -> i64 {
    let mut content = Content::of("location");
    content.text(location.module);
    match location.build_id {
        Some(build_id) => content.text(build_id),
        None => {
            content.number(-1);
            // An address of a file without an id means nothing on another host.
            content.number(if location.address == 0 { 0 } else { host_id });
        }
    }
    content.number(location.address);
    content.text(location.kind.name());
    content.number(location.frames.len() as i64);
    for FrameRow { function, line, .. } in location.frames {
        content.optional(*function);
        // Lines tell locations apart that have no address.
        let line = line.filter(|_| location.address == 0);
        content.number(line.map_or(-1, i64::from));
    }
    content.id()
}

/// The id of a stack: of its locations, innermost first.
pub fn stack(locations: impl ExactSizeIterator<Item = i64>) -> i64 {
    let mut content = Content::of("stack");
    content.number(locations.len() as i64);
    locations.for_each(|location| content.number(location));
    content.id()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::FrameKind;

    fn at(build_id: Option<&str>, address: i64, functions: &[Option<&str>]) -> i64 {
        let frame = |function: &Option<&'static str>| FrameRow { function: *function, ..FrameRow::default() };
        let functions: Vec<Option<&'static str>> =
            functions.iter().map(|name| name.map(|name| &*name.to_owned().leak())).collect();
        let frames: Vec<FrameRow<'_>> = functions.iter().map(frame).collect();
        let kind = FrameKind::User;
        location(7, &LocationRow { module: "libc.so.6", build_id, address, kind, frames: &frames })
    }

    /// Checks ids against those that the Python package xxhash gives for the same bytes: other
    /// versions and other hosts must make the same ones.
    #[test]
    fn ids_are_the_same_everywhere() {
        assert_eq!(host("web-1"), HOST);
        assert_eq!(at(Some("ab12"), 0x1000, &[Some("main")]), LOCATION);
        assert_eq!(stack([1, 2, 3].into_iter()), STACK);
    }

    const HOST: i64 = 28_705_983_218_680_903;
    const LOCATION: i64 = 491_723_869_268_590_444;
    const STACK: i64 = 6_113_915_118_721_387_258;

    /// Checks that what differs has other ids: names, their order, their absence, and where one
    /// field ends.
    #[test]
    fn what_differs_has_other_ids() {
        let all = [
            at(Some("ab12"), 0x1000, &[Some("main")]),
            at(Some("ab12"), 0x1000, &[None]),
            at(Some("ab12"), 0x1000, &[Some("")]),
            at(Some("ab12"), 0x1000, &[Some("a"), Some("b")]),
            at(Some("ab12"), 0x1000, &[Some("b"), Some("a")]),
            at(Some("ab12"), 0x1000, &[Some("ab")]),
            at(Some("ab12"), 0x1001, &[Some("main")]),
            at(None, 0x1000, &[Some("main")]),
            at(None, 0, &[Some("main")]),
            stack([].into_iter()),
            stack([1].into_iter()),
            stack([1, 0].into_iter()),
        ];
        let distinct: std::collections::BTreeSet<i64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert!(distinct.iter().all(|id| *id >= 0));
    }
}
