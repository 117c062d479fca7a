//! Marks of use, and the bit of the hold word that says that a use makes none.
//!
//! A use looks at the flags of its block: UPTODATE, and whether REFERENCED or ACTIVE is to be set. A block that has all three is *hot*: COLD
//! is not set in its hold word, and a view looks at that word alone.
//!
//! | step | by |
//! |---|---|
//! | a use finds all three flags, and clears COLD | [`Meta::warm`] |
//! | whoever takes REFERENCED or ACTIVE away sets COLD | [`Meta::take_mark`] |
//!
//! Whichever comes first, a hot block has all three when both are over: each changes the word after it has changed the flags, or before
//! it looks at them. UPTODATE stays as long as the block is cached. Meanwhile, or of a frame that begins another life between the two steps of
//! `take_mark`, uses may go without a mark until the next one is taken away: a hint that was lost.

use super::flags::FlagSet;
use super::meta::Meta;

impl Meta {
    /// A use of this block, which the caller holds, found [`FlagSet::IN_USE`]: the next need not look.
    #[inline]
    pub(crate) fn warm(&self) {
        if !self.hold.load().is_cold() {
            return;
        }
        self.hold.warm();
        // mutant: H1 (loom: a_hot_block_has_no_mark_to_make) a mark that was taken away meanwhile is not seen
        if !self.flags.load().contains(FlagSet::IN_USE) && !cfg!(mutant = "H1") {
            self.hold.cool();
        }
    }

    /// Takes marks of use away, and returns the flags before. The frame may be another one by now.
    pub(crate) fn take_mark(&self, mark: FlagSet) -> FlagSet {
        let before = self.flags.test_and_clear(mark);
        // mutant: H2 (test: a_page_in_use_is_hot_until_a_mark_is_taken_from_it) it stays hot
        if before.contains(FlagSet::IN_USE) && !cfg!(mutant = "H2") {
            self.hold.cool();
        }
        before
    }
}
