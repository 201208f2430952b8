//! How calls are timed by the kernel: by probes at a function's exits, which touch nothing of the
//! program, wherever these can be known; by its return probes, which replace
//! return addresses, only where the program is known to bear it, or by force.
use kymo_core::probe::returns_oddly;
use kymo_core::probe::value::{Operand, register};
use kymo_perf::bpf::uprobe::{CallKey, Exit, ExitWhen, ReturnAction};
use kymo_symbols::sites::{self, CallIdentity, CallSites, ProbeModule, Site};
use std::sync::Arc;

/// Where the kernel counts a call's beginning, and how it sees its end.
pub(crate) struct Timing {
    pub entry: u64,
    pub returns: ReturnAction,
}

/// Whose return addresses may be replaced.
#[derive(Clone, Debug, Default)]
pub struct ReturnAddresses {
    /// What of the program walks its own stacks, in words.
    pub walker: Option<String>,
    /// Why calls may be under way on more stacks than the thread's own.
    pub switches: Option<String>,
    /// Why they must not be, anywhere in the program; `None`: they may.
    pub fixed: Option<String>,
    /// They are, even so.
    pub force: bool,
}

impl ReturnAddresses {
    /// In a program with these modules.
    pub fn of(modules: &[Arc<ProbeModule>], force: bool) -> ReturnAddresses {
        let modules = modules.iter().map(|module| &**module);
        ReturnAddresses {
            walker: sites::stack_walker(modules.clone()),
            switches: sites::switches_stacks(modules.clone()),
            fixed: sites::leaves_calls(modules),
            force,
        }
    }

    /// How calls of a function can be timed. `result`: what they return is asked for.
    ///
    /// # Errors
    /// Why not, in words.
    pub(crate) fn timing(&self, site: &Site, result: bool) -> Result<Timing, String> {
        let found = site.call_sites().and_then(|found| {
            match result && found.exits.iter().any(|exit| !exit.returns) {
                true => {
                    Err("it ends with a jump to another function, whose result is not known there".to_owned())
                }
                false => Ok(found),
            }
        });
        let reason = match found.and_then(|found| at_exits(&found)) {
            Ok(timing) => return Ok(timing),
            Err(reason) => reason,
        };
        let replaced = Timing { entry: site.offset, returns: ReturnAction::Time };
        match (&self.fixed, site.symbol.as_deref().is_some_and(returns_oddly)) {
            _ if self.force => Ok(replaced),
            (None, false) => Ok(replaced),
            (None, true) => Err(format!("{reason}, and its return address is used for more than one return")),
            (Some(why), _) => Err(format!(
                "{reason}, and its return address cannot be replaced: {why}; --force does it and may crash the program"
            )),
        }
    }
}

impl ReturnAddresses {
    /// Where in the file the returns of a function are to be events; none: the kernel may replace
    /// its return address.
    ///
    /// # Errors
    /// Why there can be no event of them, in words.
    pub fn exits(&self, site: &Site) -> Result<Vec<u64>, String> {
        if self.fixed.is_none() {
            return Ok(Vec::new());
        }
        match self.timing(site, true)?.returns {
            ReturnAction::TimeAtExits(_, exits) => Ok(exits.iter().map(|exit| exit.offset).collect()),
            _ => Ok(Vec::new()),
        }
    }
}

/// The kernel's words for it.
fn at_exits(found: &CallSites) -> Result<Timing, String> {
    let exit = |exit: &sites::Exit| {
        let (when, bounds) = match &exit.when {
            sites::ExitWhen::Always => (ExitWhen::Always, (0, 0)),
            sites::ExitWhen::Flags(number) => (ExitWhen::Flags(*number), (0, 0)),
            sites::ExitWhen::Leaves { register, displacement, before_bytes, after_bytes } => {
                let register = register::named(register).ok_or("it ends at a computed jump")?;
                let steps = displacement.iter().copied().collect();
                let target = Operand { steps, ..Operand::register(register) };
                (ExitWhen::Leaves(target), (*before_bytes, *after_bytes))
            }
        };
        Ok(Exit { offset: exit.offset, when, bounds })
    };
    let frame = match found.identity {
        CallIdentity::StackPointer => CallKey::StackPointer,
        CallIdentity::Goroutine => CallKey::Goroutine,
    };
    let exits = found.exits.iter().map(exit).collect::<Result<Vec<_>, String>>()?;
    Ok(Timing { entry: found.entry, returns: ReturnAction::TimeAtExits(frame, exits) })
}
