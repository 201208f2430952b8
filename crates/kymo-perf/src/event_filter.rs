//! Filters of tracepoints, as far as is needed to say why the kernel refuses one: it answers with a
//! number and keeps no text for events of `perf_event_open`.
//!
//! ```text
//!  filter := term { ("&&" | "||") term }      term := ["!"] ( "(" filter ")" | FIELD OPERATOR VALUE )
//! ```
use crate::selector::SyntaxError;
use crate::suggest::nearest;
use crate::tracefs::{Tracefs, Tracepoint};
use std::ops::Range;

/// Fields that every tracepoint has beside those of its format.
const COMMON: [&str; 5] = ["cpu", "CPU", "comm", "COMM", "stacktrace"];
/// Longer operators before those that they begin with.
const OPERATORS: [&str; 8] = ["==", "!=", "<=", ">=", "<", ">", "&", "~"];
/// The kernel's limit of nested parentheses is far below it.
const MOST_LEVELS: usize = 64;

/// What is wrong with a filter that the kernel has refused, if it is seen.
pub(crate) fn fault(filter: &str, tracepoint: &Tracepoint) -> Option<SyntaxError> {
    let format = Tracefs::here().format(tracepoint).ok()?;
    check(filter, &format!("{}:{}", tracepoint.system, tracepoint.name), &fields(&format)).err()
}

/// The names in the text of a `format` file: `field:char comm[16]; offset:8; size:16; signed:0;`.
fn fields(format: &str) -> Vec<&str> {
    let declared = format.lines().filter_map(|line| line.trim_start().strip_prefix("field:"));
    let names = declared.filter_map(|text| {
        let declaration = text.split(';').next()?;
        let name = declaration.split_whitespace().next_back()?;
        Some(name.split('[').next().unwrap_or(name))
    });
    names.collect()
}

/// Checks the syntax and the names of fields.
fn check(filter: &str, tracepoint: &str, fields: &[&str]) -> Result<(), SyntaxError> {
    let mut parser = FilterParser { filter, at: 0, tracepoint, fields };
    parser.filter(0)?;
    if parser.at < filter.len() {
        return Err(parser.fault(parser.at..filter.len(), "expected && or || here, or the end".into(), None));
    }
    Ok(())
}

struct FilterParser<'a> {
    filter: &'a str,
    at: usize,
    tracepoint: &'a str,
    fields: &'a [&'a str],
}

impl FilterParser<'_> {
    fn fault(&self, span: Range<usize>, message: String, hint: Option<String>) -> SyntaxError {
        SyntaxError { input: self.filter.to_owned(), span, message, hint }
    }

    /// What is still to be read, without the spaces before it.
    fn rest(&mut self) -> &str {
        let rest = &self.filter[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        &self.filter[self.at..]
    }

    fn takes(&mut self, word: &str) -> bool {
        let found = self.rest().starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn filter(&mut self, level: usize) -> Result<(), SyntaxError> {
        loop {
            self.term(level)?;
            if !self.takes("&&") && !self.takes("||") {
                return Ok(());
            }
        }
    }

    fn term(&mut self, level: usize) -> Result<(), SyntaxError> {
        while self.takes("!") {}
        if !self.takes("(") {
            return self.comparison();
        }
        let open = self.at - 1;
        if level >= MOST_LEVELS {
            return Err(self.fault(open..open + 1, "more parentheses than the kernel takes".into(), None));
        }
        self.filter(level + 1)?;
        if self.takes(")") {
            return Ok(());
        }
        Err(self.fault(open..open + 1, "this parenthesis is not closed".into(), None))
    }

    fn comparison(&mut self) -> Result<(), SyntaxError> {
        let rest = self.rest();
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = rest[..length].to_owned();
        let field = self.at..self.at + length;
        if name.is_empty() {
            return Err(self.fault(field, "expected the name of a field here".into(), None));
        }
        if !self.fields.contains(&name.as_str()) && !COMMON.contains(&name.as_str()) {
            let own: Vec<&str> =
                self.fields.iter().copied().filter(|field| !field.starts_with("common_")).collect();
            let near = nearest(&name, own.iter().copied());
            let hint = near.map_or_else(
                || format!("its fields are {}", own.join(", ")),
                |near| format!("did you mean `{near}`?"),
            );
            return Err(self.fault(field, format!("{} has no field `{name}`", self.tracepoint), Some(hint)));
        }
        self.at += length;
        // `name.ustring` says what the field is.
        if self.takes(".") {
            let rest = self.rest();
            self.at += rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        }
        if !OPERATORS.iter().any(|operator| self.takes(operator)) {
            let hint = Some(format!("operators are {}", OPERATORS.join(" ")));
            return Err(self.fault(self.at..self.at, "expected an operator here".into(), hint));
        }
        self.value()
    }

    fn value(&mut self) -> Result<(), SyntaxError> {
        self.rest();
        let begin = self.at;
        let rest = &self.filter[begin..];
        if let Some(quote) = rest.chars().next().filter(|c| matches!(c, '"' | '\'')) {
            let Some(end) = self.filter[begin + 1..].find(quote) else {
                return Err(self.fault(begin..begin + 1, "this quotation mark is not closed".into(), None));
            };
            self.at = begin + 1 + end + 1;
            return Ok(());
        }
        let length = rest.find(|c: char| c.is_whitespace() || "&|)".contains(c)).unwrap_or(rest.len());
        if length == 0 {
            return Err(self.fault(begin..begin, "expected a number or a text here".into(), None));
        }
        self.at += length;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{check, fields};

    const FORMAT: &str = "name: sched_switch\nID: 316\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\nprint fmt: \"x\"\n";

    /// Checks filters that the kernel takes.
    #[test]
    fn good_ones() {
        let fields = fields(FORMAT);
        assert_eq!(fields, ["common_type", "prev_comm", "prev_pid"]);
        let good = [
            "prev_pid == 1",
            "prev_pid>0&&(prev_comm ~ \"a b*\" || !(prev_pid & 1))",
            "(prev_pid != 5) && (common_type == 316)",
            "prev_comm == bash",
            "prev_comm.ustring == 'x'",
            "cpu == 0 && comm != \"\"",
        ];
        for filter in good {
            assert_eq!(check(filter, "sched:sched_switch", &fields), Ok(()), "{filter}");
        }
    }

    /// Checks what is said of wrong ones, and where.
    #[test]
    fn bad_ones() {
        let fields = fields(FORMAT);
        let bad = [
            ("prev_pid == 1 && prev_pit == 2", 17, "sched:sched_switch has no field `prev_pit`"),
            ("prev_pid = 1", 9, "expected an operator here"),
            ("(prev_pid == 1", 0, "this parenthesis is not closed"),
            ("prev_pid == 1 prev_pid == 2", 14, "expected && or || here, or the end"),
            ("prev_comm == \"a", 13, "this quotation mark is not closed"),
            ("prev_pid ==", 11, "expected a number or a text here"),
            ("", 0, "expected the name of a field here"),
            ("prev_pid == 1 &&", 16, "expected the name of a field here"),
        ];
        for (filter, at, message) in bad {
            let error = check(filter, "sched:sched_switch", &fields).unwrap_err();
            assert_eq!((error.span.start, error.message.as_str()), (at, message), "{filter}");
        }
    }
}
