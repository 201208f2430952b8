//! A profile for KCachegrind and callgrind_annotate: the costs of functions and calls.
//!
//! For each event there are two costs: samples, and the sum of their periods. Spans of wall time
//! have their time only. CostVector of all threads are added up, and have no lines.
//!
//! Where a function is on a stack twice, KCachegrind would count what both called twice. Inner
//! calls are a function of their own, `name'2`, as valgrind names them with `--separate-recs=2`:
//! so the cost of `name` with what it called is exact.
use super::model::{ExportEvent, FunctionKind, Node};
use super::samples::ExportSamples;
use super::totals::Totals;
use crate::load::Count;
use crate::text::shown;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// The module of the names of commands.
const COMMAND: &str = "[command]";

/// A function, and whether it is a call within itself.
type Callee = (u32, bool);

/// CostVector in the order of the header.
type CostVector = Vec<u64>;

/// What functions and calls cost.
#[derive(Default)]
struct Graph {
    own: BTreeMap<Callee, CostVector>,
    calls: BTreeMap<Callee, BTreeMap<Callee, CostVector>>,
}

/// Writes costs of functions and calls.
///
/// # Errors
/// Those of `out`.
pub fn callgrind(samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
    let graph = Graph::of(samples);
    write_head(samples, out)?;
    let mut names = Names { samples, seen: Default::default() };
    let nothing = BTreeMap::new();
    for (function, own) in &graph.own {
        writeln!(out)?;
        names.write(["ob", "fl", "fn"], *function, out)?;
        write_costs(own, out)?;
        for (callee, costs) in graph.calls.get(function).unwrap_or(&nothing) {
            names.write(["cob", "cfi", "cfn"], *callee, out)?;
            // How often it was called is not known; readers want a number.
            writeln!(out, "calls=1 0")?;
            write_costs(costs, out)?;
        }
    }
    Ok(())
}

fn write_costs(costs: &[u64], out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"0")?;
    costs.iter().try_for_each(|cost| write!(out, " {cost}"))?;
    out.write_all(b"\n")
}

impl Graph {
    fn of(samples: &ExportSamples<'_>) -> Graph {
        let per_event = if samples.is_of_spans() { 1 } else { 2 };
        let width = samples.profile.events.len() * per_event;
        let mut graph = Graph::default();
        for (number, event) in samples.profile.events.iter().enumerate() {
            let sums = Totals::new(event, samples.profile.functions.len()).subtree;
            let callees = callees(event);
            let add = |costs: &mut CostVector, count: &Count| {
                costs.resize(width, 0);
                let counts = [count.samples, count.period];
                for (at, value) in counts.iter().skip(2 - per_event).enumerate() {
                    let cost = &mut costs[number * per_event + at];
                    *cost = cost.saturating_add(*value);
                }
            };
            for ((node, sum), callee) in event.stacks.nodes.iter().zip(&sums).zip(&callees) {
                let own = Count { samples: node.self_samples, period: node.self_period, latency: 0 };
                add(graph.own.entry(*callee).or_default(), &own);
                if let Some(caller) = callees.get(node.parent as usize) {
                    add(graph.calls.entry(*caller).or_default().entry(*callee).or_default(), sum);
                }
            }
        }
        graph
    }
}

/// By node the function, and whether it is on the path twice.
fn callees(event: &ExportEvent) -> Vec<Callee> {
    let nodes = &event.stacks.nodes;
    let is_inner = |at: usize| {
        let (function, mut at) = (nodes[at].function, at);
        // E1, checked: a parent that does not come first ends the path.
        while let Some(Node { function: caller, .. }) = nodes.get(nodes[at].parent as usize)
            && (nodes[at].parent as usize) < at
        {
            if *caller == function {
                return true;
            }
            at = nodes[at].parent as usize;
        }
        false
    };
    (0..nodes.len()).map(|at| (nodes[at].function, is_inner(at))).collect()
}

fn write_head(samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
    let profile = &samples.profile;
    writeln!(out, "# callgrind format\nversion: 1\ncreator: kymo {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "cmd: {}", shown(profile.heading()))?;
    for loss in &profile.loss {
        writeln!(out, "desc: Lost: {} ({})", loss.count, shown(&loss.cause))?;
    }
    let (mut events, mut sums) = (String::new(), String::new());
    let mut add = |name: &str, sum: u64| {
        events.push_str(&format!(" {name}"));
        sums.push_str(&format!(" {sum}"));
    };
    for event in &profile.events {
        // Spaces separate names.
        let name: String =
            shown(&event.name).chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if !samples.is_of_spans() {
            add(&format!("{name}_samples"), event.total_samples);
        }
        add(&name, event.total_period);
    }
    writeln!(out, "positions: line\nevents:{events}\nsummary:{sums}")
}

/// Names that are written once, and are numbers afterwards.
struct Names<'a> {
    samples: &'a ExportSamples<'a>,
    /// By kind of name: modules, files, functions.
    seen: [BTreeMap<String, usize>; 3],
}

impl Names<'_> {
    fn write(&mut self, keys: [&str; 3], (number, is_inner): Callee, out: &mut dyn Write) -> io::Result<()> {
        let function = self.samples.function(number);
        let file = self.samples.locations.file(number).unwrap_or("???");
        let module = match function.kind {
            FunctionKind::Comm => COMMAND,
            _ if function.module.is_empty() => "???",
            _ => &function.module,
        };
        let name = if is_inner { format!("{}'2", function.name) } else { function.name.clone() };
        // Functions of one name in two modules are two: the number is that of the function.
        let identity = format!("{name}\n{number}");
        let texts = [(module, module), (file, file), (&name, &identity)];
        for ((key, (text, identity)), seen) in keys.into_iter().zip(texts).zip(&mut self.seen) {
            match seen.get(identity) {
                Some(id) => writeln!(out, "{key}=({id})")?,
                None => {
                    let id = seen.len() + 1;
                    seen.insert(identity.to_owned(), id);
                    writeln!(out, "{key}=({id}) {}", shown(text))?;
                }
            }
        }
        Ok(())
    }
}
