//! kymo-perf.
