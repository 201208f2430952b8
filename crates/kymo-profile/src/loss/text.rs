//! The loss account as text: a table, and lines for a header.
use super::LossTimeline;
use crate::text::shown;
use kymo_data::UnwindCounts;
use kymo_symbols::unwind::Stop;
use std::io::{self, Write};

/// Writes the account: totals, a line per ring, a line per event.
///
/// # Errors
/// Those of `out`.
pub fn write_table(loss: &LossTimeline, out: &mut dyn Write) -> io::Result<()> {
    for (name, value) in facts(loss) {
        writeln!(out, "{name:>12} : {value}")?;
    }
    writeln!(
        out,
        "\n{:>12} {:>12} {:>15} {:>13} {:>11} {:>14} {:>9} {:>9} {:>14}",
        "ring",
        "samples",
        "bytes",
        "lost records",
        "lost late",
        "lost time ms",
        "of time",
        "throttled",
        "throttled ms"
    )?;
    for ring in &loss.rings {
        writeln!(
            out,
            "{:>12} {:>12} {:>15} {:>13} {:>11} {:>14.3} {:>9} {:>9} {:>14.3}",
            ring.ring.to_string(),
            ring.samples,
            ring.bytes,
            ring.lost_records,
            ring.lost_samples.saturating_sub(ring.lost_records),
            ring.lost_ns as f64 / 1e6,
            percent(loss.lost_time_share(ring)),
            ring.throttles,
            ring.throttled_ns as f64 / 1e6,
        )?;
    }
    writeln!(out, "\n{:>12} {:>12} {:>9} {:>9}  event", "samples", "lost", "of all", "throttled")?;
    for event in &loss.events {
        let all = event.samples.saturating_add(event.lost_samples);
        let share = if all == 0 { 0.0 } else { event.lost_samples as f64 / all as f64 };
        writeln!(
            out,
            "{:>12} {:>12} {:>9} {:>9}  {}",
            event.samples,
            event.lost_samples,
            percent(share),
            event.throttles,
            shown(&event.name)
        )?;
    }
    Ok(())
}

/// The totals: name and value, in words.
pub fn facts(loss: &LossTimeline) -> Vec<(&'static str, String)> {
    let (samples, lost) = (loss.samples(), loss.lost());
    let mut facts = vec![(
        "lost",
        match lost {
            0 => format!("0 of {samples} samples"),
            _ => {
                format!("{lost} of {} samples ({})", lost.saturating_add(samples), percent(loss.lost_share()))
            }
        },
    )];
    let places = |count: u64| if count == 1 { "1 place".to_string() } else { format!("{count} places") };
    let causes: Vec<String> = [
        (loss.lost_records(), format!("ring full ({})", places(loss.lost_chunks()))),
        (loss.lost_late(), "ring full, told only at the end".to_string()),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, cause)| format!("{count} {cause}"))
    .collect();
    if !causes.is_empty() {
        facts.push(("causes", causes.join(", ")));
    }
    if loss.span.is_some() {
        let about = if loss.estimated { "at most " } else { "" };
        facts.push((
            "lost time",
            format!(
                "{about}{} of {:.6} s (mean of {}), {about}{} in any ring",
                percent(loss.mean_lost_time_share()),
                loss.elapsed_ns() as f64 / 1e9,
                match loss.rings.len() {
                    1 => "1 ring".to_string(),
                    rings => format!("{rings} rings"),
                },
                percent(loss.any_lost_time_share()),
            ),
        ));
    } else if lost > 0 {
        facts.push(("lost time", "unknown: the recording has no times".to_string()));
    }
    if loss.throttles() > 0 {
        let ns: u64 = loss.rings.iter().map(|r| r.throttled_ns).fold(0, u64::saturating_add);
        facts.push((
            "throttled",
            format!("{} times by the kernel, {:.3} ms over all rings", loss.throttles(), ns as f64 / 1e6),
        ));
    }
    if !loss.pauses.is_empty() {
        facts.push((
            "paused",
            format!("{} times, {:.3} ms in all", loss.pauses.len(), loss.paused_ns() as f64 / 1e6),
        ));
    }
    if !loss.cpu_gaps.is_empty() {
        facts.push(("CPUs", cpu_gaps(loss)));
    }
    if let Some(unwound) = &loss.unwound {
        facts.extend(unwinding(unwound));
    }
    facts
}

/// Which CPUs were not observed, and for how long. The first few by name.
fn cpu_gaps(loss: &LossTimeline) -> String {
    const MOST: usize = 8;
    let gaps = loss.cpu_gaps.iter().take(MOST);
    let gaps: Vec<String> =
        gaps.map(|(ring, gap)| format!("{ring} for {:.3} ms", gap.len_ns() as f64 / 1e6)).collect();
    let more = match loss.cpu_gaps.len() {
        all if all > MOST => format!(" and {} more", all - MOST),
        _ => String::new(),
    };
    format!("not observed, because they went offline or came late: {}{more}", gaps.join(", "))
}

/// How user stacks were walked while recording, and why some walks ended early.
fn unwinding(counts: &UnwindCounts) -> Vec<(&'static str, String)> {
    let share = |part: u64| percent(part as f64 / counts.stacks.max(1) as f64);
    let mut facts = vec![(
        "unwound",
        format!(
            "{} stacks while recording, {:.1} frames each, {} to the outermost frame",
            counts.stacks,
            counts.frames as f64 / counts.stacks.max(1) as f64,
            share(counts.ended[0])
        ),
    )];
    let causes: Vec<String> = (Stop::ALL.iter().zip(counts.ended).skip(1))
        .filter(|&(_, count)| count > 0)
        .map(|(cause, count)| format!("{count} {}", cause.label()))
        .collect();
    if !causes.is_empty() {
        let cut_short = counts.cut_short();
        facts.push(("cut short", format!("{cut_short} ({}): {}", share(cut_short), causes.join(", "))));
    }
    for (name, count, what) in [
        (
            "without stack",
            counts.without_stack,
            "samples whose stack had no byte in memory at its pointer, or of tasks that were starting or ending",
        ),
        ("unwound early", counts.early_buffers, "buffers, before all mappings were known"),
    ] {
        if count > 0 {
            facts.push((name, format!("{count} {what}")));
        }
    }
    facts
}

/// A share as a percentage. What is not 0 does not look like 0, and what is not all does not look like all.
pub(super) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    match percent {
        p if p > 0.0 && p < 0.005 => "< 0.01 %".to_string(),
        p if (99.995..100.0).contains(&p) => "99.99 %".to_string(),
        p => format!("{p:.2} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what is said of unwinding: nothing where the recorder did not, little where all went well, else each cause.
    #[test]
    fn unwinding_in_words() {
        let mut loss = LossTimeline::default();
        assert!(!facts(&loss).iter().any(|fact| fact.0 == "unwound"));
        let mut counts = UnwindCounts { stacks: 1000, frames: 9500, ..UnwindCounts::default() };
        counts.ended[0] = 1000;
        loss.unwound = Some(counts);
        let words = "1000 stacks while recording, 9.5 frames each, 100.00 % to the outermost frame";
        assert_eq!(facts(&loss)[1..], [("unwound", words.to_string())]);
        counts.ended = [988, 10, 0, 0, 0, 2, 0, 0, 0];
        loss.unwound = Some(UnwindCounts { without_stack: 3, early_buffers: 4, ..counts });
        let cut_short = "12 (1.20 %): 10 stack bytes ran out, 2 no unwind data";
        let all = facts(&loss);
        assert_eq!(all[2], ("cut short", cut_short.to_string()));
        let names: Vec<&str> = all.iter().map(|fact| fact.0).collect();
        assert_eq!(names, ["lost", "unwound", "cut short", "without stack", "unwound early"]);
    }

    /// Checks what is said of CPUs that went offline and came back.
    #[test]
    fn cpus_that_went_offline() {
        use crate::loss::{Ring, Stretch};
        let mut loss = LossTimeline::default();
        assert!(loss.is_clean());
        loss.cpu_gaps =
            (0..9).map(|cpu| (Ring::Cpu(cpu), Stretch { start_ns: 5, end_ns: 1_500_005 })).collect();
        assert!(!loss.is_clean());
        let all = facts(&loss);
        let words = &all.iter().find(|fact| fact.0 == "CPUs").expect("it is said").1;
        let start = "not observed, because they went offline or came late: CPU 0 for 1.500 ms, CPU 1 for";
        assert!(words.starts_with(start) && words.ends_with("CPU 7 for 1.500 ms and 1 more"), "{words}");
    }

    /// Checks that a little loss does not look like none, and a little kept not like nothing.
    #[test]
    fn percentages_are_honest_at_the_ends() {
        let shares = [0.0, 0.000_001, 0.6327, 0.999_999_9, 1.0];
        assert_eq!(shares.map(percent), ["0.00 %", "< 0.01 %", "63.27 %", "99.99 %", "100.00 %"]);
    }
}
