//! `--time`: spans of a recording, in seconds or percent.
use kymo_data::{ReadError, Recording, abi};

/// Spans of time in ns, both ends included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TimeSpans(pub Vec<(u64, u64)>);

/// A text that names no spans of time.
#[derive(Debug, thiserror::Error)]
pub enum TimeSpansError {
    /// It has another form.
    #[error(
        "--time {0}: '{1}' is no span of time; write FROM,TO in seconds (12.5,13), or a part of the recording (10%/2, 0%-10%)"
    )]
    Form(String, String),
    /// A range of a query has another form.
    #[error(
        "'{0}' is no span of time: write FROM..TO in seconds of the recording's clock (12.5..13), from its first sample on (+1..+2), or in percent (10%..20%)"
    )]
    Range(String),
    /// It ends before it begins.
    #[error("--time {0}: the span ends before it begins; write FROM,TO")]
    Backwards(String),
    /// There is nothing that parts could be of.
    #[error("--time {0}: the samples of this recording have no times, so there is no part of them")]
    NoTimes(String),
    /// The first and last time could not be found.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl TimeSpans {
    /// Whether a moment is in one of the spans.
    pub fn contains(&self, time_ns: u64) -> bool {
        self.0.iter().any(|&(from, to)| (from..=to).contains(&time_ns))
    }

    /// Spans as perf writes them: `12.5,13`, several divided by spaces; `10%/2` (the second tenth),
    /// `0%-10%`, several divided by commas. Parts are of the time from the first sample to the
    /// last.
    ///
    /// # Errors
    /// When the text is none of these.
    pub fn parse(text: &str, recording: &Recording) -> Result<TimeSpans, TimeSpansError> {
        if text.contains('%') {
            let Some((first, last)) = sampled(recording)? else {
                return Err(TimeSpansError::NoTimes(text.to_owned()));
            };
            let part = |word: &str| {
                percent(word.trim(), first, last)
                    .ok_or_else(|| TimeSpansError::Form(text.to_owned(), word.to_owned()))
            };
            return Ok(TimeSpans(text.split(',').map(part).collect::<Result<_, _>>()?));
        }
        // `12.5, 13` is one span.
        let text = &text.split(',').map(str::trim).collect::<Vec<&str>>().join(",");
        let spans = text.split_whitespace().map(|span| seconds(text, span)).collect::<Result<Vec<_>, _>>()?;
        match spans[..] {
            [] => Err(TimeSpansError::Form(text.to_owned(), text.to_owned())),
            _ => Ok(TimeSpans(spans)),
        }
    }

    /// One span as queries write it: `12.5..13` by the recording's clock, `+1..+2` from the first
    /// sample on, or a part of the recording: `10%..20%`. Either end may be left out.
    ///
    /// # Errors
    /// When the text is none of these.
    pub fn parse_range(text: &str, recording: &Recording) -> Result<(u64, u64), TimeSpansError> {
        let form = || TimeSpansError::Range(text.to_owned());
        let no_times = || TimeSpansError::NoTimes(text.to_owned());
        let (from, to) = text.split_once("..").ok_or_else(form)?;
        let (from, to) = (from.trim(), to.trim());
        if text.contains('%') {
            let (first, last) = sampled(recording)?.ok_or_else(no_times)?;
            let or =
                |word: &str, empty: &str| if word.is_empty() { empty.to_owned() } else { word.to_owned() };
            let word = format!("{}-{}", or(from, "0%"), or(to, "100%"));
            let (start, end) = percent(&word, first, last).ok_or_else(form)?;
            return Ok((if from.is_empty() { 0 } else { start }, if to.is_empty() { u64::MAX } else { end }));
        }
        let end = |word: &str, empty: u64| match (word, word.strip_prefix('+')) {
            ("", _) => Ok(empty),
            (_, Some(word)) => {
                let (first, _) = sampled(recording)?.ok_or_else(no_times)?;
                Ok(first.saturating_add(nanoseconds(word).ok_or_else(form)?))
            }
            (word, None) => nanoseconds(word).ok_or_else(form),
        };
        let (from, to) = (end(from, 0)?, end(to, u64::MAX)?);
        if from > to { Err(TimeSpansError::Backwards(text.to_owned())) } else { Ok((from, to)) }
    }
}

/// `12.5,13`; either end may be empty.
fn seconds(text: &str, span: &str) -> Result<(u64, u64), TimeSpansError> {
    let wrong = |word: &str| TimeSpansError::Form(text.to_owned(), word.to_owned());
    let (from, to) = span.split_once(',').ok_or_else(|| wrong(span))?;
    let end = |word: &str, empty: u64| match word.trim() {
        "" => Ok(empty),
        word => nanoseconds(word).or_else(|| scientific(word)).ok_or_else(|| wrong(word)),
    };
    let (from, to) = (end(from, 0)?, end(to, u64::MAX)?);
    if from > to {
        return Err(TimeSpansError::Backwards(text.to_owned()));
    }
    Ok((from, to))
}

/// Seconds with up to nine digits behind the point, exactly: a double does not hold the ns of a
/// long uptime.
fn nanoseconds(word: &str) -> Option<u64> {
    let (whole, part) = word.split_once('.').unwrap_or((word, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() && part.is_empty() || !digits(whole) || !digits(part) {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let part: String = part.chars().chain("000000000".chars()).take(9).collect();
    whole.checked_mul(1_000_000_000)?.checked_add(part.parse().ok()?)
}

/// Any other number, such as `1e-9`.
fn scientific(word: &str) -> Option<u64> {
    word.parse().ok().filter(|value: &f64| *value >= 0.0).map(|value| (value * 1e9) as u64)
}

/// `10%/2`, `0%-10%` or `10%` of a span. As perf: what is not the last part ends before the next
/// one begins.
fn percent(word: &str, first: u64, last: u64) -> Option<(u64, u64)> {
    let share = |text: &str| {
        let share = text.trim().strip_suffix('%')?.parse::<f64>().ok()? / 100.0;
        (0.0..=1.0).contains(&share).then_some(share)
    };
    let (from, to) = if let Some((part, number)) = word.split_once('/') {
        let (part, number) = (share(part)?, number.trim().parse::<u32>().ok().filter(|number| *number > 0)?);
        (part * f64::from(number - 1), part * f64::from(number))
    } else if let Some((from, to)) = word.split_once('-') {
        (share(from)?, share(to)?)
    } else {
        (0.0, share(word)?)
    };
    if from > to || to > 1.0 + f64::EPSILON {
        return None;
    }
    let total = (last - first) as f64;
    let at = |share: f64| first + (share * total).round() as u64;
    let (start, end) = (at(from), at(to).min(last));
    Some((start, if end > start && end != last { end - 1 } else { end }))
}

/// The time of the first and last sample: as the recorder says, or as the samples say.
fn sampled(recording: &Recording) -> Result<Option<(u64, u64)>, ReadError> {
    if let Some((first, last)) =
        recording.features.sample_time.filter(|(first, last)| first <= last && *last > 0)
    {
        return Ok(Some((first, last)));
    }
    let widen = |span: &mut Option<(u64, u64)>, (from, to): (u64, u64)| {
        let (first, last) = span.unwrap_or((from, to));
        *span = Some((first.min(from), last.max(to)));
    };
    let each = |span: &mut Option<(u64, u64)>, chunk: &kymo_data::Chunk| {
        for record in chunk.records().flatten().filter(|r| r.header.kind == abi::PERF_RECORD_SAMPLE) {
            let event = recording.events.event_of(&record).and_then(|event| recording.events.list.get(event));
            let sample = event.and_then(|event| event.layout.parse(record.header.misc, record.body).ok());
            if let Some(time) = sample.and_then(|sample| sample.time) {
                widen(span, (time, time));
            }
        }
    };
    let (spans, _) = recording.read_parallel(0, || None, each, &|_, _| {})?;
    let mut whole = None;
    spans.into_iter().flatten().for_each(|span| widen(&mut whole, span));
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks seconds with and without ends, and that they are exact.
    #[test]
    fn in_seconds() {
        assert_eq!(seconds("", "1.5,2").unwrap(), (1_500_000_000, 2_000_000_000));
        assert_eq!(seconds("", ",2").unwrap(), (0, 2_000_000_000));
        assert_eq!(seconds("", "1,").unwrap().1, u64::MAX);
        assert_eq!(seconds("", "9007199.254740993,").unwrap().0, 9_007_199_254_740_993);
        for wrong in ["12", "x,", "nan,", "-5,", "9,3"] {
            assert!(seconds(wrong, wrong).is_err(), "{wrong}");
        }
    }

    /// Checks parts of a recording: tenths follow each other without a gap or an overlap.
    #[test]
    fn in_percent() {
        let tenths: Vec<_> = (1..=10).map(|n| percent(&format!("10%/{n}"), 1000, 2000).unwrap()).collect();
        assert_eq!((tenths[0], tenths[9]), ((1000, 1099), (1900, 2000)));
        assert!(tenths.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{tenths:?}");
        assert_eq!(percent("0%-50%", 0, 100), Some((0, 49)));
        assert_eq!(percent("100%", 0, 100), Some((0, 100)));
        for wrong in ["10%/0", "60%/2", "50%-20%", "10/2", "%", "-5%", "10%/x"] {
            assert_eq!(percent(wrong, 0, 100), None, "{wrong}");
        }
    }
}
