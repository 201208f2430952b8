//! The protocol, by the crate rmcp: which tools there are, and a call of one.
use crate::access::AllowedRecordings;
use crate::loaded::{LoadProgress, LoadedRecordings, RecordingOpener};
use crate::reply::ToolReply;
use crate::tools::{Arguments, TOOLS, ToolSpec, sentence};
use kymo_profile::text::shown;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ProgressToken, ServerCapabilities, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::{Peer, RequestContext, RoleServer, ServerInitializeError};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{ErrorData, ServerHandler, ServiceExt as _};
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

/// A longer message is skipped.
const MOST_MESSAGE_BYTES: usize = 256 << 10;
/// Calls that run or wait at a time; others are refused.
const MOST_CALLS: usize = 32;
/// How often the client is told how far a load is, if it wants to know.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

const INSTRUCTIONS: &str = "Profiles of Linux programs, recorded by kymo or perf. Begin with \
list_recordings and open_recording; then top, and callers, callees or annotate for what stands out. \
Each answer has the samples or the time that its percentages are of.";

/// Why serving ended before the client did.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The runtime cannot be made.
    #[error("failed to start the server: {0}")]
    Runtime(#[from] io::Error),
    /// The client began with something else than the protocol.
    #[error("the client did not begin with `initialize` of the Model Context Protocol: {0}")]
    Initialize(String),
}

/// Serves a client on stdin and stdout until stdin ends. Blocks.
///
/// # Errors
/// When the client does not speak the protocol.
pub fn serve(allowed: AllowedRecordings, opener: RecordingOpener) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = Server {
        loaded: Arc::new(LoadedRecordings::new(allowed, opener)),
        calls: Semaphore::new(MOST_CALLS),
        queries: Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)),
    };
    let ended = runtime.block_on(async {
        let transport = AsyncRwTransport::new(tokio::io::stdin(), tokio::io::stdout());
        let transport = transport.with_max_line_length(MOST_MESSAGE_BYTES);
        match server.serve(transport).await {
            Ok(running) => {
                _ = running.waiting().await;
                Ok(())
            }
            // It went before it said anything.
            Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(error) => Err(ServeError::Initialize(error.to_string())),
        }
    });
    // A query that still runs, and the thread that reads stdin, end with the process.
    runtime.shutdown_background();
    ended
}

struct Server {
    loaded: Arc<LoadedRecordings>,
    calls: Semaphore,
    /// Queries that run at a time.
    queries: Semaphore,
}

/// Sets the flag when it is dropped: nobody waits for the answer any more.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        // Relaxed: nothing else is told by it.
        self.0.store(true, Ordering::Relaxed);
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("kymo", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tool = |spec: &ToolSpec| {
            let annotations =
                ToolAnnotations::from_raw(None, Some(true), Some(false), Some(true), Some(false));
            Tool::new(spec.name, spec.description, spec.schema()).with_annotations(annotations)
        };
        Ok(ListToolsResult::with_all_items(TOOLS.iter().map(tool).collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = ToolSpec::find(&request.name) else {
            let names: Vec<&str> = TOOLS.iter().map(|tool| tool.name).collect();
            let why = format!("there is no tool '{}': there are {}", request.name, names.join(", "));
            return Err(ErrorData::invalid_params(why, None));
        };
        let reply = match self.calls.try_acquire() {
            Ok(_call) => self.reply(tool, request, context).await,
            Err(_) => Err(format!("{MOST_CALLS} calls are under way: ask again when they are answered")),
        };
        // What the caller did wrong is an answer of the tool: so a model reads it.
        Ok(CallToolResponse::Complete(match reply {
            Ok(reply) => {
                let mut result = CallToolResult::success(vec![ContentBlock::text(reply.text)]);
                result.structured_content = reply.json;
                result
            }
            Err(why) => CallToolResult::error(vec![ContentBlock::text(why)]),
        }))
    }
}

impl Server {
    /// Runs a call on a thread of its own, until the client cancels it.
    async fn reply(
        &self,
        tool: &'static ToolSpec,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ToolReply, String> {
        let arguments = tool.arguments(request.arguments.unwrap_or_default())?;
        let (cancel, progress) = (Arc::new(AtomicBool::new(false)), Arc::new(LoadProgress::default()));
        let _waiting = CancelOnDrop(Arc::clone(&cancel));
        let turn = self.queries.acquire();
        let _turn = tokio::select! {
            turn = turn => turn.map_err(|error| error.to_string())?,
            () = context.ct.cancelled() => return Err("cancelled".into()),
        };
        let (loaded, progress_of_load) = (Arc::clone(&self.loaded), Arc::clone(&progress));
        let call =
            tokio::task::spawn_blocking(move || call(&loaded, tool, &arguments, &progress_of_load, &cancel));
        let told = tell_progress(context.peer.clone(), context.meta.get_progress_token(), &progress);
        tokio::select! {
            done = call => done.map_err(|error| format!("the query failed: {error}"))?,
            () = context.ct.cancelled() => Err("cancelled".into()),
            () = told => Err("cancelled".into()),
        }
    }
}

/// Tells the client how far the load is, if it asked for that; never ends.
async fn tell_progress(peer: Peer<RoleServer>, token: Option<ProgressToken>, progress: &LoadProgress) {
    let mut last = 0;
    loop {
        tokio::time::sleep(PROGRESS_INTERVAL).await;
        let now = progress.get();
        if let Some(token) = &token
            && now > last
        {
            let all = LoadProgress::ALL;
            let note = ProgressNotificationParam::new(token.clone(), now as f64)
                .with_total(all as f64)
                .with_message(format!("the recording is read: {}%", now * 100 / all));
            // A client that does not read it has no answer either.
            _ = peer.notify_progress(note).await;
            last = now;
        }
    }
}

/// Answers a call.
fn call(
    loaded: &LoadedRecordings,
    tool: &ToolSpec,
    arguments: &Arguments,
    progress: &LoadProgress,
    cancel: &AtomicBool,
) -> Result<ToolReply, String> {
    if tool.name == "list_recordings" {
        return Ok(list(loaded, arguments));
    }
    let file = loaded.allowed.find(arguments.file.as_deref())?;
    let text = arguments.query_text(tool)?;
    let (query, head) = match loaded.any(&file) {
        Some(known) => (arguments.query(tool, &text, &known.recording)?, None),
        None => {
            let head = loaded.head(&file)?;
            (arguments.query(tool, &text, &head)?, Some(head))
        }
    };
    let asked = loaded.get(&file, &query, head, progress)?;
    let answer = asked.ask(&query, cancel).map_err(|error| sentence(&error, &text))?;
    let mut reply =
        ToolReply::answer(&text, &answer, arguments.first_line()).map_err(|error| error.to_string())?;
    if tool.name == "open_recording" {
        reply.text = format!("{}\n{}", about(&asked.recording), reply.text);
        for problem in asked.recording.problems.iter().chain(asked.data.problems()) {
            _ = writeln!(reply.text, "problem: {}", shown(&problem.to_string()));
        }
        for note in asked.data.notes() {
            _ = writeln!(reply.text, "note: {}", shown(note));
        }
        reply = ToolReply { json: reply.json, ..ToolReply::text(&reply.text, arguments.first_line()) };
    }
    Ok(reply)
}

fn list(loaded: &LoadedRecordings, arguments: &Arguments) -> ToolReply {
    let found = loaded.allowed.list();
    let mut text: String = found.names.iter().map(|name| format!("{}\n", shown(name))).collect();
    if found.names.is_empty() {
        text.push_str("there is no recording below the folder\n");
    }
    if found.is_cut {
        text.push_str(
            "and perhaps more: the search was cut. A recording can be named by its path from the folder.\n",
        );
    }
    let mut reply = ToolReply::text(&text, arguments.first_line());
    reply.json = Some(serde_json::json!({ "recordings": found.names, "is_cut": found.is_cut }));
    reply
}

/// Machine, recorder and command of a recording, each if it is known.
fn about(recording: &kymo_data::Recording) -> String {
    let features = &recording.features;
    let command = Some(features.cmdline.join(" ")).filter(|command| !command.is_empty());
    let seconds = features.sample_time.map(|(first, last)| {
        let ns = last.saturating_sub(first);
        format!("{}.{:03} s", ns / 1_000_000_000, ns / 1_000_000 % 1000)
    });
    let lines = [
        ("recorded by", command),
        ("on", features.hostname.clone()),
        ("kernel", features.os_release.clone()),
        ("machine", features.arch.clone()),
        ("CPU", features.cpu_desc.clone()),
        ("first to last sample", seconds),
    ];
    let known = lines.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.map(|(name, value)| format!("{name}: {}\n", shown(&value))).collect()
}
