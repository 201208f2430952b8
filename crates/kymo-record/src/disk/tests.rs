//! A disk that fails as it is told to, behind both ways of writing.
use super::landing::{Landing, count_samples};
use super::port::Port;
use super::retry::{Retrying, Truncate, WriteError};
use kymo_data::{Attr, Compressor, EventSpec, Features, FileWriter, Recording, WriteAt, abi, build};
use kymo_perf::uring::{Answer, UringWrite};
use proptest::prelude::*;
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Mutex};

/// What one write comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Short(u8),
    Interrupted,
    Again,
    Full,
    Broken,
}

/// When the disk refuses for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Never,
    /// Nothing fits beyond this offset.
    Full(u64),
    /// From this write on it is broken.
    Broken(usize),
}

/// Bytes in memory that are written with faults.
#[derive(Clone, Debug)]
struct Faulty(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    faults: Vec<Fault>,
    writes: usize,
    end: End,
}

fn error(errno: Errno) -> io::Error {
    errno.into()
}

impl Faulty {
    fn new(faults: Vec<Fault>, end: End) -> Faulty {
        Faulty(Arc::new(Mutex::new(State { bytes: Vec::new(), faults, writes: 0, end })))
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().bytes.clone()
    }
}

impl WriteAt for Faulty {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let mut state = self.0.lock().unwrap();
        let fault = state.faults.get(state.writes).copied().unwrap_or(Fault::None);
        state.writes += 1;
        let mut room = buf.len();
        match fault {
            Fault::None => {}
            // A header is within one sector: it is written whole or not at all.
            Fault::Short(_) if buf.len() <= 104 => {}
            Fault::Short(part) => room = (room * usize::from(part) / 256).max(1),
            Fault::Interrupted => return Err(error(Errno::INTR)),
            Fault::Again => return Err(error(Errno::AGAIN)),
            Fault::Full => return Err(error(Errno::NOSPC)),
            Fault::Broken => return Err(error(Errno::IO)),
        }
        match state.end {
            End::Never => {}
            End::Broken(write) if state.writes > write => return Err(error(Errno::IO)),
            End::Broken(_) => {}
            End::Full(end) => room = room.min(end.saturating_sub(offset) as usize),
        }
        if room == 0 && !buf.is_empty() {
            return Err(error(Errno::NOSPC));
        }
        let (start, end) = (offset as usize, offset as usize + room);
        if state.bytes.len() < end {
            state.bytes.resize(end, 0);
        }
        state.bytes[start..end].copy_from_slice(&buf[..room]);
        Ok(room)
    }
}

impl Truncate for Faulty {
    fn cut(&self, len_bytes: u64) -> io::Result<()> {
        self.0.lock().unwrap().bytes.truncate(len_bytes as usize);
        Ok(())
    }

    fn read_back(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.0.lock().unwrap();
        let end = offset as usize + buf.len();
        buf.copy_from_slice(state.bytes.get(offset as usize..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Several pieces at once to that disk, answered in any order.
struct Shuffled {
    disk: Faulty,
    waiting: Vec<UringWrite>,
    order: Vec<u8>,
    answers: usize,
}

impl Port for Shuffled {
    fn submit(&mut self, piece: UringWrite) -> Result<(), UringWrite> {
        if self.waiting.len() == 3 {
            return Err(piece);
        }
        self.waiting.push(piece);
        Ok(())
    }

    fn try_next(&mut self) -> Option<Answer> {
        let eager = self.order.get(self.answers % self.order.len().max(1)).is_some_and(|byte| byte % 3 == 0);
        self.answers += 1;
        if eager { self.next().unwrap() } else { None }
    }

    fn next(&mut self) -> io::Result<Option<Answer>> {
        if self.waiting.is_empty() {
            return Ok(None);
        }
        let pick = self.order.get(self.answers % self.order.len().max(1)).copied().unwrap_or(0);
        self.answers += 1;
        let piece = self.waiting.swap_remove(usize::from(pick) % self.waiting.len());
        let result = self.disk.write_at(&piece.bytes[piece.done..], piece.offset + piece.done as u64);
        Ok(Some(Answer { piece, result }))
    }
}

fn sample(serial: u64, words: usize) -> Vec<u8> {
    let mut body = vec![serial, 1, serial + 1, words as u64];
    body.extend((0..words as u64).map(|word| serial ^ word));
    let header = u64::from(abi::PERF_RECORD_SAMPLE) | (8 + 8 * body.len() as u64) << 48;
    std::iter::once(header).chain(body).flat_map(u64::to_le_bytes).collect()
}

fn event() -> EventSpec {
    let (ip, time) = (abi::PERF_SAMPLE_IP, abi::PERF_SAMPLE_TIME);
    let sample_type = ip | abi::PERF_SAMPLE_TID | time | abi::PERF_SAMPLE_CALLCHAIN;
    EventSpec { attr: Attr { sample_type, ..Attr::default() }, ids: vec![], name: "made-up".into() }
}

/// The serial numbers in a file that must open.
fn serials(bytes: Vec<u8>) -> Vec<u64> {
    let recording = Recording::open(Arc::new(bytes), Vec::new()).expect("opens");
    // Apart from how it ended.
    let is_about_the_end = |what: &str| what.starts_with("the recorder");
    assert!(recording.problems.iter().all(|one| is_about_the_end(&one.what)), "{:?}", recording.problems);
    let (mut reader, mut found) = (recording.records(), Vec::new());
    while let Some(record) = reader.next_record().expect("readable") {
        if record.header.kind == abi::PERF_RECORD_SAMPLE {
            found.push(u64::from_le_bytes(record.body[..8].try_into().unwrap()));
        }
    }
    assert!(reader.problems().is_empty(), "{:?}", reader.problems());
    found
}

/// The serial numbers that the header tells of. Before the first publication (a disk may break
/// before it) a reader goes to the file's end, whatever is there.
fn published(disk: &Faulty) -> Vec<u64> {
    let bytes = disk.bytes();
    if bytes[48..56] == [0; 8] { Vec::new() } else { serials(bytes) }
}

fn says_it_is_incomplete(disk: &Faulty) -> bool {
    let recording = Recording::open(Arc::new(disk.bytes()), Vec::new()).expect("opens");
    recording.problems.iter().any(|one| one.what.contains("could not write what came after"))
}

/// What is done with a recording.
#[derive(Clone, Debug)]
enum Step {
    /// So many samples of about so many words.
    Append(u16, u16),
    Publish(bool),
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let fault = prop_oneof![
        6 => Just(Fault::None),
        3 => any::<u8>().prop_map(Fault::Short),
        1 => Just(Fault::Interrupted),
        1 => Just(Fault::Again),
        1 => Just(Fault::Full),
        1 => Just(Fault::Broken),
    ];
    // Not more refusals than one write bears, in all: of several in flight, the same one may meet
    // every one of them. The end is what `End` says.
    let bearable = |faults: Vec<Fault>| {
        let mut refusals = 0;
        faults.into_iter().map(move |fault| {
            refusals += u32::from(matches!(fault, Fault::Full | Fault::Broken));
            if refusals > 3 && matches!(fault, Fault::Full | Fault::Broken) { Fault::None } else { fault }
        })
    };
    prop::collection::vec(fault, 0..80).prop_map(move |faults| bearable(faults).collect())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1..400u16, 0..60u16).prop_map(|(count, words)| Step::Append(count, words)),
        1 => any::<bool>().prop_map(Step::Publish),
    ];
    prop::collection::vec(step, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Checks, for any schedule of faults and any order of answers, at every publication and at the
    /// end: the file opens and holds exactly the first so many records, none twice, none damaged;
    /// what is missing is accounted for; trouble that passes costs nothing.
    #[test]
    fn whatever_the_disk_does(
        steps in steps(),
        faults in faults(),
        end in prop_oneof![
            2 => Just(End::Never),
            2 => (2_000..400_000u64).prop_map(End::Full),
            1 => (4..60usize).prop_map(End::Broken),
        ],
        order in prop::option::of(prop::collection::vec(any::<u8>(), 1..40)),
        early in any::<bool>(),
    ) {
        let disk = Faulty::new(faults, end);
        let early = Features { hostname: early.then(|| "here".to_owned()), ..Features::default() };
        let writer = FileWriter::create_with_features(Retrying(disk.clone()), &[event()], &early);
        let Ok(writer) = writer else { return Ok(()) };
        let port = order.clone().map(|order| {
            Box::new(Shuffled { disk: disk.clone(), waiting: Vec::new(), order, answers: 0 }) as Box<dyn Port>
        });
        let in_order = order.is_none();
        let mut landing = Landing::new(writer, port);
        let mut next = 0;
        for step in steps {
            match step {
                Step::Append(count, words) => {
                    let bytes: Vec<u8> = (0..u64::from(count))
                        .flat_map(|at| sample(next + at, usize::from(words) + (at % 3) as usize))
                        .collect();
                    prop_assert_eq!(count_samples(&bytes), u64::from(count));
                    let result = landing.append(&bytes, u64::from(count));
                    prop_assert!(result.is_ok() || end != End::Never, "{:?}", result);
                    next += u64::from(count);
                }
                Step::Publish(all) => {
                    let result = landing.publish(all);
                    prop_assert!(result.is_ok() || end != End::Never, "{:?}", result);
                    let found = published(&disk);
                    prop_assert!(found.iter().copied().eq(0..found.len() as u64));
                    if result.is_ok() && (all || in_order) {
                        prop_assert_eq!(found.len() as u64, next);
                    }
                }
            }
        }
        let features = Features { os_release: Some("6.1".repeat(200)), ..Features::default() };
        let finished = landing.finish(&features);
        let found = published(&disk);
        prop_assert!(found.iter().copied().eq(0..found.len() as u64));
        prop_assert_eq!(found.len() as u64 + finished.lost_samples, next);
        if end == End::Never {
            prop_assert!(finished.error.is_none(), "{:?}", finished.error);
        }
        prop_assert!(finished.error.is_some() || finished.lost_samples == 0);
        prop_assert_eq!(finished.lost_samples > 0, finished.lost_bytes > 0);
    }
}

/// Checks the words: where it failed, what the operating system said, and what to do.
#[test]
fn words() {
    let disk = Faulty::new(Vec::new(), End::Full(5_000));
    let writer = FileWriter::create(Retrying(disk), &[event()]).unwrap();
    let data_at = writer.contiguous();
    let mut landing = Landing::new(writer, None);
    let bytes: Vec<u8> = (0..1000).flat_map(|serial| sample(serial, 0)).collect();
    assert!(landing.append(&bytes, 1000).is_err());
    let finished = landing.finish(&Features::default());
    let error = WriteError::from(finished.error.expect("it was full"));
    assert_eq!(error.to_string(), "at offset 5000: No space left on device (os error 28)");
    assert!(error.advice().contains("--max-size"), "{}", error.advice());
    assert_eq!(finished.lost_samples, 1000 - (finished.bytes - data_at) / 40);
}

/// Checks that a recording on a full disk is published up to the last record that leaves room for
/// the table of features, however much had been published before.
#[test]
fn a_full_disk_keeps_what_was_written() {
    let disk = Faulty::new(Vec::new(), End::Full(5_000));
    let early = Features { hostname: Some("here".into()), ..Features::default() };
    let writer = FileWriter::create_with_features(Retrying(disk.clone()), &[event()], &early).unwrap();
    let room = 5_000 - writer.contiguous() - writer.table_bytes() as u64;
    let mut landing = Landing::new(writer, None);
    let bytes: Vec<u8> = (0..1000).flat_map(|serial| sample(serial, 0)).collect();
    assert!(landing.append(&bytes, 1000).is_err());
    let finished = landing.finish(&Features { os_release: Some("6".repeat(5_000)), ..early });
    assert_eq!(published(&disk).len() as u64, room / 40);
    assert_eq!(finished.lost_samples, 1000 - room / 40);
}

/// Checks that records which end where the table of features does not fit any more make room for it:
/// the last ones go, and no others. Written as one piece, or each as a piece that is smaller than
/// the table.
#[test]
fn records_make_room_for_the_table() {
    let early = Features { hostname: Some("here".into()), ..Features::default() };
    let start =
        |disk: &Faulty| FileWriter::create_with_features(Retrying(disk.clone()), &[event()], &early).unwrap();
    let unlimited = start(&Faulty::new(Vec::new(), End::Never));
    let (begin, table) = (unlimited.contiguous(), unlimited.table_bytes() as u64);
    for (room, piece) in (0..table).flat_map(|room| [(room, 100), (room, 1)]) {
        let disk = Faulty::new(Vec::new(), End::Full(begin + 100 * 40 + room));
        let mut landing = Landing::new(start(&disk), None);
        let records: Vec<Vec<u8>> = (0..100).map(|serial| sample(serial, 0)).collect();
        for records in records.chunks(piece) {
            landing.append(&records.concat(), piece as u64).expect("there is room for records");
        }
        assert!(landing.publish(true).is_err());
        let finished = landing.finish(&early);
        // One feature has 16 bytes in it; what is kept free is for the record that it becomes, too.
        let lost = if room < 16 { table.div_ceil(40) } else { 0 };
        assert_eq!(finished.lost_samples, lost, "{room} {piece}");
        assert_eq!(published(&disk), (0..100 - lost).collect::<Vec<_>>(), "{room} {piece}");
        // Even with all of them it ended before it was meant to, and says so.
        assert!(says_it_is_incomplete(&disk), "{room} {piece}");
    }
}

/// Checks that samples are counted in the file or as lost where the disk is full amid compressed
/// records that come behind a marker, which is not compressed, in the same piece.
#[test]
fn compressed_records_behind_a_marker() {
    for (room, is_port) in (0..900).step_by(7).flat_map(|room| [(room, false), (room, true)]) {
        let mut compressor = Compressor::new(1).unwrap();
        let features = Features { compressed: Some(compressor.info()), ..Features::default() };
        let begin = |disk: &Faulty| {
            FileWriter::create_with_features(Retrying(disk.clone()), &[event()], &features).unwrap()
        };
        let records_at = begin(&Faulty::new(Vec::new(), End::Never)).contiguous();
        let disk = Faulty::new(Vec::new(), End::Full(records_at + room));
        let port = Shuffled { disk: disk.clone(), waiting: Vec::new(), order: vec![0], answers: 0 };
        let port = is_port.then(|| Box::new(port) as Box<dyn Port>);
        let mut landing = Landing::new(begin(&disk), port);
        for first in [0, 4, 8] {
            _ = landing.append(&build::finished_round(), 0);
            let (samples, mut packed) = ((first..first + 4).flat_map(|serial| sample(serial, 9)), Vec::new());
            compressor.compress(&samples.collect::<Vec<u8>>(), &mut packed).unwrap();
            _ = landing.append(&packed, 4);
        }
        let finished = landing.finish(&features);
        let found = published(&disk).len() as u64;
        assert_eq!(found + finished.lost_samples, 12, "{room} {is_port}");
    }
}

/// Checks that what will not pass by itself is not tried again.
#[test]
fn some_refusals_are_final() {
    #[derive(Debug, Default)]
    struct Limited(Mutex<u32>);
    impl WriteAt for Limited {
        fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
            *self.0.lock().unwrap() += 1;
            Err(error(Errno::FBIG))
        }
    }
    let limited = Retrying(Limited::default());
    assert!(limited.write_at(&[1], 0).is_err());
    assert_eq!(*limited.0.0.lock().unwrap(), 1);
}
