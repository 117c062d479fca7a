//! Numbers that look random, and checksums.

/// Numbers that look random and are the same every time (xorshift64*).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// A checksum of bytes handed over in pieces, all but the last of which are whole words of 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Checksum(pub(crate) u64);

impl Checksum {
    pub(crate) fn new() -> Checksum {
        Checksum(0xcbf2_9ce4_8422_2325)
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
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
}
