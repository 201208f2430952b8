//! Rows to bytes.
use super::{Frame, HEADER_BYTES, MAGIC, MAX_COUNTERS, MAX_NAME_BYTES, PLACES_AT, Place, VERSION};

/// The header of a new table, without a frame.
pub fn header_bytes(pid: u32, request_fd: i32) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC.to_le_bytes());
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&(PLACES_AT as u32).to_le_bytes());
    header[16..20].copy_from_slice(&pid.to_le_bytes());
    header[20..24].copy_from_slice(&request_fd.to_le_bytes());
    header
}

/// A place as it stands in the header.
pub fn place_bytes(place: &Place) -> [u8; 32] {
    let mut bytes = [0; 32];
    let numbers = [place.number, place.offset, place.bytes, place.checksum];
    for (at, number) in bytes.chunks_exact_mut(8).zip(numbers) {
        at.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// The bytes of a frame.
pub fn encode(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    number(&mut out, frame.time_ns);
    number(&mut out, frame.last.into());
    text(&mut out, &frame.problem);
    number(&mut out, frame.groups.len() as u64);
    for group in &frame.groups {
        number(&mut out, group.number);
        text(&mut out, &group.name);
        number(&mut out, group.per_task.into());
        number(&mut out, group.spawned);
        let counters = &group.counters[..group.counters.len().min(MAX_COUNTERS)];
        number(&mut out, counters.len() as u64);
        counters.iter().for_each(|name| text(&mut out, name));
        numbers(&mut out, &group.own, &group.counts, counters.len());
        number(&mut out, group.tasks.len() as u64);
        for task in &group.tasks {
            number(&mut out, task.number);
            text(&mut out, &task.name);
            number(&mut out, task.running.into());
            numbers(&mut out, &task.own, &task.counts, counters.len());
        }
    }
    out
}

fn number(out: &mut Vec<u8>, number: u64) {
    out.extend(number.to_le_bytes());
}

/// A length and the text, cut at a character.
fn text(out: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(MAX_NAME_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.push(end as u8);
    out.extend(&text.as_bytes()[..end]);
}

/// What every row has, then which of the counts are known, then the counts.
fn numbers(out: &mut Vec<u8>, own: &[u64; 4], counts: &[Option<u64>], columns: usize) {
    own.iter().for_each(|&value| number(out, value));
    let counts = || (0..columns).map(|at| counts.get(at).copied().flatten());
    number(out, counts().enumerate().fold(0, |known, (at, count)| known | u64::from(count.is_some()) << at));
    counts().for_each(|count| number(out, count.unwrap_or(0)));
}
