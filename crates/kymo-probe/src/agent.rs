//! The agent's library, which is part of this program: there is nothing to install beside it,
//! nothing to search for, and so nothing that somebody
//! else could put in its place.
use kymo_perf::inject::Library;

/// What is put into programs. Empty where this program was only checked.
pub(crate) static LIBRARY: Library = Library::embedded(kymo_embed::shared_library_of!(kymo_agent));

#[cfg(test)]
mod tests {
    use super::LIBRARY;

    /// Checks that the library is in this program, whole: it can be unpacked, and has the function
    /// by which the tracer starts it.
    #[test]
    fn is_in_this_program() {
        let unpacked = LIBRARY.unpack().unwrap_or_else(|refusal| panic!("{refusal}"));
        let content = std::fs::read(unpacked.path()).unwrap();
        assert!(content.len() > 100_000, "{} bytes", content.len());
        assert!(content.windows(17).any(|part| part == b"kymo_agent_start\0"));
    }
}
