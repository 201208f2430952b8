//! `kymo kallsyms`: where the running kernel has a function.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use kymo_profile::text::shown;
use kymo_symbols::{ModuleKey, SymbolOptions, SymbolStore};

/// Print where functions of the running kernel lie
#[derive(Debug, Args)]
pub(crate) struct KallsymsArgs {
    /// Names of functions
    #[arg(value_name = "NAMES", required = true)]
    names: Vec<String>,

    /// Say more about where symbols came from
    #[arg(short, long)]
    verbose: bool,
}

/// Prints a line for each name.
pub(crate) fn run(args: KallsymsArgs) -> anyhow::Result<ExitCode> {
    let store = SymbolStore::new(SymbolOptions::default());
    let kernel = store.get(&ModuleKey::Kernel { build_id: None, reference: None });
    if args.verbose || kernel.table().is_empty() {
        kernel.notes().iter().for_each(|note| eprintln!("kymo: {}", note.0));
    }
    let mut out = io::stdout().lock();
    for name in &args.names {
        match kernel.table().iter().find(|symbol| symbol.name == name) {
            Some(symbol) => {
                let range = format!("{:#x}-{:#x}", symbol.start, symbol.end);
                writeln!(out, "{}: [kernel] [kernel.kallsyms] {range} ({range})", shown(name))?;
            }
            None => writeln!(out, "{}: not found", shown(name))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
