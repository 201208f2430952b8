//! Local wall-clock time as text.
//!
//! # Safety
//! Two calls into libc with local values.
#![allow(unsafe_code, reason = "only libc knows the time zone")]
use std::ffi::CStr;
use std::time::{Duration, SystemTime};

/// The local time as perf puts it behind names of files: year, month, day, hour, minute, second and
/// hundredths, without anything between.
pub fn timestamp(time: SystemTime) -> String {
    let (text, hundredths) = local(time, c"%Y%m%d%H%M%S");
    format!("{text}{hundredths:02}")
}

/// The local time as the C library writes it, without a newline: `Sat Nov 21 19:46:58 2026`.
pub fn date(time: SystemTime) -> String {
    local(time, c"%a %b %e %H:%M:%S %Y").0
}

/// The local time in this format of the C library, and its hundredths of a second.
fn local(time: SystemTime, format: &CStr) -> (String, u32) {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seconds = since.as_secs() as libc::time_t;
    // SAFETY: a struct of numbers and a pointer, for which zero is a value.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: reads one local value and writes the other; nobody in this process changes the time
    // zone.
    unsafe { libc::localtime_r(&seconds, &mut parts) };
    let mut text = [0_u8; 64];
    // SAFETY: writes to a local array as far as it reaches; the format ends with a zero.
    let bytes = unsafe { libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &parts) };
    (String::from_utf8_lossy(&text[..bytes]).into_owned(), since.subsec_millis() / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the form, and that the hundredths are those of the time.
    #[test]
    fn form() {
        let text = timestamp(SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_450));
        assert!(text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
        assert!(text.starts_with("2027") && text.ends_with("0045"), "{text}");
        let date = date(SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_450));
        assert!(date.len() == 24 && date.contains(" Jan 15 ") && date.ends_with(" 2027"), "{date}");
    }
}
