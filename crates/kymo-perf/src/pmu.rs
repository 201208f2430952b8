//! PMUs of this machine, from `/sys/bus/event_source/devices`.
//!
//! Each folder there is a PMU: `type` is its number, `format/` names bit ranges of the attr's
//! config words, `events/` holds ready-made term lists, and `cpumask` or `cpus` says on which CPUs
//! it can be opened. All of it is text written by kernel modules and is treated as untrusted: sizes
//! are bounded and what does not parse is left out.

use crate::cpu_list;
use std::fs;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;

/// At most so much is read of one sysfs file; the largest real ones (CPU lists) stay far below.
const FILE_LIMIT_BYTES: u64 = 64 << 10;

/// One PMU of the kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Pmu {
    /// The folder's name, such as `cpu` or `uncore_imc_0`.
    pub name: String,
    /// The attr's `type`.
    pub kind: u32,
    /// The names of config bits, sorted by name.
    pub formats: Vec<Format>,
    /// The ready-made events, sorted by name.
    pub events: Vec<Alias>,
    /// CPUs to open on, ascending, if the PMU names any.
    pub cpus: Option<Vec<u32>>,
    /// Counts for a socket or the whole machine, so it cannot follow a task.
    pub system_wide: bool,
    /// Has the `cpus` file that marks the PMU of some cores on a machine with several kinds of
    /// cores.
    pub part_of_cores: bool,
}

/// A named set of bits of one config word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    /// The term's name.
    pub name: String,
    /// Which word: 0 for `config`, 1 for `config1`, and so on to 4.
    pub word: u8,
    /// Bit ranges, from the one that takes the value's lowest bits.
    pub bits: Vec<RangeInclusive<u8>>,
}

impl Format {
    /// Reads a format file's text, such as `config:0-7,32-35`.
    pub(crate) fn parse(name: &str, text: &str) -> Option<Self> {
        let (word, ranges) = text.trim().split_once(':')?;
        let word = match word {
            "config" => 0,
            "config1" => 1,
            "config2" => 2,
            "config3" => 3,
            "config4" => 4,
            _ => return None,
        };
        let mut bits = Vec::new();
        for range in ranges.split(',').take(64) {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let (low, high) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
            if low > high || high > 63 {
                return None;
            }
            bits.push(low..=high);
        }
        Some(Self { name: name.to_owned(), word, bits })
    }

    /// The largest value that fits.
    pub(crate) fn max(&self) -> u64 {
        let width: u32 = self.bits.iter().map(|range| u32::from(range.end() - range.start()) + 1).sum();
        if width >= 64 { u64::MAX } else { (1 << width) - 1 }
    }

    /// Puts `value` into `word`'s bits, lowest first. Bits of `value` that have no place are
    /// dropped.
    pub(crate) fn deposit(&self, word: &mut u64, value: u64) {
        let mut rest = value;
        for range in &self.bits {
            let width = u32::from(range.end() - range.start()) + 1;
            let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
            *word = *word & !(mask << range.start()) | (rest & mask) << range.start();
            rest = rest.checked_shr(width).unwrap_or(0);
        }
    }
}

/// A ready-made event of a PMU.
#[derive(Debug, Clone, PartialEq)]
pub struct Alias {
    /// The file's name.
    pub name: String,
    /// Its text: a list of terms.
    pub terms: String,
    /// What one count stands for, from `NAME.scale`.
    pub scale: Option<f64>,
    /// The unit, from `NAME.unit`.
    pub unit: Option<String>,
}

impl Pmu {
    /// Whether this is the PMU of CPU cores, which serves `cycles` and raw events.
    pub(crate) fn is_core(&self) -> bool {
        self.name == "cpu" || self.part_of_cores
    }

    /// The format of that name.
    pub(crate) fn format(&self, name: &str) -> Option<&Format> {
        self.formats.iter().find(|format| format.name == name)
    }

    /// The ready-made event of that name.
    pub(crate) fn event(&self, name: &str) -> Option<&Alias> {
        self.events.iter().find(|event| event.name == name)
    }
}

/// Reads every PMU below a sysfs root, sorted by name. What cannot be read is left out.
pub(crate) fn read_all(sys: &Path) -> Vec<Pmu> {
    let folder = sys.join("bus/event_source/devices");
    let mut pmus: Vec<Pmu> =
        names_in(&folder).iter().filter_map(|name| read(&folder.join(name), name)).collect();
    pmus.sort_by(|a, b| a.name.cmp(&b.name));
    pmus
}

fn read(dir: &Path, name: &str) -> Option<Pmu> {
    let kind = text(&dir.join("type"))?.trim().parse().ok()?;
    let mask = text(&dir.join("cpumask")).map(|list| cpu_list::parse(&list));
    let cores = text(&dir.join("cpus")).map(|list| cpu_list::parse(&list));
    let formats_dir = dir.join("format");
    let formats = names_in(&formats_dir)
        .iter()
        .filter_map(|name| Format::parse(name, &text(&formats_dir.join(name))?))
        .collect();
    Some(Pmu {
        name: name.to_owned(),
        kind,
        formats,
        events: aliases(&dir.join("events")),
        system_wide: mask.is_some() && cores.is_none(),
        part_of_cores: cores.is_some(),
        cpus: mask.or(cores),
    })
}

fn aliases(dir: &Path) -> Vec<Alias> {
    let side = [".scale", ".unit", ".per-pkg", ".snapshot"];
    names_in(dir)
        .iter()
        .filter(|name| !side.iter().any(|suffix| name.ends_with(suffix)))
        .filter_map(|name| {
            let terms = text(&dir.join(name))?.trim().to_owned();
            let beside = |suffix: &str| text(&dir.join(format!("{name}{suffix}")));
            let scale = beside(".scale").and_then(|scale| scale.trim().parse().ok());
            let unit = beside(".unit").map(|unit| unit.trim().to_owned());
            Some(Alias { name: name.clone(), terms, scale, unit })
        })
        .collect()
}

/// A small text file, or `None` if it cannot be read. Longer files are cut, bytes that are not
/// UTF-8 replaced.
pub(crate) fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(FILE_LIMIT_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The names in a folder that are UTF-8, sorted; empty if it cannot be read.
fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a value is spread over split ranges from its lowest bit up, and that old bits
    /// give way.
    #[test]
    fn format_deposits_low_bits_first() {
        let format = Format::parse("event", "config:0-7,32-35\n").unwrap();
        let mut word = 0xffff_ffff_0000_00ff;
        format.deposit(&mut word, 0xabc);
        assert_eq!(word, 0xffff_fffa_0000_00bc);
        assert_eq!(format.max(), 0xfff);
    }

    /// Checks the widest and narrowest format, where shifting by the width would overflow.
    #[test]
    fn format_handles_one_bit_and_all_bits() {
        let mut word = 0;
        Format::parse("all", "config1:0-63").unwrap().deposit(&mut word, u64::MAX);
        assert_eq!(word, u64::MAX);
        let edge = Format::parse("edge", "config2:63").unwrap();
        assert_eq!((edge.word, edge.max()), (2, 1));
        edge.deposit(&mut word, 0);
        assert_eq!(word, u64::MAX >> 1);
    }

    /// Checks that damaged format files are refused, not guessed at.
    #[test]
    fn format_refuses_nonsense() {
        for text in
            ["", "config", "config:", "config:8-7", "config:0-64", "config9:0", "config:a-b", "config:-1"]
        {
            assert_eq!(Format::parse("x", text), None, "{text:?}");
        }
    }
}
