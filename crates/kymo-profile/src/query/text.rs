//! Answers as text, JSON and Markdown.
use super::annotate::{self, AnnotationStyle, Annotations};
use super::answer::{Body, QueryAnswer, SCHEMA_VERSION};
use super::{Branch, CallTreeAnswer, HeatMap, Tiles, Top, TopRow, Waits};
use crate::text::{json_pretty, shown};
use crate::wall::time;
use serde::Serialize;
use std::io::{self, Write};

/// The levels of a tile, from nothing to the most of all tiles.
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// What stands in the place of an empty table.
const NOTHING: &str = "nothing is left by these conditions";

/// Writes an answer as JSON; docs/reference/formats/query-json.md describes it.
///
/// # Errors
/// Those of `out`.
pub fn write_json(out: &mut dyn Write, query: &str, answer: &QueryAnswer) -> io::Result<()> {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: &'static str,
        schema_version: u32,
        query: &'a str,
        #[serde(flatten)]
        answer: &'a QueryAnswer,
    }
    let document = Document { schema: "kymo-query", schema_version: SCHEMA_VERSION, query, answer };
    out.write_all(json_pretty(&document)?.as_bytes())?;
    out.write_all(b"\n")
}

/// Writes an answer as a table or a tree.
///
/// # Errors
/// Those of `out`.
pub fn write_text(out: &mut dyn Write, answer: &QueryAnswer) -> io::Result<()> {
    let (title, table) = table_of(answer);
    for line in title {
        writeln!(out, "# {line}")?;
    }
    if let Body::Annotate(found) = &answer.body {
        return write_functions(out, found, &answer.head.event);
    }
    let widths: Vec<usize> = (0..table.head.len())
        .map(|column| {
            let cells = table.rows.iter().map(|row| row[column].chars().count());
            cells.chain([table.head[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let mut line = |row: &[String], head: bool| -> io::Result<()> {
        let mut text = String::from(if head { "# " } else { "  " });
        for ((at, cell), width) in row.iter().enumerate().zip(&widths) {
            match at < table.numbers {
                true => text.push_str(&format!("{cell:>width$}  ")),
                false => text.push_str(&format!("{cell:<width$}  ")),
            }
        }
        writeln!(out, "{}", text.trim_end())
    };
    if table.rows.is_empty() {
        return writeln!(out, "# {NOTHING}");
    }
    line(&table.head, true)?;
    table.rows.iter().try_for_each(|row| line(row, false))?;
    if table.more > 0 {
        writeln!(out, "# and {} more", table.more)?;
    }
    Ok(())
}

/// Writes an answer as Markdown.
///
/// # Errors
/// Those of `out`.
pub fn write_markdown(out: &mut dyn Write, answer: &QueryAnswer) -> io::Result<()> {
    let (title, table) = table_of(answer);
    if let Body::Annotate(found) = &answer.body {
        let mut code = Vec::new();
        write_functions(&mut code, found, &answer.head.event)?;
        return write_code_block(out, &String::from_utf8_lossy(&code));
    }
    writeln!(out, "{}\n", title.iter().map(|line| cell(line)).collect::<Vec<_>>().join("  \n"))?;
    let join =
        |cells: &[String]| format!("| {} |", cells.iter().map(|c| cell(c)).collect::<Vec<_>>().join(" | "));
    writeln!(out, "{}", join(&table.head))?;
    let rule = (0..table.head.len()).map(|at| if at < table.numbers { "---:" } else { "---" });
    writeln!(out, "| {} |", rule.collect::<Vec<_>>().join(" | "))?;
    table.rows.iter().try_for_each(|row| writeln!(out, "{}", join(row)))?;
    if table.more > 0 {
        writeln!(out, "\nand {} more", table.more)?;
    }
    Ok(())
}

/// Functions with their code, as `kymo annotate` shows them.
fn write_functions(out: &mut dyn Write, found: &Annotations, event: &str) -> io::Result<()> {
    let style = AnnotationStyle { source: true, ..AnnotationStyle::default() };
    for function in &found.functions {
        annotate::write_heading(out, function, (event, &function.module), &style)?;
        annotate::write_annotation(out, function, (found.samples, found.period), &style)?;
        function.notes.iter().try_for_each(|note| writeln!(out, "# {}", shown(note)))?;
    }
    if found.more > 0 {
        writeln!(out, "# and {} more functions", found.more)?;
    }
    Ok(())
}

/// Text as a block of code in Markdown, whose fence is longer than any in the text.
fn write_code_block(out: &mut dyn Write, text: &str) -> io::Result<()> {
    let runs = text.split(|char| char != '`').map(str::len);
    let fence = "`".repeat(runs.max().unwrap_or(0).max(2) + 1);
    writeln!(out, "{fence}text\n{}\n{fence}", text.trim_end())
}

/// Text as a cell of Markdown shows it literally. Names come from a recording and are hostile.
pub(crate) fn cell(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    // The spaces that indent a tree would be lost.
    let indent = text.len() - text.trim_start_matches(' ').len();
    safe.push_str(&"&nbsp;".repeat(indent));
    for char in text[indent..].chars() {
        match char {
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '#' | '~' => safe.extend(['\\', char]),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            char => safe.push(char),
        }
    }
    safe
}

/// A table: numbers to the right, then texts.
#[derive(Default)]
struct AnswerTable {
    head: Vec<String>,
    /// So many columns are numbers.
    numbers: usize,
    rows: Vec<Vec<String>>,
    more: usize,
}

fn head<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.2}%", 100.0 * part as f64 / whole.max(1) as f64)
}

/// A sum of periods as answers show it: times with a unit, counts as they are.
pub fn amount(unit: &str, period: u64) -> String {
    if unit == "ns" { time(period) } else { period.to_string() }
}

/// The lines above the table, and the table.
fn table_of(answer: &QueryAnswer) -> (Vec<String>, AnswerTable) {
    let unit = &answer.head.unit;
    let event = shown(&answer.head.event);
    let whole = |period: u64, samples: u64| {
        let kind = match answer.head.event == super::WALL_TIME {
            true => "spans",
            false if answer.head.is_of_sums => "stacks",
            false => "samples",
        };
        vec![match unit == "ns" {
            true => format!("{event}: {} in {samples} {kind}", time(period)),
            false => format!("{event}: {period} {unit} in {samples} {kind}"),
        }]
    };
    match &answer.body {
        Body::Top(top) => (whole(top.period, top.samples), of_top(top, unit)),
        Body::Tree(tree) => (whole(tree.period, tree.samples), of_tree(tree, unit)),
        Body::Annotate(found) => (whole(found.period, found.samples), AnswerTable::default()),
        Body::Branch(branch) => (whole(branch.period, branch.samples), of_branch(branch, unit)),
        Body::Timeline(tiles) => {
            let mut title = whole(tiles.period, tiles.samples);
            title.push(format!(
                "{} tiles of {} from {}.{:09} s on",
                tiles.tiles,
                time(tiles.tile_ns),
                tiles.start_ns / 1_000_000_000,
                tiles.start_ns % 1_000_000_000
            ));
            (title, of_tiles(tiles, unit))
        }
        Body::HeatMap(map) => {
            let mut title = whole(map.period, map.samples);
            title.push(format!(
                "{} columns of {}, each from top to bottom in {} rows of {}",
                map.columns,
                time(map.column_ns),
                map.rows,
                time(map.row_ns)
            ));
            (title, of_heat_map(map))
        }
        Body::Waits(waits) => {
            let states = waits.states.iter().map(|state| {
                format!("{} {} ({})", state.state, time(state.time_ns), percent(state.time_ns, waits.period))
            });
            let all = format!("{event}: {}, of that idle {}", time(waits.period), time(waits.idle_ns));
            let states = states.collect::<Vec<_>>().join(", ");
            (std::iter::once(all).chain(Some(states).filter(|s| !s.is_empty())).collect(), of_waits(waits))
        }
        Body::Events(events) => {
            let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
            let rows = events.iter().map(|event| {
                vec![
                    number(event.samples),
                    number(event.period),
                    event.unit.clone(),
                    shown(&event.name).into_owned(),
                ]
            });
            let head = head(["samples", "period", "unit", "event"]);
            (Vec::new(), AnswerTable { head, numbers: 2, rows: rows.collect(), more: 0 })
        }
    }
}

fn of_top(top: &Top, unit: &str) -> AnswerTable {
    let name = |row: &TopRow| {
        let name = shown(&row.name);
        match (&row.module, row.tid, row.pid) {
            (Some(module), ..) => format!("{name}  ({})", shown(module)),
            (None, Some(tid), _) => format!("{name}  {tid}"),
            (None, None, Some(pid)) => format!("{name}  {pid}"),
            (None, None, None) => name.into_owned(),
        }
    };
    // What calls nothing has nothing besides itself: one column tells all.
    let both = top.rows.iter().any(|row| row.self_period != row.total_period);
    let row = |row: &TopRow| {
        let mut cells = vec![percent(row.self_period, top.period)];
        cells.extend(both.then(|| percent(row.total_period, top.period)));
        cells.extend([amount(unit, row.self_period), name(row)]);
        cells
    };
    let head = if both { head(["self", "total", unit, "what"]) } else { head(["share", unit, "what"]) };
    AnswerTable { numbers: head.len() - 1, head, rows: top.rows.iter().map(row).collect(), more: top.more }
}

fn of_tree(tree: &CallTreeAnswer, unit: &str) -> AnswerTable {
    // Where stacks end is no question to a tree that goes to the callers.
    let own = !tree.inverted;
    let rows = tree.nodes.iter().map(|node| {
        let mut row = vec![percent(node.total_period, tree.period)];
        row.extend(own.then(|| percent(node.self_period, tree.period)));
        row.push(amount(unit, node.total_period));
        let indent = "  ".repeat(node.depth);
        row.push(format!("{indent}{}  ({})", shown(&node.name), shown(&node.module)));
        row
    });
    let head = match own {
        true => head(["total", "self", unit, "function, below it what it called"]),
        false => head(["total", unit, "function, below it its callers"]),
    };
    AnswerTable { numbers: head.len() - 1, head, rows: rows.collect(), more: tree.more }
}

fn of_branch(branch: &Branch, unit: &str) -> AnswerTable {
    let rows = branch.nodes.iter().map(|node| {
        let indent = "  ".repeat(node.depth);
        vec![
            percent(node.total_period, branch.period),
            percent(node.self_period, branch.period),
            amount(unit, node.total_period),
            format!("{indent}{}  ({})", shown(&node.name), shown(&node.module)),
        ]
    });
    let head = head(["total", "self", unit, "function"]);
    AnswerTable { numbers: head.len() - 1, head, rows: rows.collect(), more: branch.more }
}

/// A bar for a value, as high as its part of the most.
fn level(value: u64, most: u64) -> char {
    match value {
        0 => LEVELS[0],
        value => LEVELS[1 + (u128::from(value) * 7 / u128::from(most.max(1))) as usize],
    }
}

fn of_heat_map(map: &HeatMap) -> AnswerTable {
    let most = map.cell_periods.iter().copied().max().unwrap_or(0);
    let rows = (0..map.rows).map(|row| {
        let cells = map.cell_periods.iter().skip(row).step_by(map.rows.max(1));
        let line = cells.map(|value| level(*value, most)).collect::<String>();
        vec![time(map.row_ns * row as u64), format!("|{line}|")]
    });
    AnswerTable { head: head(["at", "columns over time"]), numbers: 1, rows: rows.collect(), more: 0 }
}

fn of_tiles(tiles: &Tiles, unit: &str) -> AnswerTable {
    let most = tiles.lanes.iter().flat_map(|lane| &lane.values).copied().max().unwrap_or(0);
    let rows = tiles.lanes.iter().map(|lane| {
        let level = |value: &u64| level(*value, most);
        let name = shown(&lane.name);
        let name = lane.tid.map_or_else(|| name.to_string(), |tid| format!("{name} {tid}"));
        vec![
            amount(unit, lane.period),
            name,
            format!("|{}|", lane.values.iter().map(level).collect::<String>()),
        ]
    });
    AnswerTable { head: head([unit, "lane", "over time"]), numbers: 1, rows: rows.collect(), more: 0 }
}

fn of_waits(waits: &Waits) -> AnswerTable {
    let rows = waits.rows.iter().map(|row| {
        let functions = match &row.functions[..] {
            [] => "[unknown]".to_owned(),
            functions => shown(&functions.join(" < ")).into_owned(),
        };
        let module = row.module.as_deref().unwrap_or("[unknown]");
        let ended = row.ended_by.as_deref().map_or(String::new(), |name| shown(name).into_owned());
        vec![
            time(row.time_ns),
            percent(row.time_ns, waits.period),
            row.waits.to_string(),
            time(row.longest_ns),
            row.threads.to_string(),
            if row.idle { format!("idle: {}", row.state) } else { row.state.to_owned() },
            format!("{functions}  ({})", shown(module)),
            ended,
        ]
    });
    let head = head(["waited", "share", "waits", "longest", "threads", "for", "where", "ended by"]);
    AnswerTable { head, numbers: 5, rows: rows.collect(), more: waits.more }
}
