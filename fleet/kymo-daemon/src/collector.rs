//! Pushes OTLP profiles to an OpenTelemetry Collector, by HTTP/1.1 or gRPC.
//!
//! *You give it* a gzipped `ExportProfilesServiceRequest`; *it gives you* whether the collector
//! took it, may take it later, or never will.
//!
//! # Guarantees
//! - Each push ends by its deadline, whatever the collector does.
//! - At most [`MOST_ANSWER_BYTES`] of an answer are read. Redirects are not followed.
//! - Only an answer of OTLP counts as one: a page of a proxy with status 200 does not.
use crate::config::{OtlpConfig, Protocol};
use crate::connection::{Connector, Endpoint};
use crate::delivery::Failure;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, TE};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::time::Duration;

/// What is read of an answer.
pub(crate) const MOST_ANSWER_BYTES: usize = 64 << 10;
const HTTP_PATH: &str = "/v1development/profiles";
const GRPC_PATH: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";
/// The bytes before a message of gRPC: whether it is compressed, and its length.
const GRPC_PREFIX: usize = 5;
/// Statuses of gRPC after which OTLP says that a request may be sent again.
const GRPC_RETRYABLE: [u32; 7] = [1, 4, 8, 10, 11, 14, 15];
/// `INVALID_ARGUMENT`.
const GRPC_INVALID: u32 = 3;

/// A collector.
#[derive(Debug)]
pub(crate) struct Collector {
    endpoint: Endpoint,
    connector: Connector,
    protocol: Protocol,
    headers: HeaderMap,
    timeout: Duration,
}

impl Collector {
    /// A collector as configured; nothing is connected.
    ///
    /// # Errors
    /// A sentence about the endpoint, a header or the authorities.
    pub(crate) fn new(config: &OtlpConfig) -> Result<Collector, String> {
        let endpoint = Endpoint::parse(&config.endpoint)?;
        let mut headers = HeaderMap::new();
        for (name, value) in &config.headers {
            // Its value may be a secret.
            let wrong = || format!("[otlp] headers: {name:?} or its value is not possible in HTTP");
            let header = HeaderName::try_from(name).map_err(|_| wrong())?;
            let mut value = HeaderValue::try_from(value).map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        let ca_file = Some(config.ca_file.as_path()).filter(|file| !file.as_os_str().is_empty());
        let connector = Connector::new(&endpoint, config.protocol == Protocol::Grpc, ca_file)?;
        let timeout = Duration::from_secs(config.timeout_s);
        Ok(Collector { endpoint, connector, protocol: config.protocol, headers, timeout })
    }

    /// What it is called in sentences.
    pub(crate) fn name(&self) -> String {
        self.endpoint.to_string()
    }

    /// Pushes a gzipped request. How many profiles the collector says that it did not take, and
    /// why, in words.
    ///
    /// # Errors
    /// [`Failure`]
    pub(crate) async fn push(&self, gzipped: Vec<u8>) -> Result<Option<String>, Failure> {
        let push = async {
            match self.protocol {
                Protocol::Http => self.push_http(gzipped).await,
                Protocol::Grpc => self.push_grpc(gzipped).await,
            }
        };
        match tokio::time::timeout(self.timeout, push).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Later(format!("it did not answer within {} s", self.timeout.as_secs()))),
        }
    }

    /// Connects, and hangs up.
    ///
    /// # Errors
    /// Why not, in words.
    pub(crate) async fn probe(&self) -> Result<(), String> {
        match tokio::time::timeout(self.timeout, self.connector.connect()).await {
            Ok(connected) => connected.map(drop),
            Err(_) => Err(format!("it did not answer within {} s", self.timeout.as_secs())),
        }
    }

    fn request(
        &self,
        path: &str,
        content_type: &'static str,
        body: Vec<u8>,
    ) -> Result<Request<Full<Bytes>>, Failure> {
        let mut request = Request::post(path).body(Full::new(Bytes::from(body))).map_err(later)?;
        let headers = request.headers_mut();
        headers.extend(self.headers.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        Ok(request)
    }

    async fn push_http(&self, gzipped: Vec<u8>) -> Result<Option<String>, Failure> {
        let stream = self.connector.connect().await.map_err(Failure::Later)?;
        let path = format!("{}{HTTP_PATH}", self.endpoint.path());
        let mut request = self.request(&path, "application/x-protobuf", gzipped)?;
        request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        let host = HeaderValue::try_from(self.endpoint.authority()).map_err(later)?;
        request.headers_mut().insert(HOST, host);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(later)?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(later)?;
            let (status, content_type) = (response.status(), content_type(&response));
            let (body, _) = read(response).await?;
            match status {
                StatusCode::OK if content_type == "application/x-protobuf" => partial_success(&body),
                StatusCode::OK => Err(Failure::Later(format!(
                    "its answer is \"{content_type}\", not one of OTLP: is something else listening there?"
                ))),
                _ => Err(refused(status)),
            }
        };
        drive(exchange, connection).await
    }

    async fn push_grpc(&self, gzipped: Vec<u8>) -> Result<Option<String>, Failure> {
        let stream = self.connector.connect().await.map_err(Failure::Later)?;
        let length = u32::try_from(gzipped.len()).map_err(later)?;
        let mut body = Vec::with_capacity(gzipped.len() + GRPC_PREFIX);
        body.push(1);
        body.extend(length.to_be_bytes());
        body.extend(gzipped);
        let uri = format!("{}://{}{GRPC_PATH}", self.endpoint.scheme(), self.endpoint.authority());
        let mut request = self.request(&uri, "application/grpc", body)?;
        let headers = request.headers_mut();
        headers.insert("grpc-encoding", HeaderValue::from_static("gzip"));
        headers.insert("grpc-accept-encoding", HeaderValue::from_static("identity"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .map_err(later)?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(later)?;
            let (status, content_type) = (response.status(), content_type(&response));
            if status != StatusCode::OK {
                return Err(refused(status));
            }
            if !content_type.starts_with("application/grpc") {
                return Err(Failure::Later(format!("its answer is \"{content_type}\", not one of gRPC")));
            }
            let headers = response.headers().clone();
            let (body, trailers) = read(response).await?;
            grpc_answer(&headers, trailers.as_ref(), &body)
        };
        drive(exchange, connection).await
    }
}

fn later(error: impl std::error::Error) -> Failure {
    // The cause says more than what hyper calls it.
    let mut cause: &dyn std::error::Error = &error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    Failure::Later(cause.to_string())
}

/// An exchange over its connection. The connection may end first, with the answer delivered.
async fn drive(
    exchange: impl Future<Output = Result<Option<String>, Failure>>,
    connection: impl Future<Output = hyper::Result<()>>,
) -> Result<Option<String>, Failure> {
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        _ = connection => exchange.await,
    }
}

fn refused(status: StatusCode) -> Failure {
    let hint = match status {
        _ if status.is_redirection() => " (redirects are not followed: configure the place itself)",
        StatusCode::NOT_FOUND => " (it may have no receiver for profiles)",
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => " (set its headers in [otlp])",
        _ => "",
    };
    let reason = format!("it answered {status}{hint}");
    match status {
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => {
            Failure::Rejected(reason)
        }
        _ => Failure::Later(reason),
    }
}

fn content_type(response: &Response<Incoming>) -> String {
    let value = response.headers().get(CONTENT_TYPE);
    let text = value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().chars().take(64).filter(|c| !c.is_control()).collect()
}

/// The body and the trailers.
async fn read(response: Response<Incoming>) -> Result<(Bytes, Option<HeaderMap>), Failure> {
    let body = Limited::new(response.into_body(), MOST_ANSWER_BYTES).collect().await;
    let body = body.map_err(|error| Failure::Later(format!("its answer could not be read: {error}")))?;
    let trailers = body.trailers().cloned();
    Ok((body.to_bytes(), trailers))
}

/// What trailers, or the headers of an answer without a body, say.
fn grpc_answer(
    headers: &HeaderMap,
    trailers: Option<&HeaderMap>,
    body: &[u8],
) -> Result<Option<String>, Failure> {
    let find = |name: &str| trailers.and_then(|trailers| trailers.get(name)).or_else(|| headers.get(name));
    let text = |value: &HeaderValue| shown(&String::from_utf8_lossy(value.as_bytes()));
    let status: Option<u32> = find("grpc-status").and_then(|value| value.to_str().ok()?.parse().ok());
    let message = find("grpc-message").map(text).unwrap_or_default();
    match status {
        Some(0) => match body {
            [0, length @ ..] if length.len() >= 4 => partial_success(&length[4..]),
            [] => Ok(None),
            _ => Err(Failure::Later("its answer is not one of OTLP".into())),
        },
        Some(GRPC_INVALID) => Err(Failure::Rejected(format!("it answered INVALID_ARGUMENT: {message}"))),
        Some(status) if GRPC_RETRYABLE.contains(&status) => {
            Err(Failure::Later(format!("it answered status {status} of gRPC: {message}")))
        }
        Some(status) => Err(Failure::Later(format!(
            "it answered status {status} of gRPC: {message} (is there a receiver for profiles?)"
        ))),
        None => Err(Failure::Later("its answer has no status of gRPC".into())),
    }
}

/// What an `ExportProfilesServiceResponse` says of profiles that were not taken.
fn partial_success(message: &[u8]) -> Result<Option<String>, Failure> {
    let wrong = || Failure::Later("its answer is not one of OTLP".into());
    let (mut rejected, mut reason) = (0, String::new());
    for (field, value) in Fields(message) {
        let Some(Value::Bytes(partial)) = value else { return Err(wrong()) };
        if field != 1 {
            continue;
        }
        for (field, value) in Fields(partial) {
            match (field, value) {
                (1, Some(Value::Number(number))) => rejected = number,
                (2, Some(Value::Bytes(text))) => reason = shown(&String::from_utf8_lossy(text)),
                (_, Some(_)) => {}
                (_, None) => return Err(wrong()),
            }
        }
    }
    let said = rejected > 0 || !reason.is_empty();
    Ok(said.then(|| format!("it did not take {rejected} of the profiles: {reason}")))
}

/// A text of the collector in one line.
fn shown(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The fields of a protobuf message; the last one has no value where the message is damaged.
struct Fields<'a>(&'a [u8]);

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn value(&mut self, wire: u64) -> Option<Value<'a>> {
        match wire {
            0 => self.varint().map(Value::Number),
            1 => self.take(8).map(Value::Bytes),
            2 => {
                let length = self.varint()?;
                self.take(length).map(Value::Bytes)
            }
            5 => self.take(4).map(Value::Bytes),
            _ => None,
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Option<Value<'a>>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let tag = self.varint();
        let value = tag.and_then(|tag| self.value(tag & 7));
        if value.is_none() {
            self.0 = &[];
        }
        Some((tag.map_or(0, |tag| tag >> 3), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that an empty answer is one without a complaint, that a partial one is told, and that
    /// bytes which are no message are not taken for an answer.
    #[test]
    fn answers_of_a_collector_are_read() {
        assert_eq!(partial_success(&[]), Ok(None));
        let partial = [10, 7, 8, 3, 18, 3, b'b', b'a', b'd'];
        let told = partial_success(&partial).unwrap().unwrap();
        assert_eq!(told, "it did not take 3 of the profiles: bad");
        for garbage in [&b"<html>"[..], &[10, 200], &[255; 20]] {
            assert!(matches!(partial_success(garbage), Err(Failure::Later(_))), "{garbage:?}");
        }
    }

    /// Checks which statuses of gRPC mean that a batch is to be sent again.
    #[test]
    fn statuses_of_grpc() {
        let answer = |status: &'static str| {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static(status));
            grpc_answer(&HeaderMap::new(), Some(&trailers), &[])
        };
        assert_eq!(answer("0"), Ok(None));
        assert!(matches!(answer("3"), Err(Failure::Rejected(_))));
        for status in ["14", "12", "16", "99999", "x"] {
            assert!(matches!(answer(status), Err(Failure::Later(_))), "{status}");
        }
        assert!(matches!(grpc_answer(&HeaderMap::new(), None, &[]), Err(Failure::Later(_))));
    }
}
