//! Puts code in place and takes it away, in the agent's own thread: looks at functions, maps stubs,
//! holds or asks threads, writes sites, and changes the tables by which modules find functions that
//! matter here.
pub(crate) mod arena;
pub(crate) mod call_plan;
pub(crate) mod call_sites;
mod call_stubs;
pub(crate) mod error;
pub(crate) mod flow;
pub(super) mod got_hooks;
pub(crate) mod hold;
pub(crate) mod holds;
pub(crate) mod jump_targets;
pub(crate) mod leading;
pub(crate) mod memory;
pub(crate) mod pass;
pub(crate) mod patcher;
pub(crate) mod plan;
pub(crate) mod probe;
mod publish;
pub(crate) mod refusal;
pub(crate) mod threads;
mod traps;
mod unwinder_hooks;
