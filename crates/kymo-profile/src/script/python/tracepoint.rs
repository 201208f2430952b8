//! Fields of tracepoints as Python's values, by perf's rules.
use super::pickle::Pickle;
use kymo_data::Recording;
use kymo_data::print_format::PrintFormat;
use kymo_data::tracing_data::{self, Field, FieldKind, Format, TracingData, Value};
use rustc_hash::FxHashSet;

/// The formats of a recording.
pub(super) struct Formats {
    data: Option<TracingData>,
    /// Those that the script knows the field names of.
    defined: FxHashSet<u64>,
}

impl Formats {
    pub(super) fn of(recording: &Recording) -> Formats {
        let blob = recording.features.tracing_data.as_deref();
        let data = blob.and_then(|blob| tracing_data::parse(blob).ok());
        Formats { data, defined: FxHashSet::default() }
    }

    pub(super) fn format(&self, id: u64) -> Option<&Format> {
        self.data.as_ref()?.format(id)
    }

    /// What the script must know of a tracepoint before its first sample: the names of fields, flags
    /// and enumerators. The inner `None`: it does.
    pub(super) fn definition(&mut self, id: u64) -> Option<Option<Pickle>> {
        let format = self.data.as_ref()?.format(id)?;
        if !self.defined.insert(id) {
            return Some(None);
        }
        let parsed = PrintFormat::parse(format).ok();
        let lists = parsed.as_ref().map(|parsed| parsed.names(format)).unwrap_or_default();
        let mut message = Pickle::new();
        message.tuple(|message| {
            message.text("define").text(&handler(format));
            message.list(|names| {
                for field in fields(format) {
                    names.text(&field.name);
                }
            });
            message.list(|all| {
                for list in &lists {
                    all.tuple(|one| {
                        one.text(list.field);
                        match list.delimiter {
                            Some(delimiter) => one.text(delimiter),
                            None => one.none(),
                        };
                        one.list(|names| {
                            for (value, name) in &list.names {
                                names.tuple(|pair| {
                                    pair.int(*value).text(name);
                                });
                            }
                        });
                    });
                }
            });
        });
        Some(Some(message))
    }
}

/// The function of a script for a tracepoint.
pub(super) fn handler(format: &Format) -> String {
    format!("{}__{}", format.system, format.name)
}

/// The fields that are a tracepoint's own.
pub(super) fn fields(format: &Format) -> impl Iterator<Item = &Field> {
    format.fields.iter().filter(|field| !field.name.starts_with("common_"))
}

/// A number that every tracepoint has; 0 where this one has not.
pub(super) fn common(format: &Format, raw: &[u8], name: &str) -> i128 {
    match format.field(name).and_then(|field| field.value(raw)) {
        Some(Value::Signed(value)) => value.into(),
        Some(Value::Unsigned(value)) => value.into(),
        _ => 0,
    }
}

/// The values of a tracepoint's own fields.
pub(super) fn values(out: &mut Pickle, format: &Format, raw: &[u8]) {
    for field in fields(format) {
        match (field.kind, field.value(raw)) {
            (FieldKind::Number, Some(Value::Signed(value))) => out.int(value),
            (FieldKind::Number, Some(Value::Unsigned(value))) => out.int(value),
            (FieldKind::Number, _) => out.int(0),
            _ => {
                let bytes = field.bytes(raw).unwrap_or_default();
                match text(bytes).filter(|_| field.may_be_text()) {
                    Some(text) => out.text(text),
                    None => out.byte_array(bytes),
                }
            }
        };
    }
}

/// Printable text that ends with a zero byte, up to its first one.
fn text(bytes: &[u8]) -> Option<&str> {
    let (0, _) = bytes.split_last()? else { return None };
    let text = bytes.split(|byte| *byte == 0).next()?;
    let printable = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t'..=b'\r');
    if text.iter().all(printable) { std::str::from_utf8(text).ok() } else { None }
}
