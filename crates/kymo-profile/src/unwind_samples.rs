//! Stacks recorded as bytes, turned into call chains while samples are read.
//!
//! The result has the form of a chain that the kernel walked (a marker, then addresses), so that everything after
//! this treats both alike.
use crate::timeline::{ModuleKind, Timeline};
use kymo_data::Sample;
use kymo_data::abi::PERF_CONTEXT_USER;
use kymo_symbols::unwind::{
    AddressSpace, Convention, MAX_FRAMES, Stop, UnwindModules, UnwindStats, Unwinder, UserRegs,
};
use std::sync::OnceLock;

/// What all threads that unwind share: modules, and the address space of each version once it is needed.
#[derive(Debug)]
pub struct StackUnwinder<'a> {
    timeline: &'a Timeline,
    modules: UnwindModules,
    spaces: Vec<OnceLock<AddressSpace>>,
}

impl<'a> StackUnwinder<'a> {
    /// An unwinder for the samples of one timeline; files are read when a stack leads into them.
    pub fn new(timeline: &'a Timeline) -> StackUnwinder<'a> {
        let spaces = (0..timeline.version_count()).map(|_| OnceLock::new()).collect();
        StackUnwinder { timeline, modules: UnwindModules::new(), spaces }
    }

    /// One thread's part.
    pub fn thread(&'a self) -> ThreadUnwinder<'a> {
        ThreadUnwinder { shared: self, unwinder: Unwinder::new(Convention::Perf), frames: Vec::new() }
    }

    fn space(&self, version: u32) -> &AddressSpace {
        self.spaces[version as usize].get_or_init(|| {
            let mut space = AddressSpace::new();
            let timeline = self.timeline;
            for mapping in timeline.maps(version).iter(&timeline.mappings).filter(|m| m.executable) {
                let module = timeline.modules.get(mapping.module);
                let unwindable = matches!(module.kind, ModuleKind::File | ModuleKind::Vdso);
                let module =
                    unwindable.then(|| self.modules.module(&module.path, &module.build_id)).flatten();
                space.map(mapping.start, mapping.end, mapping.pgoff, module);
            }
            space
        })
    }
}

/// One thread's unwinder with its caches.
#[derive(Debug)]
pub struct ThreadUnwinder<'a> {
    shared: &'a StackUnwinder<'a>,
    unwinder: Unwinder,
    frames: Vec<u64>,
}

impl ThreadUnwinder<'_> {
    /// Appends the call chain of a sample to `out`: what the kernel walked, then the frames of the recorded stack.
    pub fn chain(&mut self, sample: &Sample<'_>, maps: u32, stack: &[u8], out: &mut Vec<u8>) {
        if let Some(words) = sample.callchain {
            out.extend_from_slice(words.as_bytes());
        }
        let Some(frames) = self.frames(sample, maps, stack) else { return };
        out.extend_from_slice(&PERF_CONTEXT_USER.to_le_bytes());
        for frame in frames {
            out.extend_from_slice(&frame.to_le_bytes());
        }
    }

    /// The frames of the recorded stack, innermost first; `None` without registers.
    pub(crate) fn frames(&mut self, sample: &Sample<'_>, maps: u32, stack: &[u8]) -> Option<&[u64]> {
        let regs = sample.user_regs?;
        let regs = UserRegs::from_perf_x86_64(regs.abi, regs.mask, regs.values.iter())?;
        self.frames.clear();
        self.unwinder.unwind(self.shared.space(maps), &regs, stack, MAX_FRAMES, &mut self.frames);
        Some(&self.frames)
    }

    /// Puts the call chain of a sample into `out`, by its stack where it has one.
    pub(crate) fn whole_chain(&mut self, sample: &Sample<'_>, maps: u32, out: &mut Vec<u8>) {
        out.clear();
        match (sample.user_stack, sample.callchain) {
            (Some(stack), _) if !stack.is_empty() => self.chain(sample, maps, stack, out),
            (_, Some(words)) => out.extend_from_slice(words.as_bytes()),
            (_, None) => {}
        }
    }

    /// How this thread's walks ended.
    pub fn stats(&self) -> &UnwindStats {
        self.unwinder.stats()
    }
}

/// How all walks of a recording ended, in one line for people; `None` where nothing was unwound.
pub fn unwound(stats: &UnwindStats) -> Option<String> {
    let causes: Vec<String> = (Stop::ALL.iter().filter(|&&stop| stats.stopped(stop) > 0))
        .map(|&stop| format!("{} {}", stats.stopped(stop), stop.label()))
        .collect();
    let each = stats.frames as f64 / stats.samples as f64;
    let line = || format!("unwound {} stacks, {each:.1} frames each: {}", stats.samples, causes.join(", "));
    (stats.samples > 0).then(line)
}
