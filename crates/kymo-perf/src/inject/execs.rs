//! Counts the programs that a command and its descendants execute, to report those without the
//! agent.
use crate::sys::{ANY, Descriptor, EventTarget, Kernel, Perf, Real, attr_zeroed};
use crate::tracefs::Tracefs;

/// A count of successful exec calls. Needs what tracepoints need.
#[derive(Debug)]
pub struct Execs {
    event: Option<Descriptor>,
}

impl Execs {
    /// Counts from now on those of a process, and with `children` those of all that it makes.
    /// `None` where that is not permitted.
    pub fn of(pid: i32, children: bool) -> Option<Execs> {
        let point = Tracefs::here().find("sched", "sched_process_exec").ok()?;
        let mut attr = attr_zeroed();
        attr.type_ = Perf::TRACEPOINT;
        attr.config = point.id;
        attr.set_inherit(u64::from(children));
        let event = Real.open(&attr, &EventTarget::new(pid, ANY)).ok()?;
        Some(Execs { event: Some(event) })
    }

    /// How many there were until now.
    pub fn count(&self) -> Option<u64> {
        let mut words = [0];
        Real.read(self.event.as_ref()?, &mut words).ok()?;
        Some(words[0])
    }
}

impl Drop for Execs {
    fn drop(&mut self) {
        Real.close(self.event.take().into_iter().collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Exit, Workload};

    /// Checks that a shell and the two programs that it executes are three, and one alone is one.
    #[test]
    fn a_shell() {
        for (children, expected) in [(true, 3), (false, 1)] {
            let command = ["/bin/sh", "-c", "/bin/true; /bin/true; exit 0"].map(Into::into);
            let mut workload = Workload::prepare(&command).unwrap();
            let Some(execs) = Execs::of(workload.pid(), children) else {
                return kymo_testing::skip("inject::execs::a_shell", "tracepoints are not permitted here");
            };
            workload.start().unwrap();
            assert_eq!(workload.wait().unwrap(), Exit::Code(0));
            assert_eq!(execs.count(), Some(expected));
        }
    }
}
