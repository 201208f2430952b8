//! What can be probed, and that hits are counted as the program counts them.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::probe_inside::waiting;
use crate::programs::build;
use crate::tools::{Need, Tool, kymo, perf, ready, require, run, signal, text};

/// The program whose functions are called a known number of times; none where nothing can be compiled, or something else is missing. Each test has
/// a file of its own: the kernel's probes are in every process of one file, and must not meet patches there.
fn probed(test: &str, needs: &[Need]) -> Option<PathBuf> {
    let own = format!("-DOF_{}", test.replace("::", "_"));
    require(test, &[needs, &[Need::Program("cc")]].concat()).map(|()| build("probed.c", &[&own]))
}

/// What the kernel's engine needs.
pub(crate) const KERNEL: &[Need] = &[Need::Root, Need::Uprobes];

/// Checks that the list has the program's functions at the addresses of `nm`, its marker, and the same names as text and as JSON.
#[test]
fn list_of_a_program() {
    let Some(program) = probed("probe::list_of_a_program", &[]) else { return };
    let said = kymo().succeed(["list", "--probes", text(&program), "--json"]);
    let document = said.json();
    assert_eq!((&document["schema"], &document["schema_version"]), (&"kymo-list-probes".into(), &1.into()));
    let probes = document["probes"].as_array().expect("a list");
    let named = |name: &str| probes.iter().find(|probe| probe["name"] == name);
    let nm = run(Command::new("nm").arg(&program)).stdout;
    let functions: Vec<(u64, &str)> = nm
        .lines()
        .filter_map(|line| {
            let (address, rest) = line.split_once(' ')?;
            let name = rest.strip_prefix("T probed_")?;
            Some((u64::from_str_radix(address, 16).ok()?, name))
        })
        .collect();
    assert_eq!(functions.len(), 5, "{nm}");
    for (address, name) in functions {
        let probe = named(&format!("probed_{name}")).unwrap_or_else(|| panic!("{name} in {}", said.stdout));
        assert_eq!((&probe["address"], &probe["kind"]), (&address.into(), &"function".into()));
        assert!(probe["length_bytes"].as_u64().is_some_and(|length| length > 0));
    }
    let marker = named("shop:sold").expect("the marker");
    assert!(marker["semaphore"].is_u64() && marker["kind"] == "marker", "{marker}");
    let shown = kymo().succeed(["list", "--probes", text(&program)]).stdout;
    assert_eq!(shown.lines().count(), probes.len());
}

/// Checks globs, selectors as filters, and a name that nothing matches.
#[test]
fn list_filters() {
    let Some(program) = probed("probe::list_filters", &[]) else { return };
    let names = |filter: &str| -> Vec<String> {
        let said = kymo().succeed(["list", "--probes", text(&program), filter]).stdout;
        let name = |line: &str| line.rsplit("  ").find(|part| !part.starts_with("usdt")).unwrap().to_owned();
        said.lines().map(name).collect()
    };
    assert_eq!(names("probed_?nner"), ["probed_inner"]);
    assert_eq!(names("probed_*").len(), 5);
    assert_eq!(names("shop:*"), ["shop:sold"]);
    assert_eq!(names("usdt:shop:sold"), ["shop:sold"]);
    let said = kymo().run(["list", "--probes", text(&program), "probed_iner"]).ends(1);
    said.says("did you mean `probed_inner`?");
    kymo().run(["list", "--probes", "/no/such/program"]).ends(1).says("cannot be probed: No such file");
    kymo().run(["list", "--probes", "/etc/passwd"]).says("it is not an ELF file");
}

fn probe<'a>(document: &'a Value, name: &str) -> &'a Value {
    let probes = document["probes"].as_array().expect("a list");
    probes.iter().find(|probe| probe["name"] == name).unwrap_or_else(|| panic!("{name} in {document}"))
}

/// The number behind a word in what the program prints.
fn counted(said: &str, word: &str) -> u64 {
    let mut words = said.split_whitespace().skip_while(|found| *found != word);
    words.nth(1).and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{word} in {said}"))
}

/// Checks hits of functions and of a marker with a semaphore against what the program counts itself, in threads and forked processes, and
/// that -i counts the command alone.
#[test]
fn counts_of_threads_and_forks() {
    let Some(program) = probed("probe::counts_of_threads_and_forks", KERNEL) else { return };
    let probes = ["probe", "--engine", "kernel", "--json", "probed_inner", "probed_outer", "probed_deep"];
    let probes = probes.into_iter().chain(["usdt:shop:sold", "--"]);
    let said = kymo().succeed(probes.chain([text(&program), "500", "3", "2"]));
    let found = said.json();
    assert_eq!((&found["schema"], &found["schema_version"]), (&"kymo-probe".into(), &1.into()));
    for (name, word) in [("probed_inner", "inner"), ("probed_outer", "outer"), ("shop:sold", "marked")] {
        let own = counted(&said.stdout, word);
        assert_eq!((probe(&found, name)["hits"].as_u64(), own), (Some(own), 4500), "{name}");
    }
    assert_eq!(probe(&found, "probed_deep")["hits"], 11);
    assert_eq!(probe(&found, "probed_deep")["engine"], "kernel");
    let alone =
        kymo().succeed(["probe", "-i", "--json", "probed_outer", "--", text(&program), "500", "3", "2"]);
    assert_eq!(probe(&alone.json(), "probed_outer")["hits"], 1500);
}

/// Checks latencies by what must hold of them: how many there are, that a call takes longer than those inside of it, that the slow function takes what
/// it waits at least, that calls which longjmp leaves have none, and that the table has the same counts.
#[test]
fn latencies() {
    let Some(program) = probed("probe::latencies", KERNEL) else { return };
    let found = kymo()
        .succeed(format!("probe --ret --hist -g --json probed_* -- {} 300 2", text(&program)).split(' '))
        .json();
    let number = |name: &str, what: &str| probe(&found, name)["latencies"][what].as_u64().expect("a number");
    for (name, count) in
        [("probed_inner", 600), ("probed_outer", 600), ("probed_deep", 11), ("probed_slow", 3)]
    {
        assert_eq!((number(name, "count"), number(name, "missed")), (count, 0), "{name}");
        let buckets = probe(&found, name)["latencies"]["buckets"].as_array().expect("a list");
        assert_eq!(buckets.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum::<u64>(), count);
        let order = ["p50_ns", "p99_ns", "max_ns"].map(|what| number(name, what));
        assert!(order.is_sorted(), "{name}: {order:?}");
    }
    assert!(number("probed_outer", "total_ns") > number("probed_inner", "total_ns"));
    assert!(number("probed_slow", "p50_ns") >= 2_000_000);
    let jumped = probe(&found, "probed_jumped");
    assert_eq!((&jumped["hits"], &jumped["latencies"]["count"]), (&2.into(), &0.into()));
    let callers = probe(&found, "probed_inner")["callers"].as_array().expect("a list");
    assert_eq!(callers[0]["hits"], 600, "{callers:?}");
    assert!(callers[0]["name"].as_str().unwrap().starts_with("probed_outer+"), "{callers:?}");
    let table = kymo().succeed(["probe", "--hist", "probed_inner", "--", text(&program), "300", "2"]).stdout;
    assert!(
        table.lines().any(|line| line.trim().starts_with("600 ") && line.ends_with("probed:probed_inner")),
        "{table}"
    );
    assert!(table.contains("probed:probed_inner (600 calls)") && table.contains('█'), "{table}");
}

/// Checks conditions on arguments and on what a function returns, and counts of only some hits.
#[test]
fn only_some_hits() {
    let Some(program) = probed("probe::only_some_hits", KERNEL) else { return };
    let hits = |arguments: &[&str], name: &str| {
        let all = ["probe", "--json"].iter().chain(arguments).copied().chain(["--", text(&program), "100"]);
        probe(&kymo().succeed(all).json(), name).clone()
    };
    assert_eq!(hits(&["--if", "arg1 >= 90", "probed_outer"], "probed_outer")["hits"], 10);
    assert_eq!(hits(&["--if", "arg1 < 10 || $rdi == 50", "probed_outer"], "probed_outer")["hits"], 11);
    assert_eq!(hits(&["--if", "arg1:s32 < 10 && arg1:u8 != 3", "probed_outer"], "probed_outer")["hits"], 9);
    let returned = hits(&["--if", "ret:s32 > 5", "probed_deep"], "probed_deep");
    assert_eq!((&returned["hits"], &returned["latencies"]["count"]), (&11.into(), &6.into()));
    let line = std::fs::read_to_string(crate::programs::sources().join("probed.c")).unwrap();
    let line = line.lines().position(|line| line.contains("return x + sink;")).unwrap() + 1;
    let at = format!("probed.c:{line}");
    assert_eq!(hits(&[&at], &at)["hits"], 100);
    // The second instruction: an offset that is none is refused.
    let second = (1..16)
        .map(|at| format!("probed_outer+{at:#x}"))
        .find(|at| kymo().run(["probe", "--dry-run", at, "--", text(&program)]).code == Some(0))
        .expect("a second instruction");
    let inner = hits(&[&second], &second);
    assert_eq!((&inner["hits"], &inner["kind"]), (&100.into(), &"instruction".into()));
}

/// Checks a process that runs already: hits from then on, and the end with the process.
#[test]
fn running_process() {
    let Some(program) = probed("probe::running_process", KERNEL) else { return };
    let mut target = waiting(&program, &["200", "2"]);
    let pid = target.pid();
    let mut probing = kymo().start(
        format!("probe --engine kernel --ret --json -p {pid} probed_outer libc.so.6:getchar").split(' '),
    );
    let mut words = BufReader::new(probing.stderr.take().expect("its words"));
    let mut line = String::new();
    words.read_line(&mut line).expect("a line");
    assert!(line.contains(&format!("2 probes in process {pid}, by the kernel engine")), "{line}");
    target.tell("x");
    assert_eq!(target.end().1, Some(0));
    let output = probing.wait_with_output().expect("kymo's end");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(probe(&found, "probed_outer")["hits"], 400);
    assert_eq!(probe(&found, "probed_outer")["latencies"]["count"], 400);
}

/// Checks that the engine inside the program counts what the program counts, in threads, that what it cannot serve is served by the kernel beside it, and
/// that the program goes on when it has left; a marker's semaphore is raised meanwhile.
#[test]
fn inside_the_program() {
    let needs = [KERNEL, &[Need::X86]].concat();
    let Some(built) = probed("probe::inside_the_program", &needs) else { return };
    // A file of its own: the kernel's probes of tests beside this one are in every process of theirs.
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().canonicalize().expect("a path").join("probed");
    std::fs::copy(&built, &program).expect("a copy");
    let mut target = waiting(&program, &["20000", "2"]);
    let mut probing =
        kymo().start(["probe", "--ret", "--json", "-p", &target.pid(), "probed_*", "usdt:shop:sold"]);
    let mut words = BufReader::new(probing.stderr.take().expect("its words")).lines();
    let said: Vec<String> = words
        .by_ref()
        .map(|line| line.expect("text"))
        .take_while(|line| !line.contains("patched while"))
        .collect();
    assert!(
        said.iter().any(|line| line.contains("6 probes in process") && line.contains("by the inproc engine")),
        "{said:?}"
    );
    target.tell("x");
    let line = target.line();
    // All calls are over and the program waits: now the counts are final.
    signal(&probing, Signal::INT);
    let output = probing.wait_with_output().expect("kymo's end");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for (name, engine, word) in [
        ("probed_outer", "inproc", "outer"),
        ("probed_inner", "inproc", "inner"),
        ("shop:sold", "inproc", "marked"),
    ] {
        let probe = probe(&found, name);
        assert_eq!(
            (&probe["hits"], &probe["engine"]),
            (&counted(&line, word).into(), &engine.into()),
            "{line}"
        );
    }
    // Each call that ended was timed, those that longjmp has left were not; the order of times is that of what is done.
    let timed = |name: &str, what: &str| probe(&found, name)["latencies"][what].as_u64();
    assert_eq!(timed("probed_outer", "count"), Some(40_000));
    assert_eq!((timed("probed_deep", "count"), timed("probed_jumped", "count")), (Some(11), Some(0)));
    assert!(timed("probed_slow", "p50_ns").is_some_and(|ns| ns >= 1_900_000), "{found}");
    assert!(timed("probed_outer", "total_ns") > timed("probed_inner", "total_ns"));
    assert_eq!(target.end().1, Some(0));
}

/// Checks that `kymo stat -e probe:` counts what the program counts, in threads and children, and what perf counts of perf's own probe at the same place; and
/// that no tracepoint is left.
#[test]
fn events_to_count() {
    let Some(program) = probed("probe::events_to_count", &[Need::Root, Need::Tracepoints]) else { return };
    let events = "probe:probed_outer,probe:usdt:shop:sold,{probe:probed_inner,probe:probed_d*}";
    let said = kymo().succeed(["stat", "-j", "-e", events, "--", text(&program), "200", "2", "1"]);
    let counts: Vec<Value> = said
        .stderr
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let count = |name: &str| {
        let event = counts
            .iter()
            .find(|event| event["event"] == name)
            .unwrap_or_else(|| panic!("{name}: {}", said.stderr));
        event["counter-value"].as_str().and_then(|value| value.parse::<f64>().ok())
    };
    assert_eq!(count("probe:probed:probed_outer"), Some(counted(&said.stdout, "outer") as f64));
    assert_eq!(count("probe:usdt:probed:shop:sold"), Some(counted(&said.stdout, "marked") as f64));
    assert_eq!(count("probe:probed:probed_inner"), Some(800.0));
    assert_eq!(count("probe:probed:probed_deep"), Some(11.0));
    let list = || std::fs::read_to_string("/sys/kernel/tracing/uprobe_events").unwrap_or_default();
    let wrong = kymo().run(["stat", "-e", "probe:probed_iner", "--", text(&program)]);
    wrong.says("did you mean `probed_inner`?");
    // Those of tests beside this one come and go; of this program's there are none of ended ones. Kymos that another test has
    // killed leave theirs to the next one.
    let owners = list()
        .lines()
        .filter(|line| line.contains(text(&program)))
        .filter_map(|line| line.split("kymo_").nth(1)?.split('/').next()?.parse::<u32>().ok())
        .collect::<Vec<_>>();
    let alive = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    assert!(owners.iter().all(alive), "{}", list());
}

/// Checks that a recording of probes has each hit, with what functions returned, for kymo and for perf, by `record -e probe:` and by `probe -o`.
#[test]
fn recordings() {
    const TEST: &str = "probe::recordings";
    let Some(program) = probed(TEST, &[Need::Root, Need::Tracepoints]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (folder.path().join("first.data"), folder.path().join("second.data"));
    let command = [text(&program), "30", "2"];
    let recorded =
        ["record", "-q", "-o", text(&first), "-e", "probe:probed_outer,probe:probed_deep%return", "--"];
    kymo().succeed(recorded.iter().chain(&command));
    let probing = ["probe", "-q", "--ret", "-g", "-o", text(&second), "probed_deep", "usdt:shop:sold", "--"];
    kymo().succeed(probing.iter().chain(&command));
    let lines = |tool: &Tool, file: &Path, name: &str| {
        let said = tool.succeed(["script", "-i", text(file)]).stdout;
        said.lines().filter(|line| line.contains(name)).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut tools = vec![kymo()];
    if ready(TEST, &[Need::Perf]) {
        tools.push(perf());
    }
    for tool in &tools {
        assert_eq!(lines(tool, &first, "probe:probed:probed_outer:").len(), 60, "{}", tool.name);
        let returns = lines(tool, &first, "probe:probed:probed_deep%return:");
        assert_eq!(returns.len(), 11, "{}", tool.name);
        assert!(
            returns[10].ends_with("ret=11") || returns[10].ends_with("ret=0xb"),
            "{}: {}",
            tool.name,
            returns[10]
        );
        assert_eq!(lines(tool, &second, "probe:probed:probed_deep:").len(), 11, "{}", tool.name);
        assert_eq!(lines(tool, &second, "probe:probed:probed_deep%return:").len(), 11, "{}", tool.name);
        assert_eq!(lines(tool, &second, "probe:usdt:probed:shop:sold:").len(), 60, "{}", tool.name);
    }
}

/// Checks that hundreds of functions at once are counted, each by itself.
#[test]
fn many_functions() {
    let Some(program) = probed("probe::many_functions", KERNEL) else { return };
    let found = kymo()
        .succeed(format!("probe -i --json libc.so.6:*str* probed_outer -- {} 50", text(&program)).split(' '))
        .json();
    assert!(found["probes"].as_array().unwrap().len() > 100);
    assert_eq!(probe(&found, "probed_outer")["hits"], 50);
}

/// Checks that each mistake is one sentence that says what to do, and the exit codes.
#[test]
fn mistakes() {
    let Some(program) = probed("probe::mistakes", &[]) else { return };
    let program = text(&program);
    let cases: [(&[&str], i32, &str); 13] = [
        (&["probed_iner", "--", program], 1, "did you mean `probed_inner`?"),
        (&["libc.so.6:strlen", "--", program], 1, "IFUNC"),
        (&["getppid", "--", program], 1, "say 'libc.so.6:getppid'"),
        (&["probed_outer+0x100000", "--", program], 1, "begins at +0x100000"),
        (&["libnone.so:f", "--", program], 1, "no module `libnone.so`"),
        (&["probed.c:1", "--", program], 1, "nearest lines with code"),
        (&["usdt:shop:sole", "--", program], 1, "did you mean `shop:sold`?"),
        (&["probed_inner", "-p", "2147483646"], 1, "there is no process 2147483646"),
        (&["main", "--", "/no/such/program"], 1, "No such file"),
        (&["main", "--", "no-such-program"], 1, "in PATH"),
        (&["main"], 129, "name a command"),
        (&["usdt:x", "--", program], 129, "a marker has a provider and a name"),
        (&["--if", "arg1 >> 4", "probed_inner", "--", program], 129, "is no number"),
    ];
    for (arguments, code, words) in cases {
        let said = kymo().run(["probe"].iter().chain(arguments)).ends(code);
        said.says(words);
        assert_eq!(said.stderr.lines().count(), 1, "{}: {}", said.command, said.stderr);
    }
}
