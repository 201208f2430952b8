//! Profiles of pprof as other tools write them.
use super::*;
use kymo_data::{SampleLabel, SamplingPeriod};

/// A profile, field by field.
#[derive(Default)]
struct Proto {
    bytes: Vec<u8>,
    strings: Vec<String>,
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Fields of numbers.
fn fields(list: &[(u64, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (field, value) in list {
        varint(field << 3, &mut out);
        varint(*value, &mut out);
    }
    out
}

fn field_of_bytes(field: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3 | 2, &mut out);
    varint(bytes.len() as u64, &mut out);
    out.extend_from_slice(bytes);
    out
}

impl Proto {
    fn new(types: &[(&str, &str)]) -> Proto {
        let mut proto = Proto { strings: vec![String::new()], ..Proto::default() };
        for (name, unit) in types {
            let (name, unit) = (proto.text(name), proto.text(unit));
            proto.message(1, &fields(&[(1, name), (2, unit)]));
        }
        proto
    }

    fn text(&mut self, text: &str) -> u64 {
        let at = self.strings.iter().position(|known| known == text);
        at.unwrap_or_else(|| {
            self.strings.push(text.to_owned());
            self.strings.len() - 1
        }) as u64
    }

    fn message(&mut self, field: u64, bytes: &[u8]) {
        self.bytes.extend(field_of_bytes(field, bytes));
    }

    /// A function with its location, both of this id.
    fn function(&mut self, id: u64, name: &str, system_name: &str) {
        let (name, system_name) = (self.text(name), self.text(system_name));
        self.message(5, &fields(&[(1, id), (2, name), (3, system_name)]));
        let line = field_of_bytes(4, &fields(&[(1, id)]));
        self.message(4, &[fields(&[(1, id)]), line].concat());
    }

    fn sample(&mut self, stack: &[u64], values: &[u64], labels: &[Vec<u8>]) {
        let mut message: Vec<u8> = stack.iter().flat_map(|id| fields(&[(1, *id)])).collect();
        message.extend(values.iter().flat_map(|value| fields(&[(2, *value)])));
        labels.iter().for_each(|label| message.extend(field_of_bytes(3, label)));
        self.message(2, &message);
    }

    fn finish(mut self) -> Vec<u8> {
        for text in std::mem::take(&mut self.strings) {
            self.message(6, text.as_bytes());
        }
        self.bytes
    }
}

/// Types of a profile and its values by function: name, unit, value.
type Values = Vec<(String, String, Vec<(String, u64)>)>;

fn values(profile: &ImportedProfile) -> Values {
    let of_event = |(event, number): (&ImportedEvent, u32)| {
        let mut by_function: BTreeMap<String, u64> = BTreeMap::new();
        for count in profile.counts.iter().filter(|count| count.event == number) {
            let leaf = profile.stacks[count.stack as usize][0] as usize;
            *by_function.entry(profile.functions[leaf].name.clone()).or_default() += count.period;
        }
        (event.name.clone(), event.unit.clone(), by_function.into_iter().collect())
    };
    profile.events.iter().zip(0..).map(of_event).collect()
}

/// The profile after an import, an export and another import.
fn again(profile: &ImportedProfile) -> ImportedProfile {
    let (_, bytes) = read(recorded(profile), ExportFormat::Pprof);
    pprof(&bytes[..]).expect("a profile")
}

/// A heap profile as Go writes it: four types, the last but one the default.
fn heap() -> Vec<u8> {
    let types = [
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
        ("inuse_objects", "count"),
        ("inuse_space", "bytes"),
    ];
    let mut proto = Proto::new(&types);
    proto.function(1, "main.fill", "main.fill");
    proto.function(2, "main.main", "main.main");
    let (bytes_key, unit, tenant, value) =
        (proto.text("bytes"), proto.text("bytes"), proto.text("tenant"), proto.text("a b;c"));
    let size = fields(&[(1, bytes_key), (3, 4096), (4, unit)]);
    let tenant = fields(&[(1, tenant), (2, value)]);
    proto.sample(&[1, 2], &[150_000_000, 52_411_406, 3, 12_288], &[size, tenant]);
    proto.sample(&[2], &[7, 700, 0, 0], &[]);
    let default = proto.text("inuse_space");
    let space = proto.text("space");
    let space = fields(&[(1, space), (2, unit)]);
    proto.message(11, &space);
    proto.bytes.extend(fields(&[(12, 524_288)]));
    proto.bytes.extend(fields(&[(9, 1_700_000_000_000_000_000), (10, 5_000_000_000), (14, default)]));
    proto.finish()
}

/// Checks that a heap profile of Go keeps its units, its labels, its default type, its time and what
/// was counted between samples, and
/// has them after an export; that no thread is made up; and that each value costs one record.
#[test]
fn units_labels_and_the_default_type_are_kept() {
    let profile = pprof(&heap()[..]).expect("a profile");
    let types: Vec<_> = profile.events.iter().map(|event| (&*event.name, &*event.unit)).collect();
    let expected = [
        ("inuse_space", "bytes"),
        ("alloc_objects", "count"),
        ("alloc_space", "bytes"),
        ("inuse_objects", "count"),
    ];
    assert_eq!(types, expected);
    assert!(recorded(&profile).metadata().expect("a file").len() < 8192);
    let text = |text: &str| text.to_owned();
    let label = |key: &str, value: &str, number, unit: &str| SampleLabel {
        key: text(key),
        text: text(value),
        number,
        unit: text(unit),
    };
    let labels = vec![label("bytes", "", 4096, "bytes"), label("tenant", "a b;c", 0, "")];
    assert_eq!(profile.label_sets, [vec![], labels]);
    let times = |profile: &ImportedProfile| (profile.start_unix_ns, profile.duration_ns);
    assert_eq!(times(&profile), (1_700_000_000_000_000_000, 5_000_000_000));
    let sampling = SamplingPeriod { name: text("space"), unit: text("bytes"), period: 524_288 };
    assert_eq!(profile.sampling, Some(sampling));
    let after = again(&profile);
    assert_eq!(after.sampling, profile.sampling);
    assert_eq!(after.events, profile.events);
    assert_eq!(values(&after), values(&profile));
    assert_eq!(times(&after), times(&profile));
    let mut sets = [profile.label_sets, after.label_sets];
    sets.iter_mut().for_each(|sets| sets.sort_by_key(Vec::len));
    assert_eq!(sets[0], sets[1]);
}

/// Checks that functions which have only the linker's name have it in words, and that those without
/// any name are unknown.
#[test]
fn the_linkers_names_are_names() {
    let mut proto = Proto::new(&[("cpu", "nanoseconds")]);
    proto.function(1, "", "_ZN3foo3barEv");
    proto.function(2, "", "plain");
    proto.function(3, "", "");
    proto.function(4, "named", "_ZN3foo3barEv");
    (1..=4).for_each(|id| proto.sample(&[id], &[id], &[]));
    let profile = pprof(&proto.finish()[..]).expect("a profile");
    let names: Vec<_> = profile.functions.iter().map(|function| &*function.name).collect();
    assert_eq!(names, ["foo::bar", "plain", "[unknown]", "named"]);
}

/// Checks that `sample` counts the samples of the next type, as `samples` does, and has its name
/// when it is exported again.
#[test]
fn a_type_may_be_singular() {
    for name in ["sample", "samples", "cpu_samples"] {
        let mut proto = Proto::new(&[(name, "count"), ("wall", "microseconds")]);
        proto.function(1, "run", "");
        proto.sample(&[1], &[10, 5000], &[]);
        let profile = pprof(&proto.finish()[..]).expect("a profile");
        assert_eq!(profile.events.len(), 1, "{name}");
        assert_eq!((profile.counts[0].samples, profile.counts[0].period), (10, 5000), "{name}");
        assert_eq!(profile.events[0].unit, "microseconds");
        let after = again(&profile);
        assert_eq!((&after.events, &after.counts), (&profile.events, &profile.counts), "{name}");
    }
}

/// Checks that many samples are not a record each: their number is an event then, and comes back.
#[test]
fn many_samples_are_a_value() {
    let mut proto = Proto::new(&[("samples", "count"), ("cpu", "nanoseconds")]);
    proto.function(1, "run", "");
    proto.sample(&[1], &[5_000_000, 50_000_000_000], &[]);
    let profile = pprof(&proto.finish()[..]).expect("a profile");
    assert!(recorded(&profile).metadata().expect("a file").len() < 8192);
    let run = |value| vec![("run".to_owned(), value)];
    let expected = vec![
        ("cpu".to_owned(), "nanoseconds".to_owned(), run(50_000_000_000)),
        ("samples".to_owned(), "count".to_owned(), run(5_000_000)),
    ];
    assert_eq!(values(&profile), expected);
    assert_eq!(values(&again(&profile)), expected);
}

/// Checks that a profile without a default shows its last type first, as pprof does, and one of
/// samples alone is one of values.
#[test]
fn the_last_type_is_shown_without_a_default() {
    let mut proto = Proto::new(&[("contentions", "count"), ("delay", "nanoseconds")]);
    proto.function(1, "lock", "");
    proto.sample(&[1], &[3, 900], &[]);
    let profile = pprof(&proto.finish()[..]).expect("a profile");
    assert_eq!(profile.events.iter().map(|event| &*event.name).collect::<Vec<_>>(), ["delay", "contentions"]);
    let mut proto = Proto::new(&[("samples", "count")]);
    proto.function(1, "run", "");
    proto.sample(&[1], &[3_000_000], &[]);
    let profile = pprof(&proto.finish()[..]).expect("a profile");
    assert_eq!((profile.counts.len(), profile.counts[0].period), (1, 3_000_000));
}

/// Checks that a profile without samples is one, and is told from no profile.
#[test]
fn an_empty_profile_is_one() {
    let profile = pprof(&Proto::new(&[("cpu", "nanoseconds")]).finish()[..]).expect("a profile");
    assert_eq!((profile.counts.len(), profile.events.len()), (0, 1));
    assert!(pprof(&b""[..]).expect_err("no profile").to_string().contains("no types of values"));
}
