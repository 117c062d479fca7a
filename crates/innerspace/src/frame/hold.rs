//! The hold word of a frame: the counts that keep the frame from being freed, and whether its bytes
//! may change.
//!
//! ```text
//!  63      62      61     60   59..40  39..20  19..0
//!  UNCACHED WMAPPED WRITER COLD mapped   refs   views
//! ```
//!
//! - views: guards that were promised bytes that never change
//! - refs: the file's index, or the views of a block that has left its file (together 1); leaves
//!   that own an anonymous frame; short-lived users
//! - mapped: file pages installed in page tables; pins of an anonymous page; borrowers of a leaf
//! - UNCACHED: the frame is in no file's index: anonymous, viewed-only, owned or free. While the
//!   bit is clear the frame is *CACHED*: a file's index leads to it
//! - WRITER: the holder of the block's lock is copying into the frame
//! - WMAPPED: write translations of the frame may exist
//! - COLD: the next use of a CACHED frame may have to set a mark of use ([`super::marks`])
//!
//! `docs/protocols/hold-word.md` has the transitions, the function and the condition of each, and
//! the orderings.
//!
//! Views or pins alone may keep an anonymous frame after its leaf has released it. If a view of a
//! block is dropped after the block has left its file ([`PutView::Detached`]), the views' owner is
//! notified ([`super::detached`]).
//!
//! After the last hold is dropped, only UNCACHED is set (`Dropped::Last`), and the thread that
//! dropped it frees the frame. The word keeps this value until the frame is published again, so
//! every `try_` function fails on a free frame. The word of a frame that was never published is 0,
//! which [`Hold::load`] reports as not held. If a field is full, the `try_` functions fail, so the
//! field never overflows into its neighbour.

use std::fmt;

use crate::sync::atomic::{AtomicU64, Ordering};

const FIELD: u64 = (1 << 20) - 1;
const VIEW: u64 = 1;
const REF: u64 = 1 << 20;
const MAPPED: u64 = 1 << 40;
/// The top bit of `views`. If it is set, the count is full.
const VIEWS_FULL: u64 = 1 << 19;
/// The sign bit, so that after a drop of a view the processor's flags tell whether the frame is
/// cached.
const UNCACHED: u64 = 1 << 63;
const WMAPPED: u64 = 1 << 62;
const WRITER: u64 = 1 << 61;
const COLD: u64 = 1 << 60;

/// The value of a hold word at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HoldState(u64);

impl HoldState {
    /// The frame is not held: it is owned or free.
    pub(crate) const NONE: HoldState = HoldState(UNCACHED);
    /// The maximum of `refs` and of `mapped`.
    pub(crate) const MAX: u32 = FIELD as u32;
    /// The maximum number of views.
    #[cfg(all(test, not(shuttle)))]
    pub(crate) const MAX_VIEWS: u32 = VIEWS_FULL as u32;

    /// Returns the state of a block that is in its file's index and was not used yet. `refs` is its
    /// number of references, one of which is the index's.
    pub(crate) const fn cached(refs: u32) -> HoldState {
        assert!(refs >= 1 && refs <= HoldState::MAX);
        HoldState(COLD | (refs as u64 * REF))
    }

    /// Returns the state of a frame that belongs to no file (anonymous, table, index node) and has
    /// `refs` references.
    pub(crate) const fn refs_only(refs: u32) -> HoldState {
        assert!(refs >= 1 && refs <= HoldState::MAX);
        HoldState(UNCACHED | (refs as u64 * REF))
    }

    /// Returns the number of views.
    pub(crate) const fn views(self) -> u32 {
        ((self.0 / VIEW) & FIELD) as u32
    }

    /// Returns the number of references.
    pub(crate) const fn refs(self) -> u32 {
        ((self.0 / REF) & FIELD) as u32
    }

    /// Returns the field `mapped`: for a block of a file, the number of its pages installed in page
    /// tables.
    pub(crate) const fn mapped(self) -> u32 {
        ((self.0 / MAPPED) & FIELD) as u32
    }

    /// Returns whether the frame is in its file's index.
    pub(crate) const fn is_cached(self) -> bool {
        self.0 & UNCACHED == 0
    }

    /// Returns whether a writer is copying into the frame.
    pub(crate) const fn has_writer(self) -> bool {
        self.0 & WRITER != 0
    }

    /// Returns whether write translations may exist.
    pub(crate) const fn is_wmapped(self) -> bool {
        self.0 & WMAPPED != 0
    }

    /// Returns whether the frame is in no file and has one reference and no view. It may be pinned.
    pub(crate) const fn is_one_ref(self) -> bool {
        self.0 & !(FIELD * MAPPED) == UNCACHED | REF
    }

    /// Returns whether a use of this cached frame may have to set a mark.
    pub(crate) const fn is_cold(self) -> bool {
        self.0 & COLD != 0
    }

    /// Returns whether the frame is in no file and has views (a state of I1).
    pub(crate) const fn is_viewed_only(self) -> bool {
        !self.is_cached() && self.views() > 0
    }

    /// Returns whether a hit may take a view: UNCACHED, WMAPPED, WRITER and COLD are clear, and the
    /// count of views has room.
    #[inline(always)]
    const fn is_hot(self) -> bool {
        self.0 & (UNCACHED | WMAPPED | WRITER | COLD | VIEWS_FULL) == 0
    }

    pub(super) const fn after_drop(self) -> Dropped {
        if self.0 == UNCACHED {
            Dropped::Last
        } else {
            Dropped::Held
        }
    }
}

impl fmt::Debug for HoldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "views {} refs {} mapped {}",
            self.views(),
            self.refs(),
            self.mapped()
        )?;
        for (set, name) in [
            (self.is_cached(), " CACHED"),
            (self.has_writer(), " WRITER"),
            (self.is_wmapped(), " WMAPPED"),
            (self.is_cold(), " COLD"),
        ] {
            if set {
                f.write_str(name)?;
            }
        }
        Ok(())
    }
}

/// Whether a block may leave its file while it has views.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Viewed {
    Allowed,
    Refused,
}

/// The state of a frame after a hold on it was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the caller that drops the last hold frees the frame"]
pub(crate) enum Dropped {
    /// The frame is still held.
    Held,
    /// The frame is no longer held, and the caller frees it.
    Last,
}

/// The state of a block when a view of it was dropped or cloned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the owner of a detached block's views has to be notified"]
pub(crate) enum PutView {
    /// The block is in its file, which keeps it.
    Kept,
    /// The block had left its file, so the views' owner must be notified ([`super::detached`]). The
    /// owner and the frame stay alive until then.
    Detached,
}

/// The hold word of a frame's metadata.
pub(crate) struct Hold(AtomicU64);

impl Hold {
    /// Makes a word that starts as `state`. Ordinary builds use zeroed memory instead.
    #[cfg(any(test, loom, shuttle))]
    pub(super) fn new(state: HoldState) -> Hold {
        Hold(AtomicU64::new(state.0))
    }

    /// Returns the current word, which another thread may change at any moment. For a frame that
    /// was never published, whose word is 0, returns `NONE`.
    #[inline]
    pub(crate) fn load(&self) -> HoldState {
        match self.0.load(Ordering::Acquire) {
            0 => HoldState::NONE,
            word => HoldState(word),
        }
    }

    /// Makes an owned frame visible. Release: pairs with the Acquire of every operation that takes
    /// a hold.
    #[inline(always)]
    pub(super) fn publish(&self, state: HoldState) {
        debug_assert_eq!(
            self.load(),
            HoldState::NONE,
            "I1: an owned frame is held by nobody"
        );
        self.0.store(state.0, Ordering::Release);
    }

    /// Applies `change` by compare-exchange until that succeeds, and returns the new word. If
    /// `change` returns `None`, leaves the word as it is, and returns it as the error.
    #[inline]
    fn update(
        &self,
        success: Ordering,
        change: impl Fn(HoldState) -> Option<u64>,
    ) -> Result<HoldState, HoldState> {
        #[cfg(all(test, not(loom), not(shuttle)))]
        touched::count();
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let Some(next) = change(HoldState(now)) else {
                return Err(HoldState(now));
            };
            match self
                .0
                .compare_exchange_weak(now, next, success, Ordering::Relaxed)
            {
                Ok(_) => return Ok(HoldState(next)),
                Err(seen) => now = seen,
            }
        }
    }

    /// Adds `count` if `may` returns true for the current word. Returns whether it was added.
    #[inline]
    fn try_add(&self, count: u64, order: Ordering, may: impl Fn(HoldState) -> bool) -> bool {
        self.update(order, |now| may(now).then_some(now.0 + count))
            .is_ok()
    }

    /// Subtracts `count`, and panics if the field has less. Release: pairs with the Acquire of the
    /// thread that frees the frame. Acquire: this may be that thread.
    #[inline]
    fn drop_count(&self, count: u64) -> Dropped {
        #[cfg(all(test, not(loom), not(shuttle)))]
        touched::count();
        let before = HoldState(self.0.fetch_sub(count, Ordering::AcqRel));
        let field = FIELD << (count.ilog2() / 20 * 20);
        assert!(
            before.0 & field >= count,
            "drop of a hold that nobody had: {before:?}"
        );
        HoldState(before.0 - count).after_drop()
    }

    /// Takes a reference if the frame has one already and the count has room. Acquire: pairs with
    /// `publish`.
    ///
    /// If the frame is not CACHED and has one reference, the caller must have reached it through
    /// one of its owners, and must keep that owner meanwhile. The same holds for every other
    /// operation that changes such a word: [`Hold::put_owner`] drops the last reference by a load
    /// and a plain store, which would undo a change in between.
    #[inline]
    pub(crate) fn try_get(&self) -> bool {
        self.try_add(REF, Ordering::Acquire, |now| {
            now.refs() > 0 && now.refs() < HoldState::MAX
        })
    }

    /// Takes a reference like [`Hold::try_get`], but only to a frame that is in a file's index.
    /// This is the speculative get of a lookup in the index. A frame that has become a table or an
    /// index node meanwhile is not changed, so only the owner of such a frame changes its counts.
    #[inline]
    pub(crate) fn try_get_cached(&self) -> bool {
        self.try_add(REF, Ordering::Acquire, |now| {
            now.is_cached() && now.refs() < HoldState::MAX
        })
    }

    /// Drops a reference.
    #[inline]
    pub(crate) fn put(&self) -> Dropped {
        self.drop_count(REF)
    }

    /// Drops an owner's reference to a frame that is in no file, as [`Hold::put`] does. A hold on
    /// such a frame is taken only through one of its owners, which is kept meanwhile; a lookup of a
    /// file's block requires CACHED. So if the frame has no other hold, the last owner has it to
    /// itself and needs no read-modify-write. Acquire: pairs with the Release of earlier holders.
    #[inline(always)]
    pub(crate) fn put_owner(&self) -> Dropped {
        if self.0.load(Ordering::Acquire) != UNCACHED | REF {
            return self.put();
        }
        #[cfg(all(test, not(loom), not(shuttle)))]
        touched::count();
        self.0.store(HoldState::NONE.0, Ordering::Relaxed);
        Dropped::Last
    }

    /// Takes a view if the frame is cached and cannot be written to, and the count has room.
    /// Acquire: pairs with `publish`, `end_write` and `clear_wmapped`. The caller checks UPTODATE
    /// afterwards.
    #[inline]
    pub(crate) fn try_view(&self) -> bool {
        self.try_add(VIEW, Ordering::Acquire, |now| {
            now.0 & (UNCACHED | WRITER | WMAPPED | VIEWS_FULL) == 0
        })
    }

    /// Takes a view if the frame is hot ([`super::marks`]) and cannot be written to, and the count
    /// has room. Makes a single attempt, as a hit does. Acquire: as in [`Hold::try_view`]; it also
    /// pairs with `warm`, whose caller had found UPTODATE.
    #[inline(always)]
    pub(crate) fn try_view_hot(&self) -> bool {
        #[cfg(all(test, not(loom), not(shuttle)))]
        touched::count();
        let now = self.0.load(Ordering::Relaxed);
        HoldState(now).is_hot()
            && self
                .0
                .compare_exchange(now, now + VIEW, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
    }

    /// Sets COLD if the frame is cached: the next use may have to set a mark. Called after a mark
    /// was removed, or found missing. The frame may have been freed since.
    ///
    /// Writes the word even if COLD is set already. AcqRel: a later [`Hold::warm`] reads this
    /// write, so its caller then finds the mark removed.
    pub(crate) fn cool(&self) {
        let _cached = self.update(Ordering::AcqRel, |now| {
            now.is_cached().then_some(now.0 | COLD)
        });
    }

    /// Clears COLD if the frame is cached. The caller holds the frame, has found that a use has no
    /// mark to set and that the bytes are up to date, and checks the marks again afterwards.
    /// AcqRel: pairs with [`Hold::cool`] and, for the bytes, with [`Hold::try_view_hot`].
    pub(crate) fn warm(&self) {
        let _cached = self.update(Ordering::AcqRel, |now| {
            now.is_cached().then_some(now.0 & !COLD)
        });
    }

    /// Takes one more view for a caller that has one already, and returns the block's state.
    /// Returns `None` if the count is full. Relaxed: the new view reads only what the old view
    /// could read.
    #[inline]
    pub(crate) fn try_clone_view(&self) -> Option<PutView> {
        let now = self.update(Ordering::Relaxed, |now| {
            debug_assert!(
                now.views() > 0,
                "clone of a view that is not there: {now:?}"
            );
            (now.0 & VIEWS_FULL == 0).then_some(now.0 + VIEW)
        });
        match now {
            Ok(now) if now.is_cached() => Some(PutView::Kept),
            Ok(_) => Some(PutView::Detached),
            Err(_) => None,
        }
    }

    /// Takes a view if the frame is in no file and has a reference, and the count has room. The
    /// caller ensures that nothing writes to the frame as long as it has views. Acquire: pairs with
    /// `publish`.
    pub(crate) fn try_view_still(&self) -> bool {
        self.try_add(VIEW, Ordering::Acquire, |now| {
            now.refs() > 0 && !now.is_cached() && now.0 & VIEWS_FULL == 0
        })
    }

    /// Drops a view of a block. The orderings are those of [`Hold::drop_count`].
    #[inline(always)]
    pub(crate) fn put_view(&self) -> PutView {
        #[cfg(all(test, not(loom), not(shuttle)))]
        touched::count();
        let before = self.0.fetch_sub(VIEW, Ordering::AcqRel);
        // In a child of fork(2) the word is 0. The result is then `Detached`, and the views' owner
        // handles that case.
        debug_assert!(
            HoldState(before).views() > 0 || before == 0,
            "put of a view that nobody had: {:?}",
            HoldState(before)
        );
        // Tests that UNCACHED is clear and the word is not 0. In this form the processor's flags
        // have the result without a further instruction.
        match before as i64 > 0 {
            true => PutView::Kept,
            false => PutView::Detached,
        }
    }

    /// Drops a view that [`Hold::try_view_still`] took.
    pub(crate) fn put_view_still(&self) -> Dropped {
        self.drop_count(VIEW)
    }

    /// Starts writing to a cached frame if it has no views. The caller holds the block's lock.
    /// Acquire: pairs with `put_view`, so that the reads through the last view come before the
    /// bytes change.
    pub(crate) fn try_begin_write(&self) -> bool {
        self.update(Ordering::Acquire, |now| {
            assert!(
                !now.has_writer(),
                "I7: two writers hold one block's lock: {now:?}"
            );
            (now.views() == 0).then_some(now.0 | WRITER)
        })
        .is_ok()
    }

    /// Ends the write that `try_begin_write` started. Release: pairs with `try_view`.
    pub(crate) fn end_write(&self) {
        let before = HoldState(self.0.fetch_and(!WRITER, Ordering::Release));
        debug_assert!(
            before.has_writer(),
            "end of a write that never began: {before:?}"
        );
    }

    /// Allows write translations of a frame if it has neither views nor a writer. The caller holds
    /// the block's lock. Acquire: as in `try_begin_write`.
    pub(crate) fn try_set_wmapped(&self) -> bool {
        self.update(Ordering::Acquire, |now| {
            (now.views() == 0 && !now.has_writer()).then_some(now.0 | WMAPPED)
        })
        .is_ok()
    }

    /// Notes that no write translation is left: all were revoked, and a grace period has passed
    /// (I6). The caller holds the block's lock. Release: pairs with `try_view`.
    pub(crate) fn clear_wmapped(&self) {
        self.0.fetch_and(!WMAPPED, Ordering::Release);
    }

    /// Counts one more installed page, for a caller that holds the frame. Fails only if the count
    /// is full. Relaxed: the caller's own hold has acquired the bytes.
    #[inline]
    pub(crate) fn try_map(&self) -> bool {
        self.try_add(MAPPED, Ordering::Relaxed, |now| {
            debug_assert!(now != HoldState::NONE, "map of a frame that nobody holds");
            now.mapped() < HoldState::MAX
        })
    }

    /// Counts a page that is about to be installed, if the frame is in a file's index and the count
    /// has room. Like [`Hold::try_get_cached`], it is for a lookup that does not hold the frame
    /// yet. Until the page is installed, the count serves as the caller's hold.
    #[inline]
    pub(crate) fn try_map_cached(&self) -> bool {
        self.try_add(MAPPED, Ordering::Acquire, |now| {
            now.is_cached() && now.mapped() < HoldState::MAX
        })
    }

    /// Counts a second borrower of a leaf if it has one borrower and no other hold. While both are
    /// counted, any other call of this function fails. Acquire: pairs with the Release of every
    /// drop.
    pub(crate) fn try_map_both(&self) -> bool {
        self.try_add(MAPPED, Ordering::AcqRel, |now| now.0 == UNCACHED | MAPPED)
    }

    /// Ends what [`Hold::try_map_both`] began, and removes both borrowers in one step: if only one
    /// were removed, another attempt could begin.
    pub(crate) fn unmap_both(&self) -> Dropped {
        self.drop_count(2 * MAPPED)
    }

    /// Counts one installed page fewer.
    #[inline]
    pub(crate) fn unmap(&self) -> Dropped {
        self.drop_count(MAPPED)
    }

    /// Makes a cached frame owned again if exactly `refs` references hold it (the index's and the
    /// caller's own) and it has no view, no writer and no installed page. WMAPPED may still be set:
    /// with no installed page, no translation is left. Acquire: pairs with the Release of every
    /// drop.
    pub(crate) fn freeze(&self, refs: u32) -> bool {
        self.update(Ordering::AcqRel, |now| {
            (now.0 & !WMAPPED | COLD == HoldState::cached(refs).0).then_some(HoldState::NONE.0)
        })
        .is_ok()
    }

    /// Removes the frame from its file. In one step it sets UNCACHED and clears the bits that only
    /// a block of a file has, so that no view can be taken afterwards. The index's reference is
    /// dropped too, unless the frame has views, which inherit it. Returns the new word. If `viewed`
    /// is `Refused`, a frame with views stays in its file, and the word is returned as the error.
    /// The caller holds the block's lock.
    pub(super) fn leave_file(&self, viewed: Viewed) -> Result<HoldState, HoldState> {
        self.update(Ordering::AcqRel, |now| {
            assert!(
                now.is_cached() && now.refs() > 0,
                "uncache of what is not cached: {now:?}"
            );
            assert!(!now.has_writer(), "I7: uncache under a writer: {now:?}");
            let left = now.0 & !(WMAPPED | COLD) | UNCACHED;
            match (now.views(), viewed) {
                (0, _) => Some(left - REF),
                (_, Viewed::Allowed) => Some(left),
                (_, Viewed::Refused) => None,
            }
        })
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}

/// The number of times that this thread has changed a hold word, or tried to, for tests that bound
/// the cost of an operation.
#[cfg(all(test, not(loom), not(shuttle)))]
pub(crate) mod touched {
    use std::cell::Cell;

    thread_local! {
        static TOUCHED: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        TOUCHED.set(TOUCHED.get() + 1);
    }

    /// Returns the number so far.
    pub(crate) fn so_far() -> u64 {
        TOUCHED.get()
    }
}
