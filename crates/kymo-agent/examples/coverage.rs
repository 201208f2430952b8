//! Which share of a file's functions can be probed in the program, and why the rest cannot.
//!
//! ```text
//! cargo run --release -p kymo-agent --example coverage -- /usr/bin/python3.11 /usr/lib/x86_64-linux-gnu/libsqlite3.so.0
//! ```
//!
//! Plans each function that the file's symbols name, as the agent would, and changes nothing. With
//! `-v` as the first argument, every refused function is listed. The kernel's uprobe serves what is
//! refused.
#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("probes in the program are for x86-64");
}

#[cfg(target_arch = "x86_64")]
fn main() {
    let mut files: Vec<String> = std::env::args().skip(1).collect();
    let verbose = files.first().is_some_and(|first| first == "-v");
    if verbose {
        files.remove(0);
    }
    if files.is_empty() {
        eprintln!("usage: coverage [-v] ELF-FILE...");
        std::process::exit(2);
    }
    for file in files {
        if let Err(error) = cover::file(&file, verbose) {
            eprintln!("{file}: {error}");
            std::process::exit(1);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod cover {
    use iced_x86::{Decoder, DecoderOptions, FlowControl};
    use kymo_agent::patch::{EntryState, Function, Memory, Refusal, Surroundings, jump_targets, plan};
    use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, SymbolKind};
    use std::collections::BTreeMap;
    use std::error::Error;
    use std::time::Instant;

    /// The segments of a file, by the addresses that they are linked for.
    struct Image<'a>(Vec<(u64, &'a [u8])>);

    impl Memory for Image<'_> {
        fn read(&self, address: u64, into: &mut [u8]) -> usize {
            self.0.iter().map(|segment| segment.read(address, into)).find(|&count| count > 0).unwrap_or(0)
        }
    }

    /// Whether a uprobe at a jump that replaces the instruction there would have the kernel go on
    /// in the middle of the jump.
    fn is_exposed(image: &Image<'_>, at: u64) -> bool {
        let code = image.bytes(at, 15);
        let first = Decoder::with_ip(64, &code, at, DecoderOptions::NONE).decode();
        let goes_on = matches!(
            first.flow_control(),
            FlowControl::Next
                | FlowControl::ConditionalBranch
                | FlowControl::Call
                | FlowControl::IndirectCall
        );
        goes_on && first.len() < 5
    }

    pub(crate) fn file(path: &str, verbose: bool) -> Result<(), Box<dyn Error>> {
        let bytes = std::fs::read(path)?;
        let elf = object::File::parse(&*bytes)?;
        let segments = elf.segments().map(|segment| Ok((segment.address(), segment.data()?)));
        let image = Image(segments.collect::<Result<_, object::Error>>()?);
        // Code, and where it ends.
        let mut code: Vec<(u64, u64)> = Vec::new();
        for section in elf.sections() {
            let executable =
                matches!(section.flags(), object::SectionFlags::Elf { sh_flags, .. } if sh_flags.0 & 4 != 0);
            if executable && section.size() > 0 {
                code.push((section.address(), section.address() + section.size()));
            }
        }
        code.sort_unstable();
        let mut functions: BTreeMap<u64, (u64, String)> = BTreeMap::new();
        for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
            let inside = code.iter().any(|(begin, end)| (*begin..*end).contains(&symbol.address()));
            if symbol.kind() == SymbolKind::Text && symbol.size() > 0 && inside {
                let entry = functions.entry(symbol.address()).or_default();
                if entry.0 < symbol.size() {
                    *entry = (symbol.size(), symbol.name().unwrap_or("?").to_string());
                }
            }
        }
        let begin = Instant::now();
        let mut targets: Vec<u64> = Vec::new();
        for &(begin, end) in &code {
            let whole = begin..end;
            targets.extend(jump_targets(&image, whole.clone(), &[whole]));
        }
        let scanned = begin.elapsed();
        let begin = Instant::now();
        let surroundings = Surroundings { targets: &targets, looks_at: Some(EntryState::NOTHING) };
        let (mut served, mut single, mut behind, mut exposed) = (0, 0, 0, 0);
        let mut refused: BTreeMap<&str, u32> = BTreeMap::new();
        let starts: Vec<u64> = functions.keys().copied().collect();
        for (index, (&start, (bytes, name))) in functions.iter().enumerate() {
            let section_end =
                code.iter().find(|(begin, end)| (*begin..*end).contains(&start)).map_or(start, |c| c.1);
            let next = starts.get(index + 1).copied().unwrap_or(u64::MAX).min(section_end);
            let function = Function { start, bytes: *bytes, next };
            match plan(&image, &function, &surroundings) {
                Ok(site) => {
                    served += 1;
                    single += u32::from(site.is_single_instruction());
                    behind += u32::from(site.address != start);
                    exposed += u32::from(site.address == start && is_exposed(&image, start));
                }
                Err(why) => {
                    *refused.entry(Refusal::word(&why)).or_default() += 1;
                    if verbose {
                        println!("  {start:#x} {name}: {why}");
                    }
                }
            }
        }
        let all = functions.len();
        let share = if all > 0 { 100.0 * f64::from(served) / all as f64 } else { 0.0 };
        println!(
            "{path}: {served} of {all} functions ({share:.2} %), {single} by replacing one instruction; refused: {refused:?}"
        );
        println!(
            "  {behind} behind the first instruction; of the others, {exposed} would crash with another tool's uprobe"
        );
        println!(
            "  {} KiB of code looked through in {scanned:?}, planned in {:?}",
            code.iter().map(|(begin, end)| end - begin).sum::<u64>() >> 10,
            begin.elapsed()
        );
        Ok(())
    }
}
