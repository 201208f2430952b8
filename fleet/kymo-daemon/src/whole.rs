//! Whether the files of a batch are whole: a power cut leaves files without bytes, or without their
//! ends, and one such file in a dataset breaks each query of it.
use crate::spool::{Destination, files_of};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// What a Parquet file begins and ends with.
const PARQUET: &[u8; 4] = b"PAR1";
/// The shortest Parquet file: both marks, and the length of the part that describes it.
const SMALLEST_PARQUET: u64 = 12;
/// What a file of gzip begins with.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The shortest file of gzip: its head, and the sum and the length of what is in it.
const SMALLEST_GZIP: u64 = 18;

/// Checks the files of a batch by their lengths and marks; their content is read by no one here.
///
/// # Errors
/// A sentence about the first file that is not whole.
pub(crate) fn check(folder: &Path, destination: Destination) -> Result<(), String> {
    let files = files_of(folder).map_err(|error| error.to_string())?;
    if files.is_empty() {
        return Err("it has no files".to_owned());
    }
    for file in files {
        let is_whole = match destination {
            Destination::Dataset => is_parquet(&folder.join(&file)),
            Destination::Otlp => is_gzip(&folder.join(&file)),
        };
        match is_whole {
            Ok(true) => {}
            Ok(false) => return Err(format!("{} is empty or cut", file.display())),
            Err(error) => return Err(format!("{}: {error}", file.display())),
        }
    }
    Ok(())
}

/// The length of a file, its first and its last bytes.
struct FileEnds<const FIRST: usize, const LAST: usize> {
    length: u64,
    first: [u8; FIRST],
    last: [u8; LAST],
}

/// The ends of a file that is not shorter than `smallest`.
fn ends<const FIRST: usize, const LAST: usize>(
    path: &Path,
    smallest: u64,
) -> io::Result<Option<FileEnds<FIRST, LAST>>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length < smallest {
        return Ok(None);
    }
    let (mut first, mut last) = ([0; FIRST], [0; LAST]);
    file.read_exact(&mut first)?;
    file.seek(SeekFrom::End(-(LAST as i64)))?;
    file.read_exact(&mut last)?;
    Ok(Some(FileEnds { length, first, last }))
}

fn is_parquet(path: &Path) -> io::Result<bool> {
    let Some(FileEnds { length, first, last }) = ends::<4, 8>(path, SMALLEST_PARQUET)? else {
        return Ok(false);
    };
    let [a, b, c, d, mark @ ..] = last;
    let footer = u64::from(u32::from_le_bytes([a, b, c, d]));
    Ok(first == *PARQUET && mark == *PARQUET && footer > 0 && footer <= length - SMALLEST_PARQUET)
}

fn is_gzip(path: &Path) -> io::Result<bool> {
    let found = ends::<2, 8>(path, SMALLEST_GZIP)?;
    // Blocks that never reached the disk are zeros; a request has bytes, so its length is none.
    Ok(found.is_some_and(|FileEnds { first, last, .. }| first == GZIP && last != [0; 8]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Checks that whole files are taken, and those that a power cut leaves are not: empty ones,
    /// cut ones, zeros of the right length, and batches without any file.
    #[test]
    fn files_that_are_cut_are_found() {
        let whole = [b"PAR1".as_slice(), &[7; 20], &20_u32.to_le_bytes(), b"PAR1"].concat();
        let gzip = [&[0x1f, 0x8b, 8, 0][..], &[1; 16], &[9; 8]].concat();
        let checked = |bytes: &[u8], destination| {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("frames")).unwrap();
            fs::write(folder.path().join("frames/x.parquet"), bytes).unwrap();
            check(folder.path(), destination)
        };
        assert_eq!(checked(&whole, Destination::Dataset), Ok(()));
        assert_eq!(checked(&gzip, Destination::Otlp), Ok(()));
        let is_cut = Err("frames/x.parquet is empty or cut".to_owned());
        for length in 0..whole.len() {
            assert_eq!(checked(&whole[..length], Destination::Dataset), is_cut, "{length} bytes");
        }
        let zeros = |bytes: &[u8], from: usize| -> Vec<u8> {
            bytes.iter().enumerate().map(|(at, byte)| if at < from { *byte } else { 0 }).collect()
        };
        for from in [0, 4, whole.len() - 4] {
            assert_eq!(checked(&zeros(&whole, from), Destination::Dataset), is_cut);
        }
        let too_long = [b"PAR1".as_slice(), &[7; 20], &21_u32.to_le_bytes(), b"PAR1"].concat();
        assert_eq!(checked(&too_long, Destination::Dataset), is_cut);
        for bytes in [&[][..], &gzip[..17], &zeros(&gzip, 0), &zeros(&gzip, 20)] {
            assert_eq!(checked(bytes, Destination::Otlp), is_cut);
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(check(empty.path(), Destination::Dataset).is_err());
    }
}
