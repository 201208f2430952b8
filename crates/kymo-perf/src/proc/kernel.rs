//! The kernel's text and modules: address ranges and build IDs.
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};

/// Where the kernel's code lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelText {
    /// The address of `_text` (or `_stext` if that is missing), by which readers compute
    /// relocation.
    pub reference: u64,
    /// The reference symbol's name.
    pub reference_name: &'static str,
    /// First address of the code.
    pub start: u64,
    /// First address after the code.
    pub end: u64,
}

/// Where the running kernel's code lies; `None` if /proc/kallsyms hides addresses from this user
/// (`kernel.kptr_restrict`).
pub fn kernel_text() -> Option<KernelText> {
    kernel_text_in(BufReader::with_capacity(1 << 18, File::open("/proc/kallsyms").ok()?)).ok()?
}

fn kernel_text_in(mut kallsyms: impl BufRead) -> io::Result<Option<KernelText>> {
    let (mut text, mut stext, mut line) = (None, None, Vec::new());
    loop {
        line.clear();
        if kallsyms.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        // Most of some hundred thousand lines are dismissed by one byte: "ADDRESS T _..."
        if line.get(19) != Some(&b'_') {
            continue;
        }
        let slot = match line[19..].trim_ascii_end() {
            b"_text" => &mut text,
            b"_stext" => &mut stext,
            b"_etext" => {
                let end = address(&line);
                let reference = text.or(stext).zip(end).filter(|&(start, end)| start != 0 && start < end);
                return Ok(reference.map(|(reference, end)| KernelText {
                    reference,
                    reference_name: if text.is_some() { "_text" } else { "_stext" },
                    start: reference,
                    end,
                }));
            }
            _ => continue,
        };
        *slot = address(&line);
    }
}

fn address(line: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(line.get(..16)?).ok()?, 16).ok()
}

/// A loaded kernel module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelModule {
    /// Its name.
    pub name: String,
    /// The file it was loaded from, if found among the installed ones.
    pub path: Option<String>,
    /// First address.
    pub start: u64,
    /// Its size.
    pub size_bytes: u64,
}

/// The loaded modules; empty if addresses are hidden from this user.
pub fn modules() -> Vec<KernelModule> {
    let loaded = parse_modules(&fs::read_to_string("/proc/modules").unwrap_or_default());
    if loaded.is_empty() {
        return loaded;
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let root = format!("/lib/modules/{}", release.trim());
    let installed = fs::read_to_string(format!("{root}/modules.dep")).unwrap_or_default();
    let files: std::collections::HashMap<String, &str> = installed
        .lines()
        .filter_map(|line| line.split_once(':').map(|(file, _)| (module_name(file), file)))
        .collect();
    let with_path = |module: KernelModule| {
        let path = files.get(&module.name).map(|file| format!("{root}/{file}"));
        KernelModule { path, ..module }
    };
    loaded.into_iter().map(with_path).collect()
}

/// `kernel/fs/nls-a.ko.xz` is the module `nls_a`.
fn module_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split(".ko").next().unwrap_or(base).replace('-', "_")
}

fn parse_modules(text: &str) -> Vec<KernelModule> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let start = u64::from_str_radix(fields.get(5)?.strip_prefix("0x")?, 16).ok()?;
        let size_bytes = fields.get(1)?.parse().ok()?;
        (start != 0).then(|| KernelModule { name: fields[0].to_owned(), path: None, start, size_bytes })
    };
    text.lines().filter_map(parse).collect()
}

/// The running kernel's build ID.
pub fn kernel_build_id() -> Option<Vec<u8>> {
    build_id_of_notes(&fs::read("/sys/kernel/notes").ok()?)
}

/// A loaded module's build ID.
pub fn module_build_id(name: &str) -> Option<Vec<u8>> {
    build_id_of_notes(&fs::read(format!("/sys/module/{name}/notes/.note.gnu.build-id")).ok()?)
}

/// The GNU build ID among ELF notes (aligned to 4 bytes), at most 20 bytes long.
pub fn build_id_of_notes(mut notes: &[u8]) -> Option<Vec<u8>> {
    loop {
        let word = |at: usize| Some(u32::from_le_bytes(notes.get(at..at + 4)?.try_into().ok()?) as usize);
        let (name_len, desc_len, kind) = (word(0)?, word(4)?, word(8)?);
        let desc_at = name_len.checked_next_multiple_of(4)?.checked_add(12)?;
        let next = desc_len.checked_next_multiple_of(4)?.checked_add(desc_at)?;
        if kind == 3 && notes.get(12..12 + name_len) == Some(b"GNU\0") {
            let id = notes.get(desc_at..desc_at + desc_len)?;
            return (!id.is_empty() && id.len() <= 20).then(|| id.to_vec());
        }
        notes = notes.get(next..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::{KernelText, kernel_text_in, module_name, parse_modules};

    /// Checks the range between the symbols, the reference by which symbol was there, and hidden
    /// addresses.
    #[test]
    fn kernel_range() {
        let text = "ffffffff81000000 T _text\nffffffff81000100 T _stext\nffffffff81000200 t _a\n\
            ffffffff82000000 T _etext\n";
        let expected = KernelText {
            reference: 0xffff_ffff_8100_0000,
            reference_name: "_text",
            start: 0xffff_ffff_8100_0000,
            end: 0xffff_ffff_8200_0000,
        };
        assert_eq!(kernel_text_in(text.as_bytes()).unwrap(), Some(expected));
        let hidden = text.replace("ffffffff8", "000000000").replace("1000", "0000").replace("2000", "0000");
        assert_eq!(kernel_text_in(hidden.as_bytes()).unwrap(), None);
        assert_eq!(kernel_text_in(&b""[..]).unwrap(), None);
    }

    /// Checks module lines, with and without addresses, and the names of module files.
    #[test]
    fn module_lines() {
        let text = "nf_nat 12345 1 a,b, Live 0xffffffffc0100000\nhidden 1 0 - Live 0x0000000000000000\nbad\n";
        let found = parse_modules(text);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].name.as_str(), found[0].start, found[0].size_bytes),
            ("nf_nat", 0xffff_ffff_c010_0000, 12345)
        );
        assert_eq!(module_name("kernel/net/nf-nat.ko.xz"), "nf_nat");
    }

    /// Checks that the ID is found after another note and that damaged notes give none.
    #[test]
    fn notes() {
        let mut notes = Vec::new();
        for (name, kind, desc) in [(&b"Xen\0"[..], 6u32, &[1u8, 2, 3][..]), (b"GNU\0", 3, &[9; 20])] {
            notes.extend((name.len() as u32).to_le_bytes());
            notes.extend((desc.len() as u32).to_le_bytes());
            notes.extend(kind.to_le_bytes());
            notes.extend(name);
            notes.extend(desc);
            notes.resize(notes.len().next_multiple_of(4), 0);
        }
        assert_eq!(super::build_id_of_notes(&notes), Some(vec![9; 20]));
        for cut in 0..notes.len() {
            assert_eq!(super::build_id_of_notes(&notes[..cut]), None);
        }
        assert_eq!(super::build_id_of_notes(&[0xff; 64]), None);
    }
}
