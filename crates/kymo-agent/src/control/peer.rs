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

/// Whose number the kernel gives to users that this user namespace does not have, if nobody has
/// set another one: it may be anyone. Where all users are known, it is the user "nobody".
pub(super) const NO_USER: libc::uid_t = 65534;

/// Whether a listener of this user may command a program of that one. `is_known`: each number
/// stands for one user here ([`users_are_known`]).
pub(super) fn may_command(listener: libc::uid_t, own: libc::uid_t, is_known: bool) -> bool {
    listener == 0 || (listener == own && (is_known || listener != NO_USER))
}

/// Whether this user namespace has a number for each user of the machine, so that none is shown by
/// another one's. The first namespace has, and those that map all.
pub(super) fn users_are_known() -> bool {
    let mut text = [0; 256];
    let got = crate::sys::raw::text(c"/proc/self/uid_map", &mut text);
    maps_all(&text[..got])
}

/// Whether a list of mapped users is one line: all of them, from 0 on. The kernel shows the numbers
/// of the reader's namespace, in which a mapping of all is that of the first one.
fn maps_all(list: &[u8]) -> bool {
    let mut numbers = [u64::MAX; 3];
    let (mut count, mut inside) = (0, false);
    for byte in list {
        match byte {
            b'0'..=b'9' if inside => {
                let number = &mut numbers[count - 1];
                *number = number.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
            }
            b'0'..=b'9' if count < 3 => {
                numbers[count] = u64::from(byte - b'0');
                (count, inside) = (count + 1, true);
            }
            b' ' | b'\n' => inside = false,
            _ => return false,
        }
    }
    // All but the last number, which stands for no user.
    numbers[0] == 0 && numbers[1] == 0 && numbers[2] >= u64::from(u32::MAX) && numbers[2] != u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that only a list of all users counts, and that anything odd does not.
    #[test]
    fn lists_of_users() {
        assert!(maps_all(b"         0          0 4294967295\n"));
        for list in [
            &b""[..],
            b"         0       1000          1\n",
            b"         0     100000      65536\n",
            b"         0          1 4294967294\n",
            b"         0          0      65536\n     65536      65536 4294901759\n",
            b"0 0\n",
            b"0 0 x\n",
        ] {
            assert!(!maps_all(list), "{}", String::from_utf8_lossy(list));
        }
    }

    /// Checks that only root and the program's own user may command it, and nobody whose number may
    /// be that of another user.
    #[test]
    fn who_may_command() {
        for is_known in [true, false] {
            assert!(may_command(0, 0, is_known) && may_command(0, 1000, is_known));
            assert!(may_command(1000, 1000, is_known) && may_command(0, NO_USER, is_known));
            assert!(!may_command(1000, 0, is_known) && !may_command(1001, 1000, is_known));
            assert_eq!(may_command(NO_USER, NO_USER, is_known), is_known);
        }
    }
}
