//! Places to watch: what is written, where it is, and why not.

mod call;
mod exhaust;
mod hostile;
mod live;
mod programs;
mod typed;
