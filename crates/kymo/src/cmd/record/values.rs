//! Values of single options of `kymo record`.

use kymo_data::Registers;
use kymo_perf::selector::{branch_bits, branch_types};
use kymo_record::Synthesis;

/// `PERF_SAMPLE_BRANCH_ANY`.
pub(super) const ANY_BRANCH: u64 = 1 << 3;

/// Kinds of branches such as `any_call,u`; modes alone mean any branch in them.
pub(super) fn parse_branches(text: &str) -> Result<u64, String> {
    const MODES: u64 = 0b111;
    let bits = branch_bits(text);
    let bits =
        bits.map_err(|word| format!("`{word}` is not a kind of branch; there are {}", branch_types()))?;
    Ok(if bits & !MODES == 0 { bits | ANY_BRANCH } else { bits })
}

/// Registers such as `ax,ip`; nothing means all.
pub(super) fn parse_registers(text: &str) -> Result<u64, String> {
    let Some(registers) = Registers::of(std::env::consts::ARCH) else {
        return Err("kymo does not know the registers of this processor".into());
    };
    let names = || registers.available().collect::<Vec<_>>().join(" ");
    match text {
        "" => Ok(registers.all()),
        "?" => Err(format!("available registers: {}", names())),
        list => registers
            .parse(list)
            .map_err(|word| format!("`{word}` is not a register; available registers: {}", names())),
    }
}

/// What to list: words of perf's `--synth`.
pub(super) fn parse_synthesis(text: &str) -> Result<Synthesis, String> {
    let mut wanted = Synthesis { tasks: false, mappings: false, cgroups: false };
    for word in text.split(',') {
        match word {
            "no" => {}
            "all" => wanted = Synthesis::default(),
            "task" => wanted.tasks = true,
            // Mappings are those of tasks.
            "mmap" => (wanted.tasks, wanted.mappings) = (true, true),
            "cgroup" => wanted.cgroups = true,
            _ => return Err("expected no, all, task, mmap, cgroup, or several of them".into()),
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks branches, registers and what is listed, and the words that are none of them.
    #[test]
    fn words() {
        assert_eq!(parse_branches("any_call,u"), Ok(1 << 4 | 1));
        assert_eq!(parse_branches("u"), Ok(1 << 3 | 1));
        assert!(parse_branches("nosuch").unwrap_err().contains("`nosuch`"));
        assert!(parse_registers("?").unwrap_err().starts_with("available registers: "));
        assert!(parse_registers("").unwrap() > 0);
        assert!(parse_registers("ax,nosuch").unwrap_err().contains("nosuch"));
        assert_eq!(parse_synthesis("all"), Ok(Synthesis::default()));
        assert_eq!(parse_synthesis("no"), Ok(Synthesis { tasks: false, mappings: false, cgroups: false }));
        assert_eq!(parse_synthesis("cgroup,task"), Ok(Synthesis { mappings: false, ..Synthesis::default() }));
        assert!(parse_synthesis("x").is_err());
    }
}
