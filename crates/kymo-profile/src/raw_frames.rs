//! The frames of raw call chains: what each recorded address is, and where it is looked up.
//!
//! ```text
//!  KERNEL  sampled  return  return ..  USER  interrupted  caller  caller ..
//!          as it is   - 1     - 1            as it is     - 1, or as it is if it lies in its call
//! ```
//!
//! A return address is that of the instruction after the call. What lies there can be another
//! line, a function that was inlined after the call, or the next function if the call never
//! returns. So the byte before it is looked up, which is one of the call's.
//!
//! # Compared with perf
//!
//! perf does the same for stacks that it unwinds itself, but looks up the return addresses of
//! `--call-graph fp` as they are. There it shows functions that were inlined after a call as its
//! callers, and the next function as the caller of what never returns.
use crate::chains::{CallerAddresses, Chain, Chains, RawChain};
use crate::timeline::ModuleId;
use kymo_data::abi::PERF_CONTEXT_MAX;

/// Markers in a call chain: what follows ran in this mode.
/// Source: `enum perf_callchain_context` in `linux/perf_event.h`.
const CONTEXTS: [(i64, u8); 7] =
    [(-32, 3), (-128, 1), (-512, 2), (-640, 2), (-2048, 4), (-2176, 4), (-2560, 5)];

pub(crate) const MODE_KERNEL: u8 = 1;
const MODE_USER: u8 = 2;

/// A frame of a raw call chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawFrame {
    /// `PERF_RECORD_MISC_CPUMODE` bits.
    pub mode: u8,
    /// The address as it was recorded.
    pub ip: u64,
    /// It is that of the instruction after a call.
    pub is_return: bool,
}

/// An address to look up: in which address space, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Version of the address space; 0 for the kernel.
    pub maps: u32,
    /// `PERF_RECORD_MISC_CPUMODE` bits.
    pub mode: u8,
    /// The address as it was recorded.
    pub ip: u64,
    /// It is that of the instruction after a call.
    pub is_return: bool,
}

impl Place {
    /// The place of a frame.
    pub fn new(maps: u32, RawFrame { mode, ip, is_return }: RawFrame) -> Place {
        // Kernel addresses mean the same in every address space.
        Place { maps: if is_user(mode) { maps } else { 0 }, mode, ip, is_return }
    }

    /// The place of an instruction that was sampled, or is named by itself.
    pub fn exact(maps: u32, mode: u8, ip: u64) -> Place {
        Place::new(maps, RawFrame { mode, ip, is_return: false })
    }

    /// The place of a stack's sampled instruction.
    pub fn sampled(chain: &Chain) -> Place {
        Place::exact(chain.maps, chain.mode, chain.ip)
    }
}

/// Whether the mappings of a process of this machine tell what an address of this mode is.
pub(crate) fn is_user(mode: u8) -> bool {
    mode != MODE_KERNEL && ModuleId::for_mode(mode).is_none()
}

/// Calls `each` with the place of every frame of a stack's call chain, innermost first.
pub fn walk_chain(chains: &Chains, chain: &Chain, max_stack: usize, mut each: impl FnMut(Place)) {
    walk_words(chains.raw(chain), max_stack, |frame| each(Place::new(chain.maps, frame)));
}

/// Calls `each` with every frame of a raw call chain, innermost first. A marker that is not known
/// says that the chain is damaged: it then has no frames.
pub fn walk_words(chain: RawChain<'_>, max_stack: usize, mut each: impl FnMut(RawFrame)) {
    let mode_of = |word: u64| CONTEXTS.iter().find(|c| c.0 as u64 == word).map(|c| c.1);
    if chain.words().any(|word| word >= PERF_CONTEXT_MAX && mode_of(word).is_none()) {
        return;
    }
    // Words before the first marker are taken for user addresses, as perf does.
    let mut mode = MODE_USER;
    // The first address after a marker is that of the instruction that was interrupted.
    let mut is_caller = false;
    let mut seen = 0;
    for word in chain.words() {
        if let Some(marked) = mode_of(word) {
            mode = marked;
            is_caller = false;
            continue;
        }
        seen += 1;
        if seen > max_stack {
            return;
        }
        let is_return = is_caller && (!is_user(mode) || chain.callers == CallerAddresses::AfterCall);
        each(RawFrame { mode, ip: word, is_return });
        is_caller = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which addresses of a chain are return addresses: none that was interrupted, and in
    /// the user's part those only that the kernel found.
    #[test]
    fn return_addresses() {
        let kernel = -128_i64 as u64;
        let user = -512_i64 as u64;
        let bytes: Vec<u8> =
            [kernel, 10, 11, 12, user, 20, 21].into_iter().flat_map(u64::to_le_bytes).collect();
        let frames = |callers, most| {
            let mut frames = Vec::new();
            walk_words(RawChain { bytes: &bytes, callers }, most, |RawFrame { mode, ip, is_return }| {
                frames.push((mode, ip, is_return));
            });
            frames
        };
        let in_kernel = [(1, 10, false), (1, 11, true), (1, 12, true), (2, 20, false)];
        assert_eq!(frames(CallerAddresses::AfterCall, 9), [&in_kernel[..], &[(2, 21, true)]].concat());
        assert_eq!(frames(CallerAddresses::InCall, 9), [&in_kernel[..], &[(2, 21, false)]].concat());
        assert_eq!(frames(CallerAddresses::InCall, 2), in_kernel[..2]);
    }
}
