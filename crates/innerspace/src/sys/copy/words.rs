//! The portable form: relaxed atomic words, with smaller atomics at the ends of a range.
//!
//! The language leaves races between atomics of different sizes on the same bytes undefined. Every
//! processor that we know of defines such races. They arise here only where two threads race with
//! ranges that are not aligned alike, or with typed accesses of another size.

use super::form::{Form, copy_by};
use super::pieces::{Shared, Source, Target, WORD};

/// The form that uses relaxed atomic words.
#[derive(Debug)]
pub(super) struct Words;

/// Iterates over the offset of each word. In the middle it lets a model look at the unfinished
/// operation.
#[inline(always)]
fn offsets(words: usize) -> impl Iterator<Item = usize> {
    (0..words).map(move |word| {
        if cfg!(shuttle) && word == words / 2 {
            crate::sync::interleave();
        }
        word * WORD
    })
}

impl Form for Words {
    unsafe fn still_in(dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise. The copy goes word by word, because a plain copy would be a
        // data race with a thread that writes the bytes after all.
        unsafe { copy_by::<Words, Source>(dst, src, len) }
    }

    #[inline]
    unsafe fn words<S: Shared>(dst: *mut u8, src: *const u8, words: usize) {
        for at in offsets(words) {
            // SAFETY: the trait's promise covers the first `words` words of both ranges.
            unsafe { S::piece(dst.add(at), src.add(at), WORD) }
        }
    }

    #[inline]
    unsafe fn words_across(dst: *mut u64, src: *const u64, words: usize) {
        let (dst, src) = (dst.cast::<u8>(), src.cast::<u8>());
        for at in offsets(words) {
            let mut word = [0; WORD];
            // SAFETY: as above.
            unsafe {
                Source::piece(word.as_mut_ptr(), src.add(at), WORD);
                Target::piece(dst.add(at), word.as_ptr(), WORD);
            }
        }
    }

    #[inline]
    unsafe fn words_fill(dst: *mut u64, value: u64, words: usize) {
        for at in offsets(words) {
            // SAFETY: as above.
            unsafe { Target::piece(dst.cast::<u8>().add(at), value.to_ne_bytes().as_ptr(), WORD) }
        }
    }
}
