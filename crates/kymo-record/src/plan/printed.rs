//! A plan as text, for `--dry-run`.
use super::RecordingPlan;
use crate::scope_choice::Choice;
use kymo_perf::evlist;
use kymo_perf::sys::{self, Perf};
use std::fmt;

impl fmt::Display for RecordingPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let targets = &self.open.targets;
        writeln!(f, "events:")?;
        for event in &self.open.events {
            let attr = &event.attr;
            let rate = if attr.freq() == 1 { "per second" } else { "events per sample" };
            write!(f, "  {} ({} {rate})", event.name, attr.sample_period)?;
            writeln!(
                f,
                " type {} config {:#x} sample_type {:#x} read_format {:#x}{}{}{}{}",
                attr.type_,
                attr.config,
                attr.sample_type,
                attr.read_format,
                if attr.inherit() == 1 { " inherit" } else { "" },
                if attr.enable_on_exec() == 1 { " enable_on_exec" } else { "" },
                if attr.mmap2() == 1 { " tracking" } else { "" },
                if event.leader.is_some() { " member" } else { "" },
            )?;
            if attr.sample_type & Perf::SAMPLE_STACK_USER != 0 {
                let what = if self.reduces() { "unwound while recording" } else { "kept as they are" };
                writeln!(f, "    with {} bytes of user stack, {what}", attr.sample_stack_user)?;
            }
        }
        writeln!(f, "scope: {}", self.scope)?;
        for Choice { scope, verdict } in &self.scopes {
            let chosen = if *scope == self.scope { '*' } else { ' ' };
            match verdict {
                Ok(estimate) => writeln!(f, "  {chosen} {}: {estimate}", scope.name())?,
                Err(reason) => writeln!(f, "  - {}: {reason}", scope.name())?,
            }
        }
        match (self.observe_command, self.system()) {
            (true, _) => writeln!(f, "tasks: the command and its children")?,
            (_, true) => match &self.options.targets.cgroup {
                Some(name) => writeln!(f, "tasks: those in the cgroup {name}")?,
                None => writeln!(f, "tasks: all")?,
            },
            _ => {
                let tasks = &self.observed.tasks;
                writeln!(f, "tasks: {} ({:?})", tasks.len(), Shortened(tasks))?;
            }
        }
        if targets.cpus != [sys::ANY] {
            writeln!(f, "cpus: {:?}", Shortened(&targets.cpus))?;
        }
        let rings = if targets.cpus == [sys::ANY] { targets.tasks.len() } else { targets.cpus.len() };
        writeln!(
            f,
            "rings: {rings} of {} KiB{}, {} descriptors",
            self.ring_pages * sys::page_size() / 1024,
            if self.ring_may_shrink { " (or less, if that is refused)" } else { "" },
            self.descriptors()
        )?;
        if !targets.tracked_cpus.is_empty() {
            let kib = evlist::SIDE_RING_PAGES.min(self.ring_pages) * sys::page_size() / 1024;
            writeln!(f, "  the other CPUs have rings of {kib} KiB for mappings and names of tasks")?;
        }
        if self.keeps_newest() {
            let kib = self.drained_pages() * sys::page_size() / 1024;
            writeln!(
                f,
                "  they keep the newest records for snapshots; beside each one of {kib} KiB for tasks and mappings"
            )?;
        }
        writeln!(f, "output: {}", self.options.output)?;
        if let Some(level) = self.options.compress {
            writeln!(f, "compression: zstd level {level}")?;
        }
        if !self.command.is_empty() {
            let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
            writeln!(f, "command: {}", words.join(" "))?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}

/// A list of numbers of which only the first few are shown.
struct Shortened<'a>(&'a [i32]);

impl fmt::Debug for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, number) in self.0.iter().take(8).enumerate() {
            write!(f, "{}{number}", if i == 0 { "" } else { " " })?;
        }
        if self.0.len() > 8 { f.write_str(" ..") } else { Ok(()) }
    }
}
