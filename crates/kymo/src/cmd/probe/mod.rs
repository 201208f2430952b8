//! `kymo probe`: what can be probed, and how it is found.

#[expect(dead_code, reason = "the verb itself comes next")]
pub(crate) mod modules;
