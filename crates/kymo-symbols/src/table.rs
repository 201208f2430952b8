//! The sorted table of one module's symbols, and the builder that fills it by perf's rules.

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

use super::budget::Charge;
use super::demangle;
use super::name::{self, LONGEST_NAME, name_at, shortened};
use super::tree::{Step, Tree};

/// No function of a kernel is longer. The linker pads behind some by more, to 1 or 2 MiB.
const LONGEST_CODE: u64 = 512 << 10;
/// Bytes of names that are made readable to choose between the aliases of a table.
const MOST_COMPARED: usize = 64 << 20;
/// Bytes by which names that are no UTF-8 may lengthen a table.
const MOST_WRITTEN_OUT: usize = 4 << 20;

/// One symbol: the half-open range that it covers and what it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolRef<'a> {
    /// First address of the symbol, in the module's address space.
    pub start: u64,
    /// First address after the symbol.
    pub end: u64,
    /// The name as perf prints it (demangled unless switched off).
    pub name: &'a str,
    /// The name as the file stores it, the first 16 KiB of it.
    pub raw_name: &'a str,
    /// Number of the symbol in its table: a small key for aggregation, stable for this table.
    pub index: u32,
}

/// Every symbol of one module, ordered by start.
#[derive(Clone, Debug, Default)]
pub struct SymbolTable {
    starts: Vec<u64>,
    ends: Vec<u64>,
    names: Vec<u32>,
    /// All names, each ended by a zero byte; a module's string table is taken over as it is.
    arena: Arc<String>,
    /// Readable names, made when first asked for. Empty where no name of the table can be mangled.
    readable: Box<[OnceLock<Option<Box<str>>>]>,
    demangle: bool,
    overlap: Option<Box<Overlap>>,
    /// What it takes of the account of files.
    #[expect(dead_code, reason = "held, not read")]
    room: Arc<Vec<Charge>>,
}

/// What it takes to answer where symbols overlap.
#[derive(Clone, Debug)]
struct Overlap {
    /// For each symbol, the farthest end of all symbols before it.
    reach: Vec<u64>,
    /// Start of every symbol that was ever inserted, in order of insertion.
    inserted: Vec<u64>,
    /// Number in the table of each insertion; `u32::MAX` for one that was removed.
    number: Vec<u32>,
    /// (insertions so far, insertion removed), in order.
    removed: Vec<(u32, u32)>,
    tree: OnceLock<Tree>,
}

impl SymbolTable {
    /// The symbol that covers `address`, if there is one; where several do, the one that perf finds.
    pub fn find(&self, address: u64) -> Option<SymbolRef<'_>> {
        self.get(self.find_index(address)?)
    }

    fn find_index(&self, address: u64) -> Option<u32> {
        let after = self.starts.partition_point(|&start| start <= address);
        let last = after.checked_sub(1)?;
        if let Some(overlap) = &self.overlap
            && overlap.reach[last] > address
        {
            return overlap.find(self, address);
        }
        (self.side(last, address) == Ordering::Equal).then_some(last as u32)
    }

    /// Where `address` lies relative to symbol `index`: before, inside or behind.
    fn side(&self, index: usize, address: u64) -> Ordering {
        let (start, end) = (self.starts[index], self.ends[index]);
        if address < start {
            Ordering::Less
        } else if address > end || (address == end && address != start) {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }

    /// The symbol with this number.
    pub fn get(&self, index: u32) -> Option<SymbolRef<'_>> {
        let i = index as usize;
        let raw_name = text_at(&self.arena, *self.names.get(i)?);
        let readable = self.readable.get(i).and_then(|cell| {
            cell.get_or_init(|| {
                let bytes = name_at(self.arena.as_bytes(), self.names[i] as usize);
                let shown = match shortened(bytes) {
                    Cow::Borrowed(name) if self.demangle => demangle::readable(name),
                    shown => shown,
                };
                (shown != raw_name).then(|| shown.into_owned().into_boxed_str())
            })
            .as_deref()
        });
        Some(SymbolRef {
            start: self.starts[i],
            end: self.ends[i],
            name: readable.unwrap_or(raw_name),
            raw_name,
            index,
        })
    }

    /// All symbols by start.
    pub fn iter(&self) -> impl Iterator<Item = SymbolRef<'_>> {
        (0..self.names.len() as u32).filter_map(|index| self.get(index))
    }

    /// How many symbols there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is no symbol at all.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Adds `delta` to every address: the kernel of the recording was loaded elsewhere.
    pub(super) fn shift(&mut self, delta: u64) {
        let shifted = |list: &mut Vec<u64>| list.iter_mut().for_each(|a| *a = a.wrapping_add(delta));
        shifted(&mut self.starts);
        shifted(&mut self.ends);
        if let Some(overlap) = &mut self.overlap {
            shifted(&mut overlap.reach);
            shifted(&mut overlap.inserted);
        }
    }
}

impl Overlap {
    fn find(&self, table: &SymbolTable, address: u64) -> Option<u32> {
        let tree = self.tree.get_or_init(|| {
            let mut removed = self.removed.iter().peekable();
            let mut inserted = 0u32;
            let total = self.inserted.len() as u32;
            let steps = std::iter::from_fn(|| {
                if let Some(&&(when, which)) = removed.peek()
                    && when <= inserted
                {
                    removed.next();
                    return Some(Step::Erase(which));
                }
                (inserted < total).then(|| {
                    inserted += 1;
                    Step::Insert
                })
            });
            Tree::replay(steps, |n| self.inserted[n as usize])
        });
        let found = tree.search(|n| table.side(self.number[n as usize] as usize, address))?;
        Some(self.number[found as usize])
    }
}

/// The first of these starts between two addresses, or the second address.
fn before_other(starts: &[u64], from: u64, end: u64) -> u64 {
    let next = starts.get(starts.partition_point(|start| *start <= from));
    next.map_or(end, |next| end.min(*next))
}

/// The text at `offset` of an arena of zero-ended names.
fn text_at(arena: &str, offset: u32) -> &str {
    let rest = arena.get(offset as usize..).unwrap_or("");
    let end = (0..=rest.len().min(LONGEST_NAME)).rev().find(|&at| rest.is_char_boundary(at)).unwrap_or(0);
    let rest = &rest[..end];
    &rest[..memchr::memchr(0, rest.as_bytes()).unwrap_or(rest.len())]
}

/// How strongly a symbol binds, as far as the choice between aliases cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    Global,
    Weak,
    Local,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    end: u64,
    name: u32,
    binding: Binding,
    /// Whose symbol it is: 0 for the file or the kernel itself, else a kernel module's number.
    group: u16,
    end_rule: EndRule,
}

/// Where a symbol of the kernel's list ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EndRule {
    /// Where the next one starts.
    #[default]
    Next,
    /// There, or on the next page where that is farther than any code is long.
    Code,
    /// Where it starts: the linker marks an end with it, and what follows is padding.
    Marker,
}

/// Collects symbols in the order in which perf would insert them.
#[derive(Debug)]
pub(super) struct TableBuilder {
    arena: Vec<u8>,
    entries: Vec<Entry>,
    /// Entries still in the table, by start; the tail behind `settled` is in order of insertion.
    live: Vec<u32>,
    settled: usize,
    removed: Vec<(u32, u32)>,
    demangle: bool,
    /// Bytes of names that may still be made readable to choose between aliases.
    compared_bytes: Cell<usize>,
    room: Vec<Charge>,
    /// Where other symbols start, ascending: a symbol without a length ends there.
    other_starts: Vec<u64>,
}

impl TableBuilder {
    /// A builder whose names live in `arena`, a list of zero-ended strings.
    pub(super) fn new(arena: Vec<u8>, demangle: bool) -> TableBuilder {
        TableBuilder {
            arena,
            entries: Vec::new(),
            live: Vec::new(),
            settled: 0,
            removed: Vec::new(),
            demangle,
            compared_bytes: Cell::new(MOST_COMPARED),
            room: Vec::new(),
            other_starts: Vec::new(),
        }
    }

    /// Appends a whole string table; returns the offset of its first byte, or nothing if names would no longer fit.
    pub(super) fn add_names(&mut self, names: &[u8]) -> Option<u32> {
        if !matches!(self.arena.last(), None | Some(0)) {
            self.arena.push(0);
        }
        let base = u32::try_from(self.arena.len()).ok()?;
        u32::try_from(self.arena.len() + names.len() + 1).ok()?;
        self.arena.extend_from_slice(names);
        self.arena.push(0);
        Some(base)
    }

    /// Keeps room that was taken for the table as long as the table is there.
    pub(super) fn keep(&mut self, room: Charge) {
        self.room.push(room);
    }

    /// Symbols without a length end at these addresses, too: functions without a symbol start
    /// there, or symbols that are not kept. Ascending.
    pub(super) fn end_at(&mut self, starts: Vec<u64>) {
        self.other_starts = starts;
    }

    /// Inserts a symbol whose name starts at `name` in the arena. A length of 0 is decided by the next start.
    pub(super) fn insert(&mut self, start: u64, size: u64, name: u32, binding: Binding, group: u16) {
        let (end, end_rule) = (start.wrapping_add(size), EndRule::default());
        self.push(Entry { start, end, name, binding, group, end_rule });
    }

    /// Inserts a symbol of the kernel's list.
    pub(super) fn insert_listed(
        &mut self,
        start: u64,
        name: u32,
        (binding, group, end_rule): (Binding, u16, EndRule),
    ) {
        self.push(Entry { start, end: start, name, binding, group, end_rule });
    }

    fn push(&mut self, entry: Entry) {
        self.live.push(self.entries.len() as u32);
        self.entries.push(entry);
    }

    pub(super) fn name(&self, offset: u32) -> Cow<'_, str> {
        shortened(name_at(&self.arena, offset as usize))
    }

    /// Where the first inserted symbol with this name starts.
    pub(super) fn address_of(&self, name: &str) -> Option<u64> {
        self.entries.iter().find(|entry| self.name(entry.name) == name).map(|entry| entry.start)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn sort(&mut self) {
        if self.settled < self.live.len() {
            // Among equal starts the order of insertion stays, as in perf's tree.
            let mut keys: Vec<(u64, u32)> =
                self.live.iter().map(|&n| (self.entries[n as usize].start, n)).collect();
            keys.sort_unstable();
            self.live = keys.into_iter().map(|(_, n)| n).collect();
            self.settled = self.live.len();
        }
    }

    /// Gives symbols without a length their end, then keeps one of those that start at the same address.
    pub(super) fn fix(&mut self, kallsyms: bool) {
        self.sort();
        self.fix_ends(kallsyms);
        self.fix_duplicates();
    }

    fn fix_ends(&mut self, kallsyms: bool) {
        for at in 0..self.live.len() {
            let this = self.entries[self.live[at] as usize];
            if this.end == this.start {
                let end = match self.live.get(at + 1).map(|next| self.entries[*next as usize]) {
                    Some(next) if kallsyms => self.end_of_listed(at, this, next),
                    Some(next) => next.start,
                    None if this.end_rule == EndRule::Marker => this.start,
                    None => round_up_page(this.start).saturating_add(4096),
                };
                self.entries[self.live[at] as usize].end = before_other(&self.other_starts, this.start, end);
            }
        }
    }

    /// The end of a symbol of the kernel's list, which has no lengths. `at`: its place.
    fn end_of_listed(&self, at: usize, this: Entry, next: Entry) -> u64 {
        let is_alone = at == 0 || self.entries[self.live[at - 1] as usize].start != this.start;
        match this.end_rule {
            EndRule::Marker if is_alone && next.start != this.start => return this.start,
            EndRule::Code if next.start.wrapping_sub(this.start) > LONGEST_CODE => {}
            // The gaps between the kernel and its modules, and between modules, belong to nobody.
            _ if this.group != next.group => {}
            _ => return next.start,
        }
        round_up_page(this.start.saturating_add(4096))
    }

    fn fix_duplicates(&mut self) {
        let live = std::mem::take(&mut self.live);
        let inserted = self.entries.len() as u32;
        let mut kept: Vec<u32> = Vec::with_capacity(live.len());
        for next in live {
            match kept.last_mut() {
                Some(best) if self.entries[*best as usize].start == self.entries[next as usize].start => {
                    let loser =
                        if self.first_is_better(*best, next) { next } else { std::mem::replace(best, next) };
                    self.removed.push((inserted, loser));
                }
                _ => kept.push(next),
            }
        }
        self.settled = kept.len();
        self.live = kept;
    }

    fn first_is_better(&self, first: u32, second: u32) -> bool {
        let (a, b) = (&self.entries[first as usize], &self.entries[second as usize]);
        let rank = |e: &Entry| (e.end == e.start, e.binding == Binding::Weak, e.binding != Binding::Global);
        if rank(a) != rank(b) {
            return rank(a) < rank(b);
        }
        // Most aliases are one symbol that two tables list.
        let bytes = |e: &Entry| name_at(&self.arena, e.name as usize);
        if bytes(a) == bytes(b) {
            return !(bytes(a).starts_with(b"SyS") || bytes(a).starts_with(b"compat_SyS"));
        }
        // What is compared is the name that will be shown.
        let shown = |e: &Entry| {
            let raw = self.name(e.name);
            // Real functions have a handful of aliases. A hostile table may have a million that are dear to read.
            let left = self.compared_bytes.get().checked_sub(raw.len());
            match left.filter(|_| self.demangle) {
                Some(left) => {
                    let name = demangle::readable(&raw).into_owned();
                    self.compared_bytes.set(left.saturating_sub(name.len()));
                    name
                }
                None => raw.into_owned(),
            }
        };
        let (a, b) = (shown(a), shown(b));
        let underscores = |name: &str| name.bytes().take_while(|&c| c == b'_').count();
        match underscores(&a).cmp(&underscores(&b)).then(b.len().cmp(&a.len())) {
            Ordering::Less => true,
            Ordering::Greater => false,
            // Aliases of system calls lose.
            Ordering::Equal => !(a.starts_with("SyS") || a.starts_with("compat_SyS")),
        }
    }

    /// The finished table of each group, group 0 first.
    pub(super) fn finish_groups(mut self, groups: usize) -> Vec<SymbolTable> {
        self.sort();
        self.write_out_odd_names();
        let arena = Arc::new(into_text(std::mem::take(&mut self.arena)));
        let room = Arc::new(std::mem::take(&mut self.room));
        let mut members = vec![Vec::new(); groups.max(1)];
        for &n in &self.live {
            if let Some(list) = members.get_mut(usize::from(self.entries[n as usize].group)) {
                list.push(n);
            }
        }
        let tables = members.into_iter().map(|live| {
            self.live = live;
            self.table(&arena, &room)
        });
        tables.collect()
    }

    pub(super) fn finish(self) -> SymbolTable {
        self.finish_groups(1).pop().unwrap_or_default()
    }

    /// Names that are no UTF-8 are written out at the arena's end, so that two of them stay two.
    fn write_out_odd_names(&mut self) {
        if std::str::from_utf8(&self.arena).is_ok() {
            return;
        }
        let mut written = 0;
        for &number in &self.live {
            let entry = &mut self.entries[number as usize];
            let bytes = name_at(&self.arena, entry.name as usize);
            if std::str::from_utf8(bytes).is_ok() {
                continue;
            }
            let text = shortened(bytes).into_owned();
            written += text.len();
            let at = u32::try_from(self.arena.len() + 1).ok().filter(|_| written <= MOST_WRITTEN_OUT);
            let Some(at) = at else { return };
            self.arena.push(0);
            self.arena.extend_from_slice(text.as_bytes());
            entry.name = at;
        }
    }

    fn table(&self, arena: &Arc<String>, room: &Arc<Vec<Charge>>) -> SymbolTable {
        let pick = |field: fn(&Entry) -> u64| -> Vec<u64> {
            self.live.iter().map(|&n| field(&self.entries[n as usize])).collect()
        };
        let starts = pick(|e| e.start);
        let ends = pick(|e| e.end);
        let names: Vec<u32> = self.live.iter().map(|&n| self.entries[n as usize].name).collect();
        // A symbol without a length still answers for its own start.
        let reach_of = |i: usize| ends[i].max(starts[i].saturating_add(1));
        let overlaps = (1..starts.len()).any(|i| reach_of(i - 1) > starts[i]);
        let overlap = overlaps.then(|| {
            let mut farthest = 0u64;
            let reach = (0..ends.len())
                .map(|i| {
                    let farther = farthest.max(reach_of(i));
                    std::mem::replace(&mut farthest, farther)
                })
                .collect();
            let mut number = vec![u32::MAX; self.entries.len()];
            for (i, &n) in self.live.iter().enumerate() {
                number[n as usize] = i as u32;
            }
            let inserted = self.entries.iter().map(|e| e.start).collect();
            let removed = self.removed.clone();
            Box::new(Overlap { reach, inserted, number, removed, tree: OnceLock::new() })
        });
        let mangled = self.demangle
            && names
                .iter()
                .any(|&n| demangle::is_candidate(arena.as_bytes().get(n as usize..).unwrap_or(&[])));
        let has_long = name::has_long(arena.as_bytes());
        let readable = if mangled || has_long {
            names.iter().map(|_| OnceLock::new()).collect()
        } else {
            Box::default()
        };
        SymbolTable {
            starts,
            ends,
            names,
            arena: Arc::clone(arena),
            readable,
            demangle: self.demangle,
            overlap,
            room: Arc::clone(room),
        }
    }
}

/// Bytes to text in place: what is no UTF-8 becomes `?`, so that offsets stay true.
fn into_text(bytes: Vec<u8>) -> String {
    let mut bytes = match String::from_utf8(bytes) {
        Ok(text) => return text,
        Err(error) => error.into_bytes(),
    };
    let mut from = 0;
    while let Err(error) = std::str::from_utf8(&bytes[from..]) {
        let bad = from + error.valid_up_to();
        from = error.error_len().map_or(bytes.len(), |len| bad + len);
        bytes[bad..from].fill(b'?');
    }
    // SANITY: every byte that was none of UTF-8 has been replaced.
    String::from_utf8(bytes).expect("it is UTF-8 now")
}

fn round_up_page(address: u64) -> u64 {
    address.checked_next_multiple_of(4096).unwrap_or(u64::MAX)
}
