//! What sort keys ask of single samples beyond thread, CPU and stack: kept once for each distinct
//! value.
use rustc_hash::FxHashMap;

/// Index of an [`Extra`] in [`Extras`]; 0 is that of samples that nothing was asked of.
pub type ExtraId = u32;

/// What was asked of a sample.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extra {
    /// Time, rounded down to the step that was asked for, ns.
    pub time_ns: u64,
    /// The event whose format the raw bytes have.
    pub event: u32,
    /// A tracepoint's bytes. No empty ones: where values are compared, glibc's `memcmp` for AVX-512
    /// takes 40 times as long for two slices without bytes, at no address, as for two of eight.
    pub raw: Option<Box<[u8]>>,
    /// The id of the cgroup.
    pub cgroup: u64,
    /// How many threads ran.
    pub parallelism: u32,
}

/// Distinct values with dense ids. Memory grows with what is distinct: raw bytes of tracepoints
/// often are.
#[derive(Debug)]
pub struct Extras {
    list: Vec<Extra>,
    index: FxHashMap<Extra, ExtraId>,
}

impl Default for Extras {
    fn default() -> Extras {
        let mut extras = Extras { list: Vec::new(), index: FxHashMap::default() };
        extras.intern(Extra::default());
        extras
    }
}

impl Extras {
    /// The id of this value, made on first sight.
    pub fn intern(&mut self, extra: Extra) -> ExtraId {
        let next = self.list.len() as ExtraId;
        *self.index.entry(extra).or_insert_with_key(|extra| {
            self.list.push(extra.clone());
            next
        })
    }

    /// Takes in all values of `other`; the answer maps its ids to ours.
    pub fn absorb(&mut self, other: &Extras) -> Vec<ExtraId> {
        other.list.iter().map(|extra| self.intern(extra.clone())).collect()
    }

    /// The same values in their own order; the answer maps ids before to ids now. What samples have
    /// that nothing was asked of stays the first.
    pub(crate) fn sorted(mut self) -> (Extras, Vec<ExtraId>) {
        let before = self.list.clone();
        self.list.sort_unstable();
        self.index = (0..).zip(&self.list).map(|(id, extra)| (extra.clone(), id)).collect();
        let ids = before.iter().map(|extra| self.index[extra]).collect();
        (self, ids)
    }

    /// The value of an id given by this table.
    pub fn get(&self, id: ExtraId) -> &Extra {
        &self.list[id as usize]
    }

    /// All values, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Extra> {
        self.list.iter()
    }
}
