//! Properties: what is built parses back, and no bytes whatever make a reader panic.

use crate::exhaust::exhaust;
use crate::fixtures::{open_bytes, pipe_of, read};
use kymo_data::abi::*;
use kymo_data::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn attr_strategy() -> impl Strategy<Value = Attr> {
    (any::<u64>(), any::<u64>(), any::<bool>()).prop_map(|(bits, read_format, all)| {
        let mut attr = Attr { sample_type: bits, read_format, ..Attr::default() };
        attr.set(ATTR_FLAG_SAMPLE_ID_ALL, all);
        attr
    })
}

fn sample_id_strategy() -> impl Strategy<Value = SampleId> {
    (any::<i32>(), any::<i32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>()).prop_map(
        |(pid, tid, time, id, stream_id, cpu)| SampleId {
            pid: Some(pid),
            tid: Some(tid),
            time: Some(time),
            id: Some(id),
            stream_id: Some(stream_id),
            cpu: Some(cpu),
        },
    )
}

/// What of `id` the attr lets through.
fn visible(attr: &Attr, id: &SampleId) -> SampleId {
    let has = |bit| attr.sample_id_all() && attr.sample_type & bit != 0;
    SampleId {
        pid: id.pid.filter(|_| has(PERF_SAMPLE_TID)),
        tid: id.tid.filter(|_| has(PERF_SAMPLE_TID)),
        time: id.time.filter(|_| has(PERF_SAMPLE_TIME)),
        id: id.id.filter(|_| has(PERF_SAMPLE_ID) || has(PERF_SAMPLE_IDENTIFIER)),
        stream_id: id.stream_id.filter(|_| has(PERF_SAMPLE_STREAM_ID)),
        cpu: id.cpu.filter(|_| has(PERF_SAMPLE_CPU)),
    }
}

fn one(bytes: &[u8]) -> RawRecord<'_> {
    let mut records = Records::new(bytes, 0);
    let record = records.next().expect("a record").expect("whole");
    assert!(records.next().is_none(), "one record");
    assert!(bytes.len().is_multiple_of(8) || record.header.kind == PERF_RECORD_HEADER_BUILD_ID);
    record
}

/// The body of a sample of this type.
fn sample_body(bits: u64, group: bool, words: &[u64], chain: &[u64], raw: &[u8], stack: &[u8]) -> Vec<u8> {
    let mut body: Vec<u8> = Vec::new();
    let put = |body: &mut Vec<u8>, bit: u64, words: &[u64]| {
        if bits & bit != 0 {
            body.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }
    };
    for (bit, word) in [
        (PERF_SAMPLE_IDENTIFIER, 0),
        (PERF_SAMPLE_IP, 1),
        (PERF_SAMPLE_TID, 2),
        (PERF_SAMPLE_TIME, 3),
        (PERF_SAMPLE_ADDR, 4),
        (PERF_SAMPLE_ID, 0),
        (PERF_SAMPLE_STREAM_ID, 5),
        (PERF_SAMPLE_CPU, 6),
        (PERF_SAMPLE_PERIOD, 7),
    ] {
        put(&mut body, bit, &[words[word]]);
    }
    // value, enabled, running, id, lost; or count, enabled, running, and per counter value, id,
    // lost.
    let list: &[u64] = if group { &[2, 11, 12, 20, 21, 22, 30, 31, 32] } else { &[20, 11, 12, 21, 22] };
    put(&mut body, PERF_SAMPLE_READ, list);
    put(&mut body, PERF_SAMPLE_CALLCHAIN, &[&[chain.len() as u64], chain].concat());
    if bits & PERF_SAMPLE_RAW != 0 {
        body.extend_from_slice(&(raw.len() as u32).to_le_bytes());
        body.extend_from_slice(raw);
    }
    let mut copied = vec![8 * stack.len() as u64];
    copied.extend(stack.iter().map(|&byte| u64::from(byte)));
    copied.extend((!stack.is_empty()).then_some(5));
    for (bit, words) in [
        (PERF_SAMPLE_BRANCH_STACK, &[1, 99, 1, 2, 3][..]),
        (PERF_SAMPLE_REGS_USER, &[2, 100, 101, 103]),
        (PERF_SAMPLE_STACK_USER, &copied),
        (PERF_SAMPLE_WEIGHT | PERF_SAMPLE_WEIGHT_STRUCT, &[words[8]]),
        (PERF_SAMPLE_DATA_SRC, &[words[9]]),
        (PERF_SAMPLE_TRANSACTION, &[words[10]]),
        (PERF_SAMPLE_REGS_INTR, &[1, 140]),
        (PERF_SAMPLE_PHYS_ADDR, &[words[11]]),
        (PERF_SAMPLE_CGROUP, &[words[12]]),
        (PERF_SAMPLE_DATA_PAGE_SIZE, &[words[13]]),
        (PERF_SAMPLE_CODE_PAGE_SIZE, &[words[14]]),
        (PERF_SAMPLE_AUX, &[8, 77]),
    ] {
        put(&mut body, bit, words);
    }
    body
}

proptest! {
    /// Checks that built side-band records parse back to what they were built from, trailer
    /// included.
    #[test]
    fn built_records_parse_back(
        attr in attr_strategy(),
        id in sample_id_strategy(),
        ints in any::<[i32; 4]>(),
        longs in any::<[u64; 4]>(),
        name in vec(1u8..=255, 1..300),
        // Shorter ones may look like the number of a device (`holds_build_id`).
        build_id in proptest::option::of(vec(any::<u8>(), 16..=20)),
        exec in any::<bool>(),
    ) {
        let events = EventSet::new(vec![Event::new(attr.clone(), Vec::new(), 0)]);
        let check = |bytes: &[u8], want: Record<'_>| {
            let record = one(bytes);
            assert_eq!(record.parse().expect("parses"), want);
            assert_eq!(events.sample_id(&record), visible(&attr, &id));
        };
        let [pid, ppid, tid, ptid] = ints;
        let [addr, len, pgoff, ino] = longs;
        check(&build::comm(&attr, &id, pid, tid, &name, exec), Record::Comm(Comm { pid, tid, exec, name: &name }));
        let time = id.time.expect("set");
        let task = TaskRecord { pid, ppid, tid, ptid, time, synthesized: true };
        check(&build::fork(&attr, &id, pid, ppid, tid, ptid), Record::Fork(task));
        let task = TaskRecord { synthesized: false, ..task };
        check(&build::exit(&attr, &id, pid, ppid, tid, ptid), Record::Exit(task));
        let spec = build::MapSpec {
            pid, tid, addr, len, pgoff, ino,
            maj: 8, min: 1, ino_generation: 3, prot: 5, flags: 2,
            build_id: build_id.as_deref(), misc: PERF_RECORD_MISC_USER, filename: &name,
        };
        let file = match &build_id {
            Some(id) => MappedFile::BuildId(id),
            None => MappedFile::Inode { maj: 8, min: 1, ino, ino_generation: 3 },
        };
        let bits = if build_id.is_some() { PERF_RECORD_MISC_MMAP_BUILD_ID } else { 0 };
        let misc = PERF_RECORD_MISC_USER | bits;
        let mapping = Mapping { pid, tid, addr, len, pgoff, prot: 5, flags: 2, file, filename: &name, misc };
        check(&build::mmap2(&attr, &id, &spec), Record::Mmap(mapping));
        let old = Mapping { flags: 0, file: MappedFile::Unknown, misc: PERF_RECORD_MISC_USER, ..mapping };
        check(&build::mmap(&attr, &id, &spec), Record::Mmap(old));
        check(&build::lost_samples(&attr, &id, addr), Record::LostSamples { lost: addr });
        check(&build::lost(&attr, &id, addr), Record::Lost { id: id.id.expect("set"), lost: addr });
        check(&build::cgroup(&attr, &id, addr, &name), Record::Cgroup { id: addr, path: &name });
        let symbol = Ksymbol { addr, len: 7, ksym_type: 1, unregister: false, name: &name };
        check(&build::ksymbol(&attr, &id, addr, 7, 1, &name), Record::Ksymbol(symbol));
        assert_eq!(one(&build::finished_round()).parse(), Ok(Record::FinishedRound));
        assert_eq!(one(&build::finished_init()).parse(), Ok(Record::FinishedInit));
        let entry = BuildId {
            misc: PERF_RECORD_MISC_USER | PERF_RECORD_MISC_BUILD_ID_SIZE,
            pid, id: build_id.unwrap_or_default(), filename: name.clone(),
        };
        let bytes = build::build_id_entry(PERF_RECORD_HEADER_BUILD_ID, &entry);
        assert_eq!(bytes.len() % 8, 0, "perf refuses it");
        prop_assert_eq!(one(&bytes).parse(), Ok(Record::BuildId(entry)));
        let bytes = build::header_attr(&attr, &longs);
        let Ok(Record::HeaderAttr { attr: stored, ids }) = one(&bytes).parse() else { panic!("no attr") };
        prop_assert_eq!(Attr::parse(stored), Some(Attr { size: 128, ..attr.clone() }));
        prop_assert_eq!(ids.iter().collect::<Vec<_>>(), longs);
    }

    /// Checks that a sample laid out by the kernel's rules comes back field by field, whatever
    /// fields it has.
    #[test]
    fn samples_parse_back(
        bits in 0u64..1 << 25,
        words in vec(any::<u64>(), 16),
        chain in vec(any::<u64>(), 0..40),
        raw in vec(any::<u8>(), 0..60),
        stack in vec(any::<u8>(), 0..10),
        group in any::<bool>(),
    ) {
        let read_format = 0b10111 | if group { PERF_FORMAT_GROUP } else { 0 };
        let attr = Attr {
            sample_type: bits, read_format, sample_regs_user: 0b1011, sample_regs_intr: 1 << 40,
            branch_sample_type: PERF_SAMPLE_BRANCH_HW_INDEX, ..Attr::default()
        };
        let mut raw = raw;
        raw.resize((raw.len() + 4).next_multiple_of(8) - 4, 0);
        let body = sample_body(bits, group, &words, &chain, &raw, &stack);
        let has = |bit| bits & bit != 0;

        let layout = SampleLayout::new(&attr);
        let sample = layout.parse(0, &body).expect("parses");
        let want = |bit, word: usize| has(bit).then(|| words[word]);
        for (bit, word, found) in [
            (PERF_SAMPLE_IP, 1, sample.ip),
            (PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_ID, 0, sample.id),
            (PERF_SAMPLE_TIME, 3, sample.time),
            (PERF_SAMPLE_ADDR, 4, sample.addr),
            (PERF_SAMPLE_STREAM_ID, 5, sample.stream_id),
            (PERF_SAMPLE_PERIOD, 7, sample.period),
            (PERF_SAMPLE_WEIGHT | PERF_SAMPLE_WEIGHT_STRUCT, 8, sample.weight),
            (PERF_SAMPLE_DATA_SRC, 9, sample.data_src),
            (PERF_SAMPLE_TRANSACTION, 10, sample.transaction),
            (PERF_SAMPLE_PHYS_ADDR, 11, sample.phys_addr),
            (PERF_SAMPLE_CGROUP, 12, sample.cgroup),
            (PERF_SAMPLE_DATA_PAGE_SIZE, 13, sample.data_page_size),
            (PERF_SAMPLE_CODE_PAGE_SIZE, 14, sample.code_page_size),
        ] {
            prop_assert_eq!(found, want(bit, word), "field {:#x}", bit);
        }
        let task = want(PERF_SAMPLE_TID, 2);
        prop_assert_eq!((sample.pid, sample.tid), (task.map(|word| word as i32), task.map(|word| (word >> 32) as i32)));
        prop_assert_eq!(sample.cpu, want(PERF_SAMPLE_CPU, 6).map(|word| word as u32));
        prop_assert_eq!(sample.callchain.map(|c| c.iter().collect::<Vec<_>>()), has(PERF_SAMPLE_CALLCHAIN).then_some(chain));
        prop_assert_eq!(sample.raw, has(PERF_SAMPLE_RAW).then_some(&raw[..]));
        prop_assert_eq!(sample.aux.map(<[u8]>::to_vec), has(PERF_SAMPLE_AUX).then_some(77u64.to_le_bytes().to_vec()));
        let user = has(PERF_SAMPLE_REGS_USER);
        for (number, value) in [(0, Some(100)), (1, Some(101)), (2, None), (3, Some(103)), (64, None)] {
            prop_assert_eq!(sample.user_regs.and_then(|regs| regs.get(number)), value.filter(|_| user));
        }
        prop_assert_eq!(sample.intr_regs.and_then(|regs| regs.get(40)), Some(140).filter(|_| has(PERF_SAMPLE_REGS_INTR)));
        let stack_bytes = sample.user_stack.map(<[u8]>::len);
        prop_assert_eq!(stack_bytes, has(PERF_SAMPLE_STACK_USER).then_some(if stack.is_empty() { 0 } else { 5 }));
        prop_assert_eq!(sample.branches.map(|b| (b.hw_idx, b.entries.len())), has(PERF_SAMPLE_BRANCH_STACK).then_some((Some(99), 3)));
        if let Some(read) = sample.read {
            let counters: Vec<_> = read.counters().map(|c| (c.value, c.id, c.lost)).collect();
            let all = [(20, Some(21), Some(22)), (30, Some(31), Some(32))];
            prop_assert_eq!(&counters[..], &all[..if group { 2 } else { 1 }]);
        }
        // One byte less and some field is missing, whatever the last one is.
        if let Some(short) = body.len().checked_sub(1) {
            let error = layout.parse(0, &body[..short]).expect_err("too short");
            prop_assert!(error.offset as usize <= body.len());
        }
    }

    /// Checks that features come back from their sections, and that the bits tell which there are.
    #[test]
    fn features_come_back(
        texts in vec("[ -~]{0,80}", 4),
        numbers in any::<[u32; 6]>(),
        cmdline in vec("[ -~]{0,20}", 0..5),
        id in vec(any::<u8>(), 0..=20),
        cpus in 0u32..9,
    ) {
        let mut features = Features {
            hostname: Some(texts[0].clone()),
            os_release: Some(texts[1].clone()),
            version: Some(texts[2].clone()),
            nr_cpus: Some(NrCpus { available: cpus, online: numbers[0] }),
            total_mem_kb: Some(numbers[1].into()),
            cmdline,
            event_desc: vec![EventDesc {
                attr: Attr { size: 128, config: 3, ..Attr::default() }, name: texts[3].clone(), ids: vec![1, 2],
            }],
            cpu_topology: Some(CpuTopology {
                core_siblings: texts.clone(),
                cpus: (0..cpus).map(|core| CpuPlace { core, socket: 1, die: Some(2) }).collect(),
                die_siblings: if cpus > 0 { texts.clone() } else { Vec::new() },
                ..CpuTopology::default()
            }),
            numa: vec![NumaNode { node: 1, total_kb: 2, free_kb: 3, cpus: texts[0].clone() }],
            pmu_mappings: vec![(numbers[2], texts[1].clone())],
            groups: vec![GroupDesc { name: texts[2].clone(), leader: numbers[3], members: 2 }],
            sample_time: Some((4, 5)),
            clock_data: Some(ClockData { version: 1, clockid: numbers[4], wall_clock_ns: 8, clockid_time_ns: 9 }),
            compressed: Some(CompressedInfo { version: 1, kind: 1, level: 3, ratio: 4, mmap_len: numbers[5] }),
            build_ids: vec![BuildId { misc: 2 | 1 << 15, pid: -1, id, filename: b"/bin/x".to_vec() }],
            other: vec![(200, vec![1, 2, 3])],
            branch_stack: true,
            ..Features::default()
        };
        features.tracing_data = Some(b"opaque".to_vec());
        let mut back = Features::default();
        for bit in features.bits() {
            prop_assert!(back.set_section(bit, &features.section(bit).expect("listed")), "{}", bit);
        }
        prop_assert_eq!(back, features);
    }

    /// Checks that any bytes, alone or behind a good start, are read to an end without a panic.
    #[test]
    fn any_bytes_never_panic(tail in vec(any::<u8>(), 0..2000), start in 0usize..5) {
        let mut file: Vec<u8> = match start {
            0 => Vec::new(),
            1 => b"PERFILE2".to_vec(),
            2 => [b"PERFILE2".as_slice(), &16u64.to_le_bytes()].concat(),
            3 => pipe_of(u64::MAX),
            _ => [b"PERFILE2".as_slice(), &104u64.to_le_bytes(), &144u64.to_le_bytes()].concat(),
        };
        file.extend_from_slice(&tail);
        if let Ok(recording) = open_bytes(file) {
            exhaust(&recording);
            let (records, summary) = read(&recording, 2);
            prop_assert_eq!(records.len() as u64, summary.records);
        }
        let _ = jitdump::parse(&tail).map(|(_, records)| records.count());
        let _ = tracing_data::parse(&tail);
    }

    /// Checks that records go through the compressor and come back, in whatever pieces they were
    /// given, with records that cross the borders of compressed ones.
    #[test]
    fn compressed_streams_come_back(
        sizes in vec(0usize..8000, 1..60),
        pieces in vec(1usize..20, 1..10),
        seed in any::<u64>(),
        level in 1u32..4,
    ) {
        let mut noise = seed;
        let mut records = Vec::new();
        for size in sizes {
            let body: Vec<u8> = (0..size).map(|_| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                (noise >> 56) as u8
            }).collect();
            records.push(build::record(PERF_RECORD_SAMPLE, 0, &body));
        }
        let mut compressor = Compressor::new(level).expect("zstd works");
        let mut file = pipe_of(PERF_SAMPLE_IP);
        let mut rest = &records[..];
        let mut want = 0;
        for piece in pieces.iter().cycle() {
            let (now, later) = rest.split_at((*piece).min(rest.len()));
            rest = later;
            compressor.compress(&now.concat(), &mut file).expect("compresses");
            file.extend_from_slice(&build::finished_round());
            want += now.len() + 1;
            if rest.is_empty() { break; }
        }
        let (back, summary) = read(&open_bytes(file).expect("opens"), 2);
        prop_assert_eq!(summary.problems, []);
        prop_assert_eq!(back.len(), want + 1);
        let samples: Vec<_> = back.iter().filter(|r| r.1.0 == PERF_RECORD_SAMPLE).map(|r| &r.1.2[..]).collect();
        prop_assert!(samples.iter().copied().eq(records.iter().map(|r| &r[8..])));
        prop_assert_eq!(compressor.bytes_in() as usize, records.concat().len());
    }
}
