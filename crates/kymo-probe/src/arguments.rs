//! Arguments and results of functions, by name or by register: what is typed, and what it means at each site.
//!
//! ```text
//!  parse(req->uri, len:u16, ret)   --resolve--> Values { entry: [uri, len], back: [ret] }   --kernel_fields--> `req_uri=+0(+8(%di)):string len=%si:u16`
//! ```
//! `arg1` to `arg6` and registers (`$rdi`) need no debug information; all else is looked up in it. What begins with `ret` is known at the return.
use kymo_core::probe::value::{self, Operand};
use kymo_perf::bpf::uprobe::{self, MOST_VALUES};
use kymo_symbols::place::ValueKind;
use kymo_symbols::place::call::{
    CallError, Fetch, Part, Register, Routine, Routines, Text, marker_arguments,
};
use kymo_symbols::sites::{ProbeModule, Site, SiteKind};
use std::sync::Arc;

/// The kernel's longest name of a field.
const NAME_BYTES: usize = 31;
/// Fields of one event that the kernel is asked for.
const MOST_FIELDS: usize = 32;

/// Stands for all parameters in a list, as in perf.
const ALL: &str = "$params";

/// The type of what has none.
pub const REGISTER: &str = "a register";

/// What is read of one site's hits.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// At the entry, each with the name that it is shown by.
    pub entry: Vec<Fetch>,
    /// At the return.
    pub back: Vec<Fetch>,
    /// What cannot be read, and why.
    pub words: Vec<String>,
}

/// Asks about the functions at sites, in their order. Debug information is read once for each module.
pub fn each<R>(
    sites: &[Site],
    mut ask: impl FnMut(usize, &Site, Result<&Routine<'_>, CallError>) -> R,
) -> Vec<R> {
    let mut found: Vec<Option<R>> = sites.iter().map(|_| None).collect();
    let mut modules: Vec<&Arc<ProbeModule>> = Vec::new();
    for site in sites {
        if !modules.iter().any(|known| Arc::ptr_eq(known, &site.module)) {
            modules.push(&site.module);
        }
    }
    for module in modules {
        let name = module.name().into_owned();
        let missing = |_| CallError::NoDebugInfo { module: name.clone() };
        let described = module.described().map_err(missing);
        let routines = described.as_ref().map_err(Clone::clone).and_then(Routines::of);
        let own = sites.iter().enumerate().filter(|(_, site)| Arc::ptr_eq(&site.module, module));
        for (number, site) in own {
            let symbol = site.symbol.as_deref().unwrap_or(&site.name);
            let routine = match (&routines, &site.kind) {
                (Err(error), _) => Err(error.clone()),
                (Ok(routines), SiteKind::Function) => routines.at(site.svma, symbol),
                (Ok(_), _) => {
                    Err(CallError::NoFunction { module: name.clone(), function: site.name.clone() })
                }
            };
            found[number] = Some(match &routine {
                Ok(routine) => ask(number, site, Ok(routine)),
                Err(error) => ask(number, site, Err(error.clone())),
            });
        }
    }
    found.into_iter().flatten().collect()
}

/// Whether an expression is known at the return only.
pub fn is_result(expression: &str) -> bool {
    let plain = expression.trim_start_matches(['*', '(', ' ']);
    let end = plain.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '$').unwrap_or(plain.len());
    matches!(&plain[..end], "ret" | "$ret" | "$retval")
}

/// Takes `:u8` and the like off an expression.
pub(crate) fn split_kind(expression: &str) -> (&str, Option<&str>) {
    let Some((before, kind)) = expression.rsplit_once(':') else { return (expression, None) };
    let is_kind = kind == "string"
        || matches!(kind.split_at_checked(1), Some(("u" | "s" | "x", bits)) if matches!(bits, "8" | "16" | "32" | "64"));
    if is_kind && !before.ends_with(':') { (before.trim_end(), Some(kind)) } else { (expression, None) }
}

/// A register by name: `arg1`, `$rdi`, `ret` where nothing is known of its type.
pub fn register(name: &str) -> Option<Register> {
    if let Some(number) = name.strip_prefix("arg").and_then(|number| number.parse::<usize>().ok()) {
        return number.checked_sub(1).and_then(Register::argument);
    }
    match name {
        "$retval" | "$ret" => Some(Register::result()),
        _ => Register::named(name.strip_prefix('$')?),
    }
}

/// Looks whether an argument may be named by its number (`arg1`) at a site, where the function's
/// parameters are these.
///
/// # Errors
/// That Go passes arguments otherwise than the processor's ABI says: in registers of its own, and
/// before 1.17 in memory.
pub fn check_numbered(
    site: &Site,
    routine: &Result<&Routine<'_>, CallError>,
    expression: &str,
) -> Result<(), String> {
    let (name, _) = split_kind(expression);
    let is_numbered = name.starts_with("arg") && register(name).is_some();
    let is_parameter = matches!(routine, Ok(routine) if routine.names().iter().any(|known| known == name));
    let is_marker = matches!(site.kind, SiteKind::Marker { .. });
    if is_numbered && !is_parameter && !is_marker && site.is_go() {
        return Err(format!(
            "`{name}` is not known: Go passes arguments in registers of its own; name the parameter, or a register ($rax)"
        ));
    }
    Ok(())
}

/// A whole register, as a value.
fn plain(name: &str, register: Register) -> Fetch {
    Fetch {
        name: name.to_owned(),
        register,
        steps: Vec::new(),
        len_bytes: 8,
        bits: None,
        kind: ValueKind::Pointer,
        text: None,
        type_name: REGISTER.to_owned(),
    }
}

/// An expression that is shown as it is typed.
fn named(expression: &str) -> Part {
    Part { name: expression.to_owned(), expression: expression.to_owned() }
}

/// As `kind` says, whatever the type is.
fn as_kind(fetch: Fetch, kind: &str) -> Fetch {
    if kind == "string" {
        // What was read is an address.
        let text = Text { offset: 0, length: None, most: None };
        return Fetch { text: fetch.text.clone().or(Some(text)), ..fetch };
    }
    let bits: u8 = kind[1..].parse().unwrap_or(64);
    let own = match &kind[..1] {
        "s" => ValueKind::Signed,
        "x" => ValueKind::Pointer,
        _ => ValueKind::Unsigned,
    };
    // A text's address may be what is wanted.
    let offset = fetch.text.as_ref().map_or(0, |text| text.offset);
    Fetch { len_bytes: bits / 8, kind: own, text: None, bits: fetch.bits.filter(|_| offset == 0), ..fetch }
}

/// What one expression means at a marker, whose arguments are `arg1` and so on, wherever its compiler has put them.
fn of_marker(arguments: &str, part: &Part) -> Result<Fetch, String> {
    let (expression, kind) = split_kind(&part.expression);
    let number = expression.strip_prefix("arg").and_then(|number| number.parse::<usize>().ok());
    let fetch = match number {
        Some(number) => {
            let mut all = marker_arguments(arguments);
            if number == 0 || number > all.len() {
                return Err(match all.len() {
                    0 => "the marker has no arguments".to_owned(),
                    1 => "the marker has one argument, arg1".to_owned(),
                    count => format!("the marker has the arguments arg1 to arg{count}"),
                });
            }
            all.swap_remove(number - 1)?
        }
        None => match expression.starts_with('$').then(|| register(expression)).flatten() {
            Some(register) => plain(&part.name, register),
            None => {
                return Err(format!(
                    "`{expression}` means nothing at a marker: its arguments are arg1, arg2 and so on, and $rdi is a register"
                ));
            }
        },
    };
    let fetch = kind.map_or(fetch.clone(), |kind| as_kind(fetch, kind));
    Ok(Fetch { name: part.name.clone(), ..fetch })
}

/// What one expression means at a site, in the function `routine`; records become their fields where `spread`.
fn resolve_one(
    kind: &SiteKind,
    routine: &Result<&Routine<'_>, CallError>,
    part: &Part,
    spread: bool,
) -> Result<Vec<Fetch>, String> {
    if let SiteKind::Marker { arguments } = kind {
        return of_marker(arguments, part).map(|fetch| vec![fetch]);
    }
    let (expression, typed) = split_kind(&part.expression);
    let known = match routine {
        Ok(routine) if !routine.names().iter().any(|name| name == expression) => register(expression),
        Ok(_) => None,
        Err(_) => register(expression).or_else(|| (expression == "ret").then(Register::result)),
    };
    let mut found = match (known, routine) {
        (Some(register), _) => vec![plain(&part.name, register)],
        (None, Ok(routine)) if spread => routine.fetch_all(expression).map_err(|error| error.to_string())?,
        (None, Ok(routine)) => vec![routine.fetch(expression).map_err(|error| error.to_string())?],
        (None, Err(error)) => return Err(error.to_string()),
    };
    if let Some(kind) = typed {
        found = found.into_iter().map(|fetch| as_kind(fetch, kind)).collect();
    }
    if let [one] = &mut found[..] {
        one.name.clone_from(&part.name);
    }
    if let Some(vector) = found.iter().find(|fetch| fetch.register.general().is_none()) {
        return Err(format!(
            "`{}` is in {}, and the kernel tells general registers only at a hit",
            vector.name, vector.register
        ));
    }
    Ok(found)
}

/// What a list of expressions means at a site.
///
/// # Errors
/// A sentence about the first that means nothing there.
pub fn listed(
    site: &Site,
    routine: &Result<&Routine<'_>, CallError>,
    parts: &[Part],
) -> Result<Values, String> {
    let mut values = Values::default();
    for part in parts {
        if part.expression == ALL {
            let all = everything(site, routine, false);
            values.entry.extend(all.entry);
            values.words.extend(all.words);
            continue;
        }
        check_numbered(site, routine, &part.expression)?;
        let found = resolve_one(&site.kind, routine, part, true)?;
        let list = if is_result(&part.expression) { &mut values.back } else { &mut values.entry };
        list.extend(found);
    }
    Ok(values)
}

/// All that a function takes; and what it returns, where `returns`; all that a marker tells. What cannot be read is among the words.
pub fn everything(site: &Site, routine: &Result<&Routine<'_>, CallError>, returns: bool) -> Values {
    let mut values = Values::default();
    if let SiteKind::Marker { arguments } = &site.kind {
        for found in marker_arguments(arguments) {
            match found {
                Ok(fetch) => values.entry.push(fetch),
                Err(why) => values.words.push(format!("{}: {why}", site.name)),
            }
        }
        return values;
    }
    let routine = match routine {
        Ok(routine) => routine,
        Err(error) => {
            values.words.push(error.to_string());
            let known = if site.is_go() { 0 } else { 3 };
            let registers = (1..=known).filter_map(|number| Some((number, Register::argument(number - 1)?)));
            values.entry.extend(registers.map(|(number, register)| plain(&format!("arg{number}"), register)));
            if returns {
                values.back.push(plain("ret", Register::result()));
            }
            return values;
        }
    };
    for found in routine.everything() {
        match found {
            Ok(fetch) if fetch.register.general().is_some() => values.entry.push(fetch),
            Ok(fetch) => values.words.push(format!(
                "`{}` of {} is not shown: it is in {}, and the kernel tells general registers only",
                fetch.name,
                routine.name(),
                fetch.register
            )),
            Err(error) => values.words.push(error.to_string()),
        }
    }
    if returns && routine.return_type().is_some() {
        match resolve_one(&site.kind, &Ok(routine), &named("ret"), true) {
            Ok(found) => values.back.extend(found),
            Err(error) => values.words.push(error),
        }
    }
    values
}

/// One expression at a site, as `--if` knows it.
pub fn value(
    kind: &SiteKind,
    routine: &Result<&Routine<'_>, CallError>,
    expression: &str,
) -> Result<Fetch, String> {
    let mut found = resolve_one(kind, routine, &named(expression), false)?;
    found.pop().ok_or_else(|| format!("`{expression}` has no value"))
}

/// A number as the kernel's programs read it.
pub fn operand(fetch: &Fetch) -> Operand {
    let name = fetch.register.general().unwrap_or("rax");
    Operand {
        // Registers of the machine that we are on; elsewhere nothing has a name.
        register: value::register::named(name).unwrap_or(value::register::RESULT),
        steps: fetch.steps.clone(),
        bytes: fetch.len_bytes,
        signed: fetch.is_signed(),
        bits: fetch.bits,
    }
}

/// A value as the kernel's programs tell it.
pub fn told(fetch: &Fetch) -> uprobe::Value {
    match &fetch.text {
        None => uprobe::Value::Number(operand(fetch)),
        Some(text) => uprobe::Value::Text {
            address: operand(fetch),
            offset: text.offset,
            length: text.length.as_deref().map(operand),
            most: text.most,
        },
    }
}

/// What is told of each hit at sites: the list that was typed for it, or, with `all`, everything. With `returns`, what is returned, too.
/// What cannot be told is among the words.
///
/// # Errors
/// A sentence about the first expression, if it means nothing at any site.
pub fn of_sites(
    sites: &[Site],
    asked: &[Option<Vec<Part>>],
    all: bool,
    returns: bool,
    words: &mut Vec<String>,
) -> Result<Vec<Option<Values>>, String> {
    if !all && asked.iter().all(Option::is_none) {
        return Ok(Vec::new());
    }
    let each: Vec<Result<Option<Values>, String>> = each(sites, |number, site, routine| {
        let is_function = site.kind == SiteKind::Function;
        let is_marker = matches!(site.kind, SiteKind::Marker { .. });
        let mut values = match asked.get(number).and_then(Option::as_ref) {
            Some(parts) => {
                let mut values =
                    listed(site, &routine, parts).map_err(|why| format!("{}: {why}", site.name))?;
                if returns && is_function && values.back.is_empty() {
                    values.back = result(site, &routine);
                }
                values
            }
            None if all && (is_function || is_marker) => everything(site, &routine, returns),
            None if all => Values::default(),
            None => return Ok(None),
        };
        values.entry.truncate(MOST_VALUES);
        values.back.truncate(MOST_VALUES);
        Ok(Some(values))
    });
    // Of many functions some may have no such parameter; if none has, it is a mistake.
    if each.iter().all(Result::is_err)
        && let Some(Err(error)) = each.first()
    {
        return Err(error.clone());
    }
    let mut said = |found: Result<Option<Values>, String>| match found {
        Ok(values) => values,
        Err(word) => {
            words.push(word);
            None
        }
    };
    let values: Vec<Option<Values>> = each.into_iter().map(&mut said).collect();
    for word in values.iter().flatten().flat_map(|values| &values.words) {
        if !words.contains(word) {
            words.push(word.clone());
        }
    }
    Ok(values)
}

/// What a function returns, as far as it can be told.
fn result(site: &Site, routine: &Result<&Routine<'_>, CallError>) -> Vec<Fetch> {
    match routine {
        Err(_) => vec![plain("ret", Register::result())],
        Ok(_) => resolve_one(&site.kind, routine, &named("ret"), true).unwrap_or_default(),
    }
}

/// The kernel's words for the fields of an event.
pub(crate) fn kernel_fields(fetches: &[Fetch]) -> String {
    let mut names: Vec<String> = Vec::new();
    let mut words = Vec::new();
    for fetch in fetches.iter().take(MOST_FIELDS) {
        let mut name = |wanted: &str| {
            let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
            let mut name: String = wanted.trim_start_matches(['*', '(', '$']).chars().map(plain).collect();
            while name.contains("__") {
                name = name.replace("__", "_");
            }
            name.truncate(NAME_BYTES - 3);
            let mut name = name.trim_matches('_').to_owned();
            // Every event has fields of these names, or the kernel takes them for something else.
            let is_taken = name.starts_with("common_")
                || name.is_empty()
                || name.starts_with(|c: char| c.is_ascii_digit());
            if is_taken {
                name.insert_str(0, "a_");
            }
            let free = (1..)
                .map(|number| if number == 1 { name.clone() } else { format!("{name}_{number}") })
                .find(|name| !names.contains(name))
                .unwrap_or(name);
            names.push(free.clone());
            free
        };
        words.push(format!("{}={}", name(&fetch.name), kernel_word(fetch)));
        if let Some(length) = fetch.text.as_ref().and_then(|text| text.length.as_deref()) {
            words.push(format!("{}={}", name(&format!("{}_len", fetch.name)), kernel_word(length)));
        }
    }
    words.join(" ")
}

/// How a number in an event is printed. The kernel's events and those of programs have one style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberStyle {
    /// Decimal, with a sign: `s32` in the kernel's words.
    Signed,
    /// Decimal, without a sign: `u32`.
    Unsigned,
    /// Hexadecimal, for addresses and what has no type: `x32`.
    Hexadecimal,
}

impl NumberStyle {
    /// The style of a value, by its type.
    pub(crate) fn of(fetch: &Fetch) -> NumberStyle {
        match &fetch.kind {
            ValueKind::Pointer | ValueKind::Bytes | ValueKind::Float => NumberStyle::Hexadecimal,
            _ if fetch.is_signed() => NumberStyle::Signed,
            _ => NumberStyle::Unsigned,
        }
    }
}

fn kernel_word(fetch: &Fetch) -> String {
    let name = fetch.register.general().unwrap_or("rax");
    let mut word = format!(
        "%{}",
        name.strip_prefix('r').filter(|rest| !rest.starts_with(|c: char| c.is_ascii_digit())).unwrap_or(name)
    );
    for step in &fetch.steps {
        word = format!("{step:+}({word})");
    }
    let bits = u32::from(fetch.len_bytes) * 8;
    let kind = match (&fetch.text, fetch.bits) {
        (Some(text), _) => {
            word = format!("{:+}({word})", text.offset);
            "string".to_owned()
        }
        (None, Some((first, width))) => format!("b{width}@{first}/{bits}"),
        (None, None) => match NumberStyle::of(fetch) {
            NumberStyle::Signed => format!("s{bits}"),
            NumberStyle::Unsigned => format!("u{bits}"),
            NumberStyle::Hexadecimal => format!("x{bits}"),
        },
    };
    format!("{word}:{kind}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetch(name: &str, steps: &[i32], len_bytes: u8, kind: ValueKind) -> Fetch {
        let register = Register::argument(0).expect("rdi");
        Fetch { steps: steps.to_vec(), len_bytes, kind, ..plain(name, register) }
    }

    /// Checks the kernel's words: registers, loads, widths, bits, texts with their length, and names that are free and permitted.
    #[test]
    fn words_of_the_kernel() {
        let length = Some(Box::new(fetch("", &[16], 8, ValueKind::Unsigned)));
        let text = |offset, length| Some(Text { offset, length, most: None });
        let fetches = [
            fetch("n", &[], 4, ValueKind::Signed),
            fetch("req->len", &[8, -4], 2, ValueKind::Unsigned),
            Fetch { bits: Some((3, 5)), ..fetch("p.mid", &[80], 1, ValueKind::Unsigned) },
            Fetch { text: text(0, None), ..fetch("*path", &[0], 8, ValueKind::Pointer) },
            Fetch { text: text(24, length), ..fetch("s", &[], 8, ValueKind::Pointer) },
            Fetch { register: Register::named("r9").unwrap(), ..fetch("n", &[], 8, ValueKind::Pointer) },
            fetch("->", &[], 8, ValueKind::Pointer),
        ];
        assert_eq!(
            kernel_fields(&fetches),
            "n=%di:s32 req_len=-4(+8(%di)):u16 p_mid=+80(%di):b5@3/8 path=+0(+0(%di)):string s=+24(%di):string s_len=+16(%di):u64 n_2=%r9:x64 a_=%di:x64"
        );
    }

    /// Checks what belongs to the return, and what is a kind behind a colon.
    #[test]
    fn parts_of_expressions() {
        for expression in ["ret", "*ret", "(*ret).x", "ret->a", "$retval"] {
            assert!(is_result(expression), "{expression}");
        }
        assert!(!is_result("retry") && !is_result("a.ret"));
        assert_eq!(split_kind("a->b:u16"), ("a->b", Some("u16")));
        assert_eq!(split_kind("p:string"), ("p", Some("string")));
        assert_eq!(split_kind("ns::u8"), ("ns::u8", None));
        assert_eq!(split_kind("a:b"), ("a:b", None));
        assert_eq!(register("arg2").map(|r| r.to_string()).as_deref(), Some("rsi"));
        assert_eq!(register("$r10").map(|r| r.to_string()).as_deref(), Some("r10"));
        assert_eq!((register("arg7"), register("rdi"), register("arg0")), (None, None, None));
    }
}
