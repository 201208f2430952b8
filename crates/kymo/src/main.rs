//! kymo.
fn main() {}
