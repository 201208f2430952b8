//! All records with their bytes, and what each says: `perf report -D`.
use super::{DumpError, record_line};
use crate::load::collect_sideband;
use crate::order::in_order;
use crate::resolve::Resolver;
use crate::text::shown;
use crate::timeline::{Moment, Timeline};
use kymo_data::{RawRecord, Recording, Registers, Regs, Sample, abi};
use kymo_symbols::SymbolStore;
use std::io::{self, Write};

/// Bytes on a line.
const LINE_BYTES: usize = 16;

/// Writes every record in order of time: where it is, its bytes, and its fields. `name` is that of
/// the recording's file.
///
/// # Errors
/// When the recording cannot be read at all, or `out` cannot be written.
pub fn write_raw(
    out: &mut dyn Write,
    recording: &Recording,
    name: &str,
    store: &SymbolStore,
) -> Result<(), DumpError> {
    let (timeline, ..) = collect_sideband(recording, 0, store.options(), &|_, _| {})?;
    let dump = Dump {
        recording,
        timeline: &timeline,
        resolver: Resolver::new(&timeline, store),
        registers: recording.features.arch.as_deref().and_then(Registers::of),
        name,
    };
    in_order(recording, |_| true, |record| -> Result<(), DumpError> { Ok(dump.record(record, out)?) })?;
    Ok(())
}

struct Dump<'a> {
    recording: &'a Recording,
    timeline: &'a Timeline,
    resolver: Resolver<'a>,
    /// Names of registers, where the recorded machine is known.
    registers: Option<Registers>,
    name: &'a str,
}

impl Dump<'_> {
    fn record(&self, record: &RawRecord<'_>, out: &mut dyn Write) -> io::Result<()> {
        let (position, size) = (record.position, record.header.size);
        writeln!(out, "\n{position:#x}@{} [{size:#x}]: event: {}", shown(self.name), record.header.kind)?;
        writeln!(out, ".\n. ... raw event: size {size} bytes")?;
        bytes(record, out)?;
        writeln!(out)?;
        if record.header.kind == abi::PERF_RECORD_SAMPLE {
            return self.sample(record, out);
        }
        let id = self.recording.events.sample_id(record);
        stamp(id.cpu, id.time, out)?;
        writeln!(out, "{position:#x} [{size:#x}]: {}", record_line(record))
    }

    fn sample(&self, record: &RawRecord<'_>, out: &mut dyn Write) -> io::Result<()> {
        let (position, size, misc) = (record.position, record.header.size, record.header.misc);
        let events = &self.recording.events;
        let event = events.event_of(record).map(|event| &events.list[event]);
        let Some(sample) = event.and_then(|event| event.layout.parse(misc, record.body).ok()) else {
            return writeln!(out, "{position:#x} [{size:#x}]: PERF_RECORD_SAMPLE");
        };
        stamp(sample.cpu, sample.time, out)?;
        let (pid, tid) = (sample.pid.unwrap_or(-1), sample.tid.unwrap_or(-1));
        let period = sample.period.or(event.map(|event| event.attr.sample_period)).unwrap_or(0);
        let (ip, address) = (sample.ip.unwrap_or(0), sample.addr.unwrap_or(0));
        write!(out, "{position:#x} [{size:#x}]: PERF_RECORD_SAMPLE(IP, {misc:#x}): {pid}/{tid}: {ip:#x} ")?;
        match address {
            0 => writeln!(out, "period: {period} addr: 0")?,
            _ => writeln!(out, "period: {period} addr: {address:#x}")?,
        }
        self.fields(&sample, out)?;
        let view = self.timeline.thread(pid, tid, Moment::new(sample.time, position));
        writeln!(out, " ... thread: {}:{tid}", shown(&self.timeline.comm(view.comm)))?;
        let mode = (misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
        let mapping = self.resolver.mapping(view.maps, mode, ip);
        let path = mapping.map(|mapping| &self.timeline.modules.get(mapping.module).path[..]);
        let path = String::from_utf8_lossy(path.unwrap_or(b"<not found>"));
        writeln!(out, " ...... dso: {}", shown(&path))
    }

    /// What a sample has beyond its line.
    fn fields(&self, sample: &Sample<'_>, out: &mut dyn Write) -> io::Result<()> {
        if let Some(chain) = sample.callchain {
            writeln!(out, "... FP chain: nr:{}", chain.iter().count())?;
            for (at, word) in chain.iter().enumerate() {
                writeln!(out, "..... {at:>2}: {word:016x}{}", context(word))?;
            }
        }
        for (kind, registers) in [("user", sample.user_regs), ("intr", sample.intr_regs)] {
            if let Some(registers) = registers {
                self.registers(kind, &registers, out)?;
            }
        }
        if let Some(stack) = sample.user_stack {
            writeln!(out, "... ustack: size {}, offset 0x0", stack.len())?;
        }
        Ok(())
    }

    fn registers(&self, kind: &str, registers: &Regs<'_>, out: &mut dyn Write) -> io::Result<()> {
        let abi = match registers.abi {
            0 => "none",
            1 => "32-bit",
            _ => "64-bit",
        };
        let present = (0..64).filter_map(|number| Some((number, registers.get(number)?)));
        let mask = present.clone().fold(0_u64, |mask, (number, _)| mask | 1 << number);
        writeln!(out, "... {kind} regs: mask {mask:#x} ABI {abi}")?;
        for (number, value) in present {
            let name = self.registers.and_then(|names| names.name(number as usize)).unwrap_or("unknown");
            writeln!(out, ".... {name:<5} {value:#018x}")?;
        }
        Ok(())
    }
}

/// CPU and time of a record, as far as it has them.
fn stamp(cpu: Option<u32>, time: Option<u64>, out: &mut dyn Write) -> io::Result<()> {
    if let Some(cpu) = cpu {
        write!(out, "{cpu} ")?;
    }
    write!(out, "{} ", time.unwrap_or(0))
}

/// The bytes of a record as numbers and as text.
fn bytes(record: &RawRecord<'_>, out: &mut dyn Write) -> io::Result<()> {
    let header = record.header;
    let mut all =
        [header.kind.to_le_bytes().as_slice(), &header.misc.to_le_bytes(), &header.size.to_le_bytes()]
            .concat();
    all.extend_from_slice(record.body);
    for (at, line) in all.chunks(LINE_BYTES).enumerate() {
        write!(out, ".  {:04x}: ", at * LINE_BYTES)?;
        line.iter().try_for_each(|byte| write!(out, " {byte:02x}"))?;
        let is_plain = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
        let text: String =
            line.iter().map(|byte| if is_plain(byte) { char::from(*byte) } else { '.' }).collect();
        writeln!(out, "{:width$}  {text}", "", width = 3 * (LINE_BYTES - line.len()))?;
    }
    Ok(())
}

/// The name of a mark between the addresses of a call chain.
fn context(word: u64) -> &'static str {
    match word {
        abi::PERF_CONTEXT_KERNEL => " (PERF_CONTEXT_KERNEL)",
        abi::PERF_CONTEXT_USER => " (PERF_CONTEXT_USER)",
        _ => "",
    }
}
