//! [`shared_library_of!`]: the shared library of a dependency, as bytes in the program that uses
//! it.
//!
//! A crate of the kinds `lib` and `cdylib` is compiled to `libNAME.rlib` and `libNAME.so` in one
//! folder. Cargo names only the first to the crates that use it. In a workspace both have plain
//! names. From a registry both have a hash in the name, which no build script learns. The compiler
//! is given the path of the first (`--extern NAME=PATH`), and this macro runs in the compiler.
use proc_macro::TokenStream;
use std::path::{Path, PathBuf};

/// `shared_library_of!(NAME)` is a `&'static [u8]` with the shared library of the dependency
/// `NAME`, a crate of the kinds `lib` and `cdylib`.
///
/// It is empty where nothing is linked: under `cargo check`, `clippy` and `doc`, and in editors.
///
/// # Errors
/// A program with an empty library would be worse than none: the compiler reports a dependency that
/// was linked and has no shared library.
#[proc_macro]
pub fn shared_library_of(name: TokenStream) -> TokenStream {
    let name = name.to_string();
    let code = match shared_library(&name, std::env::args()) {
        Ok(Some(path)) => format!("{{ const LIBRARY: &[u8] = include_bytes!({path:?}); LIBRARY }}"),
        Ok(None) => "{ const LIBRARY: &[u8] = &[]; LIBRARY }".to_owned(),
        Err(message) => format!("compile_error!({message:?})"),
    };
    code.parse().expect("this is Rust, for the path is quoted")
}

/// The shared library beside the file that the compiler was given for a dependency; none where that
/// file has no code.
fn shared_library(name: &str, arguments: impl Iterator<Item = String>) -> Result<Option<PathBuf>, String> {
    // An option may have words before the name: `--extern noprelude:NAME=PATH`.
    let linked = arguments
        .filter_map(|argument| {
            let (before, path) = argument.split_once('=')?;
            let before = before.rsplit([':', ' ']).next()?;
            (before == name).then(|| PathBuf::from(path))
        })
        .find(|path| path.extension().is_some_and(|extension| extension == "rlib"));
    let Some(linked) = linked else { return Ok(None) };
    let library = std::path::absolute(linked.with_extension("so"))
        .map_err(|error| format!("the path {} is of no use: {error}", linked.display()))?;
    if !is_linked(&library) {
        return Err(format!(
            "{name} has no shared library {}: its manifest must have crate-type = [\"lib\", \"cdylib\"]",
            library.display()
        ));
    }
    Ok(Some(library))
}

fn is_linked(library: &Path) -> bool {
    std::fs::metadata(library).is_ok_and(|file| file.len() > 0)
}

#[cfg(test)]
mod tests {
    use super::shared_library;
    use std::path::Path;

    fn find(folder: &Path, option: &str) -> Result<Option<std::path::PathBuf>, String> {
        let option = option.replace("FOLDER", folder.to_str().unwrap());
        shared_library("kymo_agent", ["rustc", "--extern", &option].map(str::to_owned).into_iter())
    }

    /// Checks that the library is found beside what is linked, with and without a hash in its name.
    #[test]
    fn is_beside_what_is_linked() {
        let folder = tempfile::tempdir().unwrap();
        for stem in ["libkymo_agent", "libkymo_agent-7083bf2ee677e268"] {
            let library = folder.path().join(stem).with_extension("so");
            std::fs::write(&library, "code").unwrap();
            for before in ["", "noprelude:", "priv,noprelude:"] {
                let option = format!("{before}kymo_agent=FOLDER/{stem}.rlib");
                assert_eq!(find(folder.path(), &option), Ok(Some(library.clone())), "{option}");
            }
        }
    }

    /// Checks that nothing is embedded where nothing is linked, nor from another crate.
    #[test]
    fn is_nothing_where_nothing_is_linked() {
        let folder = tempfile::tempdir().unwrap();
        for option in ["kymo_agent=FOLDER/libkymo_agent-1.rmeta", "my_kymo_agent=FOLDER/libmine.rlib"] {
            assert_eq!(find(folder.path(), option), Ok(None), "{option}");
        }
    }

    /// Checks that a library that is missing or empty ends the build.
    #[test]
    fn a_missing_library_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let option = "kymo_agent=FOLDER/libkymo_agent.rlib";
        assert!(find(folder.path(), option).unwrap_err().contains("libkymo_agent.so"));
        std::fs::write(folder.path().join("libkymo_agent.so"), "").unwrap();
        assert!(find(folder.path(), option).is_err());
    }
}
