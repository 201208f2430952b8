//! How walks ended, counted.

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stop {
    /// The outermost frame was reached: the unwind data says so, or the return address is 0.
    Root,
    /// The next frame lies behind the recorded stack bytes: record more with `--call-graph
    /// dwarf,SIZE`.
    StackEnd,
    /// A rule pointed to memory that is not part of the recorded stack at all.
    Unreadable,
    /// A rule needed a register whose value is not known.
    RegisterUnknown,
    /// An address belongs to no known mapping.
    NoMapping,
    /// No unwind data covered an address, and machine code and frame pointer led nowhere.
    NoUnwindInfo,
    /// The unwind data for an address is damaged or not supported.
    BadUnwindInfo,
    /// As many frames as asked for.
    Limit,
    /// A frame was its own caller.
    Loop,
}

impl Stop {
    /// All causes, in the order of the counters.
    pub const ALL: [Stop; 9] = [
        Stop::Root,
        Stop::StackEnd,
        Stop::Unreadable,
        Stop::RegisterUnknown,
        Stop::NoMapping,
        Stop::NoUnwindInfo,
        Stop::BadUnwindInfo,
        Stop::Limit,
        Stop::Loop,
    ];

    /// The cause in words, for a table.
    pub fn label(self) -> &'static str {
        match self {
            Stop::Root => "root reached",
            Stop::StackEnd => "stack bytes ran out",
            Stop::Unreadable => "memory not recorded",
            Stop::RegisterUnknown => "register not known",
            Stop::NoMapping => "address not mapped",
            Stop::NoUnwindInfo => "no unwind data",
            Stop::BadUnwindInfo => "damaged unwind data",
            Stop::Limit => "frame limit",
            Stop::Loop => "loop",
        }
    }
}

/// What an unwinder did so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwindStats {
    /// Walks.
    pub samples: u64,
    /// Frames handed out.
    pub frames: u64,
    /// Frames whose caller was found by the machine code, by the frame pointer or by a search, for
    /// want of unwind data (assembly, generated code).
    pub guessed_frames: u64,
    /// Rules that had to be worked out from a module's unwind data.
    pub rules_parsed: u64,
    /// Walks that ended for each cause, in the order of [`Stop::ALL`].
    pub stops: [u64; Stop::ALL.len()],
}

impl UnwindStats {
    /// How many walks ended for this cause.
    pub fn stopped(&self, cause: Stop) -> u64 {
        self.stops[cause as usize]
    }

    /// Adds another unwinder's counts.
    pub fn merge(&mut self, other: &UnwindStats) {
        self.samples += other.samples;
        self.frames += other.frames;
        self.guessed_frames += other.guessed_frames;
        self.rules_parsed += other.rules_parsed;
        for (mine, theirs) in self.stops.iter_mut().zip(other.stops) {
            *mine += theirs;
        }
    }

    /// The last walk to end for want of stack bytes is complete: its outer frames, so many, were
    /// known.
    pub(super) fn complete(&mut self, outer_frames: usize) {
        self.frames += outer_frames as u64;
        self.stops[Stop::StackEnd as usize] -= 1;
        self.stops[Stop::Root as usize] += 1;
    }

    pub(super) fn count(&mut self, frames: usize, cause: Stop) {
        self.samples += 1;
        self.frames += frames as u64;
        self.stops[cause as usize] += 1;
    }
}
