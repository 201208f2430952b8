//! The tests of kymo-profile against other tools.

mod symbols;
