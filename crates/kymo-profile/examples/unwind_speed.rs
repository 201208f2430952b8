//! How fast user stacks are unwound: samples per second on one core with warm caches, ours beside framehop's.
//!
//! `cargo run --release --example unwind_speed -- perf.data [seconds]`
//! where perf.data comes from `perf record --call-graph dwarf`.
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[path = "../tests/suite/recorded.rs"]
mod recorded;

use framehop::Unwinder as _;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module};
use kymo_symbols::unwind::{AddressSpace, Convention, MAX_FRAMES, Mapping, Stop, UnwindModules, Unwinder};
use object::{Object as _, ObjectSection as _, ObjectSegment as _};
use recorded::RecordedSample;

fn main() {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().expect("usage: unwind_speed FILE [SECONDS]"));
    let length =
        args.next().and_then(|n| n.parse().ok()).map_or(Duration::from_secs(2), Duration::from_secs_f64);
    let modules = UnwindModules::new();
    let samples = recorded::samples(&path, &modules);
    assert!(!samples.is_empty(), "the recording has no samples with user registers and stack");
    let threads: HashSet<i32> = samples.iter().map(|s| s.key.0).collect();
    let stack_bytes: usize = samples.iter().map(|s| s.stack.len()).sum();
    println!(
        "{} samples of {} threads, {:.0} stack bytes each",
        samples.len(),
        threads.len(),
        stack_bytes as f64 / samples.len() as f64
    );

    let mut unwinder = Unwinder::new(Convention::Return);
    let mut frames = Vec::with_capacity(MAX_FRAMES);
    race("kymo", &samples, length, |sample| {
        frames.clear();
        unwinder.unwind(&sample.space, &sample.regs, &sample.stack, MAX_FRAMES, &mut frames);
        frames.len()
    });
    let stats = unwinder.stats();
    println!("         {} rules worked out", stats.rules_parsed);
    for cause in Stop::ALL {
        println!(
            "         {:6.2} % {}",
            stats.stopped(cause) as f64 * 100.0 / stats.samples as f64,
            cause.label()
        );
    }

    let mut rival = Rival::default();
    let spaces: Vec<usize> = samples.iter().map(|sample| rival.space(&sample.space)).collect();
    let mut at = 0;
    race("framehop", &samples, length, |sample| {
        let space = spaces[at % spaces.len()];
        at += 1;
        rival.unwind(space, sample)
    });
}

/// Unwinds all samples once, then again and again for this long.
fn race(
    who: &str,
    samples: &[RecordedSample],
    length: Duration,
    mut unwind: impl FnMut(&RecordedSample) -> usize,
) {
    let start = Instant::now();
    let depth: usize = samples.iter().map(&mut unwind).sum();
    let cold = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let (mut count, mut frames) = (0, 0);
    while start.elapsed() < length {
        frames += samples.iter().map(&mut unwind).sum::<usize>();
        count += samples.len();
    }
    let wall = start.elapsed().as_secs_f64();
    println!(
        "{who:8} {:9.0} samples/s, {:.1} frames each, {:.1} ns per frame; cold first round {:.1} ms",
        count as f64 / wall,
        depth as f64 / samples.len() as f64,
        wall * 1e9 / frames as f64,
        cold * 1e3
    );
}

type Bytes = Arc<[u8]>;

/// framehop with one unwinder per set of mappings and one cache, as its documentation advises.
#[derive(Default)]
struct Rival {
    known: BTreeMap<Vec<u64>, usize>,
    unwinders: Vec<UnwinderX86_64<Bytes>>,
    cache: CacheX86_64,
}

impl Rival {
    fn space(&mut self, space: &AddressSpace) -> usize {
        let key: Vec<u64> = space.mappings().iter().map(|m| m.start).collect();
        *self.known.entry(key).or_insert_with(|| {
            let mut unwinder = UnwinderX86_64::new();
            space.mappings().iter().filter_map(module).for_each(|module| unwinder.add_module(module));
            self.unwinders.push(unwinder);
            self.unwinders.len() - 1
        })
    }

    fn unwind(&mut self, space: usize, sample: &RecordedSample) -> usize {
        let regs = &sample.regs;
        let mut read = |address: u64| {
            let at = usize::try_from(address.wrapping_sub(regs.sp())).map_err(drop)?;
            let bytes = sample.stack.get(at..at.checked_add(8).ok_or(())?).ok_or(())?;
            bytes.try_into().map(u64::from_le_bytes).map_err(drop)
        };
        let start = UnwindRegsX86_64::new(regs.ip, regs.sp(), regs.get(6).unwrap_or(0));
        let mut walk = self.unwinders[space].iter_frames(regs.ip, start, &mut self.cache, &mut read);
        let mut frames = 0;
        while frames < MAX_FRAMES && matches!(walk.next(), Ok(Some(_))) {
            frames += 1;
        }
        frames
    }
}

fn module(mapping: &Mapping) -> Option<Module<Bytes>> {
    let name = mapping.module.as_ref()?.name();
    let file = std::fs::read(&name).ok()?;
    let elf = object::File::parse(&*file).ok()?;
    let code = elf.segments().find(|s| {
        let (offset, size) = s.file_range();
        offset < mapping.pgoff + (mapping.end - mapping.start)
            && mapping.pgoff < offset + size
            && s.address() > 0
    })?;
    let base = mapping.start.wrapping_sub(mapping.pgoff).wrapping_sub(code.address() - code.file_range().0);
    let section = |name| elf.section_by_name(name);
    let range = |name| section(name).map(|s| s.address()..s.address() + s.size());
    let data = |name| section(name).and_then(|s| s.data().ok()).map(Bytes::from);
    let info = ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma: range(".text"),
        got_svma: range(".got"),
        eh_frame_svma: range(".eh_frame"),
        eh_frame: data(".eh_frame"),
        eh_frame_hdr_svma: range(".eh_frame_hdr"),
        eh_frame_hdr: data(".eh_frame_hdr"),
        ..ExplicitModuleSectionInfo::default()
    };
    Some(Module::new(name, mapping.start..mapping.end, base, info))
}
