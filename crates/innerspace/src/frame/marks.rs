//! Marks of use, and COLD, the bit of the hold word that is clear if a use has no mark to set.
//!
//! A use checks the flags of its block: UPTODATE, and whether it must set REFERENCED, ACTIVE or
//! AGAIN. A block that has all the marks that a use can set ([`Meta::is_marked`]) is *hot*: COLD is
//! not set in its hold word, and a view checks only that word.
//!
//! | step | function |
//! |---|---|
//! | a use finds all marks set, and clears COLD | [`Meta::warm`] |
//! | a mark is removed, which sets COLD | [`Meta::take_mark`], [`Meta::take_again`] |
//!
//! The two steps may race. Whichever comes first, a block that is hot when both are over has all
//! its marks: `warm` changes the hold word before it checks the marks again, and the other
//! functions change it after they have changed the marks. UPTODATE stays as long as the block is
//! cached.
//!
//! While the steps run, uses may fail to set a mark, at most until the next mark is removed. This
//! can also happen if the frame is freed and reused while a mark is being removed. In either case
//! only a hint is lost.

use super::flags::FlagSet;
use super::meta::{Meta, Uses};

/// The flags that every hot block has.
const ALWAYS: FlagSet = FlagSet(FlagSet::UPTODATE.0 | FlagSet::REFERENCED.0);

impl Meta {
    /// Returns whether a use of this block has no mark to set. The block is then up to date and
    /// referenced, and either active or, with a policy that remembers only second uses, used again.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        let flags = self.flags.load();
        flags.contains(ALWAYS) && (flags.contains(FlagSet::ACTIVE) || self.uses.has(Uses::AGAIN))
    }

    /// Notes that a use of this block found it marked, so that the next use need not check. The
    /// caller holds the block.
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

    /// Removes marks of use, and returns the previous flags. The frame may have been reused by now.
    pub(crate) fn take_mark(&self, mark: FlagSet) -> FlagSet {
        let before = self.flags.test_and_clear(mark);
        if before.contains(ALWAYS) {
            self.hold.cool();
        }
        before
    }

    /// Removes the mark that says that the block was used again. Returns whether it was set.
    pub(crate) fn take_again(&self) -> bool {
        let was = self.uses.has(Uses::AGAIN) && self.uses.clear(Uses::AGAIN);
        if was {
            self.hold.cool();
        }
        was
    }
}
