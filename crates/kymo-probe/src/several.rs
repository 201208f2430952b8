//! The engine inside of several programs that run: each is entered, and counts are added up.
//!
//! A site is served in all of them or in none: the kernel, which then serves it, would set its
//! traps in all of them, and a trap in a patch ends a program.
use crate::engine::{Caller, Engine, Reading};
use crate::inproc::{Entered, Refusals};
use kymo_symbols::sites::Site;
use std::io;

/// Enters all processes by `enter`, which is given the sites to leave out, with the reasons.
///
/// # Errors
/// Why a process cannot be entered, or that no site can be served in all of them.
pub(crate) fn enter(
    pids: &[i32],
    enter: impl Fn(i32, &Refusals) -> Result<Entered, String>,
) -> Result<Entered, String> {
    let mut without: Refusals = Vec::new();
    loop {
        let mut all = Vec::new();
        for &pid in pids {
            all.push((pid, enter(pid, &without).map_err(|reason| named(pid, &reason))?));
        }
        let mut refused: Refusals = Vec::new();
        let is_new = |number: &usize| without.binary_search_by_key(number, |(number, _)| *number).is_err();
        for (pid, entered) in &all {
            let new = entered.refused.iter().filter(|(number, _)| is_new(number));
            refused.extend(new.map(|(number, reason)| (*number, named(*pid, reason))));
        }
        // Of each site the first reason.
        refused.sort_by_key(|(number, _)| *number);
        refused.dedup_by_key(|(number, _)| *number);
        let is_refused = |number: &usize| refused.binary_search_by_key(number, |(number, _)| *number).is_ok();
        if !all.iter().any(|(_, entered)| entered.served.iter().any(is_refused)) {
            refused.extend(without);
            refused.sort_by_key(|(number, _)| *number);
            return Ok(together(all, refused));
        }
        // What some of them serve alone is taken away everywhere. There is less left each time.
        drop(all);
        without.extend(refused);
        without.sort_by_key(|(number, _)| *number);
    }
}

fn named(pid: i32, reason: &str) -> String {
    format!("process {pid}: {reason}")
}

/// All of them as one.
fn together(all: Vec<(i32, Entered)>, refused: Refusals) -> Entered {
    let mut one = Entered {
        engine: Box::new(Several(Vec::new())),
        served: all.first().map(|(_, entered)| entered.served.clone()).unwrap_or_default(),
        refused,
        stopped_ns: 0,
        not_held: None,
        how: None,
        cleaned_up: 0,
    };
    let mut engines = Vec::new();
    for (pid, entered) in all {
        one.stopped_ns = one.stopped_ns.max(entered.stopped_ns);
        one.not_held = one.not_held.or(entered.not_held.map(|why| named(pid, &why)));
        one.how = one.how.or(entered.how);
        one.cleaned_up += entered.cleaned_up;
        engines.push((pid, entered.engine));
    }
    one.engine = Box::new(Several(engines));
    one
}

/// The engines of processes, which serve the same sites.
struct Several(Vec<(i32, Box<dyn Engine>)>);

impl Engine for Several {
    fn name(&self) -> &'static str {
        self.0.first().map_or("inproc", |(_, engine)| engine.name())
    }

    fn read(&self) -> Vec<Reading> {
        let mut readings = self.0.iter().map(|(_, engine)| engine.read());
        let first = readings.next().unwrap_or_default();
        readings.fold(first, |mut sums, more| {
            for (sum, more) in sums.iter_mut().zip(more) {
                sum.hits = sum.hits.wrapping_add(more.hits);
                sum.latencies.merge(&more.latencies);
                sum.missed = sum.missed.saturating_add(more.missed);
            }
            sums
        })
    }

    fn callers(&self) -> io::Result<Vec<Caller>> {
        let mut callers = Vec::new();
        for (_, engine) in &self.0 {
            callers.extend(engine.callers()?);
        }
        callers.sort_by_key(|caller| std::cmp::Reverse(caller.hits));
        Ok(callers)
    }

    fn words(&self, sites: &[Site]) -> Vec<String> {
        let of = |(pid, engine): &(i32, Box<dyn Engine>)| {
            let pid = *pid;
            engine.words(sites).into_iter().map(move |words| named(pid, &words)).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counts(u64);

    impl Engine for Counts {
        fn name(&self) -> &'static str {
            "inproc"
        }

        fn read(&self) -> Vec<Reading> {
            vec![Reading { hits: self.0, ..Reading::default() }]
        }
    }

    fn entered(pid: i32, served: Vec<usize>, refused: Refusals) -> Entered {
        let engine = Box::new(Counts(pid as u64));
        let (not_held, how) = (None, None);
        Entered { engine, served, refused, stopped_ns: pid as u64, not_held, how, cleaned_up: 1 }
    }

    /// Checks that a site which one process refuses is served in none, with that process's reason,
    /// and that counts of the others are added up.
    #[test]
    fn all_or_none() {
        let one = enter(&[3, 4], |pid, without| {
            let is_out = |number: &usize| without.iter().any(|(out, _)| out == number);
            let served = (0..3).filter(|number| !is_out(number) && (pid, *number) != (4, 1));
            let refused = (pid == 4 && !is_out(&1)).then(|| (1, "too short".to_owned()));
            Ok(entered(pid, served.collect(), refused.into_iter().chain(without.clone()).collect()))
        });
        let one = one.expect("entered");
        assert_eq!((one.served, one.refused), (vec![0, 2], vec![(1, "process 4: too short".to_owned())]));
        assert_eq!((one.engine.read()[0].hits, one.stopped_ns, one.cleaned_up), (7, 4, 2));
        let failed = enter(&[3, 4], |pid, _| match pid {
            4 => Err("it is gone".to_owned()),
            pid => Ok(entered(pid, vec![0], Vec::new())),
        });
        assert_eq!(failed.err().as_deref(), Some("process 4: it is gone"), "and the other one is left");
    }
}
