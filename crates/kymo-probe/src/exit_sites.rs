//! Where calls of a function end, for code that is patched there.
#[cfg(target_arch = "x86_64")]
use crate::capability::surrounding;
#[cfg(target_arch = "x86_64")]
use kymo_agent::patch::{CallEnds, Function as CallPart};
use kymo_symbols::sites::{ExitWhen, Function, Site};
#[cfg(target_arch = "x86_64")]
use std::{ops::Range, rc::Rc};

/// Functions with more exits are left to the kernel.
const MOST_EXITS: usize = 64;

/// A function, or its cold part, and where in it calls end.
#[derive(Debug)]
pub(crate) struct PartExits {
    /// Where it begins in the file.
    pub(crate) offset: u64,
    /// Where it begins as linked.
    pub(crate) svma: u64,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// The bytes to the next function.
    pub(crate) room: u64,
    /// Where calls end, from its begin on, ascending.
    pub(crate) exits: Vec<u64>,
}

impl PartExits {
    /// Without an exit: the part of this site's function that a place in the file is in.
    fn of(site: &Site, offset: u64) -> Result<PartExits, String> {
        let functions = site.module.functions();
        let next = functions.partition_point(|function| function.offset <= offset);
        let own = (site.offset..site.offset + site.length_bytes).contains(&offset);
        let (svma, bytes, begin) = match site.module.function_at(offset) {
            _ if own => (site.svma, site.length_bytes, site.offset),
            Some(Function { svma, size_bytes, offset, .. }) => (*svma, *size_bytes, *offset),
            None => return Err("an exit of it is in no function that is known".to_owned()),
        };
        let room = functions.get(next).map_or(0, |next| next.offset - begin).max(bytes);
        Ok(PartExits { offset: begin, svma, bytes, room, exits: Vec::new() })
    }
}

#[cfg(target_arch = "x86_64")]
impl PartExits {
    /// The part, and where calls end, as they are in a process that has the module so much above
    /// where it is linked. `targets`: where branches in the module lead.
    pub(crate) fn placed(&self, bias: u64, targets: &Rc<[u64]>) -> CallEnds {
        let start = self.svma.wrapping_add(bias);
        let part = CallPart { start, bytes: self.bytes, next: start.wrapping_add(self.room) };
        let ends = self.exits.iter().map(|exit| start.wrapping_add(*exit)).collect();
        CallEnds { part, ends, targets: Rc::clone(targets) }
    }
}

/// Where in a module's code jumps matter to patches of these functions, as linked: in the
/// functions; where their calls are timed, in all of the code, because of their cold parts.
#[cfg(target_arch = "x86_64")]
pub(crate) fn jump_places<'a>(
    sites: impl Iterator<Item = &'a Site>,
    timed: bool,
    code: &Range<u64>,
) -> Vec<Range<u64>> {
    if timed {
        return vec![code.clone()];
    }
    let function = |site: &Site| {
        let (begin, bytes, room) = surrounding(site)?;
        let start = site.svma.checked_sub(site.offset.checked_sub(begin)?)?;
        Some(start..start.saturating_add(room.max(bytes)))
    };
    sites.filter_map(function).collect()
}

/// The exits of a function, by the parts that they are in, if all of them can be looked at by code
/// that is patched there. `results`: what each call returns is to be known.
///
/// # Errors
/// Why not, in words.
pub(crate) fn by_part(site: &Site, results: bool) -> Result<Vec<PartExits>, String> {
    let calls = site.call_sites()?;
    if calls.exits.len() > MOST_EXITS {
        return Err(format!("it has {} exits", calls.exits.len()));
    }
    if calls.exits.iter().any(|exit| matches!(exit.when, ExitWhen::Leaves { .. })) {
        return Err("it may end at a computed jump, which stubs do not look at".to_owned());
    }
    if results && calls.exits.iter().any(|exit| !exit.returns) {
        return Err(
            "it may end by a jump to another function, and what that returns is not known there".to_owned()
        );
    }
    let mut parts: Vec<PartExits> = Vec::new();
    for exit in &calls.exits {
        let its = |part: &PartExits| (part.offset..part.offset + part.bytes).contains(&exit.offset);
        let at = match parts.iter().position(its) {
            Some(at) => at,
            None => {
                parts.push(PartExits::of(site, exit.offset)?);
                parts.len() - 1
            }
        };
        let part = &mut parts[at];
        part.exits.push(exit.offset - part.offset);
    }
    parts.iter_mut().for_each(|part| part.exits.sort_unstable());
    Ok(parts)
}
