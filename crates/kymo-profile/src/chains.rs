//! Distinct raw stacks: what most samples of a recording share.
//!
//! A busy program takes the same few thousand paths over and over, so the expensive questions (which mapping, which
//! symbol, which inlined functions) are asked once per distinct stack and not once per sample. Two samples have the
//! same raw stack when their address space version, mode, ip and call chain bytes are equal; equal bytes then mean
//! equal frames, because a version never changes (timeline, I3).
//!
//! Memory is bounded by what is distinct, never by the number of samples.
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};

/// Index of a distinct raw stack in a [`Chains`] table.
pub type ChainId = u32;

/// What the addresses of callers in the user's part of a call chain are. In the kernel's part they
/// are return addresses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum CallerAddresses {
    /// Return addresses, as the kernel finds them on the stack.
    #[default]
    AfterCall,
    /// Addresses in the calls: stacks that were unwound, and branch records, have these.
    InCall,
}

/// A call chain as it was recorded.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawChain<'a> {
    /// Little-endian words, context markers among them.
    pub bytes: &'a [u8],
    /// What the addresses of its callers are.
    pub callers: CallerAddresses,
}

impl<'a> RawChain<'a> {
    /// The words, markers among them.
    pub fn words(self) -> impl Iterator<Item = u64> + Clone + 'a {
        self.bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
    }
}

impl<'a> From<&'a [u8]> for RawChain<'a> {
    /// A chain that the kernel walked.
    fn from(bytes: &'a [u8]) -> RawChain<'a> {
        RawChain { bytes, callers: CallerAddresses::AfterCall }
    }
}

/// A distinct raw stack.
#[derive(Debug, Clone, Copy)]
pub struct Chain {
    /// Version of the address space that user addresses are in.
    pub maps: u32,
    /// `PERF_RECORD_MISC_CPUMODE` bits of the sample.
    pub mode: u8,
    /// Sampled address.
    pub ip: u64,
    callers: CallerAddresses,
    hash: u64,
    offset: usize,
    len: u32,
}

impl Chain {
    /// A hash of all that the stack is, the same in each run.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}

/// A set of distinct raw stacks with dense ids.
#[derive(Debug, Default)]
pub struct Chains {
    index: HashTable<ChainId>,
    list: Vec<Chain>,
    /// Call chains, one after another, as the recording has them: little-endian words with context markers.
    arena: Vec<u8>,
}

impl Chains {
    /// The id of this stack, made on first sight. Allocates only then.
    pub fn intern<'w>(&mut self, maps: u32, mode: u8, ip: u64, words: impl Into<RawChain<'w>>) -> ChainId {
        let words = words.into();
        let mut hasher = FixedState::with_seed(0).build_hasher();
        hasher.write_u64(ip ^ (u64::from(maps) << 32) ^ u64::from(mode));
        hasher.write(words.bytes);
        self.intern_hashed(hasher.finish(), maps, mode, ip, words)
    }

    fn intern_hashed(&mut self, hash: u64, maps: u32, mode: u8, ip: u64, words: RawChain<'_>) -> ChainId {
        let RawChain { bytes, callers } = words;
        let same = |&id: &ChainId| {
            let chain = &self.list[id as usize];
            chain.hash == hash
                && chain.ip == ip
                && chain.maps == maps
                && chain.mode == mode
                && chain.callers == callers
                && chain.len as usize == bytes.len()
                // Without a chain there is nothing to compare, and a masked compare of the dangling pointer of an
                // empty arena takes a microcode assist: 60 ns a sample, a sixth of a flat report.
                && (bytes.is_empty() || self.arena[chain.offset..chain.offset + bytes.len()] == *bytes)
        };
        if let Some(&id) = self.index.find(hash, same) {
            return id;
        }
        let id = self.list.len() as ChainId;
        let offset = self.arena.len();
        self.arena.extend_from_slice(bytes);
        self.list.push(Chain { maps, mode, ip, callers, hash, offset, len: bytes.len() as u32 });
        self.index.insert_unique(hash, id, |&id| self.list[id as usize].hash);
        id
    }

    /// Takes in all stacks of `other`; the answer maps its ids to ours.
    pub fn absorb(&mut self, other: &Chains) -> Vec<ChainId> {
        other.list.iter().map(|c| self.intern_hashed(c.hash, c.maps, c.mode, c.ip, other.raw(c))).collect()
    }

    /// The same stacks under other ids: `ids` has the id before of each, all of them.
    pub(crate) fn reordered(mut self, ids: &[ChainId]) -> Chains {
        self.list = ids.iter().map(|id| self.list[*id as usize]).collect();
        self.index.clear();
        for (id, chain) in (0..).zip(&self.list) {
            self.index.insert_unique(chain.hash, id, |id| self.list[*id as usize].hash);
        }
        self
    }

    /// The stack of an id given by this table.
    pub fn get(&self, id: ChainId) -> &Chain {
        &self.list[id as usize]
    }

    /// A stack's call chain as recorded: little-endian words.
    pub fn bytes(&self, chain: &Chain) -> &[u8] {
        &self.arena[chain.offset..chain.offset + chain.len as usize]
    }

    /// A stack's call chain, and what the addresses of its callers are.
    pub fn raw(&self, chain: &Chain) -> RawChain<'_> {
        RawChain { bytes: self.bytes(chain), callers: chain.callers }
    }

    /// Words of all stacks.
    pub(crate) fn words_total(&self) -> usize {
        self.arena.len() / 8
    }

    /// How many distinct stacks.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// No stack at all.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that equal stacks share an id, and that any difference makes another.
    #[test]
    fn equal_stacks_share_an_id() {
        let mut chains = Chains::default();
        let a = chains.intern(1, 2, 3, &[1; 16][..]);
        assert_eq!(a, chains.intern(1, 2, 3, &[1; 16][..]));
        let others = [
            chains.intern(2, 2, 3, &[1; 16][..]),
            chains.intern(1, 1, 3, &[1; 16][..]),
            chains.intern(1, 2, 4, &[1; 16][..]),
            chains.intern(1, 2, 3, &[1; 8][..]),
            chains.intern(1, 2, 3, &[][..]),
        ];
        for (i, id) in others.into_iter().enumerate() {
            assert_eq!(id as usize, i + 1);
        }
        assert_eq!(chains.raw(chains.get(a)).words().collect::<Vec<_>>(), [0x0101_0101_0101_0101; 2]);
    }

    /// Checks that merging two tables maps every stack to its equal.
    #[test]
    fn absorbing_maps_ids() {
        let (mut a, mut b) = (Chains::default(), Chains::default());
        a.intern(0, 1, 10, &[][..]);
        a.intern(0, 1, 11, &[7; 8][..]);
        b.intern(0, 1, 11, &[7; 8][..]);
        b.intern(0, 1, 12, &[8; 8][..]);
        assert_eq!(a.absorb(&b), [1, 2]);
        assert_eq!(a.len(), 3);
        assert_eq!(a.get(2).ip, 12);
    }

    /// Checks that stacks are found under the ids that they were given.
    #[test]
    fn reordered_stacks_are_found() {
        let mut chains = Chains::default();
        let stack = |chains: &mut Chains, ip| chains.intern(0, 1, ip, &[ip as u8; 8][..]);
        assert_eq!([10, 11, 12].map(|ip| stack(&mut chains, ip)), [0, 1, 2]);
        let mut chains = chains.reordered(&[2, 0, 1]);
        assert_eq!([12, 10, 11].map(|ip| stack(&mut chains, ip)), [0, 1, 2]);
        assert_eq!(chains.len(), 3);
        assert_eq!(chains.bytes(chains.get(0)), [12; 8]);
    }
}
