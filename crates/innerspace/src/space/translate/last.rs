//! The page that a session loaded from last, and the one that it stored to last.
//!
//! Who goes through memory from one value to the next looks for the same page again and again. A session remembers where its
//! bytes are, so that a look at the mail, a subtraction and a comparison do: no tag, no leaf, no word. Nothing in the word is seen
//! any more, so what is remembered has to stay right for as long as it may be used, whatever others do to the word.
//!
//! # What is remembered, and for how long
//!
//! A page is remembered if a store to it would hit at that moment, as a page of the leaf's own: the leaf has the write tag, the word
//! OWNED, VALID_R and VALID_W, and there was no mail. It is used as long as there is no mail, and forgotten
//!
//! - when the session's section is about to be left: by the slow path ([`pause`](crate::space::access::Sectioned::pause), which comes
//!   before every fault and is where mail leads), before a callback, at the beginning of the next session;
//! - when mail is read.
//!
//! The section may also be left between two accesses by a call of this library in the same thread, which is about to wait
//! ([`suspend_sessions`](crate::sync::domain)). That leaves mail, so the next access comes to the slow path first.
//!
//! So a remembered page is used in the one section in which it was found. Whoever waits for a grace period after it has changed the
//! word waits for that use, as for an access that had read the word before.
//!
//! # Why the word need not be looked at
//!
//! Everybody who makes such a word lead elsewhere, or takes what it allows, either waits for a grace period afterwards, or
//! comes to it only when nobody can have it remembered:
//!
//! | who | does to the word | the session |
//! |---|---|---|
//! | unmap, map over, `DontNeed`, protect, remap | empties it, moves it, takes validity | gets mail and leaves its section before it is changed (`change`, step 2). If it has found the leaf again by an address beside the range: leaves that section before the call returns and before a page is let go (step 6, and the end of `move_words`) |
//! | fork, freeze | nothing, but shares the leaf | gets mail and leaves its section before the leaf is shared; the write tag is gone, and no page of the leaf is remembered until the leaf is the space's alone again |
//! | restore, in place or by dropping | copies over the bytes, takes write validity, takes the page away | gets mail and leaves its section before; finds the gate closed everywhere until it is done |
//! | `watch_code`, `take_dirty` | takes write validity, with the gate closed | leaves its section before the generation is read, the call returns |
//! | copies of leaves, shared pages, views of snapshots (`end_writes_in_place`) | take write validity, with no gate of this space | has no page of that leaf: others share it, or borrow from it, before, during and after (`table::leaf`) |
//! | protection of another space that shares the leaf | takes write validity, in a section | has no page of that leaf: the other space lets it go after that section (`table::edit`) |
//! | a store's fault of another accessor | nothing: it finds the page its leaf's own, and alone to have it | uses the same page |
//! | a store's fault that replaces a leaf | nothing in the old leaf | has no page of it: it was shared |
//! | the end of another sharer | nothing; the leaf may become the space's alone | may remember from then on, as stores may hit |
//! | aging, samples, `Cold`, write-back, eviction, truncation, syncs of direct access files | take validity or the page, of words of files and of zeros alone | never has such a page |
//!
//! # What is not remembered
//!
//! - Pages that a load alone may use. A store of another accessor puts another page in the place of zeros, and of a page of a file in a
//!   private mapping, and leaves no mail: who synchronises with it has to look at the word again (A6).
//! - Pages in leaves that are shared, whatever their words allow: VALID_W may be left there from before the fork, the page may get
//!   more owners there without a grace period, and a store that comes when the leaf is the space's alone again copies it, with no mail.
//! - Pages of files that stores go to in place. It would be right, since who takes them waits; but their accessed bit is the
//!   word's validity, and a session that does not look at the word does not set it again.
//! - Pages of fetches: they are of files, mostly.
//!
//! An access that has a section of its own ([`Single`](crate::space::access::Single)) has nothing to remember. Generated code looks at
//! the words, as ever (`layout`).
//!
//! # When
//!
//! To remember at each access would cost those who go hither and thither more than it saves others (random loads: a third): as many
//! of their misses are under way at once as the processor has room for the instructions in between. So it is done out of line, by
//! accesses to the first bytes of a page ([`BEGINNING`](super::BEGINNING)), where everybody comes by who goes upwards in small steps.

use std::ptr::NonNull;

use super::Need;
use crate::PAGE_SIZE;

/// A page that an access found, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastPage {
    /// The address of its first byte.
    start: u64,
    /// Where that is; `None`: no page is remembered.
    bytes: Option<NonNull<u8>>,
}

/// The pages that were remembered last in a section.
#[derive(Debug)]
pub(super) struct LastPages {
    loaded: LastPage,
    stored: LastPage,
}

impl LastPage {
    const NONE: LastPage = LastPage {
        start: 0,
        bytes: None,
    };

    pub(super) fn new(at: u64, host: u64) -> LastPage {
        LastPage {
            start: at & !(PAGE_SIZE as u64 - 1),
            bytes: NonNull::new(host as *mut u8),
        }
    }

    /// How far `at` is behind the page's beginning, wrapping.
    #[inline(always)]
    pub(super) fn distance(&self, at: u64) -> usize {
        at.wrapping_sub(self.start) as usize
    }

    /// The page's first byte.
    #[inline(always)]
    pub(super) fn bytes(&self) -> Option<NonNull<u8>> {
        self.bytes
    }
}

impl LastPages {
    pub(super) const NONE: LastPages = LastPages {
        loaded: LastPage::NONE,
        stored: LastPage::NONE,
    };

    #[inline(always)]
    pub(super) fn of(&self, need: Need) -> &LastPage {
        match need {
            Need::Write => &self.stored,
            Need::Read | Need::Fetch => &self.loaded,
        }
    }

    pub(super) fn of_mut(&mut self, need: Need) -> &mut LastPage {
        match need {
            Need::Write => &mut self.stored,
            Need::Read | Need::Fetch => &mut self.loaded,
        }
    }
}
