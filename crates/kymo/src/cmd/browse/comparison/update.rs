//! What each key makes of the browser of a comparison. Nothing here reads, writes or waits.
use std::collections::HashSet;
use std::rc::Rc;

use kymo_cli::keys::Key;
use kymo_profile::diff::{ComparedTree, Comparison, Subject, TreeOrder, TreeStart};

use super::super::keys;
use super::super::list::StepOut;
use super::columns::RowColumns;
use super::layout;
use super::rows::{ComparedList, ComparedView, Item, Row, of_effects, of_nodes, of_open_nodes};
use super::state::{Browser, ComparisonPage, Mode, Place};

impl<'a> Browser<'a> {
    pub(super) fn new(comparison: &'a Comparison, notes: Vec<String>, size: (u16, u16)) -> Browser<'a> {
        let inverted = Rc::new(ComparedTree::new(comparison, TreeStart::Innermost, ""));
        let message = match notes.len() {
            0 => None,
            1 => Some("1 note about the comparison: i shows it".to_owned()),
            count => Some(format!("{count} notes about the comparison: i shows them")),
        };
        let place = Place {
            view: ComparedView::Effects,
            order: TreeOrder::Change,
            hides_same: false,
            part: String::new(),
            list: ComparedList::default(),
            tree: Rc::clone(&inverted),
        };
        let mut browser = Browser {
            comparison,
            notes,
            columns: RowColumns::of(comparison),
            place,
            before: Vec::new(),
            mode: Mode::List,
            message,
            size,
            calls: None,
            inverted,
        };
        browser.load();
        browser
    }

    /// The screen has another size.
    pub(super) fn resize(&mut self, size: (u16, u16)) {
        self.size = size;
        self.place.list.scroll(layout::body(self).height);
    }

    /// Takes a key; returns whether it ends the browser.
    pub(super) fn key(&mut self, key: Key) -> bool {
        self.message = None;
        if key == Key::Ctrl('c') {
            return true;
        }
        let ends = match self.mode.clone() {
            Mode::List => self.list_key(key),
            Mode::Page(page, from) => {
                let lines = layout::page(self, page).len();
                let from = keys::turn_page(key, from, lines, self.size.1);
                self.mode = from.map_or(Mode::List, |from| Mode::Page(page, from));
                false
            }
            Mode::Names(text, before) => {
                self.names_key(text, before, key);
                false
            }
        };
        self.place.list.scroll(layout::body(self).height);
        ends
    }

    fn list_key(&mut self, key: Key) -> bool {
        let height = layout::body(self).height;
        if keys::move_in_list(&mut self.place.list, key, height) {
            return false;
        }
        match key {
            Key::Enter | Key::Char('+') => self.toggle(1),
            Key::Right => self.open(1),
            Key::Char('e') => self.toggle(usize::MAX),
            Key::Char('E') => self.open_all(),
            Key::Char('C') => self.place.list.close_all(),
            Key::Left => self.left(),
            Key::Esc => self.back(),
            Key::Char('1') => self.go_to(ComparedView::Effects),
            Key::Char('2') => self.go_to(ComparedView::Calls),
            Key::Char('3') => self.go_to(ComparedView::Inverted),
            Key::Char('s') => {
                self.place.order = match self.place.order {
                    TreeOrder::Change => TreeOrder::New,
                    TreeOrder::New => TreeOrder::Change,
                };
                self.arrange();
            }
            Key::Char('n') if self.place.view == ComparedView::Effects => {
                self.place.hides_same = !self.place.hides_same;
                self.arrange();
            }
            Key::Char('n') => {
                self.message = Some("nodes of trees are not tested: 1 lists what was".to_owned())
            }
            Key::Char('/') => self.mode = Mode::Names(self.place.part.clone(), self.place.part.clone()),
            Key::Char('i') => self.mode = Mode::Page(ComparisonPage::Details, 0),
            Key::Char('?' | 'h') | Key::F1 => self.mode = Mode::Page(ComparisonPage::Help, 0),
            Key::Char('q') => return true,
            _ => {}
        }
        false
    }

    fn names_key(&mut self, mut text: String, before: String, key: Key) {
        match key {
            Key::Esc | Key::Enter => {
                self.mode = Mode::List;
                if key == Key::Esc {
                    self.set_part(before);
                }
                return;
            }
            // The list can be moved in while names are typed.
            Key::Up | Key::Down | Key::PageUp | Key::PageDown => {
                self.list_key(key);
                return;
            }
            key => keys::edit_line(&mut text, key),
        }
        self.mode = Mode::Names(text.clone(), before);
        self.set_part(text);
    }

    // Lists.

    /// The rows of where one is, with those below open ones.
    fn rows(&self, open: &HashSet<Item>) -> Vec<Row> {
        let Place { view, order, hides_same, tree, .. } = &self.place;
        match view {
            ComparedView::Effects => of_effects(self.comparison, tree, *order, *hides_same, open),
            ComparedView::Calls | ComparedView::Inverted => of_open_nodes(tree, None, *order, open),
        }
    }

    /// Makes the rows anew; those that are open stay open, and the selected one stays selected.
    fn arrange(&mut self) {
        let list = &self.place.list;
        let open: HashSet<Item> = list.open_rows().map(|row| row.item).collect();
        let part = if self.place.view == ComparedView::Effects { &*self.place.part } else { "" };
        self.place.list = ComparedList::at_place(self.rows(&open), part, &list.place());
    }

    /// Lists the rows of another place, or of other names.
    fn load(&mut self) {
        let Place { view, order, tree, .. } = &self.place;
        let rows = match view {
            ComparedView::Effects => self.rows(&HashSet::new()),
            // A chain at the beginning is open.
            ComparedView::Calls | ComparedView::Inverted => of_nodes(tree.below(None, 1, *order)),
        };
        self.place.list = ComparedList::new(rows, "");
    }

    /// Opens the whole tree.
    fn open_all(&mut self) {
        if self.place.view == ComparedView::Effects {
            return self.toggle(usize::MAX);
        }
        let nodes = self.place.tree.below(None, usize::MAX, self.place.order);
        if nodes.len() >= ComparedTree::MOST_NODES {
            self.message = Some(format!("the first {} rows: open others one by one", nodes.len()));
        }
        self.place.list = ComparedList::new(of_nodes(nodes), "");
    }

    /// The tree that a list of this kind opens into.
    fn tree(&mut self, view: ComparedView, part: &str) -> Rc<ComparedTree<'a>> {
        let start = if view == ComparedView::Calls { TreeStart::Outermost } else { TreeStart::Innermost };
        let comparison = self.comparison;
        let new = |part: &str| Rc::new(ComparedTree::new(comparison, start, part));
        match view {
            // The part of names hides rows of what was compared, and no callers of them.
            ComparedView::Effects => Rc::clone(&self.inverted),
            _ if !part.is_empty() => new(part),
            ComparedView::Inverted => Rc::clone(&self.inverted),
            ComparedView::Calls => Rc::clone(self.calls.get_or_insert_with(|| new(""))),
        }
    }

    fn go_to(&mut self, view: ComparedView) {
        if view == self.place.view {
            return;
        }
        let tree = self.tree(view, "");
        let next =
            Place { view, tree, part: String::new(), list: ComparedList::default(), ..self.place.clone() };
        self.before.push(std::mem::replace(&mut self.place, next));
        self.load();
    }

    fn left(&mut self) {
        if self.place.list.step_out() == StepOut::AtRoot {
            self.back();
        }
    }

    fn back(&mut self) {
        if !self.place.part.is_empty() {
            return self.set_part(String::new());
        }
        match self.before.pop() {
            Some(place) => self.place = place,
            None => self.message = Some("this is where you began: q ends".to_owned()),
        }
    }

    fn set_part(&mut self, part: String) {
        if part == self.place.part {
            return;
        }
        self.place.part = part.clone();
        if self.place.view == ComparedView::Effects {
            self.place.list.narrow(&part);
            return;
        }
        self.place.tree = self.tree(self.place.view, &part);
        self.load();
    }

    // Rows that open.

    fn toggle(&mut self, levels: usize) {
        match self.place.list.selected() {
            Some(row) if row.is_open => self.place.list.close(),
            _ => self.open(levels),
        }
    }

    fn open(&mut self, levels: usize) {
        let Some((row, at)) = self.place.list.selected().zip(self.place.list.selected_at()) else { return };
        if row.is_open {
            self.place.list.go(1);
            return;
        }
        if !row.has_below {
            let is_flat =
                self.place.view == ComparedView::Effects && self.comparison.subject != Subject::Functions;
            let flat = "only functions by their own cost have callers here: 2 and 3 are call trees";
            self.message = is_flat.then(|| flat.to_owned());
            return;
        }
        let tree = Rc::clone(&self.place.tree);
        if let Some(node) = row.item.node(&tree) {
            let nodes = tree.below(Some(node), levels, self.place.order);
            self.place.list.open(at, of_nodes(nodes));
        }
    }
}
