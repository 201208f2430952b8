//! Parameters of a query: the columns of a common table expression called `params`.
//!
//! A query begins with `WITH params AS (SELECT '' AS service, 5 AS least)` and reads a parameter by
//! `(SELECT service FROM params)`. That is standard SQL: every engine runs the file as it is. Here
//! the values can be replaced from the command line, and each such subquery becomes its value, so
//! that the planner sees constants and leaves out whole partitions.

use std::ops::ControlFlow;

use anyhow::{Context as _, bail};
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Query, Select, SelectItem, SetExpr, Statement, TableFactor, Value, visit_expressions_mut,
};

/// The name of the common table expression.
const TABLE: &str = "params";

/// A parameter's new value, as the command line has it: NAME=VALUE.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Assignment {
    name: String,
    value: String,
}

impl std::str::FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                Ok(Assignment { name: name.to_owned(), value: value.to_owned() })
            }
            _ => Err("expected NAME=VALUE".to_owned()),
        }
    }
}

/// Puts values into a query's parameters, and constants in the place of the subqueries that read
/// them.
///
/// # Errors
/// The query has no parameter of that name, or the value is no number where the query has one.
pub(crate) fn bind(statement: &mut Statement, assignments: &[Assignment]) -> anyhow::Result<()> {
    let mut no_parameters = Vec::new();
    let parameters = match statement {
        Statement::Query(query) => parameters_of(query).unwrap_or(&mut no_parameters),
        _ => &mut no_parameters,
    };
    for assignment in assignments {
        assign(parameters, assignment)?;
    }
    let values: Vec<(String, Expr)> = parameters
        .iter()
        .filter_map(|item| match item {
            SelectItem::ExprWithAlias { expr, alias } if is_constant(expr) => {
                Some((alias.value.to_lowercase(), expr.clone()))
            }
            _ => None,
        })
        .collect();
    let _: ControlFlow<()> = visit_expressions_mut(statement, |expr| {
        if let Expr::Subquery(query) = expr
            && let Some(name) = parameter_read_by(query)
            && let Some((_, value)) = values.iter().find(|(known, _)| *known == name)
        {
            *expr = value.clone();
        }
        ControlFlow::Continue(())
    });
    Ok(())
}

/// The columns of `params`.
fn parameters_of(query: &mut Query) -> Option<&mut Vec<SelectItem>> {
    let tables = &mut query.with.as_mut()?.cte_tables;
    let table = tables.iter_mut().find(|table| table.alias.name.value.eq_ignore_ascii_case(TABLE))?;
    match &mut *table.query.body {
        SetExpr::Select(select) if select.from.is_empty() => Some(&mut select.projection),
        _ => None,
    }
}

fn assign(parameters: &mut [SelectItem], assignment: &Assignment) -> anyhow::Result<()> {
    let Assignment { name, value } = assignment;
    let mut names = Vec::new();
    for parameter in parameters {
        let SelectItem::ExprWithAlias { expr, alias } = parameter else { continue };
        if !alias.value.eq_ignore_ascii_case(name) {
            names.push(alias.value.clone());
            continue;
        }
        let literal = match expr {
            Expr::Value(old) if matches!(old.value, Value::SingleQuotedString(_)) => {
                Value::SingleQuotedString(value.clone())
            }
            _ => {
                let number: f64 =
                    value.parse().ok().filter(|number: &f64| number.is_finite()).with_context(|| {
                        format!("--param {name}={value}: the query has a number there, as `{expr}`")
                    })?;
                Value::Number(number.to_string(), false)
            }
        };
        *expr = Expr::Value(literal.into());
        return Ok(());
    }
    if names.is_empty() {
        bail!("--param {name}={value}: the query has no `WITH params AS (SELECT ... AS {name})`");
    }
    bail!("--param {name}={value}: the query has no parameter {name}, only {}", names.join(", "))
}

/// Whether an expression is a literal, perhaps with a sign.
fn is_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Value(_) => true,
        Expr::UnaryOp { expr, .. } => is_constant(expr),
        _ => false,
    }
}

/// The parameter that a query `SELECT name FROM params` reads, and nothing else.
fn parameter_read_by(query: &Query) -> Option<String> {
    let SetExpr::Select(select) = &*query.body else { return None };
    let Select { projection, from, selection: None, .. } = &**select else { return None };
    let ([SelectItem::UnnamedExpr(Expr::Identifier(Ident { value, .. }))], [from]) = (&**projection, &**from)
    else {
        return None;
    };
    let TableFactor::Table { name, .. } = &from.relation else { return None };
    let is_params = from.joins.is_empty() && name.to_string().eq_ignore_ascii_case(TABLE);
    is_params.then(|| value.to_lowercase())
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    fn bound(sql: &str, assignments: &[&str]) -> Result<String, String> {
        let mut statements = Parser::parse_sql(&GenericDialect {}, sql).expect("a query that parses");
        let assignments: Vec<Assignment> =
            assignments.iter().map(|text| text.parse().expect("NAME=VALUE")).collect();
        bind(&mut statements[0], &assignments).map_err(|error| error.to_string())?;
        Ok(statements[0].to_string())
    }

    const SQL: &str = "WITH params AS (SELECT '' AS service, 5 AS least) SELECT 1 WHERE \
                       a = (SELECT service FROM params) AND b > (SELECT least FROM params)";

    /// Checks that values arrive in the table and in the place of the subqueries, quoted.
    #[test]
    fn values_become_constants() {
        let text = bound(SQL, &["service=it's", "least=2.5"]).expect("bound");
        assert!(text.contains("SELECT 'it''s' AS service, 2.5 AS least"), "{text}");
        assert!(text.ends_with("WHERE a = 'it''s' AND b > 2.5"), "{text}");
    }

    /// Checks that a query keeps its own values where none are given.
    #[test]
    fn own_values_become_constants_too() {
        let text = bound(SQL, &[]).expect("bound");
        assert!(text.ends_with("WHERE a = '' AND b > 5"), "{text}");
    }

    /// Checks that a subquery with a condition of its own stays.
    #[test]
    fn other_subqueries_stay() {
        let sql =
            "WITH params AS (SELECT 1 AS a) SELECT (SELECT a FROM params WHERE a > 1), (SELECT a FROM t)";
        let text = bound(sql, &[]).expect("bound");
        assert!(text.ends_with("SELECT (SELECT a FROM params WHERE a > 1), (SELECT a FROM t)"), "{text}");
    }

    /// Checks what is said of a name or a value that the query cannot have.
    #[test]
    fn wrong_assignments_are_refused() {
        let unknown = bound(SQL, &["servce=a"]).expect_err("refused");
        assert_eq!(unknown, "--param servce=a: the query has no parameter servce, only service, least");
        let word = bound(SQL, &["least=many"]).expect_err("refused");
        assert_eq!(word, "--param least=many: the query has a number there, as `5`");
        let none = bound("SELECT 1", &["a=1"]).expect_err("refused");
        assert_eq!(none, "--param a=1: the query has no `WITH params AS (SELECT ... AS a)`");
    }
}
