//! What expressions come to, for the raw bytes of one sample.

use super::lex::unescaped;
use super::node::Node;
use super::printf::{Conversion, ConversionKind, Extent};
use super::{KernelNames, MAX_PRINTED_BYTES};
use crate::tracing_data::{Field, FieldKind};
use crate::words::until_nul;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Names of numbers that formats have and the kernel does not replace.
const KNOWN_NAMES: [(&str, u64); 12] = [
    ("HI_SOFTIRQ", 0),
    ("TIMER_SOFTIRQ", 1),
    ("NET_TX_SOFTIRQ", 2),
    ("NET_RX_SOFTIRQ", 3),
    ("BLOCK_SOFTIRQ", 4),
    ("IRQ_POLL_SOFTIRQ", 5),
    ("TASKLET_SOFTIRQ", 6),
    ("SCHED_SOFTIRQ", 7),
    ("HRTIMER_SOFTIRQ", 8),
    ("RCU_SOFTIRQ", 9),
    ("HRTIMER_NORESTART", 0),
    ("HRTIMER_RESTART", 1),
];

const AF_INET: u64 = 2;
const AF_INET6: u64 = 10;

/// The raw bytes of a sample, and what they are read with.
pub(super) struct Sample<'a> {
    pub(super) nodes: &'a [Node],
    pub(super) fields: &'a [Field],
    pub(super) raw: &'a [u8],
    pub(super) names: &'a dyn KernelNames,
}

/// The value of an entry in a list of names: of a name that is no number, none.
pub(super) fn constant(nodes: &[Node], node: u32) -> Option<u64> {
    if let Some(Node::Name(name)) = nodes.get(node as usize) {
        return KNOWN_NAMES.iter().find(|known| known.0 == name).map(|known| known.1);
    }
    let sample = Sample { nodes, fields: &[], raw: &[], names: &super::NoKernelNames };
    let value = sample.number(node);
    // libtraceevent keeps entries as texts, and does not know one with a sign.
    (value.cast_signed() >= 0).then_some(value)
}

/// The number of a field, or of one of its elements. One of less than 32 bits becomes an `int` by
/// its sign, as in C, so that the kernel's own text and this one agree; perf 6.1 to 7.2 print a
/// negative `s16` as 65528.
fn promoted(signed: bool, bytes: &[u8]) -> u64 {
    let number = le_number(bytes);
    match bytes.len() {
        1 if signed => u64::from(number as u8 as i8 as i32 as u32),
        2 if signed => u64::from(number as u16 as i16 as i32 as u32),
        _ => number,
    }
}

fn le_number(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    match (bytes.len(), wide.get_mut(..bytes.len())) {
        (1 | 2 | 4 | 8, Some(low)) => low.copy_from_slice(bytes),
        _ => return 0,
    }
    u64::from_le_bytes(wide)
}

impl<'a> Sample<'a> {
    fn node(&self, node: u32) -> &'a Node {
        const NONE: &Node = &Node::Number(0);
        self.nodes.get(node as usize).unwrap_or(NONE)
    }

    fn field_bytes(&self, field: usize) -> Option<(&'a Field, &'a [u8])> {
        let field = self.fields.get(field)?;
        Some((field, self.raw.get(field.offset..field.offset.checked_add(field.size)?)?))
    }

    /// Where a dynamic field's data starts, and the bytes that it says it has.
    fn dynamic_place(&self, field: usize) -> Option<(usize, usize)> {
        self.dynamic_element(field, 0)
    }

    /// The same of one of several data of a field: their places lie one after the other.
    fn dynamic_element(&self, field: usize, index: usize) -> Option<(usize, usize)> {
        let (field, bytes) = self.field_bytes(field)?;
        let place = le_number(bytes.chunks(4).nth(index)?);
        let relative = matches!(field.kind, FieldKind::Dynamic { relative: true, .. });
        let base = if relative { field.offset + field.size } else { 0 };
        Some((base + (place & 0xffff) as usize, (place >> 16 & 0xffff) as usize))
    }

    fn dynamic(&self, field: usize) -> &'a [u8] {
        let Some((start, len)) = self.dynamic_place(field) else { return &[] };
        let from = self.raw.get(start..).unwrap_or_default();
        from.get(..len).unwrap_or(from)
    }

    /// The bytes that an expression stands for where its place is needed, up to the end of the raw
    /// bytes.
    fn bytes(&self, node: u32) -> &'a [u8] {
        match self.node(node) {
            Node::Field(field) => match self.fields.get(*field) {
                Some(place) if matches!(place.kind, FieldKind::Dynamic { .. }) => self.dynamic(*field),
                Some(place) => self.raw.get(place.offset..).unwrap_or_default(),
                None => &[],
            },
            Node::DynamicArray(field) => match self.dynamic_place(*field) {
                Some((start, _)) => self.raw.get(start..).unwrap_or_default(),
                None => &[],
            },
            Node::Cast { operand, .. } => self.bytes(*operand),
            _ => &[],
        }
    }

    /// The number that an expression comes to, in 64 bits without sign.
    pub(super) fn number(&self, node: u32) -> u64 {
        match self.node(node) {
            Node::Number(number) => *number,
            Node::Field(field) => {
                self.field_bytes(*field).map_or(0, |(field, bytes)| promoted(field.signed, bytes))
            }
            Node::Not(operand) => u64::from(self.number(*operand) == 0),
            Node::Complement(operand) => !self.number(*operand),
            Node::Negative(operand) => self.number(*operand).wrapping_neg(),
            Node::Binary(operator, left, right) => operator(self.number(*left), self.number(*right)),
            Node::Choice(condition, first, second) => {
                self.number(if self.number(*condition) != 0 { *first } else { *second })
            }
            Node::Cast { bits, operand, .. } => {
                let unused = 64 - (*bits).clamp(1, 64);
                self.number(*operand) << unused >> unused
            }
            Node::Element { array, index, bits } => self.element(*array, *index, *bits),
            Node::DynamicLength(field) => self.dynamic_place(*field).map_or(0, |place| place.1 as u64),
            _ => 0,
        }
    }

    fn element(&self, array: u32, index: u32, bits: Option<u32>) -> u64 {
        let index = self.number(index);
        let field = match self.node(array) {
            Node::Field(field) => self.fields.get(*field),
            _ => None,
        };
        let element_bytes = match field.map(|field| field.kind) {
            Some(FieldKind::Array { element_bytes }) => element_bytes,
            Some(FieldKind::Text) => 1,
            Some(_) => 8,
            None => bits.map_or(8, |bits| bits as usize / 8),
        };
        let signed = field.is_some_and(|field| field.signed);
        let start = usize::try_from(index).ok().and_then(|index| index.checked_mul(element_bytes));
        let place = start.and_then(|start| Some(start..start.checked_add(element_bytes)?));
        place.and_then(|place| self.bytes(array).get(place)).map_or(0, |bytes| promoted(signed, bytes))
    }

    /// Prints one conversion with the arguments that it takes.
    pub(super) fn convert(
        &self,
        conversion: &Conversion,
        arguments: &mut impl Iterator<Item = u32>,
        out: &mut String,
    ) {
        let mut extent = |extent: Option<Extent>| match extent? {
            Extent::Number(number) => Some(number),
            // A negative precision is none.
            Extent::Argument => {
                let number = self.number(arguments.next()?) as u32;
                usize::try_from(number.cast_signed()).ok()
            }
        };
        let (width, precision) = (extent(conversion.width), extent(conversion.precision));
        let Some(argument) = arguments.next() else { return };
        match &conversion.kind {
            ConversionKind::Text => self.text(conversion, (width, precision), argument, out),
            ConversionKind::Character => out.push(char::from(self.number(argument) as u8)),
            ConversionKind::Function(offset) => self.function(conversion, *offset, argument, out),
            ConversionKind::Mac(plain) => mac(self.bytes(argument), if *plain { "" } else { ":" }, out),
            ConversionKind::Address(letters) => address(letters, self.bytes(argument), out),
            ConversionKind::Uuid => uuid(self.bytes(argument), out),
            ConversionKind::BitList => {
                let bytes = self.bytes(argument);
                bit_list(bytes.get(..width.unwrap_or(0).div_ceil(8)).unwrap_or(bytes), out);
            }
            // Where an address is wanted, a text is its own.
            ConversionKind::Pointer if matches!(self.node(argument), Node::Text(_)) => {
                self.text(conversion, (width, precision), argument, out);
            }
            _ => conversion.number(self.number(argument), width, precision, out),
        }
    }

    fn function(&self, conversion: &Conversion, with_offset: bool, argument: u32, out: &mut String) {
        let address = self.number(argument);
        match self.names.function(address) {
            Some((name, offset)) => {
                out.push_str(&name);
                if with_offset {
                    let _ = write!(out, "+{offset:#x}");
                }
            }
            None => conversion.number(address, None, None, out),
        }
    }

    fn text(
        &self,
        conversion: &Conversion,
        extents: (Option<usize>, Option<usize>),
        node: u32,
        out: &mut String,
    ) {
        let mut put = |text: &str| conversion.text(text, extents.0, extents.1, out);
        match self.node(node) {
            Node::Text(text) => put(&unescaped(text)),
            Node::Name(name) => put(name),
            Node::Field(field) => self.field_text(*field, put),
            Node::DynamicText(field, index) => {
                let start = self.dynamic_element(*field, *index).map_or(usize::MAX, |place| place.0);
                put(&String::from_utf8_lossy(until_nul(self.raw.get(start..).unwrap_or_default())));
            }
            Node::Choice(condition, first, second) => {
                let chosen = if self.number(*condition) != 0 { *first } else { *second };
                self.text(conversion, extents, chosen, out);
            }
            Node::Flags { value, delimiter, names } => {
                let flags = self.flags(*value, delimiter, names, put);
                out.push_str(&flags);
            }
            Node::Symbols { value, names } => {
                let value = self.number(*value);
                match names.iter().find(|name| name.0 == Some(value)) {
                    Some((_, name)) => put(name),
                    None => {
                        let _ = write!(out, "{value:#x}");
                    }
                }
            }
            Node::Hex { data, length, spaced } => {
                let length = usize::try_from(self.number(*length)).unwrap_or(usize::MAX);
                let bytes = self.bytes(*data);
                for (index, byte) in bytes.iter().take(length.min(MAX_PRINTED_BYTES)).enumerate() {
                    let space = if *spaced && index > 0 { " " } else { "" };
                    let _ = write!(out, "{space}{byte:02x}");
                }
            }
            Node::Array { data, count, element_bytes } => {
                let size = self.number(*element_bytes);
                let count = usize::try_from(self.number(*count)).unwrap_or(usize::MAX);
                array(self.bytes(*data), count, size, out);
            }
            Node::Bitmask(field) => put(&bitmask(self.dynamic(*field))),
            Node::CpuList(field) => {
                let mut list = String::new();
                bit_list(self.dynamic(*field), &mut list);
                conversion.text(&list, extents.0, extents.1, out);
            }
            _ => {}
        }
    }

    fn field_text(&self, field: usize, mut put: impl FnMut(&str)) {
        let Some((place, bytes)) = self.field_bytes(field) else { return };
        match place.kind {
            FieldKind::Dynamic { .. } => put(&String::from_utf8_lossy(until_nul(self.dynamic(field)))),
            FieldKind::Number if place.size == 8 => {
                let address = le_number(bytes);
                put(&self.names.text(address).unwrap_or_else(|| format!("{address:x}")));
            }
            _ if place.size == 0 => {
                put(&String::from_utf8_lossy(until_nul(self.raw.get(place.offset..).unwrap_or_default())));
            }
            _ => put(&String::from_utf8_lossy(until_nul(bytes))),
        }
    }

    fn flags(
        &self,
        value: u32,
        delimiter: &str,
        names: &[(Option<u64>, String)],
        mut put: impl FnMut(&str),
    ) -> String {
        let mut left = self.number(value);
        let mut shown = String::new();
        if left == 0
            && let Some((_, name)) = names.iter().find(|name| name.0.is_none())
        {
            put(name);
            return shown;
        }
        for (flag, name) in names {
            if let Some(flag) = flag.filter(|&flag| flag > 0 && left & flag == flag) {
                if !shown.is_empty() {
                    shown.push_str(delimiter);
                }
                shown.push_str(name);
                left &= !flag;
            }
        }
        if left != 0 {
            let between = if shown.is_empty() { "" } else { delimiter };
            let _ = write!(shown, "{between}{left:#x}");
        }
        shown
    }
}

fn array(bytes: &[u8], count: usize, element_bytes: u64, out: &mut String) {
    let size = match element_bytes {
        1 | 2 | 4 | 8 => element_bytes as usize,
        _ => {
            let _ = write!(out, "BAD SIZE:{element_bytes}");
            return;
        }
    };
    for (index, element) in bytes.chunks_exact(size).take(count.min(MAX_PRINTED_BYTES)).enumerate() {
        let space = if index > 0 { " " } else { "" };
        let _ = write!(out, "{space}{}", le_number(element));
    }
}

/// The bytes of a mask, the highest first, with a comma between 32 bits.
fn bitmask(bytes: &[u8]) -> String {
    let mut out = String::new();
    for (index, byte) in bytes.iter().enumerate().rev() {
        let _ = write!(out, "{byte:02x}");
        if index > 0 && index % 4 == 0 {
            out.push(',');
        }
    }
    out
}

/// The bits that are set, as `0-3,7`.
fn bit_list(bytes: &[u8], out: &mut String) {
    let is_set = |bit: usize| bytes.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1);
    let mut bit = 0;
    let mut first = true;
    while bit < 8 * bytes.len() {
        if !is_set(bit) {
            bit += 1;
            continue;
        }
        let start = bit;
        while is_set(bit + 1) {
            bit += 1;
        }
        let comma = if first { "" } else { "," };
        let _ = if start == bit { write!(out, "{comma}{bit}") } else { write!(out, "{comma}{start}-{bit}") };
        first = false;
        bit += 1;
    }
}

fn mac(bytes: &[u8], between: &str, out: &mut String) {
    match bytes.first_chunk::<6>() {
        Some(bytes) => out.push_str(&bytes.map(|byte| format!("{byte:02x}")).join(between)),
        None => out.push_str("INVALIDMAC"),
    }
}

fn uuid(bytes: &[u8], out: &mut String) {
    let Some(bytes) = bytes.first_chunk::<16>() else { return out.push_str("INVALIDUUID") };
    for (index, byte) in bytes.iter().enumerate() {
        let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
        let _ = write!(out, "{dash}{byte:02x}");
    }
}

/// An internet address: `I4`, `i4`, `I6`, `i6`, `I6c`, or a whole socket address (`IS...`).
fn address(letters: &str, bytes: &[u8], out: &mut String) {
    const INVALID: &str = "INVALIDIPv4";
    let v4 = |bytes: &[u8]| bytes.first_chunk::<4>().map(|bytes| Ipv4Addr::from(*bytes).to_string());
    let v6 = |bytes: &[u8]| bytes.first_chunk::<16>().map(|bytes| Ipv6Addr::from(*bytes));
    let text = match letters {
        "I4" => v4(bytes),
        "i4" => bytes.first_chunk::<4>().map(|bytes| bytes.map(|byte| format!("{byte:03}")).join(".")),
        "I6c" => v6(bytes).map(|address| address.to_string()),
        "I6" | "i6" => v6(bytes).map(|address| {
            let between = if letters == "I6" { ":" } else { "" };
            address.segments().map(|part| format!("{part:04x}")).join(between)
        }),
        _ => {
            let port = bytes.get(2..4).map_or(0, |port| u32::from(port[0]) << 8 | u32::from(port[1]));
            let with_port = letters.contains('p');
            match bytes.get(..2).map(le_number) {
                Some(AF_INET) => bytes
                    .get(4..)
                    .and_then(v4)
                    .map(|address| if with_port { format!("{address}:{port}") } else { address }),
                Some(AF_INET6) => bytes.get(8..).and_then(v6).map(|address| {
                    if with_port { format!("[{address}]:{port}") } else { address.to_string() }
                }),
                _ => None,
            }
        }
    };
    out.push_str(text.as_deref().unwrap_or(INVALID));
}
