//! Division, idle waits and paths of rows that are made by hand.
use super::*;
