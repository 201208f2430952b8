//! Names the agent's library to `include_bytes!` (src/agent.rs).
//!
//! The library is a crate that this one depends on, so cargo has linked it before it compiles this
//! one: a crate that is a `cdylib`, too, is
//! waited for until it is whole. Cargo puts it, under its plain name, into the folder `deps` of the
//! profile, of which `OUT_DIR` is
//! `build/PACKAGE/out`. `cargo check` links nothing, and a file must be there all the same: then it
//! is an empty one.
use std::fs::OpenOptions;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let profile =
        out.ancestors().nth(3).expect("cargo's folder for a package is three below that of the profile");
    let deps = profile.join("deps");
    assert!(
        deps.is_dir(),
        "cargo keeps no `deps` in {}: build.rs must be told where the libraries are",
        profile.display()
    );
    let library = deps.join("libkymo_agent.so");
    if let Err(error) = OpenOptions::new().write(true).create_new(true).open(&library) {
        assert!(library.exists(), "{}: {error}", library.display());
    }
    println!("cargo::rustc-env=KYMO_AGENT_LIBRARY={}", library.display());
}
