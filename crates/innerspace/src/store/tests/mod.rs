//! Tests of the store layer, one file for each backend, and helpers that they share.

mod common;
mod faulty;
mod file;
mod file_full;
mod file_opening;
mod memory;

use super::*;

/// Numbers that look random, and are the same in every run (SplitMix64).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

/// Returns bytes in which no two neighbouring sectors are equal.
pub(super) fn pattern(len: usize, salt: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at ^ (at / 512 * 7) ^ salt) as u8)
        .collect()
}

pub(super) fn read_all(store: &dyn Store) -> Vec<u8> {
    let mut bytes = vec![0xAA; store.len().unwrap() as usize];
    assert_eq!(
        read_exact_or_eof(store, &mut bytes, 0).unwrap(),
        bytes.len()
    );
    bytes
}

/// Applies the same random operations to `store` and to a plain vector, and compares the two after
/// each. Offsets and lengths have any alignment. The operations lengthen, shorten, and make holes
/// by punching and by lengthening.
pub(super) fn compare_with_plain_vector(store: &dyn Store, seed: u64, max_len: u64) {
    let mut dice = Dice(seed);
    let mut plain: Vec<u8> = Vec::new();
    for round in 0..120 {
        let offset = dice.roll(max_len) as usize;
        // One in three operations is on whole pages, which direct I/O treats differently.
        let offset = if dice.roll(3) == 0 {
            offset & !4095
        } else {
            offset
        };
        let len = dice.roll(max_len / 8) as usize + 1;
        let len = if dice.roll(3) == 0 {
            len.next_multiple_of(4096)
        } else {
            len
        };
        match dice.roll(8) {
            0..=2 => {
                let bytes = pattern(len, round);
                plain.resize(plain.len().max(offset + len), 0);
                plain[offset..offset + len].copy_from_slice(&bytes);
                if round % 2 == 0 {
                    write_all_at(store, &bytes, offset as u64).unwrap();
                } else {
                    let (a, b) = bytes.split_at(len / 3);
                    let mut parts = [IoSlice::new(a), IoSlice::new(&[]), IoSlice::new(b)];
                    write_all_vectored_at(store, &mut parts, offset as u64).unwrap();
                }
            }
            3 => {
                let len = plain.len() / 2 + dice.roll(max_len / 2) as usize;
                plain.resize(len, 0);
                store.set_len(len as u64).unwrap();
            }
            4 => {
                let (begin, end) = (offset.min(plain.len()), (offset + len).min(plain.len()));
                plain[begin..end].fill(0);
                store.punch(offset as u64, len as u64).unwrap();
            }
            5 => store.sync(SyncWhat::Data).unwrap(),
            _ => {
                let mut got = vec![0x55; len];
                let count = read_exact_or_eof(store, &mut got, offset as u64).unwrap();
                let begin = offset.min(plain.len());
                let expected = &plain[begin..(offset + len).min(plain.len()).max(begin)];
                assert!(
                    got[..count] == *expected,
                    "seed {seed} round {round} at {offset}+{len}"
                );
            }
        }
        assert_eq!(
            store.len().unwrap(),
            plain.len() as u64,
            "seed {seed} round {round}"
        );
        check_holes(store, &plain, dice.roll(max_len));
    }
    assert!(read_all(store) == plain, "seed {seed}");
}

/// Compares the holes that the store reports from `offset` on with `plain`.
fn check_holes(store: &dyn Store, plain: &[u8], offset: u64) {
    let is_zero = |from: u64, to: u64| plain[from as usize..to as usize].iter().all(|&b| b == 0);
    let len = plain.len() as u64;
    match store.next_data(offset).unwrap() {
        Some(data) => assert!(offset <= data && data < len && is_zero(offset, data)),
        None => assert!(offset >= len || is_zero(offset, len)),
    }
    let hole = store.next_hole(offset).unwrap();
    assert!(
        offset <= hole && hole <= len.max(offset),
        "{offset} {hole} {len}"
    );
}
