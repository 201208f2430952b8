//! What an imported profile says of itself and perf's recordings have no place for: the section
//! [`HEADER_KYMO_IMPORTED`](crate::abi::HEADER_KYMO_IMPORTED), which perf steps over.
//!
//! ```text
//!  version | start, duration | n (unit, type of samples) of events | n labels of label sets
//!          | name, unit, period: since version 2
//! ```
//! Numbers are `u32`, those of times and values `u64`; a text is a length and its bytes.
use crate::words::Cursor;

/// The version that is written.
const VERSION: u32 = 2;

/// What an imported profile says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportedFacts {
    /// When it began, nanoseconds since 1970; 0 where it does not say.
    pub start_unix_ns: u64,
    /// How long it took, ns; 0 where it does not say.
    pub duration_ns: u64,
    /// By event of the recording.
    pub events: Vec<ImportedUnit>,
    /// Sets of labels: number `n` is that of samples whose cgroup is `n + 1`.
    pub label_sets: Vec<Vec<SampleLabel>>,
    /// What was counted from one sample to the next; `None` where it does not say.
    pub sampling: Option<SamplingPeriod>,
}

/// What a profiler counted between two samples: a sample for each 10,000,000 nanoseconds of `cpu`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SamplingPeriod {
    /// What was counted. It need not be the name of an event: Go's heap profiles say `space`.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// How much of it for each sample; 0: the profile does not say.
    pub period: u64,
}

/// What the values of an imported event are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportedUnit {
    /// Their unit, as the profile has it.
    pub unit: String,
    /// The name of the type of values that says how many samples there are: each is a record.
    /// `None`: the profile does not say, and a record is the sum of all samples of a stack.
    pub samples_type: Option<String>,
}

/// A label of a sample: of a text, or of a number and its unit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SampleLabel {
    /// Its key.
    pub key: String,
    /// Its text; empty if it is of a number.
    pub text: String,
    /// Its number.
    pub number: i64,
    /// The unit of the number.
    pub unit: String,
}

impl ImportedFacts {
    /// The bytes of the section.
    pub(super) fn section(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        put_u64(&mut out, self.start_unix_ns);
        put_u64(&mut out, self.duration_ns);
        put_u32(&mut out, self.events.len());
        for event in &self.events {
            put_text(&mut out, &event.unit);
            put_u32(&mut out, usize::from(event.samples_type.is_some()));
            put_text(&mut out, event.samples_type.as_deref().unwrap_or_default());
        }
        put_u32(&mut out, self.label_sets.len());
        for labels in &self.label_sets {
            put_u32(&mut out, labels.len());
            for label in labels {
                put_text(&mut out, &label.key);
                put_text(&mut out, &label.text);
                put_u64(&mut out, label.number as u64);
                put_text(&mut out, &label.unit);
            }
        }
        let none = SamplingPeriod::default();
        let SamplingPeriod { name, unit, period } = self.sampling.as_ref().unwrap_or(&none);
        put_text(&mut out, name);
        put_text(&mut out, unit);
        put_u64(&mut out, *period);
        out
    }

    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Option<ImportedFacts> {
        let version = cursor.u32()?;
        if !(1..=VERSION).contains(&version) {
            return None;
        }
        let (start_unix_ns, duration_ns) = (cursor.u64()?, cursor.u64()?);
        let events = list(cursor, |cursor| {
            let (unit, has_samples, name) = (text(cursor)?, cursor.u32()? != 0, text(cursor)?);
            Some(ImportedUnit { unit, samples_type: has_samples.then_some(name) })
        })?;
        let label = |cursor: &mut Cursor<'_>| {
            let (key, text_of, number) = (text(cursor)?, text(cursor)?, cursor.u64()? as i64);
            Some(SampleLabel { key, text: text_of, number, unit: text(cursor)? })
        };
        let label_sets = list(cursor, |cursor| list(cursor, label))?;
        let mut sampling = None;
        if version > 1 {
            let found = SamplingPeriod { name: text(cursor)?, unit: text(cursor)?, period: cursor.u64()? };
            sampling = (found != SamplingPeriod::default()).then_some(found);
        }
        Some(ImportedFacts { start_unix_ns, duration_ns, events, label_sets, sampling })
    }

    /// The labels of samples of a cgroup.
    pub fn labels(&self, cgroup: u64) -> &[SampleLabel] {
        let at = cgroup.checked_sub(1).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.label_sets.get(at)).map_or(&[], Vec::as_slice)
    }
}

fn put_u32(out: &mut Vec<u8>, number: usize) {
    out.extend_from_slice(&(number as u32).to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_u32(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn text(cursor: &mut Cursor<'_>) -> Option<String> {
    let length = cursor.u32()?;
    Some(String::from_utf8_lossy(cursor.take(length as usize)?).into_owned())
}

/// An entry that does not fit ends the reading: a false count costs nothing.
fn list<'a, T>(
    cursor: &mut Cursor<'a>,
    mut entry: impl FnMut(&mut Cursor<'a>) -> Option<T>,
) -> Option<Vec<T>> {
    let mut out = Vec::new();
    for _ in 0..cursor.u32()? {
        out.push(entry(cursor)?);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::HEADER_KYMO_IMPORTED;
    use crate::features::Features;

    /// Checks that the section comes back as it was, and that one that is cut anywhere is kept as
    /// bytes.
    #[test]
    fn the_section_comes_back() {
        let label = |key: &str, text: &str, number, unit: &str| SampleLabel {
            key: key.into(),
            text: text.into(),
            number,
            unit: unit.into(),
        };
        let facts = ImportedFacts {
            start_unix_ns: 1_700_000_000_000_000_000,
            duration_ns: 5,
            events: vec![
                ImportedUnit { unit: "bytes".into(), samples_type: None },
                ImportedUnit { unit: "nanoseconds".into(), samples_type: Some("sample".into()) },
            ],
            sampling: Some(SamplingPeriod { name: "space".into(), unit: "bytes".into(), period: 524_288 }),
            label_sets: vec![vec![], vec![label("tenant", "a b;c", 0, ""), label("size", "", -7, "bytes")]],
        };
        let written = Features { imported: Some(facts.clone()), ..Features::default() };
        assert_eq!(written.bits(), [HEADER_KYMO_IMPORTED]);
        let bytes = written.section(HEADER_KYMO_IMPORTED).expect("a section");
        let mut read = Features::default();
        assert!(read.set_section(HEADER_KYMO_IMPORTED, &bytes));
        assert_eq!(read.imported.as_ref(), Some(&facts));
        assert_eq!((facts.labels(0).len(), facts.labels(2).len(), facts.labels(9).len()), (0, 2, 0));
        for end in 0..bytes.len() {
            let mut cut = Features::default();
            cut.set_section(HEADER_KYMO_IMPORTED, &bytes[..end]);
            assert_eq!((cut.imported, cut.other.len()), (None, 1), "{end} bytes");
        }
    }
}
