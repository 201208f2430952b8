//! Profiles of pprof: `profile.proto`, compressed by gzip or not.
//!
//! A type of values with the unit `count` whose name is or ends with `samples` or `sample` says how
//! many samples the type after it has, and each is a record; every other type is an event, and an
//! entry one record of it. So is that type in a profile of more than [`MOST_SINGLE_SAMPLES`]. The
//! default type comes first: verbs that show one event show that one.
use super::protobuf::{FieldValue, each_field};
use super::{
    ImportError, ImportedCount, ImportedEvent, ImportedFunction, ImportedProfile, ImportedThread, MOST_BYTES,
    MOST_ENTRIES, MOST_FRAMES, MOST_SINGLE_SAMPLES, ProfileBuilder, is_process, is_thread, is_thread_name,
};
use kymo_data::{SampleLabel, SamplingPeriod};
use kymo_symbols::demangle;
use rustc_hash::FxHashMap;
use std::io::Read;

/// Reads a profile.
///
/// # Errors
/// [`ImportError`].
pub fn pprof(mut from: impl Read) -> Result<ImportedProfile, ImportError> {
    let mut bytes = Vec::new();
    from.by_ref().take(MOST_BYTES).read_to_end(&mut bytes)?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut unpacked = Vec::new();
        let read = flate2::read::MultiGzDecoder::new(&bytes[..]).take(MOST_BYTES).read_to_end(&mut unpacked);
        read.map_err(|error| ImportError::Damaged(format!("it cannot be unpacked: {error}")))?;
        bytes = unpacked;
    }
    if bytes.len() as u64 >= MOST_BYTES {
        return Err(ImportError::Large(format!("the profile has more than {MOST_BYTES} bytes")));
    }
    Tables::of(&bytes)?.import()
}

/// The tables of a profile, as its bytes have them.
#[derive(Default)]
struct Tables<'a> {
    strings: Vec<&'a [u8]>,
    /// Name and unit.
    types: Vec<(u64, u64)>,
    /// Names of files by id.
    mappings: FxHashMap<u64, u64>,
    /// Mapping and functions by id, innermost first.
    locations: FxHashMap<u64, (u64, Vec<u64>)>,
    /// Name and name of the linker by id.
    functions: FxHashMap<u64, (u64, u64)>,
    samples: Vec<&'a [u8]>,
    start_unix_ns: u64,
    duration_ns: u64,
    default_type: u64,
    /// Name and unit of what was counted between samples, and how much of it.
    period_type: (u64, u64),
    period: u64,
    entries: usize,
}

/// A sample as its bytes have it.
#[derive(Default)]
struct RawSample {
    locations: Vec<u64>,
    values: Vec<u64>,
    /// Key, text, number, unit.
    labels: Vec<[u64; 4]>,
}

/// What a type of values is.
#[derive(Clone, Copy)]
enum ValueKind {
    /// How many samples the next type has.
    Samples,
    Event(u32),
}

/// The numbers of a message by field, as far as it is of numbers: the last of each.
fn numbers<const N: usize>(bytes: &[u8], fields: [u64; N]) -> Result<[u64; N], ImportError> {
    let mut found = [0; N];
    each_field(bytes, |field, value| {
        if let Some(at) = fields.iter().position(|wanted| *wanted == field) {
            found[at] = value.number();
        }
        Ok(())
    })?;
    Ok(found)
}

impl<'a> Tables<'a> {
    fn of(bytes: &'a [u8]) -> Result<Tables<'a>, ImportError> {
        let mut tables = Tables::default();
        each_field(bytes, |field, value| tables.add(field, value))?;
        if tables.types.is_empty() || tables.strings.is_empty() {
            let why = "it has no types of values, so it is no profile of pprof (profile.proto)";
            return Err(ImportError::Damaged(why.to_owned()));
        }
        Ok(tables)
    }

    fn add(&mut self, field: u64, value: FieldValue<'a>) -> Result<(), ImportError> {
        let bytes = value.bytes();
        self.entries += 1;
        if self.entries > MOST_ENTRIES {
            return Err(ImportError::Large(format!("its tables have more than {MOST_ENTRIES} entries")));
        }
        match field {
            1 => {
                let [name, unit] = numbers(bytes, [1, 2])?;
                self.types.push((name, unit));
            }
            2 => self.samples.push(bytes),
            3 => {
                let [id, file] = numbers(bytes, [1, 5])?;
                self.mappings.insert(id, file);
            }
            4 => {
                let [id, mapping] = numbers(bytes, [1, 2])?;
                let mut functions = Vec::new();
                each_field(bytes, |field, line| {
                    if field == 4 {
                        functions.push(numbers(line.bytes(), [1])?[0]);
                        self.entries += 1;
                    }
                    Ok(())
                })?;
                self.locations.insert(id, (mapping, functions));
            }
            5 => {
                let [id, name, system_name] = numbers(bytes, [1, 2, 3])?;
                self.functions.insert(id, (name, system_name));
            }
            6 => self.strings.push(bytes),
            9 => self.start_unix_ns = value.number(),
            10 => self.duration_ns = value.number(),
            11 => {
                let [name, unit] = numbers(bytes, [1, 2])?;
                self.period_type = (name, unit);
            }
            12 => self.period = value.number(),
            14 => self.default_type = value.number(),
            _ => {}
        }
        Ok(())
    }

    fn text(&self, number: u64) -> String {
        let bytes = usize::try_from(number).ok().and_then(|number| self.strings.get(number));
        String::from_utf8_lossy(bytes.copied().unwrap_or_default()).into_owned()
    }

    /// What each type is, and the events: that of the default type first.
    fn kinds(&self) -> Result<(Vec<ValueKind>, Vec<ImportedEvent>), ImportError> {
        let types: Vec<(String, String)> =
            self.types.iter().map(|(name, unit)| (self.text(*name), self.text(*unit))).collect();
        let named = |(name, unit): &(String, String)| {
            unit == "count" && (name.ends_with("samples") || name.ends_with("sample"))
        };
        let sums = self.sums()?;
        let mut single = 0_u64;
        let mut kinds = Vec::new();
        let mut events: Vec<ImportedEvent> = Vec::new();
        let mut first = None;
        for (at, (name, unit)) in types.iter().enumerate() {
            let next_is_value = types.get(at + 1).is_some_and(|next| !named(next));
            if named(&types[at]) && next_is_value {
                let all = single.saturating_add(sums[at]);
                if all <= MOST_SINGLE_SAMPLES {
                    single = all;
                    kinds.push(ValueKind::Samples);
                    continue;
                }
            }
            let samples_type = match kinds.last() {
                Some(ValueKind::Samples) => Some(types[at - 1].0.clone()),
                _ => None,
            };
            // Of a profile that names none pprof shows the last one.
            let is_default = self.default_type != 0 && *name == self.text(self.default_type);
            let is_of_default = samples_type.is_some() && samples_type == Some(self.text(self.default_type));
            if is_default || is_of_default || first.is_none() && at + 1 == types.len() {
                first.get_or_insert(events.len());
            }
            kinds.push(ValueKind::Event(events.len() as u32));
            events.push(ImportedEvent { name: name.clone(), unit: unit.clone(), samples_type });
        }
        // The default one changes places with all before it.
        let first = first.unwrap_or(0) as u32;
        if !events.is_empty() {
            events[..=first as usize].rotate_right(1);
        }
        for kind in &mut kinds {
            if let ValueKind::Event(event) = kind {
                *event = match *event {
                    at if at == first => 0,
                    at if at < first => at + 1,
                    at => at,
                };
            }
        }
        Ok((kinds, events))
    }

    /// The sum of each type.
    fn sums(&self) -> Result<Vec<u64>, ImportError> {
        let mut sums = vec![0_u64; self.types.len()];
        for bytes in &self.samples {
            for (sum, value) in sums.iter_mut().zip(RawSample::of(bytes)?.values) {
                *sum = sum.saturating_add(value);
            }
        }
        Ok(sums)
    }

    fn import(&self) -> Result<ImportedProfile, ImportError> {
        let (kinds, events) = self.kinds()?;
        let mut builder = ProfileBuilder::default();
        builder.labels.number(Vec::new());
        for bytes in &self.samples {
            let sample = &RawSample::of(bytes)?;
            let thread = builder.threads.number(self.thread(sample));
            let labels = builder.labels.number(self.labels(sample));
            let frames = self.frames(sample, &mut builder);
            let stack = builder.stack(frames)?;
            let mut samples_of_next = None;
            for (kind, value) in kinds.iter().zip(&sample.values) {
                if i64::try_from(*value).is_err() {
                    let why =
                        "the profile has values below zero (a difference of two?), which no recording has";
                    return Err(ImportError::Damaged(why.to_owned()));
                }
                let ValueKind::Event(event) = *kind else {
                    samples_of_next = Some(*value);
                    continue;
                };
                let samples = samples_of_next.take().unwrap_or(u64::from(*value > 0));
                if samples > 0 || *value > 0 {
                    let samples = samples.max(1);
                    builder.add(ImportedCount { event, thread, stack, labels, samples, period: *value })?;
                }
            }
        }
        let (start_unix_ns, duration_ns) = (self.start_unix_ns, self.duration_ns);
        Ok(ImportedProfile {
            start_unix_ns,
            duration_ns,
            sampling: self.sampling(),
            ..builder.finish(events)
        })
    }

    fn sampling(&self) -> Option<SamplingPeriod> {
        let (name, unit) = self.period_type;
        let sampling = SamplingPeriod { name: self.text(name), unit: self.text(unit), period: self.period };
        (sampling != SamplingPeriod::default()).then_some(sampling)
    }

    fn labels(&self, sample: &RawSample) -> Vec<SampleLabel> {
        let label = |[key, text, number, unit]: &[u64; 4]| SampleLabel {
            key: self.text(*key),
            text: self.text(*text),
            number: *number as i64,
            unit: self.text(*unit),
        };
        sample.labels.iter().map(label).collect()
    }

    /// The name of a function: the linker's, in words, where it has no other.
    fn name(&self, id: u64) -> String {
        let (name, system_name) = self.functions.get(&id).copied().unwrap_or_default();
        let (name, system_name) = (self.text(name), self.text(system_name));
        match (name.is_empty(), system_name.is_empty()) {
            (false, _) => name,
            (true, false) => demangle::readable(&system_name).into_owned(),
            (true, true) => "[unknown]".to_owned(),
        }
    }

    fn thread(&self, sample: &RawSample) -> ImportedThread {
        let mut thread = ImportedThread { pid: 0, tid: 0, comm: String::new() };
        for [key, text, number, _] in &sample.labels {
            let id = i32::try_from(*number as i64).unwrap_or(0);
            match &*self.text(*key) {
                key if is_process(key) => thread.pid = id,
                key if is_thread(key) => thread.tid = id,
                key if is_thread_name(key) && *text != 0 => thread.comm = self.text(*text),
                _ => {}
            }
        }
        // 0 is no process, and that of a thread without one is the thread.
        thread.tid = if thread.tid > 0 { thread.tid } else { thread.pid.max(1) };
        thread.pid = if thread.pid > 0 { thread.pid } else { thread.tid };
        if thread.comm.is_empty() {
            thread.comm = "pprof".to_owned();
        }
        thread
    }

    /// The functions of a sample, innermost first.
    fn frames(&self, sample: &RawSample, builder: &mut ProfileBuilder) -> Vec<u32> {
        let mut frames = Vec::new();
        for id in &sample.locations {
            let Some((mapping, functions)) = self.locations.get(id) else { continue };
            let file = self.mappings.get(mapping).map_or_else(String::new, |file| self.text(*file));
            let module = if file.is_empty() { "[imported]".to_owned() } else { file };
            let mut add = |name: String| {
                let module = module.clone();
                frames.push(builder.functions.number(ImportedFunction { name, module }));
            };
            match &functions[..] {
                // Code without a name, as reports show it.
                [] => {
                    let short = module.rsplit('/').next().unwrap_or(&module);
                    add(if short.starts_with('[') { short.to_owned() } else { format!("[{short}]") });
                }
                functions => functions.iter().take(MOST_FRAMES).for_each(|id| add(self.name(*id))),
            }
            if frames.len() >= MOST_FRAMES {
                break;
            }
        }
        frames
    }
}

impl RawSample {
    fn of(bytes: &[u8]) -> Result<RawSample, ImportError> {
        let mut sample = RawSample::default();
        each_field(bytes, |field, value| match field {
            1 => value.numbers(&mut sample.locations),
            2 => value.numbers(&mut sample.values),
            3 => {
                sample.labels.push(numbers(value.bytes(), [1, 2, 3, 4])?);
                Ok(())
            }
            _ => Ok(()),
        })?;
        Ok(sample)
    }
}
