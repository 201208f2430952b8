//! Many requests that are nearly right, over sockets. The server must answer those that are
//! exactly right, refuse all others, and stay as it was.
//!
//! `KYMO_SOAK=1` sends a million; any other number in it is the count, and `KYMO_SOAK_SEED` repeats
//! a run.
use super::{Served, fixture, status};
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Paths that are asked with the token in a header.
const ASKED: [&str; 6] = ["/select", "/query", "/entries", "/heatmap", "/code", "/profile"];
/// Clients at a time.
const CLIENTS: u64 = 16;

/// Numbers that look random and are the same in each run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    /// True once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }
}

/// A request in its parts.
#[derive(Clone, Debug)]
struct Sent {
    method: String,
    path: String,
    words: String,
    lines: Vec<(String, String)>,
    body: Vec<u8>,
    /// What the server answers, as far as this test knows.
    expected: Expected,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// It is right.
    Answer,
    /// It lacks something.
    Refusal,
    /// Whether it is right depends on where bytes were changed; see [`may_be_right`].
    Unknown,
}

/// The server's secrets.
struct ServerSecrets {
    port: u16,
    token: String,
}

impl ServerSecrets {
    /// A request that is right. The page is large, and asked for now and then.
    fn right(&self, numbers: &mut Numbers) -> Sent {
        let host = format!("{}:{}", numbers.pick(&["127.0.0.1", "localhost"]), self.port);
        let mut lines = vec![("Host".to_owned(), host)];
        let (path, mut words) = match numbers.below(40) {
            0 => ("/", String::new()),
            1 => ("/profile", numbers.pick(&["", "after=0"]).to_owned()),
            2..=20 => {
                ("/query", numbers.pick(&["q=top+3", "q=events", "q=tree+5%25", "q=timeline+4"]).to_owned())
            }
            21..=24 => ("/entries", numbers.pick(&["event=0&from=0&until=99999", "thread=0"]).to_owned()),
            25..=28 => ("/heatmap", numbers.pick(&["event=0", "thread=0"]).to_owned()),
            _ => ("/select", numbers.pick(&["event=0", "", "event=0&from=0&until=9"]).to_owned()),
        };
        if path == "/" && numbers.once_in(2) {
            words = format!("token={}", self.token);
        } else {
            lines.push(("X-Kymo-Token".into(), self.token.clone()));
        }
        if numbers.once_in(3) {
            lines.push(("Origin".into(), format!("http://127.0.0.1:{}", self.port)));
            lines.push(("Sec-Fetch-Site".into(), "same-origin".into()));
        }
        if numbers.once_in(3) {
            lines.push(("Connection".into(), "keep-alive".into()));
        }
        let (method, path) = ("GET".to_owned(), path.to_owned());
        Sent { method, path, words, lines, body: Vec::new(), expected: Expected::Answer }
    }

    /// Makes it wrong in one way.
    fn spoil(&self, sent: &mut Sent, numbers: &mut Numbers) {
        let mut set = |name: &str, values: Vec<String>| {
            sent.lines.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
            sent.lines.extend(values.into_iter().map(|value| (name.to_owned(), value)));
        };
        let (port, token) = (self.port, &self.token);
        let own = format!("127.0.0.1:{port}");
        let mut changed = token.clone().into_bytes();
        let at = numbers.below(changed.len());
        changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
        let changed = String::from_utf8(changed).unwrap_or_default();
        let wrong_tokens = [
            String::new(),
            changed,
            token[..numbers.below(token.len())].to_owned(),
            format!("{token}0"),
            format!("{token},{token}"),
            format!("\"{token}\""),
            "0".repeat(32),
        ];
        match numbers.below(8) {
            0 => {
                let hosts = [
                    vec![],
                    vec![String::new()],
                    vec!["example.com".into()],
                    vec![format!("example.com:{port}")],
                    vec!["127.0.0.1".into()],
                    vec![format!("127.0.0.1.example.com:{port}")],
                    vec![format!("127.0.0.1:{}", port ^ 1)],
                    vec![format!("[::1]:{port}")],
                    vec![format!("user@127.0.0.1:{port}")],
                    vec![format!("127.0.0.1:0{port}")],
                    vec![format!("127.0.0.1:{port}/")],
                    vec![own.clone(), own],
                ];
                set("Host", numbers.pick(&hosts));
            }
            1 => {
                let mut tokens = vec![vec![], vec![token.clone(), token.clone()]];
                tokens.extend(wrong_tokens.iter().map(|token| vec![token.clone()]));
                set("X-Kymo-Token", numbers.pick(&tokens));
                sent.words = String::new();
            }
            2 => {
                set("X-Kymo-Token", Vec::new());
                sent.words = format!("token={}", numbers.pick(&wrong_tokens));
            }
            3 => {
                let origins = [
                    "null".to_owned(),
                    "http://example.com".into(),
                    format!("https://127.0.0.1:{port}"),
                    format!("http://127.0.0.1:{}", port ^ 1),
                    "https://profiler.firefox.com".into(),
                    "file://".into(),
                ];
                set("Origin", vec![numbers.pick(&origins)]);
            }
            4 if sent.words != format!("token={token}") => {
                set("Sec-Fetch-Site", vec![numbers.pick(&["cross-site", "same-site", "x", ""]).to_owned()]);
            }
            5 => {
                let methods =
                    ["POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "get", "GETT", "PRI"];
                sent.method = numbers.pick(&methods).to_owned();
                if numbers.once_in(2) {
                    sent.body = vec![b'x'; numbers.below(4096)];
                    set("Content-Length", vec![sent.body.len().to_string()]);
                }
            }
            6 => {
                let paths = [
                    "/etc/passwd",
                    "/../etc/passwd",
                    "/%2e%2e/x",
                    "//",
                    "/select/",
                    "/Query",
                    "/query/../select",
                    "/profile.json",
                    "/symbolicate/v5",
                    "/source/v1",
                    "/asm/v1",
                    "*",
                    "http://example.com/",
                    "/query%00",
                    "/;/",
                    "/./",
                ];
                sent.path = numbers.pick(&paths).to_owned();
            }
            // The token in the address of what has it in a header otherwise.
            _ => {
                sent.path = numbers.pick(&ASKED).to_owned();
                sent.words = format!("q=top&token={token}");
            }
        }
        sent.expected = Expected::Refusal;
    }
}

impl Sent {
    fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {}", self.method, self.path);
        if !self.words.is_empty() {
            _ = write!(text, "?{}", self.words);
        }
        text.push_str(" HTTP/1.1\r\n");
        for (name, value) in &self.lines {
            _ = write!(text, "{name}: {value}\r\n");
        }
        text.push_str("\r\n");
        [text.as_bytes(), &self.body].concat()
    }
}

/// Changes some bytes.
fn damage(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(bytes.len());
        match numbers.below(5) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << numbers.below(8),
            1 => bytes.insert(at, numbers.next() as u8),
            2 if !bytes.is_empty() => drop(bytes.remove(at)),
            3 => bytes.truncate(at),
            _ => {
                let end = (at + numbers.below(40)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = numbers.below(bytes.len());
                bytes.splice(to..to, piece);
            }
        }
    }
}

/// What any request has at least that is answered with 200, by the plainest look at its bytes.
fn may_be_right(bytes: &[u8], secrets: &ServerSecrets) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let hosts = [format!("127.0.0.1:{}", secrets.port), format!("localhost:{}", secrets.port)];
    // hyper skips empty lines before a request, and takes a line's end without CR.
    let Some((head, _)) = text
        .trim_start_matches(['\r', '\n'])
        .replace("\r\n", "\n")
        .split_once("\n\n")
        .map(|(h, b)| (h.to_owned(), b.to_owned()))
    else {
        return false;
    };
    let mut lines = head.lines();
    let target =
        lines.next().and_then(|line| line.strip_prefix("GET ")).and_then(|rest| rest.split(' ').next());
    let Some(target) = target else { return false };
    let of = |name: &str| -> Vec<String> {
        let value = |line: &str| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        };
        head.lines().skip(1).filter_map(value).collect()
    };
    let has_host = matches!(&of("host")[..], [host] if hosts.contains(host));
    // A percent sign can stand for any character of the token in the address.
    let has_token = matches!(&of("x-kymo-token")[..], [token] if *token == secrets.token)
        || target.contains("token=") && (target.contains(&secrets.token) || target.contains('%'));
    let has_origin =
        of("origin").iter().all(|origin| hosts.iter().any(|host| *origin == format!("http://{host}")));
    has_host && has_token && has_origin
}

/// Sends bytes, in one piece or several, and gives what comes back. Who hangs up has no answer: so
/// the end is sent only where none comes, and `is_whole` says that one must come.
fn exchange(secrets: &ServerSecrets, bytes: &[u8], is_whole: bool, numbers: &mut Numbers) -> Vec<u8> {
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", secrets.port)) {
            Ok(stream) => break stream,
            // Ports are used up for a moment.
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let patience = if is_whole { Duration::from_secs(60) } else { Duration::from_millis(20) };
    stream.set_read_timeout(Some(patience)).expect("a time");
    let cut = if numbers.once_in(8) { numbers.below(bytes.len()) } else { bytes.len() };
    // It may hang up before it has read all.
    _ = stream.write_all(&bytes[..cut]);
    if cut < bytes.len() {
        std::thread::yield_now();
        _ = stream.write_all(&bytes[cut..]);
    }
    let mut answer = Vec::new();
    if stream.read_to_end(&mut answer).is_err() {
        _ = stream.shutdown(Shutdown::Write);
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        _ = stream.read_to_end(&mut answer);
    }
    answer
}

/// What comes back for one request, or for two in a row, held against what may come back.
fn send_one(secrets: &ServerSecrets, numbers: &mut Numbers) -> u16 {
    let mut sent = secrets.right(numbers);
    if !numbers.once_in(12) {
        secrets.spoil(&mut sent, numbers);
    }
    let mut bytes = sent.bytes();
    let mut expected = sent.expected;
    if numbers.once_in(4) {
        damage(&mut bytes, numbers);
        expected = Expected::Unknown;
    }
    let first = bytes.clone();
    let is_pipelined = numbers.once_in(10);
    if is_pipelined {
        // One connection has one answer, that of the first request. A long one may be cut: the
        // kernel resets a connection that is closed with bytes that were not read.
        bytes.extend(secrets.right(numbers).bytes());
        expected = if expected == Expected::Unknown { expected } else { sent.expected };
    }
    let answer = exchange(secrets, &bytes, expected == Expected::Answer, numbers);
    let text = String::from_utf8_lossy(&answer);
    let code = status(&text);
    let shown = || format!("sent:\n{}\nanswer:\n{:.300}", String::from_utf8_lossy(&bytes), text);
    match expected {
        Expected::Answer => assert_eq!(code, 200, "{}", shown()),
        Expected::Refusal => assert!(code != 200 && code != 500, "{}", shown()),
        Expected::Unknown if code == 200 => {
            assert!(may_be_right(&first, secrets) || may_be_right(&bytes, secrets), "{}", shown());
        }
        Expected::Unknown => assert_ne!(code, 500, "{}", shown()),
    }
    if let Some((head, body)) = text.split_once("\r\n\r\n") {
        assert!(!head.to_lowercase().contains("access-control"), "{}", shown());
        assert!(!text.contains(&secrets.token), "the token comes back: {}", shown());
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: Option<usize> = length.and_then(|length| length.parse().ok());
        // HEAD has none; lossy text is never shorter than the bytes.
        let is_whole = |length| body.len() == length || is_pipelined && body.len() < length;
        assert!(sent.method == "HEAD" || length.is_none_or(is_whole), "{}", shown());
        if code != 200 {
            assert!(body.len() < 300, "{}", shown());
        }
    }
    code
}

/// Bytes that this process has in memory.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

/// Checks S1 to S3 by requests that are nearly right: no answer but to those that are exactly
/// right, no panic, the right ones are answered after all others, and memory stays bounded.
#[test]
fn nearly_right_requests() {
    let of = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let count = match of("KYMO_SOAK") {
        None => 2_000,
        Some(count) if count > 1 => count,
        Some(_) => 1_000_000,
    };
    let seed = of("KYMO_SOAK_SEED").unwrap_or(0x9e37_79b9_7f4a_7c15);
    let served = Served::of(&fixture());
    let secrets = ServerSecrets { port: served.port, token: served.token.clone() };
    let done = AtomicU64::new(0);
    let (mut warm, mut most) = (0, 0);
    let counts: Vec<std::collections::BTreeMap<u16, u64>> = std::thread::scope(|scope| {
        let clients: Vec<_> = (1..=CLIENTS)
            .map(|client| {
                let (secrets, done) = (&secrets, &done);
                scope.spawn(move || {
                    let mut numbers = Numbers(seed.wrapping_mul(2 * client + 1) | 1);
                    let mut counts = std::collections::BTreeMap::new();
                    for _ in 0..count / CLIENTS {
                        *counts.entry(send_one(secrets, &mut numbers)).or_default() += 1;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    counts
                })
            })
            .collect();
        while clients.iter().any(|client| !client.is_finished()) {
            std::thread::sleep(Duration::from_millis(200));
            let now = resident();
            if done.load(Ordering::Relaxed) < count / 10 {
                warm = now.max(warm)
            } else {
                most = now.max(most)
            }
        }
        clients.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    let mut all = std::collections::BTreeMap::new();
    for (code, number) in counts.into_iter().flatten() {
        *all.entry(code).or_insert(0_u64) += number;
    }
    println!(
        "{count} requests, seed {seed}: {all:?}; memory {} MiB, then {} MiB at most",
        warm >> 20,
        most >> 20
    );
    // Other tests of this process have memory, too.
    assert!(warm == 0 || most < warm + (128 << 20), "memory grew from {warm} to {most} bytes");
    assert!(all.get(&200).is_some_and(|answers| *answers > count / 40), "{all:?}");
    for path in ["/select?event=0", "/query?q=top"] {
        assert_eq!(status(&served.get(path, &served.token_line())), 200);
    }
    assert_eq!(status(&served.get(&format!("/?token={}", served.token), "")), 200);
}
