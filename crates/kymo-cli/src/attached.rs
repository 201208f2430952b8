//! Values that are written right behind a letter, as in `-z9` and `-Iax,ip`: perf takes them so, and clap wants an equal
//! sign where a value may be left out.
use clap::{Arg, Command};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The words of a command line with an equal sign behind each letter whose value may be left out, where there is a value.
/// What comes behind the verb's own options stays as it is.
pub fn with_equal_signs(words: impl IntoIterator<Item = OsString>, program: &Command) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    let verb = words.get(1).and_then(|word| program.find_subcommand(word)).cloned();
    let has_attached = |arg: &Arg| arg.is_require_equals_set() || arg.is_allow_hyphen_values_set();
    let Some(mut verb) = verb.filter(|verb| verb.get_arguments().any(has_attached)) else { return words };
    let mut at = 2;
    while let Some(word) = words.get(at) {
        let bytes = word.as_bytes();
        let next = match bytes {
            b"--" => return words,
            [b'-', b'-', long @ ..] => long_option(&verb, long),
            [b'-', letters @ ..] if !letters.is_empty() => {
                let (rewritten, next) = short_options(&verb, letters);
                if let Some(rewritten) = rewritten {
                    words.splice(at..=at, rewritten);
                }
                next
            }
            // A verb's own verb, or the command, whose words are its own.
            _ => match verb.find_subcommand(word).cloned() {
                Some(inner) => {
                    verb = inner;
                    false
                }
                None => return words,
            },
        };
        at += if next { 2 } else { 1 };
    }
    words
}

/// Whether the next word is the option's value.
fn takes_next(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !arg.is_require_equals_set()
}

fn long_option(verb: &Command, long: &[u8]) -> bool {
    let named = |arg: &&Arg| arg.get_long().is_some_and(|name| name.as_bytes() == long);
    verb.get_arguments().find(named).is_some_and(takes_next)
}

/// The words as they should be, if not as they are, and whether the last one's value is the next
/// word.
fn short_options(verb: &Command, letters: &[u8]) -> (Option<Vec<OsString>>, bool) {
    for (at, letter) in letters.iter().enumerate() {
        let named = |arg: &&Arg| arg.get_short() == Some(char::from(*letter));
        let Some(arg) = verb.get_arguments().find(named) else { return (None, false) };
        if !arg.get_action().takes_values() {
            continue;
        }
        let value = &letters[at + 1..];
        // `-F-event`, which clap takes for more letters.
        if value.starts_with(b"-") && arg.is_allow_hyphen_values_set() {
            let option = [b"-", &letters[..=at]].concat();
            return (Some(vec![OsString::from_vec(option), OsString::from_vec(value.to_vec())]), true);
        }
        if !arg.is_require_equals_set() {
            return (None, value.is_empty());
        }
        if value.is_empty() || value.starts_with(b"=") {
            return (None, false);
        }
        let word = [b"-", &letters[..=at], b"=", value].concat();
        return (Some(vec![OsString::from_vec(word)]), false);
    }
    (None, false)
}

#[cfg(test)]
mod tests {
    use super::with_equal_signs;
    use clap::{Arg, ArgAction, Command};

    fn words(line: &str) -> String {
        let optional = |name: &'static str, letter| {
            Arg::new(name).short(letter).num_args(0..=1).require_equals(true).default_missing_value("")
        };
        let verb = Command::new("record").args([
            optional("level", 'z'),
            optional("regs", 'I'),
            Arg::new("output").short('o').long("output"),
            Arg::new("fields").short('F').allow_hyphen_values(true),
            Arg::new("all").short('a').action(ArgAction::SetTrue),
        ]);
        let program = Command::new("kymo").subcommand(verb);
        let words = with_equal_signs(line.split(' ').map(Into::into), &program);
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    /// Checks values behind letters, alone and in clusters, and that values of other options and the command stay.
    #[test]
    fn values_behind_letters() {
        let cases = [
            ("kymo record -z9 -Iax,ip ls", "kymo record -z=9 -I=ax,ip ls"),
            ("kymo record -az9 -I?", "kymo record -az=9 -I=?"),
            ("kymo record -z=9 -z -I ls", "kymo record -z=9 -z -I ls"),
            ("kymo record -o -z9 ls -z9", "kymo record -o -z9 ls -z9"),
            ("kymo record --output -z9 -z8", "kymo record --output -z9 -z=8"),
            ("kymo record --output=x -z8 -- -z8", "kymo record --output=x -z=8 -- -z8"),
            ("kymo record -oz9 -q -z8", "kymo record -oz9 -q -z=8"),
            ("kymo record -aF-ip,-sym -z8", "kymo record -aF -ip,-sym -z=8"),
            ("kymo other -z9", "kymo other -z9"),
            ("kymo", "kymo"),
        ];
        for (line, expected) in cases {
            assert_eq!(words(line), expected);
        }
    }
}
