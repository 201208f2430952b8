//! Which requests are answered.
//!
//! The server listens on the loopback address, where every program and every web page of this
//! machine's browsers can reach it. The token is what only the user's own page knows. The name of
//! the host is checked, because a page from elsewhere can give its own name this address; and the
//! origin, because browsers tell it.
use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::{Method, StatusCode, Uri};
use percent_encoding::percent_decode_str;

/// Where a page has the token when it asks.
pub(crate) const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-kymo-token");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// The page itself.
    Page,
    /// What the page shows.
    Profile(Vec<(String, String)>),
    /// Sums by node.
    Select(Vec<(String, String)>),
    /// Samples over time.
    Entries(Vec<(String, String)>),
    /// The heat map.
    HeatMap(Vec<(String, String)>),
    /// The code of a function.
    Code(Vec<(String, String)>),
    /// A query.
    Query(Vec<(String, String)>),
}

impl Question {
    /// Takes the number of the reading that the page shows out of the words; the error: it is no
    /// number.
    pub(crate) fn take_version(&mut self) -> Result<Option<u64>, ()> {
        let words = match self {
            Question::Page | Question::Profile(_) => return Ok(None),
            Question::Select(words)
            | Question::Entries(words)
            | Question::HeatMap(words)
            | Question::Code(words)
            | Question::Query(words) => words,
        };
        let at = words.iter().position(|(name, _)| name == "version");
        at.map(|at| words.remove(at).1.parse().map_err(|_| ())).transpose()
    }
}

/// Knows what a request must have.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    token: String,
    port: u16,
}

/// The words of a query string: names and values. A browser writes a space as `+`.
fn words(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let pair = |word: &str| {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        (decode(name), decode(value))
    };
    query.split('&').filter(|word| !word.is_empty()).map(pair).collect()
}

/// Whether both are the same, in a time that does not tell where they differ.
pub(crate) fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

impl Guard {
    pub(crate) fn new(token: String, port: u16) -> Guard {
        Guard { token, port }
    }

    /// The port of the server.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The address of the page.
    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}/?token={}", self.port, self.token)
    }

    /// Whether a host of this name is this server, as a browser of this machine calls it.
    pub(crate) fn is_own(&self, authority: &str) -> bool {
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
        ["127.0.0.1", "localhost"].contains(&host) && port == self.port.to_string()
    }

    /// The only value of a header; the error: there are several, or it is no text.
    pub(crate) fn only(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, ()> {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => value.to_str().map(Some).map_err(|_| ()),
            (Some(_), Some(_)) => Err(()),
        }
    }

    /// What a request asks, if it may ask.
    ///
    /// # Errors
    /// The status that says why it may not.
    pub(crate) fn admit(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Question, StatusCode> {
        let forbidden = |()| StatusCode::FORBIDDEN;
        let host = Guard::only(headers, HOST).map_err(forbidden)?;
        let named = host.is_some_and(|host| self.is_own(host))
            && uri.authority().is_none_or(|authority| self.is_own(authority.as_str()));
        let origin = Guard::only(headers, ORIGIN).map_err(forbidden)?;
        let of_own_page =
            origin.is_none_or(|origin| origin.strip_prefix("http://").is_some_and(|host| self.is_own(host)));
        let site = Guard::only(headers, FETCH_SITE).map_err(forbidden)?;
        let from_here = site.is_none_or(|site| ["none", "same-origin"].contains(&site));
        if !named || !of_own_page {
            return Err(StatusCode::FORBIDDEN);
        }
        let mut words = words(uri.query().unwrap_or_default());
        let in_header = Guard::only(headers, TOKEN_HEADER).map_err(forbidden)?.map(str::to_owned);
        // In the address only where the browser cannot send a header: so it does not spread.
        let in_address = match words.iter().position(|(name, _)| name == "token") {
            Some(at) if uri.path() == "/" => Some(words.remove(at).1),
            Some(_) => return Err(StatusCode::FORBIDDEN),
            None => None,
        };
        // The user's own file leads to the page, with the token: a browser tells that as another
        // site.
        if !from_here && in_address.is_none() {
            return Err(StatusCode::FORBIDDEN);
        }
        let token = in_header.or(in_address).unwrap_or_default();
        if !same(token.as_bytes(), self.token.as_bytes()) {
            return Err(StatusCode::FORBIDDEN);
        }
        if method != Method::GET {
            return Err(StatusCode::METHOD_NOT_ALLOWED);
        }
        match uri.path() {
            "/" => Ok(Question::Page),
            "/profile" => Ok(Question::Profile(words)),
            "/select" => Ok(Question::Select(words)),
            "/entries" => Ok(Question::Entries(words)),
            "/heatmap" => Ok(Question::HeatMap(words)),
            "/code" => Ok(Question::Code(words)),
            "/query" => Ok(Question::Query(words)),
            _ => Err(StatusCode::NOT_FOUND),
        }
    }
}
