//! A collector that speaks gRPC.
use crate::daemon::{Daemon, is_permitted};
use crate::fake_collector::samples_of;
use flate2::read::GzDecoder;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// What a collector took: requests, unpacked.
pub(crate) type Taken = Arc<Mutex<Vec<Vec<u8>>>>;

/// Answers with this status, in trailers after a message, or at once if it is no success.
pub(crate) async fn answer(
    request: Request<Incoming>,
    status: &'static str,
    taken: Taken,
) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, Infallible> {
    let path = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";
    assert_eq!((request.uri().path(), request.method().as_str()), (path, "POST"));
    assert_eq!(request.headers()["te"], "trailers");
    assert_eq!(request.headers()["grpc-encoding"], "gzip");
    let body = request.into_body().collect().await.expect("a request").to_bytes();
    let length = u32::from_be_bytes(body[1..5].try_into().expect("four bytes")) as usize;
    assert_eq!((body[0], length), (1, body.len() - 5));
    let mut message = Vec::new();
    GzDecoder::new(&body[5..]).read_to_end(&mut message).expect("gzip");
    let response = Response::builder().header("content-type", "application/grpc+proto");
    let value = status.parse().expect("a value");
    if status != "0" {
        let response = response.header("grpc-status", status).header("grpc-message", "no such service");
        return Ok(response.body(Full::default().boxed_unsync()).expect("a response"));
    }
    taken.lock().expect("a list").push(message);
    let trailers = HeaderMap::from_iter([(hyper::header::HeaderName::from_static("grpc-status"), value)]);
    let body = Full::new(Bytes::from_static(&[0; 5])).with_trailers(async { Some(Ok(trailers)) });
    Ok(response.body(body.boxed_unsync()).expect("a response"))
}

/// Starts a collector that ends with the test's process.
fn start(status: &'static str) -> (SocketAddr, Taken) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("its address");
    let taken = Taken::default();
    let kept = Arc::clone(&taken);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            while let Ok((stream, _)) = listener.accept().await {
                let kept = Arc::clone(&kept);
                let service = service_fn(move |request| answer(request, status, Arc::clone(&kept)));
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(async move { server.serve_connection(TokioIo::new(stream), service).await });
            }
        });
    });
    (address, taken)
}

/// Checks that a collector gets every sample by gRPC.
#[test]
fn a_collector_gets_every_sample_by_grpc() {
    if !is_permitted("grpc::a_collector_gets_every_sample_by_grpc") {
        return;
    }
    let (address, taken) = start("0");
    let state = tempfile::tempdir().unwrap();
    let mut daemon =
        Daemon::start(state.path(), &["-F", "99", "--grpc", "--otlp", &format!("http://{address}")]);
    let health = daemon.wait_until("three intervals", |health| health["intervals"].as_u64() >= Some(3));
    assert!(health["last_error"].is_null(), "{health}");
    assert!(daemon.terminate().success());
    let samples: u64 = taken.lock().unwrap().iter().map(|request| samples_of(request)).sum();
    assert!(samples > 0 && Some(samples) >= health["samples"].as_u64(), "{samples}: {health}");
    assert_eq!(std::fs::read_dir(state.path().join("spool")).unwrap().count(), 1, "the lock alone");
}

/// Checks that nothing is lost where a collector has no receiver for profiles, and that this is
/// said.
#[test]
fn a_collector_without_profiles_is_named() {
    if !is_permitted("grpc::a_collector_without_profiles_is_named") {
        return;
    }
    let (address, _) = start("12");
    let state = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(state.path(), &["--grpc", "--otlp", &format!("http://{address}")]);
    let health = daemon.wait_until("an error", |health| !health["last_error"].is_null());
    let error = health["last_error"]["text"].as_str().unwrap();
    assert!(error.contains("status 12 of gRPC: no such service"), "{error}");
    assert!(health["spool_batches"].as_u64() > Some(0) && health["rejected"]["batches"] == 0, "{health}");
    assert!(daemon.terminate().success());
}
