//! `--if`: what is typed, and what it means at each site.
//!
//! ```text
//!  arg1 > 4096 && arg2 != 0 || ret < 0      arg1..arg6: integer arguments    $rdi: a register    ret: what the function returns
//! ```
//! Registers are 64 bits wide; `ret:s32` is the lower half with a sign, which is an `int`.
//! `&&` binds before `||`. Tests of what is known at the entry and of what is known at the return stand in different parts of an `&&`.

use kymo_perf::bpf::uprobe::{Compare, Condition, Operand, Register, Test};
use kymo_profile::symbols::sites::{Site, SiteKind};

/// One comparison, as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    name: String,
    /// Length in bytes, and whether it has a sign; as told, or by what it is compared with.
    width: Option<(u8, bool)>,
    compare: Compare,
    /// As the bits of a signed number where it is below 0.
    value: u64,
    negative: bool,
}

/// A condition as typed: any of the lists, all of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Typed(Vec<Vec<Part>>);

/// Reads what was typed.
pub(crate) fn parse(text: &str) -> Result<Typed, String> {
    let any = text.split("||").map(|all| all.split("&&").map(part).collect());
    Ok(Typed(any.collect::<Result<_, String>>()?))
}

fn part(text: &str) -> Result<Part, String> {
    const OPERATORS: [(&str, Compare); 6] = [
        ("==", Compare::Equal),
        ("!=", Compare::NotEqual),
        ("<=", Compare::LessEqual),
        (">=", Compare::GreaterEqual),
        ("<", Compare::Less),
        (">", Compare::Greater),
    ];
    let text = text.trim();
    let wrong = || format!("`{text}` is no comparison: write for example 'arg1 > 4096' or 'ret < 0'");
    let (at, sign, compare) = OPERATORS
        .iter()
        .filter_map(|&(sign, compare)| Some((text.find(sign)?, sign, compare)))
        .min_by_key(|&(at, sign, _)| (at, std::cmp::Reverse(sign.len())))
        .ok_or_else(wrong)?;
    let (name, value) = (text[..at].trim(), text[at + sign.len()..].trim());
    let (name, width) = match name.split_once(':') {
        None => (name, None),
        Some((name, width)) => (name, Some(self::width(width.trim()).ok_or_else(wrong)?)),
    };
    let plain = name.trim_start_matches('$');
    if plain.is_empty() || !plain.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(wrong());
    }
    let (digits, negative) = match value.strip_prefix('-') {
        Some(digits) => (digits, true),
        None => (value, false),
    };
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => digits.parse().ok(),
    };
    let number: u64 = number.ok_or_else(|| format!("`{value}` in `{text}` is no number"))?;
    let value = if negative { number.wrapping_neg() } else { number };
    Ok(Part { name: name.to_owned(), width, compare, value, negative })
}

/// `s32`: a sign and a number of bits.
fn width(text: &str) -> Option<(u8, bool)> {
    let signed = match text.get(..1)? {
        "s" => true,
        "u" => false,
        _ => return None,
    };
    let bits: u8 = text.get(1..)?.parse().ok()?;
    matches!(bits, 8 | 16 | 32 | 64).then_some((bits / 8, signed))
}

impl Typed {
    /// What it means at a site: for hits, and for returns.
    pub(crate) fn of(&self, site: &Site) -> Result<(Condition, Condition), String> {
        let (mut entry, mut end): (Condition, Condition) = (Vec::new(), Vec::new());
        for all in &self.0 {
            let (at_end, at_entry): (Vec<&Part>, Vec<&Part>) =
                all.iter().partition(|part| part.name == "ret");
            if !at_end.is_empty() && site.kind != SiteKind::Function {
                return Err(format!("--if: `{}` is no function, so it returns nothing", site.name));
            }
            let tests =
                |parts: &[&Part]| parts.iter().map(|part| part.test(site)).collect::<Result<Vec<_>, _>>();
            let (at_entry, at_end) = (tests(&at_entry)?, tests(&at_end)?);
            // Of `a || ret < 0` nothing is known at the entry that would rule a hit out.
            if self.0.len() > 1 && !at_end.is_empty() {
                return Err("--if: `ret` cannot stand in an `||`".to_owned());
            }
            if !at_entry.is_empty() {
                entry.push(at_entry);
            }
            if !at_end.is_empty() {
                end.push(at_end);
            }
        }
        Ok((entry, end))
    }

    /// Whether it asks for what a function returns.
    pub(crate) fn asks_returns(&self) -> bool {
        self.0.iter().flatten().any(|part| part.name == "ret")
    }
}

impl Part {
    fn test(&self, site: &Site) -> Result<Test, String> {
        let register = match self.name.as_str() {
            "ret" => Some(Register::result()),
            name => match name.strip_prefix("arg").and_then(|number| number.parse::<usize>().ok()) {
                Some(number) => number.checked_sub(1).and_then(Register::argument),
                None => Register::named(name.trim_start_matches('$')),
            },
        };
        let register = register.ok_or_else(|| {
            format!(
                "--if: `{}` is not known at {}: use arg1 to arg6, ret, or a register such as $rdi",
                self.name, site.name
            )
        })?;
        // Compared with a number below 0, or as what a function returns, registers have signs.
        let (bytes, signed) = self.width.unwrap_or((8, self.negative || self.name == "ret"));
        let operand = Operand { register, steps: Vec::new(), bytes, signed };
        Ok(Test { operand, compare: self.compare, value: self.value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks precedence, signs, bases and the sentences about what is wrong.
    #[test]
    fn typed() {
        let parsed = parse("arg1>=0x10 && $rsi != -1||arg2==3").unwrap();
        let shape: Vec<Vec<(&str, Compare, u64)>> = parsed
            .0
            .iter()
            .map(|all| all.iter().map(|p| (p.name.as_str(), p.compare, p.value)).collect())
            .collect();
        let expected = vec![
            vec![("arg1", Compare::GreaterEqual, 16), ("$rsi", Compare::NotEqual, u64::MAX)],
            vec![("arg2", Compare::Equal, 3)],
        ];
        assert_eq!(shape, expected);
        let widths: Vec<_> =
            parse("ret:s32 < 0 && arg1:u8 == 3").unwrap().0[0].iter().map(|part| part.width).collect();
        assert_eq!(widths, [Some((4, true)), Some((1, false))]);
        for wrong in [
            "",
            "arg1:s7 > 1",
            "arg1:x32 > 1",
            "arg1",
            "arg1 > ",
            "> 4",
            "arg1 > four",
            "a b > 1",
            "arg1 > 1 &&",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
