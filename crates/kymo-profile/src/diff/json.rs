//! A comparison as JSON; docs/reference/formats/diff-json.md describes it.
use super::Comparison;
use crate::text::json_pretty;
use serde::Serialize;
use std::io::{self, Write};

/// The version of the form. It grows when a key changes its meaning or goes.
pub const SCHEMA_VERSION: u32 = 1;

/// Writes the comparison as JSON.
///
/// # Errors
/// Those of `out`.
pub fn write_json(out: &mut dyn Write, comparison: &Comparison) -> io::Result<()> {
    #[derive(Serialize)]
    struct DiffDocument<'a> {
        schema: &'static str,
        schema_version: u32,
        #[serde(flatten)]
        comparison: &'a Comparison,
    }
    let document = DiffDocument { schema: "kymo-diff", schema_version: SCHEMA_VERSION, comparison };
    out.write_all(json_pretty(&document)?.as_bytes())?;
    out.write_all(b"\n")
}
