//! A program that does with calls all that a program can do, while probes come and go at random;
//! and what it counted itself is what the probes counted.
//!
//! ```text
//! stress [SECONDS] [SEED] [asan]
//! ```
//! In each phase some probes stay (`steady`) and others come and go; two threads call, throw, jump,
//! fork, execute, spawn, switch stacks, make threads, block and get signals. When they have
//! stopped, hits and returns of the steady probes are compared with the functions' own counts,
//! events with hits, and the text with the file. The choices are the seed's; the interleaving is
//! not. With `asan` the library is compiled with `-fsanitize=address`, whose runtime is preloaded.
#[cfg(target_arch = "x86_64")]
mod chance;
#[cfg(target_arch = "x86_64")]
#[path = "../../tests/suite/loaded.rs"]
mod loaded;
#[cfg(target_arch = "x86_64")]
mod phase;
#[cfg(target_arch = "x86_64")]
mod work;

/// Ends the program, which cannot run here.
fn skip(why: &str) -> ! {
    println!("skip: {why}");
    std::process::exit(0);
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    skip("programs are patched on x86-64 only");
}

#[cfg(target_arch = "x86_64")]
fn main() {
    use std::time::{Duration, Instant};
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(10, |text| text.parse().expect("a number of seconds"));
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |time| time.as_nanos());
    let seed = arguments.next().map_or(now as u64 % 1_000_000_007, |text| text.parse().expect("a seed"));
    let asan = arguments.next().as_deref() == Some("asan");
    if asan && std::env::var_os("LD_PRELOAD").is_none() {
        under_asan();
    }
    let scratch = tempfile::tempdir().expect("a folder");
    let (library, plug) = (scratch.path().join("stress.so"), scratch.path().join("plug.so"));
    work::compile(&library, if asan { &["-fsanitize=address"] } else { &[] });
    std::fs::copy(&library, &plug).expect("a copy");
    println!("stress: seed {seed}, {seconds} s{}", if asan { ", AddressSanitizer" } else { "" });
    let mut run = phase::Run::new(seed, &library, &plug);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        run.phase();
    }
    println!("{}", run.told());
    println!("done");
}

/// Executes this program again with the sanitizer's runtime, which has to come first.
#[cfg(target_arch = "x86_64")]
fn under_asan() -> ! {
    use std::os::unix::process::CommandExt;
    // The C++ library with it: the sanitizer looks for its functions when it begins.
    let named = |library: &str| {
        let named =
            std::process::Command::new("gcc").arg(format!("-print-file-name={library}")).output().ok()?;
        Some(String::from_utf8_lossy(&named.stdout).trim().to_owned()).filter(|path| path.starts_with('/'))
    };
    let (Some(runtime), Some(library)) = (named("libasan.so"), named("libstdc++.so.6")) else {
        skip("gcc has no AddressSanitizer here");
    };
    let error = std::process::Command::new("/proc/self/exe")
        .args(std::env::args().skip(1))
        .env("LD_PRELOAD", format!("{runtime}:{library}"))
        // Stacks are switched without telling it; what is patched is never freed; signal stacks are
        // the program's.
        .env(
            "ASAN_OPTIONS",
            "detect_leaks=0:detect_stack_use_after_return=0:use_sigaltstack=0:abort_on_error=1",
        )
        .exec();
    panic!("{error}");
}
