//! Datasets in object stores.
//!
//! *You give* the URL of a store. *It gives* a client ([`open()`]), and a dataset there as
//! [`kymo_dataset::DatasetStore`] ([`Bucket`]), which compaction, symbols and exports work on.
//!
//! The program of this crate is `kymo-store`: `kymo compact`, `kymo symbolize` and `kymo export`
//! start it where a dataset is a URL, so that kymo itself is built without clients of object
//! stores.
#![forbid(unsafe_code)]

mod bucket;
mod open;

pub use bucket::Bucket;
pub use open::{OpenOptions, missing_credentials, open};
