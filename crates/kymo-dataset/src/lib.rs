//! A dataset: profiles of many hosts as Parquet tables, for the query engines that exist.
//!
//! *You give* the rows of a recording, or of minutes that a daemon added up. *It gives* whole
//! Parquet files with their names, for a folder or an object store. Every engine that reads Parquet
//! reads them: the tables are plain rows, joined by ids that are hashes of content.
//!
//! ```text
//!  host, builds, locations, stacks, processes, events, samples
//!      |
//!  DatasetWriter --finish()--> [DatasetFile { path, bytes }] --> DatasetFolder::put
//!                                                           '--> an object store
//! ```
//! The layout is described in `docs/reference/formats/dataset.md`.
//!
//! # Invariants
//! - **T1** A file that has samples comes last: the stacks and frames that they name are in files
//!   of the same stem, which stand before it in the list of files.
//! - **T2** The same rows make the same ids on every host, and in every version of the layout.
//! - **T3** Files that others wrote give rows or a sentence, never a panic.
//!
//! # Non-goals
//! Queries (`kymo sql`), the network, changing samples that were written.
#![forbid(unsafe_code)]

mod add;
mod columns;
mod compact;
mod encode;
mod error;
mod folder;
mod frames;
pub mod ids;
mod live;
mod process_names;
mod read;
mod recording;
mod replaced;
pub mod rows;
mod samples;
pub mod schema;
mod store;
mod symbolize;
mod writer;

pub use add::add;
pub use compact::{CompactOptions, Compacted, compact, compact_in_place};
pub use error::DatasetError;
pub use folder::DatasetFolder;
pub use live::{KnownRecording, MergedFile, MergedFooter, find, is_merged, is_replaced, live_files};
pub use process_names::ProcessNames;
pub use read::{RowGroup, TableReader};
pub use recording::{RecordingOptions, RecordingRows, SummedFiles};
pub use replaced::ReplacedFiles;
pub use rows::{BuildRow, EventRow, FrameKind, FrameRow, HostRow, LocationRow, ProcessRow, SampleValue};
pub use schema::{FileStem, Table};
pub use store::{DatasetStore, StoredFile};
pub use symbolize::{Symbolized, symbolize};
pub use writer::{DatasetFile, DatasetWriter, EventNumber, LocationNumber, ProcessNumber, StackNumber};
