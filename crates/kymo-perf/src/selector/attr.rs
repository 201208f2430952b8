//! The part of `perf_event_attr` that an event selector decides.

use perf_event_open_sys::bindings;

/// How often the event samples, as far as the selector says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sampling {
    /// Nothing said: the command line's frequency or period applies.
    #[default]
    Unset,
    /// The event's natural period (1 for tracepoints and breakpoints): applies unless the user gave
    /// `-F` or `-c`.
    Natural(u64),
    /// `period=` term: every so many events, whatever the command line says.
    Period(u64),
    /// `freq=` term: so many samples per second, whatever the command line says.
    Frequency(u64),
}

/// What the kernel is asked to count: the selector's share of the kernel's `perf_event_attr`.
///
/// Field names are the kernel's where they have one. `bp_addr` shares its place with `config1` and
/// `bp_len` with `config2` in the kernel; here [`bp_type`](Self::bp_type) says which meaning
/// applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(clippy::struct_excessive_bools, reason = "the kernel's own flags, one to one")]
pub struct EventAttr {
    /// `type`: which PMU (0 hardware, 1 software, 2 tracepoint, 3 cache, 4 raw, 5 breakpoint,
    /// above: sysfs).
    #[doc(alias = "type")]
    pub kind: u32,
    /// Which event of the PMU.
    pub config: u64,
    /// Extension of `config`; the address if this is a breakpoint.
    #[doc(alias = "bp_addr")]
    pub config1: u64,
    /// Extension of `config1`; the length in bytes if this is a breakpoint.
    #[doc(alias = "bp_len")]
    pub config2: u64,
    /// Extension of `config2` (Linux 6.3).
    pub config3: u64,
    /// Extension of `config3` (Linux 7.0).
    pub config4: u64,
    /// `HW_BREAKPOINT_R|W|X`; 0 if this is no breakpoint.
    pub bp_type: u32,
    /// Period or frequency, if the selector gives one.
    pub sampling: Sampling,
    /// 0 (arbitrary skid) to 3 (no skid).
    pub precise_ip: u8,
    /// Do not count in user mode.
    pub exclude_user: bool,
    /// Do not count in the kernel.
    pub exclude_kernel: bool,
    /// Do not count in the hypervisor.
    pub exclude_hv: bool,
    /// Do not count while idle.
    pub exclude_idle: bool,
    /// Do not count on the host.
    pub exclude_host: bool,
    /// Do not count in guests.
    pub exclude_guest: bool,
    /// The event must always be on the PMU; leaders only.
    pub pinned: bool,
    /// The group must be alone on the PMU; leaders only.
    pub exclusive: bool,
}

impl EventAttr {
    /// The address watched, if this is a breakpoint.
    pub fn bp_addr(&self) -> Option<u64> {
        (self.kind == bindings::PERF_TYPE_BREAKPOINT).then_some(self.config1)
    }

    /// The length watched in bytes, if this is a breakpoint.
    pub fn bp_len(&self) -> Option<u64> {
        (self.kind == bindings::PERF_TYPE_BREAKPOINT).then_some(self.config2)
    }

    /// The kernel's struct with these fields set and all others zero.
    ///
    /// `size` is that of Linux 5.13, which every reader of perf.data knows, unless a later field is
    /// used. The caller adds what belongs to the recording: sample type, inherit, enable_on_exec,
    /// wakeup and so on.
    pub fn to_raw(&self) -> bindings::perf_event_attr {
        let mut raw = bindings::perf_event_attr {
            type_: self.kind,
            size: self.size(),
            config: self.config,
            bp_type: self.bp_type,
            config3: self.config3,
            config4: self.config4,
            ..Default::default()
        };
        raw.__bindgen_anon_3.config1 = self.config1;
        raw.__bindgen_anon_4.config2 = self.config2;
        match self.sampling {
            Sampling::Unset => {}
            Sampling::Natural(period) | Sampling::Period(period) => {
                raw.__bindgen_anon_1.sample_period = period
            }
            Sampling::Frequency(freq) => {
                raw.__bindgen_anon_1.sample_freq = freq;
                raw.set_freq(1);
            }
        }
        raw.set_precise_ip(u64::from(self.precise_ip));
        raw.set_exclude_user(u64::from(self.exclude_user));
        raw.set_exclude_kernel(u64::from(self.exclude_kernel));
        raw.set_exclude_hv(u64::from(self.exclude_hv));
        raw.set_exclude_idle(u64::from(self.exclude_idle));
        raw.set_exclude_host(u64::from(self.exclude_host));
        raw.set_exclude_guest(u64::from(self.exclude_guest));
        raw.set_pinned(u64::from(self.pinned));
        raw.set_exclusive(u64::from(self.exclusive));
        raw
    }

    fn size(&self) -> u32 {
        match (self.config3, self.config4) {
            (0, 0) => bindings::PERF_ATTR_SIZE_VER7,
            (_, 0) => bindings::PERF_ATTR_SIZE_VER8,
            _ => bindings::PERF_ATTR_SIZE_VER9,
        }
    }
}
