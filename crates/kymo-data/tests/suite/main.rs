//! Tests of kymo-data from outside, on real recordings and on made-up bytes.

mod damage;
mod differential;
mod exhaust;
mod external;
mod fixtures;
mod open_errors;
mod property;
mod reading;
mod writing;
