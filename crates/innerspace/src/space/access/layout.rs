//! The addresses that a hit reads, for programs that generate code: with these addresses, a hit of
//! the generated code needs no call. Available with the feature `layout`.
//!
//! [`TranslationLayout`] contains only addresses and numbers, and lists the duties of code that
//! reads through them.

use std::mem::offset_of;

use super::accessor::Accessor;
use crate::PAGE_SIZE;
use crate::space::core::address::LEAF_SHIFT;
use crate::space::table::pte;
use crate::space::tlb::place;
use crate::space::tlb::translator::{LEAVES, Tags, Translator};

/// Tells generated code how to make an access that hits, and how to recognise one that needs a
/// call.
///
/// The code runs inside a [`Session`](crate::space::Session) of the accessor, on the session's
/// thread, and nowhere else. For an access of `size` bytes at the address `at` it takes the steps
/// below. As soon as a condition does not hold, it calls the session's own `load`, `store` or
/// `fetch` instead, which finds the page or says why there is none:
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
/// The sums in steps 5 and 6 wrap around. A coalesced place belongs to pages that are contiguous
/// and all valid for loads and stores.
///
/// - The code must not keep anything that it reads in steps 1 to 6 from one access to the next: the
///   library may change it during any call, and other threads may change the words of steps 1 and 6
///   at any time. The addresses in this struct stay the same while the accessor lives, even if it
///   is moved, and may be built into the code.
/// - Other accessors load and store the same bytes at the same time. So the access in step 5 or 8
///   must use instructions that allow this, as every plain load and store of up to 8 bytes does on
///   x86-64 and aarch64. For an atomic access, the code must check the alignment itself.
/// - A session keeps other threads waiting until its next safepoint. While a thread waits for the
///   session, `[current]` is the address of tags that match no leaf. So the next access of the code
///   misses and makes a call, which is a safepoint. A loop without accesses must itself check
///   whether `[current]` differs from `tags`, and call
///   [`Session::safepoint`](crate::space::Session::safepoint) if so.
/// - The first store to a page after it is watched ([`Accessor::watch_code`]) is a call, because
///   the page is not valid for stores.
///
/// The values of the constants may change in the next version of the library: use the names.
///
/// ```
/// # use innerspace::{MIB, Map, Memory, space::TranslationLayout};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(4 * MIB)?;
/// let space = memory.create_space()?;
/// let at = space.map(Map::anonymous(4096))?;
/// let mut accessor = space.accessor()?;
/// let layout: TranslationLayout = accessor.layout();
/// accessor.session(|session| {
///     session.store(at, 5u64)?; // the page is there now, and its leaf remembered
///     // SAFETY: in the session, on its thread; the accessor lives.
///     let shown = unsafe { layout.current.read_volatile() };
///     assert_eq!(shown, layout.tags, "nobody wants anything");
///     let leaf = at.0 >> TranslationLayout::LEAF_SHIFT;
///     // SAFETY: as above; the write tags are at this offset.
///     let tags = unsafe { shown.byte_add(TranslationLayout::WRITE_TAGS) };
///     assert_eq!(unsafe { tags.add(leaf as usize % TranslationLayout::LEAVES).read() }, leaf);
///     Ok::<(), innerspace::space::Fault>(())
/// })?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TranslationLayout {
    /// The address of a word that contains the address of the current tags. Any thread may write
    /// this word.
    pub current: *const *const u64,
    /// The address in the word at `current` while there is no request to this accessor.
    pub tags: *const u64,
    /// The address of an array with an element for each of the [`LEAVES`](Self::LEAVES) slots. The
    /// element is the address of the leaf's first word, minus 8 times the number of the leaf's
    /// first page: adding 8 times the number of a page gives the address of the page's word. If
    /// [`COALESCED`](Self::COALESCED) is set in the element, its other bits are instead the address
    /// of the leaf's first byte, minus the address in the space at which the leaf begins: adding an
    /// address in the space gives the address of the byte there. Both sums wrap around.
    pub words: *const *const u64,
}

impl TranslationLayout {
    /// Returns the addresses that a hit in `translator` reads.
    pub(crate) fn of(translator: &Translator) -> TranslationLayout {
        TranslationLayout {
            current: translator.sections.visible_word().as_ptr().cast(),
            tags: translator.leaves.tags().cast(),
            words: translator.leaves.places(),
        }
    }

    /// The number of bits by which an address is shifted right to give the number of its leaf.
    pub const LEAF_SHIFT: u32 = LEAF_SHIFT;
    /// The number of leaves that are remembered, a power of two.
    pub const LEAVES: usize = LEAVES;
    /// The offset in bytes, from the start of the tags, of the tags for loads and fetches.
    pub const READ_TAGS: usize = offset_of!(Tags, read);
    /// The offset in bytes, from the start of the tags, of the tags for stores.
    pub const WRITE_TAGS: usize = offset_of!(Tags, write);
    /// A bit in an element of `words`. If it is set, the leaf's pages are contiguous, and the other
    /// bits lead to their bytes instead of their words.
    pub const COALESCED: usize = place::COALESCED;
    /// A bit of a leaf's word: the page may be loaded from.
    pub const VALID_READ: u64 = pte::VALID_R;
    /// A bit of a leaf's word: the page may be stored to.
    pub const VALID_WRITE: u64 = pte::VALID_W;
    /// A bit of a leaf's word: the page may be fetched from.
    pub const VALID_FETCH: u64 = pte::VALID_X;
    /// The bits of a leaf's word that are the address of the page's bytes.
    pub const HOST: u64 = !(PAGE_SIZE as u64 - 1);
}

impl Accessor {
    /// Returns the addresses of this accessor's translations, for generated code; see
    /// [`TranslationLayout`].
    pub fn layout(&self) -> TranslationLayout {
        TranslationLayout::of(&self.core.translator)
    }
}
