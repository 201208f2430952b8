//! One file per verb.

pub(crate) mod annotate;
pub(crate) mod build_ids;
pub(crate) mod data;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod evlist;
pub(crate) mod filter;
pub(crate) mod generate;
pub(crate) mod header;
pub(crate) mod inject;
pub(crate) mod instead;
pub(crate) mod kallsyms;
pub(crate) mod list;
pub(crate) mod locks;
pub(crate) mod loss;
pub(crate) mod probe;
pub(crate) mod query;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod sched;
pub(crate) mod script;
pub(crate) mod stat;
pub(crate) mod switching;
pub(crate) mod version;
pub(crate) mod view;
pub(crate) mod watch;
