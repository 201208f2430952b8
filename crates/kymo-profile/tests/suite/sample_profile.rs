//! Profiles to export: a small one with everything in it, hostile names included, and large ones made by rule.
use kymo_profile::export::{
    ExportEvent, ExportProfile, Function, FunctionKind, Interval, IntervalKind, Loss, NO_PARENT, Node,
    StackTree, Thread, Timeline, TimelineEntry,
};

/// What would run if a name were ever taken for markup; the page's title would show it.
pub(crate) const HOSTILE: &str =
    "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">";

fn function(name: &str, module: &str, kind: FunctionKind) -> Function {
    Function { name: name.into(), module: module.into(), file: None, line: None, kind }
}

fn node(parent: u32, function: u32, self_samples: u64, self_period: u64) -> Node {
    Node { parent, function, self_samples, self_period }
}

/// Two commands, recursion, kernel and inlined frames, two events (one of uneven periods), losses.
pub(crate) fn small() -> ExportProfile {
    let mut functions = vec![
        function("app", "", FunctionKind::Comm),
        function("main", "app", FunctionKind::User),
        function("walk", "app", FunctionKind::User),
        function("visit<Node, alloc::vec::Vec<u8>>", "app", FunctionKind::Inline),
        function("do_syscall_64", "[kernel]", FunctionKind::Kernel),
        function(HOSTILE, "libevil.so", FunctionKind::User),
        function("[unknown]", "libc.so.6", FunctionKind::Unknown),
        function("wo;rker\n\u{1}", "", FunctionKind::Comm),
    ];
    functions[1].file = Some("src/main.rs".into());
    functions[1].line = Some(12);
    let threads = vec![
        Thread { pid: 100, tid: 100, comm: "app".into(), samples: 24, earlier_processes: 0 },
        Thread { pid: 100, tid: 101, comm: "wo;rker\n\u{1}".into(), samples: 6, earlier_processes: 0 },
        Thread { pid: 200, tid: 200, comm: "app".into(), samples: 5, earlier_processes: 0 },
    ];
    // app > main > walk > walk > visit, and so on: recursion counts once in totals.
    let clock = vec![
        node(NO_PARENT, 0, 0, 0),
        node(0, 1, 2, 2_000),
        node(1, 2, 3, 3_000),
        node(2, 2, 5, 5_000),
        node(3, 3, 7, 7_000),
        node(1, 4, 4, 4_000),
        node(1, 5, 1, 1_000),
        node(NO_PARENT, 7, 0, 0),
        node(7, 6, 6, 6_000),
    ];
    let faults = vec![node(NO_PARENT, 0, 0, 0), node(0, 1, 3, 30), node(1, 4, 4, 11)];
    let entry = |bucket, thread, cpu, node, samples: u32, unit: u64| TimelineEntry {
        bucket,
        thread,
        cpu,
        node,
        samples,
        period: u64::from(samples) * unit,
    };
    let clock_timeline = vec![
        entry(0, 0, 0, 1, 2, 1_000),
        entry(0, 0, 0, 2, 3, 1_000),
        entry(3, 0, 1, 3, 5, 1_000),
        entry(4, 2, 1, 4, 5, 1_000),
        entry(6, 0, 0, 4, 2, 1_000),
        entry(6, 0, 0, 5, 4, 1_000),
        entry(7, 0, 1, 6, 1, 1_000),
        entry(9, 1, 0, 8, 6, 1_000),
    ];
    let fault_timeline =
        vec![entry(1, 0, 0, 1, 3, 10), TimelineEntry { period: 11, ..entry(8, 0, 0, 2, 4, 0) }];
    ExportProfile {
        title: "app --fast".into(),
        command_line: vec!["kymo".into(), "record".into(), "--".into(), "app".into(), "--name=a b".into()],
        host: "box".into(),
        kernel: "6.18.0".into(),
        arch: "x86_64".into(),
        cpu: "Some CPU".into(),
        cpus_online: 2,
        recorder: "kymo 0.1.0".into(),
        source: "perf.data".into(),
        start_unix_ns: Some(1_790_000_000_000_000_000),
        written_unix_ns: Some(1_790_000_001_000_000_000),
        start_ns: 5_000,
        duration_ns: 1_000_000,
        sampling: None,
        functions,
        threads,
        events: vec![
            ExportEvent {
                name: "cpu-clock".into(),
                unit: "ns".into(),
                total_samples: 28,
                total_period: 28_000,
                stacks: StackTree { nodes: clock },
                timeline: Timeline { bucket_ns: 100_000, entries: clock_timeline },
                ..ExportEvent::default()
            },
            ExportEvent {
                name: "page-faults:u".into(),
                unit: "faults".into(),
                total_samples: 7,
                total_period: 41,
                stacks: StackTree { nodes: faults },
                timeline: Timeline { bucket_ns: 100_000, entries: fault_timeline },
                ..ExportEvent::default()
            },
        ],
        loss: vec![
            Loss { cause: "ring buffer full".into(), count: 5 },
            Loss { cause: "<b>odd</b> cause".into(), count: 1 },
        ],
        intervals: vec![Interval { kind: IntervalKind::Loss, start_ns: 205_000, end_ns: 305_000, count: 6 }],
        notes: vec!["1 module has no symbols: libc.so.6".into()],
    }
}

/// Numbers that look random and are the same everywhere.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(2) + 1)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as u32) % limit.max(1)
    }
}

/// A profile of one event with so many nodes and timeline entries; weights add up, the timeline covers every sample.
pub(crate) fn large(nodes: u32, entries: u32, seed: u64) -> ExportProfile {
    let mut dice = Dice::new(seed);
    let functions_of_code = (nodes / 8).max(4);
    let mut profile =
        ExportProfile { title: "large".into(), duration_ns: 10_000_000_000, ..ExportProfile::default() };
    profile.functions.push(function("large", "", FunctionKind::Comm));
    for index in 0..functions_of_code {
        let (module, kind) = match index % 5 {
            0 => ("[kernel]", FunctionKind::Kernel),
            1 => ("libone.so", FunctionKind::User),
            2 => ("libtwo.so", FunctionKind::Inline),
            _ => ("large", FunctionKind::User),
        };
        profile.functions.push(function(&format!("function_{index}"), module, kind));
    }
    for index in 0..200 {
        profile.threads.push(Thread {
            pid: 1,
            tid: 1 + index,
            comm: "large".into(),
            samples: 0,
            earlier_processes: 0,
        });
    }
    let mut tree = vec![node(NO_PARENT, 0, 0, 0)];
    while (tree.len() as u32) < nodes {
        // Half of the nodes go below the newest ones: long stacks as well as wide ones.
        let size = tree.len() as u32;
        let parent = if dice.below(2) == 0 { size - 1 - dice.below(size.min(4)) } else { dice.below(size) };
        tree.push(node(parent, 1 + dice.below(functions_of_code), 0, 0));
    }
    let mut event = ExportEvent { name: "cycles".into(), unit: "cycles".into(), ..ExportEvent::default() };
    event.timeline.bucket_ns = 1_000_000;
    for _ in 0..entries {
        let at = dice.below(nodes);
        let thread = dice.below(200);
        let samples = 1 + dice.below(7);
        let period = u64::from(samples) * 1_000 + u64::from(dice.below(500));
        event.timeline.entries.push(TimelineEntry {
            bucket: dice.below(10_000),
            thread,
            cpu: thread % 8,
            node: at,
            samples,
            period,
        });
        tree[at as usize].self_samples += u64::from(samples);
        tree[at as usize].self_period += period;
        event.total_samples += u64::from(samples);
        event.total_period += period;
        profile.threads[thread as usize].samples += u64::from(samples);
    }
    event.stacks.nodes = tree;
    profile.events.push(event);
    profile
}
