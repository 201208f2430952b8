//! The attrs of a watch: breakpoints, the tracking event, and the event that carries hits.
use super::options::{Scope, WatchOptions};
use super::schedule::Register;
use crate::evlist::Request;
use crate::sys::{Perf, attr_zeroed, perf_event_attr};

/// What each hit has, in this order: id, instruction behind the access, thread, time, address, CPU,
/// period, and the raw bytes.
pub const SAMPLE_TYPE: u64 = Perf::SAMPLE_IDENTIFIER
    | Perf::SAMPLE_IP
    | Perf::SAMPLE_TID
    | Perf::SAMPLE_TIME
    | Perf::SAMPLE_ADDR
    | Perf::SAMPLE_CPU
    | Perf::SAMPLE_PERIOD
    | Perf::SAMPLE_RAW;

/// Rings wake their reader when they hold so many bytes: a millisecond's worth of hits.
const RING_BYTES_TO_WAKE: usize = 64 << 10;

/// Breakpoints of one register.
pub(super) fn request(options: &WatchOptions, scope: Scope, register: &Register) -> Request {
    let mut attr = common(options, RING_BYTES_TO_WAKE);
    attr.type_ = Perf::BREAKPOINT;
    attr.bp_type = register.piece.kind.bits();
    attr.__bindgen_anon_3.bp_addr = register.piece.address;
    attr.__bindgen_anon_4.bp_len = register.piece.bytes;
    attr.set_disabled(1);
    attr.set_inherit(u64::from(scope == Scope::Tasks));
    // W4; and a kernel address is touched by the kernel alone.
    let kernel = options.with_kernel || register.piece.address >> 63 == 1;
    attr.set_exclude_kernel(u64::from(!kernel));
    attr.set_exclude_hv(1);
    Request::new(format!("mem:{}", register.piece), attr)
}

/// What all events have in common.
fn common(options: &WatchOptions, wake: usize) -> perf_event_attr {
    let mut attr = attr_zeroed();
    attr.sample_type = SAMPLE_TYPE | if options.callchains { Perf::SAMPLE_CALLCHAIN } else { 0 };
    attr.read_format = Perf::FORMAT_ID | Perf::FORMAT_LOST;
    attr.__bindgen_anon_1.sample_period = 1;
    attr.set_sample_id_all(1);
    attr.set_watermark(1);
    attr.__bindgen_anon_2.wakeup_watermark = wake as u32;
    attr.set_use_clockid(1);
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr
}

/// Names, mappings, forks and ends.
pub(super) fn tracking(options: &WatchOptions, scope: Scope) -> perf_event_attr {
    let mut attr = common(options, RING_BYTES_TO_WAKE);
    (attr.type_, attr.config) = (Perf::SOFTWARE, Perf::SW_DUMMY);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    attr.set_mmap(1);
    attr.set_mmap2(1);
    attr.set_disabled(1);
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    attr.set_inherit(u64::from(scope == Scope::Tasks));
    attr
}

/// Where the kernel's program writes hits.
pub(super) fn output(options: &WatchOptions, ring_bytes: usize) -> perf_event_attr {
    let mut attr = common(options, RING_BYTES_TO_WAKE.min(ring_bytes / 2));
    (attr.type_, attr.config) = (Perf::SOFTWARE, Perf::SW_BPF_OUTPUT);
    attr.set_disabled(1);
    attr
}
