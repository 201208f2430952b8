//! `kymo mcp`: a conversation of the Model Context Protocol on stdin and stdout, line by line; what
//! it answers is what `kymo query` prints.

#[cfg(feature = "mcp")]
mod conversation;

#[cfg(not(feature = "mcp"))]
use crate::tools::{kymo, skip};

/// Checks that a kymo without the protocol says how to build one that has it. The conversations
/// are tested by `make test-mcp`.
#[cfg(not(feature = "mcp"))]
#[test]
fn says_how_to_build_it() {
    kymo().run(["mcp"]).ends(1).says("make mcp").says("--features mcp");
    skip("mcp::conversation", "kymo is built without the feature mcp here: `make test-mcp` tests it");
}
