//! Watchpoints by name: `-e mem:EXPR[:LENGTH][:r|w|rw|x]`, found in the target and written as perf's `mem:ADDRESS/LENGTH:ACCESS`.
//!
//! The expressions are those of `kymo watch`. A command is looked at as it will be when it begins: it is executed once for that, held at its
//! first instruction and ended there; and it has its memory at the same addresses each time, as under a debugger.
use crate::error::usage;
use crate::watch::place as watch_places;
use anyhow::{Context, bail};
use kymo_perf::selector::Selected;
use kymo_perf::sys::bindings::{HW_BREAKPOINT_RW, HW_BREAKPOINT_W, HW_BREAKPOINT_X};
use kymo_perf::{proc, sys};
use kymo_symbols::place::{self, Access, Request};
use std::ffi::OsString;

/// Who is observed, as far as names can be found there.
pub struct RecordingTarget<'a> {
    /// The command and its arguments; empty if none is started.
    pub command: &'a [OsString],
    /// Processes that run already.
    pub pids: &'a [i32],
    /// Threads that run already.
    pub tids: &'a [i32],
}

/// Events with addresses in the place of names, and the names.
#[derive(Debug)]
pub struct MemoryEvents {
    /// What the selector understands.
    pub texts: Vec<String>,
    names: Vec<Name>,
}

#[derive(Debug)]
struct Name {
    address: u64,
    bytes: u64,
    access: u32,
    text: String,
}

/// More registers than any CPU has.
const MOST: usize = 4;

/// Finds the names in these events; `None` if there are none. What the user should know goes to `say`.
///
/// # Errors
/// A sentence about the expression, or about why it cannot be found in this target. Nothing runs and nothing is open then.
pub fn find(
    texts: &[String],
    whom: &RecordingTarget<'_>,
    say: &dyn Fn(&str),
) -> anyhow::Result<Option<MemoryEvents>> {
    let written: Vec<Vec<Written<'_>>> = texts.iter().map(|text| names(text)).collect();
    let all: Vec<&Written<'_>> = written.iter().flatten().collect();
    if all.is_empty() {
        return Ok(None);
    }
    let parse = |name: &&Written<'_>| {
        let error = |error: place::SyntaxError| usage(error);
        place::parse(name.expression).map_err(error)
    };
    let requests = all.iter().map(parse).collect::<anyhow::Result<Vec<Request>>>()?;
    let mut places = places(&requests, whom, say)?.into_iter();
    let mut found = MemoryEvents { texts: Vec::new(), names: Vec::new() };
    for (text, written) in texts.iter().zip(&written) {
        let (mut events, mut done) = (String::new(), 0);
        for name in written {
            let Some(place) = places.next() else { break };
            events.push_str(&text[done..name.begin]);
            events.push_str(&found.add(name, &place)?);
            done = name.begin + name.text.len();
        }
        events.push_str(&text[done..]);
        found.texts.push(events);
    }
    Ok(Some(found))
}

impl MemoryEvents {
    /// Writes a place as events, one for each register that it needs.
    fn add(&mut self, name: &Written<'_>, place: &place::Watch) -> anyhow::Result<String> {
        let (pieces, more) = place.pieces(MOST);
        if more {
            bail!(
                "{} is {} bytes long, more than the registers of a CPU can watch; name a part of it, or its begin: mem:{}:8",
                place.expression,
                place.len_bytes,
                place.expression
            );
        }
        let letters = place.access.letters();
        let access = match place.access {
            Access::Write => HW_BREAKPOINT_W,
            Access::ReadWrite => HW_BREAKPOINT_RW,
            Access::Execute => HW_BREAKPOINT_X,
        };
        let events = pieces.iter().map(|&(address, bytes)| {
            let text = match address.wrapping_sub(place.avma) {
                0 => name.text.to_owned(),
                offset => format!("mem:{}+{offset:#x}", place.expression),
            };
            self.names.push(Name { address, bytes: bytes.into(), access, text });
            // What the kernel does there for the program is not the program's doing: clearing its data before it begins, for instance.
            let modifiers = if name.modifiers.is_empty() { "u" } else { name.modifiers };
            if letters == "x" {
                format!("mem:{address:#x}:x:{modifiers}")
            } else {
                format!("mem:{address:#x}/{bytes}:{letters}:{modifiers}")
            }
        });
        Ok(events.collect::<Vec<_>>().join(","))
    }

    /// Gives events their names back.
    pub fn rename<'a>(&self, events: impl Iterator<Item = &'a mut Selected>) {
        for event in events {
            let (address, bytes) = (event.attr.bp_addr(), event.attr.bp_len());
            let is = |name: &&Name| {
                (address, bytes, event.attr.bp_type) == (Some(name.address), Some(name.bytes), name.access)
            };
            if let Some(name) = self.names.iter().find(is) {
                event.name.clone_from(&name.text);
            }
        }
    }
}

/// The places in the target.
fn places(
    requests: &[Request],
    whom: &RecordingTarget<'_>,
    say: &dyn Fn(&str),
) -> anyhow::Result<Vec<place::Watch>> {
    if !whom.command.is_empty() {
        // The command's own run inherits it.
        sys::fix_addresses().with_context(|| {
            let first = requests.first().map_or("", Request::expression);
            format!(
                "the command cannot be given the same addresses each time, so mem:{first} cannot be found before it runs; start it and use -p, \
                 or give an address"
            )
        })?;
        say(
            "the command runs without address randomization, so that what -e mem: names is where it was found",
        );
        return watch_places::find_in_command(whom.command, requests, &mut |warning| say(warning));
    }
    let process = |&thread: &i32| {
        proc::process_of(thread).with_context(|| format!("there is no process {thread}: it may have ended"))
    };
    let pids = whom.pids.iter().chain(whom.tids).map(process).collect::<anyhow::Result<Vec<i32>>>()?;
    let Some((&first, others)) = pids.split_first() else {
        bail!(
            "mem:{} is a place in a program; name a command, or a process with -p (or give an address)",
            requests.first().map_or("", Request::expression)
        );
    };
    let places = watch_places::find(first, requests, &mut |warning| say(warning))?;
    for &other in others {
        let there = watch_places::find(other, requests, &mut |_| ())?;
        if let Some((here, _)) = places.iter().zip(&there).find(|(here, there)| here.avma != there.avma) {
            bail!(
                "{} is at different addresses in processes {first} and {other}; observe one of them at a time",
                here.expression
            );
        }
    }
    Ok(places)
}

/// An event that names a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written<'a> {
    /// Where in the text of events it begins.
    begin: usize,
    /// All of it.
    text: &'a str,
    /// Without `mem:` and modifiers.
    expression: &'a str,
    modifiers: &'a str,
}

/// The events of a list that name places. Those with an address are perf's, and left to the selector.
fn names(text: &str) -> Vec<Written<'_>> {
    let written = |(begin, event, rest)| {
        let (expression, modifiers) = split_modifiers(rest);
        Written { begin, text: event, expression, modifiers }
    };
    let names =
        events_with(text, "mem:").filter(|(_, _, rest)| !rest.starts_with(|c: char| c.is_ascii_digit()));
    names.map(written).collect()
}

/// The events of a list that begin with this and do not end there: where each is, all of it, and what follows the prefix.
pub(crate) fn events_with<'a>(
    text: &'a str,
    prefix: &'static str,
) -> impl Iterator<Item = (usize, &'a str, &'a str)> {
    let mut next = 0;
    let events = std::iter::from_fn(move || {
        let begin = (next < text.len()).then_some(next)?;
        let end = begin + event_len(&text[begin..]);
        // Behind a group's end its modifiers follow, up to the next comma.
        next = text[end..].find(',').map_or(text.len(), |comma| end + comma + 1);
        let event = text[begin..end].trim_start_matches(['{', ' ']);
        Some((end - event.len(), event.trim_end()))
    });
    let rest = move |(at, event): (usize, &'a str)| Some((at, event, event.strip_prefix(prefix)?));
    events.filter_map(rest).filter(|(_, _, rest)| !rest.is_empty())
}

/// How long the first event is: up to a comma or the end of a group, but not inside brackets or quotes.
fn event_len(text: &str) -> usize {
    let (mut depth, mut quoted) = (0i32, false);
    for (at, c) in text.char_indices() {
        match c {
            '\'' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' | '}' if depth <= 0 => return at,
            _ => {}
        }
    }
    text.len()
}

/// Takes `:u`, `:k` and the like off: a last part that can be no length, access or name in a path.
fn split_modifiers(rest: &str) -> (&str, &str) {
    let is_modifiers = |word: &str| !word.is_empty() && word.chars().all(|c| "ukhGHDPSW".contains(c));
    match rest.rsplit_once(':') {
        Some((before, last)) if is_modifiers(last) && !before.ends_with(':') => (before, last),
        _ => (rest, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expressions(text: &str) -> Vec<(&str, &str)> {
        names(text).iter().map(|name| (name.expression, name.modifiers)).collect()
    }

    /// Checks that names are found in lists and groups, with what they may hold, and that addresses and other events are left alone.
    #[test]
    fn names_in_lists() {
        assert_eq!(expressions("mem:counter"), [("counter", "")]);
        assert_eq!(expressions("mem:counter:8:w:u"), [("counter:8:w", "u")]);
        assert_eq!(expressions("cycles,mem:a.b[3]:rw,mem:0x1000/8:w"), [("a.b[3]:rw", "")]);
        assert_eq!(
            expressions("{cs,mem:queue.head->next:8}:S,mem:krate::module::N:k"),
            [("queue.head->next:8", ""), ("krate::module::N", "k")]
        );
        assert_eq!(expressions("mem:'f(int, char)':x,cs"), [("'f(int, char)':x", "")]);
        assert_eq!(expressions("mem:krate::u"), [("krate::u", "")]);
        assert_eq!(expressions("mem:4096:rw,mem:,sched:mem,page-faults"), []);
        let text = "cs, {mem:one,mem:two}";
        assert_eq!(
            names(text).iter().map(|name| &text[name.begin..]).collect::<Vec<_>>(),
            ["mem:one,mem:two}", "mem:two}"]
        );
    }
}
