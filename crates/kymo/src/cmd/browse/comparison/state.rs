//! What the browser of a comparison shows: where one is, where one was before, and what the keys
//! mean.
use std::rc::Rc;

use kymo_profile::diff::{ComparedTree, Comparison, TreeOrder};

use super::columns::RowColumns;
use super::rows::{ComparedList, ComparedView};

/// What the keys mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// They move in the list.
    List,
    /// They turn over a page of text, from this line on.
    Page(ComparisonPage, usize),
    /// They write a part of names; with what it was before.
    Names(String, String),
}

/// A page of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComparisonPage {
    /// The keys.
    Help,
    /// The selected row in full, and what is known of the comparison.
    Details,
}

/// Where one is, to come back to it.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    pub(super) view: ComparedView,
    pub(super) order: TreeOrder,
    /// Rows without a difference are left out.
    pub(super) hides_same: bool,
    /// Only rows with this in their names; of trees, only paths with such a function.
    pub(super) part: String,
    pub(super) list: ComparedList,
    /// What rows open into.
    pub(super) tree: Rc<ComparedTree<'a>>,
}

/// The browser.
#[derive(Clone, Debug)]
pub(super) struct Browser<'a> {
    pub(super) comparison: &'a Comparison,
    /// What should be known of it: sentences.
    pub(super) notes: Vec<String>,
    pub(super) columns: RowColumns,
    pub(super) place: Place<'a>,
    /// Where one was before, the last one at the end.
    pub(super) before: Vec<Place<'a>>,
    pub(super) mode: Mode,
    /// A sentence until the next key.
    pub(super) message: Option<String>,
    pub(super) size: (u16, u16),
    /// The trees of all names, once each was asked for.
    pub(super) calls: Option<Rc<ComparedTree<'a>>>,
    pub(super) inverted: Rc<ComparedTree<'a>>,
}
