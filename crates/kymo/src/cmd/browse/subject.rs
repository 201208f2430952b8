//! What a list is of: the question for it, and rows from the answer.
use kymo_profile::query::{
    Body, Branch, Condition, Filter, FilterField, FilterValue, FunctionKey, GroupBy, Top, TreeKind, Verb,
    Weight,
};
use kymo_profile::text::shown;

use super::list;

/// What a row is about, to ask for it alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Item {
    /// A function.
    Function(FunctionKey),
    /// A module, by its name.
    Module(String),
    /// A thread, by its number.
    Thread(i32),
    /// A process, by its number.
    Process(i32),
    /// A CPU, by its number.
    Cpu(String),
}

impl Item {
    /// The function that it is about.
    pub(super) fn function(&self) -> Option<&FunctionKey> {
        match self {
            Item::Function(key) => Some(key),
            _ => None,
        }
    }
}

/// The samples of a row, and the sums of their periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SampleSums {
    /// What it has itself; `None` where that is no question.
    pub(super) own: Option<u64>,
    /// What it has with all that it called.
    pub(super) total: u64,
    pub(super) samples: u64,
}

/// A row of a recording.
pub(super) type Row = list::Row<Item, SampleSums>;
/// Rows of a recording.
pub(super) type RowList = list::List<Item, SampleSums>;

/// What a list is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Functions; below each its callers.
    Functions,
    /// Modules.
    Modules,
    /// Threads.
    Threads,
    /// Processes.
    Processes,
    /// CPUs.
    Cpus,
    /// The call tree, from the outermost callers.
    Calls,
    /// The call tree, from the innermost functions.
    Inverted,
    /// What calls a function.
    Callers(FunctionKey, String),
    /// What a function calls.
    Callees(FunctionKey, String),
}

impl Subject {
    /// The subjects that have a key of their own, from `1` on.
    pub(super) const BY_NUMBER: [Subject; 7] = [
        Subject::Functions,
        Subject::Calls,
        Subject::Inverted,
        Subject::Modules,
        Subject::Threads,
        Subject::Processes,
        Subject::Cpus,
    ];

    /// Its name as a title.
    pub(super) fn title(&self) -> String {
        match self {
            Subject::Functions => "Functions".into(),
            Subject::Modules => "Modules".into(),
            Subject::Threads => "Threads".into(),
            Subject::Processes => "Processes".into(),
            Subject::Cpus => "CPUs".into(),
            Subject::Calls => "Call tree".into(),
            Subject::Inverted => "Inverted call tree".into(),
            Subject::Callers(_, name) => format!("Callers of {name}"),
            Subject::Callees(_, name) => format!("Called by {name}"),
        }
    }

    /// What stands above the names.
    pub(super) fn head(&self) -> &'static str {
        match self {
            Subject::Functions => "Function, below it its callers",
            Subject::Modules => "Module",
            Subject::Threads => "Thread",
            Subject::Processes => "Process",
            Subject::Cpus => "CPU",
            Subject::Calls | Subject::Callees(..) => "Function, below it what it called",
            Subject::Inverted | Subject::Callers(..) => "Function, below it its callers",
        }
    }

    /// Whether it is a tree, not a table.
    pub(super) fn is_tree(&self) -> bool {
        self.group().is_none()
    }

    /// Whether what a row has itself is told: not of trees that go to the callers.
    pub(super) fn has_own(&self) -> bool {
        !matches!(self, Subject::Inverted | Subject::Callers(..))
    }

    /// Whether rows have sums that differ from their own.
    pub(super) fn has_total(&self) -> bool {
        matches!(self, Subject::Functions | Subject::Modules) || self.is_tree()
    }

    fn group(&self) -> Option<GroupBy> {
        match self {
            Subject::Functions => Some(GroupBy::Functions),
            Subject::Modules => Some(GroupBy::Modules),
            Subject::Threads => Some(GroupBy::Threads),
            Subject::Processes => Some(GroupBy::Processes),
            Subject::Cpus => Some(GroupBy::Cpus),
            _ => None,
        }
    }

    /// The tree that its rows open into, and where in it the rows begin.
    fn tree(&self) -> Option<(TreeKind, Vec<FunctionKey>)> {
        match self {
            Subject::Functions => Some((TreeKind::Callers, Vec::new())),
            Subject::Calls => Some((TreeKind::Calls, Vec::new())),
            Subject::Inverted => Some((TreeKind::Inverted, Vec::new())),
            Subject::Callers(key, _) => Some((TreeKind::Callers, vec![key.clone()])),
            Subject::Callees(key, _) => Some((TreeKind::Callees, vec![key.clone()])),
            _ => None,
        }
    }

    /// The question for its rows; of a tree so many levels of them.
    pub(super) fn verb(&self, by: Weight, levels: usize, least_percent: f64) -> Verb {
        match (self.group(), self.tree()) {
            (Some(group), _) => {
                let by = if self.has_total() { by } else { Weight::Own };
                Verb::Top { group, count: usize::MAX, by }
            }
            (None, tree) => {
                let (kind, path) = tree.unwrap_or((TreeKind::Calls, Vec::new()));
                Verb::Branch { kind, path, levels, least_percent }
            }
        }
    }

    /// The question for what is below a row, by the path to the row; `None`: rows do not open.
    pub(super) fn verb_below(&self, path: &[FunctionKey], levels: usize, least_percent: f64) -> Option<Verb> {
        let (kind, mut above) = self.tree()?;
        above.extend_from_slice(path);
        Some(Verb::Branch { kind, path: above, levels, least_percent })
    }

    /// The rows of an answer, and the samples and the sum of periods of all that counts.
    pub(super) fn rows(
        &self,
        body: Body,
        by: Weight,
        least_percent: f64,
        chains: bool,
    ) -> (Vec<Row>, (u64, u64)) {
        match body {
            Body::Top(top) => {
                let whole = (top.samples, top.period);
                (self.rows_of_top(top, by, least_percent, chains), whole)
            }
            Body::Branch(branch) => {
                let whole = (branch.samples, branch.period);
                (rows_of_branch(branch, self.has_own() && self.is_tree()), whole)
            }
            // No other question is asked for a list.
            _ => (Vec::new(), (0, 0)),
        }
    }

    fn rows_of_top(&self, top: Top, by: Weight, least_percent: f64, chains: bool) -> Vec<Row> {
        let least = (top.period as f64 * least_percent / 100.0).ceil() as u64;
        let rows = top.rows.into_iter().filter(|row| row.weight(by) >= least);
        let rows = rows.map(|row| {
            let item = match (self, row.function.clone()) {
                (Subject::Threads, _) => Item::Thread(row.tid.unwrap_or_default()),
                (Subject::Processes, _) => Item::Process(row.pid.unwrap_or_default()),
                (Subject::Cpus, _) => Item::Cpu(row.name.clone()),
                (_, Some(function)) => Item::Function(function),
                (_, None) => Item::Module(row.name.clone()),
            };
            let name = shown(&row.name);
            let name = match &item {
                Item::Thread(number) | Item::Process(number) => format!("{name}  {number}"),
                _ => name.into_owned(),
            };
            Row {
                depth: 0,
                indent: 0,
                has_below: chains && matches!(item, Item::Function(_)),
                item,
                name,
                module: row.module,
                numbers: SampleSums {
                    own: Some(row.self_period),
                    total: row.total_period,
                    samples: row.total_samples,
                },
                is_open: false,
            }
        });
        rows.collect()
    }
}

/// Rows of nodes; a node whose children are there is open.
fn rows_of_branch(branch: Branch, has_own: bool) -> Vec<Row> {
    let deeper: Vec<bool> = branch.nodes.windows(2).map(|pair| pair[1].depth > pair[0].depth).collect();
    let rows = branch.nodes.into_iter().enumerate().map(|(at, node)| Row {
        depth: node.depth,
        indent: 0,
        item: Item::Function(node.function),
        name: shown(&node.name).into_owned(),
        module: Some(node.module),
        numbers: SampleSums {
            own: has_own.then_some(node.self_period),
            total: node.total_period,
            samples: node.total_samples,
        },
        has_below: node.has_below,
        is_open: deeper.get(at).copied().unwrap_or(false),
    });
    rows.collect()
}

/// Only rows of this count, until it is taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Zoom {
    pub(super) item: Item,
    /// The row that it was made of, as it may be written to a terminal.
    name: String,
}

impl Zoom {
    /// A zoom into what a row is about; `None` for functions, which have lists of their own.
    pub(super) fn of(item: &Item, name: &str) -> Option<Zoom> {
        let is_function = matches!(item, Item::Function(_));
        (!is_function).then(|| Zoom { item: item.clone(), name: name.to_owned() })
    }

    fn field(&self) -> (FilterField, String, &'static str) {
        match &self.item {
            Item::Module(name) => (FilterField::Module, name.clone(), "module"),
            Item::Thread(number) => (FilterField::Thread, number.to_string(), "thread"),
            Item::Process(number) => (FilterField::Process, number.to_string(), "process"),
            Item::Cpu(number) => (FilterField::Cpu, number.clone(), "CPU"),
            Item::Function(_) => (FilterField::Function, String::new(), "function"),
        }
    }

    /// What is zoomed into, in words.
    pub(super) fn words(&self) -> String {
        format!("{} {}", self.field().2, self.name)
    }

    /// Whether both are about the same field, so that one takes the place of the other.
    pub(super) fn is_like(&self, other: &Zoom) -> bool {
        self.field().0 == other.field().0
    }

    pub(super) fn condition(&self) -> Condition {
        let (field, text, _) = self.field();
        condition(field, text)
    }
}

/// The question for the code of a function.
pub(super) fn code_of(name: String) -> Verb {
    Verb::Annotate { function: FilterValue { text: name, at: 0 } }
}

/// A condition with one value.
pub(super) fn condition(field: FilterField, text: String) -> Condition {
    Condition { field, negated: false, values: vec![FilterValue { text, at: 0 }], spans: Vec::new() }
}

/// All conditions together.
pub(super) fn filter_of(parts: impl IntoIterator<Item = Condition>) -> Filter {
    Filter { conditions: parts.into_iter().collect() }
}
