//! The owner of the sites: it changes the program's text.
use super::key::{Key, ModuleId};
use std::fmt;

/// Arms and disarms. Called under the registry's lock, in batches, so that a stop of all threads is
/// paid once per batch.
pub trait Sites: Send {
    /// Why a site cannot be changed.
    type Refusal: fmt::Debug + Clone;

    /// Makes hits of these places arrive. One answer per key, in order: `Ok(true)`: armed;
    /// `Ok(false)`: the module is not mapped, call [`mapped`](super::Registry::mapped) when it is.
    /// Hits may come before this returns. None of the keys is armed.
    fn arm(&mut self, keys: &[Key]) -> Vec<Result<bool, Self::Refusal>>;

    /// Restores what was there. One answer per key, in order. All keys are armed. Late hits may
    /// still come. A place that could not be restored is never armed again and its probe is kept,
    /// without consumers.
    fn disarm(&mut self, keys: &[Key]) -> Vec<Result<(), Self::Refusal>>;

    /// Adds to a semaphore of a mapped module.
    ///
    /// # Errors
    /// If there is no such count; the probe is not armed then.
    fn semaphore(&mut self, module: ModuleId, offset: u64, by: i16) -> Result<(), Self::Refusal> {
        let _ = (module, offset, by);
        Ok(())
    }
}

/// Nothing to arm: for who finds his hits otherwise, for benches and examples.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSites;

impl Sites for NoSites {
    type Refusal = std::convert::Infallible;

    fn arm(&mut self, keys: &[Key]) -> Vec<Result<bool, Self::Refusal>> {
        vec![Ok(true); keys.len()]
    }

    fn disarm(&mut self, keys: &[Key]) -> Vec<Result<(), Self::Refusal>> {
        vec![Ok(()); keys.len()]
    }
}
