//! The content that the rows of writes write, and the check that the file holds it, to the last
//! byte.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::file::{CHUNK, PIECE, Random, drop_of_file, filler, number};
use super::rows::Work;
use super::{Fallible, interrupted};
use crate::host::PAGE;

/// The number of bytes that one call writes in the row that appends, and in the row that loads a
/// file. The content repeats after this many bytes, except for the numbers of the pages.
pub(super) const APPENDED: usize = 64 << 10;
pub(super) const LOADED: usize = 1 << 20;

/// One step of the row of reads and writes, on the piece at `at`.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Read {
        at: u64,
    },
    /// The mark distinguishes this write from every other one.
    Write {
        at: u64,
        mark: u64,
    },
}

/// Returns the steps of a run: the same places for the same seed, with marks that count from
/// `mark`.
pub(super) fn steps(seed: u64, mark: u64, bytes: u64, count: u64) -> impl Iterator<Item = Step> {
    let (mut places, mut marks) = (Random::new(seed), Random::new(mark));
    (0..count).map(move |_| {
        let at = places.below(bytes / PIECE as u64) * PIECE as u64;
        match places.below(10) {
            0..3 => Step::Write {
                at,
                mark: marks.next(),
            },
            _ => Step::Read { at },
        }
    })
}

/// Puts the page's number and the mark into the bytes of the piece at `at`.
pub(super) fn piece(bytes: &mut [u8], at: u64, mark: u64) {
    bytes[..8].copy_from_slice(&(at / PAGE as u64).to_le_bytes());
    bytes[8..16].copy_from_slice(&mark.to_le_bytes());
}

/// The pieces of the file that were written since it was created: the last mark of each, by offset.
#[derive(Debug, Default)]
pub(super) struct Marks(BTreeMap<u64, u64>);

impl Marks {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Notes the writes of a run.
    pub(super) fn add(&mut self, steps: impl Iterator<Item = Step>) {
        for step in steps {
            if let Step::Write { at, mark } = step {
                self.0.insert(at, mark);
            }
        }
    }

    /// Checks that the first `bytes` of the file are as they were created, except for these writes.
    pub(super) fn check(&self, path: &Path, bytes: u64) -> Fallible {
        let mut written = filler(PIECE);
        compare(path, bytes, CHUNK, |expected, start| {
            for (&at, &mark) in self.0.range(start..start + CHUNK as u64) {
                piece(&mut written, at, mark);
                expected[(at - start) as usize..][..PIECE].copy_from_slice(&written);
            }
        })
    }
}

/// Checks a file that a row has created.
pub(super) fn check_new(path: &Path, work: Work) -> Fallible {
    let (bytes, pattern) = match work {
        Work::Append { bytes } => (bytes, APPENDED),
        Work::Load { bytes } => (bytes, LOADED),
        work => return Err(format!("{work:?} makes no file").into()),
    };
    let found = File::open(path)?.metadata()?.len();
    if found != bytes {
        return Err(format!("{bytes} bytes were written, and the file has {found}").into());
    }
    compare(path, bytes, pattern, |_, _| ())
}

/// Compares a file with repetitions of a filler, numbered and then changed by `change`.
fn compare(
    path: &Path,
    bytes: u64,
    pattern: usize,
    mut change: impl FnMut(&mut [u8], u64),
) -> Fallible {
    let file = File::open(path)?;
    // The bytes must come from the disk, not from the kernel's cache.
    drop_of_file(&file);
    let filler = filler(pattern);
    let mut expected = vec![0; pattern];
    let mut found = vec![0; pattern];
    for start in (0..bytes).step_by(pattern) {
        interrupted()?;
        expected.copy_from_slice(&filler);
        number(&mut expected, start);
        change(&mut expected, start);
        let len = (bytes - start).min(pattern as u64) as usize;
        file.read_exact_at(&mut found[..len], start)?;
        if found[..len] != expected[..len] {
            let differs = (0..len).find(|&at| found[at] != expected[at]);
            let at = start + differs.unwrap_or(0) as u64;
            return Err(format!("byte {at} of the file is not what was written").into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::MIB;
    use crate::disk::file::OwnFile;

    fn overwrite(path: &Path, bytes: &[u8], at: u64) {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(bytes, at).unwrap();
    }

    fn error(checked: Fallible) -> String {
        checked.unwrap_err().to_string()
    }

    #[test]
    fn a_write_that_is_lost_or_changed_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let file = OwnFile::named(folder.path(), "marks");
        file.make(2 * MIB).unwrap();
        let mut marks = Marks::default();
        marks.check(&file.path, 2 * MIB).unwrap();
        marks.add(steps(1, 2, 2 * MIB, 100));
        let (&last, _) = marks.0.last_key_value().unwrap();
        assert!(error(marks.check(&file.path, 2 * MIB)).contains("is not what was written"));
        let mut bytes = filler(PIECE);
        for (&at, &mark) in &marks.0 {
            piece(&mut bytes, at, mark);
            overwrite(&file.path, &bytes, at);
        }
        marks.check(&file.path, 2 * MIB).unwrap();
        let at = last + PIECE as u64 - 1;
        overwrite(&file.path, &[!bytes[PIECE - 1]], at);
        let text = format!("byte {at} of the file is not what was written");
        assert_eq!(error(marks.check(&file.path, 2 * MIB)), text);
    }

    #[test]
    fn a_new_file_that_is_short_or_changed_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let file = OwnFile::named(folder.path(), "new");
        file.make(2 * MIB).unwrap();
        let work = |bytes| Work::Load { bytes };
        check_new(&file.path, work(2 * MIB)).unwrap();
        assert!(error(check_new(&file.path, work(3 * MIB))).contains("the file has 2097152"));
        overwrite(&file.path, b"x", MIB + 5000);
        let text = "byte 1053576 of the file is not what was written";
        assert_eq!(error(check_new(&file.path, work(2 * MIB))), text);
    }
}
