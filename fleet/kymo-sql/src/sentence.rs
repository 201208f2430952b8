//! Errors of the query engine as one sentence each.

use std::error::Error;
use std::fmt;

use anyhow::anyhow;
use datafusion::common::DataFusionError;

/// A file went away that the query had listed: its rows are in another one now.
#[derive(Debug)]
pub(crate) struct FileGone(String);

impl fmt::Display for FileGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; the dataset was compacted meanwhile: ask again", self.0)
    }
}

impl Error for FileGone {}

/// Whether an error, or what caused it, is of a file that is not there.
fn is_not_found(error: &(dyn Error + 'static)) -> bool {
    let of_store = error.downcast_ref::<object_store::Error>();
    if let Some(object_store::Error::NotFound { .. }) = of_store {
        return true;
    }
    match error.source() {
        Some(source) => is_not_found(source),
        // Some layers keep the text only.
        None => {
            let text = error.to_string();
            text.contains("Object at location") && text.contains(" not found")
        }
    }
}

/// What is wrong with a query, or with what it reads.
pub(crate) fn of_query(error: DataFusionError) -> anyhow::Error {
    let root = error.find_root();
    let text = one_line(&root.strip_backtrace());
    if is_not_found(&error) {
        return anyhow::Error::new(FileGone(after_prefix(&text)));
    }
    match root {
        DataFusionError::SQL(_, _) => anyhow!("the query does not parse: {}", place(&after_prefix(&text))),
        DataFusionError::External(_) | DataFusionError::ObjectStore(_) => anyhow!("{}", after_prefix(&text)),
        DataFusionError::ResourcesExhausted(_) => {
            anyhow!(
                "the query needs more memory than it may have: give it more with --memory, or ask for less ({})",
                after_prefix(&text)
            )
        }
        DataFusionError::Plan(_) if text.contains("not supported: ") => {
            anyhow!(
                "kymo sql only reads, and the query would write or change something: {}",
                after_prefix(&text)
            )
        }
        _ => anyhow!("{}", after_prefix(&text)),
    }
}

/// The text without the kind of the error before it, which names parts of the engine.
fn after_prefix(text: &str) -> String {
    const KINDS: [&str; 8] = [
        "SQL error: ",
        "Error during planning: ",
        "Schema error: ",
        "External error: ",
        "Resources exhausted: ",
        "Execution error: ",
        "Object Store error: ",
        "This feature is not implemented: ",
    ];
    let rest = KINDS.iter().find_map(|kind| text.strip_prefix(kind)).unwrap_or(text);
    let rest =
        rest.strip_prefix("ParserError(\"").and_then(|inner| inner.strip_suffix("\")")).unwrap_or(rest);
    rest.replace("\\\"", "\"").replace("sql parser error: ", "").trim_end_matches('.').to_owned()
}

/// `at Line: 1, Column: 8` as `at line 1, column 8`.
fn place(text: &str) -> String {
    text.replace("Line: ", "line ").replace("Column: ", "column ")
}

/// The first line; the rest is help for developers of the engine.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}
