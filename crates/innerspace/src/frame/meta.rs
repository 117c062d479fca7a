//! The metadata of a frame: one cache line.
//!
//! - `flags`: every holder of the frame, atomically; plain stores on owned frames alone (I2)
//! - `kind`, `order`, `group`, `owner`, `index`: the owner of an owned frame, and the allocator;
//!   read by any thread
//! - `owner`, `index` of leaves: the page table: which leaf it borrows from, and its borrower
//! - `hold`: any thread, atomically, by the table in `docs/protocols/hold-word.md`
//! - `lru`, `uses`: the LRU of `reclaim`
//! - `fresh`: the allocator, for free frames: whether the block was never handed out before
//! - `links`: free frame: the buddy allocator, under its mutex; else the LRU, under its own
//! - `extra`: leaves: the page table; index nodes: the cache, under the index mutex; detached
//!   blocks: their views, under the owner's mutex
//!
//! Metadata is type-stable: it exists as long as the arena, so a reader of a frame that was freed a
//! moment ago finds valid fields of the wrong life. It then takes a hold and checks again.

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
    /// Inside a block whose first frame has the state. All-zero metadata means this.
    Part = 0,
    /// First frame of a free block, in the buddy allocator's lists.
    Free = 1,
    /// A free single frame in a thread's magazine.
    Magazine = 2,
    /// It has one owner; no other thread can see it.
    Owned = 3,
    /// A block of a file.
    Cached = 4,
    /// A page of a space that belongs to no file.
    Anonymous = 5,
    /// A page-table node.
    Table = 6,
    /// A node of a file's index.
    IndexNode = 7,
    /// The zero frame.
    Zero = 8,
}

impl Kind {
    const ALL: [Kind; 9] = [
        Kind::Part,
        Kind::Free,
        Kind::Magazine,
        Kind::Owned,
        Kind::Cached,
        Kind::Anonymous,
        Kind::Table,
        Kind::IndexNode,
        Kind::Zero,
    ];

    fn from_byte(byte: u8) -> Kind {
        Kind::ALL[usize::from(byte)]
    }

    /// Whether the frame is allocated (the zero frame is not: it is never freed).
    pub(crate) const fn is_live(self) -> bool {
        matches!(
            self,
            Kind::Owned | Kind::Cached | Kind::Anonymous | Kind::Table | Kind::IndexNode
        )
    }

    /// Whether the frame's bytes are 64-bit words that several threads change at once.
    pub(crate) const fn has_words(self) -> bool {
        matches!(self, Kind::Table | Kind::IndexNode)
    }
}

/// Bits in which `reclaim` records a frame's uses. They are hints: a lost one costs a wrong choice
/// at most.
pub(crate) struct Uses(AtomicU8);

impl Default for Uses {
    fn default() -> Uses {
        Uses(AtomicU8::new(0))
    }
}

impl Uses {
    /// Used again while on the inactive list.
    pub(crate) const AGAIN: u8 = 1 << 0;
    /// Uses of the frame are sampled for the miss curve.
    pub(crate) const SAMPLED: u8 = 1 << 1;
    /// Used through a mapping whose accessed bit was taken away for the sample.
    pub(crate) const TOUCHED: u8 = 1 << 2;
    /// Read ahead, and not used yet.
    pub(crate) const AHEAD: u8 = 1 << 3;
    /// Read ahead, and passed over once by reclaim: its reader may be on the way.
    pub(crate) const PASSED_OVER: u8 = 1 << 4;

    #[inline]
    pub(crate) fn has(&self, bit: u8) -> bool {
        self.0.load(Ordering::Relaxed) & bit != 0
    }

    pub(crate) fn set(&self, bit: u8) {
        self.0.fetch_or(bit, Ordering::Relaxed);
    }

    /// Clears a bit; returns whether it was set.
    pub(crate) fn clear(&self, bit: u8) -> bool {
        self.0.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

/// A place in a doubly linked list threaded through the metadata; 0 is the end (the zero frame is
/// on no list).
pub(crate) struct Links {
    pub(super) prev: AtomicU32,
    pub(super) next: AtomicU32,
}

/// The metadata of one frame.
#[repr(C, align(64))]
pub(crate) struct Meta {
    /// Lock, waiters and state bits.
    pub(crate) flags: Flags,
    kind: AtomicU8,
    order: AtomicU8,
    /// For the LRU: its record of uses, besides the flags.
    pub(crate) uses: Uses,
    group: AtomicU16,
    fresh: AtomicU8,
    owner: AtomicU32,
    pub(super) links: Links,
    /// For the LRU: which list or batch the frame is in.
    pub(crate) lru: Listed,
    index: AtomicU64,
    /// The holds on the frame.
    pub(crate) hold: Hold,
    /// Leaves: the leaf they borrow from, and through how many. Index nodes: the number of words in
    /// use. Blocks that have left their files with views: the number of views not yet dropped
    /// (`detached`).
    pub(crate) extra: AtomicU64,
    /// The tag of a block in its file's index.
    tag: AtomicU64,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Meta>() == 64 && align_of::<Meta>() == 64);

impl Meta {
    /// The metadata of all-zero bytes: inside a block, without an owner.
    #[cfg(any(loom, shuttle))]
    pub(super) fn new() -> Meta {
        Meta {
            flags: Flags::new(FlagSet::EMPTY),
            kind: AtomicU8::new(Kind::Part as u8),
            order: AtomicU8::new(0),
            uses: Uses::default(),
            group: AtomicU16::new(0),
            fresh: AtomicU8::new(0),
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

    /// For a leaf of a page table: the first slot that it may borrow.
    pub(crate) fn borrowed_from(&self) -> usize {
        self.owner.load(Ordering::Relaxed) as usize
    }

    /// Relaxed: every value that was stored is right until the leaf borrows again.
    pub(crate) fn set_borrowed_from(&self, slot: usize) {
        self.owner.store(slot as u32, Ordering::Relaxed);
    }

    /// For a leaf of a page table: its borrower if it has exactly one; meaningless with several.
    /// Acquire: a thread that reads a borrower's name sees the words with which that leaf borrows.
    pub(crate) fn borrowers(&self) -> Option<FrameId> {
        let names = self.index.load(Ordering::Acquire);
        (names != 0).then_some(FrameId(names as u32))
    }

    /// Adds a borrower, which is counted already, or takes one off, which is still counted.
    /// Release: pairs with `borrowers`; each continues the release sequence of those before.
    pub(crate) fn toggle_borrowers(&self, borrower: FrameId) {
        self.index
            .fetch_xor(u64::from(borrower.0), Ordering::Release);
    }

    /// Replaces one borrower by another. Release, as above.
    pub(crate) fn replace_borrower(&self, old: FrameId, new: FrameId) {
        self.index
            .fetch_xor(u64::from(old.0 ^ new.0), Ordering::Release);
    }

    /// The frame's use. Acquire: a thread that sees the kind sees everything set before it.
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        Kind::from_byte(self.kind.load(Ordering::Acquire))
    }

    /// log2 of the number of frames in the block that starts here.
    #[inline]
    pub(crate) fn order(&self) -> u8 {
        self.order.load(Ordering::Relaxed)
    }

    /// The group the frame is charged to.
    #[inline]
    pub(crate) fn group(&self) -> u16 {
        self.group.load(Ordering::Relaxed)
    }

    /// The owner (file or space) the frame belongs to, as registered with `reclaim`.
    #[inline]
    pub(crate) fn owner(&self) -> u32 {
        self.owner.load(Ordering::Relaxed)
    }

    /// The frame's position in its owner: a block number or a page number.
    #[inline]
    pub(crate) fn index(&self) -> u64 {
        self.index.load(Ordering::Relaxed)
    }

    /// The frame's tag. Acquire: pairs with [`Meta::set_tag`].
    #[inline(always)]
    pub(crate) fn tag(&self) -> Tag {
        Tag(self.tag.load(Ordering::Acquire))
    }

    /// Keeps the tag in step with the index, whose mutex the caller holds; see [`super::tag`] for
    /// the order.
    #[inline]
    pub(crate) fn set_tag(&self, tag: Tag) {
        self.tag.store(tag.0, Ordering::Release);
    }

    #[inline]
    pub(super) fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u8, Ordering::Release);
    }

    /// Notes whether the bytes of the block are still the zeros that the host gave.
    #[inline]
    pub(super) fn set_fresh(&self, fresh: bool) {
        self.fresh.store(u8::from(fresh), Ordering::Relaxed);
    }

    /// Takes that note: returns whether they still are, and from now on they are not.
    #[inline]
    pub(super) fn take_fresh(&self) -> bool {
        let fresh = self.fresh.load(Ordering::Relaxed) != 0;
        self.set_fresh(false);
        fresh
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

    /// Makes an owned frame visible. Nothing plain may be stored after it (I2).
    #[inline(always)]
    pub(super) fn publish(&self, initial: HoldState) {
        self.hold.publish(initial);
    }

    /// Starts a life: the metadata of an owned frame with nothing set.
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

    /// Ends a life. A second free of the same frame finds a kind that is not live.
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
    /// Like [`Meta::try_view_of`], for a block whose use makes no mark.
    #[inline(always)]
    pub(crate) fn try_hot_view_of(&self, sought: Tag) -> HeldOf {
        if self.tag() != sought {
            return HeldOf::Refused;
        }
        self.held_of(sought, self.hold.try_view_hot())
    }

    /// Takes a view, once, and says whether the frame was the block `sought` when it was viewed.
    #[inline(always)]
    pub(crate) fn try_view_of(&self, sought: Tag) -> HeldOf {
        // Checked first, so that only a frame reused at this very moment is held for nothing.
        if self.tag() != sought {
            return HeldOf::Refused;
        }
        self.held_of(sought, self.hold.try_view_once())
    }

    /// Takes a reference, and returns whether the frame was the block `sought` at that moment.
    #[inline(always)]
    pub(crate) fn try_get_of(&self, sought: Tag) -> HeldOf {
        if self.tag() != sought {
            return HeldOf::Refused;
        }
        self.held_of(sought, self.hold.try_get_cached())
    }

    #[inline(always)]
    fn held_of(&self, sought: Tag, held: bool) -> HeldOf {
        match held {
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
