//! Where a tracer listens, and which users may command a program.

/// The address of a socket by its name, and the address's bytes; `None` if the name is too long.
pub(super) fn address(name: &[u8]) -> Option<(libc::sockaddr_un, libc::socklen_t)> {
    let sun_family = libc::AF_UNIX as libc::sa_family_t;
    let mut address = libc::sockaddr_un { sun_family, sun_path: [0; 108] };
    // After a zero byte: a name that is in no file system.
    let place = address.sun_path.get_mut(1..=name.len())?;
    place.iter_mut().zip(name).for_each(|(place, byte)| *place = *byte as libc::c_char);
    let length = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Some((address, length as libc::socklen_t))
}

/// Whose number the kernel gives to users that this user namespace does not have: it may be anyone.
pub(super) const NO_USER: libc::uid_t = 65534;

/// Whether a listener of this user may command a program of that one.
pub(super) fn may_command(listener: libc::uid_t, own: libc::uid_t) -> bool {
    listener == 0 || (listener == own && listener != NO_USER)
}
