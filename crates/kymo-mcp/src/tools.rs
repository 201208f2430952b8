//! The tools: their names, their arguments, and the query that each makes of them.
use kymo_data::Recording;
use kymo_profile::query::{self, FunctionKey, Query, QueryError, TreeKind, Verb};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// A tool.
#[derive(Debug)]
pub(crate) struct ToolSpec {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    arguments: &'static [Argument],
}

/// An argument of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Argument {
    File,
    Event,
    Where,
    Limit,
    Group,
    By,
    Function,
    LeastPercent,
    Lanes,
    Tiles,
    Tree,
    Path,
    Levels,
    FromLine,
}

use Argument::{
    By, Event, File, FromLine, Function, Group, Lanes, LeastPercent, Levels, Limit, Path, Tiles, Tree, Where,
};

/// All tools.
pub(crate) const TOOLS: [ToolSpec; 12] = [
    ToolSpec {
        name: "list_recordings",
        description: "The recordings (perf.data files) that can be asked about.",
        arguments: &[FromLine],
    },
    ToolSpec {
        name: "open_recording",
        description: "What a recording is: machine, command, events with samples, and what is wrong with the file. Ask this first.",
        arguments: &[File, FromLine],
    },
    ToolSpec {
        name: "top",
        description: "What took most: functions, modules, threads, processes, CPUs, or states of threads, by itself (self) or with what it called (total).",
        arguments: &[File, Event, Where, Limit, Group, By, FromLine],
    },
    ToolSpec {
        name: "tree",
        description: "The call tree from the outermost callers to what they called.",
        arguments: &[File, Event, Where, LeastPercent, FromLine],
    },
    ToolSpec {
        name: "inverted",
        description: "The call tree from the innermost functions to their callers.",
        arguments: &[File, Event, Where, LeastPercent, FromLine],
    },
    ToolSpec {
        name: "callers",
        description: "Which functions call a function, as a tree.",
        arguments: &[File, Function, Event, Where, LeastPercent, FromLine],
    },
    ToolSpec {
        name: "callees",
        description: "Which functions a function calls, as a tree.",
        arguments: &[File, Function, Event, Where, LeastPercent, FromLine],
    },
    ToolSpec {
        name: "branch",
        description: "A part of a large call tree: what lies below a path of functions. The JSON of the answer has a number for each function; a path is a list of these numbers, from the root of the tree on. Begin with an empty path.",
        arguments: &[File, Tree, Path, Levels, Event, Where, LeastPercent, FromLine],
    },
    ToolSpec {
        name: "timeline",
        description: "How much there was over time, in tiles of equal length, in all or by thread, CPU or state.",
        arguments: &[File, Event, Where, Lanes, Tiles, FromLine],
    },
    ToolSpec {
        name: "waits",
        description: "Where threads waited, for what, how long, and who ended it. For recordings of `kymo record --wall`.",
        arguments: &[File, Where, Limit, FromLine],
    },
    ToolSpec {
        name: "events",
        description: "The events of a recording, with their samples.",
        arguments: &[File, FromLine],
    },
    ToolSpec {
        name: "annotate",
        description: "The instructions and source lines of a function, with what each cost.",
        arguments: &[File, Function, Event, Where, FromLine],
    },
];

impl Argument {
    fn name(self) -> &'static str {
        match self {
            File => "file",
            Event => "event",
            Where => "where",
            Limit => "limit",
            Group => "group",
            By => "by",
            Function => "function",
            LeastPercent => "least_percent",
            Lanes => "lanes",
            Tiles => "tiles",
            Tree => "tree",
            Path => "path",
            Levels => "levels",
            FromLine => "from_line",
        }
    }

    fn schema(self) -> Value {
        match self {
            File => {
                json!({"type": "string", "description": "The recording, as list_recordings names it. Not needed where there is one only."})
            }
            Event => {
                json!({"type": "string", "description": "The event whose samples count; without it the first that has any."})
            }
            Where => {
                json!({"type": "string", "description": "Which samples count: conditions FIELD=VALUE,... or FIELD!=VALUE,... joined by `and`. Fields: time thread process cpu state module function. Examples: thread=worker and time=+1.5..+2.5; module!=libc.so.6; function=\"operator new\". `*` in a name is any characters; values with spaces are in double quotes."})
            }
            Limit => {
                json!({"type": "integer", "minimum": 1, "maximum": 10000, "default": 20, "description": "Rows at most."})
            }
            Group => {
                json!({"type": "string", "enum": ["functions", "modules", "threads", "processes", "cpus", "states"], "default": "functions"})
            }
            By => {
                json!({"type": "string", "enum": ["self", "total"], "default": "self", "description": "What the order is by."})
            }
            Function => json!({"type": "string", "description": "Its name; `*` is any characters."}),
            LeastPercent => {
                json!({"type": "number", "minimum": 0, "maximum": 100, "default": 1, "description": "Nodes with a smaller share are left out."})
            }
            Lanes => {
                json!({"type": "string", "enum": ["all", "thread", "cpu", "state"], "default": "all", "description": "What has a line of its own."})
            }
            Tiles => json!({"type": "integer", "minimum": 1, "maximum": 4096, "default": 60}),
            Tree => {
                json!({"type": "string", "enum": ["calls", "inverted", "callers", "callees"], "default": "calls", "description": "calls: from the outermost callers; inverted: from the innermost functions; callers, callees: around the first function of the path."})
            }
            Path => {
                json!({"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 1024, "default": [], "description": "Numbers of functions, from earlier answers of this tool."})
            }
            Levels => {
                json!({"type": "integer", "minimum": 1, "maximum": 1000, "default": 1, "description": "Levels below the path."})
            }
            FromLine => {
                json!({"type": "integer", "minimum": 1, "default": 1, "description": "The first line of the answer's text, where an earlier answer was cut."})
            }
        }
    }
}

impl ToolSpec {
    pub(crate) fn find(name: &str) -> Option<&'static ToolSpec> {
        TOOLS.iter().find(|tool| tool.name == name)
    }

    /// The schema of its arguments.
    pub(crate) fn schema(&self) -> Map<String, Value> {
        let properties: Map<String, Value> =
            self.arguments.iter().map(|argument| (argument.name().to_owned(), argument.schema())).collect();
        let required: Vec<&str> =
            self.arguments.iter().filter(|a| **a == Function).map(|a| a.name()).collect();
        let schema = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        match schema {
            Value::Object(schema) => schema,
            _ => Map::new(),
        }
    }

    /// Reads the arguments of a call.
    ///
    /// # Errors
    /// A sentence: which argument is wrong, and what there is.
    pub(crate) fn arguments(&self, given: Map<String, Value>) -> Result<Arguments, String> {
        let takes = |name: &str| self.arguments.iter().any(|argument| argument.name() == name);
        if let Some(other) = given.keys().find(|name| !takes(name)) {
            let names: Vec<&str> = self.arguments.iter().map(|argument| argument.name()).collect();
            return Err(format!("{} has no argument '{other}': it has {}", self.name, names.join(", ")));
        }
        let read: Arguments = serde_json::from_value(Value::Object(given))
            .map_err(|error| format!("the arguments of {}: {error}", self.name))?;
        if self.arguments.contains(&Function) && read.function.is_none() {
            return Err(format!("{} needs the name of a `function`", self.name));
        }
        Ok(read)
    }
}

/// The arguments of any tool; each takes some of them.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Arguments {
    pub(crate) file: Option<String>,
    event: Option<String>,
    #[serde(rename = "where")]
    conditions: Option<String>,
    limit: Option<u32>,
    group: Option<String>,
    by: Option<String>,
    function: Option<String>,
    least_percent: Option<f64>,
    lanes: Option<String>,
    tiles: Option<u32>,
    tree: Option<String>,
    path: Option<Vec<u32>>,
    levels: Option<u32>,
    from_line: Option<usize>,
}

/// Longer texts of arguments are refused.
const MOST_ARGUMENT_BYTES: usize = 8 << 10;
/// More rows do not fit into an answer by far.
const MOST_ROWS: u32 = 10_000;

/// A name as a value of the query language.
fn quoted(what: &str, name: &str) -> Result<String, String> {
    match name.contains('"') {
        true => Err(format!("the name of {what} has a double quote: write * in its place")),
        false => Ok(format!("\"{name}\"")),
    }
}

/// A word of a list, or the first of it.
fn word<'a>(what: &str, given: Option<&'a str>, list: &[&'a str]) -> Result<&'a str, String> {
    match given {
        None => Ok(list[0]),
        Some(given) if list.contains(&given) => Ok(given),
        Some(given) => Err(format!("{what} cannot be '{given}': expected one of {}", list.join(", "))),
    }
}

impl Arguments {
    pub(crate) fn first_line(&self) -> usize {
        self.from_line.unwrap_or(1)
    }

    /// The text of the query, as `kymo query` takes it. That of a branch is of its conditions only.
    ///
    /// # Errors
    /// A sentence: which argument is wrong.
    pub(crate) fn query_text(&self, tool: &ToolSpec) -> Result<String, String> {
        let texts = [&self.event, &self.conditions, &self.function];
        if texts.into_iter().flatten().any(|text| text.len() > MOST_ARGUMENT_BYTES) {
            return Err(format!("an argument is longer than {MOST_ARGUMENT_BYTES} bytes"));
        }
        let function = || quoted("the function", self.function.as_deref().unwrap_or_default());
        let limit = self.limit.unwrap_or(20).min(MOST_ROWS);
        let percent = format!("{}%", self.least_percent.unwrap_or(1.0));
        let groups = ["functions", "modules", "threads", "processes", "cpus", "states"];
        let mut text = match tool.name {
            "top" => {
                let group = word("group", self.group.as_deref(), &groups)?;
                let by = word("by", self.by.as_deref(), &["self", "total"])?;
                format!("top {limit} {group} by {by}")
            }
            "tree" | "inverted" => format!("{} {percent}", tool.name),
            "callers" | "callees" => format!("{} of {} {percent}", tool.name, function()?),
            "annotate" => format!("annotate {}", function()?),
            "timeline" => {
                let lanes = word("lanes", self.lanes.as_deref(), &["all", "thread", "cpu", "state"])?;
                let by = if lanes == "all" { String::new() } else { format!(" by {lanes}") };
                format!("timeline {}{by}", self.tiles.unwrap_or(60))
            }
            "waits" => format!("waits {limit}"),
            _ => "events".to_owned(),
        };
        let conditions = self.conditions.as_deref().map(str::trim).filter(|text| !text.is_empty());
        let event = self.event.as_deref().map(|event| Ok(format!("event={}", quoted("the event", event)?)));
        let event: Option<Result<String, String>> = event;
        let all: Vec<String> = conditions.map(str::to_owned).into_iter().chain(event.transpose()?).collect();
        if !all.is_empty() {
            text.push_str(&format!(" where {}", all.join(" and ")));
        }
        Ok(text)
    }

    /// The query that a tool makes of its arguments.
    ///
    /// # Errors
    /// When the conditions are none.
    pub(crate) fn query(&self, tool: &ToolSpec, text: &str, recording: &Recording) -> Result<Query, String> {
        let mut query = query::parse(text, recording).map_err(|error| sentence(&error, text))?;
        if tool.name == "branch" {
            let kinds = ["calls", "inverted", "callers", "callees"];
            let kind = match word("tree", self.tree.as_deref(), &kinds)? {
                "calls" => TreeKind::Calls,
                "inverted" => TreeKind::Inverted,
                "callers" => TreeKind::Callers,
                _ => TreeKind::Callees,
            };
            let path = self.path.iter().flatten().map(|number| FunctionKey::of_number(*number)).collect();
            let levels = self.levels.unwrap_or(1).clamp(1, 1000) as usize;
            let least_percent = self.least_percent.unwrap_or(1.0).clamp(0.0, 100.0);
            query.verb = Verb::Branch { kind, path, levels, least_percent };
        }
        Ok(query)
    }
}

/// An error of a query, with its text where a place in it is meant.
pub(crate) fn sentence(error: &QueryError, text: &str) -> String {
    match error {
        QueryError::Syntax { .. } => format!("{error}. The query: {text}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tool: &str, given: Value) -> Result<String, String> {
        let tool = ToolSpec::find(tool).expect("a tool");
        let Value::Object(given) = given else { panic!("an object") };
        tool.arguments(given)?.query_text(tool)
    }

    /// Checks the query of each tool, and that wrong arguments are said.
    #[test]
    fn queries_of_arguments() {
        let is = |tool, given, expected: &str| assert_eq!(text(tool, given).as_deref(), Ok(expected));
        is("top", json!({}), "top 20 functions by self");
        is(
            "top",
            json!({"limit": 3, "group": "threads", "by": "total", "where": "cpu=1", "event": "a b"}),
            "top 3 threads by total where cpu=1 and event=\"a b\"",
        );
        is("tree", json!({"least_percent": 0.5}), "tree 0.5%");
        is("inverted", json!({}), "inverted 1%");
        is("callers", json!({"function": "operator new"}), "callers of \"operator new\" 1%");
        is("callees", json!({"function": "f", "where": " "}), "callees of \"f\" 1%");
        is("annotate", json!({"function": "f"}), "annotate \"f\"");
        is("timeline", json!({"lanes": "cpu", "tiles": 4}), "timeline 4 by cpu");
        is("waits", json!({"where": "state=lock"}), "waits 20 where state=lock");
        is("events", json!({}), "events");
        is("branch", json!({"path": [1, 2], "where": "cpu=0"}), "events where cpu=0");
        let says = |tool, given: Value, words: &str| {
            let why = text(tool, given).expect_err(words);
            assert!(why.contains(words), "{why}");
        };
        says("top", json!({"lanes": "cpu"}), "top has no argument 'lanes': it has file, event");
        says("top", json!({"limit": "many"}), "invalid type: string \"many\", expected u32");
        says("top", json!({"group": "cats"}), "group cannot be 'cats': expected one of functions, modules");
        says("callers", json!({}), "callers needs the name of a `function`");
        says("callers", json!({"function": "a\"b"}), "write * in its place");
        says("annotate", json!({"function": "a".repeat(10_000)}), "longer than 8192 bytes");
    }

    /// Checks that the schema of each tool has all of its arguments, and no others.
    #[test]
    fn schemas() {
        for tool in &TOOLS {
            let schema = tool.schema();
            assert_eq!(schema["properties"].as_object().map(Map::len), Some(tool.arguments.len()));
            assert_eq!(schema["additionalProperties"], false);
            assert!(tool.arguments.iter().all(|argument| argument.schema().is_object()));
        }
    }
}
