//! Names of generated code as functions of time.
//!
//! A just-in-time compiler frees code and puts other code in its place, so an address alone has no
//! name: an address at a time has.
//!
//! ```text
//!  address ^
//!          |   [ parse ][ parse, compiled again ][ render ]
//!          |   [ main                                     ]
//!          '-----------^-------------------------^-----------> time
//!                   no change                  a change
//! ```
//! - **C1** The name of an address at a time is that of the newest code that covers it and came at
//!   this time or before. What was never replaced counts from the start.
//! - **C2** Between two [changes](CodeMap::changes) no address changes its name.
//! - **C3** Work and memory are bounded by what came in, also if everything overlaps everything.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::budget::{Budget, Charge};
use super::name::shortened;
use super::perf_map;

/// What an entry takes beside its name.
const ENTRY_BYTES: u64 = 160;
/// Times at which something changes, of one process; more are drawn together.
const MOST_CHANGES: usize = 1 << 14;
/// Pieces that may be touched for each piece of code. Real code replaces one or two others.
const WORK_PER_ENTRY: usize = 16;
/// Pieces that may be touched in any case.
const WORK: usize = 1 << 20;

/// Code that was at an address.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u64,
    end: u64,
    name: (u32, u32),
    /// When it came, ns of the recording's clock.
    since_ns: u64,
    /// Where its bytes are in the file that told of it.
    code_at: Option<u64>,
}

/// One piece of generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeRef<'a> {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// As its compiler calls it.
    pub name: &'a str,
    /// Tells this code from other code that was in the same place at other times.
    pub serial: u32,
    /// Where its bytes are in the jitdump file, if it is from one.
    pub code_at: Option<u64>,
}

/// Collects code; see [`CodeMap`].
#[derive(Debug)]
pub struct CodeMapBuilder {
    entries: Vec<Entry>,
    /// Entries by where their bytes are.
    by_code: HashMap<u64, u32>,
    names: String,
    budget: Budget,
    room: Vec<Charge>,
    is_cut: bool,
}

/// The generated code of one process.
#[derive(Debug)]
pub struct CodeMap {
    entries: Vec<Entry>,
    names: String,
    /// First address, one past the last, and what was there, in order of time.
    pieces: Vec<(u64, u64, Vec<u32>)>,
    changes: Vec<u64>,
    is_cut: bool,
    _room: Vec<Charge>,
}

impl CodeMapBuilder {
    /// Nothing yet; what comes is charged to this account.
    pub fn new(budget: &Budget) -> CodeMapBuilder {
        CodeMapBuilder {
            entries: Vec::new(),
            by_code: HashMap::new(),
            names: String::new(),
            budget: budget.clone(),
            room: Vec::new(),
            is_cut: false,
        }
    }

    /// Code that came at this time. `code_at`: where its bytes are in the file that tells of it.
    pub fn add(&mut self, start: u64, size: u64, name: &[u8], since_ns: u64, code_at: Option<u64>) {
        let Some(end) = start.checked_add(size).filter(|&end| end > start) else { return };
        let name = shortened(name);
        let fits = self.names.len() + name.len() < u32::MAX as usize;
        let charge = self.budget.reserve(ENTRY_BYTES + name.len() as u64).filter(|_| fits);
        // Charges add up in few objects: one for each piece of code would cost more than the code.
        let Some(charge) = charge else {
            self.is_cut = true;
            return;
        };
        match self.room.last_mut() {
            Some(room) => room.absorb(charge),
            None => self.room.push(charge),
        }
        let at = self.names.len() as u32;
        self.names.push_str(&name);
        let name = (at, self.names.len() as u32);
        if let Some(code_at) = code_at {
            self.by_code.insert(code_at, self.entries.len() as u32);
        }
        self.entries.push(Entry { start, end, name, since_ns, code_at });
    }

    /// Lines of a perf map that appeared in this span of time: they came evenly, for all that is
    /// known.
    pub fn add_lines(&mut self, text: &[u8], from_ns: u64, until_ns: u64) {
        let lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).collect();
        let span = until_ns.saturating_sub(from_ns);
        for (number, line) in lines.iter().enumerate() {
            let part = u128::from(span) * (number as u128 + 1) / (lines.len() as u128 + 1);
            let since_ns = from_ns.saturating_add(u64::try_from(part).unwrap_or(span));
            if let Some((start, size, name)) = perf_map::parse_line(line) {
                self.add(start, size, &line[name..], since_ns, None);
            }
        }
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Code that was added with these bytes has moved.
    pub fn add_moved(&mut self, code_at: u64, start: u64, since_ns: u64) {
        if let Some(&entry) = self.by_code.get(&code_at).and_then(|&at| self.entries.get(at as usize)) {
            let name = self.names[entry.name.0 as usize..entry.name.1 as usize].to_owned();
            self.add(start, entry.end - entry.start, name.as_bytes(), since_ns, Some(code_at));
        }
    }

    /// The map.
    pub fn finish(mut self) -> CodeMap {
        // Stable: of the same time, the last one written counts.
        self.entries.sort_by_key(|entry| entry.since_ns);
        let mut pieces = Pieces { map: BTreeMap::new(), work: WORK + WORK_PER_ENTRY * self.entries.len() };
        for number in 0..self.entries.len() {
            self.is_cut |= !pieces.insert(&self.entries, &self.names, number as u32);
        }
        let pieces: Vec<_> =
            pieces.map.into_iter().map(|(start, piece)| (start, piece.end, piece.history)).collect();
        let later = pieces.iter().flat_map(|(_, _, history)| history.iter().skip(1));
        let mut changes: Vec<u64> = later.map(|&n| self.entries[n as usize].since_ns).collect();
        changes.sort_unstable();
        changes.dedup();
        let step = changes.len().div_ceil(MOST_CHANGES).max(1);
        let changes = changes.into_iter().step_by(step).collect();
        let CodeMapBuilder { entries, names, room, is_cut, .. } = self;
        CodeMap { entries, names, pieces, changes, is_cut, _room: room }
    }
}

struct Piece {
    end: u64,
    history: Vec<u32>,
}

/// Addresses that all had the same code at all times.
struct Pieces {
    map: BTreeMap<u64, Piece>,
    /// Steps that are left.
    work: usize,
}

impl Pieces {
    /// Puts newer code over what is there; `false` if that would take too much work.
    fn insert(&mut self, entries: &[Entry], names: &str, number: u32) -> bool {
        let new = entries[number as usize];
        if !(self.split(new.start) && self.split(new.end)) {
            return false;
        }
        let name = |entry: &Entry| &names[entry.name.0 as usize..entry.name.1 as usize];
        let is_same = |known: u32| {
            let known = &entries[known as usize];
            (known.start, known.end) == (new.start, new.end) && name(known) == name(&new)
        };
        let mut at = new.start;
        let mut free = Vec::new();
        for (&start, piece) in self.map.range_mut(new.start..new.end) {
            let Some(left) = self.work.checked_sub(1) else { return false };
            self.work = left;
            if start > at {
                free.push((at, start));
            }
            if piece.history.last().is_none_or(|&last| !is_same(last)) {
                piece.history.push(number);
            }
            at = piece.end;
        }
        if at < new.end {
            free.push((at, new.end));
        }
        for (start, end) in free {
            self.map.insert(start, Piece { end, history: vec![number] });
        }
        true
    }

    /// Makes a piece begin at this address, if one covers it.
    fn split(&mut self, at: u64) -> bool {
        let Some((&start, piece)) = self.map.range_mut(..at).next_back() else { return true };
        if piece.end <= at || start == at {
            return true;
        }
        let Some(left) = self.work.checked_sub(piece.history.len()) else { return false };
        self.work = left;
        let upper = Piece { end: std::mem::replace(&mut piece.end, at), history: piece.history.clone() };
        self.map.insert(at, upper);
        true
    }
}

impl CodeMap {
    /// The code at an address at a time.
    pub fn find(&self, address: u64, time_ns: u64) -> Option<CodeRef<'_>> {
        let at = self.pieces.partition_point(|piece| piece.0 <= address).checked_sub(1)?;
        let (_, end, history) = &self.pieces[at];
        let newer = history.partition_point(|&n| self.entries[n as usize].since_ns <= time_ns);
        let serial = *history.get(newer.saturating_sub(1))?;
        let Entry { start, end: code_end, name, code_at, .. } = self.entries[serial as usize];
        (address < *end).then(|| CodeRef {
            start,
            end: code_end,
            name: &self.names[name.0 as usize..name.1 as usize],
            serial,
            code_at,
        })
    }

    /// When an address got other code than it had, ascending, ns of the recording's clock.
    pub fn changes(&self) -> &[u64] {
        &self.changes
    }

    /// Whether something was left out, because it would have taken too much.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(code: &[(u64, u64, &str, u64)]) -> CodeMap {
        let mut builder = CodeMapBuilder::new(&Budget::new());
        for &(start, size, name, since) in code {
            builder.add(start, size, name.as_bytes(), since, None);
        }
        builder.finish()
    }

    fn name(map: &CodeMap, address: u64, time: u64) -> &str {
        map.find(address, time).map_or("-", |code| code.name)
    }

    /// Checks that replaced code has its name at its time, that the same code again is no change,
    /// and that code which was never replaced counts from the start.
    #[test]
    fn names_change_with_time() {
        let map = map(&[
            (0x100, 0x10, "old", 10),
            (0x100, 0x10, "old", 20),
            (0x108, 0x10, "new", 30),
            (0x200, 0x10, "other", 40),
        ]);
        assert_eq!(map.changes(), [30]);
        for (address, time, wanted) in [
            (0x100, 5, "old"),
            (0x108, 29, "old"),
            (0x108, 30, "new"),
            (0x104, 99, "old"),
            (0x117, 0, "new"),
            (0x118, 99, "-"),
            (0x20f, 0, "other"),
            (0xff, 50, "-"),
        ] {
            assert_eq!(name(&map, address, time), wanted, "{address:#x} at {time}");
        }
    }

    /// Checks lines of a perf map, whose times lie in the span in which they appeared, and moves.
    #[test]
    fn lines_and_moves() {
        let mut builder = CodeMapBuilder::new(&Budget::new());
        builder.add_lines(b"1000 10 first\nnonsense\n0x1000 0x10 second\n", 100, 200);
        builder.add(0x5000, 0x20, b"moving", 150, Some(64));
        builder.add_moved(64, 0x6000, 180);
        builder.add_moved(65, 0x7000, 180);
        let map = builder.finish();
        assert_eq!([name(&map, 0x1000, 100), name(&map, 0x1000, 200)], ["first", "second"]);
        assert_eq!(map.find(0x601f, 180).expect("moved").code_at, Some(64));
        assert_eq!((name(&map, 0x5000, 160), name(&map, 0x7000, 200)), ("moving", "-"));
    }

    /// Checks that code which overlaps everything costs bounded work, and that this is told.
    #[test]
    fn hostile_overlap() {
        let code: Vec<_> = (0..4000u64).map(|n| (n, 1 << 30, "x", n)).collect();
        let map = map(&code);
        assert!(map.is_cut());
        let items: usize = map.pieces.iter().map(|piece| piece.2.len()).sum();
        assert!(items <= WORK + WORK_PER_ENTRY * code.len() + code.len(), "{items}");
    }

    proptest! {
        /// Checks every address at every time against the newest code that covers it, and that
        /// nothing changes between changes.
        #[test]
        fn is_the_newest(code in proptest::collection::vec((0u64..40, 1u64..12, 0usize..4, 0u64..30), 0..30)) {
            let names = ["a", "b", "c", "d"];
            let list: Vec<_> = code.iter().map(|&(s, n, name, t)| (s, n, names[name], t)).collect();
            let map = map(&list);
            let mut sorted = list.clone();
            sorted.sort_by_key(|code| code.3);
            for address in 0..60 {
                let covers = |code: &&(u64, u64, &str, u64)| (code.0..code.0 + code.1).contains(&address);
                for time in 0..32 {
                    let newest = sorted.iter().rfind(|code| covers(code) && code.3 <= time);
                    let wanted = newest.or_else(|| sorted.iter().find(covers)).map_or("-", |code| code.2);
                    prop_assert_eq!(name(&map, address, time), wanted, "{} at {}", address, time);
                    if time > 0 && !map.changes().contains(&time) {
                        let of = |time| map.find(address, time).map(|code| code.serial);
                        prop_assert_eq!(of(time), of(time - 1));
                    }
                }
            }
        }
    }
}
