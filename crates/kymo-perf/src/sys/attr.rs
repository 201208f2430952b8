//! Safe access to the kernel's `perf_event_attr`.
//!
//! # Safety
//! The only unsafe code views the plain-old-data struct as bytes.
#![allow(unsafe_code, reason = "a plain struct seen as bytes")]
use super::perf_event_attr;
use perf_event_open_sys::bindings;

/// The size that is announced to the kernel and stored in files: up to and including `sig_data`
/// (Linux 5.13), which every reader of perf.data knows. Nothing that kymo sets lies beyond it.
const SIZE: usize = bindings::PERF_ATTR_SIZE_VER7 as usize;

/// An attr of zeros with its size set.
pub fn attr_zeroed() -> perf_event_attr {
    perf_event_attr { size: SIZE as u32, ..Default::default() }
}

/// Keeps the kernel's frames out of the call chains of an event that samples user space only.
///
/// Such chains have none, but Linux 7.2 refuses the event to ordinary users unless the attr says
/// so. Every kernel since 3.7 knows the flag. There is nothing to do for events of the kernel
/// alone: their chains go on in user space, which is the caller's own.
pub(crate) fn exclude_hidden_frames(attr: &mut perf_event_attr) {
    if attr.exclude_kernel() == 1 && attr.sample_type & Perf::SAMPLE_CALLCHAIN != 0 {
        attr.set_exclude_callchain_kernel(1);
    }
}

/// The attr as a file holds it.
pub fn attr_bytes(attr: &perf_event_attr) -> [u8; SIZE] {
    let mut out = [0; SIZE];
    // SAFETY: a repr(C) struct of integers without padding, initialised (Default zeroes it), and
    // longer than SIZE (const assert below).
    out.copy_from_slice(unsafe { std::slice::from_raw_parts(std::ptr::from_ref(attr).cast::<u8>(), SIZE) });
    out
}

const _: () = assert!(size_of::<perf_event_attr>() >= SIZE);

/// Numbers of the kernel's ABI that are typed differently on different architectures, as the u64 or
/// u32 that the attr wants.
#[derive(Debug)]
pub enum Perf {}

#[allow(missing_docs, clippy::unnecessary_cast, reason = "the kernel's names")]
impl Perf {
    pub const HARDWARE: u32 = bindings::PERF_TYPE_HARDWARE as u32;
    pub const SOFTWARE: u32 = bindings::PERF_TYPE_SOFTWARE as u32;
    pub const TRACEPOINT: u32 = bindings::PERF_TYPE_TRACEPOINT as u32;
    pub const BREAKPOINT: u32 = bindings::PERF_TYPE_BREAKPOINT as u32;
    pub const HW_CPU_CYCLES: u64 = bindings::PERF_COUNT_HW_CPU_CYCLES as u64;
    pub const SW_CPU_CLOCK: u64 = bindings::PERF_COUNT_SW_CPU_CLOCK as u64;
    pub const SW_TASK_CLOCK: u64 = bindings::PERF_COUNT_SW_TASK_CLOCK as u64;
    pub const SW_DUMMY: u64 = bindings::PERF_COUNT_SW_DUMMY as u64;
    pub const SW_BPF_OUTPUT: u64 = bindings::PERF_COUNT_SW_BPF_OUTPUT as u64;
    pub const SAMPLE_IP: u64 = bindings::PERF_SAMPLE_IP as u64;
    pub const SAMPLE_TID: u64 = bindings::PERF_SAMPLE_TID as u64;
    pub const SAMPLE_TIME: u64 = bindings::PERF_SAMPLE_TIME as u64;
    pub const SAMPLE_ADDR: u64 = bindings::PERF_SAMPLE_ADDR as u64;
    pub const SAMPLE_READ: u64 = bindings::PERF_SAMPLE_READ as u64;
    pub const SAMPLE_CALLCHAIN: u64 = bindings::PERF_SAMPLE_CALLCHAIN as u64;
    pub const SAMPLE_ID: u64 = bindings::PERF_SAMPLE_ID as u64;
    pub const SAMPLE_CPU: u64 = bindings::PERF_SAMPLE_CPU as u64;
    pub const SAMPLE_PERIOD: u64 = bindings::PERF_SAMPLE_PERIOD as u64;
    pub const SAMPLE_RAW: u64 = bindings::PERF_SAMPLE_RAW as u64;
    pub const SAMPLE_BRANCH_STACK: u64 = bindings::PERF_SAMPLE_BRANCH_STACK as u64;
    pub const SAMPLE_REGS_USER: u64 = bindings::PERF_SAMPLE_REGS_USER as u64;
    pub const SAMPLE_STACK_USER: u64 = bindings::PERF_SAMPLE_STACK_USER as u64;
    pub(crate) const SAMPLE_WEIGHT: u64 = bindings::PERF_SAMPLE_WEIGHT as u64;
    pub(crate) const SAMPLE_WEIGHT_STRUCT: u64 = bindings::PERF_SAMPLE_WEIGHT_STRUCT as u64;
    pub const SAMPLE_IDENTIFIER: u64 = bindings::PERF_SAMPLE_IDENTIFIER as u64;
    pub(crate) const BRANCH_HW_INDEX: u64 = bindings::PERF_SAMPLE_BRANCH_HW_INDEX as u64;
    pub const FORMAT_TOTAL_TIME_ENABLED: u64 = bindings::PERF_FORMAT_TOTAL_TIME_ENABLED as u64;
    pub const FORMAT_TOTAL_TIME_RUNNING: u64 = bindings::PERF_FORMAT_TOTAL_TIME_RUNNING as u64;
    pub const FORMAT_ID: u64 = bindings::PERF_FORMAT_ID as u64;
    pub const FORMAT_GROUP: u64 = bindings::PERF_FORMAT_GROUP as u64;
    pub const FORMAT_LOST: u64 = bindings::PERF_FORMAT_LOST as u64;
}
