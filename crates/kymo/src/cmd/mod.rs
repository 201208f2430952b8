//! One file per verb.

pub(crate) mod generate;
pub(crate) mod header;
pub(crate) mod record;
pub(crate) mod report;
