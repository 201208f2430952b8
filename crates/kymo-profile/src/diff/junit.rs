//! A comparison as JUnit's XML, for services that show test results: a case for each row.
use super::{Comparison, Effect, EffectVerdict};
use crate::text::shown;
use std::io::{self, Write};

/// Writes the comparison as JUnit's XML: a regression is a failure, what is undecided is skipped.
///
/// # Errors
/// Those of `out`.
pub fn write_junit(out: &mut dyn Write, comparison: &Comparison) -> io::Result<()> {
    let ancestors = comparison.moved.iter().filter_map(|moved| moved.ancestor.as_ref());
    let cases: Vec<&Effect> =
        std::iter::once(&comparison.total).chain(ancestors).chain(&comparison.effects).collect();
    let count = |verdict| cases.iter().filter(|case| case.verdict == verdict).count();
    writeln!(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>")?;
    writeln!(
        out,
        "<testsuite name=\"kymo diff\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\">",
        cases.len(),
        count(EffectVerdict::Regression),
        count(EffectVerdict::Undecided)
    )?;
    cases.iter().try_for_each(|case| write_case(out, comparison, case))?;
    writeln!(out, "  <system-out>{}</system-out>", escaped(&comparison.verdict_sentence()))?;
    writeln!(out, "</testsuite>")
}

fn write_case(out: &mut dyn Write, comparison: &Comparison, case: &Effect) -> io::Result<()> {
    let name = if case.name.is_empty() { "the whole" } else { &case.name };
    let (name, module) = (escaped(name), escaped(&case.module));
    write!(out, "  <testcase name=\"{name}\" classname=\"{module}\"")?;
    let cost = |cost| comparison.cost_text(cost);
    let message = format!(
        "{} before, {} now: {:+.1} % of the whole ({:+.1} to {:+.1})",
        cost(case.old),
        cost(case.new),
        100.0 * case.of_total.estimate,
        100.0 * case.of_total.low,
        100.0 * case.of_total.high
    );
    let element = match case.verdict {
        EffectVerdict::Regression => "failure",
        EffectVerdict::Undecided => "skipped",
        _ => return writeln!(out, "/>"),
    };
    writeln!(out, "><{element} message=\"{}: {}\"/></testcase>", case.verdict.words(), escaped(&message))
}

/// Text as XML shows it. Names come from a recording; control characters are in no XML.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in shown(text).chars() {
        match char {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            char => safe.push(char),
        }
    }
    safe
}
