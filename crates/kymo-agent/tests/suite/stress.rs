//! The stress program (`examples/stress`): all that a program does with calls, while probes come
//! and go.
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The program that cargo built with this test.
fn program() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    own.ancestors().skip(1).take(3).map(|folder| folder.join("examples/stress")).find(|file| file.is_file())
}

/// Of 30 s in all; of the seconds in KYMO_SOAK, or 600, in a nightly run.
fn seconds(share: u64) -> u64 {
    let soak = std::env::var("KYMO_SOAK").ok();
    let all = soak.map_or(30, |text| text.parse().ok().filter(|&seconds| seconds > 30).unwrap_or(600));
    all * share / 30
}

/// Runs it. Its first line, shown if it does not end well, has the seed to run it again.
fn run(test: &str, seconds: u64, options: &[&str]) {
    let Some(program) = program() else {
        return kymo_testing::skip(test, "the example was not built with this test");
    };
    let now = std::time::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos());
    let seed = (now % 1_000_000_007).to_string();
    let mut child = Command::new(program)
        .args([&seconds.to_string(), &seed])
        .args(options)
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // A pipe holds more than it says.
    let end = Instant::now() + Duration::from_secs(seconds + 120);
    let ended = loop {
        match child.try_wait().expect("a child") {
            Some(ended) => break ended,
            None if Instant::now() > end => {
                child.kill().expect("it runs");
                break child.wait().expect("a child");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let (mut said, mut words) = (String::new(), String::new());
    _ = child.stdout.take().expect("piped").read_to_string(&mut said);
    _ = child.stderr.take().expect("piped").read_to_string(&mut words);
    if let Some(why) = said.lines().find_map(|line| line.strip_prefix("skip: ")) {
        return kymo_testing::skip(test, why);
    }
    eprintln!("{said}");
    assert!(
        ended.success() && said.ends_with("done\n"),
        "stress {seconds} {seed} {}: {ended:?}, signal {:?}\n{said}{words}",
        options.join(" "),
        ended.signal()
    );
}

/// Checks that hits are calls, returns are returns, events are hits and text is the file's,
/// whatever the program does meanwhile.
#[test]
fn a_program_that_does_everything() {
    let _alone = super::library::alone();
    run("stress::a_program_that_does_everything", seconds(20), &[]);
}

/// Checks the same with the functions compiled with AddressSanitizer, which finds accesses beside
/// the stack and the heap.
#[test]
fn under_the_address_sanitizer() {
    let _alone = super::library::alone();
    run("stress::under_the_address_sanitizer", seconds(10), &["asan"]);
}
