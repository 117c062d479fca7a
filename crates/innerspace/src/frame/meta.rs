//! The metadata of a frame: one cache line. The fields, and what changes them:
//!
//! - `flags`: every holder of the frame, atomically; plain stores only on owned frames (I2)
//! - `kind`, `order`, `group`, `owner`, `index`: the owner of an owned frame, and the allocator;
//!   any thread reads them
//! - `owner`, `index` of a leaf: the page table, which keeps there the first slot that the leaf may
//!   borrow, and the leaf's borrowers
//! - `hold`: any thread, atomically, by the table in `docs/protocols/hold-word.md`
//! - `lru`, `uses`: the LRU of `reclaim`
//! - `tag`: the cache, under the index mutex
//! - `links`: of a free frame the buddy allocator, under its mutex; otherwise the LRU, under its
//!   own
//! - `extra`: of a leaf the page table; of an index node the cache, under the index mutex; of a
//!   detached block the number of its views, under the owner's mutex
//!
//! Metadata is type-stable: it exists as long as the arena. So a reader of a frame that was just
//! freed finds valid fields, but possibly those of another use of the frame. It then takes a hold
//! and checks again.

use std::fmt;

use super::flags::{FlagSet, Flags};
use super::hold::{Hold, HoldState};
use super::listing::Listed;
use super::tag::{HeldOf, Tag};
use crate::FrameId;
use crate::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// The use of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A frame of a block other than the block's first, which has the block's kind; or a hole of
    /// the arena ([`super::window`]). All-zero metadata means this.
    Part = 0,
    /// The first frame of a free block, in the buddy allocator's lists.
    Free = 1,
    /// A free single frame in a magazine, or the first frame of a block that is on its way between
    /// a free list and an owner.
    Magazine = 2,
    /// A frame with one owner, which no other thread can see.
    Owned = 3,
    /// A block of a file.
    Cached = 4,
    /// A page of a space. The page is in no file.
    Anonymous = 5,
    /// A page-table node.
    Table = 6,
    /// A node of a file's index.
    IndexNode = 7,
    /// The zero frame.
    Zero = 8,
    /// Like `Magazine`, and never given out before: the bytes are still the zeros that the host
    /// gave.
    Fresh = 9,
}

impl Kind {
    const ALL: [Kind; 10] = [
        Kind::Part,
        Kind::Free,
        Kind::Magazine,
        Kind::Owned,
        Kind::Cached,
        Kind::Anonymous,
        Kind::Table,
        Kind::IndexNode,
        Kind::Zero,
        Kind::Fresh,
    ];

    fn from_byte(byte: u8) -> Kind {
        Kind::ALL[usize::from(byte)]
    }

    /// Returns whether a frame of this kind is allocated. The zero frame does not count as
    /// allocated, because it is never freed.
    pub(crate) const fn is_live(self) -> bool {
        matches!(
            self,
            Kind::Owned | Kind::Cached | Kind::Anonymous | Kind::Table | Kind::IndexNode
        )
    }

    /// Returns whether the frame's bytes are 64-bit words that several threads may change at the
    /// same time.
    pub(crate) const fn has_words(self) -> bool {
        matches!(self, Kind::Table | Kind::IndexNode)
    }
}

/// Bits in which `reclaim` records a frame's uses. They are hints: losing one costs at most a wrong
/// choice.
#[derive(Default)]
pub(crate) struct Uses(AtomicU8);

impl Uses {
    /// The frame was used again while on the inactive list.
    pub(crate) const AGAIN: u8 = 1 << 0;
    /// The frame's uses are sampled for the miss curve.
    pub(crate) const SAMPLED: u8 = 1 << 1;
    /// The frame was used through a mapping, whose accessed bit was cleared for the sample.
    pub(crate) const TOUCHED: u8 = 1 << 2;
    /// The frame was read ahead, and has not been used yet.
    pub(crate) const AHEAD: u8 = 1 << 3;
    /// The frame was read ahead, and reclaim has passed over it once, because its reader may be on
    /// the way.
    pub(crate) const PASSED_OVER: u8 = 1 << 4;

    #[inline]
    pub(crate) fn has(&self, bit: u8) -> bool {
        self.0.load(Ordering::Relaxed) & bit != 0
    }

    pub(crate) fn set(&self, bit: u8) {
        self.0.fetch_or(bit, Ordering::Relaxed);
    }

    /// Clears a bit. Returns whether it was set.
    pub(crate) fn clear(&self, bit: u8) -> bool {
        self.0.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

/// The neighbours in a doubly linked list that is threaded through the metadata. 0 is the end,
/// because the zero frame is on no list.
pub(crate) struct Links {
    pub(super) prev: AtomicU32,
    pub(super) next: AtomicU32,
}

/// The metadata of one frame.
#[repr(C, align(64))]
pub(crate) struct Meta {
    /// The lock, waiters and state bits.
    pub(crate) flags: Flags,
    kind: AtomicU8,
    order: AtomicU8,
    /// The LRU's record of uses, besides the flags.
    pub(crate) uses: Uses,
    group: AtomicU16,
    owner: AtomicU32,
    pub(super) links: Links,
    /// The frame's place in the LRU, and the group on whose lists the frame is.
    pub(crate) lru: Listed,
    index: AtomicU64,
    /// The holds on the frame.
    pub(crate) hold: Hold,
    /// In a leaf: the leaf from which it borrows, and through how many leaves. In an index node:
    /// the number of words in use. In a block that has left its file with views: the number of
    /// views that are not dropped yet (`detached`).
    pub(crate) extra: AtomicU64,
    /// The tag of a block that is in its file's index.
    tag: AtomicU64,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Meta>() == 64 && align_of::<Meta>() == 64);

impl Meta {
    /// Makes the metadata that all-zero bytes stand for: inside a block, without an owner.
    #[cfg(any(loom, shuttle))]
    pub(super) fn new() -> Meta {
        Meta {
            flags: Flags::new(FlagSet::EMPTY),
            kind: AtomicU8::new(Kind::Part as u8),
            order: AtomicU8::new(0),
            uses: Uses::default(),
            group: AtomicU16::new(0),
            owner: AtomicU32::new(0),
            links: Links {
                prev: AtomicU32::new(0),
                next: AtomicU32::new(0),
            },
            lru: Listed::default(),
            index: AtomicU64::new(0),
            hold: Hold::new(HoldState::NONE),
            extra: AtomicU64::new(0),
            tag: AtomicU64::new(Tag::NONE.0),
        }
    }

    /// Returns the first slot that a leaf of a page table may borrow. A leaf keeps it in `owner`.
    pub(crate) fn borrowed_from(&self) -> usize {
        self.owner.load(Ordering::Relaxed) as usize
    }

    /// Sets the first slot that a leaf may borrow. Relaxed: every value that was stored is right
    /// until the leaf borrows again.
    pub(crate) fn set_borrowed_from(&self, slot: usize) {
        self.owner.store(slot as u32, Ordering::Relaxed);
    }

    /// Returns the borrower of a leaf of a page table, if there is exactly one. A leaf keeps the
    /// XOR of all its borrowers' numbers in `index`. So the result is `None` with no borrower, and
    /// has no meaning with several. Acquire: a thread that reads a borrower's number sees the words
    /// by which that leaf borrows.
    pub(crate) fn borrowers(&self) -> Option<FrameId> {
        let names = self.index.load(Ordering::Acquire);
        (names != 0).then_some(FrameId(names as u32))
    }

    /// Adds a borrower that is counted already, or removes one that is still counted. Release:
    /// pairs with `borrowers`; each read-modify-write continues the release sequence of the earlier
    /// ones.
    pub(crate) fn toggle_borrowers(&self, borrower: FrameId) {
        self.index
            .fetch_xor(u64::from(borrower.0), Ordering::Release);
    }

    /// Replaces one borrower by another. Release, as in `toggle_borrowers`.
    pub(crate) fn replace_borrower(&self, old: FrameId, new: FrameId) {
        self.index
            .fetch_xor(u64::from(old.0 ^ new.0), Ordering::Release);
    }

    /// Returns what the frame is used for. Acquire: pairs with the Release in `set_kind`, so a
    /// thread that sees the kind sees everything set before it.
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        Kind::from_byte(self.kind.load(Ordering::Acquire))
    }

    /// Returns whether the kind is `Fresh`, for a frame that the caller took from the allocator.
    #[inline(always)]
    pub(super) fn is_fresh(&self) -> bool {
        self.kind.load(Ordering::Relaxed) == Kind::Fresh as u8
    }

    /// Returns the base-2 logarithm of the number of frames in the block that starts here.
    #[inline]
    pub(crate) fn order(&self) -> u8 {
        self.order.load(Ordering::Relaxed)
    }

    /// Returns the group to which the frame is charged.
    #[inline]
    pub(crate) fn group(&self) -> u16 {
        self.group.load(Ordering::Relaxed)
    }

    /// Returns the owner (file or space) of the frame, as registered with `reclaim`.
    #[inline]
    pub(crate) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// Returns the frame's position in its owner: a block number or a page number.
    #[inline]
    pub(crate) fn index(&self) -> u64 {
        self.index.load(Ordering::Relaxed)
    }

    /// Returns the frame's tag. Acquire: pairs with [`Meta::set_tag`].
    #[inline(always)]
    pub(crate) fn tag(&self) -> Tag {
        Tag(self.tag.load(Ordering::Acquire))
    }

    /// Sets the tag to agree with the index, whose mutex the caller holds. [`super::tag`] says
    /// which of the two changes first. Release: pairs with [`Meta::tag`].
    #[inline]
    pub(crate) fn set_tag(&self, tag: Tag) {
        self.tag.store(tag.0, Ordering::Release);
    }

    #[inline]
    pub(super) fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u8, Ordering::Release);
    }

    #[inline]
    pub(super) fn set_order(&self, order: u8) {
        self.order.store(order, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn set_group(&self, group: u16) {
        self.group.store(group, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn set_owner(&self, owner: u32) {
        self.owner.store(owner, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn set_index(&self, index: u64) {
        self.index.store(index, Ordering::Relaxed);
    }

    /// Makes an owned frame visible. After that no plain store is allowed (I2).
    #[inline(always)]
    pub(super) fn publish(&self, initial: HoldState) {
        self.hold.publish(initial);
    }

    /// Initialises the metadata of a newly allocated frame, with nothing set.
    #[inline(always)]
    pub(super) fn begin(&self, order: u8) {
        self.flags.store_owned(FlagSet::EMPTY);
        self.lru.begin();
        self.uses.0.store(0, Ordering::Relaxed);
        self.set_group(0);
        self.set_owner(0);
        self.set_index(0);
        self.extra.store(0, Ordering::Relaxed);
        self.tag.store(Tag::NONE.0, Ordering::Relaxed);
        self.set_order(order);
        self.set_kind(Kind::Owned);
    }

    /// Marks a frame as no longer allocated. Panics if the frame is held. A second free of the same
    /// frame panics too, because it finds a kind that is not live.
    #[inline]
    pub(super) fn end(&self, id: FrameId) {
        let hold = self.hold.load();
        assert_eq!(hold, HoldState::NONE, "I1: {id:?} is freed while held");
        let kind = self.kind();
        assert!(kind.is_live(), "I1: {id:?} is freed but it is {kind:?}");
        debug_assert_eq!(self.tag(), Tag::NONE, "{id:?} is freed in an index");
        debug_assert!(
            !self
                .flags
                .load()
                .intersects(FlagSet::LOCKED | FlagSet::WRITEBACK),
            "{id:?} is freed with {:?}",
            self.flags
        );
        self.set_kind(Kind::Magazine);
    }
}

impl Meta {
    /// Takes a hold by `take`, if the frame's tag is `sought`. Returns whether a hold was taken,
    /// and whether it is on the block `sought`.
    #[inline(always)]
    pub(crate) fn try_hold_of(&self, sought: Tag, take: impl FnOnce(&Hold) -> bool) -> HeldOf {
        // The tag is checked first, so that a hold is taken in vain only if the frame is being
        // reused at this moment.
        if self.tag() != sought {
            return HeldOf::Refused;
        }
        match take(&self.hold) {
            true if self.tag() == sought => HeldOf::Sought,
            true => HeldOf::Other,
            false => HeldOf::Refused,
        }
    }
}

impl fmt::Debug for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} order {} {:?} [{:?}] group {} owner {} index {}",
            self.kind(),
            self.order(),
            self.flags,
            self.hold,
            self.group(),
            self.owner(),
            self.index()
        )
    }
}
