//! Arguments and results by their names: what kymo prints of calls equals what the programs print of them.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::copied::{Program, built};
use crate::tools::{Need, Running, kymo, perf, ready, require, signal};

fn program(test: &str, source: &str, flags: &[&str]) -> Option<Program> {
    let compiler = if source.ends_with(".rs") { "rustc" } else { "cc" };
    let needs = [Need::X86, Need::Program(compiler), Need::Root, Need::Uprobes];
    require(test, &needs).map(|()| Program::of(source, flags))
}

/// What the program says of its calls, and what kymo printed of them.
fn both(stdout: &str) -> (Vec<&str>, Vec<String>) {
    let expected = stdout.lines().filter_map(|line| line.strip_prefix("expect ")).collect();
    let printed = stdout.lines().filter_map(|line| {
        // `    0.001234  comm 1/1  call`
        let (time, rest) = line.trim_start().split_once("  ")?;
        let (who, call) = rest.split_once("  ")?;
        let is_line = time.parse::<f64>().is_ok() && who.contains('/');
        let call = call.rsplit_once("  (").map_or(call, |(call, _)| call);
        is_line.then(|| call.to_owned())
    });
    (expected, printed.collect())
}

/// Checks every kind of value of C, passed in registers and on the stack, records by their fields, pointers that are followed, bits, and results, with and
/// without optimization, against what the functions print themselves.
#[test]
fn values_of_c() {
    for flags in [&[][..], &["-O0"]] {
        let Some(program) = program("probe_args::values_of_c", "called.c", flags) else { return };
        let pointers = "called_pointers(n->value, n->next->label, n->next->next->label, n->mid, n->high, n->real, *d, n->table[2], text)";
        let probes = ["called_plain", "called_records", pointers, "--", program.text()];
        let said = kymo().succeed(["probe", "-q", "--args", "--ret"].iter().chain(&probes)).stdout;
        let (expected, printed) = both(&said);
        let expected: Vec<&str> =
            expected.into_iter().filter(|line| !line.starts_with("called_text")).collect();
        assert_eq!(printed, expected, "{flags:?}: {said}");
        assert!(expected.len() == 8 && said.contains("called:called_plain"), "{said}");
    }
}

/// Checks that texts are bounded and escaped, and that what lies in registers that the kernel does not tell is said.
#[test]
fn texts_and_what_is_not_told() {
    let Some(program) = program("probe_args::texts_and_what_is_not_told", "called.c", &[]) else { return };
    let said = kymo().succeed(["probe", "-q", "called_text(text)", "--", program.text()]).stdout;
    let (expected, printed) = both(&said);
    let expected: Vec<&str> = expected.into_iter().filter(|line| line.starts_with("called_text")).collect();
    assert_eq!(printed, expected);
    assert_eq!(expected.len(), 3);
    let said = kymo().succeed(["probe", "--args", "called_records", "--", program.text()]).stderr;
    assert!(said.contains("`q.b` of called_records is not shown: it is in xmm0"), "{said}");
}

/// Checks C++: fields of `this`, references, strings and views.
#[test]
fn values_of_cxx() {
    for flags in [&[][..], &["-O0"]] {
        let Some(program) = program("probe_args::values_of_cxx", "called_text.cc", flags) else { return };
        let list = "shop::order::add(this->id, this->count, n, name, by_value, view, total, ret)";
        let said = kymo().succeed(["probe", "-q", list, "--", program.text()]).stdout;
        let (expected, printed) = both(&said);
        assert_eq!(printed, expected, "{flags:?}: {said}");
        assert_eq!(expected.len(), 4);
    }
}

/// Checks Rust: texts of two registers and of a reference, enums, truth.
#[test]
fn values_of_rust() {
    for flags in [&[][..], &["-Copt-level=0"]] {
        let Some(program) = program("probe_args::values_of_rust", "called_text_rs.rs", flags) else { return };
        let said =
            kymo().succeed(["probe", "-q", "--args", "--ret", "*::texts", "--", program.text()]).stdout;
        let (expected, printed) = both(&said);
        let printed: Vec<&str> =
            printed.iter().map(|line| line.strip_prefix("called_text_rs::").unwrap_or(line)).collect();
        assert_eq!(printed, expected, "{flags:?}: {said}");
        assert_eq!(expected.len(), 4);
    }
}

/// Checks that it is known of every kind of value of Rust how it is passed: a number behind it is found.
#[test]
fn what_stands_behind_values_of_rust() {
    for flags in [&[][..], &["-Copt-level=0"]] {
        let Some(program) =
            program("probe_args::what_stands_behind_values_of_rust", "called_text_rs.rs", flags)
        else {
            return;
        };
        let said = kymo()
            .succeed(["probe", "-q", "*::kinds::*(n)", "--hits-only", "--", program.text(), "kinds"])
            .stdout;
        let (expected, printed) = both(&said);
        let printed: Vec<&str> =
            printed.iter().map(|line| line.rsplit("::").next().unwrap_or(line)).collect();
        assert_eq!(printed, expected, "{flags:?}: {said}");
        assert_eq!(expected.len(), 22);
    }
}

/// The hits that kymo counts with a condition.
fn hits(program: &Program, condition: &str) -> u64 {
    let words = ["probe", "-q", "--json", "--if", condition, "called_often", "--", program.text(), "600"];
    kymo().succeed(words).json()["probes"][0]["hits"].as_u64().expect("a number")
}

/// Checks that conditions by name let through exactly the calls that they should, and what is said of names that there are not.
#[test]
fn conditions() {
    let Some(program) = program("probe_args::conditions", "called.c", &[]) else { return };
    for (condition, expected) in [
        ("number >= 500", 100),
        ("number < -1", 0),
        ("n->value == -5", 200),
        ("n->value != -5 && number < 300", 200),
        ("text == \"odd\"", 300),
        ("text != \"odd\" && number > 589", 5),
        ("text == \"od\" || text == \"oddly\" || text == \"even\"", 300),
        ("n->label == \"second\" || number == 1", 201),
        ("n->next == null", 200),
        ("n->high == -100 && n->mid == 21", 400),
        ("*text == 'e'", 300),
        ("arg1 == 7 || $rdi == 8", 2),
        ("arg2:string == \"even\" && arg1 < 10", 5),
        ("number == 5 && ret > 0", 1),
    ] {
        assert_eq!(hits(&program, condition), expected, "{condition}");
    }
    let refused = |condition: &str| {
        let said = kymo().run(["probe", "--if", condition, "called_often", "--", program.text()]);
        assert!(said.code.is_some_and(|code| code != 0), "{condition}: {}", said.stdout);
        said.stderr
    };
    let said = refused("size > 4096");
    assert!(said.contains("`size` is no parameter of called_often; they are number, text, n"), "{said}");
    assert!(refused("n->valu == 1").contains("has no field `valu` (value)"));
    assert!(refused("number == \"x\"").contains("which is no text"));
    assert!(refused("n->real > 1").contains("floating-point"));
    assert!(refused("text < \"a\"").contains("with == and != only"));
}

/// Checks the lines of `--json`: one for each call and return, typed values, and the summary behind them.
#[test]
fn lines_of_json() {
    let Some(program) = program("probe_args::lines_of_json", "called.c", &[]) else { return };
    let words = ["probe", "-q", "--json", "--args", "--ret", "called_plain", "--", program.text()];
    let said = kymo().succeed(words).stdout;
    let lines: Vec<Value> = said
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    assert_eq!(lines.len(), 5, "{said}");
    let (last, hits) = lines.split_last().expect("lines");
    assert_eq!((&last["schema"], &last["probes"][0]["hits"]), (&"kymo-probe".into(), &2.into()));
    for hit in hits {
        assert_eq!((&hit["schema"], &hit["schema_version"]), (&"kymo-probe-hit".into(), &1.into()));
        assert_eq!((&hit["probe"], &hit["pid"]), (&"called_plain".into(), &hit["tid"]));
    }
    let first = &hits[0];
    assert_eq!(first["event"], "hit");
    let values = serde_json::json!({
        "a": -1, "b": 200, "c": -1234567890123i64, "d": "text", "e": "GREEN", "f": true, "g": 77, "h": -8
    });
    assert_eq!(first["values"], values);
    assert_eq!((&hits[1]["event"], &hits[1]["values"]["ret"]), (&"return".into(), &0.into()));
    assert!(hits[1]["latency_ns"].as_u64().is_some_and(|ns| ns > 0));
    assert!(hits[1]["time_ns"].as_u64() > first["time_ns"].as_u64());
}

/// Checks that a recording has the values as named fields, for kymo and for perf, by `record -e` and by `probe -o`.
#[test]
fn recorded_fields() {
    let Some(program) = program("probe_args::recorded_fields", "called.c", &[]) else { return };
    let (first, second) = (program.beside("first.data"), program.beside("second.data"));
    let event = "probe:'called_plain(a, d, e, size=c, ret)'";
    kymo().succeed(["record", "-q", "-o", &first, "--no-call-graph", "-e", event, "--", program.text()]);
    let shown = kymo().succeed(["script", "-i", &first]).stdout;
    for expected in [
        "a=-1 d=\"text\" e=7 size=-1234567890123",
        "a=2147483646 d=\"\" e=-2 size=0",
        "ret=0",
        "ret=2147483647",
    ] {
        assert!(shown.lines().any(|line| line.contains(expected)), "{expected} in {shown}");
    }
    kymo().succeed(["probe", "-q", "--args", "--ret", "-o", &second, "called_plain", "--", program.text()]);
    let shown = kymo().succeed(["script", "-i", &second]).stdout;
    assert!(shown.contains("a=-1 b=200 c=-1234567890123 d=\"text\" e=7 f=1 g=77 h=-8"), "{shown}");
    assert!(shown.contains("ret=2147483647"), "{shown}");
    if ready("probe_args::recorded_fields", &[Need::Program("perf")]) {
        let shown = perf().succeed(["script", "-i", &first]).stdout;
        let has = |text: &str| shown.lines().any(|line| line.contains(text));
        assert!(has("a=-1 d=\"text\" e=7 size=-1234567890123") && has("ret=2147483647"), "{shown}");
    }
}

/// Checks that events that the program writes itself have the same fields as the kernel's: numbers, texts, what pointers lead to, results.
#[test]
fn fields_written_by_the_program() {
    let Some(program) = program("probe_args::fields_written_by_the_program", "called.c", &[]) else { return };
    let mut target = Running::start(Command::new(&program.path).arg("-w"));
    assert_eq!(target.line(), "ready\n");
    let (file, pid) = (program.beside("own.data"), target.pid());
    let plain = "probe:'called_plain(a, b, c, d, g, h, ret)'";
    let pointers = "probe:'called_pointers(n->value, n->next->label, n->next->next->label, *d, ret)'";
    let words =
        ["--engine", "shadow", "--no-call-graph", "-o", &file, "-e", plain, "-e", pointers, "-p", &pid];
    let mut recorder =
        kymo().command(["record"].iter().chain(&words)).stderr(Stdio::piped()).spawn().expect("kymo");
    let mut said = BufReader::new(recorder.stderr.take().expect("its words"));
    // It begins when it has said so.
    let mut all = String::new();
    while !all.contains("are written by the program itself") {
        let before = all.len();
        said.read_line(&mut all).expect("a line");
        assert!(all.len() > before, "{all}");
    }
    ["called_plain", "called_pointers"].iter().for_each(|name| wait_for_patch(&pid, &program, name));
    target.tell("x");
    while !target.line().contains("called_text") {
        assert!(target.child.try_wait().expect("a child").is_none(), "the program ended");
    }
    signal(&recorder, Signal::INT);
    recorder.wait().expect("its end");
    target.end();
    let shown = kymo().succeed(["script", "-i", &file]).stdout;
    for expected in [
        "a=-1 b=200 c=-1234567890123 d=\"text\" g=77 h=-8",
        "a=2147483646 b=129 c=0 d=\"\" g=-1 h=32767",
        "ret=2147483647",
        "n_value=12 n_next_label=\"second\" n_next_next_label=\"\"",
        "ret=\"first\"",
    ] {
        assert!(shown.lines().any(|line| line.contains(expected)), "{expected} in {shown}{all}");
    }
}

/// Waits until a function of a process begins otherwise than in the file, and not with a trap.
fn wait_for_patch(pid: &str, program: &Program, name: &str) {
    use std::os::unix::fs::FileExt as _;
    let listed = kymo().succeed(["list", "--probes", program.text(), name, "--json"]).json();
    let at = listed["probes"][0]["offset"].as_u64().expect("an offset");
    let file = std::fs::read(&program.path).expect("the program");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let line =
        maps.lines().find(|line| line.contains("r-x") && line.ends_with(program.text())).expect("its code");
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("a number");
    let mut words = line.split_whitespace();
    let start = hex(words.next().and_then(|range| range.split('-').next()).expect("a range"));
    let address = start + (at - hex(words.nth(1).expect("an offset")));
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let mut now = [0; 12];
    loop {
        memory.read_exact_at(&mut now, address).expect("its code");
        let differs = now.iter().zip(&file[at as usize..]).find(|(now, then)| now != then);
        if differs.is_some_and(|(now, _)| *now != 0xcc) {
            return;
        }
        std::thread::yield_now();
    }
}

/// Checks the sentence about a program without debug information, and that registers are shown then.
#[test]
fn without_debug_information() {
    let Some(program) = program("probe_args::without_debug_information", "called.c", &["-g0"]) else {
        return;
    };
    let said = kymo().run(["probe", "called_plain(a)", "--", program.text()]).stderr;
    assert!(said.contains("was built without debug information") && said.contains("arg1"), "{said}");
    let said = kymo()
        .succeed(["probe", "-q", "called_plain(arg1:s32, arg2:u8, arg4:string)", "--", program.text()])
        .stdout;
    let (_, printed) = both(&said);
    assert_eq!(printed[0], "called_plain(arg1:s32=-1, arg2:u8=200, arg4:string=\"text\")");
    let said = kymo().succeed(["probe", "--args", "called_plain", "--", program.text()]);
    said.prints("called_plain(arg1=0x").says("was built without debug information");
}

/// Checks that the list shows what functions take and return, as text and as JSON, and says where nothing is known.
#[test]
fn list_of_parameters() {
    let Some(program) = program("probe_args::list_of_parameters", "called.c", &[]) else { return };
    let shown = kymo().succeed(["list", "--probes", program.text(), "-v", "called_*"]).stdout;
    let has = |text: &str| shown.lines().any(|line| line.ends_with(text));
    assert!(
        has("called_pointers(n: struct node *, d: const double *, text: const char *) -> const char *"),
        "{shown}"
    );
    assert!(
        has("called_records(p: struct point, q: struct pair, r: struct big, last: int) -> struct point"),
        "{shown}"
    );
    let document =
        kymo().succeed(["list", "--probes", program.text(), "--args", "--json", "called_plain"]).json();
    let probe = &document["probes"][0];
    let places: Vec<&str> = probe["parameters"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["place"].as_str())
        .collect();
    assert_eq!(places, ["rdi", "rsi", "rdx", "rcx", "r8", "r9", "[rsp+8]", "[rsp+16]"]);
    assert_eq!((&probe["returns"], &probe["parameters"][3]["type"]), (&"int".into(), &"const char *".into()));
    let stripped = built("called.c", &["-g0"]);
    let said = kymo().succeed(["list", "--probes", stripped, "-v", "called_plain"]);
    said.says("was built without debug information");
    assert!(said.stdout.ends_with("called_plain\n"), "{}", said.stdout);
}

/// Checks that a marker's arguments are read where its note says, in registers and in memory: those that kymo prints, by number and as texts; what cannot
/// be read and why; conditions; and fields of a recording.
#[test]
fn arguments_of_markers() {
    const TEST: &str = "probe_args::arguments_of_markers";
    for flags in [&[][..], &["-O0"]] {
        let Some(program) = program(TEST, "marked.c", flags) else { return };
        let named = |stdout: &str| -> Vec<String> {
            let lines = stdout.lines().filter_map(|line| line.strip_prefix("named "));
            lines.map(str::to_owned).collect()
        };
        let said = kymo().succeed(["probe", "--args", "usdt:shop:paid", "--", program.text()]);
        let (expected, printed) = both(&said.stdout);
        assert_eq!(expected.len(), 3, "{}", said.stdout);
        let plain = |line: &str| line.replace(" = ", "=");
        let in_hex = |line: &str| -> String {
            // The address of a text is printed as what the note says of it: a number without a sign.
            let (before, rest) = line.split_once("0x").expect("an address");
            let (digits, behind) = rest.split_once(',').expect("more");
            format!("{before}{},{behind}", u64::from_str_radix(digits, 16).expect("an address"))
        };
        let expected: Vec<String> = expected.into_iter().map(|line| in_hex(&plain(line))).collect();
        assert_eq!(printed, expected, "{flags:?}");
        for why in ["it is always 7", "a floating-point number"] {
            said.says(why);
        }
        let event = "usdt:shop:paid(arg2:string, cents=arg3)";
        let said = kymo().succeed(["probe", "-q", event, "--", program.text()]).stdout;
        let expected: Vec<String> = named(&said).iter().map(|line| plain(line)).collect();
        assert_eq!(both(&said).1, expected, "{flags:?}");
        let counted = |condition: &str| {
            let words =
                ["probe", "-q", "--json", "--if", condition, "usdt:shop:paid", "--", program.text(), "20"];
            kymo().succeed(words).json()["probes"][0]["hits"].as_u64().expect("a number")
        };
        assert_eq!(counted("arg1 < -3 && arg4 == 250"), 3, "{flags:?}");
        assert_eq!(counted("arg2:string == \"odd\" && arg3 > 50000000000"), 7, "{flags:?}");
        let recording = program.beside("marked.data");
        let event = "probe:'usdt:shop:paid(arg1, cents=arg3)'";
        kymo().succeed(["record", "-q", "-o", &recording, "-e", event, "--", program.text()]);
        let shown = kymo().succeed(["script", "-i", &recording]).stdout;
        for fields in ["arg1=0 cents=0", "arg1=-1 cents=10000000000", "arg1=-2 cents=20000000000"] {
            assert!(shown.contains(fields), "{fields} in {shown}");
        }
    }
    let Some(program) = program(TEST, "marked.c", &[]) else { return };
    for (condition, why) in [("arg7 > 1", "the arguments arg1 to arg6"), ("arg5 == 7", "always 7")] {
        let said = kymo().run(["probe", "--if", condition, "usdt:shop:paid", "--", program.text()]);
        assert!(said.code != Some(0) && said.stderr.contains(why), "{}", said.stderr);
    }
}

/// Checks that hits which come while a running program is still being attached to have times of their own, not all that of the start.
#[test]
fn times_while_attaching() {
    let test = "probe_args::times_while_attaching";
    let Some(()) = require(test, &[Need::Root, Need::Program("cc")]) else { return };
    let program = Program::of("many.c", &[]);
    let target = Running::start(Command::new(&program.path).args(["threads", "1"]));
    let pid = target.pid();
    let said = kymo().succeed(["probe", "-p", &pid, "--engine", "kernel", "-d", "0.1", "--args", "many_00"]);
    drop(target);
    let times: Vec<&str> = said
        .stdout
        .lines()
        .filter(|line| line.contains("many_00(") && line.contains(&pid))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let at_the_start = times.iter().filter(|time| **time == "0.000000").count();
    assert!(times.len() > 10 && at_the_start <= 1, "{at_the_start} of {}:\n{}", times.len(), said.stdout);
}
