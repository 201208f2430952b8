//! Opening and making files in folders that others may change.
//!
//! *You give* a path that a user named. *It gives* an open [`File`](std::fs::File) that was judged
//! by its descriptor, a file that gets its name when it is complete ([`Export`], [`Fresh`]), a
//! folder of this user's own for files that are read again ([`PrivateFolder`]), or one whose files
//! others may name ([`FolderRoot`]).
//!
//! kymo often runs as root and is given paths in folders of ordinary users: recordings to read,
//! programs and debug files to look symbols up in, places to write to. The owner of such a folder
//! can exchange a file for a symbolic link, a named pipe or another file between any two system
//! calls. So a path is opened once, and all else is asked of the descriptor.
//!
//! # Your part
//! Keep the descriptor: opening the path again gives up what was checked. Bound what you read; a
//! file may grow meanwhile.
//!
//! # Invariants
//! - **F1** Opening to read never waits for another process: a named pipe opens at once and is
//!   refused by its descriptor.
//! - **F2** What is written appears under a name that did not exist, or takes the place of a whole
//!   file by one `rename(2)`. No byte goes through a symbolic link, into a pipe, or into a file
//!   that belongs to another user (but root).
//! - **F3** The folder of an output is reached once, and all later steps start from its descriptor.
//!   Symbolic links of other users (but root's) on the way are refused, as `fs.protected_symlinks`
//!   does in `/tmp`.
//! - **F4** A file that was not completed leaves nothing, except where the file system has no
//!   nameless files and kymo is killed: then a hidden `.NAME.kymo-*` stays.
//! - **F5** Under sudo, new files in a folder of the caller are the caller's, with the same mode.
//!
//! # Non-goals
//! Permissions beyond owner and links, locking, directories that are walked recursively.
//!
//! # Example
//! ```
//! use kymo_files::{Export, open_regular};
//! use std::io::{Read, Write};
//!
//! # fn main() -> std::io::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("kymo-files-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let path = folder.join("result.txt");
//! let mut export = Export::create(&path, |_| None)?;
//! export.write_all(b"whole or not at all")?;
//! export.finish()?;
//!
//! let mut text = String::new();
//! open_regular(&path)?.take(1 << 20).read_to_string(&mut text)?;
//! assert_eq!(text, "whole or not at all");
//! # std::fs::remove_dir_all(&folder)
//! # }
//! ```
#![forbid(unsafe_code)]

mod below;
mod caller;
mod export;
mod folder;
mod fresh;
mod private;
mod reach;
mod read;

pub use below::FolderRoot;
pub use export::Export;
pub use folder::{Folder, Identity, passed_descriptor};
pub use fresh::Fresh;
pub use private::{PrivateFile, PrivateFolder};
pub use reach::is_readable_by_others;
pub use read::{Input, kind_name, open_input, open_no_link, open_regular};

use rustix::fs::Stat;
use std::io;

/// An error that is a sentence.
fn refused(sentence: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, sentence.into())
}

/// Whether a file is our own or root's: others can change theirs at any moment.
fn is_trusted(stat: &Stat) -> bool {
    stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw()
}
