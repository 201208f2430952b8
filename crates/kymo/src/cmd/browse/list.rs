//! Rows on a screen: which are open, which are hidden, and which one is selected.
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A row: what it is about, to ask for it alone, and its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row<I, N> {
    /// So many rows are above it in the tree.
    pub(super) depth: usize,
    /// How far its name is moved to the right: not along a chain of rows that have no others beside
    /// them, so that deep stacks stay on the screen. [`List`] sets it.
    pub(super) indent: usize,
    pub(super) item: I,
    /// Its name, as it may be written to a terminal.
    pub(super) name: String,
    /// The module of a function, as the recording has it.
    pub(super) module: Option<String>,
    pub(super) numbers: N,
    /// Whether it can be opened.
    pub(super) has_below: bool,
    pub(super) is_open: bool,
}

/// Rows in their order, of which some are shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct List<I, N> {
    rows: Vec<Row<I, N>>,
    /// The rows that are not hidden.
    shown: Vec<usize>,
    /// The selected one of those shown.
    cursor: usize,
    /// The first one of those shown that is on the screen.
    top: usize,
    /// Only rows with this in their names are shown, with what is below them.
    part: String,
}

impl<I, N> Default for List<I, N> {
    fn default() -> List<I, N> {
        List { rows: Vec::new(), shown: Vec::new(), cursor: 0, top: 0, part: String::new() }
    }
}

impl<I, N> List<I, N> {
    pub(super) fn new(rows: Vec<Row<I, N>>, part: &str) -> List<I, N> {
        let mut list = List { rows, part: part.to_owned(), ..List::default() };
        list.show();
        list
    }

    fn show(&mut self) {
        self.indent();
        self.shown.clear();
        let mut wanted = true;
        for (at, row) in self.rows.iter().enumerate() {
            if row.depth == 0 {
                wanted = row.name.contains(&self.part);
            }
            if wanted {
                self.shown.push(at);
            }
        }
        self.cursor = self.cursor.min(self.shown.len().saturating_sub(1));
    }

    fn indent(&mut self) {
        // How many rows are directly below each row, and which row is above each.
        let mut below = vec![0_usize; self.rows.len()];
        let mut above: Vec<usize> = Vec::new();
        let parents: Vec<Option<usize>> = (self.rows.iter().enumerate())
            .map(|(at, row)| {
                above.truncate(row.depth);
                let parent = above.last().copied();
                above.push(at);
                parent
            })
            .collect();
        parents.iter().flatten().for_each(|parent| below[*parent] += 1);
        for (at, parent) in parents.iter().enumerate() {
            self.rows[at].indent = parent.map_or(0, |parent| {
                let is_alone = parents[parent].is_some_and(|above| below[above] == 1);
                let is_step = below[parent] > 1 || !is_alone;
                self.rows[parent].indent + usize::from(is_step)
            });
        }
    }

    /// Hides rows without a part of a name.
    pub(super) fn narrow(&mut self, part: &str) {
        let selected = self.selected_at();
        self.part = part.to_owned();
        self.show();
        self.cursor = selected.and_then(|at| self.shown.binary_search(&at).ok()).unwrap_or(0);
    }

    /// How many rows are shown, and how many there are.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.shown.len(), self.rows.len())
    }

    /// Which of the shown rows is selected, from 0 on.
    pub(super) fn cursor(&self) -> usize {
        self.cursor
    }

    /// Which of all rows is selected.
    pub(super) fn selected_at(&self) -> Option<usize> {
        self.shown.get(self.cursor).copied()
    }

    /// The selected row.
    pub(super) fn selected(&self) -> Option<&Row<I, N>> {
        self.selected_at().map(|at| &self.rows[at])
    }

    /// The shown rows, and whether each is selected, of a screen with so many lines.
    pub(super) fn on_screen(&self, height: usize) -> impl Iterator<Item = (&Row<I, N>, bool)> {
        let rows = self.shown.iter().enumerate().skip(self.top).take(height);
        rows.map(|(at, row)| (&self.rows[*row], at == self.cursor))
    }

    /// All shown rows.
    pub(super) fn all(&self) -> impl Iterator<Item = &Row<I, N>> {
        self.shown.iter().map(|row| &self.rows[*row])
    }

    /// Selects the row so many further down, or the first or last one.
    pub(super) fn go(&mut self, by: isize) {
        let last = self.shown.len().saturating_sub(1);
        self.cursor = self.cursor.saturating_add_signed(by).min(last);
    }

    /// Keeps the selected row on a screen with so many lines.
    pub(super) fn scroll(&mut self, height: usize) {
        let height = height.max(1);
        self.top = self.top.clamp((self.cursor + 1).saturating_sub(height), self.cursor);
        // No empty lines at the end where there are rows before the first one.
        self.top = self.top.min(self.shown.len().saturating_sub(height));
    }

    /// Selects the row above the selected one in the tree; false where there is none.
    pub(super) fn go_to_parent(&mut self) -> bool {
        let Some(depth) = self.selected().map(|row| row.depth).filter(|depth| *depth > 0) else {
            return false;
        };
        let above = self.shown[..self.cursor].iter().rposition(|row| self.rows[*row].depth < depth);
        self.cursor = above.unwrap_or(self.cursor);
        above.is_some()
    }

    /// What the rows from the root of the tree to the selected one are about.
    pub(super) fn path(&self) -> Vec<&I> {
        let mut path = Vec::new();
        let mut depth = usize::MAX;
        for row in self.selected_at().into_iter().flat_map(|at| self.rows[..=at].iter().rev()) {
            if row.depth < depth {
                depth = row.depth;
                path.push(&row.item);
            }
            if depth == 0 {
                break;
            }
        }
        path.reverse();
        path
    }

    /// Puts rows below a row, whose depths count from it. The selected row stays selected.
    pub(super) fn open(&mut self, at: usize, below: Vec<Row<I, N>>) {
        if at >= self.rows.len() {
            return;
        }
        let selected = self.selected_at();
        let depth = self.rows[at].depth + 1;
        let row = &mut self.rows[at];
        (row.is_open, row.has_below) = (!below.is_empty(), !below.is_empty());
        let count = below.len();
        let below = below.into_iter().map(|row| Row { depth: row.depth + depth, ..row });
        self.rows.splice(at + 1..at + 1, below);
        self.show();
        let selected = selected.map(|row| if row > at { row + count } else { row });
        self.cursor = selected.and_then(|row| self.shown.binary_search(&row).ok()).unwrap_or(self.cursor);
    }

    /// Takes away what is below the selected row.
    pub(super) fn close(&mut self) {
        let Some(at) = self.selected_at() else { return };
        let depth = self.rows[at].depth;
        let below = self.rows[at + 1..].iter().take_while(|row| row.depth > depth).count();
        self.rows.drain(at + 1..=at + below);
        self.rows[at].is_open = false;
        self.show();
    }

    /// Closes the selected row, or goes to the one above it in the tree.
    pub(super) fn step_out(&mut self) -> StepOut {
        if self.selected().is_some_and(|row| row.is_open) {
            self.close();
            return StepOut::Closed;
        }
        if self.go_to_parent() { StepOut::ToParent } else { StepOut::AtRoot }
    }

    /// Takes away all rows that are below others, and selects what was above the selected one.
    pub(super) fn close_all(&mut self) {
        while self.go_to_parent() {}
        let root = self.shown[..self.cursor].iter().filter(|row| self.rows[**row].depth == 0).count();
        self.rows.retain(|row| row.depth == 0);
        self.rows.iter_mut().for_each(|row| row.is_open = false);
        self.show();
        self.cursor = root.min(self.shown.len().saturating_sub(1));
    }
}

/// What [`List::step_out`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepOut {
    /// The selected row is closed.
    Closed,
    /// The row above is selected.
    ToParent,
    /// Nothing: no row is above the selected one.
    AtRoot,
}

/// Where the user is in a list, to be there in one with newer numbers, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListPlace {
    /// The open rows, by their paths.
    open: HashSet<u64>,
    /// The selected row, by its path; `None`: the first one, which has not been left.
    selected: Option<u64>,
    cursor: usize,
    /// On which line of the screen it is.
    line: usize,
}

impl<I: Hash, N> List<I, N> {
    /// A number for the path of each row, the same for the same path.
    fn path_numbers(rows: &[Row<I, N>]) -> Vec<u64> {
        let mut above: Vec<u64> = Vec::new();
        let number = |row: &Row<I, N>| {
            above.truncate(row.depth);
            let mut hasher = DefaultHasher::new();
            (above.last(), &row.item).hash(&mut hasher);
            above.push(hasher.finish());
            hasher.finish()
        };
        rows.iter().map(number).collect()
    }

    /// The open rows.
    pub(super) fn open_rows(&self) -> impl Iterator<Item = &Row<I, N>> {
        self.rows.iter().filter(|row| row.is_open)
    }

    /// Whether any row is open.
    pub(super) fn has_open(&self) -> bool {
        self.rows.iter().any(|row| row.is_open)
    }

    /// Where the user is.
    pub(super) fn place(&self) -> ListPlace {
        let numbers = List::path_numbers(&self.rows);
        let open = self.rows.iter().zip(&numbers).filter(|(row, _)| row.is_open);
        ListPlace {
            open: open.map(|(_, number)| *number).collect(),
            selected: self.selected_at().filter(|_| self.cursor > 0).map(|at| numbers[at]),
            cursor: self.cursor,
            line: self.cursor.saturating_sub(self.top),
        }
    }

    /// A list of rows with all that may be open below them; open are those that were, and the
    /// selected row is that of before on the same line of the screen, wherever it is now. Where it
    /// is gone, the one in its place is selected.
    pub(super) fn at_place(rows: Vec<Row<I, N>>, part: &str, place: &ListPlace) -> List<I, N> {
        let numbers = List::path_numbers(&rows);
        let mut shown: Vec<(u64, Row<I, N>)> = Vec::new();
        // Rows from this depth on are below one that is closed.
        let mut closed = usize::MAX;
        for (number, mut row) in numbers.into_iter().zip(rows) {
            if row.depth >= closed {
                continue;
            }
            row.is_open &= place.open.contains(&number);
            closed = if row.is_open { usize::MAX } else { row.depth + 1 };
            shown.push((number, row));
        }
        let (numbers, rows): (Vec<u64>, Vec<Row<I, N>>) = shown.into_iter().unzip();
        let mut list = List::new(rows, part);
        let last = list.shown.len().saturating_sub(1);
        let selected = place.selected.and_then(|selected| numbers.iter().position(|it| *it == selected));
        let cursor = selected.and_then(|at| list.shown.binary_search(&at).ok());
        list.cursor = cursor.unwrap_or(place.cursor.min(last));
        list.top = list.cursor.saturating_sub(place.line);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(depth: usize, name: &str) -> Row<String, ()> {
        Row {
            depth,
            indent: 0,
            item: name.into(),
            name: name.into(),
            module: None,
            numbers: (),
            has_below: true,
            is_open: false,
        }
    }

    fn names(list: &List<String, ()>) -> Vec<String> {
        list.all().map(|row| format!("{}{}", " ".repeat(row.depth), row.name)).collect()
    }

    /// Checks that rows open below the selected one and close with all that is below them.
    #[test]
    fn open_and_close() {
        let mut list = List::new(vec![row(0, "a"), row(0, "b")], "");
        list.go(1);
        list.open(1, vec![row(0, "x"), row(1, "y"), row(0, "z")]);
        assert_eq!(names(&list), ["a", "b", " x", "  y", " z"]);
        list.go(2);
        assert_eq!(list.selected().map(|row| &*row.name), Some("y"));
        let steps: Vec<StepOut> = (0..2).map(|_| list.step_out()).collect();
        assert_eq!(steps, [StepOut::ToParent, StepOut::ToParent]);
        assert_eq!(list.selected().map(|row| &*row.name), Some("b"));
        assert_eq!((list.step_out(), list.step_out()), (StepOut::Closed, StepOut::AtRoot));
        assert_eq!(names(&list), ["a", "b"]);
        list.open(0, vec![row(0, "w")]);
        assert_eq!((list.cursor(), list.selected().map(|row| &*row.name)), (2, Some("b")));
        list.open(2, vec![row(0, "x")]);
        list.go(9);
        list.close_all();
        assert_eq!((names(&list), list.cursor()), (vec!["a".into(), "b".into()], 1));
        list.open(1, Vec::new());
        assert!(list.selected().is_some_and(|row| !row.has_below && !row.is_open), "nothing is below it");
    }

    /// Checks that a part of a name hides other rows with what is below them, and that the selected
    /// row stays selected where it is not hidden.
    #[test]
    fn narrow() {
        let mut list =
            List::new(vec![row(0, "alpha"), row(1, "in alpha"), row(0, "beta"), row(0, "alps")], "");
        list.go(3);
        list.narrow("alp");
        assert_eq!(names(&list), ["alpha", " in alpha", "alps"]);
        assert_eq!(list.selected().map(|row| &*row.name), Some("alps"));
        list.narrow("beta");
        assert_eq!((names(&list), list.cursor(), list.counts()), (vec!["beta".into()], 0, (1, 4)));
        list.narrow("no such name");
        assert_eq!((list.counts().0, list.selected()), (0, None));
        list.go(1);
        list.close();
        list.close_all();
        list.open(9, vec![row(0, "x")]);
        assert_eq!(list.counts(), (0, 3));
    }

    /// Checks that names move to the right where a tree branches, and not along a chain.
    #[test]
    fn indentation() {
        let chain = (0..50).map(|depth| row(depth, "x"));
        let list =
            List::new(chain.chain([row(50, "a"), row(50, "b"), row(51, "c"), row(0, "d")]).collect(), "");
        let indents: Vec<usize> = list.all().map(|row| row.indent).collect();
        assert_eq!(indents[..3], [0, 1, 1]);
        assert_eq!(indents[49..], [1, 2, 2, 3, 0]);
    }

    /// Checks that newer rows leave the user where they are: open rows are open and others are not,
    /// the selected row is the same, on the same line of the screen; that the first row stays the
    /// first; and that another takes the place of a row that is gone.
    #[test]
    fn newer_rows() {
        let opened = |depth: usize, name: &str| Row { is_open: true, ..row(depth, name) };
        let all = || vec![opened(0, "a"), row(1, "in a"), opened(0, "b"), opened(1, "in b"), row(2, "deep")];
        let mut list = List::new(vec![row(0, "a"), opened(0, "b"), row(1, "in b"), row(0, "c")], "");
        assert_eq!(names(&List::at_place(all(), "", &list.place())), ["a", "b", " in b"]);
        list.go(2);
        list.scroll(2);
        assert_eq!(list.top, 1);
        let mut newer = List::at_place([vec![row(0, "n"), row(0, "c")], all()].concat(), "", &list.place());
        newer.scroll(2);
        assert_eq!(newer.selected().map(|row| &*row.name), Some("in b"));
        assert_eq!((newer.cursor, newer.top), (4, 3));
        let first = List::new(vec![row(0, "a"), row(0, "b")], "").place();
        let newer = List::at_place(vec![row(0, "b"), row(0, "a")], "", &first);
        assert_eq!(newer.selected().map(|row| &*row.name), Some("b"));
        list.go(9);
        let newer = List::at_place(vec![row(0, "x"), row(0, "y")], "", &list.place());
        assert_eq!(newer.selected().map(|row| &*row.name), Some("y"));
        assert_eq!(List::<String, ()>::at_place(Vec::new(), "", &list.place()).selected(), None);
    }

    /// Checks that the selected row is on the screen, whatever its height, and that no line is
    /// empty where there are rows.
    #[test]
    fn scroll() {
        let rows = (0..30).map(|at| row(0, &at.to_string())).collect();
        let mut list = List::new(rows, "");
        for (by, height) in [(0, 5), (7, 5), (99, 5), (-3, 5), (0, 20), (0, 0), (-99, 3), (12, 1)] {
            list.go(by);
            list.scroll(height);
            let on_screen: Vec<bool> = list.on_screen(height.max(1)).map(|(_, selected)| selected).collect();
            assert_eq!(on_screen.len(), height.max(1));
            assert_eq!(on_screen.iter().filter(|selected| **selected).count(), 1, "{by} {height}");
        }
    }
}
