//! Files of the cache: what is written is read, and nothing else is believed.
use super::*;
use crate::inline::InlineFrame;
use crate::table::SymbolRef;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

type Frames = Vec<(Option<String>, Option<String>, Option<u32>)>;
type Given = BTreeMap<u64, (Option<Option<(u64, u64, String, String)>>, Option<Frames>)>;

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c<>:]{0,6}", "[a-zäß]{1,3}"]
}

fn given() -> impl Strategy<Value = Given> {
    let symbol = proptest::option::of((0..99u64, 0..99u64, text(), text()));
    let line = proptest::option::of(1..99u32);
    let frame = (proptest::option::of(text()), proptest::option::of(text()), line);
    let frames = proptest::collection::vec(frame, 0..5);
    let answer = (proptest::option::of(symbol), proptest::option::of(frames));
    proptest::collection::btree_map(0..200u64, answer, 0..30)
}

fn frames_of(frames: &Frames) -> Vec<InlineFrame> {
    let shared = |text: &Option<String>| text.as_deref().map(Arc::from);
    let frame = |(function, file, line): &(_, _, _)| InlineFrame {
        function: shared(function),
        file: shared(file),
        line: *line,
    };
    frames.iter().map(frame).collect()
}

fn fill(builder: &mut Builder, given: &Given) {
    for (address, (symbol, frames)) in given {
        if let Some(symbol) = symbol {
            let symbol = symbol.as_ref().map(|(start, end, name, raw_name)| SymbolRef {
                start: *start,
                end: *end,
                name,
                raw_name,
                index: 7,
            });
            builder.symbol(*address, symbol);
        }
        if let Some(frames) = frames {
            builder.frames(*address, &frames_of(frames));
        }
    }
}

fn file(given: &Given) -> Vec<u8> {
    let mut builder = Builder::default();
    fill(&mut builder, given);
    builder.finish(b"identity", 1 << 30).expect("room")
}

/// Asks everything.
fn ask(answers: &Answers) {
    for address in (0..300).chain([u64::MAX]) {
        if let Some(Some(symbol)) = answers.symbol(address) {
            assert!(symbol.name.len() + symbol.raw_name.len() < 1 << 20);
        }
        assert!(answers.frames(address).is_none_or(|frames| frames.len() <= 256));
    }
    let mut builder = Builder::default();
    builder.add(answers);
    let again = builder.finish(answers.identity(), 1 << 30).expect("room");
    assert!(Answers::read(again).is_some(), "what was read can be written");
}

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(rest) = bytes.get(16..) {
        let sum = format::checksum(rest);
        bytes[8..16].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

proptest! {
    /// Checks that every answer comes back as it was given, and none that was not given; and that
    /// answers of a file and new ones come together.
    #[test]
    fn answers_come_back(first in given(), second in given()) {
        let answers = Answers::read(file(&first)).expect("a whole file");
        prop_assert_eq!(answers.identity(), b"identity");
        let mut builder = Builder::default();
        builder.add(&answers);
        fill(&mut builder, &second);
        let merged = Answers::read(builder.finish(b"", 1 << 30).expect("room")).expect("a whole file");
        for address in 0..201 {
            let (a, b) = (first.get(&address), second.get(&address));
            let symbol = b.and_then(|b| b.0.as_ref()).or_else(|| a.and_then(|a| a.0.as_ref()));
            let read = merged.symbol(address).map(|symbol| {
                symbol.map(|s| (s.start, s.end, s.name.to_owned(), s.raw_name.to_owned()))
            });
            prop_assert_eq!(read.as_ref(), symbol);
            let frames = b.and_then(|b| b.1.as_ref()).or_else(|| a.and_then(|a| a.1.as_ref()));
            let read = merged.frames(address).map(|frames| frames.to_vec());
            prop_assert_eq!(read, frames.map(frames_of));
        }
    }

    /// Checks that a file that was cut or changed anywhere is not believed.
    #[test]
    fn damage_is_seen(given in given(), at in any::<prop::sample::Index>(), bits in 1..=255u8) {
        let whole = file(&given);
        let at = at.index(whole.len());
        prop_assert!(Answers::read(whole[..at].to_vec()).is_none());
        let mut changed = whole;
        changed[at] ^= bits;
        prop_assert!(Answers::read(changed).is_none());
    }

    /// Checks that numbers that lead nowhere make no panic, though the checksum fits.
    #[test]
    fn hostile_numbers(
        given in given(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u32>(), any::<bool>()), 1..6),
    ) {
        let mut bytes = file(&given);
        for (at, value, is_small) in changes {
            let at = 16 + at.index((bytes.len() - 16) / 4) * 4;
            let value = if is_small { value % 64 } else { value };
            let end = (at + 4).min(bytes.len());
            bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
        if let Some(answers) = Answers::read(with_checksum(bytes)) {
            ask(&answers);
        }
    }

    /// Checks that any bytes make no panic.
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400), is_file: bool) {
        let mut bytes = bytes;
        if is_file && bytes.len() >= 48 {
            bytes[..8].copy_from_slice(&file(&Given::new())[..8]);
            // Counts that could be true.
            bytes[20..48].as_chunks_mut::<4>().0.iter_mut().for_each(|count| count[1..].fill(0));
            bytes = with_checksum(bytes);
        }
        if let Some(answers) = Answers::read(bytes) {
            ask(&answers);
        }
    }
}

/// Checks that a file of another version is not read, whatever else is in it.
#[test]
fn another_version() {
    let mut bytes = file(&Given::new());
    assert!(Answers::read(bytes.clone()).is_some());
    bytes[7] += 1;
    assert!(Answers::read(bytes).is_none());
}

/// Checks that a module without debug information answers for every address, and that its symbols
/// are answered for those that were asked.
#[test]
fn no_debug_information() {
    let mut builder = Builder::default();
    builder.no_lines();
    builder.symbol(5, None);
    let answers = Answers::read(builder.finish(b"", 1 << 20).expect("room")).expect("whole");
    assert_eq!(answers.frames(77).as_deref(), Some(&[][..]));
    assert_eq!((answers.symbol(5), answers.symbol(6)), (Some(None), None));
}

fn identity(number: u8) -> Identity {
    let options = crate::SymbolOptions::default();
    Identity::of(&options, Some(&[number; 20]), &[], std::path::Path::new("/")).expect("a build id")
}

fn write(cache: &SymbolCache, number: u8, symbols: u64) {
    cache.write(&identity(number), None, |builder| {
        for address in 0..symbols {
            builder.symbol(address, None);
        }
    });
}

fn files_in(folder: &tempfile::TempDir) -> Vec<String> {
    let list = fs::read_dir(folder.path().join("kymo/symbols")).expect("the cache");
    let mut names: Vec<String> =
        list.map(|entry| entry.expect("a name").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

/// Checks that the files that were not used longest go when the cache has no room, and that files
/// that are not the cache's stay, whatever they are called.
#[test]
fn the_oldest_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = SymbolCache::below(folder.path().to_owned(), 10_000);
    (1..=8).for_each(|number| write(&cache, number, 100));
    let path = |name: &str| folder.path().join("kymo/symbols").join(name);
    for foreign in ["notes.txt", "0000-0000", "x"] {
        fs::write(path(foreign), vec![0; 20_000]).expect("written");
    }
    for number in 1..=8u8 {
        let file = fs::File::open(path(&identity(number).name)).expect("a file");
        let age = std::time::Duration::from_secs(10_000 - u64::from(number) * 1000);
        file.set_modified(std::time::SystemTime::now() - age).expect("ours");
    }
    // It is used, so it is not the oldest any more.
    assert!(cache.read(&identity(1), &Budget::new()).is_some());
    cache.make_room();
    let left: Vec<u8> = (1..=8).filter(|&number| path(&identity(number).name).exists()).collect();
    assert!(left.contains(&1) && left.contains(&8) && !left.contains(&2), "{left:?}");
    let bytes: u64 = left.iter().map(|&n| fs::metadata(path(&identity(n).name)).expect("it").len()).sum();
    assert!(bytes <= 10_000, "{bytes}");
    for foreign in ["notes.txt", "0000-0000", "x"] {
        assert!(path(foreign).exists(), "{foreign}");
    }
}

/// Checks the modes of folders and files, and that what others could have written, or a link, is
/// neither read nor followed.
#[test]
fn only_ones_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || SymbolCache::below(folder.path().to_owned(), 1 << 20);
    let has = || open().read(&identity(1), &Budget::new()).is_some();
    write(&open(), 1, 10);
    let names = files_in(&folder);
    assert_eq!(names, [identity(1).name]);
    let symbols = folder.path().join("kymo/symbols");
    let file = symbols.join(&names[0]);
    let mode = |path: &std::path::Path| fs::metadata(path).expect("it is there").mode() & 0o777;
    assert_eq!((mode(&symbols), mode(&folder.path().join("kymo")), mode(&file)), (0o700, 0o700, 0o600));
    assert!(has());
    let set = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    };
    for path in [&file, &symbols, &folder.path().join("kymo")] {
        let before = mode(path);
        set(path, before | 0o022);
        assert!(!has(), "{}", path.display());
        set(path, before);
        assert!(has());
    }
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&file, &elsewhere).expect("moved");
    std::os::unix::fs::symlink(&elsewhere, &file).expect("a link");
    assert!(!has());
    // The link is replaced; what it led to stays as it is.
    let before = fs::read(&elsewhere).expect("a file");
    write(&open(), 1, 20);
    assert!(has());
    assert_eq!(fs::read(&elsewhere).expect("a file"), before);
    fs::rename(&symbols, folder.path().join("moved")).expect("moved");
    std::os::unix::fs::symlink(folder.path().join("moved"), &symbols).expect("a link");
    assert!(!has());
}

/// Checks that root neither uses nor makes a cache in the folder of another user.
#[test]
fn no_cache_of_others() {
    if !rustix::process::geteuid().is_root() {
        return kymo_testing::skip("symbols::no_cache_of_others", "only root can give files away");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let give = |path: &std::path::Path, user| std::os::unix::fs::chown(path, Some(user), None).expect("root");
    give(folder.path(), 1000);
    let open = || SymbolCache::below(folder.path().to_owned(), 1 << 20);
    write(&open(), 1, 10);
    assert!(!folder.path().join("kymo").exists());
    write(&SymbolCache::below(folder.path().join("none"), 1 << 20), 1, 10);
    assert!(!folder.path().join("none").exists());
    give(folder.path(), 0);
    write(&open(), 1, 10);
    assert!(open().read(&identity(1), &Budget::new()).is_some());
    give(&folder.path().join("kymo/symbols").join(identity(1).name), 1000);
    assert!(open().read(&identity(1), &Budget::new()).is_none());
}

/// Checks that writers that write at once leave a whole file, and no other one.
#[test]
fn writers_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    std::thread::scope(|scope| {
        for symbols in 1..=8 {
            let folder = &folder;
            scope.spawn(move || {
                let cache = SymbolCache::below(folder.path().to_owned(), 1 << 20);
                (0..20).for_each(|_| write(&cache, 1, symbols * 10));
            });
        }
    });
    assert_eq!(files_in(&folder), [identity(1).name]);
    let cache = SymbolCache::below(folder.path().to_owned(), 1 << 20);
    let (answers, _) = cache.read(&identity(1), &Budget::new()).expect("a whole file");
    // Each adds to what was there.
    assert!(answers.len() >= 10 && (0..10).all(|address| answers.symbol(address) == Some(None)));
}

/// Checks that nothing is kept where it cannot be written: below a file, and in the place of a
/// folder.
#[test]
fn nowhere_to_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    write(&SymbolCache::below(file, 1 << 20), 1, 10);
    write(&SymbolCache::below("relative".into(), 1 << 20), 1, 10);
    let cache = SymbolCache::below(folder.path().to_owned(), 1 << 20);
    write(&cache, 2, 10);
    fs::create_dir(folder.path().join("kymo/symbols").join(identity(1).name)).expect("a folder");
    write(&cache, 1, 10);
    assert!(cache.read(&identity(1), &Budget::new()).is_none());
    assert_eq!(files_in(&folder).len(), 2);
    // A file that is longer than the cache may be is not written at all.
    write(&SymbolCache::below(folder.path().to_owned(), 1000), 3, 1000);
    assert_eq!(files_in(&folder).len(), 2);
}
