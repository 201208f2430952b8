//! A probing from start to end: find the sites, attach, let run, read, detach.

use std::collections::HashMap;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use kymo_cli::signals::Signals;
use kymo_perf::inject;
use kymo_perf::workload::{Exit, Workload};
use kymo_profile::text;
use kymo_symbols::place::call::Part;
use kymo_symbols::sites::{ProbeModule, ProbeSelector, Site, SiteKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::live::Live;
use super::show::{self, Row, View, full_name};
use kymo_probe::callers::CallerNames;
use kymo_probe::engine::{Choice, ProbeRequest, Reading, Service, Target};
use kymo_probe::exits::ReturnAddresses;
use kymo_probe::launched::{self, Launch};
use kymo_probe::serve::{self, serve};
use kymo_probe::{arguments, capability, condition, modules};

use super::ProbeArgs;
use kymo_cli::{exit, terminal};

/// How often a live table is drawn anew.
const TICK: Duration = Duration::from_secs(1);
/// How often the target's mappings are looked at, so that callers in libraries that come and go have names.
const LOOK: Duration = Duration::from_millis(100);
/// How many callers of each probe are shown.
const CALLERS: usize = 5;
/// More sites than this are worth a word about what they cost.
const MANY: usize = 100;
/// More than this are announced before they are attached.
const MANY_TO_ATTACH: usize = 1000;

/// Runs the verb.
pub(super) fn run(args: &ProbeArgs) -> anyhow::Result<ExitCode> {
    let selectors: Vec<ProbeSelector> = args
        .selectors
        .iter()
        .map(|text| ProbeSelector::parse(text).map_err(exit::usage))
        .collect::<Result<_, _>>()?;
    let condition = args.condition.as_deref().map(condition::parse).transpose().map_err(exit::usage)?;
    let mut words = Vec::new();
    let found = find(args, &selectors, &mut words)?;
    let (request, modules) = request(args, &selectors, found, condition, &mut words)?;
    let sites = &request.sites;
    if args.dry_run {
        return dry_run(sites);
    }
    // A signal from now on ends the probing, not us: the probes are taken off.
    let signals = Signals::catch()?;
    // Nor does a program that does not answer keep us from ending.
    inject::interrupt_by(signals.another_fd()?);
    let launch = launch(args, &request, &modules, &mut words)?;
    let variables = launch.as_ref().map(Launch::environment).unwrap_or_default();
    let mut workload = match args.command.is_empty() {
        true => None,
        false => Some(Workload::prepare_in(&args.command, &variables).context("failed to fork")?),
    };
    let target = Target {
        pids: workload.as_ref().map_or_else(|| args.pids.clone(), |workload| vec![workload.pid()]),
        command: workload.is_some(),
        children: if workload.is_some() { !args.no_inherit } else { args.children },
    };
    let began = Instant::now();
    // Of a program that runs already the first hits come while other probes are still attached.
    let mut live = Live::new(&request, args.json);
    if !args.quiet && sites.len() > MANY_TO_ATTACH {
        terminal::say(&format!(
            "attaching {} probes; where the kernel does that, it may take long, and an interrupt ends it",
            sites.len()
        ));
    }
    let mut services = serve(args.engine, &request, &target, launch, &mut words)?;
    if !args.quiet {
        announce(sites, &services, &target, began.elapsed(), &words);
    }
    let since = Instant::now();
    if workload.is_some() {
        live = Live::new(&request, args.json);
    }
    if let Some(workload) = &mut workload
        && let Err(error) = workload.start()
    {
        let command = args.command[0].to_string_lossy();
        terminal::say(&kymo_perf::explain::not_executed(&command, &error));
        return Ok(ExitCode::from(exit::NOT_STARTED));
    }
    if let Some(workload) = &workload {
        let ended = workload.ended_fd();
        let more = match serve::started(args.engine, &request, &target, &mut services, ended) {
            Ok(more) => more,
            Err(error) => {
                workload.signal(kymo_cli::signals::SIGTERM);
                return Err(error);
            }
        };
        more.iter().for_each(|word| terminal::say(word));
        words.extend(more);
    }
    let mut session = Session {
        args,
        sites,
        services,
        places: CallerNames::new(&modules),
        target,
        timed: request.timed,
        words,
        live,
        drawn: 0,
    };
    session.watch(workload.as_mut(), &signals, since)?;
    let elapsed = since.elapsed();
    session.finish(elapsed)?;
    let unserved = session.services.iter().find_map(|service| service.engine.unserved());
    drop(session);
    if let Some(reason) = &unserved {
        terminal::say(&serve::impossible(reason).to_string());
    }
    // A table of zeros is no result if nobody could count.
    let success = if unserved.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    workload.map_or(Ok(success), |workload| end(workload, &signals, args, success))
}

/// What is to be measured at these sites; and all modules.
fn request(
    args: &ProbeArgs,
    selectors: &[ProbeSelector],
    (sites, asked, modules): SelectedSites,
    condition: Option<condition::Typed>,
    words: &mut Vec<String>,
) -> anyhow::Result<(ProbeRequest, Vec<Arc<ProbeModule>>)> {
    let asks_result = args.ret || args.hist || selectors.iter().any(|selector| selector.returns);
    let values = arguments::of_sites(&sites, &asked, args.args, asks_result, words).map_err(exit::usage)?;
    let tells_result = values.iter().flatten().any(|values| !values.back.is_empty());
    let returns = selectors.iter().any(|selector| selector.returns)
        || condition.as_ref().is_some_and(condition::Typed::asks_returns);
    let timed = args.ret || args.hist || returns || tells_result;
    let conditions = condition.map(|condition| condition.at(&sites)).transpose().map_err(exit::usage)?;
    let request = ProbeRequest {
        sites,
        timed,
        callers: args.callers,
        every: args.every,
        conditions: conditions.unwrap_or_default(),
        values,
        return_addresses: ReturnAddresses::of(&modules, args.force),
    };
    Ok((request, modules))
}

/// Waits for the command, which ends with the probing. `success`: the status if that has succeeded.
fn end(
    mut workload: Workload,
    signals: &Signals,
    args: &ProbeArgs,
    success: ExitCode,
) -> anyhow::Result<ExitCode> {
    if workload.try_wait().context("failed to wait for the command")?.is_none() {
        // The command goes with us, as `kymo stat --timeout` does; an interrupt has reached it, too.
        workload.signal(signals.last().unwrap_or(kymo_cli::signals::SIGTERM));
    }
    Ok(match workload.wait().context("failed to wait for the command")? {
        Exit::Signal(_) if signals.last().is_some() || args.duration.is_some() => success,
        Exit::Code(0) => success,
        ended => exit::as_command(ended),
    })
}

/// The command with the agent in it, if that is asked for and can be.
fn launch(
    args: &ProbeArgs,
    request: &ProbeRequest,
    modules: &[Arc<ProbeModule>],
    words: &mut Vec<String>,
) -> anyhow::Result<Option<Launch>> {
    if args.command.is_empty() || args.engine == Choice::Kernel {
        return Ok(None);
    }
    match launched::prepare(args.engine, request, !args.no_inherit, &args.command, modules) {
        Ok(launch) => Ok(Some(launch)),
        Err(reason) if args.engine.is_inside() => Err(serve::impossible(&reason)),
        // What it never does needs no words.
        Err(_) if capability::check(request, None).is_err() => Ok(None),
        Err(reason) => {
            words.push(format!("not inside the program, but by the kernel: {reason}"));
            Ok(None)
        }
    }
}

/// Sites, the lists of expressions that stand behind their names, and modules.
type SelectedSites = (Vec<Site>, Vec<Option<Vec<Part>>>, Vec<Arc<ProbeModule>>);

/// All sites that the selectors mean, each once, and the modules of the targets.
fn find(
    args: &ProbeArgs,
    selectors: &[ProbeSelector],
    words: &mut Vec<String>,
) -> anyhow::Result<SelectedSites> {
    let mut sites: Vec<Site> = Vec::new();
    let mut asked = Vec::new();
    let mut all = Vec::new();
    let targets: Vec<Vec<Arc<ProbeModule>>> = match args.command.is_empty() {
        true => args.pids.iter().map(|&pid| modules::of_process(pid)).collect::<Result<_, _>>()?,
        false => vec![modules::of_command(&args.command)?],
    };
    let mut known = std::collections::HashSet::new();
    for modules in &targets {
        for selector in selectors {
            let found = modules::sites(selector, modules)?;
            for site in modules::touchable(found, &mut |word| words.push(word))? {
                let key = (site.module.file().to_owned(), site.offset, site.semaphore);
                // A marker and the function that begins at the same place are two.
                if known.insert((key, matches!(site.kind, SiteKind::Marker { .. }))) {
                    sites.push(site);
                    asked.push(selector.arguments.clone());
                }
            }
        }
        all.extend(modules.iter().cloned());
    }
    // Libraries that were named by their paths are loaded later.
    for site in &sites {
        if !all.iter().any(|module| Arc::ptr_eq(module, &site.module)) {
            all.push(Arc::clone(&site.module));
        }
    }
    Ok((sites, asked, all))
}

fn dry_run(sites: &[Site]) -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(io::stdout().lock());
    for site in sites {
        writeln!(out, "{:#12x}  {:<11}  {}", site.offset, site.kind.word(), full_name(site))?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Says who serves what, and what it costs.
fn announce(sites: &[Site], services: &[Service], target: &Target, took: Duration, words: &[String]) {
    for service in services {
        let count = service.sites.len();
        let whom = match (target.command, target.children) {
            (true, true) => "the command and all it starts".to_owned(),
            (true, false) => "the command".to_owned(),
            (false, children) => {
                format!("{}{}", processes(&target.pids), if children { " and all it starts" } else { "" })
            }
        };
        let cost = match (service.engine.name(), count) {
            ("kernel", MANY..) => {
                "; each hit traps, which takes about a microsecond: fewer probes, or --if of what is rare, cost less"
            }
            ("kernel", _) => "; each hit traps, which takes about a microsecond",
            _ => "",
        };
        let plural = if count == 1 { "" } else { "s" };
        terminal::say(&format!(
            "{count} probe{plural} in {whom}, by the {} engine, attached in {:.1} ms{cost}",
            service.engine.name(),
            took.as_secs_f64() * 1e3
        ));
    }
    // Others trap in the kernel's probes only.
    let by_kernel = services.iter().filter(|service| service.engine.name() == "kernel");
    let mut by_kernel = by_kernel.flat_map(|service| &service.sites).map(|&number| &sites[number]);
    let library = by_kernel.find(|site| site.module.name().contains(".so"));
    if let (Some(site), true) = (library, target.children) {
        terminal::say(&format!(
            "other programs that use {} trap, too, and are not counted; {} probes the named ones alone",
            site.module.name(),
            if target.command { "-i" } else { "leaving --children out" }
        ));
    }
    words.iter().for_each(|word| terminal::say(word));
}

/// `process 7`, `processes 7 and 8`, `processes 7, 8 and 9`.
fn processes(pids: &[i32]) -> String {
    let numbers: Vec<String> = pids.iter().map(i32::to_string).collect();
    match numbers.split_last() {
        Some((last, [])) => format!("process {last}"),
        Some((last, others)) => format!("processes {} and {last}", others.join(", ")),
        None => "no process".to_owned(),
    }
}

struct Session<'a> {
    args: &'a ProbeArgs,
    sites: &'a [Site],
    services: Vec<Service>,
    places: CallerNames,
    target: Target,
    timed: bool,
    words: Vec<String>,
    /// Prints hits, if they are to be.
    live: Option<Live<'a>>,
    /// Lines of the live table on the terminal.
    drawn: usize,
}

/// What was counted, for each site.
#[derive(Default)]
struct SiteCounts {
    callers: Vec<HashMap<String, u64>>,
    readings: Vec<Reading>,
}

impl SiteCounts {
    /// What came since an earlier time.
    fn since(&self, before: &SiteCounts) -> SiteCounts {
        let (nothing, nobody) = (Reading::default(), HashMap::new());
        let readings = self.readings.iter().enumerate();
        let readings = readings.map(|(at, now)| now.since(before.readings.get(at).unwrap_or(&nothing)));
        let of = |(at, now): (usize, &HashMap<String, u64>)| {
            let before = before.callers.get(at).unwrap_or(&nobody);
            let since = |(name, hits): (&String, &u64)| {
                let hits = hits.saturating_sub(before.get(name).copied().unwrap_or(0));
                (hits > 0).then(|| (name.clone(), hits))
            };
            now.iter().filter_map(since).collect()
        };
        let callers = self.callers.iter().enumerate().map(of).collect();
        SiteCounts { callers, readings: readings.collect() }
    }
}

impl<'a> Session<'a> {
    /// Waits for the end: of the time, the targets or the patience.
    fn watch(
        &mut self,
        mut workload: Option<&mut Workload>,
        signals: &Signals,
        since: Instant,
    ) -> anyhow::Result<()> {
        let alive: Vec<OwnedFd> = match workload {
            Some(_) => Vec::new(),
            None => self
                .target
                .pids
                .iter()
                .filter_map(|&pid| pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok())
                .collect(),
        };
        let end = self.args.duration.map(|duration| since + duration);
        let live = workload.is_none() && !self.args.json && self.live.is_none() && io::stdout().is_terminal();
        let (mut next_draw, mut before) = (since + TICK, SiteCounts::default());
        let mut before_at = since;
        // A short command is looked at soon, a long one seldom.
        let mut patience = Duration::from_millis(1);
        let mut gone = vec![false; alive.len()];
        loop {
            self.target.pids.iter().for_each(|&pid| {
                if self.args.callers {
                    self.places.look(pid);
                }
            });
            if self.args.callers {
                // Those that a program tells go with it.
                let inside = self.services.iter().filter(|service| service.engine.name() == "inproc");
                inside.for_each(|service| _ = service.engine.callers());
            }
            self.print_hits()?;
            let now = Instant::now();
            let ended = match workload.as_deref_mut() {
                Some(workload) => workload.try_wait().context("failed to wait for the command")?.is_some(),
                None => !gone.is_empty() && gone.iter().all(|&gone| gone),
            };
            if ended || signals.last().is_some() || end.is_some_and(|end| now >= end) {
                break;
            }
            if live && now >= next_draw {
                next_draw = now + TICK;
                let fresh = self.counts();
                self.draw(&fresh, &before, now - before_at)?;
                (before, before_at) = (fresh, now);
            }
            let mut fds: Vec<BorrowedFd<'_>> = vec![signals.as_fd()];
            fds.extend(workload.as_deref().map(Workload::ended_fd));
            fds.extend(Live::ready(&self.services));
            let first = fds.len();
            fds.extend(alive.iter().zip(&gone).filter(|(_, gone)| !**gone).map(|(fd, _)| fd.as_fd()));
            let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            let looks = self.args.callers.then_some(patience);
            patience = (patience * 2).min(LOOK);
            let waits =
                [end.map(|end| end - now), live.then(|| next_draw.saturating_duration_since(now)), looks];
            let wait = waits.into_iter().flatten().min();
            let wait = wait.map(Timespec::try_from).transpose().context("failed to wait")?;
            match poll(&mut polled, wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("failed to wait"),
            }
            let ready: Vec<bool> = polled[first..].iter().map(|fd| !fd.revents().is_empty()).collect();
            let waiting = gone.iter_mut().filter(|gone| !**gone);
            waiting.zip(ready).for_each(|(gone, ready)| *gone = ready);
        }
        Ok(())
    }

    /// Prints the hits that have come, if they are to be printed.
    fn print_hits(&self) -> anyhow::Result<()> {
        let Some(live) = &self.live else { return Ok(()) };
        let mut out = BufWriter::new(io::stdout().lock());
        live.print(&self.services, &mut out)?;
        out.flush().context("failed to write hits")
    }

    /// What each site has counted until now. Callers are asked for first: calls go on meanwhile,
    /// and there are never more from all callers than there are hits.
    fn counts(&mut self) -> SiteCounts {
        let callers = self.callers();
        let mut readings = vec![Reading::default(); self.sites.len()];
        for service in &self.services {
            for (&site, reading) in service.sites.iter().zip(service.engine.read()) {
                readings[site] = reading;
            }
        }
        SiteCounts { callers, readings }
    }

    fn callers(&mut self) -> Vec<HashMap<String, u64>> {
        let mut callers: Vec<HashMap<String, u64>> = vec![HashMap::new(); self.sites.len()];
        for service in &self.services {
            for caller in service.engine.callers().unwrap_or_default() {
                let Some(&site) = service.sites.get(caller.site) else { continue };
                let name = match caller.address {
                    0 => "(others)".to_owned(),
                    address => self.places.name(caller.pid, address),
                };
                let hits = callers[site].entry(name).or_insert(0);
                // A program may say anything.
                *hits = hits.saturating_add(caller.hits);
            }
        }
        callers
    }

    fn rows(&self, counts: SiteCounts) -> Vec<Row<'a>> {
        let SiteCounts { callers, readings } = counts;
        let mut engines = vec![None; self.sites.len()];
        for service in &self.services {
            service.probed().for_each(|site| engines[site] = Some(service.engine.name()));
        }
        let sorted = |of: HashMap<String, u64>| {
            let mut list: Vec<(String, u64)> = of.into_iter().collect();
            list.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
            list.truncate(CALLERS);
            list
        };
        let callers: Vec<_> = callers.into_iter().map(sorted).collect();
        let sites: &'a [Site] = self.sites;
        let each = sites.iter().zip(readings).zip(callers).zip(engines);
        let timed = self.timed;
        let row = |(((site, reading), callers), engine): (((&'a Site, Reading), _), _)| {
            let timed = timed && site.kind == SiteKind::Function;
            Row { site, engine, reading, timed, callers }
        };
        let mut rows: Vec<Row<'a>> = each.map(row).collect();
        if rows.len() > 1 {
            rows.sort_by_key(|row| std::cmp::Reverse(row.reading.hits));
        }
        rows
    }

    fn view(&self, live: bool) -> View {
        let color = terminal::look().color;
        View {
            timed: self.timed,
            histograms: self.args.hist && !live,
            idle: !live && !self.args.hits_only,
            bold: if color { ("\x1b[1m", "\x1b[0m") } else { ("", "") },
        }
    }

    /// Draws what came since the last time over what was drawn then.
    fn draw(&mut self, fresh: &SiteCounts, before: &SiteCounts, elapsed: Duration) -> anyhow::Result<()> {
        let (view, drawn) = (self.view(true), self.drawn);
        let mut rows = self.rows(fresh.since(before));
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
        // A terminal that does not know its size says 0.
        let height = size.map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 0).unwrap_or(24);
        let mut left = height.saturating_sub(3);
        rows.retain(|row| {
            let lines = 1 + row.callers.len();
            let fits = lines <= left;
            left = left.saturating_sub(lines);
            fits
        });
        let mut text = Vec::new();
        let lines = show::table(&mut text, &rows, elapsed.as_nanos() as u64, view)?;
        let mut out = io::stdout().lock();
        if drawn > 0 {
            write!(out, "\x1b[{drawn}A\x1b[J")?;
        }
        out.write_all(&text)?;
        out.flush()?;
        self.drawn = lines;
        Ok(())
    }

    /// Prints the result.
    fn finish(&mut self, elapsed: Duration) -> anyhow::Result<()> {
        self.print_hits()?;
        let counts = self.counts();
        let readings = &counts.readings;
        let lost: u64 = readings.iter().map(|reading| reading.lost).sum();
        if lost > 0 {
            let word = format!(
                "{lost} lines were dropped: hits came faster than they could be printed; --if and --every make fewer"
            );
            terminal::say(&word);
            self.words.push(word);
        }
        let last: Vec<String> =
            self.services.iter().flat_map(|service| service.engine.words(self.sites)).collect();
        last.iter().for_each(|word| terminal::say(word));
        self.words.extend(last);
        let missed: u64 = readings.iter().map(|reading| reading.missed).sum();
        if missed > 0 {
            self.words.push(format!("{missed} calls could not be timed: too many were under way at once"));
        }
        let (view, elapsed_ns, drawn) = (self.view(false), elapsed.as_nanos() as u64, self.drawn);
        let (json, words, lines) = (self.args.json, self.words.clone(), self.live.is_some());
        let rows = self.rows(counts);
        let mut out = BufWriter::new(io::stdout().lock());
        if json {
            let document = show::document(&rows, elapsed_ns, &words);
            // Behind lines stands a line.
            let text = if lines { text::json(&document)? } else { text::json_pretty(&document)? };
            writeln!(out, "{text}")?;
        } else {
            if drawn > 0 {
                write!(out, "\x1b[{drawn}A\x1b[J")?;
            }
            show::table(&mut out, &rows, elapsed_ns, view)?;
        }
        out.flush()?;
        if missed > 0 && !json {
            words.last().iter().for_each(|word| terminal::say(word));
        }
        Ok(())
    }
}
