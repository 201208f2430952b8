//! `-e` with what belongs to the event before it: `--filter` and `--exclude-perf`.
use crate::parse::parse_events;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use kymo_perf::machine::Machine;
use kymo_perf::selector::{self, Selected};

/// The events of a command line, in its order.
#[derive(Clone, Debug, Default)]
pub struct EventArgs {
    /// The values of `-e`.
    pub texts: Vec<String>,
    /// Conditions, each with the index of the value of `-e` before it.
    filters: Vec<(usize, EventFilter)>,
    /// A condition before any event.
    misplaced: Option<&'static str>,
}

/// A condition on the samples of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EventFilter {
    /// `--filter`: an expression of the kernel's.
    Expression(String),
    /// `--exclude-perf`: not what kymo itself does.
    ExcludeSelf,
}

impl EventFilter {
    fn option(&self) -> &'static str {
        match self {
            EventFilter::Expression(_) => "--filter",
            EventFilter::ExcludeSelf => "--exclude-perf",
        }
    }

    fn text(&self) -> String {
        match self {
            EventFilter::Expression(text) => text.clone(),
            EventFilter::ExcludeSelf => format!("common_pid != {}", std::process::id()),
        }
    }
}

const EVENT: &str = "event";
const FILTER: &str = "filter";
const EXCLUDE: &str = "exclude-perf";

impl Args for EventArgs {
    fn augment_args(command: Command) -> Command {
        command.args([
            Arg::new(EVENT).short('e').long(EVENT).value_name("EVENT").action(ArgAction::Append).help(
                "Which events, in perf's words: cycles, page-faults:u, sched:sched_switch, mem:0x1000/8:w, mem:VARIABLE:w (any place of kymo watch), probe:FUNCTION (any probe of kymo probe), {a,b}, cpu/event=0x3c/; may be given several times [default: record: cycles, or cpu-clock where there is no hardware counter; stat: perf's set]",
            ),
            Arg::new(FILTER).long(FILTER).value_name("EXPRESSION").action(ArgAction::Append).allow_hyphen_values(true).help(
                "Of the tracepoint before it (the last one of its -e) only hits of which this holds, in the kernel's words: 'prev_pid > 0 && prev_comm ~ \"ba*\"'; several must all hold",
            ),
            Arg::new(EXCLUDE).long(EXCLUDE).action(ArgAction::Count).help(
                "Of the tracepoint before it no hits of kymo itself",
            ),
        ])
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for EventArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<EventArgs, clap::Error> {
        let values = |name: &str| {
            let values = matches.get_many::<String>(name).into_iter().flatten().cloned();
            matches.indices_of(name).into_iter().flatten().zip(values).collect::<Vec<_>>()
        };
        let events = values(EVENT);
        let before = |at: usize| events.iter().filter(|(place, _)| *place < at).count();
        let mut filters: Vec<(usize, usize, EventFilter)> = Vec::new();
        let mut misplaced = None;
        let expressions = values(FILTER).into_iter().map(|(at, text)| (at, EventFilter::Expression(text)));
        let given = matches.get_count(EXCLUDE) > 0;
        // Of a flag that is given several times clap keeps the last place.
        let excluded = matches.index_of(EXCLUDE).filter(|_| given).map(|at| (at, EventFilter::ExcludeSelf));
        for (at, filter) in expressions.chain(excluded) {
            let Some(event) = before(at).checked_sub(1) else {
                misplaced = Some(filter.option());
                continue;
            };
            filters.push((at, event, filter));
        }
        filters.sort_by_key(|(at, ..)| *at);
        let filters = filters.into_iter().map(|(_, event, filter)| (event, filter)).collect();
        Ok(EventArgs { texts: events.into_iter().map(|(_, text)| text).collect(), filters, misplaced })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl EventArgs {
    /// Events without conditions.
    pub fn new(texts: Vec<String>) -> EventArgs {
        EventArgs { texts, ..EventArgs::default() }
    }

    /// Whether there is no condition.
    pub fn is_plain(&self) -> bool {
        self.filters.is_empty() && self.misplaced.is_none()
    }

    /// The events of `texts`, which stand for those that were typed, with their conditions.
    ///
    /// # Errors
    /// What is wrong with the first word that names none, or that an event has no conditions.
    pub fn select(&self, texts: &[String], machine: &Machine) -> Result<Vec<Selected>, String> {
        if let Some(option) = self.misplaced {
            return Err(format!("{option} belongs to the tracepoint before it: name one with -e first"));
        }
        let mut events: Vec<Selected> = Vec::new();
        for (index, text) in texts.iter().enumerate() {
            let first = events.len();
            let found = parse_events(std::slice::from_ref(text), machine)?;
            events.extend(found.into_iter().map(|event| Selected { leader: event.leader + first, ..event }));
            let mut own = self.filters.iter().filter(|(event, _)| *event == index).peekable();
            if own.peek().is_none() {
                continue;
            }
            let last = last_events(text, machine)?;
            let from = events.len().saturating_sub(last);
            for (_, filter) in own {
                for event in &mut events[from..] {
                    if event.tracepoint.is_none() {
                        return Err(format!(
                            "{} is for tracepoints, and {} is none; `kymo report` filters samples of all events",
                            filter.option(),
                            event.name
                        ));
                    }
                    event.add_filter(&filter.text());
                }
            }
        }
        Ok(events)
    }
}

/// How many events the last word of a selector names: several where it is a glob.
fn last_events(text: &str, machine: &Machine) -> Result<usize, String> {
    let groups = selector::parse(text).map_err(|error| error.to_string())?;
    match groups.last() {
        Some(group) if !group.braced => {
            let last = selector::resolve(std::slice::from_ref(group), machine);
            last.map(|events| events.len()).map_err(|error| error.to_string())
        }
        _ => Ok(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<EventArgs, clap::Error> {
        let command = EventArgs::augment_args(Command::new("test"));
        let matches = command.try_get_matches_from([&["test"], words].concat())?;
        EventArgs::from_arg_matches(&matches)
    }

    /// Checks that each condition belongs to the event before it, and that none may come first.
    #[test]
    fn conditions_belong_to_the_event_before() {
        let args = parse(&[
            "-e",
            "a:b",
            "--filter",
            "x == 1",
            "--event=c:d",
            "--exclude-perf",
            "--filter",
            "y < -1",
        ]);
        let args = args.unwrap();
        let expression = |text: &str| EventFilter::Expression(text.into());
        assert_eq!(args.texts, ["a:b", "c:d"]);
        assert_eq!(
            args.filters,
            [(0, expression("x == 1")), (1, EventFilter::ExcludeSelf), (1, expression("y < -1"))]
        );
        let early = parse(&["--filter", "x == 1", "-e", "cs"]).unwrap();
        assert!(early.select(&early.texts, &Machine::here()).unwrap_err().contains("--filter belongs to"));
        assert!(parse(&[]).unwrap().texts.is_empty());
    }

    /// Checks that a condition of an event that is no tracepoint is refused by name.
    #[test]
    fn conditions_are_for_tracepoints() {
        let args = parse(&["-e", "cpu-clock", "--filter", "x == 1"]).unwrap();
        let error = args.select(&args.texts, &Machine::here()).unwrap_err();
        assert!(error.contains("--filter is for tracepoints, and cpu-clock is none"), "{error}");
    }
}
