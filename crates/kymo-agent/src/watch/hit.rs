//! A hit, as handlers see it.
use kymo_core::breakpoint::Kind;

/// One access, told to a handler in the thread that did it, before the thread's next instruction.
#[derive(Debug)]
pub struct Hit {
    /// The address that is watched: the access was somewhere in its [`len`](Hit::len) bytes.
    pub address: usize,
    /// How many bytes are watched.
    pub len: usize,
    /// What the watch is for. A watch for reads and writes does not tell which of them it was.
    pub kind: Kind,
    /// Where the thread goes on: the instruction after the access (the one itself for
    /// [`Kind::EXECUTE`]).
    pub ip: usize,
    /// The thread, by the kernel's number.
    pub thread: i32,
    /// The value when the watch was last looked at: at its start or its last hit. `None` if there
    /// was none, and for instructions.
    pub old: Option<u64>,
    /// The value now, as a number of `len` bytes. Other threads may have written since the access.
    pub new: Option<u64>,
    /// Whether the thread is still where it did it. `false`: it had blocked SIGTRAP, and is told
    /// later, once for all accesses meanwhile; then `ip` is not the access.
    pub synchronous: bool,
    pub(super) token: u64,
}
