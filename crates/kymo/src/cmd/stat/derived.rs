//! What follows from counts: CPUs utilized, rates, instructions per cycle, shares of misses.

use kymo_perf::count::named_metrics::NamedMetric;
use kymo_perf::selector::EventAttr;
use kymo_perf::sys::Perf;

/// A number that was computed from counts, as perf prints it behind them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Metric {
    /// The number.
    pub(super) value: f64,
    /// Digits behind the point.
    pub(super) digits: usize,
    /// Behind the number: `%`, or a space where perf leaves one.
    pub(super) suffix: &'static str,
    /// What it is.
    pub(super) unit: String,
}

impl Metric {
    fn ratio(value: f64, unit: &str) -> Metric {
        Metric { value, digits: 3, suffix: "", unit: unit.to_owned() }
    }

    fn percent(part: f64, whole: f64, unit: &str) -> Option<Metric> {
        (whole > 0.0).then(|| Metric {
            value: part / whole * 100.0,
            digits: 2,
            suffix: "%",
            unit: unit.to_owned(),
        })
    }

    /// The number in eight columns, as in the table.
    pub(super) fn wide(&self) -> String {
        format!("{:>1$.2$}{3}", self.value, 8 - self.suffix.len(), self.digits, self.suffix)
    }

    /// The number alone.
    pub(super) fn bare(&self) -> String {
        format!("{:.1$}", self.value, self.digits)
    }
}

/// What an event is to the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Measures CPU time; its count is in ns.
    Clock,
    Cycles,
    Instructions,
    StalledFrontend,
    StalledBackend,
    Branches,
    BranchMisses,
    CacheReferences,
    CacheMisses,
    /// Accesses of a cache (its number).
    Loads(u64),
    /// Misses of it.
    LoadMisses(u64),
    Other,
}

/// The hardware caches by the kernel's numbers, as perf calls their accesses.
const CACHES: [&str; 5] = [
    "of all L1-dcache accesses",
    "of all L1-icache accesses",
    "of all LL-cache accesses",
    "of all dTLB cache accesses",
    "of all iTLB cache accesses",
];

impl Role {
    pub(super) fn of(attr: &EventAttr) -> Role {
        const CACHE: u32 = 3;
        match (attr.kind, attr.config) {
            (Perf::SOFTWARE, Perf::SW_CPU_CLOCK | Perf::SW_TASK_CLOCK) => Role::Clock,
            (Perf::HARDWARE, 0) => Role::Cycles,
            (Perf::HARDWARE, 1) => Role::Instructions,
            (Perf::HARDWARE, 2) => Role::CacheReferences,
            (Perf::HARDWARE, 3) => Role::CacheMisses,
            (Perf::HARDWARE, 4) => Role::Branches,
            (Perf::HARDWARE, 5) => Role::BranchMisses,
            (Perf::HARDWARE, 7) => Role::StalledFrontend,
            (Perf::HARDWARE, 8) => Role::StalledBackend,
            // Cache, operation, result: reads (0) that hit or not (0), or missed (1).
            (CACHE, config) if config >> 8 == 0 && config < 5 => Role::Loads(config),
            (CACHE, config) if config >> 8 == 0x100 && config & 0xff < 5 => Role::LoadMisses(config & 0xff),
            _ => Role::Other,
        }
    }
}

/// The counts of one place that others are compared with: the means of those that have the role.
#[derive(Clone, Debug, Default)]
pub(super) struct Basis {
    /// Role, whether user and kernel are counted, sum, how many.
    sums: Vec<(Role, (bool, bool), f64, f64)>,
}

fn modes(attr: &EventAttr) -> (bool, bool) {
    (attr.exclude_user, attr.exclude_kernel)
}

impl Basis {
    /// Takes in one event's count.
    pub(super) fn add(&mut self, attr: &EventAttr, value: f64) {
        let (role, modes) = (Role::of(attr), modes(attr));
        match self.sums.iter_mut().find(|sum| (sum.0, sum.1) == (role, modes)) {
            Some(sum) => (sum.2, sum.3) = (sum.2 + value, sum.3 + 1.0),
            None => self.sums.push((role, modes, value, 1.0)),
        }
    }

    fn mean(&self, role: Role, modes: (bool, bool)) -> f64 {
        self.sums.iter().find(|sum| (sum.0, sum.1) == (role, modes)).map_or(0.0, |sum| sum.2 / sum.3)
    }

    /// CPU time in ns, by whatever clocks there are.
    fn clock_ns(&self) -> f64 {
        let clocks = self.sums.iter().filter(|sum| sum.0 == Role::Clock);
        let (sum, count) = clocks.fold((0.0, 0.0), |(sum, count), clock| (sum + clock.2, count + clock.3));
        if count > 0.0 { sum / count } else { 0.0 }
    }

    /// What perf prints behind a count of `attr`. `elapsed_ns`: of the whole run, or of the interval.
    pub(super) fn metric(&self, attr: &EventAttr, value: f64, elapsed_ns: f64) -> Option<Metric> {
        let own = modes(attr);
        let percent = |whole, unit| Metric::percent(value, self.mean(whole, own), unit);
        let cycles = self.mean(Role::Cycles, own);
        match Role::of(attr) {
            Role::Clock => {
                Some(Metric::ratio(if elapsed_ns > 0.0 { value / elapsed_ns } else { 0.0 }, "CPUs utilized"))
            }
            Role::Instructions if cycles > 0.0 => {
                Some(Metric { value: value / cycles, digits: 2, suffix: " ", unit: "insn per cycle".into() })
            }
            Role::Cycles if self.clock_ns() > 0.0 => Some(Metric::ratio(value / self.clock_ns(), "GHz")),
            Role::BranchMisses if self.mean(Role::Branches, own) > 0.0 => {
                percent(Role::Branches, "of all branches")
            }
            Role::CacheMisses if self.mean(Role::CacheReferences, own) > 0.0 => {
                percent(Role::CacheReferences, "of all cache refs")
            }
            Role::StalledFrontend if cycles > 0.0 => percent(Role::Cycles, "frontend cycles idle"),
            Role::StalledBackend if cycles > 0.0 => percent(Role::Cycles, "backend cycles idle"),
            Role::LoadMisses(cache) if self.mean(Role::Loads(cache), own) > 0.0 => {
                percent(Role::Loads(cache), CACHES[cache as usize])
            }
            _ => self.rate(value),
        }
    }

    /// A metric that was asked for by its name, of the count of its event.
    pub(super) fn named(&self, named: &NamedMetric, value: f64, elapsed_ns: f64) -> Option<Metric> {
        let value = named.value(value, self.clock_ns(), elapsed_ns)?;
        Some(Metric { value, digits: named.digits(), suffix: "", unit: named.label() })
    }

    fn rate(&self, value: f64) -> Option<Metric> {
        let clock = self.clock_ns();
        if clock <= 0.0 {
            return None;
        }
        let mut rate = value / clock * 1e9;
        let mut unit = "/sec";
        for larger in ["K/sec", "M/sec", "G/sec"] {
            if rate <= 1000.0 {
                break;
            }
            (rate, unit) = (rate / 1000.0, larger);
        }
        Some(Metric::ratio(rate, unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(kind: u32, config: u64) -> EventAttr {
        EventAttr { kind, config, ..EventAttr::default() }
    }

    /// Checks what is computed on a machine with hardware counters: IPC, GHz, misses and idle cycles, each of its own modes.
    #[test]
    fn with_hardware_counters() {
        let (clock, cycles) = (attr(Perf::SOFTWARE, Perf::SW_TASK_CLOCK), attr(Perf::HARDWARE, 0));
        let instructions = attr(Perf::HARDWARE, 1);
        let mut basis = Basis::default();
        basis.add(&clock, 2e9);
        basis.add(&cycles, 6e9);
        basis.add(&attr(Perf::HARDWARE, 4), 1e9);
        basis.add(&attr(Perf::HARDWARE, 2), 1e6);
        basis.add(&attr(3, 0), 4e6);
        let told = |attr: &EventAttr, value: f64| {
            let metric = basis.metric(attr, value, 1e9).expect("something to compute");
            format!("{} {}", metric.wide(), metric.unit)
        };
        assert_eq!(told(&clock, 2e9), "   2.000 CPUs utilized");
        assert_eq!(told(&cycles, 6e9), "   3.000 GHz");
        assert_eq!(told(&instructions, 9e9), "   1.50  insn per cycle");
        assert_eq!(told(&attr(Perf::HARDWARE, 5), 5e7), "   5.00% of all branches");
        assert_eq!(told(&attr(Perf::HARDWARE, 3), 2.5e5), "  25.00% of all cache refs");
        assert_eq!(told(&attr(Perf::HARDWARE, 7), 3e9), "  50.00% frontend cycles idle");
        assert_eq!(told(&attr(3, 0x1_0000), 1e6), "  25.00% of all L1-dcache accesses");
        assert_eq!(told(&attr(Perf::HARDWARE, 4), 1e9), " 500.000 M/sec");
        assert_eq!(told(&attr(Perf::SOFTWARE, 3), 3000.0), "   1.500 K/sec");
        // Instructions of user mode are not compared with cycles of both.
        let user = EventAttr { exclude_kernel: true, ..instructions };
        assert_eq!(told(&user, 8e9), "   4.000 G/sec");
    }

    /// Checks that without a clock nothing is a rate, and that a time of nothing divides nothing.
    #[test]
    fn without_a_clock() {
        let faults = attr(Perf::SOFTWARE, 2);
        assert_eq!(Basis::default().metric(&faults, 5.0, 1e9), None);
        let clock = attr(Perf::SOFTWARE, Perf::SW_TASK_CLOCK);
        let metric = Basis::default().metric(&clock, 5.0, 0.0).expect("a clock has one");
        assert_eq!(metric.bare(), "0.000");
    }
}
