//! kymo-profile as the crates above it use it: exports here, recordings of real programs beside them.

mod export;
mod page;
mod sample_profile;
