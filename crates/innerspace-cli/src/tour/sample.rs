//! The sample file: half data, half holes, the same every time.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use innerspace::MIB;

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

/// Numbers that look random and are the same every time (xorshift64*).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// A checksum of bytes handed over in pieces, all but the last of which are whole words of 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Checksum(pub(super) u64);

impl Checksum {
    pub(super) fn new() -> Checksum {
        Checksum(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in words.by_ref() {
            self.mix(u64::from_le_bytes(word.try_into().expect("8 bytes")));
        }
        for &byte in words.remainder() {
            self.mix(byte.into());
        }
    }

    fn mix(&mut self, word: u64) {
        self.0 = (self.0 ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
}

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_does_not_depend_on_the_pieces_but_on_every_byte() {
        let mut bytes = vec![0; 1003];
        Random::new(7).fill(&mut bytes);
        let sum = |bytes: &[u8], piece| {
            let mut sum = Checksum::new();
            bytes.chunks(piece).for_each(|piece| sum.add(piece));
            sum
        };
        let whole = sum(&bytes, 1003);
        assert_eq!(sum(&bytes, 8), whole);
        assert_eq!(sum(&bytes, 256), whole);
        for at in [0, 500, 1002] {
            bytes[at] ^= 1;
            assert_ne!(sum(&bytes, 1003), whole);
            bytes[at] ^= 1;
        }
        assert_ne!(sum(&bytes[..1002], 1003), whole);
    }

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
