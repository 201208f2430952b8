//! The nine cases of the kernel's unit test, by their names there, on engine and model; with three
//! to five slots.
use super::*;

/// One case: an account with two tasks, `t` and `o`, and what was granted so far. All are watched
/// for reads and writes.
struct Case<'a, A: Accounts> {
    account: &'a A,
    slots: usize,
    t: A::Task,
    o: A::Task,
    held: Vec<A::Reservation>,
}

impl<A: Accounts> Case<'_, A> {
    fn try_one(&self, target: Target<'_, A::Task>) -> Result<A::Reservation, Error> {
        self.account.reserve(target, Kind::READ_WRITE)
    }

    /// Grants so many; gives the place of the first in `held`.
    #[track_caller]
    fn fits(&mut self, count: usize, target: fn(&Self) -> Target<'_, A::Task>) -> usize {
        let first = self.held.len();
        for at in 0..count {
            let granted = self.try_one(target(self));
            self.held.push(granted.unwrap_or_else(|error| panic!("{at} of {count}: {error}")));
        }
        first
    }

    #[track_caller]
    fn refused(&self, targets: &[Target<'_, A::Task>]) {
        for (at, target) in targets.iter().enumerate() {
            let error = self.try_one(*target).err().unwrap_or_else(|| panic!("target {at} got a slot"));
            assert_eq!(error.errno(), 28, "target {at}: {error}");
        }
    }
}

/// Runs a case on engine and model, with several numbers of slots, and checks that nothing is left
/// in the end.
fn run<A: Accounts>(account: A, slots: usize, case: fn(&mut Case<'_, A>)) {
    let (t, o) = (account.task(TaskId(1)), account.task(TaskId(2)));
    let mut state = Case { account: &account, slots, t, o, held: Vec::new() };
    case(&mut state);
    assert!(state.held.is_empty() || !account.is_unused());
    drop(state);
    assert!(account.is_unused(), "something is left");
}

macro_rules! case {
    ($(#[$doc:meta])* $name:ident, |$case:ident| $body:block) => {
        $(#[$doc])*
        #[test]
        fn $name() {
            fn case<A: Accounts>($case: &mut Case<'_, A>) $body
            for slots in 3..6 {
                let config = Config { cpus: 3, slots: Slots::Shared(slots) };
                run(Ledger::new(config).expect("a sound config"), slots, case);
                run(model::OneList::new(config).expect("a sound config"), slots, case);
            }
        }
    };
}

use Target::{Cpu, Task, TaskOn};

case! {
    /// Checks that a CPU with all slots for itself has none for a task or another breakpoint.
    one_cpu, |case| {
        case.fits(case.slots, |_| Cpu(C0));
        case.refused(&[Task(&case.t), Cpu(C0)]);
    }
}

case! {
    /// Checks that CPUs do not share their slots.
    many_cpus, |case| {
        for cpu in 0..3 {
            for _ in 0..case.slots {
                case.held.push(case.try_one(Cpu(CpuId(cpu))).expect("this CPU has nothing yet"));
            }
            case.refused(&[Cpu(CpuId(cpu))]);
        }
    }
}

case! {
    /// Checks that a task with all slots anywhere leaves none to itself or a CPU, and that one
    /// comes back.
    one_task_on_all_cpus, |case| {
        case.fits(case.slots, |case| Task(&case.t));
        case.refused(&[Task(&case.t), TaskOn(&case.t, C0), Cpu(C0)]);
        drop(case.held.remove(0));
        case.fits(1, |_| Cpu(C0));
    }
}

case! {
    /// Checks that two tasks can have all slots each, and that one slot of one of them is of no use
    /// to a CPU.
    two_tasks_on_all_cpus, |case| {
        case.fits(case.slots, |case| Task(&case.t));
        case.fits(case.slots, |case| Task(&case.o));
        case.refused(&[Task(&case.t), Task(&case.o), TaskOn(&case.t, C0), TaskOn(&case.o, C0), Cpu(C0)]);
        drop(case.held.remove(0));
        case.refused(&[Cpu(C0)]);
    }
}

case! {
    /// Checks that a task with all slots on one CPU gets none there nor anywhere.
    one_task_on_one_cpu, |case| {
        case.fits(case.slots, |case| TaskOn(&case.t, C0));
        case.refused(&[Task(&case.t), TaskOn(&case.t, C0), Cpu(C0)]);
        drop(case.held.remove(0));
        case.fits(1, |_| Cpu(C0));
    }
}

case! {
    /// Checks that slots on one CPU and slots anywhere add up there.
    one_task_mixed, |case| {
        case.fits(1, |case| TaskOn(&case.t, C0));
        case.fits(case.slots - 1, |case| Task(&case.t));
        case.refused(&[Task(&case.t), TaskOn(&case.t, C0), Cpu(C0)]);
        drop(case.held.drain(..2));
        case.fits(2, |_| Cpu(C0));
        case.refused(&[Cpu(C0)]);
    }
}

case! {
    /// Checks that two tasks can have all slots of one CPU each, and that another CPU is not
    /// concerned.
    two_tasks_on_one_cpu, |case| {
        case.fits(case.slots, |case| TaskOn(&case.t, C0));
        case.fits(case.slots, |case| TaskOn(&case.o, C0));
        case.refused(&[Task(&case.t), Task(&case.o), TaskOn(&case.t, C0), TaskOn(&case.o, C0), Cpu(C0)]);
        drop(case.held.remove(0));
        case.refused(&[Cpu(C0)]);
        case.fits(case.slots, |_| Cpu(C1));
    }
}

case! {
    /// Checks one task with all slots of a CPU beside one with all slots anywhere.
    two_tasks_on_one_all_cpus, |case| {
        case.fits(case.slots, |case| TaskOn(&case.t, C0));
        case.fits(case.slots, |case| Task(&case.o));
        case.refused(&[Task(&case.t), Task(&case.o), TaskOn(&case.t, C0), TaskOn(&case.o, C0), Cpu(C0)]);
        drop(case.held.remove(0));
        case.refused(&[Cpu(C0), Cpu(C1)]);
    }
}

case! {
    /// Checks that a CPU's slot stands in the way of a task that may come there, until it is
    /// released.
    task_on_all_and_one_cpu, |case| {
        case.fits(case.slots - 2, |case| Task(&case.t));
        let bound = case.fits(1, |case| TaskOn(&case.t, C0));
        case.fits(1, |case| Task(&case.t));
        case.refused(&[Task(&case.t), TaskOn(&case.t, C0), Cpu(C0)]);
        let other = case.fits(1, |_| Cpu(C1));
        case.refused(&[Cpu(C1)]);
        let other = case.held.swap_remove(other);
        drop(case.held.swap_remove(bound));
        case.refused(&[Task(&case.t)]);
        drop(other);
        case.fits(1, |case| Task(&case.t));
        case.refused(&[Task(&case.t), TaskOn(&case.t, C0), Cpu(C0), Cpu(C1)]);
    }
}
