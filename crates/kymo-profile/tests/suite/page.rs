//! The HTML page: what is embedded in it, and what a real browser computes from it.
use crate::sample_profile::{HOSTILE, large, small};
use kymo_profile::export::{
    self, ExportEvent, ExportProfile, Function, FunctionKind, Link, NO_PARENT, Node, StackTree, Thread,
    Timeline, TimelineEntry, Totals,
};
use kymo_testing::Browser;
use serde_json::Value;
use std::io::BufWriter;
use std::path::Path;

fn page_of(profile: &ExportProfile) -> String {
    let mut bytes = Vec::new();
    export::html(profile, &mut bytes).expect("a Vec takes everything");
    String::from_utf8(bytes).expect("the page is UTF-8")
}

/// Checks that the page names no address outside itself and forbids all loading.
#[test]
fn page_is_self_contained() {
    let page = page_of(&small());
    assert!(page.starts_with("<!doctype html>"));
    assert!(page.contains("default-src 'none'"));
    // The only address is the name of the SVG namespace, in the icon.
    for (at, _) in page.match_indices("://") {
        let begin = at.saturating_sub(4);
        assert!(page[begin..].starts_with("http://www.w3.org/2000/svg"), "{}", &page[begin..begin + 60]);
    }
    for word in [
        "src=\"",
        "@import",
        "url(",
        "fetch(",
        "XMLHttpRequest",
        "WebSocket",
        "innerHTML",
        "insertAdjacentHTML",
    ] {
        let place = page.find(word).map(|at| &page[at..(at + 40).min(page.len())]);
        assert!(place.is_none(), "{place:?}");
    }
    assert!(
        !page.contains("<!--TITLE-->") && !page.contains("<!--DATA-->") && !page.contains("<!--SCRIPTS-->")
    );
    assert!(page.trim_end().ends_with("</html>"));
}

/// Checks that hostile names stay inside the data: no element more than the template has, and the data still parses.
#[test]
fn hostile_names_stay_data() {
    let mut profile = small();
    let plain = page_of(&profile).matches("<script").count();
    profile.title = HOSTILE.into();
    profile.host = "<!--<script>".into();
    let page = page_of(&profile);
    assert_eq!(page.matches("<script").count(), plain);
    assert!(!page.contains("<img"));
    let (_, rest) = page.split_once("id=\"profile\">").expect("the data element");
    let (data, _) = rest.split_once("</script>").expect("its end");
    let data: Value = serde_json::from_str(data).expect("the data is JSON");
    assert_eq!(data["heading"], HOSTILE);
    assert_eq!(data["functions"]["name"][5], HOSTILE);
}

/// Checks that the page's own code stays small enough to read.
#[test]
fn page_code_stays_small() {
    let empty = page_of(&ExportProfile::default()).len();
    assert!(empty < 200_000, "an empty page takes {empty} bytes");
}

// ---- in a browser ---------------------------------------------------------------------------------------------------

/// A page on disk, and the browser that opens it.
struct Opened {
    folder: tempfile::TempDir,
    browser: Browser,
}

impl Opened {
    /// Writes the page of `profile`; `None`, with a loud line, where there is no browser.
    fn new(test: &str, profile: &ExportProfile) -> Option<Opened> {
        let browser = Browser::find(test)?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = std::fs::File::create(folder.path().join("page.html")).expect("the page can be created");
        export::html(profile, &mut BufWriter::new(file)).expect("the page can be written");
        Some(Opened { folder, browser })
    }

    /// The document after the page has drawn itself, opened with `hash` in its address.
    fn document(&self, hash: &str) -> String {
        let user = tempfile::tempdir_in(&self.folder).expect("a temporary folder");
        self.browser.document(&address(&self.folder.path().join("page.html"), hash), user.path())
    }

    /// What the page says that it computed.
    fn check(&self, hash: &str) -> Value {
        let text = Browser::self_check(&self.document(hash));
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("the self-check is no JSON: {error}: {text:?}"))
    }
}

fn address(file: &Path, hash: &str) -> String {
    format!("file://{}{}{hash}", file.display(), if hash.is_empty() { "" } else { "#" })
}

/// Sum of the periods of samples whose stack holds a function that `matches`.
fn matched(profile: &ExportProfile, event: usize, matches: impl Fn(&str) -> bool) -> u64 {
    let nodes = &profile.events[event].stacks.nodes;
    let on_path = |mut at: u32| {
        loop {
            let node = nodes[at as usize];
            if matches(&profile.functions[node.function as usize].name) {
                return true;
            }
            if node.parent == NO_PARENT {
                return false;
            }
            at = node.parent;
        }
    };
    (0..nodes.len()).filter(|&n| on_path(n as u32)).map(|n| nodes[n].self_period).sum()
}

/// Checks that the page opens from a file, shows the whole recording, and counts it as the model does.
#[test]
fn browser_counts_the_whole_recording() {
    let profile = small();
    let Some(opened) = Opened::new("page::browser_counts_the_whole_recording", &profile) else { return };
    let document = opened.document("");
    assert!(document.contains("6 lost"), "the loss badge");
    assert!(document.contains("ring buffer full: 5; &lt;b&gt;odd&lt;/b&gt; cause: 1"), "the loss by cause");
    assert!(!document.contains("<img") && !document.contains("<b>odd"), "a name became markup");
    assert!(document.contains("<title>app --fast - kymo</title>"), "a script from a name ran");
    let check = opened.check("");
    assert_eq!(check["error"], Value::Null);
    assert_eq!(check["whole"], 28_000);
    assert_eq!(check["treeWhole"], 28_000);
    assert_eq!(check["samples"], 28);
    assert_eq!(check["lost"], 6);
    assert_eq!(check["rows"], 6);
    assert_eq!(check["lanes"], 3);
    // Self descending; recursion counted once in the total.
    assert_eq!(check["top"][0], serde_json::json!(["walk", 8_000, 15_000]));
    assert_eq!(check["top"][1], serde_json::json!(["visit<Node, alloc::vec::Vec<u8>>", 7_000, 7_000]));
    // Until a function is chosen the butterfly is that of the first one.
    let rows = |address: &str| opened.check(address)["treeRows"].clone();
    assert_eq!(rows("tab=butterfly"), rows("tab=butterfly&focus=walk"));
    assert_ne!(rows("tab=butterfly"), rows("tab=butterfly&focus=main"));
}

/// Checks zoom, search, time range, thread filter and the views through the address, as a shared link carries them.
#[test]
fn browser_follows_the_address() {
    let profile = small();
    let Some(opened) = Opened::new("page::browser_follows_the_address", &profile) else { return };

    let check = opened.check("zoom=app.main.walk&q=walk");
    assert_eq!(check["zoom"], serde_json::json!({"name": "walk", "total": 15_000, "self": 3_000}));
    assert_eq!(check["matched"], matched(&profile, 0, |name| name.contains("walk")));
    assert_eq!(check["rows"], 1);

    // Buckets 3 to 6: 5 of thread 100, 5 of process 200, 6 of thread 100.
    let check = opened.check("range=300000-700000");
    assert_eq!((&check["whole"], &check["samples"]), (&16_000.into(), &16.into()));
    let check = opened.check("range=300000-700000&thread=t100");
    assert_eq!(check["whole"], 11_000);
    let check = opened.check("thread=p100&merge=1");
    assert_eq!((&check["whole"], &check["treeWhole"]), (&23_000.into(), &23_000.into()));

    let check = opened.check("view=up&commands=0&zoom=walk");
    assert_eq!(check["treeWhole"], 28_000);
    assert_eq!(check["zoom"]["total"], 8_000);
    let check = opened.check("view=callers&focus=walk");
    assert_eq!(check["treeWhole"], 15_000);
    let check = opened
        .check("view=callees&focus=walk&zoom=walk.walk.visit%3CNode%2C%20alloc%3A%3Avec%3A%3AVec%3Cu8%3E%3E");
    assert_eq!((&check["treeWhole"], &check["zoom"]["total"]), (&15_000.into(), &7_000.into()));

    let check = opened.check("event=page-faults:u");
    assert_eq!(
        (&check["event"], &check["unit"], &check["whole"]),
        (&"page-faults:u".into(), &"faults".into(), &41.into())
    );
    let check = opened.check("event=page-faults:u&weight=samples");
    assert_eq!((&check["unit"], &check["whole"]), (&"samples".into(), &7.into()));

    // Nonsense in an address is ignored.
    let check =
        opened.check("event=none&zoom=nothing.x&range=5-1&thread=zz&view=sideways&focus=no.such&q=/(/");
    assert_eq!(
        (&check["error"], &check["whole"], &check["zoom"]),
        (&Value::Null, &28_000.into(), &Value::Null)
    );
}

/// Checks a page of wall time: lanes by state, running first and idle last, and arrows from waits
/// to the threads that ended them, only those of the range that is chosen.
#[test]
fn browser_draws_states_and_arrows() {
    let mut profile = small();
    let Some(opened) = Opened::new("page::browser_draws_states_and_arrows", &wall_time(&mut profile)) else {
        return;
    };
    let check = opened.check("");
    assert_eq!(check["error"], Value::Null);
    assert_eq!(check["states"], serde_json::json!(["running", "lock", "idle: poll"]));
    assert_eq!((&check["links"], &check["arrows"], &check["lanes"]), (&3.into(), &2.into(), &2.into()));
    assert_eq!((&check["whole"], &check["samples"]), (&300.into(), &300.into()));
    let check = opened.check("range=0-60");
    assert_eq!((&check["arrows"], &check["whole"]), (&1.into(), &120.into()));
}

/// Two threads, of which one waits for the other twice, and for a timer.
fn wall_time(profile: &mut ExportProfile) -> ExportProfile {
    let function = |name: &str, kind| Function { name: name.into(), kind, ..Function::default() };
    let node =
        |parent, function, period| Node { parent, function, self_samples: period, self_period: period };
    let entry = |bucket, thread, node| TimelineEntry {
        bucket,
        thread,
        cpu: export::NO_CPU,
        node,
        samples: 30,
        period: 30,
    };
    let link = |begin_ns, end_ns, waker, by: &str| Link {
        thread: 1,
        begin_ns,
        end_ns,
        state: "lock",
        waker,
        by: by.into(),
    };
    let thread = |tid| Thread { pid: 1, tid, comm: "app".into(), samples: 150, earlier_processes: 0 };
    let event = ExportEvent {
        name: "wall-time".into(),
        unit: "ns".into(),
        total_samples: 300,
        total_period: 300,
        stacks: StackTree {
            nodes: vec![node(NO_PARENT, 0, 0), node(0, 1, 90), node(0, 2, 150), node(0, 3, 60)],
        },
        timeline: Timeline {
            bucket_ns: 30,
            entries: (0..5)
                .flat_map(|at| [entry(at, 0, if at < 3 { 1 } else { 3 }), entry(at, 1, 2)])
                .collect(),
        },
        links: vec![
            link(0, 50, Some(0), "app 1 in opens"),
            link(80, 120, Some(0), "app 1"),
            link(120, 140, None, "a timer"),
        ],
        ..ExportEvent::default()
    };
    let state = FunctionKind::State;
    ExportProfile {
        functions: vec![
            function("app", FunctionKind::Comm),
            function("running", state),
            function("lock", state),
            function("idle: poll", state),
        ],
        threads: vec![thread(1), thread(2)],
        events: vec![event],
        duration_ns: 150,
        intervals: Vec::new(),
        ..std::mem::take(profile)
    }
}

/// Checks a page of 50,000 nodes and 400,000 timeline entries against the model: totals, a search, a zoom.
#[test]
fn browser_opens_a_large_profile() {
    let profile = large(50_000, 400_000, 11);
    let Some(opened) = Opened::new("page::browser_opens_a_large_profile", &profile) else { return };
    let event = &profile.events[0];
    let totals = Totals::new(event, profile.functions.len());
    let heaviest = event.stacks.nodes.iter().position(|node| node.parent == 0).expect("the root has a child");
    let function = event.stacks.nodes[heaviest].function;
    let names = [0, function].map(|number| profile.functions[number as usize].name.as_str());
    let check = opened.check(&format!("zoom={}&q=function_77&merge=0", names.join(".")));
    assert_eq!(check["error"], Value::Null);
    assert_eq!(check["whole"], event.total_period);
    assert_eq!(check["samples"], event.total_samples);
    assert_eq!(check["matched"], matched(&profile, 0, |name| name.contains("function_77")));
    // Siblings of one function were not merged by the model; the page finds one of them.
    let siblings: Vec<u64> = (0..event.stacks.nodes.len())
        .filter(|&n| event.stacks.nodes[n].parent == 0 && event.stacks.nodes[n].function == function)
        .map(|n| totals.subtree[n].period)
        .collect();
    assert!(siblings.contains(&check["zoom"]["total"].as_u64().expect("a zoomed node")), "{check}");
    assert!(check["frames"].as_u64().expect("a number") > 10, "{check}");
    let check = opened.check("view=up&merge=1&commands=0&range=2000000000-5000000000");
    assert_eq!(check["whole"], check["treeWhole"]);
}
