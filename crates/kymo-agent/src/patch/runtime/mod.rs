//! What threads of the program run at a hit, at a return, and at a trap. It runs anywhere, also in
//! handlers of signals and with the locks of the program held: it allocates nothing, takes no lock,
//! calls no library, and knows nothing of how code is emitted or installed.
pub(crate) mod callers;
pub(crate) mod frames;
pub(crate) mod holds;
pub(crate) mod shadow;
pub(crate) mod slow_path;
pub(crate) mod stale_frames;
pub(crate) mod trap;
