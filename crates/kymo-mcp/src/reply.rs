//! Answers as a client gets them: cut to a size, with a word on how to get the rest.
use kymo_profile::query::{self, QueryAnswer};
use serde_json::Value;
use std::io;

/// Text of one answer; a model reads all of it.
pub(crate) const MOST_TEXT_BYTES: usize = 24 << 10;
/// Larger answers have no JSON beside the text.
const MOST_JSON_BYTES: usize = 24 << 10;

/// An answer for a client.
#[derive(Debug, PartialEq)]
pub(crate) struct ToolReply {
    pub(crate) text: String,
    pub(crate) json: Option<Value>,
}

impl ToolReply {
    /// Text only.
    pub(crate) fn text(text: &str, from_line: usize) -> ToolReply {
        ToolReply { text: part(text, from_line), json: None }
    }

    /// The answer of a query. `asked`: its text, where there is one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn answer(asked: &str, answer: &QueryAnswer, from_line: usize) -> io::Result<ToolReply> {
        let (mut text, mut json) = (Vec::new(), Vec::new());
        query::write_markdown(&mut text, answer)?;
        // Of code there is much more in JSON than its reader can use.
        if !matches!(answer.body, query::Body::Annotate(_)) {
            query::write_json(&mut json, asked, answer)?;
        }
        let json = Some(json).filter(|json| (1..=MOST_JSON_BYTES).contains(&json.len()));
        let json = json.map(|json| serde_json::from_slice(&json)).transpose()?;
        Ok(ToolReply { text: part(&String::from_utf8_lossy(&text), from_line), json })
    }
}

/// The lines from one on, counted from 1, as many as fit; and what is left out.
fn part(text: &str, from_line: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let first = from_line.max(1) - 1;
    let mut shown = String::new();
    let mut next = first;
    for line in lines.iter().skip(first) {
        // At least one line, however long: else there would be no way to the rest.
        let cut = cut(line, MOST_TEXT_BYTES);
        if next > first && shown.len() + cut.len() + 1 > MOST_TEXT_BYTES {
            break;
        }
        shown.push_str(cut);
        shown.push('\n');
        next += 1;
    }
    if first > 0 {
        let note = format!("[from line {} of {} on]\n", first + 1, lines.len());
        shown.insert_str(0, &note);
    }
    if next < lines.len() {
        let rest = lines.len() - next;
        shown.push_str(&format!(
            "\n[cut: {rest} of {} lines are left out. Ask with a smaller limit or a narrower `where`, or for the rest with from_line: {}]\n",
            lines.len(),
            next + 1
        ));
    }
    shown
}

/// The beginning of a line, so many bytes at most.
fn cut(line: &str, most: usize) -> &str {
    let mut end = line.len().min(most);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that an answer that fits is whole, and that the parts of one that does not are all
    /// of its lines, by following what each part says.
    #[test]
    fn parts_are_the_whole() {
        assert_eq!(part("one\ntwo\n", 0), "one\ntwo\n");
        assert_eq!(part("one\ntwo\n", 9), "[from line 9 of 2 on]\n");
        let whole: String = (0..5000).map(|n| format!("line {n} ü\n")).collect();
        let (mut from, mut found, mut parts) = (1, String::new(), 0);
        loop {
            let said = part(&whole, from);
            assert!(said.len() < MOST_TEXT_BYTES + 300);
            parts += 1;
            found.extend(
                said.lines().filter(|line| line.starts_with("line ")).map(|line| format!("{line}\n")),
            );
            let Some(next) = said.split("from_line: ").nth(1) else { break };
            from = next.trim_end().trim_end_matches(']').parse().expect("a number");
        }
        assert_eq!(found, whole);
        assert!(parts > 2, "{parts} parts");
        let long = part(&"ü".repeat(MOST_TEXT_BYTES), 1);
        assert!(long.len() <= MOST_TEXT_BYTES + 1 && long.starts_with('ü'));
    }
}
