//! A tracepoint's own text, by the print format that the recorded kernel has for it.
use crate::raw_frames::Place;
use crate::resolve::Resolver;
use kymo_data::print_format::{KernelNames, PrintFormat};
use kymo_data::tracing_data::{self, TracingData};
use kymo_data::{Recording, abi};
use rustc_hash::FxHashMap;

/// The formats of a recording, each parsed when a sample needs it first.
pub(crate) struct Tracepoints {
    data: TracingData,
    /// `None`: the format is not understood, so samples are printed field by field, as perf prints
    /// them then.
    formats: FxHashMap<u64, Option<PrintFormat>>,
}

impl Tracepoints {
    /// The formats of this recording, if it has any.
    pub(crate) fn of(recording: &Recording) -> Option<Tracepoints> {
        let blob = recording.features.tracing_data.as_deref()?;
        let data = tracing_data::parse(blob).ok()?;
        Some(Tracepoints { data, formats: FxHashMap::default() })
    }

    /// The text of a sample of the tracepoint `id`.
    pub(crate) fn text(&mut self, id: u64, raw: &[u8], resolver: &Resolver<'_>) -> Option<String> {
        let format = self.data.format(id)?;
        let parsed = self.formats.entry(id).or_insert_with(|| PrintFormat::parse(format).ok());
        let names = Names { data: &self.data, resolver };
        Some(match parsed {
            Some(parsed) => parsed.print(format, raw, &names),
            // perf says so, too.
            None => format!("[FAILED TO PARSE]{}", format.print_fields(raw)),
        })
    }
}

struct Names<'a> {
    data: &'a TracingData,
    resolver: &'a Resolver<'a>,
}

impl KernelNames for Names<'_> {
    fn function(&self, address: u64) -> Option<(String, u64)> {
        let mode = abi::PERF_RECORD_MISC_KERNEL as u8;
        let named = self.resolver.named(Place::exact(0, mode, address), false);
        let (start, _, name) = named.symbol?;
        Some((name.into_string(), named.module_address.checked_sub(start)?))
    }

    fn text(&self, address: u64) -> Option<String> {
        self.data.text_at(address).map(str::to_owned)
    }
}
