//! The syntax tree, and how it is printed back.

use super::error::Span;
use std::fmt;
use std::sync::Arc;

/// One event, or several in braces that are scheduled together.
#[derive(Debug, Clone)]
pub struct EventGroup {
    /// The whole text that [`parse()`](super::parse()) got, for messages.
    pub input: Arc<str>,
    /// A group's own name, as in `name{a,b}`.
    pub name: Option<String>,
    /// Written in braces. Without braces there is exactly one event.
    pub braced: bool,
    /// The events; never empty.
    pub events: Vec<EventSelector>,
    /// Modifiers behind the closing brace; they are added to each member's own.
    pub modifiers: Modifiers,
    /// Where the group stands in `input`.
    pub span: Span,
}

/// One event as written.
#[derive(Debug, Clone)]
pub struct EventSelector {
    /// What is named.
    pub head: Head,
    /// The terms between slashes: `None` without slashes, empty for `//`.
    pub terms: Option<Vec<Term>>,
    /// The modifiers behind it.
    pub modifiers: Modifiers,
    /// The event's text, as typed, without surrounding spaces.
    pub text: String,
    /// Where the event stands in the group's `input`.
    pub span: Span,
    /// Where the head stands.
    pub head_span: Span,
}

/// What an event names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Head {
    /// A hardware, software, cache or PMU event by name; with terms also a PMU.
    Name(String),
    /// `rNNN`: a raw event number of the CPU's PMU.
    Raw(u64),
    /// `type:config`, both as numbers.
    Numeric {
        /// The attr's `type`.
        kind: u32,
        /// The attr's `config`.
        config: u64,
    },
    /// `system:event`, where both may hold `*`, `?` and `[...]`.
    Tracepoint {
        /// The part before the colon.
        system: String,
        /// The part behind it.
        event: String,
    },
    /// `mem:address/length:access`.
    Breakpoint {
        /// The address to watch.
        addr: u64,
        /// Length in bytes, if given.
        len: Option<u64>,
        /// Kinds of access to stop at, if given.
        access: Option<Access>,
    },
}

/// Kinds of access that a breakpoint stops at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// `r`
    pub read: bool,
    /// `w`
    pub write: bool,
    /// `x`
    pub execute: bool,
}

impl Access {
    /// The kernel's `HW_BREAKPOINT_R|W|X` bits.
    pub(crate) fn bits(self) -> u32 {
        u32::from(self.read) | u32::from(self.write) << 1 | u32::from(self.execute) << 2
    }
}

/// One term between slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// The part before `=`.
    pub name: String,
    /// The part behind it, if any.
    pub value: Option<TermValue>,
    /// Where the name stands.
    pub span: Span,
    /// Where the value stands; empty behind the name if there is none.
    pub value_span: Span,
}

/// The right side of a term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TermValue {
    /// A number, decimal or with `0x`.
    Number(u64),
    /// A bare word.
    Word(String),
    /// A word in single quotes, which may hold `,`, `=` and `:`.
    Quoted(String),
}

/// The letters behind an event or group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(clippy::struct_excessive_bools, reason = "one flag per letter of the grammar")]
pub struct Modifiers {
    /// `u`: count in user mode.
    pub user: bool,
    /// `k`: count in the kernel.
    pub kernel: bool,
    /// `h`: count in the hypervisor.
    pub hypervisor: bool,
    /// `I`: do not count idle.
    pub not_idle: bool,
    /// `G`: count in guests.
    pub guest: bool,
    /// `H`: count on the host.
    pub host: bool,
    /// `p`, `pp`, `ppp`: how precise.
    pub precise: u8,
    /// `P`: as precise as the machine can.
    pub precise_max: bool,
    /// `S`: read all members at the leader's sample.
    pub group_read: bool,
    /// `D`: pinned to the PMU.
    pub pinned: bool,
    /// `W`: weak group.
    pub weak: bool,
    /// `e`: alone on the PMU.
    pub exclusive: bool,
    /// `b`: count through BPF; understood, and refused when resolved.
    pub bpf: bool,
}

impl Modifiers {
    /// No letter given.
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Sets one letter. `Err` says why the letter cannot stand here.
    pub(crate) fn set(&mut self, letter: char) -> Result<(), ModifierFault> {
        let flag = match letter {
            'p' if self.precise == 3 => return Err(ModifierFault::Repeated),
            'p' => {
                self.precise += 1;
                return Ok(());
            }
            'u' => &mut self.user,
            'k' => &mut self.kernel,
            'h' => &mut self.hypervisor,
            'I' => &mut self.not_idle,
            'G' => &mut self.guest,
            'H' => &mut self.host,
            'P' => &mut self.precise_max,
            'S' => &mut self.group_read,
            'D' => &mut self.pinned,
            'W' => &mut self.weak,
            'e' => &mut self.exclusive,
            'b' => &mut self.bpf,
            _ => return Err(ModifierFault::Unknown),
        };
        if std::mem::replace(flag, true) { Err(ModifierFault::Repeated) } else { Ok(()) }
    }
}

/// Why a letter was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModifierFault {
    Unknown,
    Repeated,
}

impl fmt::Display for Modifiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [
            (self.user, "u"),
            (self.kernel, "k"),
            (self.hypervisor, "h"),
            (self.not_idle, "I"),
            (self.guest, "G"),
            (self.host, "H"),
            (self.precise >= 1, "p"),
            (self.precise >= 2, "p"),
            (self.precise >= 3, "p"),
            (self.precise_max, "P"),
            (self.group_read, "S"),
            (self.pinned, "D"),
            (self.weak, "W"),
            (self.exclusive, "e"),
            (self.bpf, "b"),
        ];
        letters.iter().filter(|(on, _)| *on).try_for_each(|(_, letter)| f.write_str(letter))
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [(self.read, "r"), (self.write, "w"), (self.execute, "x")];
        letters.iter().filter(|(on, _)| *on).try_for_each(|(_, letter)| f.write_str(letter))
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Head::Name(name) => f.write_str(name),
            Head::Raw(config) => write!(f, "r{config:x}"),
            Head::Numeric { kind, config } => write!(f, "{kind}:{config:#x}"),
            Head::Tracepoint { system, event } => write!(f, "{system}:{event}"),
            Head::Breakpoint { addr, len, access } => {
                write!(f, "mem:{addr:#x}")?;
                if let Some(len) = len {
                    write!(f, "/{len}")?;
                }
                access.map_or(Ok(()), |access| write!(f, ":{access}"))
            }
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        match &self.value {
            None => Ok(()),
            Some(TermValue::Number(n)) => write!(f, "={n}"),
            Some(TermValue::Word(word)) => write!(f, "={word}"),
            Some(TermValue::Quoted(word)) => write!(f, "='{word}'"),
        }
    }
}

impl fmt::Display for EventSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.head)?;
        if let Some(terms) = &self.terms {
            f.write_str("/")?;
            for (index, term) in terms.iter().enumerate() {
                write!(f, "{}{term}", if index == 0 { "" } else { "," })?;
            }
            f.write_str("/")?;
        }
        match (self.modifiers.is_empty(), &self.terms) {
            (true, _) => Ok(()),
            (false, Some(_)) => write!(f, "{}", self.modifiers),
            (false, None) => write!(f, ":{}", self.modifiers),
        }
    }
}

impl fmt::Display for EventGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.braced {
            write!(f, "{}{{", self.name.as_deref().unwrap_or(""))?;
        }
        for (index, event) in self.events.iter().enumerate() {
            write!(f, "{}{event}", if index == 0 { "" } else { "," })?;
        }
        if self.braced {
            f.write_str("}")?;
            if !self.modifiers.is_empty() {
                write!(f, ":{}", self.modifiers)?;
            }
        }
        Ok(())
    }
}

/// Two groups are equal when they mean the same text, wherever it stood.
impl PartialEq for EventGroup {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.braced == other.braced
            && self.modifiers == other.modifiers
            && self.events == other.events
    }
}

impl PartialEq for EventSelector {
    fn eq(&self, other: &Self) -> bool {
        let terms = |event: &Self| -> Option<Vec<(String, Option<TermValue>)>> {
            event
                .terms
                .as_ref()
                .map(|terms| terms.iter().map(|t| (t.name.clone(), t.value.clone())).collect())
        };
        self.head == other.head && self.modifiers == other.modifiers && terms(self) == terms(other)
    }
}
