//! Samples: which fields a record of type SAMPLE has, and where.
//!
//! The fields follow each other in a fixed order, each present or not by the event's `sample_type`.
//! All fields up to the period are 8 bytes wide, so [`SampleLayout`] knows their places before it
//! sees a sample.

use crate::abi::*;
use crate::attr::Attr;
use crate::record::ParseError;
use crate::words::{Words, u32_at, u64_at};
use std::ops::Range;

/// Registers of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regs<'a> {
    /// 1: a 32-bit task, 2: a 64-bit task.
    pub abi: u64,
    /// Which registers there are, by the numbers of the architecture's `perf_regs.h`.
    pub mask: u64,
    /// Their values, lowest bit first.
    pub values: Words<'a>,
}

impl Regs<'_> {
    /// The value of register `number` (a bit of `mask`), if it was recorded.
    #[inline]
    pub fn get(&self, number: u32) -> Option<u64> {
        let bit = 1u64.checked_shl(number)?;
        if self.mask & bit == 0 {
            return None;
        }
        self.values.get((self.mask & (bit - 1)).count_ones() as usize)
    }
}

/// The counter values in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadValues<'a> {
    /// Layout: `PERF_FORMAT_*`.
    pub format: u64,
    /// The words as stored.
    pub words: Words<'a>,
}

/// One counter's value within [`ReadValues`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterValue {
    /// The count.
    pub value: u64,
    /// The event's id, if stored.
    pub id: Option<u64>,
    /// Lost samples of the event, if stored.
    pub lost: Option<u64>,
}

impl<'a> ReadValues<'a> {
    /// Reads as many words as `format` needs from the start of `bytes`; `None` when they are not
    /// there.
    pub fn parse(format: u64, bytes: &'a [u8]) -> Option<ReadValues<'a>> {
        let times = times(format);
        let entry = 1 + (format & (PERF_FORMAT_ID | PERF_FORMAT_LOST)).count_ones() as usize;
        let count = if format & PERF_FORMAT_GROUP != 0 {
            let nr = usize::try_from(u64_at(bytes, 0)?).ok()?;
            nr.checked_mul(entry)?.checked_add(1 + times)?
        } else {
            times + entry
        };
        let words = Words::new(bytes.get(..count.checked_mul(8)?)?);
        Some(ReadValues { format, words })
    }

    fn has(&self, bit: u64) -> bool {
        self.format & bit != 0
    }

    /// The counters: one, or all of the group with its leader first.
    pub fn counters(&self) -> impl Iterator<Item = CounterValue> + 'a {
        let words = self.words;
        let (with_id, with_lost) = (self.has(PERF_FORMAT_ID), self.has(PERF_FORMAT_LOST));
        let times = times(self.format);
        let step = 1 + usize::from(with_id) + usize::from(with_lost);
        let group = self.has(PERF_FORMAT_GROUP);
        // The words were counted when this was built, so `len` bounds the walk.
        let count = if group { words.len().saturating_sub(1 + times) / step } else { 1 };
        (0..count).filter_map(move |i| {
            let (value_at, id_at) = if group {
                let start = 1 + times + i * step;
                (start, start + 1)
            } else {
                (0, 1 + times)
            };
            Some(CounterValue {
                value: words.get(value_at)?,
                id: if with_id { words.get(id_at) } else { None },
                lost: if with_lost { words.get(id_at + usize::from(with_id)) } else { None },
            })
        })
    }
}

/// How many times (enabled, running) counter values of this format have.
fn times(format: u64) -> usize {
    (format & (PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING)).count_ones() as usize
}

/// The last branches before a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branches<'a> {
    /// Hardware index, if recorded.
    pub hw_idx: Option<u64>,
    /// Three words per entry: from, to, flags. The newest entry comes first.
    pub entries: Words<'a>,
    /// One word of event counters per entry, if recorded.
    pub counters: Words<'a>,
}

/// A parsed sample; what the event does not record is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sample<'a> {
    /// Instruction pointer.
    pub ip: Option<u64>,
    /// Process.
    pub pid: Option<i32>,
    /// Thread.
    pub tid: Option<i32>,
    /// When, in ns of the recording's clock.
    pub time: Option<u64>,
    /// Data address.
    pub addr: Option<u64>,
    /// The event's id, from IDENTIFIER or ID.
    pub id: Option<u64>,
    /// Stream id: unlike `id` it differs for inherited events.
    pub stream_id: Option<u64>,
    /// CPU.
    pub cpu: Option<u32>,
    /// How many occurrences of the event this sample stands for.
    pub period: Option<u64>,
    /// Counter values.
    pub read: Option<ReadValues<'a>>,
    /// Addresses and marks (`PERF_CONTEXT_*`), innermost first.
    pub callchain: Option<Words<'a>>,
    /// A tracepoint's fields; see [`tracing_data`](crate::tracing_data).
    pub raw: Option<&'a [u8]>,
    /// Last branches.
    pub branches: Option<Branches<'a>>,
    /// User registers; `None` also for kernel threads.
    pub user_regs: Option<Regs<'a>>,
    /// Bytes of the user stack from the stack pointer up, as many as really were there.
    pub user_stack: Option<&'a [u8]>,
    /// Weight; with WEIGHT_STRUCT three values in one word (u32, u16, u16 from the low end).
    pub weight: Option<u64>,
    /// Source of the data.
    pub data_src: Option<u64>,
    /// Transaction flags.
    pub transaction: Option<u64>,
    /// Registers at the interrupt.
    pub intr_regs: Option<Regs<'a>>,
    /// Physical address.
    pub phys_addr: Option<u64>,
    /// The cgroup's id.
    pub cgroup: Option<u64>,
    /// Page size of `addr` in bytes.
    pub data_page_size: Option<u64>,
    /// Page size of `ip` in bytes.
    pub code_page_size: Option<u64>,
    /// AUX bytes.
    pub aux: Option<&'a [u8]>,
}

/// Who and when: the trailer of records other than samples (with `sample_id_all`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the names of most fields say what they are")]
pub struct SampleId {
    pub pid: Option<i32>,
    pub tid: Option<i32>,
    /// When, in ns. Synthesized records have 0.
    pub time: Option<u64>,
    pub id: Option<u64>,
    pub stream_id: Option<u64>,
    pub cpu: Option<u32>,
}

const FIXED: u64 = PERF_SAMPLE_IDENTIFIER
    | PERF_SAMPLE_IP
    | PERF_SAMPLE_TID
    | PERF_SAMPLE_TIME
    | PERF_SAMPLE_ADDR
    | PERF_SAMPLE_ID
    | PERF_SAMPLE_STREAM_ID
    | PERF_SAMPLE_CPU
    | PERF_SAMPLE_PERIOD;
const TRAILER: u64 = PERF_SAMPLE_TID
    | PERF_SAMPLE_TIME
    | PERF_SAMPLE_ID
    | PERF_SAMPLE_STREAM_ID
    | PERF_SAMPLE_CPU
    | PERF_SAMPLE_IDENTIFIER;

/// Where parts of a sample lie in its body, in bytes; each begins with the word that says what or
/// how much follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackParts {
    /// The call chain: count, then addresses.
    pub callchain: Range<usize>,
    /// The user's registers: abi, then values.
    pub regs_user: Range<usize>,
    /// The user's stack, right behind them: size, bytes, and how many of them are real.
    pub stack_user: Range<usize>,
}

/// How one event's samples and sample ids lie in bytes. Cheap to build, `Copy`, no allocation when
/// parsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleLayout {
    sample_type: u64,
    read_format: u64,
    branch_sample_type: u64,
    regs_user: u64,
    regs_intr: u64,
    fixed_bytes: usize,
    trailer_bytes: usize,
    sample_id_all: bool,
}

/// Takes fields behind the fixed part.
struct Tail<'a> {
    body: &'a [u8],
    at: usize,
}

impl<'a> Tail<'a> {
    #[cold]
    fn missing(&self, expected: &'static str) -> ParseError {
        ParseError { position: 0, kind: PERF_RECORD_SAMPLE, offset: self.at as u32, expected }
    }

    #[inline]
    fn u64(&mut self, what: &'static str) -> Result<u64, ParseError> {
        match u64_at(self.body, self.at) {
            Some(value) => {
                self.at += 8;
                Ok(value)
            }
            None => Err(self.missing(what)),
        }
    }

    /// The next word, if it is there by the sample's type.
    fn u64_if(&mut self, there: bool, what: &'static str) -> Result<Option<u64>, ParseError> {
        if there { self.u64(what).map(Some) } else { Ok(None) }
    }

    #[inline]
    fn bytes(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], ParseError> {
        let rest = self.body.get(self.at..).unwrap_or(&[]);
        if len > rest.len() as u64 {
            return Err(self.missing(what));
        }
        let (taken, _) = rest.split_at(len as usize);
        self.at += taken.len();
        Ok(taken)
    }

    #[inline]
    fn words(&mut self, count: u64, what: &'static str) -> Result<Words<'a>, ParseError> {
        Ok(Words::new(self.bytes(count.saturating_mul(8), what)?))
    }

    fn regs(&mut self, mask: u64) -> Result<Option<Regs<'a>>, ParseError> {
        let abi = self.u64("register abi")?;
        if abi == PERF_SAMPLE_REGS_ABI_NONE {
            return Ok(None);
        }
        let values = self.words(mask.count_ones().into(), "registers")?;
        Ok(Some(Regs { abi, mask, values }))
    }
}

impl SampleLayout {
    /// The layout that `attr` asks for.
    pub fn new(attr: &Attr) -> SampleLayout {
        SampleLayout {
            sample_type: attr.sample_type,
            read_format: attr.read_format,
            branch_sample_type: attr.branch_sample_type,
            regs_user: attr.sample_regs_user,
            regs_intr: attr.sample_regs_intr,
            fixed_bytes: 8 * (attr.sample_type & FIXED).count_ones() as usize,
            trailer_bytes: 8 * (attr.sample_type & TRAILER).count_ones() as usize,
            sample_id_all: attr.sample_id_all(),
        }
    }

    /// Where a sample's body has a field of one word (`PERF_SAMPLE_IP` to `PERF_SAMPLE_PERIOD`), if
    /// it has it.
    pub fn field_offset(&self, field: u64) -> Option<usize> {
        let before = (self.sample_type & FIXED & (field - 1)).count_ones();
        let identifier = u32::from(self.sample_type & PERF_SAMPLE_IDENTIFIER != 0);
        (self.sample_type & FIXED & field != 0).then_some(8 * (before + identifier) as usize)
    }

    /// Where a sample's body has its call chain, which begins with how many words follow: right
    /// behind the fields of one word. `None`: it has none, or counters before it.
    pub fn callchain_offset(&self) -> Option<usize> {
        let has = |bit: u64| self.sample_type & bit != 0;
        (has(PERF_SAMPLE_CALLCHAIN) && !has(PERF_SAMPLE_READ)).then_some(self.fixed_bytes)
    }

    /// Which fields a sample has.
    pub fn sample_type(&self) -> u64 {
        self.sample_type
    }

    /// How the READ field is laid out.
    pub fn read_format(&self) -> u64 {
        self.read_format
    }

    /// Whether records other than samples end with a [`SampleId`].
    pub fn sample_id_all(&self) -> bool {
        self.sample_id_all
    }

    /// Length in bytes of the [`SampleId`] trailer; 0 without `sample_id_all`.
    pub(crate) fn sample_id_bytes(&self) -> usize {
        if self.sample_id_all { self.trailer_bytes } else { 0 }
    }

    /// Where the event's id lies in a sample's body, if samples carry one.
    pub(crate) fn id_offset(&self) -> Option<usize> {
        if self.sample_type & PERF_SAMPLE_IDENTIFIER != 0 {
            return Some(0);
        }
        if self.sample_type & PERF_SAMPLE_ID == 0 {
            return None;
        }
        let before = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_ADDR;
        Some(8 * (self.sample_type & before).count_ones() as usize)
    }

    /// How far before the end of a record the event's id lies in the trailer, if it has one.
    pub(crate) fn id_offset_from_end(&self) -> Option<usize> {
        if !self.sample_id_all {
            None
        } else if self.sample_type & PERF_SAMPLE_IDENTIFIER != 0 {
            Some(8)
        } else if self.sample_type & PERF_SAMPLE_ID != 0 {
            let after = PERF_SAMPLE_STREAM_ID | PERF_SAMPLE_CPU;
            Some(8 + 8 * (self.sample_type & after).count_ones() as usize)
        } else {
            None
        }
    }

    /// Reads the body of a SAMPLE record. `misc` is the record header's; it does not change the
    /// layout today.
    ///
    /// # Errors
    /// When a field reaches beyond the record. The error's position is 0: `body` does not tell
    /// where it came from; [`ParseError`]s of [`parse_record`](SampleLayout::parse_record) know it.
    #[inline]
    pub fn parse<'a>(&self, misc: u16, body: &'a [u8]) -> Result<Sample<'a>, ParseError> {
        let mut sample = Sample::default();
        self.parse_into(misc, body, &mut sample)?;
        Ok(sample)
    }

    /// As [`parse`](SampleLayout::parse) into a new [`Sample::default`]: a sample is large, and a
    /// loop over millions of them notices the copy.
    ///
    /// # Errors
    /// When a field reaches beyond the record; the sample then has what came before.
    pub fn parse_into<'a>(
        &self,
        misc: u16,
        body: &'a [u8],
        sample: &mut Sample<'a>,
    ) -> Result<(), ParseError> {
        let _ = misc;
        let Some((fixed, _)) = body.split_at_checked(self.fixed_bytes) else {
            return Err(Tail { body, at: 0 }.missing("the fields from identifier to period"));
        };
        let bits = self.sample_type;
        let mut words = Words::new(fixed).iter();
        let mut next_if = |bit| if bits & bit != 0 { words.next() } else { None };
        sample.id = next_if(PERF_SAMPLE_IDENTIFIER);
        sample.ip = next_if(PERF_SAMPLE_IP);
        if let Some(word) = next_if(PERF_SAMPLE_TID) {
            sample.pid = Some(word as i32);
            sample.tid = Some((word >> 32) as i32);
        }
        sample.time = next_if(PERF_SAMPLE_TIME);
        sample.addr = next_if(PERF_SAMPLE_ADDR);
        sample.id = next_if(PERF_SAMPLE_ID).or(sample.id);
        sample.stream_id = next_if(PERF_SAMPLE_STREAM_ID);
        sample.cpu = next_if(PERF_SAMPLE_CPU).map(|word| word as u32);
        sample.period = next_if(PERF_SAMPLE_PERIOD);
        let mut tail = Tail { body, at: self.fixed_bytes };
        if bits & PERF_SAMPLE_READ != 0 {
            let rest = body.get(tail.at..).unwrap_or(&[]);
            let read =
                ReadValues::parse(self.read_format, rest).ok_or_else(|| tail.missing("counter values"))?;
            tail.at += read.words.as_bytes().len();
            sample.read = Some(read);
        }
        if bits & PERF_SAMPLE_CALLCHAIN != 0 {
            let nr = tail.u64("callchain length")?;
            sample.callchain = Some(tail.words(nr, "callchain")?);
        }
        if bits & PERF_SAMPLE_RAW != 0 {
            let size = u32_at(body, tail.at).ok_or_else(|| tail.missing("raw size"))?;
            tail.at += 4;
            sample.raw = Some(tail.bytes(size.into(), "raw data")?);
        }
        const RARE: u64 = !(FIXED | PERF_SAMPLE_READ | PERF_SAMPLE_CALLCHAIN | PERF_SAMPLE_RAW);
        if bits & RARE != 0 {
            self.parse_rare(&mut tail, sample)?;
        }
        Ok(())
    }

    fn parse_rare<'a>(&self, tail: &mut Tail<'a>, sample: &mut Sample<'a>) -> Result<(), ParseError> {
        let bits = self.sample_type;
        if bits & PERF_SAMPLE_BRANCH_STACK != 0 {
            let nr = tail.u64("branch count")?;
            let hw_idx = match self.branch_sample_type & PERF_SAMPLE_BRANCH_HW_INDEX {
                0 => None,
                _ => Some(tail.u64("branch hardware index")?),
            };
            let entries = tail.words(nr.saturating_mul(3), "branch entries")?;
            let counters = match self.branch_sample_type & PERF_SAMPLE_BRANCH_COUNTERS {
                0 => Words::default(),
                _ => tail.words(nr, "branch counters")?,
            };
            sample.branches = Some(Branches { hw_idx, entries, counters });
        }
        if bits & PERF_SAMPLE_REGS_USER != 0 {
            sample.user_regs = tail.regs(self.regs_user)?;
        }
        if bits & PERF_SAMPLE_STACK_USER != 0 {
            let size = tail.u64("user stack size")?;
            let stack = tail.bytes(size, "user stack")?;
            // The kernel reserves `size` bytes and then says how many it really could copy.
            let dynamic = if size == 0 { 0 } else { tail.u64("user stack dynamic size")? };
            sample.user_stack = Some(stack.get(..dynamic.min(size) as usize).unwrap_or(stack));
        }
        let weight = PERF_SAMPLE_WEIGHT | PERF_SAMPLE_WEIGHT_STRUCT;
        sample.weight = tail.u64_if(bits & weight != 0, "weight")?;
        sample.data_src = tail.u64_if(bits & PERF_SAMPLE_DATA_SRC != 0, "data source")?;
        sample.transaction = tail.u64_if(bits & PERF_SAMPLE_TRANSACTION != 0, "transaction")?;
        if bits & PERF_SAMPLE_REGS_INTR != 0 {
            sample.intr_regs = tail.regs(self.regs_intr)?;
        }
        sample.phys_addr = tail.u64_if(bits & PERF_SAMPLE_PHYS_ADDR != 0, "physical address")?;
        sample.cgroup = tail.u64_if(bits & PERF_SAMPLE_CGROUP != 0, "cgroup")?;
        sample.data_page_size = tail.u64_if(bits & PERF_SAMPLE_DATA_PAGE_SIZE != 0, "data page size")?;
        sample.code_page_size = tail.u64_if(bits & PERF_SAMPLE_CODE_PAGE_SIZE != 0, "code page size")?;
        if bits & PERF_SAMPLE_AUX != 0 {
            let size = tail.u64("aux size")?;
            sample.aux = Some(tail.bytes(size, "aux data")?);
        }
        Ok(())
    }

    /// Where the call chain, the user's registers and the user's stack lie in the body of a SAMPLE
    /// record. `None` when the event does not record all three, and when a field reaches beyond the
    /// record.
    pub fn stack_parts(&self, body: &[u8]) -> Option<StackParts> {
        let (callchain, regs_user) = self.before_stack(body)?;
        let mut tail = Tail { body, at: regs_user.end };
        let size = tail.u64("user stack size").ok()?;
        tail.bytes(size, "user stack").ok()?;
        if size > 0 {
            tail.u64("user stack dynamic size").ok()?;
        }
        let stack_user = regs_user.end..tail.at;
        Some(StackParts { callchain, regs_user, stack_user })
    }

    /// Where the user's stack begins in the body of a SAMPLE record, with the word that says its
    /// size. What follows is not looked at, so `body` may end before it. `None` as for
    /// [`stack_parts`](SampleLayout::stack_parts).
    pub fn stack_offset(&self, body: &[u8]) -> Option<usize> {
        Some(self.before_stack(body)?.1.end)
    }

    /// Where the call chain and the user's registers lie; the user's stack follows.
    fn before_stack(&self, body: &[u8]) -> Option<(Range<usize>, Range<usize>)> {
        const ALL: u64 = PERF_SAMPLE_CALLCHAIN | PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER;
        let bits = self.sample_type;
        if bits & ALL != ALL {
            return None;
        }
        let mut tail = Tail { body, at: self.fixed_bytes };
        if bits & PERF_SAMPLE_READ != 0 {
            let read = ReadValues::parse(self.read_format, body.get(tail.at..)?)?;
            tail.at += read.words.as_bytes().len();
        }
        let from = tail.at;
        let nr = tail.u64("callchain length").ok()?;
        tail.words(nr, "callchain").ok()?;
        let callchain = from..tail.at;
        if bits & PERF_SAMPLE_RAW != 0 {
            let size = u32_at(body, tail.at)?;
            tail.at += 4;
            tail.bytes(size.into(), "raw data").ok()?;
        }
        if bits & PERF_SAMPLE_BRANCH_STACK != 0 {
            let nr = tail.u64("branch count").ok()?;
            let with_index = self.branch_sample_type & PERF_SAMPLE_BRANCH_HW_INDEX != 0;
            let with_counters = self.branch_sample_type & PERF_SAMPLE_BRANCH_COUNTERS != 0;
            let each = 3 + u64::from(with_counters);
            tail.words(nr.saturating_mul(each).saturating_add(with_index.into()), "branches").ok()?;
        }
        let from = tail.at;
        tail.regs(self.regs_user).ok()?;
        Some((callchain, from..tail.at))
    }

    /// As [`parse`](SampleLayout::parse) for a record; errors name its position.
    ///
    /// # Errors
    /// When a field reaches beyond the record.
    #[inline]
    pub fn parse_record<'a>(&self, record: &crate::RawRecord<'a>) -> Result<Sample<'a>, ParseError> {
        self.parse(record.header.misc, record.body)
            .map_err(|error| ParseError { position: record.position, ..error })
    }

    /// Reads the trailer of a record that is not a sample. Fields are `None` when the event has no
    /// `sample_id_all` or the body is too short.
    pub fn sample_id(&self, body: &[u8]) -> SampleId {
        let mut id = SampleId::default();
        let bytes = self.sample_id_bytes();
        let Some(start) = body.len().checked_sub(bytes) else { return id };
        let mut words = Words::new(body.get(start..).unwrap_or(&[])).iter();
        let mut next_if = |bit| if self.sample_type & bit != 0 { words.next() } else { None };
        if let Some(word) = next_if(PERF_SAMPLE_TID) {
            id.pid = Some(word as i32);
            id.tid = Some((word >> 32) as i32);
        }
        id.time = next_if(PERF_SAMPLE_TIME);
        id.id = next_if(PERF_SAMPLE_ID);
        id.stream_id = next_if(PERF_SAMPLE_STREAM_ID);
        id.cpu = next_if(PERF_SAMPLE_CPU).map(|word| word as u32);
        if let Some(word) = next_if(PERF_SAMPLE_IDENTIFIER) {
            id.id = Some(word);
        }
        id
    }
}
