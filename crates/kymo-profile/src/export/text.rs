//! Folded stacks and the flame graph that is drawn from them.
use super::model::{ExportEvent, ExportProfile, Function, FunctionKind, NO_PARENT};
use crate::import::MILLIONTHS;
use crate::text::{SEMICOLON_IN_STACK, shown, shown_in_stack};
use inferno::flamegraph;
use inferno::flamegraph::color::{Color, PaletteMap};
use std::io::{self, Write};

/// Writes one line per stack with samples, `comm;outer;...;leaf count`, in the order of the tree.
///
/// Names cannot break the form: a `;` in one is the wide semicolon, U+FF1B, and a number that ends
/// a stack has `\\x20` before it: readers would take it for a count. Control characters and what
/// cannot be seen are written out. Where records are sums of samples, the count is their sum.
///
/// # Errors
/// Those of `out`.
pub fn folded(profile: &ExportProfile, event: &ExportEvent, out: &mut dyn Write) -> io::Result<()> {
    for_each_line(profile, event, false, |stack, count| {
        let escaped = without_count(stack);
        let stack = escaped.as_deref().unwrap_or(stack);
        match event.unit == MILLIONTHS {
            false => writeln!(out, "{stack} {count}"),
            true => {
                let digits = format!("{}.{:06}", count / 1_000_000, count % 1_000_000);
                writeln!(out, "{stack} {}", digits.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    })
}

/// Draws `event` as a flame graph in SVG, the classic form: searchable and zoomable in a browser, no network needed.
///
/// The same profile gives the same bytes: frames are coloured by their names, not by chance.
///
/// # Errors
/// Those of `out`, and "no stacks" where the event has no samples.
pub fn flamegraph(profile: &ExportProfile, event: &ExportEvent, out: &mut dyn Write) -> io::Result<()> {
    let mut lines = Vec::new();
    for_each_line(profile, event, true, |stack, count| {
        lines.push(format!("{stack} {count}"));
        Ok(())
    })?;
    if lines.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("no stacks to draw: the recording has no samples of {}", plain(&event.name)),
        ));
    }
    lines.sort_unstable();
    let mut options = flamegraph::Options::default();
    options.title = plain(profile.heading());
    options.subtitle = Some(subtitle(profile, event));
    options.count_name = if event.is_of_sums { event.unit() } else { "samples" }.to_string();
    options.deterministic = true;
    options.no_sort = true;
    // Orange kernel, aqua inlined, the rest by kind of name.
    options.colors = flamegraph::Palette::Multi(flamegraph::color::MultiPalette::Java);
    options.bgcolors = Some(flamegraph::color::BackgroundColor::Grey);
    let mut states = state_colours(profile);
    if states.iter().next().is_some() {
        options.count_name = event.unit().to_string();
        options.palette_map = Some(&mut states);
    }
    options.font_type = "ui-monospace, Menlo, Consolas, monospace".to_string();
    draw(&mut options, &lines, out)
}

/// Draws folded lines. A picture has no frames to separate: names have their own `;` there.
pub(crate) fn draw(
    options: &mut flamegraph::Options<'_>,
    lines: &[String],
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut picture = Vec::new();
    flamegraph::from_lines(options, lines.iter().map(String::as_str), &mut picture)?;
    out.write_all(String::from_utf8_lossy(&picture).replace(SEMICOLON_IN_STACK, ";").as_bytes())
}

/// Fixed colours for states of threads, and pale ones for the rest: running is green, waiting for a
/// CPU red, waiting orange to violet, idle a light grey, unknown a dark one. Empty where there are no states.
fn state_colours(profile: &ExportProfile) -> PaletteMap {
    let colour = |name: &str| match name {
        "running" => (96, 178, 84),
        "runnable" => (214, 69, 65),
        "throttled" => (160, 30, 60),
        "lock" => (232, 145, 45),
        "condition" => (245, 190, 85),
        "disk" => (70, 110, 190),
        "network" => (90, 150, 220),
        "pipe" => (120, 180, 225),
        "poll" => (150, 200, 230),
        "timer" => (150, 130, 210),
        "page fault" => (40, 80, 150),
        "io_uring" => (60, 140, 170),
        "child" => (180, 150, 220),
        "stopped" => (165, 125, 95),
        "other" => (178, 170, 120),
        "unknown" => (125, 125, 125),
        // Idle.
        _ => (205, 205, 205),
    };
    let mut map = PaletteMap::default();
    if !profile.functions.iter().any(|function| function.kind == FunctionKind::State) {
        return map;
    }
    for function in &profile.functions {
        let (r, g, b) = match function.kind {
            FunctionKind::State => colour(&function.name),
            FunctionKind::Kernel => (222, 218, 208),
            FunctionKind::Comm => (208, 214, 220),
            _ => (232, 232, 236),
        };
        map.insert(frame(function, true), Color { r, g, b });
    }
    map
}

/// The second line of the picture: what was counted, how often, and what is missing.
fn subtitle(profile: &ExportProfile, event: &ExportEvent) -> String {
    let lost = match profile.lost() {
        0 => "0 lost".to_string(),
        lost => format!("{lost} LOST"),
    };
    let is_time = profile.functions.iter().any(|function| function.kind == FunctionKind::State);
    if is_time {
        return format!("{}: {:.2} s of all threads", plain(&event.name), event.total_period as f64 / 1e9);
    }
    if event.is_of_sums {
        return format!("{}: {} {}", plain(&event.name), event.total_period, plain(event.unit()));
    }
    format!("{}: {} samples, {lost}", plain(&event.name), event.total_samples)
}

/// Calls `each` with the joined stack and the count of every node that has samples of its own.
fn for_each_line(
    profile: &ExportProfile,
    event: &ExportEvent,
    annotate: bool,
    mut each: impl FnMut(&str, u64) -> io::Result<()>,
) -> io::Result<()> {
    let names: Vec<String> = profile.functions.iter().map(|f| frame(f, annotate)).collect();
    let nodes = &event.stacks.nodes;
    let mut path = Vec::new();
    let mut line = String::new();
    for (index, node) in nodes.iter().enumerate() {
        let count = if event.is_of_sums { node.self_period } else { node.self_samples };
        if count == 0 {
            continue;
        }
        path.clear();
        let mut at = index;
        loop {
            path.push(nodes[at].function as usize);
            let parent = nodes[at].parent;
            // E1, checked: a parent that does not come first ends the path instead of looping.
            if parent == NO_PARENT || parent as usize >= at {
                break;
            }
            at = parent as usize;
        }
        line.clear();
        for function in path.iter().rev() {
            if !line.is_empty() {
                line.push(';');
            }
            line.push_str(names.get(*function).map_or("[unknown]", String::as_str));
        }
        each(&line, count)?;
    }
    Ok(())
}

/// A frame's name as folded stacks can hold it, with the suffixes for kernel and inlined code if asked.
fn frame(function: &Function, annotate: bool) -> String {
    if !annotate {
        return named(shown_in_stack(&function.name).into_owned());
    }
    let mut name = stack_frame(&function.name);
    match function.kind {
        FunctionKind::Kernel => name.push_str("_[k]"),
        FunctionKind::Inline => name.push_str("_[i]"),
        FunctionKind::User | FunctionKind::Unknown | FunctionKind::Comm | FunctionKind::State => {}
    }
    name
}

/// A name as a frame of a folded stack from which a picture is drawn.
pub(crate) fn stack_frame(name: &str) -> String {
    let name = shown_in_stack(name);
    named(without_count(&name).unwrap_or_else(|| name.into_owned()))
}

/// Text whose last word readers would take for a count, without a space before it.
fn without_count(text: &str) -> Option<String> {
    let (head, tail) = text.rsplit_once(' ')?;
    tail.parse::<f64>().is_ok().then(|| format!("{head}\\x20{tail}"))
}

/// A frame always has a name.
fn named(name: String) -> String {
    if name.trim().is_empty() { "[unknown]".to_string() } else { name }
}

/// Text without control characters, which XML cannot hold even escaped.
fn plain(text: &str) -> String {
    shown(text).into_owned()
}
