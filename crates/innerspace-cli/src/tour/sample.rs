//! The sample file: half data, half holes, the same every time.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use innerspace::MIB;

use crate::data::Random;

/// The size of the pieces in which data and holes alternate.
const PIECE: u64 = MIB;

/// Makes a file of `size` bytes. Calls `progress` with the bytes done so far.
pub(super) fn make(path: &Path, size: u64, progress: impl Fn(u64)) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.set_len(size)?;
    let mut piece = vec![0; PIECE.min(size) as usize];
    let mut random = Random::new(1);
    for offset in (0..size).step_by(2 * PIECE as usize) {
        let len = PIECE.min(size - offset) as usize;
        random.fill(&mut piece[..len]);
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(&piece[..len])?;
        progress(offset + len as u64);
    }
    // The kernel cannot drop data from its cache before the data is on the disk, and later rounds
    // need an empty cache.
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_data_and_holes_and_is_the_same_every_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample");
        let mut seen = Vec::new();
        for _ in 0..2 {
            make(&path, 2 * PIECE + 5, |_| ()).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(bytes.len() as u64, 2 * PIECE + 5);
            let (data, hole) = bytes.split_at(PIECE as usize);
            assert!(data.iter().filter(|&&byte| byte != 0).count() > data.len() / 2);
            assert!(hole[..PIECE as usize].iter().all(|&byte| byte == 0));
            seen.push(bytes);
        }
        assert!(seen[0] == seen[1]);
        make(&path, 0, |_| ()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }
}
