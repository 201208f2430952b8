//! Opens equal events as one group that the user did not ask for, because a group is switched at
//! once.
//!
//! Enabling an event of a CPU makes the kernel reschedule all that this CPU has enabled already, so
//! enabling n of them one after the other costs n squared (measured: 100 on two CPUs take 4.4 ms;
//! as members of one of them 0.09 ms). So the first of the single events that are alike leads the
//! others, for each CPU and task. Nobody sees it: the requests, and with them the attrs in a file,
//! stay as they were; and where the kernel minds, the batch is given up before anything else is.
//!
//! Only events that cannot do each other any harm join: software events and tracepoints always fit
//! their context, and clocks are left out because the kernel (6.16 and later) throttles a group as
//! one.
use super::Request;
use crate::sys::{Perf, bindings};

/// Below this, a batch saves less than it is worth.
const LEAST: usize = 8;

/// For each event the leader of the batch that it joins; `None` for leaders and for events that
/// stay alone.
pub(crate) fn find(events: &[Request]) -> Vec<Option<usize>> {
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for (index, request) in events.iter().enumerate() {
        if !joins(request) || events.iter().any(|other| other.leader == Some(index)) {
            continue;
        }
        match batches.iter_mut().find(|batch| alike(&events[batch[0]], request)) {
            Some(batch) => batch.push(index),
            None => batches.push(vec![index]),
        }
    }
    let mut leaders = vec![None; events.len()];
    for batch in batches.iter().filter(|batch| batch.len() >= LEAST) {
        batch[1..].iter().for_each(|&member| leaders[member] = Some(batch[0]));
    }
    leaders
}

/// Whether an event may be in a group without anybody noticing.
fn joins(request: &Request) -> bool {
    let attr = &request.attr;
    let clocks =
        [u64::from(bindings::PERF_COUNT_SW_CPU_CLOCK), u64::from(bindings::PERF_COUNT_SW_TASK_CLOCK)];
    let fits = match attr.type_ {
        Perf::SOFTWARE => !clocks.contains(&attr.config),
        Perf::TRACEPOINT => true,
        _ => false,
    };
    fits && request.leader.is_none()
        && !request.immediate
        && !request.alone
        && !request.precise_max
        && (attr.freq() == 0 || attr.config == Perf::SW_DUMMY)
        && attr.pinned() == 0
        && attr.exclusive() == 0
        && attr.read_format & Perf::FORMAT_GROUP == 0
        && attr.sample_type & Perf::SAMPLE_READ == 0
}

/// Whether two events start, run and are inherited alike, as the kernel wants it of a group.
fn alike(a: &Request, b: &Request) -> bool {
    let starts = |r: &Request| (r.attr.disabled(), r.attr.enable_on_exec(), r.attr.remove_on_exec());
    let inherits = |r: &Request| (r.attr.inherit(), r.attr.inherit_stat(), r.attr.inherit_thread());
    let clock = |r: &Request| (r.attr.use_clockid(), r.attr.clockid);
    starts(a) == starts(b) && inherits(a) == inherits(b) && clock(a) == clock(b) && a.cpus == b.cpus
}
