//! perf's options that a verb of kymo takes without effect, or refuses with what kymo has instead.
//!
//! Each verb has a table of them, a [`PerfOptionTable`]. [`PerfOptions`] of it stands in the verb's arguments, flattened.
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use std::fmt::Write as _;
use std::marker::PhantomData;

/// Whether an option has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfValue {
    /// It has none.
    None,
    /// It needs one.
    Required,
    /// It may have one, after an equal sign.
    Optional,
}

/// What kymo does with an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It changes nothing, for this reason.
    Accepted(&'static str),
    /// It ends the command with this sentence.
    Refused(&'static str),
}

/// An option of perf.
#[derive(Clone, Copy, Debug)]
pub struct PerfOption {
    /// Its long name, without dashes.
    pub long: &'static str,
    /// Its letter.
    pub short: Option<char>,
    /// Its value.
    pub value: PerfValue,
    /// What kymo does with it.
    pub treatment: Treatment,
}

impl PerfOption {
    /// An option that changes nothing.
    pub const fn accepted(long: &'static str, value: PerfValue, why: &'static str) -> PerfOption {
        PerfOption { long, short: None, value, treatment: Treatment::Accepted(why) }
    }

    /// An option that kymo has something else for.
    pub const fn refused(long: &'static str, value: PerfValue, instead: &'static str) -> PerfOption {
        PerfOption { long, short: None, value, treatment: Treatment::Refused(instead) }
    }

    /// With a letter.
    pub const fn short(self, letter: char) -> PerfOption {
        PerfOption { short: Some(letter), ..self }
    }

    /// As it is written.
    fn written(&self) -> String {
        let short = self.short.map_or(String::new(), |letter| format!("-{letter}, "));
        let value = match self.value {
            PerfValue::None => "",
            PerfValue::Required => " VALUE",
            PerfValue::Optional => "[=VALUE]",
        };
        format!("{short}--{}{value}", self.long)
    }
}

/// The table of a verb.
pub trait PerfOptionTable {
    /// The options, by their names.
    const OPTIONS: &'static [PerfOption];
}

/// The options of a table among the arguments of a verb: taken, or refused.
#[derive(Clone, Debug, Default)]
pub struct PerfOptions<T> {
    /// What to say of the first one that is refused.
    pub refusal: Option<String>,
    table: PhantomData<T>,
}

impl<T: PerfOptionTable> Args for PerfOptions<T> {
    fn augment_args(command: Command) -> Command {
        command.args(T::OPTIONS.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(option: &PerfOption) -> Arg {
    let arg = Arg::new(option.long).long(option.long).hide(true);
    let arg = match option.short {
        Some(letter) => arg.short(letter),
        None => arg,
    };
    match option.value {
        PerfValue::None => arg.action(ArgAction::Count),
        PerfValue::Required => arg.action(ArgAction::Append).allow_hyphen_values(true),
        PerfValue::Optional => {
            arg.action(ArgAction::Append).num_args(0..=1).require_equals(true).default_missing_value("")
        }
    }
}

impl<T: PerfOptionTable> FromArgMatches for PerfOptions<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |option: &&PerfOption| {
            matches.value_source(option.long) == Some(clap::parser::ValueSource::CommandLine)
        };
        let refusal = |option: &PerfOption| match option.treatment {
            Treatment::Refused(instead) => Some(format!("--{} is not in kymo: {instead}", option.long)),
            Treatment::Accepted(_) => None,
        };
        let refusal = T::OPTIONS.iter().filter(given).find_map(refusal);
        Ok(PerfOptions { refusal, table: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The part of a page of the book about the options of a table.
pub fn page(options: &[PerfOption]) -> String {
    let mut text = "| option of perf | in kymo |\n|---|---|\n".to_owned();
    for option in options {
        let what = match option.treatment {
            Treatment::Accepted(why) => format!("accepted, without effect: {why}"),
            Treatment::Refused(instead) => format!("refused: {instead}"),
        };
        // Writing into a String cannot fail.
        _ = writeln!(text, "| `{}` | {} |", option.written(), what.replace('|', "\\|").replace('<', "&lt;"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    struct SmallTable;
    impl PerfOptionTable for SmallTable {
        const OPTIONS: &'static [PerfOption] = &[
            PerfOption::accepted("affinity", PerfValue::Required, "threads are pinned anyway"),
            PerfOption::accepted("aio", PerfValue::Optional, "it writes so anyway").short('A'),
            PerfOption::refused("kcore", PerfValue::None, "use another"),
        ];
    }

    fn parse(words: &[&str]) -> Result<Option<String>, clap::Error> {
        let command = PerfOptions::<SmallTable>::augment_args(Command::new("test"));
        let matches = command.try_get_matches_from([&["test"], words].concat())?;
        PerfOptions::<SmallTable>::from_arg_matches(&matches).map(|options| options.refusal)
    }

    /// Checks that accepted options are taken with and without their values, and what is said of refused ones.
    #[test]
    fn accepted_and_refused() {
        assert_eq!(parse(&["--affinity", "node", "--aio", "-A=2", "--aio=3"]).unwrap(), None);
        assert_eq!(parse(&[]).unwrap(), None);
        assert_eq!(parse(&["--kcore"]).unwrap().unwrap(), "--kcore is not in kymo: use another");
        assert!(parse(&["--affinity"]).is_err());
        assert!(page(SmallTable::OPTIONS).contains("| `-A, --aio[=VALUE]` | accepted"));
    }
}
