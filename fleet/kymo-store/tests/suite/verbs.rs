//! What the verbs do and refuse.
use kymo_dataset::{DatasetFolder, DatasetStore, Table, live_files};

use crate::Place;
use crate::minutes;

/// Runs the program; its status and what it said.
fn run(place: &Place, words: &[&str]) -> (Option<i32>, String) {
    let ran = place.store(words).output().expect("started");
    (ran.status.code(), String::from_utf8(ran.stderr).expect("UTF-8"))
}

/// Checks that an export is added once, that a dataset of a store is compacted into a folder and in
/// place, with the same sums, and that a recording which was merged is not added again.
#[test]
fn a_dataset_in_a_store_is_added_to_and_compacted() {
    let place = Place::new("verbs");
    let target = tempfile::tempdir().expect("a folder");
    let path = target.path().join("export");
    let folder = DatasetFolder::open_or_create(&path).expect("a dataset");
    for minute in 0..4 {
        minutes::files(1, minute).iter().for_each(|file| folder.put(file).expect("put"));
    }
    let path = path.to_str().expect("a plain name");
    assert_eq!(run(&place, &["add", path, &place.url]), (Some(0), String::new()));
    let bucket = place.bucket();
    let sums = minutes::read(&bucket).expect("sums");
    assert_eq!(sums, (0..4).map(|minute| minutes::sums(1, minute)).collect());
    let is_known = |(status, said): (Option<i32>, String)| {
        assert_eq!(status, Some(1));
        assert!(said.contains("a recording of this host and moment already"), "{said}");
    };
    is_known(run(&place, &["add", path, &place.url]));

    let new = target.path().join("new");
    let words = ["compact", "-q", "-o", new.to_str().expect("a plain name"), &place.url];
    assert_eq!(run(&place, &words), (Some(0), String::new()));
    assert_eq!(minutes::read(&DatasetFolder::open(&new).expect("a dataset")).expect("sums"), sums);
    let (status, said) = run(&place, &["compact", "--in-place", &place.url]);
    assert!(status == Some(0) && said.starts_with("kymo: 12 rows of samples; "), "{said}");
    assert_eq!(bucket.files(Table::Samples.name()).expect("files").len(), 3);
    assert_eq!(live_files(&bucket, Table::Samples).expect("files").len(), 3);
    assert_eq!(minutes::read(&bucket).expect("sums"), sums);
    is_known(run(&place, &["add", path, &place.url]));
    let (status, said) = run(&place, &["symbolize", "--no-debuginfod", &place.url]);
    assert!(status == Some(0) && said.contains("0 of 0 locations without a name"), "{said}");
}

/// Checks what is refused, in one sentence.
#[test]
fn refusals_are_sentences() {
    let place = Place::new("empty");
    let refused = |words: &[&str], status: i32, sentence: &str| {
        let (found, said) = run(&place, words);
        assert!(found == Some(status) && said.contains(sentence), "{words:?}: {said}");
    };
    refused(&["compact", &place.url], 129, "--in-place");
    refused(&["compact", "--in-place", &place.url], 1, "is no dataset of kymo: it has no files in hosts/");
    let bucket = place.bucket();
    minutes::files(1, 0).iter().for_each(|file| bucket.put(file).expect("put"));
    refused(
        &["compact", "--in-place", "--day", "1999-01-01", &place.url],
        1,
        "no samples of the day 1999-01-01",
    );
    refused(&["compact", "--in-place", "ftp://x/y"], 1, "ftp is not a store that kymo knows");
    refused(&["symbolize", "--debug-dir", "/nowhere", &place.url], 1, "there is no such folder");
    refused(&["add", "/nowhere", &place.url], 1, "/nowhere");
}
