//! The `format` files of the recorded tracepoints, from tracefs.
use crate::user_rings::UserEvent;
use kymo_data::tracing_data::Files;
use kymo_perf::machine::Machine;
use kymo_perf::sys;
use kymo_perf::tracefs::Tracepoint;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// What tracefs says of pages of its own rings, none of which are in a recording; perf wants to
/// read it all the same.
const HEADER_PAGE: &[u8] = b"\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n";

/// The tracing data for these tracepoints, each once, ordered by system.
///
/// `user_rings`: events that programs write, which nobody else can describe.
pub(crate) fn data(tracepoints: &[Tracepoint], user_rings: &[UserEvent]) -> io::Result<Vec<u8>> {
    let machine = Machine::here();
    let tracefs = machine.tracefs();
    let events = match tracefs.events() {
        Ok(events) => events,
        // Readers need no more of it than the headers.
        Err(_) if tracepoints.is_empty() => PathBuf::new(),
        Err(error) => return Err(io::Error::other(error)),
    };
    let root = events.parent().unwrap_or(&events).to_owned();
    let mut files = Files {
        header_page: at_once(&events.join("header_page")),
        header_event: at_once(&events.join("header_event")),
        printk_formats: fs::read(root.join("printk_formats")).unwrap_or_default(),
        saved_cmdlines: fs::read(root.join("saved_cmdlines")).unwrap_or_default(),
        page_size: sys::page_size() as u32,
        ..Files::default()
    };
    let mut sorted: Vec<&Tracepoint> = tracepoints.iter().collect();
    sorted.sort_by(|a, b| (&a.system, &a.name).cmp(&(&b.system, &b.name)));
    sorted.dedup_by_key(|tracepoint| tracepoint.id);
    for tracepoint in sorted {
        let format = tracefs.format(tracepoint).map_err(io::Error::other)?.into_bytes();
        match files.systems.last_mut() {
            Some((system, formats)) if *system == tracepoint.system => formats.push(format),
            _ => files.systems.push((tracepoint.system.clone(), vec![format])),
        }
    }
    for user_ring in user_rings {
        let format = user_ring.format.clone().into_bytes();
        match files.systems.iter_mut().find(|(system, _)| *system == user_ring.system) {
            Some((_, formats)) => formats.push(format),
            None => files.systems.push((user_ring.system.clone(), vec![format])),
        }
    }
    if files.header_page.is_empty() {
        files.header_page = HEADER_PAGE.to_vec();
    }
    Ok(files.to_blob())
}

/// A small file whose rest the kernel does not give after a first, smaller read.
fn at_once(path: &Path) -> Vec<u8> {
    let mut text = vec![0; 1 << 16];
    let read = fs::File::open(path).and_then(|mut file| file.read(&mut text)).unwrap_or(0);
    text.truncate(read);
    text
}

#[cfg(test)]
mod tests {
    use super::{UserEvent, data};
    use kymo_perf::machine::Machine;
    use kymo_testing::skip;

    /// Checks that the formats of this machine come back as they went in, headers included.
    #[test]
    fn this_machine() {
        let Ok(tracepoint) = Machine::here().tracefs().find("sched", "sched_switch") else {
            skip("formats::tests::this_machine", "tracefs is not mounted or may not be read");
            return;
        };
        let blob = data(&[tracepoint.clone(), tracepoint.clone()], &[]).unwrap();
        let parsed = kymo_data::tracing_data::parse(&blob).unwrap();
        assert_eq!(parsed.formats.len(), 1, "each once");
        assert!(parsed.format(tracepoint.id).is_some_and(|format| format.field("prev_comm").is_some()));
        let user_ring = UserEvent {
            name: "f".into(),
            system: "programs".into(),
            format: "name: f\nID: 60001\nformat:\n\tfield:u64 arg1;\toffset:16;\tsize:8;\tsigned:0;\n".into(),
            kind: 60001,
            id: 1,
        };
        let alone = kymo_data::tracing_data::parse(&data(&[], &[user_ring]).unwrap()).unwrap();
        assert!(alone.format(60001).is_some_and(|format| format.system == "programs"));
        let header = String::from_utf8_lossy(&blob);
        assert!(header.contains("overwrite") && header.contains("time_extend"), "both headers are whole");
    }
}
