//! The user for whom root's kymo runs, under sudo: new files are that user's.
use rustix::fs::{Gid, Mode, Stat, Uid, fchown, fstat};
use std::os::fd::AsFd;

/// The user and group that called sudo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SudoUser {
    uid: u32,
    gid: u32,
}

impl SudoUser {
    /// As sudo says it, to a process of root; nobody else can set that for root's kymo.
    fn from_environment() -> Option<SudoUser> {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
        let caller = SudoUser { uid: number("SUDO_UID")?, gid: number("SUDO_GID")? };
        (rustix::process::geteuid().is_root() && caller.uid != 0).then_some(caller)
    }

    /// Whether the caller could have made a file in this folder: its owner, or anyone in a folder
    /// such as `/tmp`.
    fn may_create_in(self, folder: &Stat) -> bool {
        let mode = Mode::from_raw_mode(folder.st_mode);
        folder.st_uid == self.uid || mode.contains(Mode::SVTX | Mode::WOTH)
    }
}

/// Gives a file that was just made, and that no other process has, to the user who called sudo, if
/// it lies in a folder in which that user may make files. Where that fails it stays root's.
pub(crate) fn give(file: impl AsFd, folder: impl AsFd) {
    let Some(caller) = SudoUser::from_environment() else { return };
    if fstat(folder).is_ok_and(|stat| caller.may_create_in(&stat)) {
        // By descriptor: no name can lead elsewhere meanwhile.
        let _ = fchown(file, Some(Uid::from_raw(caller.uid)), Some(Gid::from_raw(caller.gid)));
    }
}

/// The user who called sudo, if this is root's process under sudo.
pub(crate) fn uid() -> Option<u32> {
    SudoUser::from_environment().map(|caller| caller.uid)
}

/// Whether a file is that of the user who called sudo.
pub(crate) fn owns(stat: &Stat) -> bool {
    SudoUser::from_environment().is_some_and(|caller| caller.uid == stat.st_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which folders are those of a caller: their own, and those in which all may make
    /// files, but not root's.
    #[test]
    fn folders_of_the_caller() {
        let caller = SudoUser { uid: 1000, gid: 1000 };
        let mut stat = fstat(std::fs::File::open("/").unwrap()).unwrap();
        for (uid, mode, expected) in [
            (1000, 0o700, true),
            (0, 0o755, false),
            (0, 0o1777, true),
            (0, 0o777, false),
            (1001, 0o755, false),
        ] {
            (stat.st_uid, stat.st_mode) = (uid, 0o040_000 | mode);
            assert_eq!(caller.may_create_in(&stat), expected, "{uid} {mode:o}");
        }
    }
}
