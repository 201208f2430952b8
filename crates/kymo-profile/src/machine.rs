//! Which machine a recording is of, for whoever names its addresses.
use kymo_data::Recording;
use kymo_symbols::{Arch, MachineFacts, RecordedMachine, SymbolOptions};

/// Whether a recording is of this machine.
pub fn recorded_machine(recording: &Recording) -> RecordedMachine {
    let features = &recording.features;
    RecordedMachine::of(&MachineFacts {
        host: features.hostname.clone(),
        release: features.os_release.clone(),
        arch: features.arch.clone(),
    })
}

/// The options to name a recording's addresses with: `base`, and what the recording tells of its
/// machine.
pub fn symbol_options(recording: &Recording, base: SymbolOptions) -> SymbolOptions {
    SymbolOptions {
        arch: recording.features.arch.as_deref().and_then(Arch::of_machine),
        machine: recorded_machine(recording),
        ..base
    }
}
