//! kymo-profile.

pub mod export;
pub mod symbols;
pub mod unwind;
