//! A growing array whose elements never move, for data that is looked up by a group's number.

use crate::sync::OnceLock;

/// log2 of the first chunk's length; each further chunk is twice as long as the one before.
const FIRST_SHIFT: u32 = 4;
/// The number of chunks that covers every `u16`: with the thirteenth, 16 + 32 + ... exceeds 65,536.
const CHUNKS: usize = 13;

/// A slab, in chunks, with an element for each `u16` number. Elements are created on demand, never
/// moved, and not dropped before the slab. So a lookup takes no lock, only two loads (the chunk,
/// the element).
pub(crate) struct Slab<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS],
}

/// Returns the chunk that holds `number`, and the position in it.
const fn place(number: u16) -> (usize, usize) {
    let shifted = number as u32 + (1 << FIRST_SHIFT);
    let chunk = shifted.ilog2() - FIRST_SHIFT;
    let start = (1 << (chunk + FIRST_SHIFT)) - (1 << FIRST_SHIFT);
    (chunk as usize, number as usize - start as usize)
}

const _: () = assert!(place(u16::MAX).0 == CHUNKS - 1);

impl<T> Slab<T> {
    /// Creates an empty slab.
    pub(crate) fn new() -> Slab<T> {
        Slab {
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// Returns the element with this number, if its chunk exists.
    #[inline]
    pub(crate) fn get(&self, number: u16) -> Option<&T> {
        let (chunk, offset) = place(number);
        self.chunks[chunk].get()?.get(offset)
    }

    /// Returns the element with this number. Its chunk is filled by `make` on first use.
    #[inline]
    pub(crate) fn get_or_make(&self, number: u16, make: impl Fn() -> T) -> &T {
        let (chunk, offset) = place(number);
        let elements = self.chunks[chunk].get_or_init(|| {
            (0..1usize << (chunk as u32 + FIRST_SHIFT))
                .map(|_| make())
                .collect()
        });
        &elements[offset]
    }
}

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_place_of_its_own() {
        let mut next = (0, 0);
        for number in 0..=u16::MAX {
            assert_eq!(place(number), next);
            next.1 += 1;
            if next.1 == 1 << (next.0 as u32 + FIRST_SHIFT) {
                next = (next.0 + 1, 0);
            }
        }
    }

    #[test]
    fn elements_stay_where_they_are() {
        let slab = Slab::new();
        assert!(slab.get(3).is_none());
        let first: *const u32 = slab.get_or_make(3, || 7u32);
        slab.get_or_make(60_000, || 9);
        assert!(std::ptr::eq(first, slab.get(3).expect("made above")));
        assert_eq!(slab.get(60_000), Some(&9));
        assert!(slab.get(16).is_none());
    }
}
