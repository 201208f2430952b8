//! Replies to the Firefox Profiler's page, which alone may read them besides the user's programs.
use super::{CancelOnDrop, ServerState, refusal, response};
use crate::answer::HttpReply;
use crate::profiler::ProfilerRequest;
use crate::symbol_api::{PROFILER, SymbolPath};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_MAX_AGE, HeaderName, HeaderValue, ORIGIN, VARY,
};
use hyper::{Request, Response, StatusCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A longer body of a request is refused.
const MOST_BODY_BYTES: usize = 4 << 20;
/// A body comes in this time.
const BODY_TIME: Duration = Duration::from_secs(20);
/// Browsers ask for it before a page of the network reaches this machine.
const PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// Answers the profiler.
pub(super) async fn respond(
    request: Request<Incoming>,
    admitted: Result<ProfilerRequest, StatusCode>,
    shared: Arc<ServerState>,
) -> Response<Full<Bytes>> {
    let of_page = request.headers().contains_key(ORIGIN);
    let asked = match admitted {
        Ok(asked) => asked,
        Err(status) => return refusal(status),
    };
    let mut response = match asked {
        ProfilerRequest::Preflight => {
            let mut response = refusal(StatusCode::NO_CONTENT);
            *response.body_mut() = Full::default();
            let headers = response.headers_mut();
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("content-type"));
            headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
            headers.insert(PRIVATE_NETWORK, HeaderValue::from_static("true"));
            response
        }
        ProfilerRequest::Ask(path) => match body(request).await {
            Ok(body) => answer(path, body, shared).await,
            Err(status) => return refusal(status),
        },
    };
    if of_page {
        response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static(PROFILER));
    }
    response.headers_mut().insert(VARY, HeaderValue::from_static("origin"));
    response
}

/// The body of a request.
async fn body(request: Request<Incoming>) -> Result<Bytes, StatusCode> {
    let limited = Limited::new(request.into_body(), MOST_BODY_BYTES);
    match tokio::time::timeout(BODY_TIME, limited.collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            Err(StatusCode::PAYLOAD_TOO_LARGE)
        }
        Ok(Err(_)) => Err(StatusCode::BAD_REQUEST),
        Err(_) => Err(StatusCode::REQUEST_TIMEOUT),
    }
}

async fn answer(path: SymbolPath, body: Bytes, shared: Arc<ServerState>) -> Response<Full<Bytes>> {
    let Ok(_turn) = shared.queries.acquire().await else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE);
    };
    let cancel = Arc::new(AtomicBool::new(false));
    let _waiting = CancelOnDrop(Arc::clone(&cancel));
    let of_task = Arc::clone(&shared);
    let task = tokio::task::spawn_blocking(move || {
        let Some(paths) = &of_task.profiler else {
            return (HttpReply::says(StatusCode::NOT_FOUND, "no profile"), false);
        };
        let Some(shown) = of_task.slot.reading().shown else {
            return (HttpReply::says(StatusCode::SERVICE_UNAVAILABLE, "no recording"), false);
        };
        let reply = match paths.symbols.answer(path, &body, &shown.store, &cancel) {
            Ok(json) => HttpReply::json(json),
            // As the servers that the profiler knows: what is wrong is an answer, which it shows.
            Err(why) => HttpReply::json(serde_json::json!({ "error": why.0 }).to_string().into_bytes()),
        };
        (reply, shown.file.has_changed())
    });
    match task.await {
        Ok((reply, has_changed)) => response(reply, has_changed),
        Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR),
    }
}
