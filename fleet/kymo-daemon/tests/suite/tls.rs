//! A collector behind TLS, with a certificate of a private authority.
#![cfg(feature = "tls")]
use crate::daemon::{Daemon, command, is_permitted};
use crate::fake_collector::samples_of;
use crate::grpc::{Taken, answer};
use flate2::read::GzDecoder;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What must be in no message.
const SECRET: &str = "s3cr3t-token";

/// Makes an authority, `ca.pem`, and a certificate for this machine by its address, `server.pem`,
/// in a folder. `false`: there is no openssl, which is said.
fn make_certificates(folder: &Path, test: &str, subject: &str) -> bool {
    let steps = format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=authority \
           -keyout ca.key -out ca.pem && \
         openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=collector \
           -keyout server.key -out server.csr && \
         echo 'subjectAltName={subject}' > names && \
         openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names \
           -out server.pem"
    );
    if Command::new("openssl").arg("version").output().is_err() {
        println!("SKIPPED {test}: there is no openssl");
        return false;
    }
    let output = Command::new("sh").args(["-c", &steps]).current_dir(folder).output().expect("a shell");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    true
}

/// Takes a request by HTTP.
async fn take(request: Request<Incoming>, taken: Taken) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!(request.uri().path(), "/v1development/profiles");
    assert_eq!(request.headers()["authorization"], SECRET);
    let packed = request.into_body().collect().await.expect("a request").to_bytes();
    let mut body = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut body).expect("gzip");
    taken.lock().expect("a list").push(body);
    let response = Response::builder().header("content-type", "application/x-protobuf");
    Ok(response.body(Full::default()).expect("a response"))
}

/// Starts a collector that ends with the test's process, with the certificate of this folder.
fn start(folder: &Path, grpc: bool) -> (SocketAddr, Taken) {
    let certificates = CertificateDer::pem_file_iter(folder.join("server.pem")).expect("a file");
    let certificates = certificates.collect::<Result<Vec<_>, _>>().expect("certificates");
    let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth();
    let mut config = config.with_single_cert(certificates, key).expect("a certificate and its key");
    config.alpn_protocols = vec![if grpc { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("its address");
    let taken = Taken::default();
    let kept = Arc::clone(&taken);
    let serve = async move {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                let stream = TokioIo::new(stream);
                if grpc {
                    let service = service_fn(|request| answer(request, "0", Arc::clone(&kept)));
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    _ = server.serve_connection(stream, service).await;
                } else {
                    let service = service_fn(|request| take(request, Arc::clone(&kept)));
                    let server = hyper::server::conn::http1::Builder::new();
                    _ = server.serve_connection(stream, service).await;
                }
            });
        }
    };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(serve);
    });
    (address, taken)
}

/// The file of a configuration with a secret header, and with this line.
fn configure(folder: &Path, address: SocketAddr, line: &str) -> std::path::PathBuf {
    let config = folder.join("daemon.toml");
    let text = format!(
        "[otlp]\nendpoint = \"https://{address}\"\nheaders = {{ authorization = \"{SECRET}\" }}\n{line}\n"
    );
    std::fs::write(&config, text).expect("a folder");
    config
}

fn ca_file(folder: &Path) -> String {
    format!("ca_file = {:?}", folder.join("ca.pem"))
}

/// Checks that a collector whose authority is configured gets every sample, by HTTP and by gRPC.
#[test]
fn a_collector_of_a_private_authority_gets_every_sample() {
    let name = "tls::a_collector_of_a_private_authority_gets_every_sample";
    let folder = tempfile::tempdir().unwrap();
    if !is_permitted(name) || !make_certificates(folder.path(), name, "IP:127.0.0.1") {
        return;
    }
    for grpc in [false, true] {
        let (address, taken) = start(folder.path(), grpc);
        let state = tempfile::tempdir().unwrap();
        let config = configure(state.path(), address, &ca_file(folder.path()));
        let protocol = if grpc { &["--grpc"][..] } else { &[] };
        let arguments = [&["-F", "99", "--config", config.to_str().unwrap()], protocol].concat();
        let mut daemon = Daemon::start(state.path(), &arguments);
        let health = daemon.wait_until("two batches", |health| health["sent_batches"].as_u64() >= Some(2));
        assert!(health["last_error"].is_null(), "{health}");
        assert!(daemon.terminate().success());
        let samples: u64 = taken.lock().unwrap().iter().map(|request| samples_of(request)).sum();
        assert!(samples > 0 && Some(samples) >= health["samples"].as_u64(), "{samples}: {health}");
    }
}

/// The line of a dry run about the collector, with this line in the configuration.
fn verdict(address: SocketAddr, line: &str) -> String {
    let state = tempfile::tempdir().unwrap();
    let config = configure(state.path(), address, line);
    let output = command(state.path()).arg("--dry-run").arg("--config").arg(config).output().unwrap();
    let all = [output.stdout, output.stderr].concat();
    let text = String::from_utf8(all).unwrap();
    assert!(!text.contains(SECRET) && !output.status.success(), "{text}");
    let mut lines = text.lines().filter(|line| line.contains("collector") || line.contains("ca_file"));
    lines.next().unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// Checks that a certificate of an authority that is not trusted, or of another host, is refused
/// in one sentence; so are a collector without TLS and files that hold no certificates. None of
/// them tells the secret header.
#[test]
fn other_certificates_are_refused() {
    let name = "tls::other_certificates_are_refused";
    let [folder, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    if !make_certificates(folder.path(), name, "IP:127.0.0.1") {
        return;
    }
    assert!(make_certificates(other.path(), name, "DNS:collector.example"));
    let (address, taken) = start(folder.path(), false);
    assert!(
        verdict(address, &ca_file(other.path())).ends_with(
            ": its certificate is of an authority that is not trusted here: set ca_file in [otlp]"
        )
    );
    // Whatever authorities this machine has, that of the test is none of them.
    assert!(verdict(address, "").contains("set ca_file in [otlp]"));
    let (elsewhere, _) = start(other.path(), false);
    let refusal = verdict(elsewhere, &ca_file(other.path()));
    assert!(refusal.ends_with(": its certificate is one of another host than 127.0.0.1"), "{refusal}");
    let plain = crate::fake_collector::FakeCollector::start(crate::fake_collector::Behaviour::Noise, None);
    let refusal = verdict(plain.address, &ca_file(folder.path()));
    assert!(refusal.contains("its answer is not TLS"), "{refusal}");
    let missing = verdict(address, "ca_file = \"/does/not/exist\"");
    assert!(missing.contains("ca_file /does/not/exist: No such file"), "{missing}");
    let key = verdict(address, &format!("ca_file = {:?}", folder.path().join("server.key")));
    assert!(key.contains("it has no certificates (PEM)"), "{key}");
    assert!(taken.lock().unwrap().is_empty());
}
