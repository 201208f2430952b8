//! Local wall-clock time as text.
//!
//! # Safety
//! One call into libc with two local values.
#![allow(unsafe_code, reason = "only libc knows the time zone")]
use std::time::{Duration, SystemTime};

/// The local time as perf puts it behind names of files: year, month, day, hour, minute, second and
/// hundredths, without anything between.
pub fn timestamp(time: SystemTime) -> String {
    let (parts, hundredths) = local(time);
    format!(
        "{:04}{:02}{:02}{:02}{:02}{:02}{:02}",
        parts.tm_year + 1900,
        parts.tm_mon + 1,
        parts.tm_mday,
        parts.tm_hour,
        parts.tm_min,
        parts.tm_sec,
        hundredths
    )
}

/// The local time as the C library writes it, without a newline: `Sat Nov 21 19:46:58 2026`.
pub fn date(time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (parts, _) = local(time);
    let name = |names: &[&'static str], index: i32| names.get(index as usize).copied().unwrap_or("???");
    format!(
        "{} {} {:2} {:02}:{:02}:{:02} {}",
        name(&DAYS, parts.tm_wday),
        name(&MONTHS, parts.tm_mon),
        parts.tm_mday,
        parts.tm_hour,
        parts.tm_min,
        parts.tm_sec,
        parts.tm_year + 1900
    )
}

/// The local time in parts, and its hundredths of a second.
fn local(time: SystemTime) -> (libc::tm, u32) {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seconds = since.as_secs() as libc::time_t;
    // SAFETY: a struct of numbers and a pointer, for which zero is a value.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: reads one local value and writes the other; nobody in this process changes the time
    // zone.
    unsafe { libc::localtime_r(&seconds, &mut parts) };
    (parts, since.subsec_millis() / 10)
}

#[cfg(test)]
mod tests {
    use super::timestamp;
    use std::time::{Duration, SystemTime};

    /// Checks the form, and that the hundredths are those of the time.
    #[test]
    fn form() {
        let text = timestamp(SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_450));
        assert!(text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
        assert!(text.starts_with("2027") && text.ends_with("0045"), "{text}");
    }
}
