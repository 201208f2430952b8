//! One file for each verb.
pub(crate) mod add;
pub(crate) mod compact;
pub(crate) mod symbolize;
