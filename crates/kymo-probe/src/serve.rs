//! Which engine serves which site.
//!
//! ```text
//!  sites --serve()--> in-process engine takes what it can (reasons for the rest)  --+--> Service { sites, engine } ...
//!                     kernel engine takes what is left                            --+
//! ```
use crate::engine::{Choice, ProbeRequest, Service, Target};
use crate::inproc::Refusals;
use crate::kernel::Kernel;
use crate::launched::Launch;
use crate::modules::reasons_of;
use crate::{capability, inproc, several};
use anyhow::Context;
use std::os::fd::BorrowedFd;

/// Attaches to all sites. What could not be as asked is among the words. `launch`: the command is started with the agent in it.
pub fn serve(
    choice: Choice,
    request: &ProbeRequest,
    target: &Target,
    launch: Option<Launch>,
    words: &mut Vec<String>,
) -> anyhow::Result<Vec<Service>> {
    let mut services: Vec<Service> = Vec::new();
    // Why the program has no site that can be patched.
    let mut why = None;
    let mut left: Vec<usize> = (0..request.sites.len()).collect();
    let verb =
        if choice == Choice::Auto { "not inside the program, but by the kernel" } else { "not probed" };
    if let Some(launch) = launch {
        words.extend(reasons_of(verb, request.named(launch.refused())));
        let served = launch.served().to_vec();
        let pid = target.pids.first().copied().context("there is no command")?;
        left.retain(|number| served.binary_search(number).is_err());
        words.extend(launch.words().map(str::to_owned));
        let engine = launch.begin(pid).context("failed to wait for programs to start")?;
        services.push(Service::new(served, engine));
    } else if choice != Choice::Kernel && !target.command {
        match inside(choice, request, target) {
            Ok(entered) => {
                words.extend(reasons_of(verb, request.named(&entered.refused)));
                if entered.cleaned_up > 0 {
                    words.push(format!("removed {} probes that a killed kymo had left", entered.cleaned_up));
                }
                why = entered.refused.first().map(|(_, reason)| reason.clone());
                left.retain(|number| entered.served.binary_search(number).is_err());
                if !entered.served.is_empty() {
                    words.push(match entered.not_held {
                        None => format!(
                            "patched while the program's threads stood still, {:.2} ms{}",
                            entered.stopped_ns as f64 / 1e6,
                            entered.how.map_or(String::new(), |how| format!(", {how}"))
                        ),
                        Some(why) => format!("patched while the program ran: {why}"),
                    });
                    services.push(Service::new(entered.served, entered.engine));
                }
            }
            Err(reason) if choice.is_inside() => return Err(impossible(&reason)),
            // What it never does needs no words; that the kernel serves is said.
            Err(_) if capability::check(request, Some(target)).is_err() => {}
            Err(reason) => words.push(format!("not inside the program, but by the kernel: {reason}")),
        }
    }
    if choice.is_inside() {
        anyhow::ensure!(!services.is_empty(), impossible(why.as_deref().unwrap_or("there is no probe")));
    } else if !left.is_empty() {
        leave_to_the_kernel(left, request, target, (&mut services, words))?;
    }
    Ok(services)
}

/// Adds the net for these sites. Where there can be none and other sites are served, it is said of
/// which sites nothing is known.
fn leave_to_the_kernel(
    left: Vec<usize>,
    request: &ProbeRequest,
    target: &Target,
    (services, words): (&mut Vec<Service>, &mut Vec<String>),
) -> anyhow::Result<()> {
    let served = |service: &Service| service.sites.iter().any(|site| left.binary_search(site).is_err());
    match by_the_kernel(left.clone(), request, target, words) {
        Ok(service) => services.push(service),
        Err(error) if services.iter().any(served) => {
            let reason = format!("{error:#}");
            let named = left.iter().map(|&number| (reason.clone(), request.sites[number].name.as_str()));
            words.extend(reasons_of("not probed", named));
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// That probes were asked for inside of a program, where there can be none.
pub fn impossible(reason: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "the program cannot be probed from inside: {reason}; leave --engine out to let the kernel do it"
    )
}

/// The net.
pub(crate) fn by_the_kernel(
    numbers: Vec<usize>,
    request: &ProbeRequest,
    target: &Target,
    words: &mut Vec<String>,
) -> anyhow::Result<Service> {
    let engine = Kernel::attach(&request.subset(&numbers), target, words)?;
    Ok(Service::new(numbers, Box::new(engine)))
}

/// As much as possible inside of the programs.
fn inside(choice: Choice, request: &ProbeRequest, target: &Target) -> Result<inproc::Entered, String> {
    capability::check(request, Some(target))?;
    let enter = |pid, without: &Refusals| inside_one(choice, request, without, pid);
    match target.pids[..] {
        [pid] => enter(pid, &Vec::new()),
        ref pids => several::enter(pids, enter),
    }
}

/// As much as possible inside of one program, but for some sites.
fn inside_one(
    choice: Choice,
    request: &ProbeRequest,
    without: &Refusals,
    pid: i32,
) -> Result<inproc::Entered, String> {
    #[cfg(target_arch = "x86_64")]
    if let Some(entered) = crate::remote::enter(request, without, pid)? {
        return Ok(entered);
    }
    capability::check_returns(choice, request)?;
    inproc::enter(choice, request, without, pid)
}

/// Sees that the command which has just been started is probed, before it begins: what an engine cannot do after all, the kernel does if it may.
pub fn started(
    choice: Choice,
    request: &ProbeRequest,
    target: &Target,
    services: &mut Vec<Service>,
    ended: BorrowedFd<'_>,
) -> anyhow::Result<Vec<String>> {
    let mut words = Vec::new();
    let running = Target { command: false, ..target.clone() };
    let auto = choice == Choice::Auto;
    let mut left: Vec<usize> = Vec::new();
    for service in services.iter_mut() {
        match service.engine.started(ended) {
            Ok(refused) if !auto && refused.len() >= service.sites.len() && !refused.is_empty() => {
                return Err(impossible(&refused[0].1));
            }
            Ok(refused) => {
                let (apart, crowded) = refused.into_iter().partition(|(number, _)| {
                    auto && inproc::is_apart(&request.sites[*number], &request.sites, &service.sites)
                });
                let refused: [(&str, Vec<(usize, String)>); 2] =
                    [("not inside the program, but by the kernel", apart), ("not probed", crowded)];
                for (verb, refused) in &refused {
                    words.extend(reasons_of(verb, request.named(refused)));
                }
                left.extend(refused[0].1.iter().map(|(number, _)| *number));
                service.not_probed = refused[1].1.iter().map(|(number, _)| *number).collect();
                service.not_probed.sort_unstable();
            }
            Err(reason) if !auto => return Err(impossible(&reason)),
            Err(reason) => {
                words.push(format!("by the kernel, from now on, what came before is not counted: {reason}"));
                left.append(&mut service.sites);
            }
        }
    }
    if !left.is_empty() {
        left.sort_unstable();
        for service in services.iter_mut() {
            service.engine.leave(&left);
        }
        leave_to_the_kernel(left, request, &running, (&mut *services, &mut words))?;
    }
    services.iter().for_each(|service| service.engine.go());
    Ok(words)
}
