//! The query engine: bounded memory, read only.

use std::sync::Arc;

use anyhow::Context as _;
use datafusion::config::ConfigOptions;
use datafusion::dataframe::DataFrame;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SQLOptions, SessionConfig, SessionContext};
use datafusion::sql::parser::Statement;

use crate::parameters::{self, Assignment};
use crate::sentence;

/// How much of the free memory a query may take before it writes to temporary files.
const SHARE_OF_FREE_MEMORY: u64 = 2;
/// What is assumed to be free where /proc does not say it.
const ASSUMED_FREE_BYTES: u64 = 1 << 30;

/// An engine without tables. `threads` is how many a query may use, `memory_bytes` what it may hold
/// before it spills; `None`: half of the free memory.
///
/// # Errors
/// The engine cannot be made.
pub(crate) fn new(threads: usize, memory_bytes: Option<usize>) -> anyhow::Result<SessionContext> {
    let memory_bytes = memory_bytes.unwrap_or_else(usual_memory_bytes);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(FairSpillPool::new(memory_bytes)))
        .build_arc()
        .context("failed to make the query engine")?;
    let mut options = ConfigOptions::new();
    // Files are checked where their statistics are collected (`format.rs`).
    options.execution.collect_statistics = true;
    // Of stacks, most queries want the innermost frames: the ids of others are not decoded.
    options.execution.parquet.pushdown_filters = true;
    // As the columns of `tables.rs` are.
    options.execution.parquet.schema_force_view_types = false;
    let config = SessionConfig::from(options).with_target_partitions(threads).with_information_schema(true);
    Ok(SessionContext::new_with_config_rt(config, runtime))
}

fn usual_memory_bytes() -> usize {
    let free = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let bytes = free.map_or(ASSUMED_FREE_BYTES, |kib| kib << 10) / SHARE_OF_FREE_MEMORY;
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Plans one query. It can only read.
///
/// # Errors
/// The text does not parse, names what is not there, or would write.
pub(crate) async fn plan(
    context: &SessionContext,
    sql: &str,
    assignments: &[Assignment],
) -> anyhow::Result<DataFrame> {
    let state = context.state();
    let dialect = &state.config_options().sql_parser.dialect;
    let mut statement = state.sql_to_statement(sql, dialect).map_err(sentence::of_query)?;
    bind(&mut statement, assignments)?;
    let plan = state.statement_to_plan(statement).await.map_err(sentence::of_query)?;
    SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false)
        .with_allow_statements(false)
        .verify_plan(&plan)
        .map_err(sentence::of_query)?;
    context.execute_logical_plan(plan).await.map_err(sentence::of_query)
}

fn bind(statement: &mut Statement, assignments: &[Assignment]) -> anyhow::Result<()> {
    match statement {
        Statement::Statement(statement) => parameters::bind(statement, assignments),
        Statement::Explain(explain) => bind(&mut explain.statement, assignments),
        _ => Ok(()),
    }
}
