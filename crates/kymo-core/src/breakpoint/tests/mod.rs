//! The ledger against its model and against the rule, and the cases that a kernel's own tests know,
//! by name.
mod cases;
mod misuse;
mod property;
mod rule;
mod threads;

use super::{Accounts, Config, CpuId, Error, Holder, Kind, Ledger, Pool, Slots, Target, Task, TaskId, model};

const C0: CpuId = CpuId(0);
const C1: CpuId = CpuId(1);

/// Few CPUs, and four registers for everything.
const X86: Config = Config { cpus: 3, slots: Slots::Shared(4) };
/// Registers of two sorts, not equally many.
const ARM: Config = Config { cpus: 3, slots: Slots::Separate { data: 2, instructions: 3 } };

fn ledger(config: Config) -> Ledger {
    Ledger::new(config).expect("a sound config")
}
