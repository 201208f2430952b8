//! The paths of the Firefox Profiler: their documents for this very program, and who is answered.
use super::{Served, fixture, status};
use crate::{Server, SymbolApi};
use kymo_profile::firefox::{FirefoxModule, FirefoxProfile};
use kymo_symbols::{ModuleKey, SymbolOptions, SymbolStore};
use serde_json::{Value, json};

const PROFILER: &str = "https://profiler.firefox.com";
const MODULE: &str = "000000000000000000000000000000010";

/// A function of this program that is asked about.
#[inline(never)]
fn function_of_this_test(number: u64) -> u64 {
    std::hint::black_box(number) + 1
}

/// Where it is in the file of this program.
fn offset_of_function() -> u64 {
    let address = function_of_this_test as fn(u64) -> u64 as usize as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("this process has mappings");
    let number = |digits: &str| u64::from_str_radix(digits, 16).expect("a number");
    let find = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let pgoff = words.nth(1)?;
        let (start, end) = (number(start), number(end));
        (start..end).contains(&address).then(|| address - start + number(pgoff))
    };
    maps.lines().find_map(find).expect("the function is mapped")
}

/// A server of a profile with this program as its one module.
struct Profiled {
    served: Served,
    /// The path of the profiler's paths.
    path: String,
}

impl Profiled {
    fn new() -> Profiled {
        let path = std::env::current_exe().expect("this program");
        let key = ModuleKey::file(path.clone(), None);
        let names = ("test-program".to_owned(), path.display().to_string());
        let module = FirefoxModule::new(names, None, 0, (key, 0));
        let profile = FirefoxProfile { json: b"{\"meta\":{}}".to_vec(), modules: vec![module] };
        let symbols = SymbolApi::new(profile, &SymbolStore::new(SymbolOptions::default()));
        let server = Server::bind(0).expect("a port");
        let (server, address) = server.with_symbols(symbols).expect("random bits");
        let served = Served::by(server, &fixture());
        let own = format!("http%3A%2F%2F127%2E0%2E0%2E1%3A{}%2F", served.port);
        let rest = address.strip_prefix(&format!("{PROFILER}/from-url/{own}")).expect("an address");
        let (token, rest) = rest.split_once("%2Fprofile%2Ejson/?symbolServer=").expect("a profile");
        assert_eq!(rest, format!("{own}{token}"));
        assert!(token.len() == 32 && token != served.token, "a token of its own");
        Profiled { path: format!("/{token}"), served }
    }

    fn send(&self, method: &str, path: &str, lines: &str, body: &str) -> String {
        let (port, length) = (self.served.port, body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}");
        self.served.send(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes())
    }

    /// As the profiler's page asks.
    fn post(&self, path: &str, body: &Value) -> String {
        let lines = format!(
            "Origin: {PROFILER}\r\nSec-Fetch-Site: cross-site\r\nContent-Type: text/plain;charset=UTF-8\r\n"
        );
        self.send("POST", &format!("{}{path}", self.path), &lines, &body.to_string())
    }

    fn ask(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(status(&answer), 200, "{answer}");
        assert!(answer.contains(&format!("access-control-allow-origin: {PROFILER}\r\n")), "{answer}");
        serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
    }

    fn error(&self, path: &str, body: &Value) -> String {
        self.ask(path, body)["error"].as_str().expect("an error").to_owned()
    }
}

/// Checks the profile, the name, the source file and the code of a function of this program.
#[test]
fn what_the_profiler_gets() {
    assert_eq!(function_of_this_test(1), 2);
    let profiled = Profiled::new();
    let profile = profiled.send("GET", &format!("{}/profile.json", profiled.path), "", "");
    assert!(status(&profile) == 200 && profile.ends_with("{\"meta\":{}}"), "{profile}");
    let offset = offset_of_function();
    let job = json!({"memoryMap": [["test-program", MODULE], ["other", MODULE]], "stacks": [[[0, offset], [1, 5], [-1, 6]]]});
    let answer = profiled.ask("/symbolicate/v5", &json!({"jobs": [job]}));
    let result = &answer["results"][0];
    assert_eq!(result["found_modules"][format!("test-program/{MODULE}")], true);
    assert_eq!(result["found_modules"][format!("other/{MODULE}")], false);
    let frames = &result["stacks"][0];
    let frame = &frames[0];
    assert!(
        frame["function"].as_str().is_some_and(|name| name.contains("function_of_this_test")),
        "{answer:#}"
    );
    assert_eq!((&frame["module"], &frame["function_offset"]), (&json!("test-program"), &json!("0x0")));
    assert_eq!(frame["module_offset"], format!("{offset:#x}"));
    assert!(frames[1]["function"].is_null() && frames[2]["function"].is_null());
    assert_eq!((&frames[1]["frame"], &frames[1]["module"]), (&json!(1), &json!("other")));
    assert_eq!(
        profiled.ask("/symbolicate/v5", &job)["results"][0]["stacks"][0][0]["function"],
        frame["function"]
    );

    let file = frame["file"].as_str().expect("debug information");
    assert!(file.ends_with("profiler.rs") && frame["line"].as_u64().is_some(), "{answer:#}");
    let source = |file: &str, offset: u64| json!({"debugName": "test-program", "debugId": MODULE, "moduleOffset": format!("{offset:#x}"), "file": file});
    let found = profiled.ask("/source/v1", &source(file, offset));
    assert!(found["source"].as_str().is_some_and(|text| text.contains("fn function_of_this_test")));
    assert_eq!(found["file"], file);
    // Any other file, however it is named.
    for other in ["/etc/passwd", "/proc/self/environ", &format!("{file}/../../lib.rs"), "../lib.rs", ""] {
        let why = profiled.error("/source/v1", &source(other, offset));
        assert!(why.contains("is in this file") && !why.contains("passwd"), "{why}");
    }
    assert!(profiled.error("/source/v1", &source(file, 0)).contains("is in this file"));

    let size = frame["function_size"].as_str().expect("a size");
    let code = json!({"debugName": "test-program", "debugId": MODULE, "startAddress": format!("{offset:#x}"), "size": size});
    if cfg!(target_arch = "x86_64") {
        let answer = profiled.ask("/asm/v1", &code);
        assert_eq!((&answer["arch"], &answer["size"]), (&json!("x86_64"), &json!(size)));
        let rows = answer["instructions"].as_array().expect("a list");
        assert!(rows.len() > 2 && rows[0][0] == 0, "{answer:#}");
        assert!(
            rows.iter().any(|row| row[1].as_str().is_some_and(|text| text.starts_with("ret"))),
            "{answer:#}"
        );
        let whole = json!({"debugName": "test-program", "debugId": MODULE, "startAddress": format!("{offset:#x}"), "size": "0x1", "continueUntilFunctionEnd": true});
        assert_eq!(profiled.ask("/asm/v1", &whole)["instructions"], answer["instructions"]);
    }
}

/// Checks what is said of requests that are no questions, or about what the recording has not.
#[test]
fn wrong_documents() {
    let profiled = Profiled::new();
    for (path, body, words) in [
        ("/symbolicate/v5", json!({}), "not understood"),
        ("/symbolicate/v5", json!({"jobs": [{"memoryMap": [], "stacks": [[[0, -1]]]}]}), "not understood"),
        ("/symbolicate/v5", json!({"memoryMap": [], "stacks": [vec![[0, 1]; 300_000]]}), "of one request"),
        ("/source/v1", json!({"file": "/etc/passwd"}), "missing field"),
        (
            "/source/v1",
            json!({"debugName": "x", "debugId": "y", "moduleOffset": "0x1", "file": "/etc/passwd"}),
            "has no module x",
        ),
        (
            "/source/v1",
            json!({"debugName": "x", "debugId": "y", "moduleOffset": "+1", "file": ""}),
            "such as 0x1f",
        ),
        (
            "/asm/v1",
            json!({"name": "/etc/passwd", "codeId": "", "startAddress": "0x0", "size": "0x1"}),
            "no module",
        ),
        (
            "/asm/v1",
            json!({"debugName": "test-program", "debugId": MODULE, "startAddress": "0x0", "size": "0xffffffffffff"}),
            "more than the",
        ),
        (
            "/asm/v1",
            json!({"debugName": "test-program", "debugId": MODULE, "startAddress": "0xffffffffffffffff", "size": "0x10"}),
            "not shown",
        ),
    ] {
        let why = profiled.error(path, &body);
        assert!(why.contains(words), "{path} {body:.200}: {why}");
    }
    // Modules that are not there, in any place of the list.
    let job = json!({"memoryMap": [], "stacks": [[[0, 1], [7, u64::MAX], [-9, 0]]]});
    assert!(profiled.ask("/symbolicate/v5", &job)["results"][0]["stacks"][0][1]["function"].is_null());
}

/// Checks S6: other origins, other tokens, other paths, methods, kinds and lengths are refused.
#[test]
fn who_is_refused() {
    let profiled = Profiled::new();
    let (own, token) = (&profiled.path[..], &profiled.served.token[..]);
    let kind = "Content-Type: application/json\r\n";
    let post = |path: &str, lines: &str| profiled.send("POST", path, lines, "{}");
    let right = format!("{own}/asm/v1");
    assert_eq!(status(&post(&right, kind)), 200);
    let port = profiled.served.port;
    for origin in [
        "null".to_owned(),
        "https://example.com".into(),
        "http://profiler.firefox.com".into(),
        "https://profiler.firefox.com.example.com".into(),
        "https://profiler.firefox.com:8080".into(),
        format!("http://127.0.0.1:{port}"),
        format!("{PROFILER}\r\nOrigin: {PROFILER}"),
    ] {
        for method in ["POST", "GET", "OPTIONS"] {
            for path in ["asm/v1", "profile.json"] {
                let lines = format!("{kind}Access-Control-Request-Method: POST\r\nOrigin: {origin}\r\n");
                let answer = profiled.send(method, &format!("{own}/{path}"), &lines, "{}");
                assert_eq!(status(&answer), 403, "{origin}: {answer}");
                assert!(!answer.to_lowercase().contains("access-control"), "{answer}");
            }
        }
    }
    let of_profiler = format!("{kind}Origin: {PROFILER}\r\n");
    // The token of the page is not that of these paths, nor the other way round.
    for path in
        ["/asm/v1", "/profile.json", &format!("/{token}/asm/v1"), &format!("{own}0/asm/v1"), &own[..9]]
    {
        for lines in [kind, &of_profiler] {
            let answer = post(path, lines);
            assert_eq!(status(&answer), 403, "{path}: {answer}");
            assert!(!answer.to_lowercase().contains("access-control"), "{answer}");
        }
    }
    for path in ["/", "/query?q=top", "/select?event=0"] {
        let lines = format!("X-Kymo-Token: {}\r\n", &own[1..]);
        assert_eq!(status(&profiled.send("GET", path, &lines, "")), 403, "{path}");
        let lines = format!("X-Kymo-Token: {token}\r\nOrigin: {PROFILER}\r\n");
        assert_eq!(status(&profiled.send("GET", path, &lines, "")), 403, "{path}");
    }
    for path in [
        "",
        "query?q=top",
        "etc/passwd",
        "../etc/passwd",
        "source/v1/",
        "source/v2",
        "asm/v1?x=1",
        "%61sm/v1",
    ] {
        assert_eq!(status(&post(&format!("{own}/{path}"), &of_profiler)), 404, "{path}");
    }
    for method in ["GET", "PUT", "DELETE", "OPTIONS"] {
        assert_eq!(status(&profiled.send(method, &right, &of_profiler, "{}")), 405, "{method}");
    }
    assert_eq!(status(&profiled.send("POST", &format!("{own}/profile.json"), &of_profiler, "{}")), 405);
    for kind in
        ["", "Content-Type: text/html\r\n", "Content-Type: multipart/form-data; boundary=text/plain\r\n"]
    {
        assert_eq!(status(&post(&right, kind)), 415, "{kind}");
    }
    let other_host =
        format!("POST {right} HTTP/1.1\r\nHost: example.com\r\n{kind}Content-Length: 2\r\n\r\n{{}}");
    assert_eq!(status(&profiled.served.send(other_host.as_bytes())), 403);
    let large = " ".repeat(5 << 20);
    assert!([413, 0].contains(&status(&profiled.send("POST", &right, &of_profiler, &large))));
    let preflight = format!("Origin: {PROFILER}\r\nAccess-Control-Request-Method: POST\r\n");
    let answer = profiled.send("OPTIONS", &right, &preflight, "");
    assert_eq!(status(&answer), 204, "{answer}");
    for line in [
        &format!("access-control-allow-origin: {PROFILER}")[..],
        "access-control-allow-private-network: true",
        "vary: origin",
    ] {
        assert!(answer.contains(&format!("{line}\r\n")), "{answer}");
    }
    assert_eq!(status(&post(&right, kind)), 200);
}
