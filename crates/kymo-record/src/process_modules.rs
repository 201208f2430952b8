//! The modules that stacks of running processes are unwound with.
use crate::mapped_files;
use crate::options::Options;
use kymo_symbols::unwind::{Image, MappedFile, UnwindModules, own_vdso};
use std::io;

/// The modules of the processes that run here. `most_bytes`: what their unwind data may take.
pub(crate) fn modules(most_bytes: u64) -> UnwindModules {
    UnwindModules::with_opener(Box::new(open), most_bytes)
}

/// The same, until `closed`: then nothing more is opened.
pub(crate) fn modules_of_processes(closed: impl Fn() -> bool + Send + Sync + 'static) -> UnwindModules {
    let open = move |file: &MappedFile<'_>| match closed() {
        true => Err(io::Error::other("files are not opened any more")),
        false => open(file),
    };
    UnwindModules::with_opener(Box::new(open), Options::UNWIND_BYTES)
}

fn open(file: &MappedFile<'_>) -> io::Result<Image> {
    match file.path {
        b"[vdso]" => own_vdso(),
        _ => mapped_files::open(file).map(|opened| Image::File(opened.file)),
    }
}
