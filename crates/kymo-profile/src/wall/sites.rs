//! Sites: where threads wait, as the program's own functions, innermost first.
use super::Wall;
use crate::chains::ChainId;
use crate::first_look::own_function;
use crate::functions::{FunctionId, Functions, Level};
use crate::timeline::{ModuleId, ModuleKind, Modules};
use rustc_hash::FxHashMap;

/// So many functions tell a site: a program waits in few functions, and for many reasons.
const MOST_FUNCTIONS: usize = 4;

/// Index of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(u32);

/// The sites of all stacks.
#[derive(Debug, Default)]
pub(super) struct Sites {
    of_chains: Vec<SiteId>,
    functions: Vec<Vec<FunctionId>>,
}

impl Sites {
    pub(super) fn of_stacks(wall: &Wall) -> Sites {
        let mut sites = Sites::default();
        let mut known: FxHashMap<Vec<FunctionId>, SiteId> = FxHashMap::default();
        for chain in 0..wall.stacks.len() {
            let functions = site(wall, chain as ChainId);
            let next = SiteId(sites.functions.len() as u32);
            let id = *known.entry(functions).or_insert_with_key(|functions| {
                sites.functions.push(functions.clone());
                next
            });
            sites.of_chains.push(id);
        }
        sites
    }

    pub(super) fn of(&self, chain: ChainId) -> SiteId {
        self.of_chains.get(chain as usize).copied().unwrap_or(SiteId(0))
    }
}

/// The program's own functions of a stack from the innermost one on; without any, the innermost of
/// all.
fn site(wall: &Wall, chain: ChainId) -> Vec<FunctionId> {
    let frames = wall.stacks.frames(chain);
    own_site(&wall.functions, &wall.timeline.modules, frames).unwrap_or_else(|| {
        let innermost = wall.frames(chain, false).next().or_else(|| wall.frames(chain, true).next());
        innermost.into_iter().collect()
    })
}

/// The program's own functions of these frames from the innermost one on; `None`: there are none.
pub(crate) fn own_site(
    functions: &Functions,
    modules: &Modules,
    frames: &[FunctionId],
) -> Option<Vec<FunctionId>> {
    let own = own_function(functions, modules, frames)?;
    let module = functions.get(own).module;
    let is_script = |module: Option<ModuleId>| {
        module.is_some_and(|module| modules.get(module).kind == ModuleKind::Script)
    };
    // What scripts call of their library is in other files.
    let of_scripts = is_script(module);
    let is_own = |id: &FunctionId| {
        let function = functions.get(*id);
        let is_of_file = function.module == module || of_scripts && is_script(function.module);
        function.level == Level::User && is_of_file && function.name.is_some()
    };
    let from = frames.iter().position(|id| *id == own).unwrap_or(0);
    let mut site: Vec<FunctionId> = Vec::with_capacity(MOST_FUNCTIONS);
    for &id in frames[from..].iter().filter(|id| is_own(id)) {
        // Recursion says nothing more.
        if site.last() != Some(&id) {
            site.push(id);
        }
        if site.len() == MOST_FUNCTIONS {
            break;
        }
    }
    Some(site)
}

/// A function's name, or its address.
pub(crate) fn plain_name(functions: &Functions, id: FunctionId) -> String {
    let function = functions.get(id);
    function.name.as_deref().map_or_else(|| format!("{:#x}", function.start), str::to_owned)
}

/// As tables show a site: `inner < its caller < ..  (module)`.
pub(crate) fn site_text(functions: &Functions, modules: &Modules, site: &[FunctionId]) -> String {
    let Some(&first) = site.first() else { return "[unknown]".into() };
    let module = functions.get(first).module;
    let module = module.map_or("[unknown]", |id| &modules.get(id).short_name);
    let names: Vec<String> = site.iter().map(|id| plain_name(functions, *id)).collect();
    format!("{}  ({module})", names.join(" < "))
}

impl Wall {
    /// Where a stack waits.
    pub fn site_of(&self, stack: ChainId) -> SiteId {
        self.sites.of(stack)
    }

    /// The functions of a site, innermost first; empty where a stack has none.
    pub fn site(&self, site: SiteId) -> &[FunctionId] {
        self.sites.functions.get(site.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// A function's name, or its address.
    pub(super) fn plain_name(&self, id: FunctionId) -> String {
        plain_name(&self.functions, id)
    }

    /// As tables show a site: `inner < its caller < ..  (module)`.
    pub fn site_name(&self, site: SiteId) -> String {
        site_text(&self.functions, &self.timeline.modules, self.site(site))
    }
}
