//! Disks that are full or broken, files that may not grow, readers that go away: each ends with a sentence and the right status, and what was
//! written before opens. Both ways of writing are tried.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::Signal;

use super::fuse::{Fault, Faulty};
use super::{
    BUSY, Dice, ENDLESS, WAYS, ended, folder, is_published, recorder, rounds, said_samples, samples, words,
};
use crate::tools::{Need, kymo, require, run, skip, text};

/// Checks full disks of several sizes: the offset, the reason and what to do are said, the status is 1, and the file holds as many samples
/// as the recorder says.
#[test]
fn full_disks() {
    let test = "faults::full_disks";
    let Some(()) = require(test, &[Need::Root, Need::Program("mount")]) else { return };
    for (way, kib) in [("uring", 64), ("pwrite", 64), ("uring", 200), ("pwrite", 200)] {
        let folder = folder(&format!("full-{way}-{kib}"));
        let size = format!("size={kib}k");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none", text(&folder)]).output();
        if !mounted.is_ok_and(|mount| mount.status.success()) {
            return skip(test, "a tmpfs cannot be mounted here");
        }
        let path = folder.join("perf.data");
        let said = run(&mut recorder(way, &["-F", "6000"], &path, ENDLESS));
        let copy = folder.with_extension("data");
        fs::copy(&path, &copy).expect("the file is there");
        Command::new("umount").arg(text(&folder)).status().expect("umount runs");
        let said = said.ends(1);
        said.says("perf.data at offset ").says(": No space left on device");
        said.says("what came before is complete; free some space");
        // The account tells, too.
        said.says(" not written");
        assert_eq!(samples(test, &copy), said_samples(&said.stderr), "{way} {kib}: {}", said.stderr);
    }
}

/// Checks a limit on the size of files: not the end of the recorder but of the recording, with a sentence.
#[test]
fn a_file_that_may_not_grow() {
    let test = "faults::a_file_that_may_not_grow";
    for way in WAYS {
        let path = folder(&format!("limit-{way}")).join("perf.data");
        let recorder = kymo();
        let script = format!(
            "ulimit -f 100; exec '{}' record -F 6000 -o '{}' -- sh -c '{ENDLESS}'",
            text(recorder.path()),
            text(&path)
        );
        let said = run(Command::new("sh").args(["-c", &script]).env("KYMO_IO", way)).ends(1);
        said.says(": File too large").says("ulimit -f");
        assert_eq!(samples(test, &path), said_samples(&said.stderr), "{way}: {}", said.stderr);
        assert!(fs::metadata(&path).expect("the file").len() <= 100 << 10);
    }
}

/// Checks a reader that goes away: the recording ends as any program at the other end of a pipe does, with a word about it.
#[test]
fn a_reader_that_goes_away() {
    let mut child = kymo().start(["record", "-F", "6000", "-o", "-", "--", "sh", "-c", ENDLESS]);
    let mut some = [0; 4096];
    child.stdout.take().expect("a pipe").read_exact(&mut some).expect("a recording begins");
    let out = child.wait_with_output().expect("kymo ends");
    assert_eq!(out.status.signal(), Some(Signal::PIPE.as_raw()), "{out:?}");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("whoever read the recording has gone"), "{said}");
}

/// Checks that a recording which goes on in other files, by size and packed too, loses nothing on the way: each file opens in kymo and perf,
/// names the program's functions, and together they hold as many samples as the recorder says.
#[test]
fn a_recording_in_several_files() {
    let test = "faults::a_recording_in_several_files";
    for pack in [&[][..], &["-z"][..]] {
        let folder = folder(&format!("series-{}", pack.len()));
        let path = folder.join("perf.data");
        let mut arguments = vec!["record", "-F", "6000", "-m", "8", "--switch-output=50K", "-o", text(&path)];
        arguments.extend(pack);
        arguments.extend(["--", "sh", "-c", BUSY]);
        let said = kymo().succeed(&arguments);
        let files: Vec<PathBuf> =
            fs::read_dir(&folder).expect("the folder").map(|file| file.expect("a file").path()).collect();
        assert!(files.len() > 1 && !path.exists(), "{files:?}: {}", said.stderr);
        assert_eq!(said.stderr.matches("Dump ").count(), files.len(), "{}", said.stderr);
        assert_eq!(files.iter().map(|file| samples(test, file)).sum::<u64>(), said_samples(&said.stderr));
        for file in files {
            let said = kymo().succeed(
                format!("report -i {} --no-children -g none -F sample,comm,dso,sym", text(&file)).split(' '),
            );
            let rows = crate::table::sections(&said.stdout).into_iter().flat_map(|section| section.rows);
            for row in rows.filter(|row| row[0].parse::<u64>().is_ok_and(|count| count > 50)) {
                assert!(row[1] == "sh" && !row[2].contains("unknown"), "{}: {row:?}", file.display());
            }
        }
    }
}

/// Checks that a recording ends where its size is limited, with a sentence, and opens.
#[test]
fn a_limited_size() {
    let test = "faults::a_limited_size";
    let path = folder("max-size").join("perf.data");
    let said = run(&mut recorder("uring", &["-F", "6000", "--max-size", "60K"], &path, ENDLESS));
    said.says("the size limit of 60 KiB was reached");
    assert_eq!(samples(test, &path), said_samples(&said.stderr));
}

/// A recording onto a file system with this fault: what kymo says, and the file as it is left; `None`, said, where none can be mounted.
pub(super) fn onto(test: &str, fault: Fault, way: &str, options: &[&str], program: &str) -> Option<Onto> {
    require(test, &[Need::Root, Need::Program("mount")])?;
    let folder = folder(&format!("fuse-{}-{way}", test.rsplit("::").next().unwrap_or_default()));
    let (place, copy) = (folder.join("mounted"), folder.join("copy.data"));
    fs::create_dir(&place).expect("the folder is ours");
    let faulty = match Faulty::mount(&place, fault) {
        Ok(faulty) => faulty,
        Err(reason) => {
            skip(test, format!("{reason}; kymo-record's disk/tests.rs has the same faults in memory"));
            return None;
        }
    };
    let path = place.join("perf.data");
    let mut recorder = recorder(way, &[&["-F", "6000"], options].concat(), &path, program);
    let output = ended(test, recorder.spawn().expect("kymo starts"));
    let file = faulty.bytes("perf.data").map(|bytes| {
        fs::write(&copy, bytes).expect("the folder is ours");
        copy
    });
    Some(Onto { code: output.status.code(), said: words(&output), file, refused: faulty.refused() })
}

/// What came of it.
pub(super) struct Onto {
    pub(super) code: Option<i32>,
    pub(super) said: String,
    pub(super) file: Option<PathBuf>,
    refused: u32,
}

/// Checks disks that are full, broken, or over quota from a random byte on: status 1, the place (or one before it, where a whole record
/// begins), the reason and what to do are said, and the file holds as many samples as the recorder says. Where not even the header fits,
/// no file is left.
#[test]
fn refusals_at_any_offset() {
    let test = "faults::disks::refusals_at_any_offset";
    let mut dice = Dice::of(test);
    for round in 0..rounds(6, 60) {
        // Packed there is less to write.
        let (options, most) = dice.of_all(&[(&["-g"][..], 300_000), (&["-z"], 20_000)]);
        let place = dice.below(if round == 0 { 200 } else { most });
        let (error, reason, advice) = dice.of_all(&[
            (Errno::NOSPC, "No space left on device", "free some space"),
            (Errno::IO, "Input/output error", "see `dmesg`"),
            (Errno::DQUOT, "Disk quota exceeded", "quota"),
        ]);
        let way = dice.of_all(&WAYS);
        let Some(onto) = onto(test, Fault::From(place, error), way, options, ENDLESS) else { return };
        let said = format!("{way} {options:?}, {error:?} from {place}: {}", onto.said);
        assert_eq!(onto.code, Some(1), "{said}");
        assert!(onto.said.contains(reason), "{said}");
        if !onto.said.contains("Captured and wrote") {
            assert!(
                onto.said.contains("failed to write the header of") && onto.said.contains("-o FILE"),
                "{said}"
            );
            assert_eq!(onto.file, None, "without a header there is no recording: {said}");
            continue;
        }
        let file = onto.file.expect("kymo made a file");
        assert!(onto.said.contains("perf.data at offset ") && onto.said.contains(advice), "{said}");
        assert_eq!(samples(test, &file), said_samples(&onto.said), "{said}");
    }
}

/// Checks disks that die for good after a random number of writes, so that not even the header can be brought up to date: status 1, a
/// sentence, and a file that opens with what was published before.
#[test]
fn a_disk_that_dies() {
    let test = "faults::disks::a_disk_that_dies";
    let mut dice = Dice::of(test);
    for _ in 0..rounds(4, 40) {
        let (writes, way) = (1 + dice.below(40) as u32, dice.of_all(&WAYS));
        let Some(onto) = onto(test, Fault::After(writes, Errno::IO), way, &[], ENDLESS) else { return };
        let said = format!("{way}, broken after {writes} writes: {}", onto.said);
        assert_eq!(onto.code, Some(1), "{said}");
        assert!(onto.said.contains("Input/output error"), "{said}");
        assert!(onto.said.contains("see `dmesg`") || onto.file.is_none(), "{said}");
        if !onto.said.contains("Captured and wrote") {
            let header = onto.said.contains("failed to write the header of");
            assert!(header && onto.file.is_none(), "without a header there is no recording: {said}");
            continue;
        }
        let file = onto.file.expect("it was alive at the start");
        let found = samples(test, &file);
        if is_published(&file) {
            assert_eq!(found, said_samples(&onto.said), "{said}");
        }
    }
}

/// Checks trouble that passes: the recording is complete, and nothing but time was lost.
#[test]
fn trouble_that_passes() {
    let test = "faults::disks::trouble_that_passes";
    for (way, error) in [("uring", Errno::IO), ("pwrite", Errno::NOSPC)] {
        let fault = Fault::Passing { times: 3, every: 3, error };
        let Some(onto) = onto(test, fault, way, &[], BUSY) else { return };
        assert_eq!(onto.code, Some(0), "{way} {error:?}: {}", onto.said);
        assert!(onto.refused > 0 && !onto.said.contains("not written"), "{way} {error:?}: {}", onto.said);
        assert_eq!(
            samples(test, &onto.file.expect("a file")),
            said_samples(&onto.said),
            "{way}: {}",
            onto.said
        );
    }
}
