//! The names that a print format has for values: flags and enumerators.

use super::PrintFormat;
use super::node::Node;
use crate::tracing_data::Format;

/// Names of the values of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldNames<'a> {
    /// The field.
    pub field: &'a str,
    /// What stands between flags; `None` where a value has one name.
    pub delimiter: Option<&'a str>,
    /// Values and names, in the format's order.
    pub names: Vec<(u64, &'a str)>,
}

impl PrintFormat {
    /// The names of values, by field. `format` is the one that this was parsed from.
    pub fn names<'a>(&'a self, format: &'a Format) -> Vec<FieldNames<'a>> {
        let mut lists: Vec<FieldNames<'a>> = Vec::new();
        for node in &self.nodes {
            let (value, delimiter, names) = match node {
                Node::Flags { value, delimiter, names } => (*value, Some(delimiter.as_str()), names),
                Node::Symbols { value, names } => (*value, None, names),
                // `REC->flags ? __print_flags(...) : "none"`: the text is the name of 0.
                Node::Choice(_, first, second) => {
                    if let (Some(Node::Flags { .. }), Some(Node::Text(text))) =
                        (self.node(*first), self.node(*second))
                        && let Some(list) = lists.last_mut()
                    {
                        list.names.push((0, text));
                    }
                    continue;
                }
                _ => continue,
            };
            let field = self.field(value).and_then(|index| format.fields.get(index));
            let Some(field) = field.map(|field| field.name.as_str()) else { continue };
            let names = names.iter().map(|(value, name)| (value.unwrap_or(0), name.as_str())).collect();
            lists.push(FieldNames { field, delimiter, names });
        }
        lists
    }

    fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    /// The last field in an expression. Expressions nest at most `MAX_DEPTH` deep.
    fn field(&self, index: u32) -> Option<usize> {
        match self.node(index)? {
            Node::Field(field) => Some(*field),
            Node::Not(operand) | Node::Complement(operand) | Node::Negative(operand) => self.field(*operand),
            Node::Cast { operand, .. } => self.field(*operand),
            Node::Binary(_, left, right) => self.field(*right).or_else(|| self.field(*left)),
            Node::Choice(condition, first, second) => {
                self.field(*second).or_else(|| self.field(*first)).or_else(|| self.field(*condition))
            }
            Node::Element { array, index, .. } => self.field(*index).or_else(|| self.field(*array)),
            _ => None,
        }
    }
}
