//! The tracing data of a recording: which fields the raw bytes of a tracepoint have.
//!
//! ```text
//!  17 08 44 "tracing" "0.6\0" | endian u8 | long size u8 | page size u32
//!  "header_page\0" u64 size, text | "header_event\0" u64 size, text
//!  u32 count, then per ftrace event:    u64 size, format text
//!  u32 count, then per system:          name\0, u32 count, then per event: u64 size, format text
//!  u32 size, kallsyms | u32 size, printk formats | u64 size, saved command lines
//! ```
//!
//! [`parse`] reads it, [`Files::to_blob`] writes it from the texts of tracefs. Format texts come
//! from the kernel that was recorded and are as untrusted as the rest of a file: a line that does
//! not fit the pattern is left out.

use crate::words::{Cursor, until_nul};
use std::collections::HashMap;

const MAGIC: &[u8] = b"\x17\x08\x44tracing";
const VERSION: &[u8] = b"0.6\0";

/// The formats of the tracepoints in a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracingData {
    /// The formats in the recording's order.
    pub formats: Vec<Format>,
    /// Page size of the recorded machine in bytes.
    pub page_size: u32,
    by_id: HashMap<u64, usize>,
    texts: HashMap<u64, String>,
}

/// The format of one tracepoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Format {
    /// Id: the `config` of the event's attr.
    pub id: u64,
    /// System, such as `sched`.
    pub system: String,
    /// Name, such as `sched_switch`.
    pub name: String,
    /// Its fields; those that every tracepoint has come first.
    pub fields: Vec<Field>,
    /// The kernel's own print format, unparsed.
    pub print_fmt: String,
}

/// One field of a tracepoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its C type, as the kernel spells it.
    pub type_name: String,
    /// Where it starts in the raw bytes.
    pub offset: usize,
    /// How many bytes it has there.
    pub size: usize,
    /// Whether numbers in it are signed.
    pub signed: bool,
    /// What is in it.
    pub kind: FieldKind,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A number of 1, 2, 4 or 8 bytes.
    Number,
    /// Text in place, up to a zero byte.
    Text,
    /// Numbers in place, of so many bytes each.
    Array {
        /// Bytes of one number.
        element_bytes: usize,
    },
    /// A place (offset and length in two halves of a `u32`) of data behind the fields.
    Dynamic {
        /// Whether the data is text.
        text: bool,
        /// Whether the offset counts from the end of this field (otherwise from the start of the
        /// raw bytes).
        relative: bool,
    },
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number without sign.
    Unsigned(u64),
    /// A number with sign.
    Signed(i64),
    /// Text.
    Text(&'a [u8]),
    /// Anything else, as bytes.
    Bytes(&'a [u8]),
}

impl std::fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Unsigned(value) => write!(f, "{value}"),
            Value::Signed(value) => write!(f, "{value}"),
            Value::Text(text) => write!(f, "{}", String::from_utf8_lossy(text)),
            Value::Bytes(bytes) => {
                write!(f, "{{")?;
                for (index, byte) in bytes.iter().enumerate() {
                    write!(f, "{}{byte:02x}", if index > 0 { " " } else { "" })?;
                }
                write!(f, "}}")
            }
        }
    }
}

/// Why tracing data cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tracing data is damaged at its byte {offset:#x}: expected {expected}")]
pub struct TracingDataError {
    /// Where.
    pub offset: usize,
    /// What should have been there.
    pub expected: &'static str,
}

struct Blob<'a>(Cursor<'a>);

impl<'a> Blob<'a> {
    fn need<T>(&self, value: Option<T>, expected: &'static str) -> Result<T, TracingDataError> {
        value.ok_or(TracingDataError { offset: self.0.at(), expected })
    }
    fn magic(&mut self, magic: &[u8], expected: &'static str) -> Result<(), TracingDataError> {
        let offset = self.0.at();
        match self.0.take(magic.len()) {
            Some(bytes) if bytes == magic => Ok(()),
            _ => Err(TracingDataError { offset, expected }),
        }
    }
    fn name(&mut self, expected: &'static str) -> Result<&'a [u8], TracingDataError> {
        let rest = self.0.rest();
        let end = self.need(memchr::memchr(0, rest), expected)?;
        let name = self.0.take(end);
        let name = self.need(name, expected)?;
        self.0.take(1);
        Ok(name)
    }
    fn u32(&mut self, expected: &'static str) -> Result<u32, TracingDataError> {
        let value = self.0.u32();
        self.need(value, expected)
    }
    fn sized(&mut self, size: Option<u64>, expected: &'static str) -> Result<&'a [u8], TracingDataError> {
        let size = self.need(size.and_then(|size| usize::try_from(size).ok()), expected)?;
        let bytes = self.0.take(size);
        self.need(bytes, expected)
    }
    fn sized_64(&mut self, expected: &'static str) -> Result<&'a [u8], TracingDataError> {
        let size = self.0.u64();
        self.sized(size, expected)
    }
}

/// Reads tracing data.
///
/// # Errors
/// When a part before the formats' end is missing. What comes after the formats may be missing.
pub fn parse(bytes: &[u8]) -> Result<TracingData, TracingDataError> {
    let mut blob = Blob(Cursor::new(bytes));
    blob.magic(MAGIC, "the magic of tracing data")?;
    blob.name("a version")?;
    let endian = blob.0.take(2);
    if blob.need(endian, "endianness and long size")?.first() != Some(&0) {
        return Err(TracingDataError { offset: MAGIC.len() + VERSION.len(), expected: "little-endian data" });
    }
    let mut data = TracingData { page_size: blob.u32("page size")?, ..TracingData::default() };
    blob.magic(b"header_page\0", "header_page")?;
    blob.sized_64("the header_page text")?;
    blob.magic(b"header_event\0", "header_event")?;
    blob.sized_64("the header_event text")?;
    for _ in 0..blob.u32("the number of ftrace events")? {
        data.add("ftrace", blob.sized_64("an ftrace event's format")?);
    }
    for _ in 0..blob.u32("the number of systems")? {
        let system = String::from_utf8_lossy(blob.name("a system's name")?).into_owned();
        for _ in 0..blob.u32("the number of events of a system")? {
            data.add(&system, blob.sized_64("an event's format")?);
        }
    }
    // The symbols of the kernel, which perf leaves empty.
    let skipped = blob.0.u32().and_then(|size| blob.0.take(size as usize));
    let texts = skipped.and_then(|_| blob.0.u32()).and_then(|size| blob.0.take(size as usize));
    data.texts = texts.map(printk_formats).unwrap_or_default();
    Ok(data)
}

/// Reads lines `0xADDRESS : "text"`.
fn printk_formats(bytes: &[u8]) -> HashMap<u64, String> {
    let text = String::from_utf8_lossy(bytes);
    let line = |line: &str| {
        let (address, text) = line.split_once(':')?;
        let address = u64::from_str_radix(address.trim().trim_start_matches("0x"), 16).ok()?;
        let text = text.strip_prefix(' ').unwrap_or(text);
        let text = text.strip_prefix('"').unwrap_or(text);
        let text = text.strip_suffix('"').unwrap_or(text);
        Some((address, text.strip_suffix("\\n").unwrap_or(text).to_owned()))
    };
    text.lines().filter_map(line).collect()
}

impl TracingData {
    fn add(&mut self, system: &str, text: &[u8]) {
        if let Some(format) = Format::parse(system, text) {
            self.by_id.insert(format.id, self.formats.len());
            self.formats.push(format);
        }
    }

    /// The text that the kernel has at this address, of those in `printk_formats`.
    pub fn text_at(&self, address: u64) -> Option<&str> {
        self.texts.get(&address).map(String::as_str)
    }

    /// The format of the tracepoint with `id`, the `config` of its attr.
    pub fn format(&self, id: u64) -> Option<&Format> {
        self.formats.get(*self.by_id.get(&id)?)
    }
}

impl Format {
    /// Reads the text of a `format` file of tracefs; `None` when it has no id.
    pub fn parse(system: &str, text: &[u8]) -> Option<Format> {
        let text = String::from_utf8_lossy(text);
        let mut format = Format { system: system.to_owned(), ..Format::default() };
        let mut id = None;
        for line in text.lines().take_while(|line| !line.starts_with("print fmt:")) {
            let line = line.trim();
            if let Some(name) = line.strip_prefix("name:") {
                format.name = name.trim().to_owned();
            } else if let Some(number) = line.strip_prefix("ID:") {
                id = number.trim().parse().ok();
            } else if line.starts_with("field") {
                format.fields.extend(Field::parse(line));
            }
        }
        // The last part of the text: a format may have line breaks.
        if let Some((_, rest)) = text.split_once("\nprint fmt:") {
            format.print_fmt = rest.trim().to_owned();
        }
        format.id = id?;
        Some(format)
    }

    /// The field called `name`.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// All fields of `raw` but those that every tracepoint has, each as ` name=value`: what
    /// libtraceevent prints where the print format is of no use.
    pub fn print_fields(&self, raw: &[u8]) -> String {
        let mut out = String::new();
        for field in self.fields.iter().filter(|field| !field.name.starts_with("common_")) {
            out.push_str(&format!(" {}=", field.name));
            field.print(raw, &mut out);
        }
        out
    }
}

impl Field {
    /// The value in `raw` as [`Format::print_fields`] prints it.
    pub fn printed(&self, raw: &[u8]) -> String {
        let mut out = String::new();
        self.print(raw, &mut out);
        out
    }
}

impl Field {
    /// Reads a line `field:TYPE NAME; offset:N; size:N; signed:N;`.
    fn parse(line: &str) -> Option<Field> {
        let mut parts = line.split(';');
        let declaration = parts.next()?.split_once(':')?.1.trim();
        let (mut offset, mut size, mut signed) = (None, None, false);
        for part in parts {
            match part.trim().split_once(':') {
                Some(("offset", number)) => offset = number.parse().ok(),
                Some(("size", number)) => size = number.parse().ok(),
                Some(("signed", number)) => signed = number == "1",
                _ => {}
            }
        }
        let (offset, size): (usize, usize) = (offset?, size?);
        // `char comm[16]` and `__data_loc char[] name`: the brackets follow the name or the type.
        let (plain, length) = match declaration.strip_suffix(']').and_then(|d| d.rsplit_once('[')) {
            Some((plain, length)) => (plain.trim(), Some(length)),
            None => (declaration, None),
        };
        let (type_name, name) = plain.rsplit_once([' ', '*'])?;
        let type_name = type_name.trim();
        let relative = type_name.starts_with("__rel_loc");
        let is_text = type_name.split_whitespace().any(|word| word == "char" || word.starts_with("char["));
        let kind = if relative || type_name.starts_with("__data_loc") {
            FieldKind::Dynamic { text: is_text, relative }
        } else if let Some(length) = length {
            let count = length.trim().parse().ok().filter(|&count| count > 0);
            // The length may be missing, as in probe events, or the name of a constant: then the
            // type tells how large an element is.
            let element_bytes = count.map_or_else(|| element_bytes(type_name), |count: usize| size / count);
            match type_name {
                "char" => FieldKind::Text,
                _ => FieldKind::Array { element_bytes },
            }
        } else if matches!(size, 1 | 2 | 4 | 8) {
            FieldKind::Number
        } else {
            FieldKind::Array { element_bytes: 1 }
        };
        Some(Field {
            name: name.trim().to_owned(),
            type_name: type_name.to_owned(),
            offset,
            size,
            signed,
            kind,
        })
    }

    /// The field's value in `raw`; `None` when it lies outside.
    pub fn value<'a>(&self, raw: &'a [u8]) -> Option<Value<'a>> {
        let bytes = self.bytes(raw)?;
        Some(match self.kind {
            FieldKind::Number => self.number(bytes)?,
            FieldKind::Text | FieldKind::Dynamic { text: true, .. } => Value::Text(until_nul(bytes)),
            FieldKind::Array { .. } | FieldKind::Dynamic { .. } => Value::Bytes(bytes),
        })
    }

    /// The field's bytes in `raw`, those of a dynamic field where they are; `None` when they lie
    /// outside.
    pub fn bytes<'a>(&self, raw: &'a [u8]) -> Option<&'a [u8]> {
        let end = self.offset.checked_add(self.size)?;
        let bytes = raw.get(self.offset..end)?;
        let FieldKind::Dynamic { relative, .. } = self.kind else { return Some(bytes) };
        let place = u32::from_le_bytes(*bytes.first_chunk::<4>()?);
        let base = if relative { end } else { 0 };
        let start = base.checked_add((place & 0xffff) as usize)?;
        raw.get(start..start.checked_add((place >> 16) as usize)?)
    }

    /// Whether bytes of this type may be text, by libtraceevent's rule.
    pub fn may_be_text(&self) -> bool {
        self.kind != FieldKind::Number
            && ["char", "u8", "s8"].iter().any(|word| self.type_name.contains(word))
    }

    /// Prints the value as libtraceevent does: what is or may be an address in base 16, texts as
    /// they are, other arrays as bytes.
    fn print(&self, raw: &[u8], out: &mut String) {
        use std::fmt::Write;
        let is_long = self.type_name.contains("long");
        // Writing to a String cannot fail.
        let _ = match self.value(raw) {
            Some(Value::Unsigned(value)) if is_long || self.type_name.contains('*') => {
                write!(out, "{value:#x}")
            }
            Some(Value::Signed(value)) if is_long && self.size == 4 => write!(out, "{:#x}", value as u32),
            Some(Value::Signed(value)) if self.size == 2 => write!(out, "{value:2}"),
            Some(value @ (Value::Unsigned(_) | Value::Signed(_))) => write!(out, "{value}"),
            Some(Value::Text(bytes) | Value::Bytes(bytes)) => {
                let text = until_nul(bytes);
                let printable = |byte: &u8| matches!(byte, b' '..=b'~' | b'\t'..=b'\r');
                if self.may_be_text() && text.iter().all(printable) {
                    write!(out, "{}", String::from_utf8_lossy(text))
                } else {
                    let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                    write!(out, "ARRAY[{}]", bytes.join(", "))
                }
            }
            None => Ok(()),
        };
    }

    fn number<'a>(&self, bytes: &[u8]) -> Option<Value<'a>> {
        let mut wide = [0u8; 8];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let value = u64::from_le_bytes(wide);
        if !self.signed {
            return Some(Value::Unsigned(value));
        }
        let unused = 64 - 8 * u32::try_from(bytes.len()).ok()?;
        Some(Value::Signed(value.checked_shl(unused)?.cast_signed() >> unused))
    }
}

/// The bits of a type, if it is known.
pub(crate) fn known_bits_of_type(words: &[&str]) -> Option<u32> {
    let has = |word: &str| words.contains(&word);
    match words.last().map(|word| word.trim_start_matches('_')) {
        _ if has("struct") || has("union") => None,
        Some("u8" | "s8" | "uint8_t" | "int8_t" | "bool") => Some(8),
        Some("u16" | "s16" | "le16" | "be16" | "uint16_t" | "int16_t") => Some(16),
        Some("u32" | "s32" | "le32" | "be32" | "uint32_t" | "int32_t") => Some(32),
        Some("u64" | "s64" | "le64" | "be64" | "uint64_t" | "int64_t") => Some(64),
        _ if has("char") => Some(8),
        _ if has("short") => Some(16),
        _ if has("long") => Some(64),
        Some("int" | "unsigned" | "signed") => Some(32),
        _ => None,
    }
}

/// How many bytes one element of an array of this type has; 1 if the type is not known.
fn element_bytes(type_name: &str) -> usize {
    let words: Vec<&str> = type_name.split_whitespace().collect();
    known_bits_of_type(&words).map_or(1, |bits| bits as usize / 8)
}

/// Texts of tracefs from which tracing data is made. Everything may be empty; perf needs
/// `header_page`.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// `events/header_page`.
    pub header_page: Vec<u8>,
    /// `events/header_event`.
    pub header_event: Vec<u8>,
    /// Per system: its name and the `format` files of its recorded events.
    pub systems: Vec<(String, Vec<Vec<u8>>)>,
    /// `/proc/kallsyms`; perf leaves it empty.
    pub kallsyms: Vec<u8>,
    /// `printk_formats`.
    pub printk_formats: Vec<u8>,
    /// `saved_cmdlines`.
    pub saved_cmdlines: Vec<u8>,
    /// Page size in bytes.
    pub page_size: u32,
}

impl Files {
    /// The tracing data: the payload of the feature section, or of HEADER_TRACING_DATA in a pipe.
    pub fn to_blob(&self) -> Vec<u8> {
        let mut out = [MAGIC, VERSION, &[0, 8]].concat();
        let put_64 = |out: &mut Vec<u8>, text: &[u8]| {
            out.extend_from_slice(&(text.len() as u64).to_le_bytes());
            out.extend_from_slice(text);
        };
        let put_32 = |out: &mut Vec<u8>, text: &[u8]| {
            out.extend_from_slice(&(text.len() as u32).to_le_bytes());
            out.extend_from_slice(text);
        };
        out.extend_from_slice(&self.page_size.to_le_bytes());
        out.extend_from_slice(b"header_page\0");
        put_64(&mut out, &self.header_page);
        out.extend_from_slice(b"header_event\0");
        put_64(&mut out, &self.header_event);
        out.extend_from_slice(&0u32.to_le_bytes());
        out.extend_from_slice(&(self.systems.len() as u32).to_le_bytes());
        for (system, formats) in &self.systems {
            out.extend_from_slice(system.as_bytes());
            out.push(0);
            out.extend_from_slice(&(formats.len() as u32).to_le_bytes());
            for format in formats {
                put_64(&mut out, format);
            }
        }
        put_32(&mut out, &self.kallsyms);
        put_32(&mut out, &self.printk_formats);
        put_64(&mut out, &self.saved_cmdlines);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: demo\nID: 77\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:char comm[4];\toffset:8;\tsize:4;\tsigned:0;\n\
        \tfield:int value;\toffset:12;\tsize:4;\tsigned:1;\n\
        \tfield:__data_loc char[] file;\toffset:16;\tsize:4;\tsigned:0;\n\
        \tfield:const void * ptr;\toffset:20;\tsize:8;\tsigned:0;\n\
        \tfield:u64 list[2];\toffset:28;\tsize:16;\tsigned:0;\n\
        \nprint fmt: \"%d\", REC->value\n";

    /// Checks that tracing data made from format texts comes back, and that its fields print.
    #[test]
    fn blob_round_trip_and_print() {
        let files = Files {
            header_page: b"page".to_vec(),
            header_event: b"event".to_vec(),
            systems: vec![("sys".to_owned(), vec![FORMAT.into(), b"garbage".to_vec()])],
            page_size: 4096,
            ..Files::default()
        };
        let blob = files.to_blob();
        let data = parse(&blob).expect("parses");
        assert_eq!((data.formats.len(), data.page_size), (1, 4096));
        let format = data.format(77).expect("found");
        assert_eq!((format.system.as_str(), format.name.as_str()), ("sys", "demo"));
        let mut raw = vec![0u8; 44];
        raw[8..10].copy_from_slice(b"ab");
        raw[12..16].copy_from_slice(&(-5i32).to_le_bytes());
        raw[16..20].copy_from_slice(&(44u32 | 4 << 16).to_le_bytes());
        raw[20] = 9;
        raw.extend_from_slice(b"xyz\0");
        let text = format.print_fields(&raw);
        let list = vec!["00"; 16].join(", ");
        assert_eq!(text, format!(" comm=ab value=-5 file=xyz ptr=0x9 list=ARRAY[{list}]"));
        for cut in 0..blob.len() {
            // Every cut either misses something before the formats' end, or only what follows them.
            let _ = parse(&blob[..cut]);
        }
        assert_eq!(parse(&blob[..4]).unwrap_err().offset, 0);
    }
}
