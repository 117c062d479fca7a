//! Marks of use, and the bit of the hold word that tells that a use makes none.
//!
//! A use looks at the flags of its block: UPTODATE, and whether REFERENCED, ACTIVE or AGAIN is to
//! be set. A block that has all that a use can set ([`Meta::is_marked`]) is *hot*: COLD is not set
//! in its hold word, and a view looks at that word alone.
//!
//! | step | by |
//! |---|---|
//! | a use finds all marks there, and clears COLD | [`Meta::warm`] |
//! | taking a mark away sets COLD | [`Meta::take_mark`], [`Meta::take_again`] |
//!
//! Whichever comes first, a hot block has all its marks when both are over: `warm` changes the hold
//! word before it looks at the marks again, the others after they have changed the marks. UPTODATE
//! stays as long as the block is cached. Meanwhile uses may go without a mark until the next one is
//! taken away; likewise if the frame begins another life between the two steps of taking a mark.
//! That loses a hint, no more.

use super::flags::FlagSet;
use super::meta::{Meta, Uses};

/// The flags of every hot block.
const ALWAYS: FlagSet = FlagSet(FlagSet::UPTODATE.0 | FlagSet::REFERENCED.0);

impl Meta {
    /// Whether a use of this block has no mark to make: it is up to date and referenced, and active
    /// or, with a policy that only remembers second uses, used again.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        let flags = self.flags.load();
        flags.contains(ALWAYS) && (flags.contains(FlagSet::ACTIVE) || self.uses.has(Uses::AGAIN))
    }

    /// Notes that a use of this block, which the caller holds, found it marked: the next need not
    /// look.
    #[inline]
    pub(crate) fn warm(&self) {
        if !self.hold.load().is_cold() {
            return;
        }
        self.hold.warm();
        if !self.is_marked() {
            self.hold.cool();
        }
    }

    /// Takes marks of use away, and returns the flags before. The frame may be another one by now.
    pub(crate) fn take_mark(&self, mark: FlagSet) -> FlagSet {
        let before = self.flags.test_and_clear(mark);
        if before.contains(ALWAYS) {
            self.hold.cool();
        }
        before
    }

    /// Takes the mark away that the block was used again; returns whether it was set.
    pub(crate) fn take_again(&self) -> bool {
        let was = self.uses.has(Uses::AGAIN) && self.uses.clear(Uses::AGAIN);
        if was {
            self.hold.cool();
        }
        was
    }
}
