//! An event's settings, as handed to the kernel and as stored in a recording.

use crate::abi;
use crate::words::{u16_at, u32_at, u64_at};

/// The settings of one event: `perf_event_attr` with the kernel's field names.
///
/// Union members share one field, named after its first use: `sample_period` is also the frequency
/// (see [`freq`](Attr::freq)), `wakeup` is events or bytes, `config1` is also the breakpoint's
/// address and `config2` its length.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[doc(alias = "perf_event_attr")]
pub struct Attr {
    /// Type of the event: one of `PERF_TYPE_*` or a PMU's dynamic number.
    pub kind: u32,
    /// Size in bytes that the attr had where it was read; 0 for one built here.
    pub size: u32,
    /// What is counted, in terms of `kind`.
    pub config: u64,
    /// Period, or frequency in Hz when the `freq` flag is set.
    pub sample_period: u64,
    /// Which fields a sample carries: `PERF_SAMPLE_*`.
    pub sample_type: u64,
    /// Which values a read returns: `PERF_FORMAT_*`.
    pub read_format: u64,
    /// The bit field: `ATTR_FLAG_*`.
    pub flags: u64,
    /// Wake the reader after so many events, or bytes when the `watermark` flag is set.
    pub wakeup: u32,
    /// Breakpoint: kind of access (1 read, 2 write, 4 execute).
    pub bp_type: u32,
    /// Second setting; a breakpoint's address.
    pub config1: u64,
    /// Third setting; a breakpoint's length in bytes.
    pub config2: u64,
    /// Which branches to record.
    pub branch_sample_type: u64,
    /// Which user registers a sample carries, one bit each.
    pub sample_regs_user: u64,
    /// How many bytes of user stack a sample carries.
    pub sample_stack_user: u32,
    /// The clock of `time` when the `use_clockid` flag is set.
    pub clockid: i32,
    /// Which registers at the interrupt a sample carries.
    pub sample_regs_intr: u64,
    /// AUX watermark in bytes.
    pub aux_watermark: u32,
    /// Longest callchain; 0 means the system's limit.
    pub sample_max_stack: u16,
    /// How many AUX bytes a sample carries.
    pub aux_sample_size: u32,
    /// AUX action bits.
    pub aux_action: u32,
    /// Data for the signal of a `sigtrap` event.
    pub sig_data: u64,
    /// Fourth setting.
    pub config3: u64,
    /// Fifth setting.
    pub config4: u64,
}

/// Size of the oldest attr that was ever written (64 bytes).
pub(crate) const ATTR_SIZE_VER0: u32 = 64;
/// The sizes that the attr has had in Linux, ascending, up to the longest that this library writes:
/// the one that perf 6.1 knows.
const ATTR_SIZES: [u32; 8] = [ATTR_SIZE_VER0, 72, 80, 96, 104, 112, 120, ATTR_SIZE_MAX];
/// The longest attr that this library writes (128 bytes, Linux 5.13).
pub(crate) const ATTR_SIZE_MAX: u32 = 128;

/// The size that the attrs of a file have: the smallest of those in Linux that leaves out zeros
/// only. A perf that is older than a size opens no file whose attrs have it, whatever is in them.
pub(crate) fn size_written<'a>(attrs: impl Iterator<Item = &'a Attr>) -> u32 {
    let used = |attr: &Attr| attr.to_bytes().iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let longest = attrs.map(used).max().unwrap_or(0);
    ATTR_SIZES.into_iter().find(|&size| size as usize >= longest).unwrap_or(ATTR_SIZE_MAX)
}

impl Attr {
    /// Whether its samples stand for all CPU time of what is observed: a clock of the kernel's that
    /// leaves out neither user mode nor the kernel.
    pub fn samples_cpu_time(&self) -> bool {
        let is_clock = self.kind == abi::PERF_TYPE_SOFTWARE
            && [abi::PERF_COUNT_SW_CPU_CLOCK, abi::PERF_COUNT_SW_TASK_CLOCK].contains(&self.config);
        let excludes = abi::ATTR_FLAG_EXCLUDE_USER | abi::ATTR_FLAG_EXCLUDE_KERNEL;
        is_clock && self.flags & excludes == 0 && self.sample_period > 0
    }

    /// Reads an attr; `bytes` is as long as the attr is stored. Shorter forms of old kernels are
    /// filled up with zeros, bytes beyond what this library knows are ignored. `None` below 64
    /// bytes, the first kernel's size.
    pub fn parse(bytes: &[u8]) -> Option<Attr> {
        if bytes.len() < ATTR_SIZE_VER0 as usize {
            return None;
        }
        let u32_or_0 = |at| u32_at(bytes, at).unwrap_or(0);
        let u64_or_0 = |at| u64_at(bytes, at).unwrap_or(0);
        Some(Attr {
            kind: u32_or_0(0),
            size: u32_or_0(4),
            config: u64_or_0(8),
            sample_period: u64_or_0(16),
            sample_type: u64_or_0(24),
            read_format: u64_or_0(32),
            flags: u64_or_0(40),
            wakeup: u32_or_0(48),
            bp_type: u32_or_0(52),
            config1: u64_or_0(56),
            config2: u64_or_0(64),
            branch_sample_type: u64_or_0(72),
            sample_regs_user: u64_or_0(80),
            sample_stack_user: u32_or_0(88),
            clockid: u32_or_0(92).cast_signed(),
            sample_regs_intr: u64_or_0(96),
            aux_watermark: u32_or_0(104),
            sample_max_stack: u16_at(bytes, 108).unwrap_or(0),
            aux_sample_size: u32_or_0(112),
            aux_action: u32_or_0(116),
            sig_data: u64_or_0(120),
            config3: u64_or_0(128),
            config4: u64_or_0(136),
        })
    }

    /// The 128 bytes that perf 6.1 knows, with `size` set to 128: without `config3` and `config4`.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.to_bytes_of(ATTR_SIZE_MAX)
    }

    /// The first `size` bytes, which say so.
    pub(crate) fn to_bytes_of(&self, size: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(ATTR_SIZE_MAX as usize);
        out.extend_from_slice(&self.kind.to_le_bytes());
        out.extend_from_slice(&size.to_le_bytes());
        for word in [self.config, self.sample_period, self.sample_type, self.read_format, self.flags] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.wakeup.to_le_bytes());
        out.extend_from_slice(&self.bp_type.to_le_bytes());
        for word in [self.config1, self.config2, self.branch_sample_type, self.sample_regs_user] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.sample_stack_user.to_le_bytes());
        out.extend_from_slice(&self.clockid.to_le_bytes());
        out.extend_from_slice(&self.sample_regs_intr.to_le_bytes());
        out.extend_from_slice(&self.aux_watermark.to_le_bytes());
        out.extend_from_slice(&self.sample_max_stack.to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&self.aux_sample_size.to_le_bytes());
        out.extend_from_slice(&self.aux_action.to_le_bytes());
        out.extend_from_slice(&self.sig_data.to_le_bytes());
        out.truncate(size as usize);
        out
    }

    /// Whether all bits of `flag` (`ATTR_FLAG_*`) are set.
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag == flag
    }

    /// Sets or clears the bits of `flag`.
    pub fn set(&mut self, flag: u64, on: bool) -> &mut Attr {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
        self
    }

    /// The wanted precision of the instruction pointer, 0 (any skid) to 3 (none).
    pub fn precise_ip(&self) -> u8 {
        ((self.flags >> abi::ATTR_PRECISE_IP_SHIFT) & 3) as u8
    }

    /// Sets the wanted precision of the instruction pointer (0 to 3; larger counts as 3).
    pub fn set_precise_ip(&mut self, precise: u8) -> &mut Attr {
        self.flags &= !(3 << abi::ATTR_PRECISE_IP_SHIFT);
        self.flags |= u64::from(precise.min(3)) << abi::ATTR_PRECISE_IP_SHIFT;
        self
    }

    /// The sampling frequency in Hz, if the event samples by frequency.
    pub fn freq(&self) -> Option<u64> {
        self.has(abi::ATTR_FLAG_FREQ).then_some(self.sample_period)
    }

    /// Whether records other than samples end with a [`SampleId`](crate::SampleId).
    pub fn sample_id_all(&self) -> bool {
        self.has(abi::ATTR_FLAG_SAMPLE_ID_ALL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that every field survives bytes, and that old and newer sizes are accepted.
    #[test]
    fn round_trip_and_sizes() {
        let mut attr = Attr {
            kind: 1,
            config: 2,
            sample_period: 3,
            sample_type: 4,
            read_format: 5,
            wakeup: 7,
            bp_type: 8,
            config1: 9,
            config2: 10,
            branch_sample_type: 11,
            sample_regs_user: 12,
            sample_stack_user: 13,
            clockid: -2,
            sample_regs_intr: 14,
            aux_watermark: 15,
            sample_max_stack: 16,
            aux_sample_size: 17,
            aux_action: 18,
            sig_data: 19,
            config3: 20,
            config4: 21,
            ..Attr::default()
        };
        attr.set_precise_ip(2).set(abi::ATTR_FLAG_FREQ, true);
        assert_eq!((attr.precise_ip(), attr.freq()), (2, Some(3)));
        let mut long = attr.to_bytes();
        long[4] = 144;
        long.extend([attr.config3, attr.config4].iter().flat_map(|word| word.to_le_bytes()));
        long.extend_from_slice(&[0xff; 40]);
        let back = Attr::parse(&long).expect("parses");
        assert_eq!(back, Attr { size: 144, ..attr.clone() });
        let short = Attr::parse(&attr.to_bytes()[..64]).expect("parses");
        assert_eq!((short.config1, short.config2), (9, 0));
        assert!(Attr::parse(&[0; 63]).is_none());
        assert_eq!(attr.to_bytes().len(), 128);
    }

    /// Checks that attrs get the smallest size of Linux that holds all of them, so that perf 5.10
    /// opens what needs nothing of later kernels, and that they come back from it.
    #[test]
    fn the_smallest_size_that_holds_all() {
        let clock = Attr { kind: 1, sample_period: 999, ..Attr::default() };
        let branches = Attr { branch_sample_type: 1, ..clock.clone() };
        let stacks = Attr { sample_regs_user: 0xff, sample_stack_user: 8192, ..clock.clone() };
        let frames = Attr { sample_max_stack: 32, ..clock.clone() };
        let signal = Attr { sig_data: 1, ..clock.clone() };
        let cases: [(&[&Attr], u32); 7] = [
            (&[], 64),
            (&[&clock], 64),
            (&[&clock, &branches], 80),
            (&[&stacks, &branches], 96),
            (&[&frames, &clock], 112),
            (&[&signal], 128),
            (&[&Attr { config2: 1, ..clock.clone() }], 72),
        ];
        for (attrs, expected) in cases {
            let size = size_written(attrs.iter().copied());
            assert_eq!(size, expected, "{attrs:?}");
            for &attr in attrs {
                let back = Attr::parse(&attr.to_bytes_of(size)).expect("parses");
                assert_eq!(back, Attr { size, ..attr.clone() });
            }
        }
    }
}
