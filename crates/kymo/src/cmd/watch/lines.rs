//! Hits as they come, a line each: written by a thread of its own, so that a slow terminal or pipe keeps nobody from reading rings.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use kymo_perf::event_clock::monotonic_ns;
use kymo_perf::sys;
use kymo_profile::text::shown;
use serde_json::json;

use kymo_probe::watch::ledger::Hit;
use kymo_probe::watch::names::{Names, Site};
use kymo_probe::watch::place::Place;

/// So many lines wait to be written at most; more are counted and left out.
const WAITING: usize = 1 << 21;
/// On a terminal, so many lines per second: what a person can still see.
const PER_SECOND: u32 = 50;

/// What the lines are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// JSON, or words.
    pub(super) json: bool,
    /// Only so many per second that a person can follow.
    pub(super) bounded: bool,
    /// None at all.
    pub(super) none: bool,
}

/// For the writing thread.
enum Item {
    Hit(Box<Hit>),
    /// So many were left out here.
    Skipped(u64),
    Child {
        pid: i32,
        parent: i32,
    },
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    done: bool,
    /// Whoever reads has gone.
    broken: bool,
    dropped: u64,
}

type Shared = Arc<(Mutex<Queue>, Condvar)>;

/// The way to the writing thread.
pub(super) struct Lines {
    shared: Shared,
    thread: Option<JoinHandle<Names>>,
    form: Form,
    second: Instant,
    in_second: u32,
    skipped: u64,
}

/// Monotonic time as the time of day.
#[derive(Clone, Copy, Debug)]
pub(super) struct WallClock {
    /// The time of day at monotonic 0, in ns since 1970.
    zero_ns: u128,
}

impl WallClock {
    pub(super) fn now() -> WallClock {
        let monotonic = u128::from(monotonic_ns());
        let day = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
        WallClock { zero_ns: day.saturating_sub(monotonic) }
    }

    /// In ns since 1970.
    pub(super) fn since_1970_ns(&self, time_ns: u64) -> u128 {
        self.zero_ns + u128::from(time_ns)
    }

    /// `12:34:56.789012`, local time.
    fn show(&self, time_ns: u64, cache: &mut (u64, String)) -> String {
        let ns = self.since_1970_ns(time_ns);
        let (second, micros) = ((ns / 1_000_000_000) as u64, (ns % 1_000_000_000) / 1000);
        if cache.0 != second || cache.1.is_empty() {
            let digits = sys::timestamp(SystemTime::UNIX_EPOCH + Duration::from_secs(second));
            let part = |from: usize| digits.get(from..from + 2).unwrap_or("00");
            *cache = (second, format!("{}:{}:{}", part(8), part(10), part(12)));
        }
        format!("{}.{micros:06}", cache.1)
    }
}

impl Lines {
    /// Begins to write to stdout.
    ///
    /// # Errors
    /// There is no thread to write.
    pub(super) fn start(
        form: Form,
        places: Vec<Place>,
        names: Box<dyn FnOnce() -> Names + Send>,
    ) -> io::Result<Lines> {
        let shared: Shared = Arc::default();
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("lines".to_owned()).spawn(move || {
            let writer =
                Writer { form, places, names: names(), clock: WallClock::now(), second: (0, String::new()) };
            writer.run(&for_thread)
        })?;
        Ok(Lines { shared, thread: Some(thread), form, second: Instant::now(), in_second: 0, skipped: 0 })
    }

    fn push(&self, item: Item) {
        let mut queue = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.items.len() >= WAITING {
            queue.dropped += 1;
            return;
        }
        // The writer takes all there is at once, so it needs to be woken for the first only.
        let wake = queue.items.is_empty();
        queue.items.push_back(item);
        drop(queue);
        if wake {
            self.shared.1.notify_one();
        }
    }

    /// Another process was made.
    pub(super) fn child(&self, pid: i32, parent: i32) {
        self.push(Item::Child { pid, parent });
    }

    /// A hit.
    pub(super) fn hit(&mut self, hit: Hit) {
        if self.form.none {
            return;
        }
        if self.form.bounded {
            if self.second.elapsed() >= Duration::from_secs(1) {
                (self.second, self.in_second) = (Instant::now(), 0);
            }
            if self.in_second == PER_SECOND {
                self.skipped += 1;
                return;
            }
            self.in_second += 1;
            if self.skipped > 0 {
                let skipped = std::mem::take(&mut self.skipped);
                self.push(Item::Skipped(skipped));
            }
        }
        self.push(Item::Hit(Box::new(hit)));
    }

    /// Whether nobody reads any more.
    pub(super) fn is_broken(&self) -> bool {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).broken
    }

    /// Writes what is left; the names that were looked up, and how many lines were left out because they came too fast to be kept.
    pub(super) fn finish(mut self) -> (Names, u64) {
        if self.skipped > 0 {
            self.push(Item::Skipped(self.skipped));
        }
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).done = true;
        self.shared.1.notify_one();
        let names = self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        let dropped = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).dropped;
        (names, dropped)
    }
}

struct Writer {
    form: Form,
    places: Vec<Place>,
    names: Names,
    clock: WallClock,
    second: (u64, String),
}

impl Writer {
    fn run(mut self, shared: &Shared) -> Names {
        let mut out = std::io::BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
        let (lock, bell) = &**shared;
        loop {
            let (items, done) = {
                let queue = lock.lock().unwrap_or_else(PoisonError::into_inner);
                let wanted = |queue: &mut Queue| queue.items.is_empty() && !queue.done;
                let mut queue = bell.wait_while(queue, wanted).unwrap_or_else(PoisonError::into_inner);
                (std::mem::take(&mut queue.items), queue.done)
            };
            for item in items {
                let text = self.item(item);
                if out.write_all(text.as_bytes()).is_err() {
                    lock.lock().unwrap_or_else(PoisonError::into_inner).broken = true;
                }
            }
            if out.flush().is_err() {
                lock.lock().unwrap_or_else(PoisonError::into_inner).broken = true;
            }
            if done && lock.lock().unwrap_or_else(PoisonError::into_inner).items.is_empty() {
                return self.names;
            }
        }
    }

    fn item(&mut self, item: Item) -> String {
        match item {
            Item::Child { pid, parent } => {
                self.names.child(pid, parent);
                String::new()
            }
            Item::Skipped(count) if self.form.json => {
                format!("{}\n", json!({"type": "skipped", "hits": count}))
            }
            Item::Skipped(count) => format!("... {count} more\n"),
            Item::Hit(hit) if self.form.json => format!("{}\n", self.json(&hit)),
            Item::Hit(hit) => self.words(&hit),
        }
    }

    fn words(&mut self, hit: &Hit) -> String {
        let place = &self.places[hit.part.place];
        let site = self.names.access(hit.pid, hit.ip, place.is_code());
        let time = self.clock.show(hit.time_ns, &mut self.second);
        let name = String::from_utf8_lossy(&hit.comm);
        let thread = format!("{}/{}", if hit.comm.is_empty() { "?" } else { &name }, hit.tid);
        let mut text = format!("{time} {:<20} {}", shown(&thread), shown(&place.part_name(&hit.part)));
        if !place.is_code() {
            // SANITY: writing to a String cannot fail.
            write!(text, " {}", change(place, hit)).expect("writing to a string");
        }
        writeln!(text, "  {}", shown(&site_words(&site))).expect("writing to a string");
        for caller in self.callers(&hit.chain, hit.pid) {
            writeln!(text, "    from {}", shown(&site_words(&caller))).expect("writing to a string");
        }
        text
    }

    /// Who called, innermost first. Where a program has no frame pointers the kernel goes on with what is no code: there the chain ends.
    fn callers(&mut self, chain: &Option<Box<[u64]>>, pid: i32) -> Vec<Arc<Site>> {
        let returns = chain.iter().flat_map(|chain| chain.iter().skip(1));
        returns.map(|&ip| self.names.caller(pid, ip)).take_while(|site| site.module.is_some()).collect()
    }

    fn json(&mut self, hit: &Hit) -> serde_json::Value {
        let callers = self.callers(&hit.chain, hit.pid);
        let place = &self.places[hit.part.place];
        let site = self.names.access(hit.pid, hit.ip, place.is_code());
        let value = |value: Option<u64>| value.map(|value| place.show(&hit.part, value));
        let chain: Option<Vec<_>> =
            hit.chain.as_ref().map(|_| callers.iter().map(|site| site_json(site)).collect());
        let mut object = json!({
            "type": "hit",
            "time_ns": hit.time_ns,
            "unix_ns": self.clock.since_1970_ns(hit.time_ns) as u64,
            "pid": hit.pid,
            "tid": hit.tid,
            "comm": String::from_utf8_lossy(&hit.comm),
            "cpu": hit.cpu,
            "place": hit.part.place,
            "offset": hit.part.offset,
            "old": value(hit.old),
            "new": value(hit.new),
            "read_after": hit.read_after,
            "unsure": hit.unsure,
            "site": site_json(&site),
        });
        if let (Some(chain), Some(members)) = (chain, object.as_object_mut()) {
            members.insert("callers".into(), chain.into());
        }
        object
    }
}

/// `5 -> 6`, or `= 6` where nothing changed.
fn change(place: &Place, hit: &Hit) -> String {
    let show =
        |value: Option<u64>| value.map_or_else(|| "?".to_owned(), |value| place.show(&hit.part, value));
    let mut text = match (hit.old, hit.new) {
        (Some(old), Some(new)) if old == new => format!("= {}", show(hit.new)),
        _ => format!("{} -> {}", show(hit.old), show(hit.new)),
    };
    if hit.read_after {
        text.push_str(" (read after)");
    }
    if hit.unsure {
        text.push_str(" (or its neighbour)");
    }
    text
}

/// `function (file.c:12)`, or as much of it as is known.
pub(super) fn site_words(site: &Site) -> String {
    let mut text = match &site.function {
        Some(function) if site.line.is_some() => function.clone(),
        Some(function) => format!("{function}+{:#x}", site.offset),
        None => format!("{:#x}", site.address),
    };
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    match (&site.file, site.line, &site.module) {
        (Some(file), Some(line), _) => write!(text, " ({}:{line})", base(file)),
        (_, _, Some(module)) => write!(text, " ({})", base(module)),
        _ => Ok(()),
    }
    // SANITY: writing to a String cannot fail.
    .expect("writing to a string");
    text
}

/// A site's members.
pub(super) fn site_json(site: &Site) -> serde_json::Value {
    json!({
        "address": format!("{:#x}", site.address),
        "function": site.function,
        "file": site.file,
        "line": site.line,
        "module": site.module,
        "exact": site.exact,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what is said of a site with more and less known about it.
    #[test]
    fn sites() {
        let mut site = Site { address: 0x4005, ..Site::default() };
        assert_eq!(site_words(&site), "0x4005");
        site.module = Some("/usr/bin/demo".into());
        (site.function, site.offset) = (Some("bump".into()), 5);
        assert_eq!(site_words(&site), "bump+0x5 (demo)");
        (site.file, site.line) = (Some("/src/demo.c".into()), Some(12));
        assert_eq!(site_words(&site), "bump (demo.c:12)");
    }
}
