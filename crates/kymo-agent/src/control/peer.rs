//! Which users may command a program.

/// Whose number the kernel gives to users that this user namespace does not have: it may be anyone.
pub(super) const NO_USER: libc::uid_t = 65534;

/// Whether a listener of this user may command a program of that one.
pub(super) fn may_command(listener: libc::uid_t, own: libc::uid_t) -> bool {
    listener == 0 || (listener == own && listener != NO_USER)
}
