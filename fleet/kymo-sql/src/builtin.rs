//! The queries that come with kymo. deploy/queries has them for every engine.

/// A query under a name.
pub(crate) struct BuiltinQuery {
    /// What `--query` calls it.
    pub(crate) name: &'static str,
    /// Its text, which begins with a comment that says what it answers.
    pub(crate) text: &'static str,
}

macro_rules! queries {
    ($($name:literal),* $(,)?) => {
        [$(BuiltinQuery {
            name: $name,
            text: include_str!(concat!("../../../deploy/queries/", $name, ".sql")),
        }),*]
    };
}

/// All of them, by name.
pub(crate) const QUERIES: [BuiltinQuery; 12] = queries![
    "changed-builds",
    "changed-days",
    "differing-hosts",
    "flame-graph",
    "hosts",
    "modules",
    "neighbours",
    "rising-functions",
    "top-functions",
    "total-functions",
    "units",
    "waiting",
];

/// The views that the queries use.
pub(crate) const VIEWS: &str = include_str!("../../../deploy/views.sql");

/// The query of a name.
pub(crate) fn query(name: &str) -> Option<&'static BuiltinQuery> {
    QUERIES.iter().find(|query| query.name == name)
}

impl BuiltinQuery {
    /// The question that it answers: the first sentences of its comment.
    pub(crate) fn question(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix("--"));
        let first: Vec<&str> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
        first.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that each query begins with a question or a sentence about what it answers.
    #[test]
    fn every_query_says_what_it_answers() {
        for query in &QUERIES {
            let question = query.question();
            assert!(question.len() > 30 && question.ends_with(['?', '.']), "{}: {question}", query.name);
        }
    }

    /// Checks that deploy/queries holds exactly the queries of the list.
    #[test]
    fn the_list_has_every_file() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/queries");
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .expect("the folder of the queries")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        let listed: Vec<String> = QUERIES.iter().map(|query| format!("{}.sql", query.name)).collect();
        assert_eq!(names, listed);
    }
}
