//! The bytes of published frames: reading them as a slice, writing them, and the hold that makes
//! each sound.
//!
//! | type | stands on | gives |
//! |---|---|---|
//! | [`Pinned`] | a view in the hold word | `&[u8]` that never changes |
//! | [`Writing`] | the WRITER bit: no view is alive and none can be taken | stores |
//! | [`Filling`] | LOCKED and not UPTODATE: no other thread looks at the bytes | `&mut [u8]` |
//! | [`Frames::copy_out`] | a reference | a copy: perhaps torn, never undefined |
//!
//! Everything else about a frame's life (when each of these may be taken) belongs to the cache;
//! this module only keeps slices and stores apart. Page-table translations read and write by the
//! primitives of `sys`, which may overlap with [`Writing`] and [`Frames::copy_out`]; they never
//! meet a slice: a view forbids write translations (WMAPPED).

use std::fmt;
use std::hint::cold_path;
use std::io::IoSliceMut;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, Range};
use std::ptr::NonNull;

use super::{FlagSet, FrameOffset, Frames, HeldOf, Meta, PutView, ReadEnd, Tag, Uses};
use crate::sync::Arc;
use crate::sys::copy;
use crate::units::{FrameId, PAGE_SIZE};

/// The owner of views: it has an arena, and frees frames that are no longer held. It is shared in
/// an `Arc`.
///
/// A view does not count on its owner, which would cost two read-modify-writes a view on a line
/// that all threads share. The owner stays for as long as it has a viewed block, because something
/// else keeps it:
/// - while the block is CACHED, its file does: it has an `Arc` of the owner, and no block stays
///   CACHED that the file cannot reach any more;
/// - when a block with views is taken out of its file, its views are counted first, and from then
///   on the owner keeps itself until the last view is gone ([`super::detached`]).
pub(crate) trait ViewOwner: Send + Sync + 'static {
    /// The arena: the same one for as long as the owner lives.
    fn frames(&self) -> &Frames;

    /// Counts one more view of a detached block.
    fn detached_view_made(&self, meta: &Meta);

    /// Counts one view less of a detached block. Frame and owner may go with it.
    fn detached_view_gone(&self, meta: &Meta);
}

/// A view: bytes of one block that do not change while it lives.
///
/// Its fields are plain words without destructors, so that a view that does not leave its function
/// stays in registers.
pub(crate) struct Pinned<K: ViewOwner> {
    bytes: NonNull<[u8]>,
    /// The block's first frame; `None`: the bytes are not of a block.
    block: Option<NonNull<Meta>>,
    /// For a block: its owner, a `K`. Otherwise null if the bytes stay for ever, or a `Box` of a
    /// `Copied`.
    owner: *const (),
    _of: PhantomData<K>,
}

/// The bytes of a clone of a view whose block has too many views to count.
type Copied = Arc<[u8]>;

// SAFETY: the bytes are read-only for as long as the view is held, so any thread may read them;
// metadata and owner are Send + Sync.
unsafe impl<K: ViewOwner> Send for Pinned<K> {}
// SAFETY: as above; `&Pinned` gives nothing but `&[u8]`.
unsafe impl<K: ViewOwner> Sync for Pinned<K> {}

/// One call of [`Pinned::find`]. The lifetime is unique to it, so that a [`Grip`] can only be used
/// by the call it came from.
pub(crate) struct Here<'id, K> {
    owner: &'id K,
    /// The offset in its page at which the view begins.
    in_page: usize,
    _only: PhantomData<fn(&'id ()) -> &'id ()>,
}

impl<K> Clone for Here<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Here<'_, K> {}

/// A view in two words, which a function returns in registers: of a block that is up to date, from
/// a byte inside it, at the offset in its page that the call named. Dropping it does not drop the
/// view.
#[must_use = "it counts as a view"]
pub(crate) struct Grip<'id, K> {
    start: NonNull<u8>,
    meta: NonNull<Meta>,
    here: PhantomData<Here<'id, K>>,
}

/// A view without its length. Dropping it does not drop the view.
struct Start {
    start: NonNull<u8>,
    block: Option<NonNull<Meta>>,
    owner: *const (),
}

impl Start {
    #[cold]
    #[inline(never)]
    fn of_len<K: ViewOwner, E>(
        len: usize,
        make: impl FnOnce() -> Result<Pinned<K>, E>,
    ) -> Result<Start, E> {
        let pinned = make()?;
        assert_eq!(pinned.bytes.len(), len, "the length of a view");
        let pinned = ManuallyDrop::new(pinned);
        Ok(Start {
            start: pinned.bytes.cast(),
            block: pinned.block,
            owner: pinned.owner,
        })
    }
}

/// How often to try a view that loses to other changes of the hold word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Try {
    /// Once, so that no registers are needed for a second attempt.
    Once,
    /// Until no other change comes in between.
    Again,
}

/// A view just taken of the block that is there, whichever it is. Dropping it does not drop the
/// view.
#[must_use = "it counts as a view"]
pub(crate) struct Taken<'id, K> {
    meta: &'id Meta,
    here: Here<'id, K>,
}

/// The outcome of a guess, apart from the usual one.
pub(crate) enum Guessed<'id, K> {
    /// The block that was sought.
    Sought(Taken<'id, K>),
    /// Another block.
    Other(Taken<'id, K>),
    /// No view.
    Nothing,
}

impl<'id, K: ViewOwner> Here<'id, K> {
    /// The owner.
    #[inline(always)]
    pub(crate) fn owner(self) -> &'id K {
        self.owner
    }

    /// Takes a view of the block at `at`. `None` when the frame is not cached, being written or
    /// mapped writable, or, when it is tried once, another thread changed its hold word meanwhile.
    #[inline(always)]
    pub(crate) fn take(self, at: FrameOffset, try_: Try) -> Option<Taken<'id, K>> {
        let meta = self.owner.frames().meta_at(at)?;
        let viewed = match try_ {
            Try::Once => meta.hold.try_view_once(),
            Try::Again => meta.hold.try_view(),
        };
        if !viewed {
            cold_path();
            return None;
        }
        Some(Taken { meta, here: self })
    }

    /// Takes a view of the page with this tag, if it is where it was found last, and hot: the usual
    /// hit.
    #[inline(always)]
    pub(crate) fn take_hot(self, tag: Tag) -> Option<Grip<'id, K>> {
        let (meta, start) = self.owner.frames().guess(tag);
        match meta.try_hot_view_of(tag) {
            HeldOf::Sought => Some(Grip {
                // SAFETY: inside the first page of a block that is inside the arena; it is up to
                // date, see `Meta::warm`.
                start: unsafe { start.add(self.in_page) },
                meta: NonNull::from_ref(meta),
                here: PhantomData,
            }),
            HeldOf::Other => {
                cold_path();
                Taken { meta, here: self }.give_back();
                None
            }
            HeldOf::Refused => {
                cold_path();
                None
            }
        }
    }

    /// Takes a view of the page with this tag, hot or not, if it is where it was found last.
    pub(crate) fn take_guessed(self, tag: Tag) -> Guessed<'id, K> {
        let (meta, _) = self.owner.frames().guess(tag);
        let taken = Taken { meta, here: self };
        match meta.try_view_of(tag) {
            HeldOf::Sought => Guessed::Sought(taken),
            HeldOf::Other => Guessed::Other(taken),
            HeldOf::Refused => Guessed::Nothing,
        }
    }
}

impl<'id, K: ViewOwner> Taken<'id, K> {
    /// The owner.
    pub(crate) fn owner(&self) -> &'id K {
        self.here.owner
    }

    /// The block's first frame.
    pub(crate) fn frame(&self) -> FrameId {
        self.here.owner.frames().id_of(self.meta)
    }

    /// The block's flags now.
    pub(crate) fn flags(&self) -> FlagSet {
        self.meta.flags.load()
    }

    /// The view from byte `inside` of the block, if the block is up to date and has that byte.
    /// Otherwise the view is dropped.
    pub(crate) fn up_to_date(self, inside: usize) -> Option<Grip<'id, K>> {
        assert_eq!(inside % PAGE_SIZE, self.here.in_page, "as the call said");
        let size = PAGE_SIZE << self.meta.order();
        if !self.flags().contains(FlagSet::UPTODATE) || inside >= size {
            self.give_back();
            return None;
        }
        let start = NonNull::new(self.here.owner.frames().host(self.frame()))?;
        Some(Grip {
            // SAFETY: inside the block, which is inside the arena.
            start: unsafe { start.add(inside) },
            meta: NonNull::from_ref(self.meta),
            here: PhantomData,
        })
    }

    /// Drops the view.
    #[cold]
    #[inline(never)]
    pub(crate) fn give_back(self) {
        drop(Pinned::of_block(self.here.owner, self.meta, &[]));
    }
}

impl<K: ViewOwner> Pinned<K> {
    /// Takes a view of the bytes `range` of the block that starts at `frame`. `None` when the frame
    /// is not cached, not up to date, being written or mapped writable, or when `range` is not
    /// inside the block (it may be another block by now: the caller looks again where it found the
    /// frame).
    pub(crate) fn try_new(
        owner: &Arc<K>,
        frame: FrameId,
        range: Range<usize>,
    ) -> Option<Pinned<K>> {
        let len = range.end.checked_sub(range.start)?;
        Pinned::find(&**owner, range.start % PAGE_SIZE, len, |here| {
            let taken = here.take(FrameOffset::of(frame), Try::Again)?;
            taken.up_to_date(range.start)
        })
    }

    /// The view of `len` bytes that begins where `find` finds it, `in_page` bytes into a page;
    /// `None` if it finds nothing, or the bytes reach beyond the block's end.
    #[inline(always)]
    pub(crate) fn find(
        owner: &K,
        in_page: usize,
        len: usize,
        find: impl for<'id> FnOnce(Here<'id, K>) -> Option<Grip<'id, K>>,
    ) -> Option<Pinned<K>> {
        let here = Here {
            owner,
            in_page: in_page % PAGE_SIZE,
            _only: PhantomData,
        };
        let grip = find(here)?;
        // Known before the view is taken, and often at compile time.
        if len > PAGE_SIZE - here.in_page && !Pinned::reaches(owner, grip.meta, grip.start, len) {
            return None;
        }
        Some(Pinned {
            bytes: NonNull::slice_from_raw_parts(grip.start, len),
            block: Some(grip.meta),
            owner: std::ptr::from_ref(owner).cast(),
            _of: PhantomData,
        })
    }

    /// The view of `len` bytes that the call of `make` returns. Its length is not taken from there,
    /// so that a caller that knows the length at compile time need not load it.
    ///
    /// # Panics
    /// When `make` returns one of another length.
    #[inline(always)]
    pub(crate) fn of_len<E>(
        len: usize,
        make: impl FnOnce() -> Result<Pinned<K>, E>,
    ) -> Result<Pinned<K>, E> {
        let Start {
            start,
            block,
            owner,
        } = Start::of_len(len, make)?;
        Ok(Pinned {
            bytes: NonNull::slice_from_raw_parts(start, len),
            block,
            owner,
            _of: PhantomData,
        })
    }

    /// Whether the `len` bytes from a view's beginning are in its block; if not, the view is
    /// dropped.
    #[inline(never)]
    fn reaches(owner: &K, meta: NonNull<Meta>, start: NonNull<u8>, len: usize) -> bool {
        // SAFETY: the arena's metadata, see `ViewOwner`.
        let meta = unsafe { meta.as_ref() };
        let frames = owner.frames();
        let first = frames.host(frames.id_of(meta)) as usize;
        let inside = start.addr().get() - first;
        let reaches = len <= (PAGE_SIZE << meta.order()) - inside;
        if !reaches {
            drop(Pinned::of_block(owner, meta, &[]));
        }
        reaches
    }

    fn of_block(owner: &K, meta: &Meta, bytes: &'static [u8]) -> Pinned<K> {
        Pinned {
            bytes: NonNull::from_ref(bytes),
            block: Some(NonNull::from_ref(meta)),
            owner: std::ptr::from_ref(owner).cast(),
            _of: PhantomData,
        }
    }

    /// Bytes that need no owner.
    #[inline]
    pub(crate) fn of_static(bytes: &'static [u8]) -> Pinned<K> {
        Pinned {
            bytes: NonNull::from_ref(bytes),
            block: None,
            owner: std::ptr::null(),
            _of: PhantomData,
        }
    }

    /// How the bytes are kept, for people.
    pub(crate) fn kind(&self) -> &'static str {
        match self.block {
            Some(_) => "pinned",
            None if self.owner.is_null() => "zeros",
            None => "copied",
        }
    }
}

impl<K: ViewOwner> Clone for Pinned<K> {
    /// A second view of the same bytes.
    fn clone(&self) -> Pinned<K> {
        self.part(0..self.bytes.len())
    }
}

impl<K: ViewOwner> Pinned<K> {
    /// A second view, of a part of the bytes.
    ///
    /// # Panics
    /// When the part reaches beyond the bytes.
    pub(crate) fn part(&self, range: Range<usize>) -> Pinned<K> {
        let bytes = NonNull::from_ref(&self[range]);
        let owner = match self.block {
            Some(meta) => {
                // SAFETY: as in `drop`; `self` keeps owner and metadata.
                let (meta, owner) = unsafe { (meta.as_ref(), &*self.owner.cast::<K>()) };
                match meta.hold.try_clone_view() {
                    Some(PutView::Kept) => {}
                    Some(PutView::Detached) => owner.detached_view_made(meta),
                    // SAFETY: a part of the bytes of `self`.
                    None => return Pinned::of_copy(Arc::from(unsafe { bytes.as_ref() })),
                }
                self.owner
            }
            None if !self.owner.is_null() => {
                // SAFETY: what `of_copy` put there; it is dropped with `self`.
                let copied = unsafe { &*self.owner.cast::<Copied>() };
                Box::into_raw(Box::new(copied.clone())).cast_const().cast()
            }
            None => self.owner,
        };
        Pinned {
            bytes,
            block: self.block,
            owner,
            _of: PhantomData,
        }
    }

    fn of_copy(bytes: Copied) -> Pinned<K> {
        Pinned {
            bytes: NonNull::from_ref(&*bytes),
            block: None,
            owner: Box::into_raw(Box::new(bytes)).cast(),
            _of: PhantomData,
        }
    }
}

impl<K: ViewOwner> Deref for Pinned<K> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: of a block: the arena stays mapped (`ViewOwner`). The view forbids WRITER and
        // WMAPPED, and UPTODATE ended the filling, so the bytes are not written while `self`
        // lives; the frame is not freed before the view is dropped (`Hold`). Otherwise they live
        // for ever, or as long as the `Arc` beside them.
        unsafe { self.bytes.as_ref() }
    }
}

impl<K: ViewOwner> Drop for Pinned<K> {
    #[inline(always)]
    fn drop(&mut self) {
        let Some(meta) = self.block else {
            cold_path();
            if !self.owner.is_null() {
                // SAFETY: what `of_copy` put there, and `self` is its only user.
                unsafe { drop_copied(self.owner) }
            }
            return;
        };
        // SAFETY: metadata lives as long as the arena, which the view keeps, see `ViewOwner`; it is
        // not touched after the word was changed, unless the block was detached.
        let put = unsafe { meta.as_ref() }.hold.put_view();
        if put == PutView::Detached {
            cold_path();
            // SAFETY: the owner keeps itself, and the frame, until it has been told that this view
            // is gone.
            unsafe { notify_owner::<K>(meta, self.owner) }
        }
    }
}

/// Safety: `owner` is the `Box` of a [`Copied`], given up by its only user.
#[cold]
#[inline(never)]
unsafe fn drop_copied(owner: *const ()) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(owner.cast_mut().cast::<Copied>()) });
}

/// Notifies the owner of a dropped view of a detached block. Safety: it was the caller's, and the
/// owner has counted it.
#[cold]
#[inline(never)]
unsafe fn notify_owner<K: ViewOwner>(meta: NonNull<Meta>, owner: *const ()) {
    // SAFETY: the caller's promise.
    let (meta, owner) = unsafe { (meta.as_ref(), &*owner.cast::<K>()) };
    owner.detached_view_gone(meta);
}

impl<K: ViewOwner> fmt::Debug for Pinned<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} bytes)", self.bytes.len())
    }
}

/// The right to store into a cached block that has no views; the holder has the block's lock.
pub(crate) struct Writing<'f> {
    frames: &'f Frames,
    frame: FrameId,
    size: usize,
}

impl<'f> Writing<'f> {
    /// Starts writing; `None` while views are alive.
    pub(crate) fn begin(frames: &'f Frames, frame: FrameId) -> Option<Writing<'f>> {
        let meta = frames.meta(frame);
        let both = FlagSet::LOCKED | FlagSet::UPTODATE;
        debug_assert!(
            meta.flags.load().contains(both),
            "I7: {frame:?} is written without its lock"
        );
        let size = PAGE_SIZE << meta.order();
        // Not `then_some`: a guard made and dropped would end the write of another thread.
        if meta.hold.try_begin_write() {
            Some(Writing {
                frames,
                frame,
                size,
            })
        } else {
            None
        }
    }

    /// Stores `bytes` at `offset` in the block.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(
            offset <= self.size && bytes.len() <= self.size - offset,
            "outside the block"
        );
        // SAFETY: inside the block; no slice of it exists (WRITER excludes views), and `bytes` is a
        // slice, so it is not part of it.
        unsafe { copy::copy_out(self.frames.host(self.frame).add(offset), bytes) }
    }

    /// Stores zeros into `range` of the block.
    pub(crate) fn zero(&mut self, range: Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.size,
            "outside the block"
        );
        let start = self.frames.host(self.frame);
        // SAFETY: as in `write`.
        unsafe { copy::fill(start.add(range.start), 0, range.end - range.start) }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.frames.meta(self.frame).hold.end_write();
    }
}

/// The right to fill a block that was published locked and not up to date: others can find it, but
/// not read it.
pub(crate) struct Filling<'f> {
    frames: &'f Frames,
    frame: FrameId,
}

impl<'f> Filling<'f> {
    /// Takes over the right. The caller published the frame locked just now and makes no second
    /// one.
    pub(crate) fn adopt(frames: &'f Frames, frame: FrameId) -> Filling<'f> {
        let flags = frames.meta(frame).flags.load();
        let right = flags.contains(FlagSet::LOCKED) && !flags.contains(FlagSet::UPTODATE);
        assert!(right, "I7: {frame:?} is not being filled: {flags:?}");
        Filling { frames, frame }
    }

    /// The block's bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let size = PAGE_SIZE << self.frames.meta(self.frame).order();
        // SAFETY: inside the arena; while the block is locked and not up to date only the filler
        // looks at its bytes (`Pinned` and `copy_out` check UPTODATE, translations are made of
        // blocks up to date), and `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.frames.host(self.frame), size) }
    }

    /// Ends the filling: sets UPTODATE and unlocks in one step.
    pub(crate) fn finish(self) {
        self.frames.end_read(self.frame, ReadEnd::Filled);
    }
}

/// The right to fill blocks that were published locked and not up to date, as a value that may
/// outlive the call that made them and go to another thread. Neither dropping it nor taking it
/// apart changes the blocks.
pub(crate) struct Fills<K: ViewOwner> {
    owner: Arc<K>,
    /// First frames, in the order of their blocks.
    blocks: Vec<FrameId>,
    /// The size of each block.
    block_bytes: usize,
}

impl<K: ViewOwner> Pinned<K> {
    /// The record of uses of the view's block; `None` if it is of no block.
    pub(crate) fn uses(&self) -> Option<&Uses> {
        // SAFETY: metadata of the owner's arena, which the view's block keeps as it does the
        // bytes.
        self.block.map(|meta| unsafe { &meta.as_ref().uses })
    }
}

impl<K: ViewOwner> Fills<K> {
    /// Takes over the right. The caller published the blocks locked and makes no second one.
    pub(crate) fn adopt(owner: &Arc<K>, blocks: Vec<FrameId>, block_bytes: usize) -> Fills<K> {
        for block in &blocks {
            let meta = owner.frames().meta(*block);
            let flags = meta.flags.load();
            let right = flags.contains(FlagSet::LOCKED) && !flags.contains(FlagSet::UPTODATE);
            assert!(right, "I7: {block:?} is not being filled: {flags:?}");
            assert_eq!(PAGE_SIZE << meta.order(), block_bytes, "{block:?}");
        }
        Fills {
            owner: owner.clone(),
            blocks,
            block_bytes,
        }
    }

    /// The blocks' first frames.
    pub(crate) fn blocks(&self) -> &[FrameId] {
        &self.blocks
    }

    /// Bytes of all blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len() * self.block_bytes
    }

    /// The bytes of a range of the concatenated blocks, in as few pieces as memory allows.
    pub(crate) fn slices_mut(&mut self, bytes: Range<usize>) -> Vec<IoSliceMut<'_>> {
        assert!(bytes.end <= self.len(), "outside the blocks");
        let mut slices: Vec<IoSliceMut<'_>> = Vec::new();
        let mut at = bytes.start;
        while at < bytes.end {
            let first = at / self.block_bytes;
            let inside = at % self.block_bytes;
            let pages = (self.block_bytes / PAGE_SIZE) as u32;
            let neighbours = self.blocks[first..]
                .windows(2)
                .take_while(|pair| pair[0].0 + pages == pair[1].0);
            let whole = (neighbours.count() + 1) * self.block_bytes;
            let len = (whole - inside).min(bytes.end - at);
            let start = self.owner.frames().host(self.blocks[first]);
            // SAFETY: inside the arena, which the owner keeps, for the blocks' frames lie one
            // behind the other in it. While a block is locked and not up to date only its filler
            // looks at its bytes (see `Filling`), and that is this value: `&mut self` and ranges
            // that do not overlap make these the only slices.
            let slice = unsafe { std::slice::from_raw_parts_mut(start.add(inside), len) };
            slices.push(IoSliceMut::new(slice));
            at += len;
        }
        slices
    }
}

impl Frames {
    /// Copies from `offset` in the block at `frame`, which the caller holds and found up to date.
    /// Bytes written meanwhile may be torn.
    pub(crate) fn copy_out(&self, frame: FrameId, offset: usize, into: &mut [u8]) {
        let meta = self.meta(frame);
        debug_assert!(
            meta.flags.load().contains(FlagSet::UPTODATE),
            "{frame:?} is not filled"
        );
        let size = PAGE_SIZE << meta.order();
        assert!(
            offset <= size && into.len() <= size - offset,
            "outside the block"
        );
        // SAFETY: inside the arena; `into` is an exclusive slice, so it is not part of it.
        unsafe { copy::copy_in(into, self.host(frame).add(offset)) }
    }
}

#[cfg(test)]
mod for_tests {
    use super::*;

    impl Frames {
        /// Stores into a block as a page-table translation would: with no guard at all.
        pub(crate) fn store_for_test(&self, frame: FrameId, offset: usize, bytes: &[u8]) {
            let size = PAGE_SIZE << self.meta(frame).order();
            assert!(
                offset <= size && bytes.len() <= size - offset,
                "outside the block"
            );
            // SAFETY: inside the arena, and the test holds a translation that allows stores.
            unsafe { copy::copy_out(self.host(frame).add(offset), bytes) }
        }
    }
}
