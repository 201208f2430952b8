//! Requests of all kinds, over sockets; and of hostile ones, as many as one wants.
mod profiler;
mod soak;

use crate::guard::{Guard, Question};
use crate::{Server, ShownFile, ShownRecording, ShownSlot};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode, Uri};
use kymo_data::Recording;
use kymo_profile::view::{RecordingView, ViewOptions};
use kymo_symbols::{SymbolOptions, SymbolStore};
use proptest::prelude::*;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/callgraph.data")
}

fn shown(path: &Path) -> Arc<ShownRecording> {
    let file = ShownFile::new(path);
    let recording = Recording::open(Arc::new(File::open(path).expect("a fixture")), Vec::new());
    let recording = Arc::new(recording.expect("readable"));
    let store = Arc::new(SymbolStore::new(SymbolOptions::default()));
    let options = ViewOptions { source: "test", workers: 1, ..ViewOptions::default() };
    let view = RecordingView::open(&recording, options, &store, &|_, _, _| {}).expect("readable");
    Arc::new(ShownRecording { recording, view, store, file })
}

/// A server of a recording, until it is dropped.
struct Served {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    port: u16,
    token: String,
    slot: Arc<ShownSlot>,
}

impl Served {
    fn of(path: &Path) -> Served {
        Served::by(Server::bind(0).expect("a port"), path)
    }

    fn by(server: Server, path: &Path) -> Served {
        let served = Served::with(server);
        served.slot.show(shown(path), true);
        served
    }

    /// With nothing to show yet.
    fn empty() -> Served {
        Served::with(Server::bind(0).expect("a port"))
    }

    fn with(server: Server) -> Served {
        let stop = Arc::new(AtomicBool::new(false));
        let address = server.address();
        let rest = address.strip_prefix("http://127.0.0.1:").expect("the loopback address");
        let (port, token) = rest.split_once("/?token=").expect("a token");
        let (port, token) = (port.parse().expect("a port"), token.to_owned());
        assert_eq!(token.len(), 32);
        let slot = Arc::new(ShownSlot::default());
        let (of_server, flag) = (Arc::clone(&slot), Arc::clone(&stop));
        let thread = std::thread::spawn(move || server.run(of_server, "test", &flag).expect("it serves"));
        Served { stop, thread: Some(thread), port, token, slot }
    }

    /// What comes back for these bytes.
    fn send(&self, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        // It may hang up before it has read all.
        _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// A request with the right host, and these lines.
    fn get(&self, path: &str, lines: &str) -> String {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{lines}\r\n", self.port).as_bytes())
    }

    fn token_line(&self) -> String {
        format!("X-Kymo-Token: {}\r\n", self.token)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(std::thread::JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()), "the server panicked");
    }
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

/// Checks S7: nothing is shown before the recording is read, and the page hears how far that is; a
/// question with the numbers of an earlier reading is refused.
#[test]
fn one_reading_after_another() {
    let served = Served::empty();
    let lines = served.token_line();
    assert_eq!(status(&served.get(&format!("/?token={}", served.token), "")), 200);
    served.slot.set_progress(1, 30, 40);
    let waiting = served.get("/profile?after=0", &lines);
    assert!(waiting.ends_with("{\"all\":40,\"done\":30,\"pass\":1}"), "{waiting}");
    assert_eq!(status(&waiting), 202);
    assert_eq!(status(&served.get("/select?event=0", &lines)), 503);
    served.slot.show(shown(&fixture()), false);
    assert!(served.get("/profile", &lines).contains("\"version\":1,\"oneIn\":null,\"isLast\":false}"));
    assert_eq!(status(&served.get("/profile?after=1", &lines)), 202, "no newer one yet");
    assert_eq!(status(&served.get("/select?event=0&version=1", &lines)), 200);
    served.slot.show(shown(&fixture()), false);
    assert_eq!(status(&served.get("/select?event=0&version=1", &lines)), 409);
    assert_eq!(status(&served.get("/select?event=0&version=2", &lines)), 200);
    assert_eq!(status(&served.get("/select?event=0&version=x", &lines)), 400);
    served.slot.end();
    assert!(served.get("/profile?after=2", &lines).contains("\"version\":2,\"oneIn\":null,\"isLast\":true}"));
}

/// Checks the page, a selection and a query, and that the words of the page's head let only its own
/// scripts run.
#[test]
fn what_is_served() {
    let served = Served::of(&fixture());
    let page = served.get(&format!("/?token={}", served.token), "");
    assert_eq!(status(&page), 200, "{page}");
    let nonce =
        page.split("script-src 'nonce-").nth(1).and_then(|rest| rest.split('\'').next()).expect("a word");
    assert_eq!(page.matches(&format!("<script nonce=\"{nonce}\">")).count(), 16);
    assert!(!page.contains("unsafe-inline"));
    let again = served.get(&format!("/?token={}", served.token), "");
    assert!(!again.contains(nonce), "each page has its own word");
    let lines = served.token_line();
    let profile = served.get("/profile?after=0", &lines);
    let expected = "\"served\":{\"version\":1,\"oneIn\":null,\"isLast\":true}";
    assert!(status(&profile) == 200 && profile.contains(expected), "{profile}");
    assert_eq!(status(&served.get("/profile?after=x", &lines)), 400);
    let sums = served.get("/select?event=0&from=0", &lines);
    assert!(sums.contains("x-kymo-recording: same") && sums.contains("\"own_samples\":["), "{sums}");
    let answer = served.get("/query?q=top+3+where+time%3D0%25..100%25", &lines);
    assert!(status(&answer) == 200 && answer.contains("\"schema_version\""), "{answer}");
    let over_time = served.get("/entries?event=0&from=0&until=100000000", &lines);
    assert!(status(&over_time) == 200 && over_time.contains("\"bucketNs\":"), "{over_time}");
    let heat = served.get("/heatmap?event=0", &lines);
    assert!(status(&heat) == 200 && heat.contains("\"cell_samples\":["), "{heat}");
    assert_eq!(status(&served.get("/code?event=0", &lines)), 400);
    assert_eq!(status(&served.get("/code?event=0&function=999999", &lines)), 400);
    assert_eq!(status(&served.get("/entries?event=7777", &lines)), 400);
    assert_eq!(status(&served.get("/heatmap?what=1", &lines)), 400);
    assert_eq!(status(&served.get("/query?q=what", &lines)), 400);
    assert_eq!(status(&served.get("/query", &lines)), 400);
    assert_eq!(status(&served.get("/select?event=7777", &lines)), 400);
    assert_eq!(status(&served.get("/select?event=x", &lines)), 400);
    assert_eq!(status(&served.get("/select?what=1", &lines)), 400);
}

/// Checks that nothing is answered without the token, to another name of the host, for a page of
/// another origin, by another method, or by another path.
#[test]
fn what_is_refused() {
    let served = Served::of(&fixture());
    let (port, token) = (served.port, served.token.clone());
    let lines = served.token_line();
    let with_host = |host: &str| served.send(format!("GET / HTTP/1.1\r\n{host}{lines}\r\n").as_bytes());
    assert_eq!(status(&with_host(&format!("Host: localhost:{port}\r\n"))), 200);
    for host in [
        "".to_owned(),
        "Host: example.com\r\n".to_owned(),
        format!("Host: example.com:{port}\r\n"),
        format!("Host: 127.0.0.1.example.com:{port}\r\n"),
        "Host: 127.0.0.1\r\n".to_owned(),
        format!("Host: [::1]:{port}\r\n"),
        format!("Host: 127.0.0.1:{port}\r\nHost: example.com\r\n"),
    ] {
        let answer = with_host(&host);
        assert!([403, 400].contains(&status(&answer)), "{host}: {answer}");
    }
    let page = |path: &str, lines: &str| status(&served.get(path, lines));
    for (path, more) in [
        ("/", String::new()),
        ("/?token=", String::new()),
        ("/?token=00000000000000000000000000000000", String::new()),
        ("/", format!("X-Kymo-Token: {}\r\n", &token[..31])),
        ("/", format!("{lines}{lines}")),
        ("/", format!("{lines}Origin: http://example.com\r\n")),
        ("/", format!("{lines}Origin: null\r\n")),
        ("/", format!("{lines}Origin: https://127.0.0.1:{port}\r\n")),
        ("/", format!("{lines}Sec-Fetch-Site: cross-site\r\n")),
        ("/", format!("{lines}Sec-Fetch-Site: same-site\r\n")),
        ("/select?event=0", String::new()),
        ("/etc/passwd", String::new()),
    ] {
        assert_eq!(page(path, &more), 403, "{path} {more}");
    }
    // The file that leads to the page lies elsewhere, and has the token.
    assert_eq!(page(&format!("/?token={token}"), "Sec-Fetch-Site: cross-site\r\n"), 200);
    assert_eq!(page("/?token=0", "Sec-Fetch-Site: cross-site\r\n"), 403);
    // In the address of what a page asks the token would be seen by others.
    assert_eq!(page(&format!("/select?event=0&token={token}"), ""), 403);
    for path in
        ["/etc/passwd", "/../../etc/passwd", "/%2e%2e/etc/passwd", "/select/../query", "//", "/select/"]
    {
        assert_eq!(page(path, &lines), 404, "{path}");
    }
    for method in ["POST", "HEAD", "PUT", "OPTIONS", "CONNECT", "BREW"] {
        let request =
            format!("{method} / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}Content-Length: 0\r\n\r\n");
        assert!([405, 400, 403].contains(&status(&served.send(request.as_bytes()))), "{method}");
    }
    let other = format!("GET http://example.com/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}\r\n");
    assert_eq!(status(&served.send(other.as_bytes())), 403);
    assert_eq!(
        page("/", &format!("{lines}Origin: http://127.0.0.1:{port}\r\nSec-Fetch-Site: same-origin\r\n")),
        200
    );
}

/// Checks that what is no request, and one without an end, ends the connection, and that the next
/// one is answered.
#[test]
fn no_requests() {
    let served = Served::of(&fixture());
    for bytes in [
        &b""[..],
        b"\0\0\0\0",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        &[b"GET /".to_vec(), vec![b'a'; 1 << 20]].concat(),
        &[b"GET / HTTP/1.1\r\n".to_vec(), b"A: b\r\n".repeat(1 << 16)].concat(),
    ] {
        let mut stream = TcpStream::connect(("127.0.0.1", served.port)).expect("it listens");
        _ = stream.write_all(bytes);
        _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        _ = stream.read_to_end(&mut answer);
        assert!(!String::from_utf8_lossy(&answer).contains(" 200 "));
    }
}

/// Checks that connections with half a request, more than there is room for, close the oldest of
/// them and not the door: who has the token is answered while the newest of them are still open.
#[test]
fn half_requests_of_strangers_do_not_stall_the_page() {
    let served = Served::of(&fixture());
    let half_request = |_| {
        let mut stream = TcpStream::connect(("127.0.0.1", served.port)).expect("it listens");
        stream.write_all(b"GET / HTTP/1.1\r\n").expect("it takes the first line");
        stream
    };
    let mut strangers: Vec<TcpStream> = (0..300).map(half_request).collect();
    assert_eq!(status(&served.get("/select?event=0", &served.token_line())), 200);
    let newest = strangers.last().expect("300 of them");
    newest.set_nonblocking(true).expect("a socket");
    let still_open = newest.peek(&mut [0]).expect_err("it is open and has no answer");
    assert_eq!(still_open.kind(), std::io::ErrorKind::WouldBlock);
    let mut answer = Vec::new();
    _ = strangers[0].read_to_end(&mut answer);
    assert!(answer.is_empty(), "closed without an answer: {}", String::from_utf8_lossy(&answer));
}

/// Checks that a file which was cut, replaced or removed meanwhile is said, and that what was read
/// is answered all the same.
#[test]
fn recordings_that_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("perf.data");
    std::fs::copy(fixture(), &file).expect("a copy");
    let served = Served::of(&file);
    let ask = || served.get("/select?event=0", &served.token_line());
    let before = ask();
    assert!(before.contains("x-kymo-recording: same"), "{before}");
    let body = |answer: &str| answer.split("\r\n\r\n").nth(1).expect("a body").to_owned();
    for change in ["cut", "replaced", "removed"] {
        match change {
            "cut" => File::options().write(true).open(&file).and_then(|file| file.set_len(100)),
            "replaced" => {
                std::fs::remove_file(&file).and_then(|()| std::fs::copy(fixture(), &file).map(drop))
            }
            _ => std::fs::remove_file(&file),
        }
        .expect(change);
        let after = ask();
        assert!(after.contains("x-kymo-recording: changed"), "{change}: {after}");
        assert_eq!(body(&after), body(&before), "{change}");
    }
}

/// Words of which requests are made.
fn word() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "/",
        "/select",
        "/entries",
        "/heatmap",
        "/code",
        "/query",
        "?token=",
        "&",
        "event=0",
        "q=top",
        "%",
        "..",
        "//",
        "\u{7f}",
        "http://",
        "localhost",
        "127.0.0.1",
        ":",
        "80",
        "4711",
        "@",
        "null",
        "same-origin",
    ]);
    prop_oneof![known.prop_map(str::to_owned), "[ -~]{0,8}"]
}

proptest! {
    /// Checks S1 for requests of any words: without the token none is admitted, and with it only
    /// one for this host.
    #[test]
    fn any_request(
        path in prop::collection::vec(word(), 0..6),
        headers in prop::collection::vec((prop::sample::select(vec!["host", "origin", "x-kymo-token", "sec-fetch-site"]), prop::collection::vec(word(), 0..3)), 0..6),
        knows in any::<bool>(),
    ) {
        const TOKEN: &str = "0123456789abcdef0123456789abcdef";
        let guard = Guard::new(TOKEN.to_owned(), 4711);
        let Ok(uri) = path.concat().parse::<Uri>() else { return Ok(()) };
        let mut map = HeaderMap::new();
        for (name, value) in &headers {
            let Ok(value) = HeaderValue::from_str(&value.concat()) else { return Ok(()) };
            map.append(HeaderName::from_static(name), value);
        }
        if knows {
            map.insert("x-kymo-token", HeaderValue::from_static(TOKEN));
        }
        let hosts: Vec<&[u8]> = map.get_all("host").iter().map(HeaderValue::as_bytes).collect();
        let own = [&b"127.0.0.1:4711"[..], b"localhost:4711"];
        match guard.admit(&Method::GET, &uri, &map) {
            Ok(asked) => {
                prop_assert!(knows && hosts.len() == 1 && own.contains(&hosts[0]));
                prop_assert_eq!(asked == Question::Page, uri.path() == "/");
            }
            Err(status) => prop_assert!([StatusCode::FORBIDDEN, StatusCode::NOT_FOUND].contains(&status)),
        }
    }
}
