//! Compares both forms with plain vectors, and with a second thread (A16).
//!
//! Under Miri these tests need `-Zmiri-disable-weak-memory-emulation`, because that emulation
//! breaks down where words and pieces of them are accessed in turn.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::form::head_of;
use super::pieces::trace;
use super::*;

/// A repeatable source of numbers (xorshift64*, Marsaglia and Vigna).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }

    /// Returns a length that is mostly short and sometimes long, so that every path of a form is
    /// taken.
    fn len(&mut self) -> usize {
        let end = [17, 80, 600, 5000][self.below(4)];
        self.below(end)
    }
}

/// Returns a larger vector of filler bytes that has `bytes` at `offset`.
fn placed(bytes: &[u8], offset: usize) -> Vec<u8> {
    let mut room = vec![0xEE; bytes.len() + 64];
    room[offset..offset + bytes.len()].copy_from_slice(bytes);
    room
}

/// The number of words in a cache line.
const LINE_WORDS: usize = 64 / WORD;

/// Returns the index of the first word that begins a cache line.
fn first_of_line<T>(words: &[T]) -> usize {
    words.as_ptr().addr().wrapping_neg() % 64 / WORD
}

/// Compares the effect of the operations of form `F` on vectors with the expected effect.
fn does_what_plain_copies_do<F: Form>(seed: u64) {
    let mut random = Random(seed);
    for _ in 0..if cfg!(miri) { 60 } else { 4000 } {
        let len = random.len();
        let (from, to) = (random.below(16), random.below(16));
        let (old, new) = (random.bytes(len), random.bytes(len));
        let expected = placed(&new, to);
        let mut source = placed(&new, from);
        let shared = source.as_mut_ptr();

        let check = |name: &str, copy: &dyn Fn(*mut u8, *const u8)| {
            let mut target = placed(&old, to);
            // SAFETY: both vectors have at least `len + 16` bytes.
            unsafe { copy(target.as_mut_ptr().add(to), shared.add(from)) };
            assert_eq!(
                target, expected,
                "{name} of {len} bytes from {from} to {to}"
            );
        };
        // SAFETY: `check` passes ranges of `len` bytes that nothing else uses.
        check("copy_in", &|dst, src| unsafe {
            copy_by::<F, Source>(dst, src, len)
        });
        // SAFETY: as above.
        check("copy_out", &|dst, src| unsafe {
            copy_by::<F, Target>(dst, src, len)
        });
        let (words, _) = new.as_chunks::<WORD>();
        let words: Vec<_> = words.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        let mut shared_words = vec![0; words.len() + 64];
        let mut room = vec![!0; words.len() + 64];
        // Half of the copies are of whole cache lines to whole cache lines.
        let step = [1, LINE_WORDS][random.below(2)];
        let count = words.len() / step * step;
        let first = first_of_line(&shared_words) + from / step * step;
        let to = first_of_line(&room) + to / step * step;
        shared_words[first..first + count].copy_from_slice(&words[..count]);
        // SAFETY: both vectors have that many aligned words from there on.
        unsafe {
            let source = shared_words.as_mut_ptr().add(first);
            F::words_across(room.as_mut_ptr().add(to), source, count);
        }
        let end = to + count;
        assert_eq!(room[to..end], words[..count], "{count} words to {to}");
        let mut around = room[..to].iter().chain(&room[end..]);
        assert!(around.all(|word| *word == !0), "{count} words to {to}");

        // SAFETY: the range is inside the vector.
        unsafe { fill_by::<F>(shared.add(from), 0x5A, len) };
        assert_eq!(
            source,
            placed(&vec![0x5A; len], from),
            "fill of {len} bytes at {from}"
        );
    }
}

#[test]
fn the_portable_form_does_what_plain_copies_do() {
    does_what_plain_copies_do::<Words>(0x1234_5678);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn the_assembly_form_does_what_plain_copies_do() {
    does_what_plain_copies_do::<assembly::Assembly>(0x8765_4321);
}

#[test]
fn pages_past_the_caches_have_the_same_bytes_and_their_neighbours_keep_theirs() {
    #[repr(align(4096))]
    struct Pages([[u8; PAGE_SIZE]; 3]);
    let mut random = Random(7);
    for offset in [0, 1, 8, 63, 64] {
        let source = random.bytes(PAGE_SIZE + offset);
        let page = source[offset..].first_chunk().unwrap();
        let mut target = Box::new(Pages([[0xEE; PAGE_SIZE]; 3]));
        let Some(streaming) = Streaming::begin() else {
            return;
        };
        // SAFETY: the destination is one of three pages that only this thread has.
        unsafe { streaming.copy_page(target.0[1].as_mut_ptr(), page) };
        drop(streaming);
        assert!(target.0[1] == *page, "from {offset}");
        assert!(target.0[0] == [0xEE; PAGE_SIZE] && target.0[2] == [0xEE; PAGE_SIZE]);
    }
}

/// Words that start at a cache line.
#[repr(C, align(64))]
struct Pages<const WORDS: usize>([u64; WORDS]);

fn every_word_is_cleared<F: Form>() {
    const WORDS: usize = PAGE_SIZE / WORD;
    let mut page = Pages([0; 3 * WORDS]);
    for dirty in (0..WORDS).step_by(if cfg!(miri) { 77 } else { 1 }) {
        page.0 = [0; 3 * WORDS];
        for around in [WORDS - 1, WORDS + dirty, 2 * WORDS] {
            page.0[around] = 1 << (dirty % 64);
        }
        // SAFETY: the destination is the second of three pages.
        unsafe { F::page_zero(page.0.as_mut_ptr().add(WORDS)) };
        let left: Vec<_> = (0..3 * WORDS).filter(|word| page.0[*word] != 0).collect();
        assert_eq!(left, [WORDS - 1, 2 * WORDS], "with word {dirty} set");
    }
}

#[test]
fn a_page_is_cleared_whichever_word_is_set() {
    every_word_is_cleared::<Words>();
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    every_word_is_cleared::<assembly::Assembly>();
}

#[test]
fn pages_are_copied_and_cleared_whole() {
    let mut random = Random(5);
    let mut pages = Pages([0; 3 * PAGE_SIZE / WORD]);
    let room = &mut pages.0;
    for word in &mut room[PAGE_SIZE / WORD..] {
        *word = random.below(usize::MAX) as u64;
    }
    let before = *room;
    let pages = room.as_mut_ptr().cast::<u8>();
    // SAFETY: the room has three pages, aligned to 8.
    unsafe { copy_page(pages, pages.add(PAGE_SIZE)) };
    // SAFETY: as above.
    unsafe { zero_page(pages.add(PAGE_SIZE)) };
    let (first, rest) = room.split_at(PAGE_SIZE / WORD);
    let (second, third) = rest.split_at(PAGE_SIZE / WORD);
    assert_eq!(first, &before[PAGE_SIZE / WORD..2 * PAGE_SIZE / WORD]);
    assert!(second.iter().all(|word| *word == 0));
    assert_eq!(third, &before[2 * PAGE_SIZE / WORD..]);
}

#[test]
fn bytes_that_stand_still_are_copied_at_any_length_and_place() {
    let mut random = Random(7);
    for (len, place) in [
        (0, 0),
        (1, 3),
        (63, 1),
        (300, 0),
        (PAGE_SIZE, 5),
        (9_000, 0),
    ] {
        let bytes = random.bytes(len);
        let mut from = placed(&bytes, place);
        let mut to = vec![0; len];
        // SAFETY: `len` bytes from `place` on are inside the vector, and nothing writes them.
        unsafe { copy_still(&mut to, from.as_mut_ptr().add(place)) };
        assert_eq!(to, bytes, "{len} bytes at {place}");
    }
}

/// Panics unless `accesses` touch each of the `len` bytes from `begin` on exactly once, and every
/// aligned word among them as a whole.
fn assert_word_by_word(accesses: &[(usize, usize)], begin: *const u8, len: usize) {
    let begin = begin.addr();
    let mut sizes = vec![0; len];
    for (address, size) in accesses {
        let Some(offset) = address.checked_sub(begin).filter(|offset| *offset < len) else {
            continue;
        };
        assert!(
            address.is_multiple_of(*size),
            "{size} bytes at {address:#x}"
        );
        for byte in &mut sizes[offset..offset + size] {
            assert_eq!(*byte, 0, "byte {offset} of {len} was accessed twice");
            *byte = *size;
        }
    }
    for (offset, size) in sizes.iter().enumerate() {
        let word = (begin + offset) / WORD * WORD;
        let whole = word >= begin && word + WORD <= begin + len;
        assert!(
            *size == WORD || (!whole && *size > 0),
            "byte {offset} of {len}: {size} bytes"
        );
    }
}

// spec: A16
#[test]
fn each_word_in_the_range_is_one_access() {
    let mut random = Random(16);
    let mut rooms = [vec![0_u64; 700], vec![0; 700]];
    let [ours, theirs] = rooms.each_mut().map(|room| room.as_mut_ptr().cast::<u8>());
    let mut private = vec![0_u8; 6000];
    for _ in 0..if cfg!(miri) { 60 } else { 4000 } {
        let len = random.len();
        // SAFETY: both rooms have at least `len` + 22 bytes.
        let (a, b) = unsafe { (ours.add(random.below(16)), theirs.add(random.below(16))) };
        // SAFETY: both ranges have `len` bytes, which nothing else uses.
        let copied_in =
            trace::of(|| unsafe { copy_by::<Words, Source>(private.as_mut_ptr(), a, len) });
        assert_word_by_word(&copied_in, a, len);
        // SAFETY: as above.
        let copied_out =
            trace::of(|| unsafe { copy_by::<Words, Target>(a, private.as_ptr(), len) });
        assert_word_by_word(&copied_out, a, len);
        // SAFETY: as above.
        let filled = trace::of(|| unsafe { fill_by::<Words>(a, 1, len) });
        assert_word_by_word(&filled, a, len);
        let [a, b] = [a, b].map(|at| at.wrapping_add(head_of(at, WORD)));
        let words = len / WORD;
        // SAFETY: as above; both ranges have at least 7 bytes more.
        let across = trace::of(|| unsafe { Words::words_across(a.cast(), b.cast(), words) });
        assert_word_by_word(&across, a, words * WORD);
        assert_word_by_word(&across, b, words * WORD);
    }
}

/// Memory for which two threads race. It begins at a cache line.
struct Raced {
    room: Vec<AtomicU64>,
    /// The part of the room that is used.
    used: Range<usize>,
}

impl Raced {
    fn new(words: usize) -> Raced {
        let room: Vec<_> = (0..words + LINE_WORDS).map(|_| AtomicU64::new(0)).collect();
        let first = first_of_line(&room);
        Raced {
            room,
            used: first..first + words,
        }
    }

    fn words(&self) -> &[AtomicU64] {
        &self.room[self.used.clone()]
    }

    /// Returns the address of a byte, which must be inside the memory.
    fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: callers stay inside the words.
        unsafe { self.words().as_ptr().cast_mut().cast::<u8>().add(offset) }
    }

    /// Writes every word once. All bytes of a word equal `byte`.
    fn write_words(&self, byte: u8) {
        for word in self.words() {
            word.store(u64::from_ne_bytes([byte; WORD]), Ordering::Relaxed);
        }
    }

    /// Returns the beginning and the length of a range that covers all but the first two and the
    /// last two words, and that begins and ends inside those. Under Miri it consists of whole
    /// words, because Miri refuses races between atomics of different sizes.
    fn range(&self, random: &mut Random) -> (usize, usize) {
        let step = if cfg!(miri) { WORD } else { 1 };
        let (begin, end) = (random.below(16), self.used.len() * WORD - random.below(16));
        (
            begin / step * step,
            (end - begin / step * step) / step * step,
        )
    }

    /// Reads the words that are inside every [`Raced::range`], and returns the last byte.
    ///
    /// Panics if a word is a mixture of two that were written.
    fn look(&self) -> u8 {
        let mut last = 0;
        for word in &self.words()[3..self.used.len() - 3] {
            let bytes = word.load(Ordering::Relaxed).to_ne_bytes();
            assert_whole(bytes);
            last = bytes[WORD - 1];
        }
        last
    }
}

/// Panics unless all bytes of a word are equal.
fn assert_whole(bytes: [u8; WORD]) {
    assert!(bytes == [bytes[0]; WORD], "a word was torn: {bytes:x?}");
}

/// Runs `theirs` over and over in a second thread while `ours` runs at least `races` times, and
/// until the values that `ours` returns have changed often enough to prove that the two raced.
fn race(races: usize, mut theirs: impl FnMut(u8) + Send, mut ours: impl FnMut() -> u8) {
    struct Finish<'a>(&'a AtomicBool);
    impl Drop for Finish<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let least_changes = if cfg!(miri) { 1 } else { 10 };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in (0..=u8::MAX).cycle() {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                theirs(turn);
            }
        });
        // Ends the other thread even if an assertion in `ours` fails.
        let _finish = Finish(&done);
        let (mut changes, mut turns, mut last) = (0, 0, 0);
        while turns < races || changes < least_changes {
            let seen = ours();
            changes += usize::from(seen != last);
            (turns, last) = (turns + 1, seen);
            if turns > races || cfg!(miri) {
                std::thread::yield_now();
            }
        }
    });
}

/// Runs the races for every direction of copying. The second thread writes words whose bytes are
/// all equal.
fn words_stay_whole<F: Form>(words: usize) {
    let (raced, other) = (Raced::new(words), Raced::new(words));
    // About the same work for each size. Short ranges race most often, so their ends do too.
    let races = if cfg!(miri) { 8 } else { 16_000 / words };
    let (mut ours, mut theirs) = (Random(0xA16), Random(0xB16));

    // First race: words are written while they are copied in.
    let mut private = vec![0; words * WORD + 16];
    race(
        races,
        |turn| raced.write_words(turn),
        || {
            let ((begin, len), to) = (raced.range(&mut ours), ours.below(16));
            // SAFETY: the range is inside `raced`, and `private` is 16 bytes longer than `raced`.
            unsafe { copy_by::<F, Source>(private.as_mut_ptr().add(to), raced.at(begin), len) };
            let copied = &private[to..to + len][head_of(raced.at(begin), len)..];
            let (words, _) = copied.as_chunks::<WORD>();
            words.iter().for_each(|word| assert_whole(*word));
            copied[0]
        },
    );

    // Second race: words are read while they are copied out and filled.
    let mut private = vec![0; words * WORD + 16];
    race(
        races,
        |turn| {
            let ((begin, len), from) = (raced.range(&mut theirs), theirs.below(16));
            private.fill(turn);
            // SAFETY: as above.
            unsafe {
                copy_by::<F, Target>(raced.at(begin), private.as_ptr().add(from), len);
                fill_by::<F>(raced.at(begin), !turn, len);
            }
        },
        || raced.look(),
    );

    // Third and fourth race: words are copied to words while the source is written, and then while
    // the destination is read. Half of the copies are of all words, and so of whole cache lines if
    // the memory consists of such.
    let copy = |random: &mut Random| {
        let (begin, len) = match random.below(2) {
            0 => (0, words * WORD),
            _ => raced.range(random),
        };
        let words = begin.div_ceil(WORD)..(begin + len) / WORD;
        let (to, from) = (other.at(words.start * WORD), raced.at(words.start * WORD));
        // SAFETY: both have that many aligned words from there on.
        unsafe { F::words_across(to.cast(), from.cast(), words.len()) };
    };
    other.write_words(0);
    race(
        races,
        |turn| raced.write_words(turn),
        || {
            copy(&mut ours);
            other.look()
        },
    );
    race(
        races,
        |turn| {
            raced.write_words(turn);
            copy(&mut theirs);
        },
        || other.look(),
    );
}

// spec: A16
#[test]
fn raced_words_stay_whole_in_the_portable_form() {
    words_stay_whole::<Words>(12);
    words_stay_whole::<Words>(if cfg!(miri) { 40 } else { 640 });
}

// spec: A16
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn raced_words_stay_whole_in_the_assembly_form() {
    words_stay_whole::<assembly::Assembly>(12);
    words_stay_whole::<assembly::Assembly>(24);
    words_stay_whole::<assembly::Assembly>(30);
    words_stay_whole::<assembly::Assembly>(640);
}
