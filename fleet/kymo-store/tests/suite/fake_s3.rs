//! A store that speaks as much of S3 as datasets need: whole objects, conditional PUTs, ranges,
//! lists by pages of few keys, and removal of several at once.
//!
//! It answers late now and then, and sometimes does what it was asked and hangs up without a word.
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Keys of a page of a list.
const PAGE: usize = 20;
/// One of so many changes gets no answer.
const LOST: u64 = 40;

#[derive(Default)]
struct Objects {
    by_key: Mutex<BTreeMap<String, Vec<u8>>>,
    changes: AtomicU64,
}

/// Starts one that ends with the process of the test; its URL.
pub(crate) fn start() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("its address");
    let objects = Arc::new(Objects::default());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let objects = Arc::clone(&objects);
            std::thread::spawn(move || while serve(&stream, &objects).is_some() {});
        }
    });
    format!("http://{address}")
}

struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::with_capacity(1, stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pair = |text: &str| {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        (decoded(key), decoded(value))
    };
    let query = query.split('&').map(pair).collect();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((key, value)) = line.trim().split_once(':') else { break };
        headers.insert(key.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { method, path: decoded(path), query, headers, body })
}

fn decoded(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut found = Vec::new();
    while let Some(byte) = bytes.next() {
        found.push(match byte {
            b'%' => {
                let mut digit =
                    || bytes.next().and_then(|byte| char::from(byte).to_digit(16)).expect("a digit");
                u8::try_from(digit() * 16 + digit()).expect("two digits")
            }
            byte => byte,
        });
    }
    String::from_utf8(found).expect("UTF-8")
}

/// Serves a request; none at the end of the connection.
fn serve(mut stream: &TcpStream, objects: &Objects) -> Option<()> {
    let request = read(stream)?;
    let is_change = request.method != "GET" && request.method != "HEAD";
    let (status, headers, body) = answer(&request, objects);
    let number = objects.changes.fetch_add(u64::from(is_change), Ordering::Relaxed);
    if number.is_multiple_of(5) {
        std::thread::sleep(Duration::from_millis(number % 4));
    }
    if is_change && number % LOST == LOST - 1 {
        return None;
    }
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} x\r\nETag: \"1\"\r\nLast-Modified: Thu, 26 Nov 2026 08:00:00 GMT\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).ok()?;
    if request.method == "HEAD" { Some(()) } else { stream.write_all(&body).ok() }
}

fn answer(request: &Request, objects: &Objects) -> (u16, String, Vec<u8>) {
    let mut by_key = objects.by_key.lock().expect("objects");
    let key = request.path.strip_prefix("/kymo-test").expect("the bucket").trim_start_matches('/');
    match &*request.method {
        "PUT" => {
            let is_taken = by_key.contains_key(key) && request.headers.contains_key("if-none-match");
            if !is_taken {
                by_key.insert(key.to_owned(), request.body.clone());
            }
            (if is_taken { 412 } else { 200 }, String::new(), Vec::new())
        }
        "POST" => {
            let text = String::from_utf8_lossy(&request.body);
            let mut answer = "<DeleteResult>".to_owned();
            for part in text.split("<Key>").skip(1) {
                let key = part.split("</Key>").next().expect("a key");
                by_key.remove(key);
                write!(answer, "<Deleted><Key>{key}</Key></Deleted>").expect("text");
            }
            (200, String::new(), (answer + "</DeleteResult>").into_bytes())
        }
        _ if request.query.contains_key("list-type") => {
            (200, String::new(), list(request, &by_key).into_bytes())
        }
        _ => match by_key.get(key) {
            None => (404, String::new(), b"<Error><Code>NoSuchKey</Code></Error>".to_vec()),
            Some(bytes) => part(request.headers.get("range"), bytes),
        },
    }
}

fn part(range: Option<&String>, bytes: &[u8]) -> (u16, String, Vec<u8>) {
    let Some(range) = range.and_then(|range| range.strip_prefix("bytes=")) else {
        return (200, String::new(), bytes.to_vec());
    };
    let (first, last) = range.split_once('-').expect("a range");
    let (first, last) = match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) => (first, last.min(bytes.len() - 1)),
        (Ok(first), Err(_)) => (first, bytes.len() - 1),
        (Err(_), last) => (bytes.len() - last.expect("a suffix").min(bytes.len()), bytes.len() - 1),
    };
    let header = format!("Content-Range: bytes {first}-{last}/{}\r\n", bytes.len());
    (206, header, bytes[first..=last].to_vec())
}

fn list(request: &Request, by_key: &BTreeMap<String, Vec<u8>>) -> String {
    let of = |name: &str| request.query.get(name).cloned().unwrap_or_default();
    let (prefix, after) = (of("prefix"), of("continuation-token"));
    let mut keys = by_key.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after);
    let mut text = "<ListBucketResult>".to_owned();
    let mut last = String::new();
    for (key, bytes) in keys.by_ref().take(PAGE) {
        write!(
            text,
            "<Contents><Key>{key}</Key><LastModified>2026-11-26T08:00:00.000Z</LastModified><ETag>\"1\"</ETag><Size>{}</Size></Contents>",
            bytes.len()
        )
        .expect("text");
        last.clone_from(key);
    }
    if keys.next().is_some() {
        write!(text, "<NextContinuationToken>{last}</NextContinuationToken>").expect("text");
    }
    text + "</ListBucketResult>"
}
