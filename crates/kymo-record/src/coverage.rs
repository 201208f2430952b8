//! How far back a snapshot reaches, ring by ring.
use std::fmt;

/// What a snapshot has of one ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCoverage {
    /// The ring's CPU, or -1 if it belongs to a task.
    pub cpu: i32,
    /// The ring's task, or -1.
    pub task: i32,
    /// The time of the oldest and the newest record, in ns of the recording's clock; `None` if
    /// there is none.
    pub span_ns: Option<(u64, u64)>,
    /// Samples.
    pub samples: u64,
    /// Whether older records had been overwritten. If not, this is everything since the recording
    /// began.
    pub overwritten: bool,
}

/// How far back a snapshot reaches, ring by ring: what is older was overwritten, which is no loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// The rings, in the order of CPUs or tasks.
    pub rings: Vec<RingCoverage>,
}

/// More rings than this are summed up in words.
const RINGS_SHOWN: usize = 8;

impl Coverage {
    /// The time of the oldest and the newest record of all, in ns.
    pub fn span_ns(&self) -> Option<(u64, u64)> {
        let spans = self.rings.iter().filter_map(|ring| ring.span_ns);
        spans.reduce(|(first, last), (oldest, newest)| (first.min(oldest), last.max(newest)))
    }

    /// Since when no ring had overwritten anything, in ns: from here on the snapshot has every
    /// sample.
    pub fn complete_since_ns(&self) -> Option<u64> {
        Some(self.span_ns()?.0.max(self.overwritten_until_ns()))
    }

    /// Until when some ring has overwritten samples, in ns; 0: none has.
    pub fn overwritten_until_ns(&self) -> u64 {
        let overwritten = self.rings.iter().filter(|ring| ring.overwritten);
        overwritten.filter_map(|ring| Some(ring.span_ns?.0)).max().unwrap_or(0)
    }

    /// Samples in all.
    pub fn samples(&self) -> u64 {
        self.rings.iter().map(|ring| ring.samples).sum()
    }
}

/// Seconds between two times.
struct Seconds(u64, u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} s", self.1.saturating_sub(self.0) as f64 / 1e9)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some((first, last)), Some(complete)) = (self.span_ns(), self.complete_since_ns()) else {
            return f.write_str("the rings were empty");
        };
        write!(f, "{} samples of {}", self.samples(), Seconds(first, last))?;
        if !self.rings.iter().any(|ring| ring.overwritten) {
            f.write_str(", all since the start")?;
        } else if complete > first {
            write!(f, ", complete for the last {}", Seconds(complete, last))?;
        }
        if self.rings.len() == 1 || self.rings.len() > RINGS_SHOWN {
            return Ok(());
        }
        let mut separator = ": ";
        for ring in &self.rings {
            let (what, number) = if ring.cpu >= 0 { ("CPU", ring.cpu) } else { ("task", ring.task) };
            write!(f, "{separator}{what} {number} ")?;
            match ring.span_ns {
                // How far back from the newest of all: what an idle CPU has not written, it has not
                // lost.
                Some((oldest, _)) => write!(f, "{}", Seconds(oldest, last))?,
                None => f.write_str("nothing")?,
            }
            separator = ", ";
        }
        Ok(())
    }
}
