//! A library to preload that probes every function of a program's modules, again and again, while the program does its work.
//!
//! ```text
//! cargo build --release -p kymo-agent --example everything
//! LD_PRELOAD=target/release/examples/libeverything.so KYMO_EVERYTHING=libpython3 KYMO_EVERYTHING_DO=returns python3 -m test test_dict
//! ```
//!
//! `KYMO_EVERYTHING` is a list of parts of modules' paths, divided by commas. `KYMO_EVERYTHING_DO` is `count`, `returns`, `latency` or `mixed`.
//! Random parts of all functions are attached and detached without pause, or once for good with `KYMO_EVERYTHING_ONCE=1`. What was done is told on stderr with
//! `KYMO_EVERYTHING_SAY=1`; `KYMO_EVERYTHING_PART=100-200` takes some of the functions only. The program must not notice: a crash or another output is a fault of the patcher.
#[cfg(target_arch = "x86_64")]
mod everything {
    use kymo_agent::patch::{
        Consumers, Function, OwnMemory, PatchError, Probe, Site, Surroundings, attach, detach, jump_targets,
        plan, returns_missed, returns_oddly,
    };
    use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    extern "C" fn begin() {
        if let Ok(modules) = std::env::var("KYMO_EVERYTHING") {
            // A program whose threads cannot be made is left alone.
            let _ = std::thread::Builder::new().name("everything".into()).spawn(move || run(&modules));
        }
    }

    #[used]
    #[unsafe(link_section = ".init_array")]
    static BEGIN: extern "C" fn() = begin;

    fn on(name: &str) -> bool {
        std::env::var_os(name).is_some()
    }

    /// All sites of a module, and whether its function may be probed at its return, too.
    fn sites(memory: &OwnMemory, path: &str, base: u64) -> Option<(Vec<(Site, bool)>, usize)> {
        let bytes = std::fs::read(path).ok()?;
        let elf = object::File::parse(&*bytes).ok()?;
        // Programs that are not moved have their addresses in the file.
        let base = if elf.kind() == object::ObjectKind::Executable { 0 } else { base };
        let code: Vec<(u64, u64)> = elf
            .sections()
            .filter(|section| section.name() == Ok(".text"))
            .map(|section| (section.address() + base, section.size()))
            .collect();
        let inside = |at: u64| code.iter().find(|(begin, bytes)| (*begin..begin + bytes).contains(&at));
        let mut functions: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
            let at = symbol.address() + base;
            if symbol.kind() == SymbolKind::Text && symbol.size() > 0 && inside(at).is_some() {
                let entry = functions.entry(at).or_default();
                entry.0 = entry.0.max(symbol.size());
                entry.1 |= symbol.name().is_ok_and(returns_oddly);
            }
        }
        let mut targets = Vec::new();
        for &(begin, bytes) in &code {
            targets.extend(jump_targets(memory, begin, bytes));
        }
        let starts: Vec<u64> = functions.keys().copied().collect();
        let mut all = Vec::new();
        for (index, (&start, &(bytes, oddly))) in functions.iter().enumerate() {
            let end = inside(start).map_or(start, |(begin, bytes)| begin + bytes);
            let next = starts.get(index + 1).copied().unwrap_or(end).min(end);
            if let Ok(site) =
                plan(memory, &Function { start, bytes, next }, &Surroundings { targets: &targets })
            {
                all.push((site, !oddly));
            }
        }
        Some((all, functions.len()))
    }

    fn modules(wanted: &str) -> Vec<(String, u64)> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mut found: Vec<(String, u64)> = Vec::new();
        for line in maps.lines() {
            let Some(path) = line.find('/').map(|at| &line[at..]) else { continue };
            let Some((begin, _)) = line.split_once('-') else { continue };
            let begin = u64::from_str_radix(begin, 16).unwrap_or(0);
            let matches = wanted.split(',').any(|part| !part.is_empty() && path.contains(part));
            if matches && !path.contains("libeverything") && found.iter().all(|entry| entry.0 != path) {
                found.push((path.to_string(), begin));
            }
        }
        found
    }

    fn run(wanted: &str) {
        let say = on("KYMO_EVERYTHING_SAY");
        let how = std::env::var("KYMO_EVERYTHING_DO").unwrap_or_default();
        let consumers = match how.as_str() {
            "returns" | "mixed" => Consumers::CountReturns,
            "latency" => Consumers::Latency,
            _ => Consumers::Count,
        };
        let begin = Instant::now();
        let Ok(memory) = OwnMemory::open() else { return };
        let mut all = Vec::new();
        for (path, base) in modules(wanted) {
            if let Some((found, functions)) = sites(&memory, &path, base) {
                if say {
                    eprintln!("everything: {path}: {} of {functions} functions", found.len());
                }
                all.extend(found);
            }
        }
        // A part of them, by number: to find the function at which a program goes wrong.
        if let Some((from, to)) =
            std::env::var("KYMO_EVERYTHING_PART").ok().as_deref().and_then(|part| part.split_once('-'))
        {
            let (from, to) = (from.parse().unwrap_or(0), to.parse().unwrap_or(usize::MAX).min(all.len()));
            all = all.drain(from.min(to)..to).collect();
        }
        let (with, without): (Vec<_>, Vec<_>) = all.into_iter().partition(|entry| entry.1);
        let with: Vec<Site> = with.into_iter().map(|entry| entry.0).collect();
        let without: Vec<Site> = without.into_iter().map(|entry| entry.0).collect();
        let planned = begin.elapsed();
        let put = |sites: &[Site], consumers| {
            for _ in 0..20 {
                match attach(sites, consumers) {
                    Err(PatchError::BlocksTraps { .. } | PatchError::Silent { .. }) => {}
                    Ok(probes) => return probes,
                    Err(error) => {
                        eprintln!("everything: {error}");
                        break;
                    }
                }
            }
            Vec::new()
        };
        let begin = Instant::now();
        let mut probes = put(&with, consumers);
        let still: Vec<Probe> = put(&without, Consumers::Count);
        if say {
            eprintln!(
                "everything: planned in {planned:?}, {} attached in {:?}",
                probes.len() + still.len(),
                begin.elapsed()
            );
        }
        let mut random: u64 = u64::from(std::process::id()) | 1;
        let mut rounds = 0_u64;
        let mut told = Instant::now();
        loop {
            if on("KYMO_EVERYTHING_ONCE") {
                std::thread::sleep(Duration::from_millis(200));
            } else {
                // A random part goes and comes back, with another consumer where they are mixed.
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let count = probes.len() as u64;
                if count == 0 {
                    return;
                }
                let from = (random >> 33) % count;
                let to = (from + 1 + (random >> 20) % 64).min(count);
                let gone: Vec<Probe> = probes.drain(from as usize..to as usize).collect();
                if let Err(error) = detach(&gone) {
                    eprintln!("everything: {error}");
                }
                let again: Vec<Site> = gone.iter().map(|probe| probe.site().clone()).collect();
                let consumers = match (how.as_str(), random >> 60 & 3) {
                    ("mixed", 0) => Consumers::Count,
                    ("mixed", 1) => Consumers::Latency,
                    _ => consumers,
                };
                probes.extend(put(&again, consumers));
            }
            rounds += 1;
            if say && told.elapsed() > Duration::from_secs(2) {
                told = Instant::now();
                let hits: u64 = probes.iter().chain(&still).map(Probe::hits).sum();
                let returns: u64 = probes.iter().filter_map(Probe::returns).sum();
                if let Some(most) = probes.iter().max_by_key(|probe| probe.hits()) {
                    eprintln!("everything: {:#x} was hit most, {} times", most.function(), most.hits());
                }
                let hit = probes.iter().filter(|probe| probe.hits() > 0).count();
                eprintln!(
                    "everything: {rounds} rounds, {} attached, {hit} were hit, {hits} hits, {returns} returns, {} missed",
                    probes.len(),
                    returns_missed()
                );
            }
        }
    }
}
