//! kymo-data.
