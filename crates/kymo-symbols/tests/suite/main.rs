//! kymo-symbols as the crates above it use it: compiled programs, files of this machine, and damaged ones.

mod place;
mod symbols;
mod tools;
