//! Which sites the agent will refuse, told from the modules' files before any program runs: by the agent's own rules.
#[cfg(target_arch = "x86_64")]
use crate::capability::surrounding;
#[cfg(target_arch = "x86_64")]
use crate::exit_sites;
use kymo_symbols::sites::Site;
#[cfg(target_arch = "x86_64")]
use kymo_symbols::sites::SiteKind;
#[cfg(target_arch = "x86_64")]
use std::{collections::HashMap, path::Path, rc::Rc};

/// The sites among `numbers` that cannot be patched, with the reasons. What only a program's memory can tell is not among them.
#[cfg(target_arch = "x86_64")]
///
/// `timed`: functions are timed where their calls end.
pub(crate) fn refusals(sites: &[Site], numbers: &[usize], timed: bool) -> Vec<(usize, String)> {
    use kymo_agent::patch::{Memory, jump_targets};
    use kymo_symbols::sites::ProbeModule;

    /// A file as it is linked.
    struct Image<'a>(&'a ProbeModule);

    impl Memory for Image<'_> {
        fn read(&self, address: u64, into: &mut [u8]) -> usize {
            let bytes = self.0.loaded(address, into.len() as u64);
            let (begin, _) = into.split_at_mut(bytes.len().min(into.len()));
            begin.copy_from_slice(&bytes[..begin.len()]);
            begin.len()
        }
    }

    let mut targets: HashMap<(&Path, u64), Rc<[u64]>> = HashMap::new();
    let mut refused = Vec::new();
    for &number in numbers {
        let site = &sites[number];
        let image = Image(&site.module);
        let Some((begin, bytes)) = site.module.code_around(site.svma) else {
            refused.push((number, "it is not in the code of its file".to_owned()));
            continue;
        };
        let targets = targets.entry((site.module.file(), begin));
        let code = begin..begin.saturating_add(bytes);
        let same = || {
            numbers
                .iter()
                .map(|&number| &sites[number])
                .filter(|other| other.module.file() == site.module.file())
        };
        let targets = targets.or_insert_with(|| {
            jump_targets(&image, code.clone(), &exit_sites::jump_places(same(), timed, &code)).into()
        });
        let timed = timed && site.kind == SiteKind::Function;
        if let Err(refusal) = plan(&image, site, timed, targets) {
            refused.push((number, refusal));
        }
    }
    refused
}

/// Nothing is patched here.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn refusals(_: &[Site], numbers: &[usize], _: bool) -> Vec<(usize, String)> {
    let reason = "the agent patches x86-64 programs only";
    numbers.iter().map(|&number| (number, reason.to_owned())).collect()
}

/// How a site can be patched, by the file as it is linked.
#[cfg(target_arch = "x86_64")]
fn plan(
    image: &dyn kymo_agent::patch::Memory,
    site: &Site,
    timed: bool,
    targets: &Rc<[u64]>,
) -> Result<(), String> {
    use kymo_agent::patch::{CallEnds, CallPlan, EntryState, Surroundings, plan_inside};
    let (begin, bytes, room) = surrounding(site).ok_or("it is in no function that is known")?;
    let start = site.svma - (site.offset - begin);
    let function = kymo_agent::patch::Function { start, bytes, next: start + room.max(bytes) };
    let parts = if timed { exit_sites::by_part(site, false)? } else { Vec::new() };
    let ends: Vec<CallEnds> = parts.iter().map(|part| part.placed(0, targets)).collect();
    let entry = |surroundings: &Surroundings<'_>| plan_inside(image, &function, site.svma, surroundings);
    CallPlan::of(image, &entry, (targets, EntryState::NOTHING), &ends)
        .map_err(|refusal| refusal.to_string())?;
    Ok(())
}
