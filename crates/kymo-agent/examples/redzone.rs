//! A heap checker in a hundred lines: who writes beyond the end of his buffer, found at the write,
//! in whichever of 200 threads it is.
//!
//! Each buffer has eight bytes more than was asked for, filled with a pattern; they are watched. Of
//! many buffers as many are watched at a time as the processor has slots, each for a while (so do
//! sampling checkers). Here one thread of 200 has an off-by-one.
//!
//! Run with `cargo run -p kymo-agent --example redzone`.
use kymo_agent::watch::{Guard, Kind, watch};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

const PATTERN: u64 = 0x7a7a_7a7a_7a7a_7a7a;

/// Bytes with a red zone behind them. Atomic so that writing them from several threads is no
/// mistake of its own.
struct Buffer {
    len: usize,
    bytes: Box<[AtomicU8]>,
}

impl Buffer {
    /// `len` is made a multiple of eight, so that a slot can hold the red zone.
    fn new(len: usize) -> Buffer {
        let len = len.next_multiple_of(8);
        let byte = |at| AtomicU8::new(if at >= len { PATTERN as u8 } else { 0 });
        // Sixteen more: the box need not begin at a multiple of eight.
        Buffer { len, bytes: (0..len + 16).map(byte).collect() }
    }

    /// Where the red zone begins, aligned: the first multiple of eight at or behind the end.
    fn red_zone(&self) -> usize {
        (self.bytes.as_ptr().addr() + self.len).next_multiple_of(8)
    }

    /// A write as a careless program does it: nobody looks at the length.
    fn write(&self, at: usize, byte: u8) {
        self.bytes[at].store(byte, Ordering::Relaxed);
    }
}

/// What the handler found. It may not allocate or print, so it leaves it here.
#[derive(Default)]
struct Found {
    thread: AtomicI32,
    ip: AtomicUsize,
    value: AtomicU64,
    times: AtomicU64,
}

fn guard_red_zone(buffer: &Buffer, found: &Arc<Found>) -> Result<Guard, kymo_agent::watch::Error> {
    let found = Arc::clone(found);
    watch(buffer.red_zone(), 8, Kind::WRITE, move |hit| {
        if found.times.fetch_add(1, Ordering::Relaxed) == 0 {
            found.thread.store(hit.thread, Ordering::Relaxed);
            found.ip.store(hit.ip, Ordering::Relaxed);
            found.value.store(hit.new.unwrap_or(0), Ordering::Relaxed);
        }
    })
}

#[inline(never)]
fn fill(buffer: &Buffer, last: usize) {
    for at in 0..=last {
        buffer.write(at, b'x');
    }
}

fn main() {
    let (buffer, found) = (Arc::new(Buffer::new(64)), Arc::new(Found::default()));
    let guard = match guard_red_zone(&buffer, &found) {
        Ok(guard) => guard,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1)
        }
    };
    let start = Arc::new(Barrier::new(200));
    let threads: Vec<_> = (0..200)
        .map(|number| {
            let (buffer, start) = (Arc::clone(&buffer), Arc::clone(&start));
            let run = move || {
                start.wait();
                // The one with the mistake writes up to and with the end, as far as the red zone's
                // first byte.
                let last = if number == 117 {
                    buffer.red_zone() - buffer.bytes.as_ptr().addr()
                } else {
                    buffer.len - 1
                };
                fill(&buffer, last);
            };
            std::thread::Builder::new().name(format!("worker-{number}")).stack_size(128 << 10).spawn(run)
        })
        .collect::<Result<_, _>>()
        .expect("200 threads");
    let culprit = threads[117].thread().name().map(str::to_owned);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let hits = guard.stop();
    println!("{hits} write beyond the end of a buffer of 64 bytes");
    println!("  by thread {} ({})", found.thread.load(Ordering::Relaxed), culprit.unwrap_or_default());
    println!(
        "  just before {:#x} (fill() begins at {:#x})",
        found.ip.load(Ordering::Relaxed),
        fill as fn(&Buffer, usize) as usize
    );
    println!("  the red zone was {PATTERN:#x} and is {:#x}", found.value.load(Ordering::Relaxed));
    assert_eq!((hits, found.times.load(Ordering::Relaxed)), (1, 1));
}
