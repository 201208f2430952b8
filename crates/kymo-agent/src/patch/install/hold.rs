//! The interface to whatever stops the program's other threads while code is written.
//!
//! ```text
//!   Nobody    they run: traps stand in for what is not whole yet (publish.rs), and no thread may have blocked these
//!   Tracer    somebody outside holds them by ptrace, moves those that stand inside a site, and lets them go when all is written
//! ```
use super::pass::SiteEdit;
use crate::patch::os;

/// What somebody who holds the threads must know.
#[derive(Debug)]
pub struct Request<'a> {
    /// The first bytes of the sites, ascending: nobody may stand in the four bytes behind one.
    pub sites: &'a [u64],
    /// Who stands at the first address of a pair goes on at the second. Ascending.
    pub moves: &'a [[u64; 2]],
    /// Where handlers of signals return to.
    pub restorers: Vec<u64>,
    /// What the holder is to write, when all stand still, for this process cannot. Empty where it
    /// writes itself.
    pub edits: &'a [SiteEdit],
}

/// Holds all threads of this process but the calling one.
pub trait Hold: std::fmt::Debug {
    /// Returns when they stand still, and none stands inside of a site: also not below a signal's
    /// handler, as far as stacks show.
    ///
    /// From here to [`Hold::release`] the calling thread must take no lock, for its holder may
    /// stand still: so it must not allocate.
    ///
    /// # Errors
    /// Why not, in words. Then they run.
    fn hold(&mut self, request: &Request<'_>) -> Result<(), String>;

    /// Whether they are still held: no longer when the one who holds them has ended. Takes no lock.
    fn holds(&self) -> bool;

    /// Lets them go. Takes no lock.
    fn release(&mut self);
}

/// Who holds this process's other threads while sites are written.
#[derive(Debug, Default)]
pub enum Holder<'a> {
    /// Nobody: they run.
    #[default]
    Nobody,
    /// Somebody does.
    Tracer(&'a mut dyn Hold),
}

impl Holder<'_> {
    /// Runs `write` while the others stand still. `write` gets a question to ask now and then:
    /// whether to go on. `edits` are what the holder has written before `write` runs, if it could.
    ///
    /// # Errors
    /// Why they cannot be held; then nothing was done. Nobody holds nobody.
    pub(crate) fn during(
        &mut self,
        sites: &[u64],
        moves: &[[u64; 2]],
        edits: &[SiteEdit],
        write: impl FnOnce(&dyn Fn() -> bool),
    ) -> Result<(), String> {
        match self {
            Holder::Nobody => return Err("nobody holds them".to_owned()),
            Holder::Tracer(tracer) => {
                tracer.hold(&Request { sites, moves, restorers: os::restorers(), edits })?;
                write(&|| tracer.holds());
                tracer.release();
            }
        }
        Ok(())
    }
}
