//! Requests of the Firefox Profiler's page: which are answered. How: `server/profiler_reply.rs`.
//!
//! The page is of another origin, and runs in the user's browser. It knows the token of these
//! paths, by its address, and no other. Browsers let it read the answers only because these allow
//! its origin, and no other origin is allowed.
use crate::guard::{Guard, same};
use crate::symbol_api::{PROFILER, SymbolApi, SymbolPath};
use hyper::header::{ACCESS_CONTROL_REQUEST_METHOD, CONTENT_TYPE, HOST, HeaderMap, ORIGIN};
use hyper::{Method, StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// What the profiler asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProfilerRequest {
    /// Whether it may ask.
    Preflight,
    /// A path.
    Ask(SymbolPath),
}

/// What is served to the profiler.
#[derive(Debug)]
pub(crate) struct ProfilerPaths {
    /// What the path begins with.
    pub(crate) token: String,
    pub(crate) symbols: SymbolApi,
}

impl ProfilerPaths {
    /// The address of the profiler, with that of the profile.
    pub(crate) fn address(&self, port: u16) -> String {
        let own = format!("http://127.0.0.1:{port}/{}", self.token);
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let profile = encoded(&format!("{own}/profile.json"));
        format!("{PROFILER}/from-url/{profile}/?symbolServer={}", encoded(&own))
    }

    /// What a request asks, if its path has the token. `None`: it has not, and is judged as one
    /// of the user's own page.
    pub(crate) fn admit(
        &self,
        guard: &Guard,
        (method, uri, headers): (&Method, &Uri, &HeaderMap),
    ) -> Option<Result<ProfilerRequest, StatusCode>> {
        let (token, path) = uri.path().strip_prefix('/')?.split_once('/')?;
        same(token.as_bytes(), self.token.as_bytes()).then(|| admit(guard, method, uri, headers, path))
    }
}

fn admit(
    guard: &Guard,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    path: &str,
) -> Result<ProfilerRequest, StatusCode> {
    let forbidden = |()| StatusCode::FORBIDDEN;
    let host = Guard::only(headers, HOST).map_err(forbidden)?;
    let named = host.is_some_and(|host| guard.is_own(host))
        && uri.authority().is_none_or(|authority| guard.is_own(authority.as_str()));
    let origin = Guard::only(headers, ORIGIN).map_err(forbidden)?;
    // Without an origin it is no page: a program that was given the address.
    if !named || origin.is_some_and(|origin| origin != PROFILER) {
        return Err(StatusCode::FORBIDDEN);
    }
    let Some(path) = SymbolPath::of(path).filter(|_| uri.query().is_none()) else {
        return Err(StatusCode::NOT_FOUND);
    };
    if method == Method::OPTIONS && origin.is_some() && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
        return Ok(ProfilerRequest::Preflight);
    }
    let expected = if path == SymbolPath::Profile { Method::GET } else { Method::POST };
    if method != expected {
        return Err(StatusCode::METHOD_NOT_ALLOWED);
    }
    if path != SymbolPath::Profile {
        let kind = Guard::only(headers, CONTENT_TYPE).map_err(|()| StatusCode::UNSUPPORTED_MEDIA_TYPE)?;
        let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or("").trim();
        // The profiler's page sends text, because that needs no preflight.
        if !["application/json", "text/plain"].iter().any(|known| known.eq_ignore_ascii_case(kind)) {
            return Err(StatusCode::UNSUPPORTED_MEDIA_TYPE);
        }
    }
    Ok(ProfilerRequest::Ask(path))
}
