//! How the cost of a request depends on the machine's size, and how much more gets done with more threads.

use std::hint::black_box;
use std::io::{self, Write};

use kymo_core::breakpoint::{Accounts, Error, Kind, Ledger, Target, TaskId};
use serde_json::{Value, json};

use super::race::{Shape, run as race, standing};
use crate::stats::median;

/// Rounds, in each of which every size has its turn: what disturbs the machine disturbs all of them.
const ROUNDS: usize = 15;
/// Long enough against the start of a thread. (A debug build measures nothing that matters, and should not take long over it.)
const REQUESTS: usize = if cfg!(debug_assertions) { 2_000 } else { 200_000 };
const CPUS: [usize; 5] = [16, 64, 256, 1_024, 4_096];
const TASKS: [usize; 4] = [64, 4_096, 65_536, 1_000_000];

/// Costs by size.
pub(super) struct SweepTable {
    what: &'static str,
    for_cpus_percent: usize,
    /// Size, and the median of nanoseconds per request.
    rows: Vec<(usize, f64)>,
}

impl SweepTable {
    /// The dearest to the cheapest.
    fn spread(&self) -> f64 {
        let costs = || self.rows.iter().map(|&(_, ns)| ns);
        costs().fold(f64::MIN, f64::max) / costs().fold(f64::MAX, f64::min)
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mixed = match self.for_cpus_percent {
            0 => String::new(),
            percent => format!(", {percent} % of them for CPUs"),
        };
        writeln!(
            out,
            "# A request by the number of {}{mixed}; dearest to cheapest {:.2}",
            self.what,
            self.spread()
        )?;
        for (size, ns) in &self.rows {
            writeln!(out, " {size:>14} {ns:>10.1} nsecs")?;
        }
        writeln!(out)
    }

    pub(super) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|&(size, ns)| json!({ "size": size, "request_ns": ns }));
        json!({
            "by": self.what,
            "for_cpus_percent": self.for_cpus_percent,
            "rows": rows.collect::<Vec<_>>(),
            "dearest_to_cheapest": self.spread(),
        })
    }
}

/// By CPUs and by tasks, each without and with requests for CPUs.
pub(super) fn tables(shape: Shape, for_cpus_percent: usize) -> anyhow::Result<Vec<SweepTable>> {
    // One slot less than there are, or no CPU would ever get one.
    let breakpoints = shape.breakpoints.min(shape.slots - 1).max(1);
    let one = sized(Shape { workers: 1, breakpoints, ..shape });
    let mixed = (for_cpus_percent > 0).then_some(for_cpus_percent);
    let mut tables = Vec::new();
    for percent in [0].into_iter().chain(mixed) {
        let one = Shape { for_cpus_percent: percent, ..one };
        let cpus: Vec<_> = CPUS.iter().map(|&cpus| Shape { cpus, ..one }).collect();
        tables.push(SweepTable {
            what: "CPUs",
            for_cpus_percent: percent,
            rows: CPUS.into_iter().zip(costs_ns(&cpus)?).collect(),
        });
        let tasks: Vec<_> = TASKS.iter().map(|&tasks| Shape { tasks, ..one }).collect();
        tables.push(SweepTable {
            what: "other tasks",
            for_cpus_percent: percent,
            rows: TASKS.into_iter().zip(costs_ns(&tasks)?).collect(),
        });
    }
    Ok(tables)
}

/// As many batches as are long enough.
fn sized(shape: Shape) -> Shape {
    let each = shape.threads * shape.breakpoints * 2;
    Shape { batches: REQUESTS.div_ceil(each) * shape.workers, ..shape }
}

fn ledgers(shapes: &[Shape]) -> anyhow::Result<Vec<Ledger>> {
    let made = shapes.iter().map(|shape| kymo_perf::sys::memory::may_fail(|| Ledger::new(shape.config())));
    Ok(made.collect::<Result<Vec<_>, _>>()?)
}

/// Nanoseconds per request of each shape, the median of rounds.
fn costs_ns(shapes: &[Shape]) -> anyhow::Result<Vec<f64>> {
    let ledgers = ledgers(shapes)?;
    let both = || ledgers.iter().zip(shapes);
    let held = both().map(|(ledger, &shape)| standing(ledger, shape)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut costs = vec![Vec::new(); shapes.len()];
    // The first round is not measured.
    for round in 0..=ROUNDS {
        for (costs, (ledger, &shape)) in costs.iter_mut().zip(both()) {
            let took = request_ns(ledger, shape)?;
            if round > 0 {
                costs.push(took);
            }
        }
    }
    drop(held);
    Ok(costs.iter().map(|costs| median(costs)).collect())
}

fn request_ns<A: Accounts>(account: &A, shape: Shape) -> anyhow::Result<f64> {
    Ok(race(account, shape)?.as_nanos() as f64 / shape.requests() as f64)
}

/// An account that keeps nothing: a request is a sum in registers. What so many threads get done of that is what the machine gives them.
struct Nothing;

impl Accounts for Nothing {
    type Task = ();
    type Reservation = ();
    fn task(&self, _: TaskId) {}
    fn reserve(&self, _: Target<'_, ()>, _: Kind) -> Result<(), Error> {
        // About as long as the ledger takes.
        black_box((0..32).fold(0u64, |sum, n| black_box(sum + n)));
        Ok(())
    }
    fn is_unused(&self) -> bool {
        true
    }
}

/// How much gets done by so many threads.
struct Rate {
    threads: usize,
    /// Requests of the ledger, and of threads that share nothing.
    per_us: f64,
    nothing_per_us: f64,
}

/// Requests per microsecond, by threads.
pub(super) struct Scaling(Vec<Rate>);

impl Scaling {
    /// Each, its share of linear, and that of threads that share nothing: percent.
    fn rows(&self) -> impl Iterator<Item = (&Rate, f64, f64)> {
        let share =
            |rate: &Rate, of: fn(&Rate) -> f64| 100.0 * of(rate) / of(&self.0[0]) / rate.threads as f64;
        self.0
            .iter()
            .map(move |rate| (rate, share(rate, |rate| rate.per_us), share(rate, |rate| rate.nothing_per_us)))
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "# Independent tasks, by threads: requests per usec, the share of linear, and that of threads that share nothing"
        )?;
        for (rate, linear, nothing) in self.rows() {
            writeln!(out, " {:>14} {:>10.2} {linear:>6.0} % {nothing:>6.0} %", rate.threads, rate.per_us)?;
        }
        writeln!(out)
    }

    pub(super) fn json(&self) -> Value {
        let row = |(rate, linear, nothing): (&Rate, f64, f64)| {
            json!({
                "threads": rate.threads,
                "requests_per_us": rate.per_us,
                "of_linear_percent": linear,
                "nothing_shared_per_us": rate.nothing_per_us,
                "nothing_shared_of_linear_percent": nothing,
            })
        };
        self.rows().map(row).collect()
    }
}

/// From one thread to one on each core, doubling.
pub(super) fn threads(shape: Shape) -> anyhow::Result<Scaling> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |&n| (2 * n < cores).then_some(2 * n)).collect();
    if cores > 1 {
        counts.push(cores);
    }
    let of = |&workers: &usize| sized(Shape { workers, for_cpus_percent: 0, pinned: true, ..shape });
    let shapes: Vec<_> = counts.iter().map(of).collect();
    let ledgers = ledgers(&shapes)?;
    let mut costs = vec![(Vec::new(), Vec::new()); shapes.len()];
    // The first round is not measured. Both take turns, for what a machine gives to so many threads changes while it runs.
    for round in 0..=ROUNDS {
        for (costs, (ledger, &shape)) in costs.iter_mut().zip(ledgers.iter().zip(&shapes)) {
            let took = (request_ns(ledger, shape)?, request_ns(&Nothing, shape)?);
            if round > 0 {
                costs.0.push(took.0);
                costs.1.push(took.1);
            }
        }
    }
    let rate = |(threads, costs): (usize, &(Vec<f64>, Vec<f64>))| Rate {
        threads,
        per_us: 1e3 / median(&costs.0),
        nothing_per_us: 1e3 / median(&costs.1),
    };
    Ok(Scaling(counts.into_iter().zip(&costs).map(rate).collect()))
}
