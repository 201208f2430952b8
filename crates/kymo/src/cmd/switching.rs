//! A recording in several files, or in snapshots: what the options of `kymo record` ask for.
use std::time::Duration;

use kymo_record::{Limits, SwitchRule};

use kymo_cli::parse::parse_size;

/// What `--snapshot` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// One more is taken at the end.
    pub(crate) at_end: bool,
}

/// `--snapshot[=e]`.
pub(crate) fn parse_snapshot(text: &str) -> Result<Snapshot, String> {
    match text {
        "" => Ok(Snapshot { at_end: false }),
        "e" => Ok(Snapshot { at_end: true }),
        _ => Err("expected nothing, or e for a last one at the end; -m says how much the rings hold".into()),
    }
}

/// `--switch-output[=signal|SIZE|TIME]`.
pub(crate) fn parse_switch(text: &str) -> Result<SwitchRule, String> {
    if text == "signal" {
        return Ok(SwitchRule::default());
    }
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86400)];
    // As for perf: small letters are times, large ones sizes; a number without either is neither.
    let time = units.iter().find_map(|(unit, seconds)| {
        let number = text.strip_suffix(unit)?.parse::<u64>().ok().filter(|&number| number > 0)?;
        Some(Duration::from_secs(number.checked_mul(*seconds)?))
    });
    if time.is_some() {
        return Ok(SwitchRule { every: time, ..SwitchRule::default() });
    }
    let size = parse_size(text).ok().filter(|_| text.ends_with(['B', 'K', 'M', 'G']));
    let size = size.ok_or("expected signal, a size with B, K, M or G, or a time with s, m, h or d")?;
    Ok(SwitchRule { size_bytes: Some(size), ..SwitchRule::default() })
}

/// When which files are made. `flight`: rings keep the newest records.
pub(crate) fn limits(
    flight: bool,
    snapshot: bool,
    switch: Option<SwitchRule>,
    max_files: Option<usize>,
    max_bytes: Option<u64>,
) -> Result<Limits, &'static str> {
    if flight && switch.is_some_and(|switch| switch.size_bytes.is_some()) {
        return Err(
            "--switch-output=SIZE is not for rings that keep the newest: nothing is written between snapshots; use --switch-output=TIME, or SIGUSR2",
        );
    }
    if flight && max_bytes.is_some() {
        return Err("--max-size is not for rings that keep the newest: -m limits a snapshot");
    }
    if snapshot && !flight {
        return Err("--snapshot is for rings that keep the newest: leave out the term no-overwrite");
    }
    let switch = switch.or(flight.then(SwitchRule::default));
    if max_files.is_some() && switch.is_none() {
        return Err(
            "--switch-max-files is for several files: give --switch-output, --overwrite or --snapshot",
        );
    }
    Ok(Limits { max_bytes, switch: switch.map(|switch| SwitchRule { max_files, ..switch }) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks sizes, times and the signal, and that a number without a unit is none of them.
    #[test]
    fn rules() {
        let rule = |text| parse_switch(text).ok();
        assert_eq!(rule("signal"), Some(SwitchRule::default()));
        assert_eq!(rule("2M"), Some(SwitchRule { size_bytes: Some(2 << 20), ..SwitchRule::default() }));
        assert_eq!(
            rule("2m"),
            Some(SwitchRule { every: Some(Duration::from_secs(120)), ..SwitchRule::default() })
        );
        assert_eq!([rule("2"), rule(""), rule("0s"), rule("x")], [None; 4]);
        assert_eq!(parse_snapshot("e"), Ok(Snapshot { at_end: true }));
        assert!(parse_snapshot("4K").is_err());
    }

    /// Checks what is refused, with a reason, and that rings which keep the newest always make files.
    #[test]
    fn combinations() {
        let size = parse_switch("1M").ok();
        assert!(limits(true, false, size, None, None).is_err());
        assert!(limits(true, false, None, None, Some(1)).is_err());
        assert!(limits(false, true, None, None, None).is_err());
        assert!(limits(false, false, None, Some(2), None).is_err());
        let kept = SwitchRule { max_files: Some(2), ..SwitchRule::default() };
        assert_eq!(
            limits(true, false, None, Some(2), None),
            Ok(Limits { max_bytes: None, switch: Some(kept) })
        );
        assert_eq!(
            limits(false, false, None, None, Some(9)),
            Ok(Limits { max_bytes: Some(9), switch: None })
        );
    }
}
