//! How long locks are held: probes at the functions of the C library that take locks and give them
//! back, for a recording of locks.
//!
//! ```text
//!   a command  HoldProbes::of_command --> environment --> begin(its process) --> HoldSource::end
//!   processes  HoldProbes::of_processes --------------------------------------> HoldSource::end
//! ```
//! The agent in each program adds up what it sees ([`kymo_core::holds`]); nothing is asked of it at
//! the end, so a program that has ended tells as much.
use crate::capability;
use crate::engine::{Engine, ProbeRequest};
use crate::exits::ReturnAddresses;
use crate::inproc::{self, Entered};
use crate::launched::{self, Launch};
use crate::modules;
use kymo_core::holds::{HoldCount, HoldKind, HoldReport, HoldRole};
use kymo_perf::proc;
use kymo_record::HoldSource;
use kymo_symbols::sites::{ProbeModule, ProbeSelector, Site, SiteKind};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

const MUTEX: HoldRole = HoldRole::Acquire(HoldKind::Mutex);
const READ: HoldRole = HoldRole::Acquire(HoldKind::Read);
const WRITE: HoldRole = HoldRole::Acquire(HoldKind::Write);

/// What the functions do. Older C libraries have fewer of them.
const FUNCTIONS: [(&str, HoldRole); 17] = [
    ("pthread_mutex_lock", MUTEX),
    ("pthread_mutex_trylock", MUTEX),
    ("pthread_mutex_timedlock", MUTEX),
    ("pthread_mutex_clocklock", MUTEX),
    ("pthread_mutex_unlock", HoldRole::Release),
    ("pthread_rwlock_rdlock", READ),
    ("pthread_rwlock_tryrdlock", READ),
    ("pthread_rwlock_timedrdlock", READ),
    ("pthread_rwlock_clockrdlock", READ),
    ("pthread_rwlock_wrlock", WRITE),
    ("pthread_rwlock_trywrlock", WRITE),
    ("pthread_rwlock_timedwrlock", WRITE),
    ("pthread_rwlock_clockwrlock", WRITE),
    ("pthread_rwlock_unlock", HoldRole::Release),
    ("pthread_cond_wait", HoldRole::Wait),
    ("pthread_cond_timedwait", HoldRole::Wait),
    ("pthread_cond_clockwait", HoldRole::Wait),
];
/// Without these there is nothing to time.
const NEEDED: [&str; 2] = ["pthread_mutex_lock", "pthread_mutex_unlock"];
/// Libraries that have them, the first one that is there. Before 2.34 glibc has them in a library
/// of their own, and functions in the C library that call these.
const LIBRARIES: [&str; 2] = ["libpthread", "libc."];
/// More processes than this are not entered.
const MOST_PROCESSES: usize = 256;

/// Functions of one C library, and what they do.
struct LockFunctions {
    sites: Vec<Site>,
    roles: Vec<HoldRole>,
}

impl LockFunctions {
    /// Those of a program with these modules.
    ///
    /// # Errors
    /// Why they cannot be probed, in words.
    fn of(modules: &[Arc<ProbeModule>]) -> Result<LockFunctions, String> {
        let request = ProbeRequest {
            timed: true,
            return_addresses: ReturnAddresses::of(modules, false),
            ..ProbeRequest::default()
        };
        capability::check(&request, None)?;
        if let Some(walker) = &request.return_addresses.walker {
            return Err(format!("{walker}, and replaced return addresses would crash it"));
        }
        let libraries = LIBRARIES
            .iter()
            .flat_map(|name| modules.iter().filter(move |module| module.name().starts_with(name)));
        let found = libraries.map(LockFunctions::of_library).find(LockFunctions::is_usable);
        found.ok_or_else(|| {
            "its C library has no functions of pthread locks that are known by name".to_owned()
        })
    }

    fn of_library(module: &Arc<ProbeModule>) -> LockFunctions {
        let mut functions = LockFunctions { sites: Vec::new(), roles: Vec::new() };
        let mut known: BTreeSet<(PathBuf, u64)> = BTreeSet::new();
        for (name, role) in FUNCTIONS {
            // It is a name without anything else.
            let Ok(selector) = ProbeSelector::parse(name) else { continue };
            let Ok(sites) = modules::sites(&selector, std::slice::from_ref(module)) else { continue };
            for site in sites.into_iter().filter(|site| site.kind == SiteKind::Function) {
                if known.insert((site.module.file().to_owned(), site.offset)) {
                    functions.sites.push(site);
                    functions.roles.push(role);
                }
            }
        }
        functions
    }

    fn is_usable(&self) -> bool {
        NEEDED.iter().all(|needed| self.sites.iter().any(|site| site.symbol.as_deref() == Some(needed)))
    }
}

/// Probes that time holds of locks.
pub struct HoldProbes {
    engines: Vec<Box<dyn Engine>>,
    launch: Option<Launch>,
    sites: Vec<Site>,
    words: Vec<String>,
    /// What was told before the recording began.
    before: HoldReport,
}

impl HoldProbes {
    /// Looks whether locks of a command can be timed. It is to be started with
    /// [`environment`](Self::environment), after [`begin`](Self::begin).
    ///
    /// # Errors
    /// Why not, in words.
    pub fn of_command(command: &[OsString], children: bool) -> Result<HoldProbes, String> {
        let modules = modules::of_command(command).map_err(|error| error.to_string())?;
        let LockFunctions { sites, roles } = LockFunctions::of(&modules)?;
        let launch = launched::prepare_for_holds(&sites, &roles, children, command)?;
        let words = modules::reasons_of(
            "not probed",
            launch.refused().iter().map(|(number, why)| (why.clone(), sites[*number].name.as_str())),
        );
        Ok(HoldProbes { launch: Some(launch), sites, words, ..HoldProbes::none() })
    }

    /// Enters processes that run; `children`: also what they have started, and what they fork from
    /// now on. A program that these execute later is not timed.
    ///
    /// # Errors
    /// Why one that was named cannot be entered, in words.
    pub fn of_processes(pids: &[i32], children: bool) -> Result<HoldProbes, String> {
        let mut all: Vec<i32> = pids.to_vec();
        if children {
            all.extend(proc::descendants(pids).into_iter().filter(|pid| !pids.contains(pid)));
        }
        let mut probes = HoldProbes::none();
        if all.len() > MOST_PROCESSES {
            probes.words.push(format!(
                "holds are timed in {MOST_PROCESSES} of {} processes, more are not entered",
                all.len()
            ));
            all.truncate(MOST_PROCESSES);
        }
        for pid in all {
            match probes.enter(pid, children) {
                Err(reason) if pids.contains(&pid) => return Err(format!("process {pid}: {reason}")),
                Err(reason) => probes.words.push(format!("holds of process {pid} are not timed: {reason}")),
                Ok(()) => {}
            }
        }
        Ok(probes)
    }

    fn none() -> HoldProbes {
        let before = HoldReport::default();
        HoldProbes { engines: Vec::new(), launch: None, sites: Vec::new(), words: Vec::new(), before }
    }

    fn all(&self) -> HoldReport {
        let mut report = HoldReport::default();
        self.engines.iter().for_each(|engine| report.add(engine.holds()));
        report
    }

    fn enter(&mut self, pid: i32, children: bool) -> Result<(), String> {
        let modules = modules::of_process(pid).map_err(|error| error.to_string())?;
        let LockFunctions { sites, roles } = LockFunctions::of(&modules)?;
        let Entered { engine, refused, served, cleaned_up, .. } =
            inproc::enter_for_holds(&sites, &roles, pid, children)?;
        let is_served =
            |needed: &&str| served.iter().any(|&number| sites[number].symbol.as_deref() == Some(needed));
        if !NEEDED.iter().all(is_served) {
            return Err(refused.first().map_or_else(String::new, |(_, reason)| reason.clone()));
        }
        let named = refused.iter().map(|(number, why)| (why.clone(), sites[*number].name.as_str()));
        self.words.extend(modules::reasons_of("not probed", named));
        if cleaned_up > 0 {
            self.words.push(format!("removed {cleaned_up} probes that a killed kymo had left"));
        }
        self.engines.push(engine);
        Ok(())
    }

    /// What the command's environment must have.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        self.launch.as_ref().map(Launch::environment).unwrap_or_default()
    }

    /// Lets the command's programs in from now on. `pid`: the command, which has not begun.
    ///
    /// # Errors
    /// Of sockets and threads.
    pub fn begin(&mut self, pid: i32) -> io::Result<()> {
        if let Some(launch) = self.launch.take() {
            let engine = launch.begin(pid)?;
            // Nobody else has to probe it before it runs.
            engine.go();
            self.engines.push(engine);
        }
        Ok(())
    }

    /// What the user should know.
    pub fn words(&mut self) -> Vec<String> {
        std::mem::take(&mut self.words)
    }
}

impl HoldSource for HoldProbes {
    fn begin(&mut self) {
        self.before = self.all();
    }

    fn end(&mut self) -> (HoldReport, Vec<String>) {
        let mut report = self.all();
        report.subtract(&self.before);
        let mut words: Vec<String> = Vec::new();
        for engine in self.engines.drain(..) {
            words.extend(engine.unserved().map(|reason| format!("holds were not timed: {reason}")));
            words.extend(engine.words(&self.sites));
        }
        let counts = [
            (HoldCount::Dropped, "holds are not in the table: too many locks by too many places"),
            (
                HoldCount::Missed,
                "acquisitions were not timed: more locks held by a thread than are followed, or handlers of signals",
            ),
            (HoldCount::Unended, "holds are not in the table: their end was not seen"),
        ];
        for (count, what) in counts {
            if report.count(count) > 0 {
                words.push(format!("{} {what}", report.count(count)));
            }
        }
        (report, words)
    }
}
