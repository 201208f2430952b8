//! Whether the dynamic linker will preload the agent into a program, judged by the program's file.
use super::refusal::EnterError;
use super::target::check_elf;
use kymo_files::open_regular;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Runtimes that end a program which loads any library before them.
const FIRST: [&[u8]; 3] = [b"libasan.so", b"libhwasan.so", b"libtsan.so"];
/// More of a file is not read: what the dynamic linker looks at lies at its begin, but for unusual
/// linkers' work.
const MOST_BYTES: u64 = 256 << 20;

/// Looks whether a program can come up with the agent in it. A program that is a script is what its
/// first line names.
///
/// # Errors
/// Why not.
pub fn preloadable(program: &Path) -> Result<(), EnterError> {
    let step = "looking at the program";
    let file = open_regular(program).map_err(EnterError::failed(step))?;
    let meta = file.metadata().map_err(EnterError::failed(step))?;
    let not = |why: &str| Err(EnterError::NotLoaded(why.to_owned()));
    if meta.mode() & 0o6000 != 0 {
        return not("the program is setuid or setgid, and its dynamic linker ignores LD_PRELOAD then");
    }
    if capable(&file) {
        return not("the program's file has capabilities, and its dynamic linker ignores LD_PRELOAD then");
    }
    let mut data = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut data).map_err(EnterError::failed(step))?;
    check_elf(data.get(..64).unwrap_or(&data))?;
    let file = Elf(&data);
    let Some(interpreter) =
        file.segments(INTERPRETER).next().and_then(|part| file.bytes(part.offset, part.bytes))
    else {
        return Err(EnterError::Static);
    };
    let last = interpreter.rsplit(|byte| *byte == b'/').next().unwrap_or(interpreter);
    if last.starts_with(b"ld-musl") {
        return Err(EnterError::Musl);
    }
    if !last.starts_with(b"ld-linux") {
        return not("the program is not made for the GNU C library, for which the agent is");
    }
    if file.needed().any(|name| FIRST.iter().any(|first| name.starts_with(first))) {
        return not("the program has a sanitizer, which must be loaded before everything else");
    }
    Ok(())
}

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;

/// A 64-bit little-endian ELF file, of which nothing is believed.
struct Elf<'a>(&'a [u8]);

#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

impl<'a> Elf<'a> {
    fn bytes(&self, at: u64, count: u64) -> Option<&'a [u8]> {
        let at = usize::try_from(at).ok()?;
        self.0.get(at..at.checked_add(usize::try_from(count).ok()?)?)
    }

    /// A number of so many bytes; 0 where there is none.
    fn number(&self, at: u64, count: usize) -> u64 {
        let mut number = [0; 8];
        if let Some(bytes) = self.bytes(at, count as u64) {
            number[..count].copy_from_slice(bytes);
        }
        u64::from_le_bytes(number)
    }

    fn segments(&self, kind: u32) -> impl Iterator<Item = Segment> {
        let (table, bytes, count) = (self.number(32, 8), self.number(54, 2), self.number(56, 2));
        let segment = move |number: u64| {
            let at = table.saturating_add(number * bytes);
            let word = |offset: u64| self.number(at.saturating_add(offset), 8);
            let kind = self.number(at, 4) as u32;
            Segment { kind, offset: word(8), address: word(16), bytes: word(32) }
        };
        (0..count).map(segment).filter(move |segment| segment.kind == kind)
    }

    /// The names of the libraries that it needs, each with what follows it in the table of names.
    fn needed(&self) -> impl Iterator<Item = &'a [u8]> {
        const NEEDED: u64 = 1;
        const STRINGS: u64 = 5;
        let entries: Vec<(u64, u64)> = self
            .segments(DYNAMIC)
            .flat_map(|part| {
                (0..part.bytes.min(1 << 16) / 16).map(move |number| part.offset.saturating_add(number * 16))
            })
            .map(|at| (self.number(at, 8), self.number(at.saturating_add(8), 8)))
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let strings = entries.iter().find(|(tag, _)| *tag == STRINGS).map(|(_, address)| *address);
        let strings = strings.and_then(|address| {
            let holds = |part: &Segment| address.checked_sub(part.address).is_some_and(|at| at < part.bytes);
            let part = self.segments(LOAD).find(holds)?;
            part.offset.checked_add(address - part.address)
        });
        let data = self.0;
        let names = entries.into_iter().filter(|(tag, _)| *tag == NEEDED);
        names.filter_map(move |(_, name)| data.get(usize::try_from(strings?.checked_add(name)?).ok()?..))
    }
}

/// Whether executing the file gives privileges.
fn capable(file: &File) -> bool {
    rustix::fs::fgetxattr_query(file, "security.capability").is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// Checks that the libraries which a program needs are found: the C library is among this
    /// one's.
    #[test]
    fn libraries() {
        let data = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(Elf(&data).needed().any(|name| name.starts_with(b"libc.so")));
        // Whatever is cut off.
        for length in (0..data.len().min(20_000)).step_by(13) {
            let part = Elf(&data[..length]);
            let _ = (part.needed().count(), part.segments(INTERPRETER).count());
        }
    }

    /// Checks that this program can be preloaded, and that a copy which is setuid, a part of it,
    /// and what is no program cannot.
    #[test]
    fn programs() {
        let own = std::env::current_exe().unwrap();
        preloadable(&own).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy");
        fs::copy(&own, &copy).unwrap();
        preloadable(&copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(preloadable(&copy).unwrap_err().to_string().contains("setuid"));
        fs::write(&copy, &fs::read(&own).unwrap()[..70]).unwrap();
        assert!(preloadable(&copy).is_err());
        fs::write(&copy, "#!/bin/sh\n").unwrap();
        assert!(preloadable(&copy).is_err());
        assert!(preloadable(Path::new("/no/such/program")).is_err());
    }
}
