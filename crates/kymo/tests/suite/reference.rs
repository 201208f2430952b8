//! The pages of options in the book.

use std::collections::BTreeMap;
use std::path::Path;

use crate::tools::kymo;

fn pages(folder: &Path) -> BTreeMap<String, String> {
    let files = std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    files
        .map(|path| {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).expect("text"))
        })
        .collect()
}

/// Checks that docs/reference/options has what `kymo man --markdown` writes. `KYMO_BLESS=1` writes it there.
#[test]
fn the_book_has_the_options_of_today() {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/options");
    let scratch = tempfile::tempdir().expect("a folder");
    let out = if std::env::var_os("KYMO_BLESS").is_some() { book.as_path() } else { scratch.path() };
    let done = kymo().run(["man", "--markdown", out.to_str().expect("a plain name")]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let (now, there) = (pages(out), pages(&book));
    assert!(now.contains_key("record.md"), "{:?}", now.keys());
    for (name, text) in &now {
        let hint = "if the change is meant: KYMO_BLESS=1 cargo test -p kymo --test suite the_book_has";
        assert!(there.get(name) == Some(text), "docs/reference/options/{name} is not of today; {hint}");
    }
    assert_eq!(now.keys().collect::<Vec<_>>(), there.keys().collect::<Vec<_>>());
}

/// Adds the keys of a JSON object and of what is in it, as `outer.inner` and `list[].inner`. What is
/// below a key `names` has names for keys, and is left out.
pub(crate) fn keys(value: &serde_json::Value, names: &str, found: &mut std::collections::BTreeSet<String>) {
    keys_below("", value, names, found);
}

fn keys_below(
    prefix: &str,
    value: &serde_json::Value,
    names: &str,
    found: &mut std::collections::BTreeSet<String>,
) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                let path = format!("{prefix}{key}");
                let inner = if value.is_array() { format!("{path}[].") } else { format!("{path}.") };
                if key != names {
                    keys_below(&inner, value, names, found);
                }
                found.insert(path);
            }
        }
        serde_json::Value::Array(list) => {
            list.iter().for_each(|value| keys_below(prefix, value, names, found));
        }
        _ => {}
    }
}
