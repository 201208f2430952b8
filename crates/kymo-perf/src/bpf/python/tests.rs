//! The programs against the kernel's verifier, and records against damage.
use super::*;
use kymo_testing::skip;

pub(in crate::bpf) const LAYOUT: PythonLayout = PythonLayout {
    frames: FrameKind::Separated,
    interpreter_next: 0,
    interpreter_threads: 72,
    thread_next: 8,
    thread_id: 136,
    thread_frame: 56,
    inner_frame: Some(0),
    frame_code: 0,
    frame_previous: 8,
    frame_position: 56,
    frame_mark: 70,
    entry_mark: 3,
    frame_bytes: 80,
    code_names: 112,
};

/// Checks that the kernel accepts every program, and that a process that is entered is in the map
/// until it is forgotten.
#[test]
fn programs_load() {
    let walker = match PythonWalker::new() {
        Ok(walker) => walker,
        Err(error) => return skip("bpf::python::programs_load", error.to_string()),
    };
    walker.program().unwrap();
    let pid = std::process::id() as i32;
    walker.enter(pid, &LAYOUT, 0x1234, 7).unwrap();
    let mut value = [0; layout::LAYOUT_BYTES];
    walker.processes.look_up(&pid.to_ne_bytes(), &mut value).unwrap();
    assert_eq!(value[..16], [0x34, 0x12, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0]);
    walker.forget(pid);
    assert!(walker.processes.look_up(&pid.to_ne_bytes(), &mut value).is_err());
}

/// Checks that the kernel accepts the walker at waits, and the gate in front of it.
#[test]
fn programs_at_waits_load() {
    let test = "bpf::python::programs_at_waits_load";
    let walker = match PythonWalker::new() {
        Ok(walker) => walker,
        Err(error) => return skip(test, error.to_string()),
    };
    let pending = PendingRecord { map: walker.stacks.maps().scratch, flag: 8 };
    walker.walk_at_waits(c"sched_exit_tp", pending, Weak::new()).unwrap();
    match walker.enter(std::process::id() as i32, &LAYOUT, 0x1234, 7) {
        Ok(()) => {}
        Err(BpfError::Attach { .. }) => skip(test, "no tracepoint behind switches before Linux 6.16"),
        Err(error) => panic!("{error}"),
    }
}

/// Checks that frames and code objects are read as they are written, and that cut bytes and other
/// kinds are nothing.
#[test]
fn records() {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let raw = words(&[1, 9, 2, 0, 0x10, 0, 5, 6, 0x20, 0, 7, 8 | 1 << 31, 99]);
    let Some(PythonRecord::Frames { interpreter: 9, frames }) = PythonRecord::parse(&raw) else { panic!() };
    let frame = |code, names, position, entered| PythonFrame { code, names, position, entered };
    let frames: Vec<PythonFrame> = PythonRecord::frames(frames).collect();
    assert_eq!(frames, [frame(0x10, 5, 6, false), frame(0x20, 7, 8, true)]);
    assert_eq!(PythonRecord::parse(&raw[..40]), None);
    assert_eq!(PythonRecord::parse(&words(&[1, 9, 129, 0, 0, 0])), None);
    assert_eq!(PythonRecord::parse(&words(&[3, 9, 0, 0])), None);

    let mut raw = words(&[2, 9, 0x30, 0, 11, 0]);
    raw.resize(record::LINES_AT, 0);
    raw.extend(3u64.to_ne_bytes());
    raw.extend([1, 2, 3, 4]);
    let Some(PythonRecord::Code { interpreter: 9, code }) = PythonRecord::parse(&raw) else { panic!() };
    assert_eq!((code.address, code.names, code.lines), (0x30, 11, (&[1, 2, 3][..], true)));
    assert_eq!(PythonRecord::parse(&raw[..raw.len() - 2]), None);
}
