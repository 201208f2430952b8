//! kymo-record.
