//! What a script gets of a sample: perf's dictionary.
//!
//! ```text
//!  ev_name, attr, raw_buf, comm, callchain, brstack, brstacksym, iregs, uregs,
//!  [dso, dso_bid, dso_map_start, dso_map_end, map_pgoff, symbol, symoff],
//!  sample: id, stream_id, pid, tid, cpu, ip, time, period, phys_addr, addr, values, weight, ins_lat,
//!          transaction, datasrc, datasrc_decode, cpumode, [addr_correlates_sym, addr_dso, ...]
//! ```
//!
//! What a sample does not have is as in perf: -1 without sign for tasks, CPU, time and ids, else 0.
use super::super::{ScriptOptions, module_label, registers_text};
use super::pickle::Pickle;
use crate::raw_frames::{self, walk_words};
use crate::resolve::{Named, Resolver};
use crate::timeline::{ModuleKind, Moment, Timeline};
use crate::unwind_samples::ThreadUnwinder;
use kymo_data::{Event, RawRecord, Recording, Registers, Sample, abi};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::fmt::Write;

/// Where a sample was taken: thread name, address space, mode and address.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    comm: Option<crate::timeline::CommId>,
    pub(super) maps: u32,
    pub(super) mode: u8,
    pub(super) ip: u64,
}

impl Place {
    /// What the driver asks with.
    pub(super) fn put(self, message: &mut Pickle) {
        message.tuple(|place| {
            place.int(self.maps).int(self.mode).int(self.ip);
        });
    }
}

/// Makes the objects of a recording's samples.
pub(super) struct Objects<'a> {
    timeline: &'a Timeline,
    resolver: &'a Resolver<'a>,
    options: &'a ScriptOptions,
    unwinder: ThreadUnwinder<'a>,
    registers: Option<Registers>,
    /// The parts of each event that are the same in all its samples: name and attr.
    events: Vec<Pickle>,
    list: &'a [Event],
    /// The frames of each place that was seen before: address space, mode and address.
    frames: FxHashMap<raw_frames::Place, Pickle>,
    words: Vec<u8>,
}

impl<'a> Objects<'a> {
    pub(super) fn new(
        recording: &'a Recording,
        timeline: &'a Timeline,
        resolver: &'a Resolver<'a>,
        options: &'a ScriptOptions,
        unwinder: ThreadUnwinder<'a>,
    ) -> Objects<'a> {
        let part = |event: &Event| {
            let mut part = Pickle::part();
            part.text("ev_name").text(&event.name).text("attr").bytes(&event.attr.to_bytes());
            part
        };
        let list = &recording.events.list;
        let registers = recording.features.arch.as_deref().and_then(Registers::of);
        Objects {
            timeline,
            resolver,
            options,
            unwinder,
            registers,
            events: list.iter().map(part).collect(),
            list,
            frames: FxHashMap::default(),
            words: Vec::new(),
        }
    }

    pub(super) fn place(&self, record: &RawRecord<'_>, sample: &Sample<'_>) -> Place {
        let pid = sample.pid.unwrap_or(-1);
        let tid = sample.tid.unwrap_or(pid);
        let view = self.timeline.thread(pid, tid, Moment::new(sample.time, record.position));
        let mode = (record.header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
        Place { comm: Some(view.comm), maps: view.maps, mode, ip: sample.ip.unwrap_or(0) }
    }

    pub(super) fn comm(&self, place: Place) -> Cow<'_, str> {
        place.comm.map_or(Cow::Borrowed(""), |comm| self.timeline.comm(comm))
    }

    /// The call chain, a list of dictionaries, innermost first.
    pub(super) fn chain(&mut self, sample: &Sample<'_>, event: usize, place: Place) -> Pickle {
        let mut chain = Pickle::part();
        let recorded = self.list[event].attr.sample_type & abi::PERF_SAMPLE_CALLCHAIN != 0;
        if !recorded || !self.options.callchains {
            chain.list(|_| {});
            return chain;
        }
        let mut words = std::mem::take(&mut self.words);
        let raw = self.unwinder.chain(&self.list[event].attr, sample, place.maps, &mut words);
        chain.list(|list| {
            walk_words(raw, self.options.max_stack, |frame| {
                let (resolver, timeline, inline) = (self.resolver, self.timeline, self.options.inline);
                let at = raw_frames::Place::new(place.maps, frame);
                let make = || frames(timeline, &resolver.named(at, inline), at);
                list.append(self.frames.entry(at).or_insert_with(make));
            });
        });
        self.words = words;
        chain
    }

    /// The dictionary of a sample.
    pub(super) fn sample(
        &self,
        out: &mut Pickle,
        sample: &Sample<'_>,
        event: usize,
        period: u64,
        place: Place,
        chain: &Pickle,
    ) {
        out.dict(|dict| {
            dict.append(&self.events[event]);
            dict.text("sample").dict(|inner| self.numbers(inner, sample, event, period, place));
            dict.text("raw_buf").bytes(sample.raw.unwrap_or_default());
            dict.text("comm").text(&self.comm(place));
            self.symbol(dict, place, place.ip, &PLAIN_KEYS);
            dict.text("callchain").append(chain);
            self.branches(dict, sample, place);
            for (key, registers) in [("iregs", sample.intr_regs), ("uregs", sample.user_regs)] {
                dict.text(key);
                dict.text(&registers.map_or(String::new(), |of| registers_text(self.registers, &of)));
            }
        });
    }

    fn numbers(&self, dict: &mut Pickle, sample: &Sample<'_>, event: usize, period: u64, place: Place) {
        let of = &self.list[event];
        let unsigned = |id: Option<i32>| id.unwrap_or(-1).cast_unsigned();
        dict.text("id").int(sample.id.unwrap_or(u64::MAX));
        dict.text("stream_id").int(sample.stream_id.unwrap_or(u64::MAX));
        dict.text("pid").int(unsigned(sample.pid));
        dict.text("tid").int(unsigned(sample.tid));
        dict.text("cpu").int(sample.cpu.unwrap_or(u32::MAX));
        dict.text("ip").int(place.ip);
        dict.text("time").int(sample.time.unwrap_or(u64::MAX));
        dict.text("period").int(period);
        dict.text("phys_addr").int(sample.phys_addr.unwrap_or(0));
        dict.text("addr").int(sample.addr.unwrap_or(0));
        read_values(dict, sample, of.attr.read_format);
        let weight = sample.weight.unwrap_or(0);
        let (weight, latency) = match of.attr.sample_type & abi::PERF_SAMPLE_WEIGHT_STRUCT != 0 {
            // The middle of three numbers is the instruction's latency.
            true => (weight & 0xffff_ffff, weight >> 32 & 0xffff),
            false => (weight, 0),
        };
        dict.text("weight").int(weight).text("ins_lat").int(latency);
        dict.text("transaction").int(sample.transaction.unwrap_or(0));
        let source = sample.data_src.unwrap_or(DATA_SOURCE_NONE);
        dict.text("datasrc").int(source).text("datasrc_decode");
        dict.text(if source == DATA_SOURCE_NONE { DATA_SOURCE_NONE_TEXT } else { "" });
        dict.text("cpumode").int(place.mode);
        if let Some(address) = sample.addr.filter(|_| is_page_fault(of)) {
            dict.text("addr_correlates_sym").bool(true);
            self.symbol(dict, place, address, &ADDRESS_KEYS);
        }
    }

    /// Module, mapping and symbol of an address.
    fn symbol(&self, dict: &mut Pickle, place: Place, ip: u64, keys: &[&str; 7]) {
        let named = self.resolver.named(raw_frames::Place::exact(place.maps, place.mode, ip), false);
        if let Some(id) = named.module {
            let module = self.timeline.modules.get(id);
            let build_id = module.build_id.iter().fold(String::new(), |mut text, byte| {
                let _ = write!(text, "{byte:02x}");
                text
            });
            dict.text(keys[0]).text(&module_label(module)).text(keys[1]).text(&build_id);
            if let Some(mapping) = self.resolver.mapping(place.maps, place.mode, ip) {
                dict.text(keys[2]).int(mapping.start).text(keys[3]).int(mapping.end);
                dict.text(keys[4]).int(mapping.pgoff);
            }
        }
        if let Some((start, _, name)) = &named.symbol {
            dict.text(keys[5]).text(name);
            dict.text(keys[6]).int(named.module_address.saturating_sub(*start));
        }
    }

    fn branches(&self, dict: &mut Pickle, sample: &Sample<'_>, place: Place) {
        let words: Vec<u64> =
            sample.branches.map_or(Vec::new(), |branches| branches.entries.iter().collect());
        let entries = words.as_chunks::<3>().0;
        let module = |ip: u64| {
            let mapping = self.resolver.mapping(place.maps, place.mode, ip);
            mapping.map_or("[unknown]".into(), |m| module_label(self.timeline.modules.get(m.module)))
        };
        let symbol = |ip: u64| {
            let named = self.resolver.named(raw_frames::Place::exact(place.maps, place.mode, ip), false);
            match &named.symbol {
                Some((start, _, name)) => {
                    format!("{name}+{:#x}", named.module_address.saturating_sub(*start))
                }
                None => "[unknown]".to_owned(),
            }
        };
        dict.text("brstack").list(|list| {
            for [from, to, flags] in entries {
                list.dict(|entry| {
                    entry.text("from").int(*from).text("to").int(*to);
                    for (bit, key) in ["mispred", "predicted", "in_tx", "abort"].into_iter().enumerate() {
                        entry.text(key).bool(flags >> bit & 1 != 0);
                    }
                    entry.text("cycles").int(flags >> 4 & 0xffff);
                    entry.text("from_dsoname").text(&module(*from));
                    entry.text("to_dsoname").text(&module(*to));
                });
            }
        });
        dict.text("brstacksym").list(|list| {
            for [from, to, flags] in entries {
                let letter = |bit: u32, letter| if flags >> bit & 1 != 0 { letter } else { "-" };
                list.dict(|entry| {
                    entry.text("from").text(&symbol(*from)).text("to").text(&symbol(*to));
                    entry.text("pred").text(if flags & 1 != 0 { "M" } else { letter(1, "P") });
                    entry.text("in_tx").text(letter(2, "X")).text("abort").text(letter(3, "A"));
                });
            }
        });
    }
}

const PLAIN_KEYS: [&str; 7] =
    ["dso", "dso_bid", "dso_map_start", "dso_map_end", "map_pgoff", "symbol", "symoff"];
const ADDRESS_KEYS: [&str; 7] = [
    "addr_dso",
    "addr_dso_bid",
    "addr_dso_map_start",
    "addr_dso_map_end",
    "addr_map_pgoff",
    "addr_symbol",
    "addr_symoff",
];

/// `PERF_MEM_NA` in every part: what samples without a source have in perf.
const DATA_SOURCE_NONE: u64 = 0x0508_0021;
const DATA_SOURCE_NONE_TEXT: &str = "|OP N/A|LVL N/A|SNP N/A|TLB N/A|LCK N/A|BLK  N/A";

/// Whether the sampled address belongs to what the sampled instruction did, by perf's rule.
fn is_page_fault(event: &Event) -> bool {
    event.attr.kind == abi::PERF_TYPE_SOFTWARE && matches!(event.attr.config, 2 | 5 | 6)
}

fn read_values(dict: &mut Pickle, sample: &Sample<'_>, format: u64) {
    let has = |bit: u64| format & bit != 0;
    let word = |at: usize| sample.read.and_then(|read| read.words.get(at)).unwrap_or(0);
    // Values of a group come after the number of its members and its times, one value before them.
    let first_time = 1;
    if has(abi::PERF_FORMAT_TOTAL_TIME_ENABLED) {
        dict.text("time_enabled").int(word(first_time));
    }
    if has(abi::PERF_FORMAT_TOTAL_TIME_RUNNING) {
        let at = first_time + usize::from(has(abi::PERF_FORMAT_TOTAL_TIME_ENABLED));
        dict.text("time_running").int(word(at));
    }
    dict.text("values").list(|list| {
        let put = |list: &mut Pickle, id: u64, value: u64, lost: Option<u64>| {
            list.tuple(|one| {
                one.int(id).int(value);
                if let Some(lost) = lost.filter(|_| has(abi::PERF_FORMAT_LOST)) {
                    one.int(lost);
                }
            });
        };
        match sample.read {
            Some(read) => {
                for counter in read.counters() {
                    put(list, counter.id.unwrap_or(0), counter.value, counter.lost);
                }
            }
            None if !has(abi::PERF_FORMAT_GROUP) => put(list, 0, 0, Some(0)),
            None => {}
        }
    });
}

/// The dictionaries of an address in a call chain: inlined functions first.
fn frames(timeline: &Timeline, named: &Named, place: raw_frames::Place) -> Pickle {
    let mut part = Pickle::part();
    let module = named.module.map(|id| timeline.modules.get(id));
    // perf counts the addresses of a BPF program from its own first byte.
    let own_addresses = module.is_some_and(|module| module.kind == ModuleKind::Ksymbol);
    let label = module.map(module_label);
    let names =
        named.inlined.iter().map(|name| &**name).chain(named.symbol.iter().map(|(_, _, name)| &**name));
    let mut frame = |name: Option<&str>| {
        part.dict(|frame| {
            frame.text("ip").int(place.ip);
            if let (Some(name), Some((start, end, _))) = (name, &named.symbol) {
                let origin = if own_addresses { *start } else { 0 };
                frame.text("sym").dict(|symbol| {
                    symbol.text("start").int(*start - origin).text("end").int(end.saturating_sub(origin));
                    // Not known here: global, as most are.
                    symbol.text("binding").int(1).text("name").text(name);
                });
                frame.text("sym_off").int(named.recorded_address(place).saturating_sub(*start));
            }
            if let Some(label) = &label {
                frame.text("dso").text(label);
            }
        });
    };
    match named.symbol {
        Some(_) => names.for_each(|name| frame(Some(name))),
        None => frame(None),
    }
    part
}
