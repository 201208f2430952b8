//! Connections: on the loopback address, a bounded number at a time, each for a bounded time.
//!
//! A connection without a whole request head holds no place that the page needs: where too many of
//! them are open, the oldest is closed. So another user of this machine, who has no token, cannot
//! make the page wait by opening connections.
mod profiler_reply;

use crate::answer::{self, HttpReply, answer};
use crate::guard::{Guard, Question};
use crate::profiler::ProfilerPaths;
use crate::shown::{Reading, ShownSlot};
use crate::symbol_api::SymbolApi;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, Read as _};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// Requests with the token that are answered at a time; others wait.
const MOST_REQUESTS: usize = 64;
/// Connections without a whole request head. One more closes the oldest of them.
const MOST_WITHOUT_HEAD: usize = 256;
/// So much of a request's head is read.
const MOST_HEAD_BYTES: usize = 16 << 10;
/// A request's head comes in this time.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// A connection lasts so long, with its one answer.
const CONNECTION_TIME: Duration = Duration::from_secs(120);
/// How long a page waits for a reading, before it hears how far that is.
const READING_TIME: Duration = Duration::from_millis(250);
/// How soon the end of the server is noticed.
const STOP_POLL: Duration = Duration::from_millis(50);

/// With each answer: whether the file of the recording has changed.
const RECORDING: HeaderName = HeaderName::from_static("x-kymo-recording");

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: std::net::TcpListener,
    guard: Guard,
    profiler: Option<ProfilerPaths>,
}

/// What all connections share.
struct ServerState {
    slot: Arc<ShownSlot>,
    /// The page's title until it knows what it shows.
    title: String,
    guard: Guard,
    profiler: Option<ProfilerPaths>,
    /// Requests with the token that are answered at a time.
    requests: Semaphore,
    /// Queries that run at a time.
    queries: Semaphore,
}

/// A connection that may not have sent its request head.
struct NewConnection {
    /// Set when the head has come.
    has_head: Arc<AtomicBool>,
    task: AbortHandle,
}

/// So many random bits as text.
fn random() -> io::Result<String> {
    let mut bits = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Sets the flag when it is dropped: nobody waits for the answer any more.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        // Relaxed: nothing else is told by it.
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Server {
    /// Listens on the loopback address. `port`: 0 takes a free one.
    ///
    /// # Errors
    /// Those of `bind`, for a port that is taken, for example, and of reading random bits.
    pub fn bind(port: u16) -> io::Result<Server> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok(Server { listener, guard: Guard::new(random()?, port), profiler: None })
    }

    /// Serves the Firefox Profiler, too; gives the address at which it shows the profile.
    ///
    /// # Errors
    /// Those of reading random bits.
    pub fn with_symbols(mut self, symbols: SymbolApi) -> io::Result<(Server, String)> {
        // Another token than that of the page: the profiler's page is another site's.
        let paths = ProfilerPaths { token: random()?, symbols };
        let address = paths.address(self.guard.port());
        self.profiler = Some(paths);
        Ok((self, address))
    }

    /// The address of the page, with the token.
    pub fn address(&self) -> String {
        self.guard.address()
    }

    /// Answers until the flag is set, with what is in the slot. Blocks. `title`: that of the page
    /// until it has the profile.
    ///
    /// # Errors
    /// When the runtime cannot be made, or the socket does not accept any more.
    pub fn run(self, slot: Arc<ShownSlot>, title: &str, stop: &AtomicBool) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let queries = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(ServerState {
            slot,
            title: title.to_owned(),
            guard: self.guard,
            profiler: self.profiler,
            requests: Semaphore::new(MOST_REQUESTS),
            queries: Semaphore::new(queries),
        });
        let ended = runtime.block_on(async {
            let listener = TcpListener::from_std(self.listener)?;
            let accepting = tokio::spawn(async move { accept(&listener, &shared).await });
            // Relaxed: a signal's handler sets it, and nothing else.
            while !stop.load(Ordering::Relaxed) {
                if accepting.is_finished() {
                    return accepting.await.unwrap_or(Ok(()));
                }
                tokio::time::sleep(STOP_POLL).await;
            }
            Ok(())
        });
        // A query that still runs ends by its flag, not by being waited for.
        runtime.shutdown_background();
        ended
    }
}

async fn accept(listener: &TcpListener, shared: &Arc<ServerState>) -> io::Result<()> {
    let mut without_head = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Of a client that has gone, or for want of descriptors: a moment later it may be well.
            Err(error) if may_pass(&error) => {
                tokio::time::sleep(STOP_POLL).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        make_room(&mut without_head);
        let (has_head, shared) = (Arc::new(AtomicBool::new(false)), Arc::clone(shared));
        let connection = serve(stream, shared, Arc::clone(&has_head));
        let task = tokio::spawn(async move { _ = tokio::time::timeout(CONNECTION_TIME, connection).await });
        without_head.push_back(NewConnection { has_head, task: task.abort_handle() });
    }
}

/// Forgets connections that have a head or have ended, and closes the oldest where still too many
/// are left.
fn make_room(without_head: &mut VecDeque<NewConnection>) {
    if without_head.len() < MOST_WITHOUT_HEAD {
        return;
    }
    // Relaxed: one thread runs all tasks.
    without_head.retain(|new| !new.has_head.load(Ordering::Relaxed) && !new.task.is_finished());
    if without_head.len() >= MOST_WITHOUT_HEAD
        && let Some(oldest) = without_head.pop_front()
    {
        oldest.task.abort();
    }
}

/// Whether accepting may work again.
fn may_pass(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    const OUT_OF: [i32; 4] = [12, 23, 24, 105]; // ENOMEM, ENFILE, EMFILE, ENOBUFS
    [ConnectionAborted, ConnectionReset, Interrupted].contains(&error.kind())
        || error.raw_os_error().is_some_and(|code| OUT_OF.contains(&code))
}

async fn serve(stream: TcpStream, shared: Arc<ServerState>, has_head: Arc<AtomicBool>) {
    let service = service_fn(|request| {
        has_head.store(true, Ordering::Relaxed);
        respond(request, Arc::clone(&shared))
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(MOST_HEAD_BYTES);
    // One question for each connection: nobody keeps a place by being silent.
    http.keep_alive(false);
    // An error is the client's: it has gone, or sent what is no request.
    _ = http.serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(
    request: Request<Incoming>,
    shared: Arc<ServerState>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if let Some(paths) = &shared.profiler
        && let Some(admitted) =
            paths.admit(&shared.guard, (request.method(), request.uri(), request.headers()))
    {
        let Ok(_place) = shared.requests.acquire().await else {
            return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE));
        };
        return Ok(profiler_reply::respond(request, admitted, Arc::clone(&shared)).await);
    }
    let admitted = shared.guard.admit(request.method(), request.uri(), request.headers());
    // Whatever body it has is not read.
    drop(request);
    let asked = match admitted {
        Ok(asked) => asked,
        Err(status) => return Ok(refusal(status)),
    };
    let Ok(_place) = shared.requests.acquire().await else {
        return Ok(refusal(StatusCode::SERVICE_UNAVAILABLE));
    };
    Ok(match asked {
        Question::Page => page(&shared).unwrap_or_else(|_| refusal(StatusCode::INTERNAL_SERVER_ERROR)),
        Question::Profile(words) => profile(&words, &shared).await,
        asked => about_recording(asked, &shared).await,
    })
}

/// The page, which asks for the rest.
fn page(shared: &ServerState) -> io::Result<Response<Full<Bytes>>> {
    Ok(response(answer::page(&shared.title, random()?), false))
}

/// What the page shows: `after` is the number of the reading that it has. The page asks again where
/// there is no newer one yet.
async fn profile(words: &[(String, String)], shared: &ServerState) -> Response<Full<Bytes>> {
    let after = match words {
        [] => 0,
        [(name, number)] if name == "after" && number.parse::<u64>().is_ok() => number.parse().unwrap_or(0),
        _ => return refusal(StatusCode::BAD_REQUEST),
    };
    let Some(reading) = shared.slot.reading_after(after, READING_TIME).await else {
        return response(answer::progress(shared.slot.progress()), false);
    };
    let Reading { version, is_last, shown: Some(shown) } = reading else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE);
    };
    let Ok(_turn) = shared.queries.acquire().await else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE);
    };
    let task = tokio::task::spawn_blocking(move || answer::profile(&shown, version, is_last));
    task.await.map_or_else(|_| refusal(StatusCode::INTERNAL_SERVER_ERROR), |reply| response(reply, false))
}

/// The answer to a question about what is shown.
async fn about_recording(mut asked: Question, shared: &ServerState) -> Response<Full<Bytes>> {
    let Ok(version) = asked.take_version() else { return refusal(StatusCode::BAD_REQUEST) };
    let Ok(_turn) = shared.queries.acquire().await else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE);
    };
    let reading = shared.slot.reading();
    let Some(shown) = reading.shown else { return refusal(StatusCode::SERVICE_UNAVAILABLE) };
    // The numbers of nodes and threads are those of a reading.
    if version.is_some_and(|version| version != reading.version) {
        return refusal(StatusCode::CONFLICT);
    }
    let cancel = Arc::new(AtomicBool::new(false));
    let _waiting = CancelOnDrop(Arc::clone(&cancel));
    // What will be read again may change.
    let is_last = reading.is_last;
    let task = tokio::task::spawn_blocking(move || {
        (answer(&shown, &asked, &cancel), is_last && shown.file.has_changed())
    });
    match task.await {
        Ok((answer, has_changed)) => response(answer, has_changed),
        Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// Says the status only.
fn refusal(status: StatusCode) -> Response<Full<Bytes>> {
    response(HttpReply::says(status, status.canonical_reason().unwrap_or("refused")), false)
}

fn response(answer: HttpReply, has_changed: bool) -> Response<Full<Bytes>> {
    let of_page = answer.nonce.as_deref().map(|nonce| kymo_profile::view::policy(Some(nonce)));
    let policy = of_page.unwrap_or_else(|| "default-src 'none'".to_owned());
    let mut response = Response::new(Full::new(Bytes::from(answer.body)));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_TYPE, answer.kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (RECORDING, if has_changed { "changed" } else { "same" }),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    response
}
