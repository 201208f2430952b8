//! The shared library stays loaded: threads and the kernel hold addresses in it
//! (`src/sys/rseq.rs`), which must outlive a `dlclose`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
