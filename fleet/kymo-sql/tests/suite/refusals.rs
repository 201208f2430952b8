//! What is wrong with a query or a dataset, in one sentence; the status is 1, of the command line
//! 129.

use std::path::{Path, PathBuf};

use super::{dataset, kymo_sql, run};

/// What is said of a query that fails, with `DIR` for the folder of the dataset.
fn refusal(words: &[&str], profiles: &Path) -> String {
    let ran = run(kymo_sql(words).arg(profiles));
    assert_eq!((ran.status, &*ran.stdout), (Some(1), ""), "{words:?}: {}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    match profiles.canonicalize() {
        Ok(folder) => ran.stderr.replace(&*folder.to_string_lossy(), "DIR"),
        Err(_) => ran.stderr,
    }
}

/// Every file below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() { found.extend(files_below(&entry)) } else { found.push(entry) }
    }
    found.sort();
    found
}

/// Checks that a query that does not parse is answered with the place.
#[test]
fn the_place_of_a_mistake_is_named() {
    let target = dataset();
    let said = refusal(&["SELECT pid FRM samples,"], &target.path().join("profiles"));
    assert!(
        said.starts_with("kymo sql: the query does not parse: ") && said.contains("line 1, column "),
        "{said}"
    );
}

/// Checks that a name that is not there is named.
#[test]
fn unknown_names_are_named() {
    let target = dataset();
    let profiles = target.path().join("profiles");
    assert!(refusal(&["SELECT colour FROM samples"], &profiles).contains("colour"));
    assert!(refusal(&["SELECT 1 FROM sample"], &profiles).contains("sample"));
    assert!(refusal(&["--query", "tops"], &profiles).contains("there is no query tops: `kymo sql --list`"));
}

/// Checks that nothing that would write or change something is executed.
#[test]
fn queries_only_read() {
    let target = dataset();
    let profiles = target.path().join("profiles");
    let before = files_below(target.path());
    let outside = target.path().join("out.csv");
    for query in [
        "CREATE TABLE t AS SELECT 1".to_owned(),
        "CREATE EXTERNAL TABLE t (a TEXT) STORED AS CSV LOCATION '/etc/passwd'".to_owned(),
        format!("COPY samples TO '{}' STORED AS CSV", outside.display()),
        "INSERT INTO hosts SELECT * FROM hosts".to_owned(),
        "DELETE FROM hosts".to_owned(),
        "DROP VIEW stack_frames".to_owned(),
        "SET datafusion.execution.batch_size = 1".to_owned(),
    ] {
        refusal(&[&query], &profiles);
    }
    refusal(&["SELECT * FROM '/etc/passwd'"], &profiles);
    assert_eq!(files_below(target.path()), before);
}

/// Checks that a file that is cut off is named, and only if the query needs it.
#[test]
fn a_truncated_file_is_named() {
    let target = dataset();
    let profiles = target.path().join("profiles");
    let stacks = files_below(&profiles.join("stacks"));
    let bytes = std::fs::read(&stacks[0]).expect("a file");
    std::fs::write(&stacks[0], &bytes[..bytes.len() / 2]).expect("a file");
    let said = refusal(&["SELECT COUNT(DISTINCT depth) FROM stacks"], &profiles);
    assert!(
        said.starts_with("kymo sql: DIR/stacks/day=") && said.contains(" is no whole Parquet file: "),
        "{said}"
    );
    super::ask(&["SELECT COUNT(*) FROM samples"], &profiles);
}

/// Checks that a dataset of another version is refused.
#[test]
fn another_version_is_named() {
    let target = dataset();
    let profiles = target.path().join("profiles");
    let hosts = files_below(&profiles.join("hosts"));
    let mut bytes = std::fs::read(&hosts[0]).expect("a file");
    let key = b"kymo.schema\x18\x01";
    let at = bytes.windows(key.len()).position(|window| window == key).expect("the version") + key.len();
    bytes[at] = b'9';
    std::fs::write(&hosts[0], bytes).expect("a file");
    let said = refusal(&["SELECT host FROM hosts"], &profiles);
    assert!(said.contains("has version 9 of the dataset's layout, and this kymo knows version 1"), "{said}");
}

/// Checks what is said of places without a dataset.
#[test]
fn other_places_are_no_datasets() {
    let target = dataset();
    let folder = target.path().to_owned();
    assert!(
        refusal(&["SELECT 1"], &folder)
            .contains("is neither a dataset (it has no folder samples) nor a recording")
    );
    let said = refusal(&["SELECT 1"], &folder.join("nowhere"));
    assert!(said.contains("nowhere: No such file or directory"), "{said}");
}

/// Checks that a store that no credentials are known for is refused with what to set. The metadata
/// of the machine, which some machines have credentials from, is a port that nothing listens on.
#[test]
fn missing_credentials_are_named() {
    let mut command = kymo_sql(["SELECT 1", "s3://profiles/prod"]);
    let ran = run(command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1").env("AWS_REGION", "eu-west-1"));
    assert_eq!(ran.status, Some(1));
    let start = "kymo sql: there are no credentials for s3://profiles/prod/: set AWS_ACCESS_KEY_ID";
    assert!(ran.stderr.starts_with(start) && ran.stderr.lines().count() == 1, "{}", ran.stderr);
}

/// Checks the status of a wrong command line.
#[test]
fn a_wrong_command_line_has_its_status() {
    for words in [&["--nonsense"][..], &[], &["SELECT 1"], &["--param", "x", "SELECT 1", "."]] {
        assert_eq!(run(&mut kymo_sql(words)).status, Some(129), "{words:?}");
    }
}
