//! Engines of kymo without an operating system.
//!
//! *You give* an engine memory and calls; *it gives* you the mechanism and nothing else.
//!
//! Each engine is a folder whose listing shows its evidence: `mod.rs` (contract, drawing, numbered
//! invariants), the engine, `model.rs` (the most obvious correct code, the oracle of the tests and
//! the baseline of the benches), `tests.rs` and, where threads meet, `loom.rs`.
//!
//! # Guarantees
//! - Nothing here makes a system call, does I/O, or reads a clock.
//! - The other side of a ring is hostile: whatever it writes, and whenever, nothing panics, nothing
//!   is undefined, and nothing outside the ring is read.
//! - No record disappears uncounted: each is delivered whole, in order, once, or is in a count of
//!   lost ones.
//! - No count is lost or met twice, however tasks switch, fork and end while it is read.
//! - No CPU is promised more breakpoint slots than it has, whoever asks at the same time.
//!
//! # Non-goals
//! Mapping memory, waking up, what records mean (kymo-perf, kymo-record, kymo-data), several
//! readers of one ring.
//!
//! # Modules
//! - [`breakpoint`]: a [`Ledger`](breakpoint::Ledger) of breakpoint slots, at a cost that does not
//!   depend on the number of CPUs and tasks.
//! - [`context`]: an [`Engine`](context::Engine) counts tasks with a [`Pmu`](context::Pmu); tasks
//!   of one family exchange contexts at a switch.
//! - [`epoch`]: a [`Domain`](epoch::Domain) of grace periods, after which no reader has what was
//!   taken away.
//! - [`big_reader_lock`]: a [`BigReaderLock`](big_reader_lock::BigReaderLock) lets many readers in
//!   without a cache line that they share, or one writer.
//! - [`handover`]: queues and a pool between threads that must not wait and threads that may.
//! - [`holds`]: how long locks are held, added up inside of programs in a
//!   [`HoldTable`](holds::HoldTable) that a tracer shares.
//! - [`latency`]: how times of calls are counted, in the kernel and in programs.
//! - [`probe`]: a [`Registry`](probe::Registry) calls the consumers of a probe at each hit, without
//!   a lock on the way.
//! - [`ring`]: the byte ring that a kernel (or an agent in a process) fills and one reader drains:
//!   [`Writer`](ring::Writer) and [`Reader`](ring::Reader) over an [`Area`](ring::Area).
//!
//! # Example
//! ```
//! use kymo_core::ring::{Buffer, Reader, Writer};
//!
//! let buffer = Buffer::new(4096, 0);
//! let (mut writer, mut reader) = (Writer::new(buffer.area()), Reader::new(buffer.area()));
//! // A record of type 9 and 16 bytes, as the kernel lays out its header.
//! let record = [9 | 16 << 48, 42].map(u64::to_le_bytes).concat();
//! writer.push(&record, 0, &[]).expect("the ring is empty");
//!
//! let span = reader.begin().expect("the writer is honest");
//! let bytes = span.whole_records_bytes(usize::MAX);
//! let mut out = vec![0; bytes];
//! span.copy_to(&mut out);
//! reader.release(span, bytes);
//! assert_eq!(out, record);
//! ```
#![deny(unsafe_code)]

pub mod big_reader_lock;
pub mod breakpoint;
pub mod context;
pub mod epoch;
pub mod handover;
pub mod holds;
pub mod latency;
pub mod probe;
pub mod ring;
mod sync;
