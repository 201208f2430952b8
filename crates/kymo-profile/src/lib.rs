//! kymo-profile.

pub mod export;
