//! The formats of the tracepoints of a recording, as tracefs tells them.
use kymo_data::tracing_data::Files;
use kymo_perf::machine::Machine;
use kymo_perf::sys;
use kymo_perf::tracefs::Tracepoint;
use std::fs;
use std::io;

/// The tracing data for these tracepoints, each once, ordered by system.
pub(crate) fn data(tracepoints: &[Tracepoint]) -> io::Result<Vec<u8>> {
    let machine = Machine::here();
    let tracefs = machine.tracefs();
    let events = tracefs.events().map_err(io::Error::other)?;
    let root = events.parent().unwrap_or(&events).to_owned();
    let mut files = Files {
        header_page: fs::read(events.join("header_page")).unwrap_or_default(),
        header_event: fs::read(events.join("header_event")).unwrap_or_default(),
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
    Ok(files.to_blob())
}
