//! kymo-core.
