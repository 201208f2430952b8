//! Records that the kernel made too long.
//!
//! A record about a kernel symbol or a BPF program goes to every event on the machine that asked for such. For each of them the kernel adds the
//! size of its trailer to the same header and does not take it away again (seen on Linux 6.18): so where several recorders are at work, the
//! record of one has behind its trailer as many bytes, of whatever lay in the ring, as the trailers of others take. Read from the record's end,
//! as trailers are, the id is then garbage, and perf gives up on the file.

use crate::abi;

/// How many bytes of this record's body mean anything: all, but of those records that the kernel makes too long. `trailer_bytes`: the length of
/// the trailer of the event that wrote it.
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
    use super::meant_bytes;
    use crate::abi;

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
