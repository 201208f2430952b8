//! The grammar of `-e`, and what it resolves to on made-up machines.

use super::*;
use crate::machine::{Machine, made_up};
use perf_event_open_sys::bindings as b;
use proptest::prelude::*;

/// A server with one kind of core, two memory controllers and three tracepoints.
fn server() -> &'static Machine {
    static SERVER: std::sync::LazyLock<(tempfile::TempDir, Machine)> = std::sync::LazyLock::new(new_server);
    &SERVER.1
}

fn new_server() -> (tempfile::TempDir, Machine) {
    made_up(&[
        ("sys/bus/event_source/devices/cpu/type", "4\n"),
        ("sys/bus/event_source/devices/cpu/format/event", "config:0-7\n"),
        ("sys/bus/event_source/devices/cpu/format/umask", "config:8-15\n"),
        ("sys/bus/event_source/devices/cpu/format/edge", "config:18\n"),
        ("sys/bus/event_source/devices/cpu/format/wide", "config:16-17,32-35\n"),
        ("sys/bus/event_source/devices/cpu/format/ldlat", "config1:0-15\n"),
        ("sys/bus/event_source/devices/cpu/format/all", "config2:0-63\n"),
        ("sys/bus/event_source/devices/cpu/format/far", "config4:0-7\n"),
        ("sys/bus/event_source/devices/cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
        ("sys/bus/event_source/devices/cpu/events/open", "event=0x1,umask=?\n"),
        ("sys/bus/event_source/devices/cpu/events/broken", "event=0x1,nosuch=1\n"),
        ("sys/bus/event_source/devices/cpu/events/garbled", "event==\n"),
        ("sys/bus/event_source/devices/uncore_imc_0/type", "20\n"),
        ("sys/bus/event_source/devices/uncore_imc_0/cpumask", "0,8\n"),
        ("sys/bus/event_source/devices/uncore_imc_0/format/event", "config:0-7\n"),
        ("sys/bus/event_source/devices/uncore_imc_0/events/cas_count_read", "event=0x4\n"),
        ("sys/bus/event_source/devices/uncore_imc_0/events/cas_count_read.scale", "6.103515625e-5\n"),
        ("sys/bus/event_source/devices/uncore_imc_0/events/cas_count_read.unit", "MiB\n"),
        ("sys/bus/event_source/devices/uncore_imc_1/type", "21\n"),
        ("sys/bus/event_source/devices/uncore_imc_1/cpumask", "0,8\n"),
        ("sys/bus/event_source/devices/uncore_imc_1/format/event", "config:0-7\n"),
        ("sys/bus/event_source/devices/uncore_imc_1/events/cas_count_read", "event=0x4\n"),
        ("sys/bus/event_source/devices/software/type", "1\n"),
        ("sys/bus/event_source/devices/uprobe/type", "8\n"),
        ("sys/bus/event_source/devices/notapmu/type", "many\n"),
        ("sys/kernel/tracing/events/sched/sched_switch/id", "372\n"),
        ("sys/kernel/tracing/events/sched/sched_wakeup/id", "370\n"),
        ("sys/kernel/tracing/events/irq/softirq_entry/id", "90\n"),
    ])
}

/// A laptop with two kinds of cores.
fn hybrid() -> (tempfile::TempDir, Machine) {
    made_up(&[
        ("sys/bus/event_source/devices/cpu_core/type", "4\n"),
        ("sys/bus/event_source/devices/cpu_core/cpus", "0-3\n"),
        ("sys/bus/event_source/devices/cpu_core/format/event", "config:0-7\n"),
        ("sys/bus/event_source/devices/cpu_atom/type", "10\n"),
        ("sys/bus/event_source/devices/cpu_atom/cpus", "4-7\n"),
        ("sys/bus/event_source/devices/cpu_atom/format/event", "config:0-7\n"),
    ])
}

fn select(text: &str, machine: &Machine) -> Result<Vec<Selected>, String> {
    let groups = parse(text).map_err(|error| error.to_string())?;
    resolve(&groups, machine).map_err(|error| error.to_string())
}

#[track_caller]
fn one(text: &str) -> Selected {
    let mut all = select(text, server()).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(all.len(), 1, "{text}");
    all.remove(0)
}

#[track_caller]
fn fault(text: &str) -> String {
    select(text, server()).expect_err(text)
}

/// Checks type and config of every class of name, in one table.
#[test]
fn names_to_numbers() {
    let cases: &[(&str, u32, u64)] = &[
        ("cycles", b::PERF_TYPE_HARDWARE, 0),
        ("cpu-cycles", b::PERF_TYPE_HARDWARE, 0),
        ("branch-instructions", b::PERF_TYPE_HARDWARE, 4),
        ("idle-cycles-backend", b::PERF_TYPE_HARDWARE, 8),
        ("ref-cycles", b::PERF_TYPE_HARDWARE, 9),
        ("cpu-clock", b::PERF_TYPE_SOFTWARE, 0),
        ("cs", b::PERF_TYPE_SOFTWARE, 3),
        ("migrations", b::PERF_TYPE_SOFTWARE, 4),
        ("bpf-output", b::PERF_TYPE_SOFTWARE, 10),
        ("cgroup-switches", b::PERF_TYPE_SOFTWARE, 11),
        ("L1-dcache-load-misses", b::PERF_TYPE_HW_CACHE, 0x10000),
        ("LLC-loads", b::PERF_TYPE_HW_CACHE, 2),
        ("r1a8", b::PERF_TYPE_RAW, 0x1a8),
        ("r0x1A8", b::PERF_TYPE_RAW, 0x1a8),
        ("1:0x2", b::PERF_TYPE_SOFTWARE, 2),
        ("cpu/event=0x3c,umask=0x1,edge/", 4, 0x4013c),
        ("cpu/wide=0x3f/", 4, 0xf_0003_0000),
        ("cpu/config=77/", 4, 77),
        ("cpu/mem-loads/", 4, 0x1cd),
        ("mem-loads", 4, 0x1cd),
        ("sched:sched_switch", b::PERF_TYPE_TRACEPOINT, 372),
        ("mem:0x1000", b::PERF_TYPE_BREAKPOINT, 0),
    ];
    for (text, kind, config) in cases {
        let found = one(text);
        assert_eq!((found.attr.kind, found.attr.config), (*kind, *config), "{text}");
        assert!(found.attr.exclude_guest && !found.attr.exclude_kernel, "{text}");
        assert_eq!(found.leader, 0);
    }
    assert_eq!(one("cpu/mem-loads,ldlat=30/").attr.config1, 30);
    assert_eq!(one("cpu/mem-loads/").attr.config1, 3);
    assert_eq!(one("cpu/open,umask=7/").attr.config, 0x701);
    assert_eq!(one("cpu/all=0xffffffffffffffff/").attr.config2, u64::MAX);
    assert_eq!(one("cpu/far=3/").attr.to_raw().size, b::PERF_ATTR_SIZE_VER9);
    assert_eq!(one("cycles").attr.to_raw().size, b::PERF_ATTR_SIZE_VER7);
}

/// Checks breakpoints: default access and length, each access, length, and modifiers behind them.
#[test]
fn breakpoints() {
    let cases = [
        ("mem:0x1000", 0x1000, 4, b::HW_BREAKPOINT_RW),
        ("mem:4096/8:w", 0x1000, 8, b::HW_BREAKPOINT_W),
        ("mem:0x1000:x", 0x1000, 8, b::HW_BREAKPOINT_X),
        ("mem:0x1000/1:wr", 0x1000, 1, b::HW_BREAKPOINT_RW),
        ("mem:0x1000:r:u", 0x1000, 4, b::HW_BREAKPOINT_R),
        ("mem:0x1000:u", 0x1000, 4, b::HW_BREAKPOINT_RW),
        ("mem:0x1000/2/name=x/", 0x1000, 2, b::HW_BREAKPOINT_RW),
    ];
    for (text, addr, len, access) in cases {
        let attr = one(text).attr;
        assert_eq!((attr.bp_addr(), attr.bp_len(), attr.bp_type), (Some(addr), Some(len), access), "{text}");
        assert_eq!(attr.sampling, Sampling::Natural(1));
        assert_eq!(attr.exclude_kernel, text.ends_with(":u"), "{text}");
    }
    assert_eq!(one("cycles").attr.bp_addr(), None);
}

/// Checks the modifiers' effect on every exclusion, alone, combined, and together with a group's.
#[test]
fn modifiers() {
    // user, kernel, hv, idle, host, guest excluded; precise
    let cases: &[(&str, [bool; 6], u8)] = &[
        ("cs", [false, false, false, false, false, true], 0),
        ("cs:u", [false, true, true, false, false, true], 0),
        ("cs:k", [true, false, true, false, false, false], 0),
        ("cs:h", [true, true, false, false, false, false], 0),
        ("cs:uk", [false, false, true, false, false, true], 0),
        ("cs:I", [false, false, false, true, false, false], 0),
        ("cs:G", [false, false, false, false, true, false], 0),
        ("cs:H", [false, false, false, false, false, true], 0),
        ("cs:GH", [false, false, false, false, false, false], 0),
        ("cs:uG", [false, true, true, false, true, false], 0),
        ("cs:Gu", [false, true, true, false, true, false], 0),
        ("cs:pp", [false, false, false, false, false, true], 2),
        ("cs:P", [false, false, false, false, false, false], 3),
        ("{cs:k}:u", [false, false, true, false, false, true], 0),
        ("{cs:p}:pp", [false, false, false, false, false, true], 3),
        ("{cs:G}:u", [false, true, true, false, true, false], 0),
        ("{cs}:S", [false, false, false, false, false, true], 0),
    ];
    for (text, [user, kernel, hv, idle, host, guest], precise) in cases {
        let attr = one(text).attr;
        let got = [
            attr.exclude_user,
            attr.exclude_kernel,
            attr.exclude_hv,
            attr.exclude_idle,
            attr.exclude_host,
            attr.exclude_guest,
        ];
        assert_eq!(got, [*user, *kernel, *hv, *idle, *host, *guest], "{text}");
        assert_eq!(attr.precise_ip, *precise, "{text}");
    }
    assert!(one("cs:W").weak && one("cs:S").group_read && one("cs:P").precise_max);
    assert!(one("cs:H").guest_host_given && !one("cs:u").guest_host_given);
    assert!(one("cs:D").attr.pinned && one("cs:e").attr.exclusive);
}

/// Checks leaders, group flags that only leaders keep, and several lists after one another.
#[test]
fn groups_and_leaders() {
    let machine = server();
    let all = select("cs, {cycles,faults,r1}:DS , mine{sched:*,cs}, cs", machine).unwrap();
    let leaders: Vec<usize> = all.iter().map(|event| event.leader).collect();
    assert_eq!(leaders, [0, 1, 1, 1, 4, 4, 4, 7]);
    let pinned: Vec<bool> = all.iter().map(|event| event.attr.pinned).collect();
    assert_eq!(pinned, [false, true, false, false, false, false, false, false]);
    assert!(all[1..4].iter().all(|event| event.group_read));
    assert_eq!(all[4].name, "sched:sched_switch");
    assert_eq!(parse("mine{cs}").unwrap()[0].name.as_deref(), Some("mine"));
}

/// Checks names: as typed, from the `name` term, and a tracepoint's without its modifiers, as perf
/// does.
#[test]
fn names_as_perf_prints_them() {
    let cases = [
        ("cycles:u", "cycles:u"),
        ("cpu/event=1/u", "cpu/event=1/u"),
        (" cs ", "cs"),
        ("cs/name=007/", "007"),
        ("cs/name='a:b,c=d'/u", "a:b,c=d"),
        ("sched:sched_switch:u", "sched:sched_switch"),
        ("mem:0x10/8:w:u", "mem:0x10/8:w:u"),
        ("{cs}:u", "cs"),
    ];
    for (text, name) in cases {
        assert_eq!(one(text).name, name);
    }
}

/// Checks the terms that concern the recording, and that sampling terms win over an event's natural
/// period.
#[test]
fn recording_terms() {
    assert_eq!(one("cs/period=100/").attr.sampling, Sampling::Period(100));
    assert_eq!(one("cs/freq=99/").attr.sampling, Sampling::Frequency(99));
    assert_eq!(one("sched:sched_switch").attr.sampling, Sampling::Natural(1));
    assert_eq!(one("sched:sched_switch/period=3/").attr.sampling, Sampling::Period(3));
    assert_eq!(one("cs").attr.sampling, Sampling::Unset);
    assert_eq!(one("cs/freq=99/").attr.to_raw().freq(), 1);
    let graph = |text| one(text).overrides.call_graph;
    assert_eq!(graph("cs/call-graph=fp/"), Some(CallGraph::FramePointers));
    assert_eq!(graph("cs/call-graph=no/"), Some(CallGraph::None));
    assert_eq!(graph("cs/call-graph=lbr/"), Some(CallGraph::Lbr));
    assert_eq!(graph("cs/call-graph=dwarf,stack-size=4097/"), Some(CallGraph::Dwarf(Some(4104))));
    assert_eq!(graph("cs/call-graph=dwarf/"), Some(CallGraph::Dwarf(None)));
    let set = one("cs/max-stack=5,no-inherit,time=0,overwrite,branch_type='any,u'/").overrides;
    assert_eq!((set.max_stack, set.inherit, set.overwrite), (Some(5), Some(false), Some(true)));
    assert_eq!(set.branch_type, Some(9));
    assert_eq!(one("cs/inherit=0/").overrides.inherit, Some(false));
}

/// Checks PMUs that exist several times: one event each, on their CPUs, by any of the names that
/// stand for them.
#[test]
fn numbered_pmus() {
    let machine = server();
    for text in [
        "uncore_imc/cas_count_read/",
        "imc/cas_count_read/",
        "uncore_imc_*/cas_count_read/",
        "cas_count_read",
    ] {
        let all = select(text, machine).unwrap();
        let kinds: Vec<u32> = all.iter().map(|event| event.attr.kind).collect();
        assert_eq!(kinds, [20, 21], "{text}");
        assert!(all.iter().all(|event| event.cpus.as_deref() == Some(&[0, 8]) && event.system_wide_only));
        assert_eq!(all[0].unit, Some(Unit { scale: 6.103515625e-5, name: "MiB".into() }));
        assert_eq!(all[1].unit, None);
    }
    assert_eq!(one("uncore_imc_1/event=1/").attr.kind, 21);
    let grouped = select("{imc/event=1/,imc/event=2/}", machine).unwrap();
    let leaders: Vec<usize> = grouped.iter().map(|event| event.leader).collect();
    assert_eq!(leaders, [0, 1, 0, 1]);
}

/// Checks a machine with two kinds of cores: each hardware event once per kind, with the PMU in
/// config's upper half.
#[test]
fn hybrid_cores() {
    let (_dir, machine) = hybrid();
    let all = select("{cycles:u,LLC-loads,cs}", &machine).unwrap();
    let seen: Vec<(&str, u32, u64, usize)> =
        all.iter().map(|e| (e.name.as_str(), e.attr.kind, e.attr.config, e.leader)).collect();
    assert_eq!(
        seen,
        [
            ("cpu_atom/cycles/u", 0, 10 << 32, 0),
            ("cpu_core/cycles/u", 0, 4 << 32, 1),
            ("cpu_atom/LLC-loads/", 3, 10 << 32 | 2, 0),
            ("cpu_core/LLC-loads/", 3, 4 << 32 | 2, 1),
            ("cs", 1, 3, 0),
        ]
    );
    assert_eq!(all[0].cpus.as_deref(), Some(&[4, 5, 6, 7][..]));
    let raw: Vec<u32> = select("r3c", &machine).unwrap().iter().map(|event| event.attr.kind).collect();
    assert_eq!(raw, [10, 4]);
}

/// Checks globs over tracepoints: both parts, order by name, and one that matches nothing.
#[test]
fn tracepoint_globs() {
    let machine = server();
    let names =
        |text| -> Vec<String> { select(text, machine).unwrap().into_iter().map(|e| e.name).collect() };
    assert_eq!(names("sched:*"), ["sched:sched_switch", "sched:sched_wakeup"]);
    assert_eq!(names("*:*_[es]*"), ["irq:softirq_entry", "sched:sched_switch"]);
    assert!(fault("sched:x*").starts_with("this kernel has no tracepoint `sched:x*`"));
}

/// Checks the whole text of errors: the sentence, the caret under the fault, and the way on.
#[test]
fn errors_point_and_help() {
    let cases = [
        ("cs,cylces:u", "unknown event `cylces`\n  cs,cylces:u\n     ^^^^^^\n  did you mean `cycles`?"),
        (
            "cpu/event=0x100/",
            "0x100 does not fit `event` of PMU `cpu`; the largest value is 0xff\n  cpu/event=0x100/\n      ^^^^^^^^^^^",
        ),
        (
            "cpu/umsak=1/",
            "PMU `cpu` has no term or event `umsak`\n  cpu/umsak=1/\n      ^^^^^^^\n  did you mean `umask`?",
        ),
        ("cs:uu", "the modifier `u` is given twice\n  cs:uu\n      ^"),
        ("cs:pppp", "at most three `p` can be given\n  cs:pppp\n        ^"),
        ("{cs,faults", "this group is not closed\n  {cs,faults\n  ^\n  add `}` at its end"),
        ("cs,", "expected an event's name, found the end\n  cs,\n     ^"),
        ("cs}", "this `}` closes no group\n  cs}\n    ^"),
        ("{{cs}}", "a group cannot hold another group\n  {{cs}}\n   ^"),
        (
            "mem:0x1000/9",
            "a watchpoint cannot be 9 bytes long\n  mem:0x1000/9\n             ^\n  use 1, 2, 4 or 8",
        ),
        ("mem:zz", "`zz` is not an address such as 0x601040\n  mem:zz\n      ^^"),
        ("cpu/event=", "expected a value for `event`, found the end\n  cpu/event=\n            ^"),
        ("cpu/event=1", "the terms are not closed\n  cpu/event=1\n     ^\n  add `/` at their end"),
        ("cs/name='x/", "this quote is not closed\n  cs/name='x/\n          ^"),
        (
            "sched:sched_swich",
            "this kernel has no tracepoint `sched:sched_swich`\n  sched:sched_swich\n  ^^^^^^^^^^^^^^^^^\n  did you mean `sched:sched_switch`?",
        ),
        ("cpuu/event=1/", "no PMU is named `cpuu`\n  cpuu/event=1/\n  ^^^^\n  did you mean `cpu`?"),
        (
            "{cs:pp}:pp",
            "4 `p` are given, 2 here and 2 after the group; at most 3 have a meaning\n  {cs:pp}:pp\n   ^^",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(fault(text), expected, "{text}");
    }
}

/// Checks the first words of further refusals.
#[test]
fn refusals() {
    assert_eq!(one("duration_time").tool, Some("duration_time"));
    let cases = [
        ("", "expected an event's name"),
        (",cs", "expected an event's name"),
        ("cs:x", "`x` is not a modifier"),
        ("cs:", "expected a modifier"),
        ("cs:u/period=1/", "terms must come before the modifiers"),
        ("cs:b", "the modifier `b`"),
        ("cs cs", "expected a comma or the end"),
        ("/event=1/", "a PMU's name is missing"),
        ("iTLB-stores", "`iTLB-stores` does not exist"),
        ("mem:0x1000:rwx", "a breakpoint stops either"),
        ("mem:0x1000:ww", "`w` is given twice"),
        ("mem:0x1000:wq", "`q` is not a kind of access"),
        ("mem:", "expected an address"),
        ("99999999999:1", "`99999999999` is not a PMU type number"),
        ("9p:9p_client_req", "this kernel has no tracepoint `9p:9p_client_req`"),
        ("rad:some_event", "this kernel has no tracepoint `rad:some_event`"),
        ("r1a8:x", "`x` is not a modifier"),
        ("read:u/", "terms must come before"),
        ("1:x", "`x` is not an event number"),
        ("cpu/@x=1/", "driver configuration terms"),
        ("cpu/open/", "this event leaves `umask` open"),
        ("cpu/broken/", "the kernel's description of `broken` cannot be used"),
        ("cpu/garbled/", "the kernel's description of `garbled` cannot be used"),
        ("cs/period=0/", "`period=0` is out of range"),
        ("cs/period=x/", "`period` needs a number"),
        ("cs/call-graph=up/", "`up` is not a way to take call graphs"),
        ("cs/branch_type=nosuch/", "`nosuch` is not a branch type"),
        ("cs/event=1/", "`event` is not a term of this kind of event"),
        // Terms of perf that kymo has nothing for: they were taken and ignored.
        ("cs/metric-id=x/", "`metric-id` is for perf's metrics"),
        ("cs/percore/", "`percore` is for perf stat"),
        ("cs/nr=9/", "`nr` is for perf trace"),
        ("cs/aux-output/", "`aux-output` is for processor traces"),
        ("cs/aux-sample-size=4096/", "`aux-sample-size` is for processor traces"),
        ("cpu/event=99999999999999999999/", "`99999999999999999999` is not a number"),
        ("uprobe/config=1/", "`uprobe` events need a path"),
        ("software", "unknown event `software`"),
    ];
    for (text, start) in cases {
        let error = fault(text);
        assert!(error.starts_with(start), "{text}: {error}");
    }
    assert!(fault("software").contains("software/config=1/"));
    assert!(fault("inst_retired.any").contains("vendor names are not built in"));
}

/// Checks that tracefs that is not mounted is told with the command to mount it, and by its kind.
#[test]
fn tracefs_not_mounted() {
    let (_dir, machine) = hybrid();
    let error = resolve(&parse("sched:sched_switch").unwrap(), &machine).unwrap_err();
    assert_eq!(error.kind, ResolveErrorKind::TracefsNotMounted);
    assert!(error.to_string().contains("run `sudo mount -t tracefs none"), "{error}");
}

/// Checks the default: cycles where cores have a PMU, cpu-clock with a sentence where not.
#[test]
fn default_event_follows_the_machine() {
    let machine = server();
    let (event, note) = default_event(machine);
    assert_eq!((event.name.as_str(), event.attr.kind, note), ("cycles", 0, None));
    let empty = tempfile::tempdir().unwrap();
    let (event, note) = default_event(&Machine::at(empty.path()));
    assert_eq!((event.name.as_str(), event.attr.kind, event.attr.config), ("cpu-clock", 1, 0));
    assert!(note.unwrap().contains("instead of cycles"));
}

/// Checks that a long text is shown as a window around its fault, with the caret in it, whatever
/// characters it has.
#[test]
fn long_texts_are_windowed() {
    let text = format!("{}\u{e9}\t,{}", "cs,".repeat(400), "x,".repeat(400) + "cs");
    let error = parse(&text).map(|_| ()).err();
    let shown = error.map_or_else(|| fault(&text), |error| error.to_string());
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[1].chars().count() < 110, "{shown}");
    let column = lines[2].chars().position(|c| c == '^').unwrap();
    assert!(column < lines[1].chars().count(), "{shown}");
    assert_eq!(lines[1].chars().nth(column), Some('\u{e9}'), "{shown}");
}

/// Words that make texts which often get far into the grammar.
fn words() -> impl Strategy<Value = String> {
    let words = "cycles cs mem 0x1000 r1a8 sched sched_* cpu event name period = / : , { } u k pp S ' 1 8 rw ? \
                 [a-z] @ - uncore_imc L1-dcache-load-misses mem-loads \u{1F600} \u{0}";
    let words: Vec<&str> = words.split(' ').chain([" "]).collect();
    let word = prop_oneof![prop::sample::select(words).prop_map(str::to_owned), "[ -~]{1,3}"];
    prop::collection::vec(word, 0..14).prop_map(|words| words.concat())
}

proptest! {
    /// Checks that no text panics, that an error's place lies in the text, and that its picture can
    /// be drawn.
    #[test]
    fn any_text_is_answered(text in prop_oneof![words(), any::<String>()]) {
        let machine = server();
        match parse(&text) {
            Ok(groups) => {
                if let Err(error) = resolve(&groups, machine) {
                    prop_assert!(text.get(error.span.clone()).is_some(), "{error:?}");
                    prop_assert!(error.to_string().contains('^'));
                }
            }
            Err(error) => {
                prop_assert!(text.get(error.span.clone()).is_some(), "{error:?}");
                let _ = error.to_string();
            }
        }
    }

    /// Checks that what is printed for a parsed text parses to the same tree, and resolves alike up
    /// to names.
    #[test]
    fn printed_groups_read_back(text in words()) {
        if let Ok(groups) = parse(&text) {
            let printed: Vec<String> = groups.iter().map(ToString::to_string).collect();
            let printed = printed.join(",");
            let again = parse(&printed).map_err(|error| TestCaseError::fail(format!("{text:?} -> {printed:?}: {error}")))?;
            prop_assert_eq!(&groups, &again, "{}", printed);
        }
    }

    /// Checks that each event's span covers its own text and that spans are in order.
    #[test]
    fn spans_cover_events(text in words()) {
        if let Ok(groups) = parse(&text) {
            let mut end = 0;
            for event in groups.iter().flat_map(|group| &group.events) {
                prop_assert!(event.span.start >= end);
                prop_assert_eq!(&text[event.span.clone()], event.text.as_str());
                end = event.span.end;
            }
        }
    }
}
