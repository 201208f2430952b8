//! Records whose headers the kernel changed for another event, and did not change back.
//!
//! A record about a kernel symbol or a BPF program goes to every event on the machine that asked
//! for such. For each of them the kernel adds the size of its trailer to the same header and does
//! not take it away again (seen on Linux 6.18): so where several recorders are at work, the record
//! of one has behind its trailer as many bytes, of whatever lay in the ring, as the trailers of
//! others take. Read from the record's end, as trailers are, the id is then garbage, and perf gives
//! up on the file.

//!
//! A record about a mapping is in the same way one header for all events that see it. For an event
//! with build ids the kernel sets a bit in it (`PERF_RECORD_MISC_MMAP_BUILD_ID`) that stays for the
//! events after it, whose records have a device and an inode there (`perf_event_mmap_output`, seen
//! on Linux 6.18): beside a perf that records build ids of the whole machine, the files of another
//! recorder seem to have ids like `00000000d7c403...`. perf 6.1 crashes on them.

use crate::abi;

/// Whether the 24 bytes that identify a mapping's file are a build id, if the record's header says
/// so.
///
/// A build id is its length, three zeros, and the id with zeros after it. A device's number has its
/// low byte where the length would be: 254 and 0 are none, and after 7 to 9 (loop, sd, md) a small
/// minor number follows, which no hash begins with.
pub fn holds_build_id(identity: &[u8]) -> bool {
    let Some((&[size, 0, 0, 0], id)) = identity.split_first_chunk::<4>() else { return false };
    let Some((id, rest)) = id.split_at_checked(usize::from(size)) else { return false };
    let is_device = id.len() < 16 && id.get(1..4) == Some(&[0; 3]);
    !id.is_empty() && !is_device && rest.iter().all(|&byte| byte == 0)
}

/// How many bytes of this record's body mean anything: all, but of those records that the kernel
/// makes too long. `trailer_bytes`: the length of the trailer of the event that wrote it.
pub fn meant_bytes(kind: u32, body: &[u8], trailer_bytes: usize) -> usize {
    // Address, length, type and flags of a symbol; type, flags, id and tag of a program.
    const FIXED: usize = 16;
    let own = match kind {
        abi::PERF_RECORD_KSYMBOL => {
            let name = body.get(FIXED..).unwrap_or(&[]);
            let Some(end) = name.iter().position(|&byte| byte == 0) else { return body.len() };
            FIXED + (end + 1).next_multiple_of(8)
        }
        abi::PERF_RECORD_BPF_EVENT => FIXED,
        _ => return body.len(),
    };
    body.len().min(own + trailer_bytes)
}

#[cfg(test)]
mod tests {
    use super::{holds_build_id, meant_bytes};
    use crate::abi;

    /// Checks ids of the usual lengths, and devices and inodes under a header that another event's
    /// build id has left.
    #[test]
    fn inodes_are_no_build_ids() {
        let id = |size: u8| {
            [&[size, 0, 0, 0][..], &vec![7; usize::from(size)], &vec![0; 20 - usize::from(size)]].concat()
        };
        assert!([8, 16, 20].iter().all(|&size| holds_build_id(&id(size))));
        let inode = |major: u32, minor: u32, inode: u64, generation: u64| {
            let device = [major.to_le_bytes(), minor.to_le_bytes()].concat();
            [device, inode.to_le_bytes().to_vec(), generation.to_le_bytes().to_vec()].concat()
        };
        assert!(!holds_build_id(&inode(254, 0, 0x3c4d7, 0)), "virtio");
        assert!(!holds_build_id(&inode(0, 31, 77, 0)), "overlay");
        assert!(!holds_build_id(&inode(8, 1, 0x3c4d7, 0)), "a disk");
        assert!(!holds_build_id(&inode(259, 3, 0x3c4d7, 12345)), "nvme");
        assert!(!holds_build_id(&[]) && !holds_build_id(&id(20)[..20]));
    }

    /// Checks records as they should be, longer ones, and damaged ones, which are left alone.
    #[test]
    fn lengths() {
        let symbol = |name: &[u8], more: usize| [&[0; 16][..], name, &vec![7; more]].concat();
        let of_symbol = |body: &[u8], trailer| meant_bytes(abi::PERF_RECORD_KSYMBOL, body, trailer);
        assert_eq!(of_symbol(&symbol(b"seven77\0", 32), 32), 16 + 8 + 32);
        assert_eq!(of_symbol(&symbol(b"seven77\0", 64), 32), 16 + 8 + 32);
        assert_eq!(of_symbol(&symbol(b"eight888\0\0\0\0\0\0\0\0", 96), 32), 16 + 16 + 32);
        assert_eq!(of_symbol(&symbol(b"no end", 0), 32), 22);
        assert_eq!(of_symbol(&[0; 5], 32), 5);
        assert_eq!(meant_bytes(abi::PERF_RECORD_BPF_EVENT, &[0; 80], 32), 48);
        assert_eq!(meant_bytes(abi::PERF_RECORD_COMM, &[0; 80], 32), 80);
    }
}
