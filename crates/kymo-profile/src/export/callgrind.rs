//! A profile for KCachegrind and callgrind_annotate: the costs of functions and calls.
//!
//! For each event there are two costs: samples, and the sum of their periods. Spans of wall time
//! have their time only. CostVector of all threads are added up, and have no lines.
//!
//! Where a function is on a stack twice, KCachegrind would count what both called twice. Its inner
//! calls are functions of their own, `name'2`, `name'3` and so on, as valgrind names them with
//! `--separate-recs`: so the cost of each with what it called is exact, and none has more than all.
use super::model::FunctionKind;
use super::samples::ExportSamples;
use crate::load::Count;
use crate::text::shown;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

/// The module of the names of commands.
const COMMAND: &str = "[command]";

/// A function, and how many calls of it are around this one.
type Callee = (u32, u32);

/// CostVector in the order of the header.
type CostVector = Vec<u64>;

/// What functions and calls cost, by the line where that was.
#[derive(Default)]
struct Graph {
    own: BTreeMap<Callee, BTreeMap<u32, CostVector>>,
    calls: BTreeMap<Callee, BTreeMap<(Callee, u32), CostVector>>,
}

/// Writes costs of functions and calls.
///
/// # Errors
/// Those of `out`.
pub fn callgrind(samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
    let graph = Graph::of(samples);
    write_head(samples, out)?;
    let mut names = Names { samples, seen: Default::default() };
    let (no_costs, no_calls) = (BTreeMap::new(), BTreeMap::new());
    let functions: BTreeSet<&Callee> = graph.own.keys().chain(graph.calls.keys()).collect();
    for function in functions {
        writeln!(out)?;
        names.write(["ob", "fl", "fn"], *function, out)?;
        for (line, own) in graph.own.get(function).unwrap_or(&no_costs) {
            write_costs(*line, own, out)?;
        }
        for ((callee, line), costs) in graph.calls.get(function).unwrap_or(&no_calls) {
            names.write(["cob", "cfi", "cfn"], *callee, out)?;
            // How often it was called is not known; readers want a number.
            writeln!(out, "calls=1 0")?;
            write_costs(*line, costs, out)?;
        }
    }
    Ok(())
}

fn write_costs(line: u32, costs: &[u64], out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{line}")?;
    costs.iter().try_for_each(|cost| write!(out, " {cost}"))?;
    out.write_all(b"\n")
}

impl Graph {
    fn of(samples: &ExportSamples<'_>) -> Graph {
        let mut counts: BTreeMap<(u32, u32, u32), Count> = BTreeMap::new();
        for row in samples.by_time() {
            let count = Count { samples: row.samples, period: row.period, latency: 0 };
            *counts.entry((row.event, row.node, row.stack)).or_default() += count;
        }
        let (places, width) = samples.value_places();
        let mut graph = Graph::default();
        let mut path = Vec::new();
        for ((event, node, stack), count) in counts {
            let place = places[event as usize];
            let add = |costs: &mut CostVector| {
                costs.resize(width, 0);
                costs[place] = costs[place].saturating_add(count.period);
                if samples.has_counts(event) {
                    costs[place - 1] = costs[place - 1].saturating_add(count.samples);
                }
            };
            path_of(samples, (event, node), stack, &mut path);
            for calls in path.windows(2) {
                let [(caller, line), (callee, _)] = calls else { continue };
                let of_caller = graph.calls.entry(*caller).or_default();
                add(of_caller.entry((*callee, *line)).or_default());
            }
            if let Some((leaf, line)) = path.last() {
                add(graph.own.entry(*leaf).or_default().entry(*line).or_default());
            }
        }
        graph
    }
}

/// The functions of a stack from the name of the command on, with their lines.
fn path_of(
    samples: &ExportSamples<'_>,
    (event, node): (u32, u32),
    stack: u32,
    path: &mut Vec<(Callee, u32)>,
) {
    path.clear();
    path.extend(samples.command(event, node).map(|command| ((command, 0), 0)));
    for location in samples.locations.stack(stack).iter().rev() {
        let location = &samples.locations.list[*location as usize];
        for line in samples.locations.lines(location).iter().rev() {
            let outer = path.iter().filter(|((function, _), _)| *function == line.function).count();
            path.push(((line.function, outer as u32), line.line));
        }
    }
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
    for (event, number) in profile.events.iter().zip(0..) {
        // Spaces separate names.
        let name: String =
            shown(&event.name).chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if samples.has_counts(number) {
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
    fn write(&mut self, keys: [&str; 3], (number, outer): Callee, out: &mut dyn Write) -> io::Result<()> {
        let function = self.samples.function(number);
        let file = self.samples.locations.file(number).unwrap_or("???");
        let module = match function.kind {
            FunctionKind::Comm => COMMAND,
            _ if function.module.is_empty() => "???",
            _ => &function.module,
        };
        let name = match outer {
            0 => function.name.clone(),
            outer => format!("{}'{}", function.name, outer + 1),
        };
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
