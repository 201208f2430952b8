//! Messages as a client writes them.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::scenario::fresh_folder;
use crate::tools::{Running, kymo, text};

fn recording() -> String {
    format!("{}/../../fixtures/recordings/callgraph.data", env!("CARGO_MANIFEST_DIR"))
}

/// A client with its server.
struct Client {
    server: Running,
    last: u64,
}

impl Client {
    /// Begins as clients do.
    fn of(words: &[&str]) -> Client {
        let mut client = Client::unready(words);
        let said = client.ask(
            "initialize",
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}),
        );
        assert_eq!(said["result"]["serverInfo"]["name"], "kymo", "{said:#}");
        assert_eq!(said["result"]["protocolVersion"], "2025-06-18");
        assert!(said["result"]["capabilities"]["tools"].is_object());
        client.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string());
        client
    }

    fn unready(words: &[&str]) -> Client {
        let mut command = kymo().command([&["mcp"], words].concat());
        Client { server: Running::start(command.stderr(Stdio::null())), last: 0 }
    }

    fn write(&mut self, line: &str) {
        let stdin = self.server.child.stdin.as_mut().expect("a pipe");
        writeln!(stdin, "{line}").expect("it reads");
    }

    fn send(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        self.write(
            &json!({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params}).to_string(),
        );
        self.last
    }

    fn read(&mut self) -> Value {
        let line = self.server.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// The answer to a request; notifications are passed over.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        loop {
            let said = self.read();
            if said.get("id").is_some() {
                assert_eq!((&said["id"], &said["jsonrpc"]), (&id.into(), &"2.0".into()), "{said:#}");
                return said;
            }
        }
    }

    /// The text and the JSON of an answer.
    fn call(&mut self, tool: &str, arguments: Value) -> (String, Value) {
        let said = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        let result = &said["result"];
        assert_eq!(result["isError"], false, "{tool}: {said:#}");
        let text = result["content"][0]["text"].as_str().expect("a text").to_owned();
        (text, result["structuredContent"].clone())
    }

    /// What a tool says that cannot answer.
    fn refused(&mut self, tool: &str, arguments: Value) -> String {
        let said = self.ask("tools/call", json!({"name": tool, "arguments": arguments}));
        assert_eq!(said["result"]["isError"], true, "{tool}: {said:#}");
        said["result"]["content"][0]["text"].as_str().expect("a text").to_owned()
    }

    /// Closes its end; the status.
    fn end(mut self) -> Option<i32> {
        drop(self.server.child.stdin.take());
        self.server.child.wait().expect("its end").code()
    }
}

/// Checks that each tool is listed with its arguments, and that its answer is that of `kymo query`.
#[test]
fn answers_are_those_of_queries() {
    let file = recording();
    let mut client = Client::of(&[&file]);
    let listed = client.ask("tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().expect("a list").clone();
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    let verbs = ["top", "tree", "inverted", "callers", "callees", "branch", "timeline", "waits", "events"];
    assert_eq!(names, [&["list_recordings", "open_recording"], &verbs[..], &["annotate"]].concat());
    for tool in &tools {
        assert!(tool["inputSchema"]["properties"].is_object() && tool["annotations"]["readOnlyHint"] == true);
    }
    for (tool, arguments, query) in [
        ("top", json!({"limit": 5, "by": "total"}), "top 5 by total"),
        ("top", json!({"group": "threads", "file": file}), "top threads"),
        ("top", json!({"where": "time=20%..60%", "event": "cpu-clock"}), "top where time=20%..60%"),
        ("tree", json!({}), "tree"),
        ("inverted", json!({"least_percent": 5}), "inverted 5%"),
        ("callers", json!({"function": "spin"}), "callers of spin"),
        ("callees", json!({"function": "main"}), "callees of main"),
        ("timeline", json!({"tiles": 8, "lanes": "thread"}), "timeline 8 by thread"),
        ("events", json!({}), "events"),
        ("annotate", json!({"function": "main"}), "annotate main"),
    ] {
        let expected = kymo().run(["query", "-q", "--md", &file, query]);
        if expected.code != Some(0) {
            // The same sentence.
            let why = client.refused(tool, arguments);
            assert!(
                expected.stderr.contains(why.split(", which").next().expect("words")),
                "{why}: {}",
                expected.stderr
            );
            continue;
        }
        let (said, json) = client.call(tool, arguments);
        assert_eq!(said, expected.stdout, "{query}");
        if tool != "annotate" {
            let of_query = kymo().succeed(["query", "-q", "--json", &file, query]).json();
            let key = of_query.as_object().expect("an object").keys().find(|key| json[*key].is_object());
            let key = key.map_or("events", String::as_str);
            assert_eq!(json[key], of_query[key], "{query}");
        }
    }
    let (said, _) = client.call("open_recording", json!({}));
    assert!(said.contains("machine: x86_64\n") && said.contains("| cpu-clock |"), "{said}");
    let (said, json) = client.call("list_recordings", json!({}));
    assert_eq!((said.trim(), &json["recordings"][0]), (&file[..], &Value::from(file.clone())));
    assert_eq!(client.end(), Some(0));
}

/// Checks that the branches of a tree lead from its root to where `kymo query tree` has its nodes.
#[test]
fn branches_are_those_of_the_tree() {
    let file = recording();
    let mut client = Client::of(&[&file]);
    let (_, root) = client.call("branch", json!({"least_percent": 0}));
    let first = &root["branch"]["nodes"][0];
    let tree = kymo().succeed(["query", "-q", "--json", &file, "tree 0%"]).json();
    let node = &tree["tree"]["nodes"][0];
    assert_eq!((&first["name"], &first["total_period"]), (&node["name"], &node["total_period"]));
    let (_, below) = client.call("branch", json!({"least_percent": 0, "path": [first["function"]]}));
    let nodes = tree["tree"]["nodes"].as_array().expect("a list");
    let child = nodes.iter().find(|node| node["parent"] == 0).expect("a node below the first");
    assert_eq!(below["branch"]["nodes"][0]["name"], child["name"]);
    let (_, none) = client.call("branch", json!({"path": [4_000_000_000_u32]}));
    assert_eq!(none["branch"]["nodes"], json!([]));
    assert_eq!(client.end(), Some(0));
}

/// Checks what is said of calls that are wrong, and that the next one is answered.
#[test]
fn wrong_calls() {
    let file = recording();
    let mut client = Client::of(&[&file]);
    let said = client.ask("tools/call", json!({"name": "bottom", "arguments": {}}));
    assert_eq!(said["error"]["code"], -32602, "{said:#}");
    assert!(said["error"]["message"].as_str().expect("words").contains("there are list_recordings"));
    let said = client.ask("no/such/method", json!({}));
    assert_eq!(said["error"]["code"], -32601, "{said:#}");
    for (tool, arguments, words) in [
        ("top", json!({"lanes": "cpu"}), "top has no argument 'lanes'"),
        ("top", json!({"limit": "x"}), "invalid type"),
        ("top", json!({"limit": -1}), "invalid value"),
        ("top", json!({"where": "thraed=1"}), "'thraed' is no field: the fields are time"),
        ("top", json!({"event": "cycles"}), "there are cpu-clock"),
        ("callers", json!({}), "needs the name of a `function`"),
        ("waits", json!({}), "record with `kymo record --wall`"),
        ("top", json!({"file": "other.data"}), "'other.data' is not among the recordings"),
        ("top", json!({"file": "/etc/passwd"}), "'/etc/passwd' is not among the recordings"),
        ("annotate", json!({"function": "no_such_function"}), "no function with samples of its own"),
    ] {
        let why = client.refused(tool, arguments);
        assert!(why.contains(words), "{why}");
    }
    // No JSON, JSON that is no request, and a message that is too long.
    client.write("{ this is no JSON");
    client.write("\u{0}\u{1}\u{2}");
    client.write("[1, 2, 3]");
    client.write(&format!("{{\"jsonrpc\": \"2.0\", \"id\": 7, \"method\": \"{}\"}}", "a".repeat(1 << 20)));
    client.last += 1;
    let (id, name) = (client.last, json!({"name": "events", "arguments": {}}));
    client.write(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": name}).to_string());
    loop {
        let said = client.read();
        if said["id"] == id {
            assert_eq!(said["result"]["isError"], false, "{said:#}");
            break;
        }
        assert!(said["error"].is_object(), "{said:#}");
    }
    assert_eq!(client.end(), Some(0));
}

/// Checks that of a folder its recordings can be asked, and no file beside it: by `..`, by absolute
/// paths, by links; and that nothing is told of whether such a file is there.
#[test]
fn paths_outside_of_the_folder() {
    let folder = fresh_folder("mcp-root");
    let root = folder.join("root");
    std::fs::create_dir_all(root.join("deep")).expect("a folder");
    std::fs::copy(recording(), root.join("deep/in.data")).expect("a copy");
    std::fs::copy(recording(), folder.join("out.data")).expect("a copy");
    std::fs::write(root.join("notes.txt"), "secret words").expect("a file");
    std::os::unix::fs::symlink("../out.data", root.join("link.data")).expect("a link");
    std::os::unix::fs::symlink("..", root.join("up")).expect("a link");
    let mut client = Client::of(&["--root", text(&root)]);
    let (said, _) = client.call("list_recordings", json!({}));
    assert_eq!(said, "deep/in.data\n");
    let (said, _) = client.call("top", json!({"file": "deep/in.data", "limit": 2}));
    assert_eq!(said, kymo().succeed(["query", "-q", "--md", &recording(), "top 2"]).stdout);
    let outside = folder.join("out.data");
    let absent = folder.join("none.data");
    for name in ["../out.data", "deep/../../out.data", text(&outside), text(&absent), "/etc/passwd", "/none"]
    {
        let why = client.refused("top", json!({"file": name}));
        let expected = format!("'{name}' is not among the recordings of this server");
        assert!(why.starts_with(&expected), "{why}");
    }
    for name in ["link.data", "up/out.data", "notes.txt", "deep", "none.data"] {
        let why = client.refused("top", json!({"file": name}));
        assert_eq!(why, format!("there is no recording {name} below the folder"));
    }
    let why = client.refused("top", json!({}));
    assert!(why.contains("list_recordings tells what there is"), "{why}");
    assert_eq!(client.end(), Some(0));
}

/// Checks that a long answer is cut with a word on how to get the rest, and that the parts are the
/// whole.
#[test]
fn long_answers() {
    let file = recording();
    let mut client = Client::of(&[&file]);
    let arguments = |from: usize| json!({"limit": 10_000, "by": "total", "from_line": from});
    let (mut whole, mut from) = (String::new(), 1);
    loop {
        let (said, json) = client.call("top", arguments(from));
        let is_first = from == 1;
        let body = if is_first { &said[..] } else { said.split_once('\n').expect("a line").1 };
        match said.split("from_line: ").nth(1) {
            Some(next) => {
                assert!(json.is_null() || is_first);
                from = next.trim_end().trim_end_matches(']').parse().expect("a number");
                whole.push_str(body.split("\n[cut: ").next().expect("the part"));
            }
            None => {
                whole.push_str(body);
                break;
            }
        }
    }
    let expected = kymo().succeed(["query", "-q", "--md", &file, "top 10000 by total"]).stdout;
    assert_eq!(whole, expected);
    assert_eq!(client.end(), Some(0));
}

/// Checks that a file that is replaced is read again.
#[test]
fn replaced_recordings() {
    let file = fresh_folder("mcp-replaced").join("perf.data");
    let fixture = |name: &str| Path::new(&recording()).with_file_name(name);
    std::fs::copy(recording(), &file).expect("a copy");
    let mut client = Client::of(&[text(&file)]);
    let before = client.call("events", json!({})).0;
    assert_eq!(client.call("events", json!({})).0, before);
    std::fs::remove_file(&file).expect("removed");
    let why = client.refused("events", json!({}));
    assert!(why.contains("failed to open"), "{why}");
    std::fs::copy(fixture("plain.data"), &file).expect("another");
    assert_eq!(
        client.call("events", json!({})).0,
        kymo().succeed(["query", "-q", "--md", text(&file), "events"]).stdout
    );
    assert_eq!(client.end(), Some(0));
}

/// Checks that a request which is cancelled has no answer, and that the next one has; and that a
/// client that says nothing, or hangs up while it is answered, ends the server with success.
#[test]
fn cancelled_and_closed() {
    let file = recording();
    assert_eq!(Client::unready(&[&file]).end(), Some(0));
    let mut client = Client::of(&[&file]);
    let cancelled = client.send("tools/call", json!({"name": "top", "arguments": {}}));
    let notice = json!({"requestId": cancelled, "reason": "test"});
    client
        .write(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": notice}).to_string());
    let next = client.send("tools/call", json!({"name": "events", "arguments": {}}));
    let mut said = client.read();
    // It may have been answered before it was cancelled.
    if said["id"] == cancelled {
        said = client.read();
    }
    assert_eq!(said["id"], next, "{said:#}");
    client.send("tools/call", json!({"name": "tree", "arguments": {}}));
    assert_eq!(client.end(), Some(0));
    kymo().run(["mcp", "-"]).ends(129).says("stdin has the client's requests");
}
