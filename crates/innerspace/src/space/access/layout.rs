//! Where an accessor keeps what it translates by, for programs that generate code: a hit then takes
//! no call. With the feature `layout`.
//!
//! The struct has addresses and numbers alone. Code that reads through them has the duties that
//! [`TranslationLayout`] names.

use std::mem::offset_of;

use super::accessor::Accessor;
use crate::PAGE_SIZE;
use crate::space::core::address::LEAF_SHIFT;
use crate::space::table::pte;
use crate::space::tlb::place;
use crate::space::tlb::translator::{LEAVES, Tags, Translator};

/// What generated code needs in order to make an access that hits by itself, and to see that it has
/// to call for all others.
///
/// The code runs inside a [`Session`](crate::Session) of the accessor, on the session's thread, and
/// nowhere else. For an access of `size` bytes at the address `at` it does the following, and calls
/// the session's own `load`, `store` or `fetch` instead (which finds the page, or says why there is
/// none) as soon as one of the conditions does not hold:
///
/// ```text
/// 1  visible = [current]                        64 bits; before every access
/// 2  leaf = at >> LEAF_SHIFT;  slot = leaf % LEAVES
/// 3  [visible + tags + 8 * slot] = leaf         READ_TAGS for loads and fetches,
///                                               WRITE_TAGS for stores
/// 4  at % PAGE_SIZE <= PAGE_SIZE - size
/// 5  place = words[slot]
///    place & COALESCED <> 0: access the `size` bytes at place - COALESCED + at,
///                            and be done; but not for fetches
/// 6  word = [place + 8 * (at >> PAGE_SHIFT)]    one load of 64 bits, Acquire
/// 7  word & valid <> 0                          VALID_READ, VALID_WRITE or VALID_FETCH
/// 8  access the `size` bytes at (word & HOST) + at % PAGE_SIZE
/// ```
///
/// The sums of 5 and 6 wrap around. A coalesced place belongs to pages that lie in a row, all valid
/// for loads and stores.
///
/// - All that is read in 1 to 6 may be written by this library whenever the code calls it, and the
///   words of 1 and 6 by other threads at any time: the code must not keep any of it from one
///   access to the next. The addresses in this struct stay as they are for as long as the accessor
///   lives, wherever it is moved, and may be built into the code.
/// - Other accessors load and store the same bytes at the same time: the access of 5 or 8 has to be
///   made by instructions that allow for that, as every plain load and store of up to 8 bytes does
///   on x86-64 and aarch64. An atomic access has to be aligned, by a check of the code's own.
/// - A session keeps others waiting until its next safepoint: `[current]` becomes the address of
///   tags that are no leaf's, so the next access of the code does not hit, and makes a call, which
///   is a safepoint. A loop without accesses has to check for itself whether `[current]` differs
///   from `tags`, and call [`Session::safepoint`](crate::Session::safepoint) if so.
/// - Stores to pages that are watched ([`Accessor::watch_code`]) are not made valid for writing, so
///   they are calls at first.
///
/// The numbers are those of this version of the library, and may be others in the next one: use the
/// names.
///
/// ```
/// # use innerspace::{MIB, Map, Memory, TranslationLayout};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(4 * MIB)?;
/// let space = memory.space()?;
/// let at = space.map(Map::anonymous(4096))?;
/// let mut accessor = space.accessor()?;
/// let layout: TranslationLayout = accessor.layout();
/// accessor.session(|session| {
///     session.store(at, 5u64)?; // the page is there now, and its leaf remembered
///     // SAFETY: in the session, on its thread; the accessor lives.
///     let shown = unsafe { layout.current.read_volatile() };
///     assert_eq!(shown, layout.tags, "nobody wants anything");
///     let leaf = at.0 >> TranslationLayout::LEAF_SHIFT;
///     // SAFETY: as above; so many numbers are there.
///     let tags = unsafe { shown.byte_add(TranslationLayout::WRITE_TAGS) };
///     assert_eq!(unsafe { tags.add(leaf as usize % TranslationLayout::LEAVES).read() }, leaf);
///     Ok::<(), innerspace::Fault>(())
/// })?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TranslationLayout {
    /// A word with the address of the tags to look at. Written by any thread.
    pub current: *const *const u64,
    /// That address while there is no request to this accessor.
    pub tags: *const u64,
    /// For each of [`LEAVES`](Self::LEAVES) tags, where the leaf's words would begin if it started
    /// at address 0; or, if [`COALESCED`](Self::COALESCED) is set, where its pages would.
    pub words: *const *const u64,
}

impl TranslationLayout {
    /// Where generated code finds what a hit in `translator` reads.
    pub(crate) fn of(translator: &Translator) -> TranslationLayout {
        TranslationLayout {
            current: translator.sections.visible_word().as_ptr().cast(),
            tags: translator.tags().cast(),
            words: translator.places(),
        }
    }

    /// Bits of an address below the number of its leaf.
    pub const LEAF_SHIFT: u32 = LEAF_SHIFT;
    /// Leaves that are remembered, a power of two.
    pub const LEAVES: usize = LEAVES;
    /// Where among the tags, in bytes, the numbers of the leaves begin that loads and fetches may
    /// use.
    pub const READ_TAGS: usize = offset_of!(Tags, read);
    /// The same for stores.
    pub const WRITE_TAGS: usize = offset_of!(Tags, write);
    /// In an entry of `words`: it leads to the bytes of the pages, which are contiguous, and not to
    /// their words.
    pub const COALESCED: usize = place::COALESCED;
    /// In a leaf's word: may be loaded from.
    pub const VALID_READ: u64 = pte::VALID_R;
    /// In a leaf's word: may be stored to.
    pub const VALID_WRITE: u64 = pte::VALID_W;
    /// In a leaf's word: may be fetched from.
    pub const VALID_FETCH: u64 = pte::VALID_X;
    /// The bits of a leaf's word that are the address of the page's bytes.
    pub const HOST: u64 = !(PAGE_SIZE as u64 - 1);
}

impl Accessor {
    /// Where this accessor's translations are, for code that is generated; see
    /// [`TranslationLayout`].
    pub fn layout(&self) -> TranslationLayout {
        TranslationLayout::of(&self.core.translator)
    }
}
