//! The word that says where a frame is.

use super::batch::BATCHES;
use crate::frame::{FlagSet, Listing, Meta};
use crate::units::PageCount;

/// Where a frame is, according to `Meta::lru`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LruState {
    /// On no list: not added, or removed.
    None,
    /// On one of its group's lists.
    List(ListKind),
    /// Taken off its list by reclaim, which is looking at it.
    Isolated,
    /// In the batch with this number.
    Batch(u8),
}

/// One of a group's lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ListKind {
    /// The list from whose tail frames are evicted.
    Inactive,
    /// The list of frames whose blocks were used at least twice, or came back soon after their
    /// eviction.
    Active,
    /// The list that reclaim skips.
    Unevictable,
}

impl ListKind {
    pub(crate) const ALL: [ListKind; 3] =
        [ListKind::Inactive, ListKind::Active, ListKind::Unevictable];

    /// Returns the list that a frame's flags name.
    pub(crate) fn by_flags(meta: &Meta) -> ListKind {
        match meta.flags.load().contains(FlagSet::ACTIVE) {
            true => ListKind::Active,
            false => ListKind::Inactive,
        }
    }
}

/// Whether reclaim looks at a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Evictable {
    Yes,
    No,
}

/// The numbers of pages on a group's lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ListSizes {
    pub(crate) inactive: PageCount,
    pub(crate) active: PageCount,
    pub(crate) unevictable: PageCount,
}

impl ListSizes {
    /// Returns the number of pages on the two lists that reclaim works on.
    pub(crate) fn evictable(&self) -> u64 {
        self.inactive.0 + self.active.0
    }
}

const ISOLATED: u8 = 4;
const BATCH: u8 = 0x40;

const _: () = assert!(BATCHES <= BATCH as usize);

impl LruState {
    #[inline]
    pub(crate) fn load(meta: &Meta) -> LruState {
        LruState::of(meta.lru.load())
    }

    /// Returns the state that a word holds.
    #[inline]
    pub(super) fn of(listing: Listing) -> LruState {
        match listing.place {
            0 => LruState::None,
            byte @ 1..=3 => LruState::List(ListKind::ALL[usize::from(byte) - 1]),
            ISOLATED => LruState::Isolated,
            byte => {
                debug_assert!(byte & BATCH != 0, "lru byte {byte:#x}");
                LruState::Batch(byte & !BATCH)
            }
        }
    }

    /// Sets the state. The caller owns the frame or has its group's lists locked, so that the group
    /// does not change.
    #[inline]
    pub(super) fn store(self, meta: &Meta) {
        let place = match self {
            LruState::None => 0,
            LruState::List(list) => list as u8 + 1,
            LruState::Isolated => ISOLATED,
            LruState::Batch(number) => BATCH | number,
        };
        let group = meta.group();
        meta.lru.store(Listing { place, group });
    }
}

/// Returns how many pages the block that starts at this frame has.
#[inline]
pub(crate) fn pages_of(meta: &Meta) -> u64 {
    1 << meta.order()
}
