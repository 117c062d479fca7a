//! Views: the bytes of a published block as a slice that never changes, because the view is counted
//! in the block's hold word. The other ways to the bytes are in [`super::writing`].

use std::fmt;
use std::hint::cold_path;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::ptr::NonNull;

use super::{FlagSet, Frames, HeldOf, Hold, Meta, PutView, Tag};
use crate::sync::Arc;
use crate::units::{FrameId, PAGE_SIZE};

/// The owner of views: it has an arena, and frees frames that are no longer held. It is shared in
/// an `Arc`.
///
/// A view holds no reference to its owner. That would cost two read-modify-writes for each view, on
/// a cache line that all threads share. Something else keeps the owner alive as long as it has a
/// viewed block:
/// - While the block is CACHED, its file keeps the owner alive. The file has an `Arc` of the owner,
///   and a block that the file can no longer reach does not stay CACHED.
/// - When a block with views is removed from its file, its views are counted first. From then on
///   the owner keeps itself alive until the last of these views is gone ([`super::detached`]).
pub(crate) trait ViewOwner: Send + Sync + 'static {
    /// Returns the arena, which is the same as long as the owner lives.
    fn frames(&self) -> &Frames;

    /// Counts one more view of a detached block.
    fn detached_view_made(&self, meta: &Meta);

    /// Counts one view fewer of a detached block. This may free the frame and the owner.
    fn detached_view_gone(&self, meta: &Meta);
}

/// A view: bytes, usually of one block, that do not change while the view lives.
///
/// Its fields are plain words without destructors, so that a view that does not leave its function
/// stays in registers.
pub(crate) struct Pinned<K: ViewOwner> {
    pub(super) bytes: NonNull<[u8]>,
    /// The metadata of the block's first frame, or `None` if the bytes are not those of one block.
    pub(super) block: Option<NonNull<Meta>>,
    /// For a view of one block or several, the owner, which is a `K`. For several blocks
    /// [`SEVERAL`] is set as well. For other views this is null if there are no bytes or they stay
    /// for ever, and a `Box` of a `Copied` otherwise.
    pub(super) owner: *const (),
    pub(super) _of: PhantomData<K>,
}

/// The bit that is set in the owner pointer of a [`Pinned`] that views several blocks
/// ([`super::row`]).
pub(super) const SEVERAL: usize = 1;

/// The bytes of a view that has none yet.
const NO_BYTES: NonNull<[u8]> = NonNull::from_ref(&[]);

/// The bytes of a cloned view of a block that had too many views to count one more, or that was
/// cloned in a child of fork(2).
type Copied = Arc<[u8]>;

// SAFETY: the bytes are read-only as long as the view is held, so any thread may read them.
// Metadata and owner are Send and Sync.
unsafe impl<K: ViewOwner> Send for Pinned<K> {}
// SAFETY: as above; `&Pinned` gives only `&[u8]`.
unsafe impl<K: ViewOwner> Sync for Pinned<K> {}

impl<K: ViewOwner> Pinned<K> {
    /// Returns the view of `len` bytes that begins `in_page` bytes into the page with this tag, if
    /// the page is hot and is where it was last found: the usual hit.
    ///
    /// # Panics
    /// If the bytes reach beyond the page.
    #[inline(always)]
    pub(crate) fn find_hot(owner: &K, tag: Tag, in_page: usize, len: usize) -> Option<Pinned<K>> {
        assert!(in_page < PAGE_SIZE && len <= PAGE_SIZE - in_page);
        let (meta, start) = owner.frames().guess(tag);
        match meta.try_hold_of(tag, Hold::try_view_hot) {
            HeldOf::Sought => {
                // SAFETY: the byte is inside the first page of a block, which is inside the arena.
                // The block is up to date, see `Meta::warm`.
                let start = unsafe { start.add(in_page) };
                let bytes = NonNull::slice_from_raw_parts(start, len);
                Some(Pinned::of_block(owner, meta, bytes))
            }
            HeldOf::Other => {
                cold_path();
                give_back(owner, meta);
                None
            }
            HeldOf::Refused => {
                cold_path();
                None
            }
        }
    }

    /// Takes a view of the page with this tag, hot or not, if it is where it was last found and can
    /// be viewed. Returns its frame as well. The view is empty until [`Pinned::up_to_date`] gives
    /// it bytes.
    pub(crate) fn take_guessed(owner: &K, tag: Tag) -> Option<(FrameId, Pinned<K>)> {
        let frames = owner.frames();
        let frame = frames.lookaside.guess(tag);
        let meta = frames.meta(frame);
        match meta.try_hold_of(tag, Hold::try_view) {
            HeldOf::Sought => Some((frame, Pinned::of_block(owner, meta, NO_BYTES))),
            HeldOf::Other => {
                give_back(owner, meta);
                None
            }
            HeldOf::Refused => None,
        }
    }

    /// Takes a view of whichever block starts at `frame`. Returns `None` if the frame is not
    /// cached, is being written, is mapped writable or has too many views. The view is empty until
    /// [`Pinned::up_to_date`] gives it bytes.
    pub(crate) fn take(owner: &K, frame: FrameId) -> Option<Pinned<K>> {
        let meta = owner.frames().meta(frame);
        let viewed = meta.hold.try_view();
        viewed.then(|| Pinned::of_block(owner, meta, NO_BYTES))
    }

    /// Returns the view with the bytes `inside` of its block. Drops the view and returns `None` if
    /// the block is not up to date or does not have these bytes.
    pub(crate) fn up_to_date(mut self, inside: Range<usize>) -> Option<Pinned<K>> {
        let (meta, owner) = self.parts()?;
        let len = inside.end.checked_sub(inside.start)?;
        let is_there = inside.end <= PAGE_SIZE << meta.order();
        if !is_there || !meta.flags.load().contains(FlagSet::UPTODATE) {
            return None;
        }
        let start = owner.frames().start(owner.frames().id_of(meta));
        // SAFETY: the bytes are inside the block, which is inside the arena.
        let start = unsafe { start.add(inside.start) };
        self.bytes = NonNull::slice_from_raw_parts(start, len);
        Some(self)
    }

    /// Takes a view of the bytes `range` of the block that starts at `frame`. Returns `None` if the
    /// frame is not cached, is not up to date, is being written, is mapped writable or has too many
    /// views, or if `range` is not inside the block. The frame may be another block by now, so the
    /// caller looks again where it found the frame.
    pub(crate) fn try_new(
        owner: &Arc<K>,
        frame: FrameId,
        range: Range<usize>,
    ) -> Option<Pinned<K>> {
        Pinned::take(&**owner, frame)?.up_to_date(range)
    }

    /// Returns this view, whose length is `len`. A caller that knows the length at compile time
    /// need not load it from the result.
    ///
    /// # Panics
    /// If the view has another length.
    #[inline(always)]
    pub(crate) fn of_len(mut self, len: usize) -> Pinned<K> {
        assert!(self.bytes.len() == len, "the length of a view");
        self.bytes = NonNull::slice_from_raw_parts(self.bytes.cast(), len);
        self
    }

    /// Makes the value of a view that the block's hold word already counts.
    #[inline(always)]
    fn of_block(owner: &K, meta: &Meta, bytes: NonNull<[u8]>) -> Pinned<K> {
        Pinned {
            bytes,
            block: Some(NonNull::from_ref(meta)),
            owner: std::ptr::from_ref(owner).cast(),
            _of: PhantomData,
        }
    }

    /// Returns the metadata and the owner of a view of one block.
    fn parts(&self) -> Option<(&Meta, &K)> {
        let meta = self.block?;
        // SAFETY: the owner of a view of one block is a `K`. The view keeps the owner and the
        // metadata alive, see `ViewOwner`.
        Some(unsafe { (meta.as_ref(), &*self.owner.cast::<K>()) })
    }

    /// Makes a view of bytes that need no owner.
    #[inline]
    pub(crate) fn of_static(bytes: &'static [u8]) -> Pinned<K> {
        Pinned {
            bytes: NonNull::from_ref(bytes),
            block: None,
            owner: std::ptr::null(),
            _of: PhantomData,
        }
    }

    /// Returns the metadata of the view's block, or `None` if the view is not of exactly one block.
    pub(crate) fn meta(&self) -> Option<&Meta> {
        Some(self.parts()?.0)
    }

    /// Returns how the bytes are kept, for debug output.
    pub(crate) fn kind(&self) -> &'static str {
        match self.block {
            Some(_) => "pinned",
            None if self.is_row() => "pinned in a row",
            None if self.owner.is_null() => "zeros",
            None => "copied",
        }
    }
}

/// Drops a view that the caller has just taken.
#[cold]
#[inline(never)]
fn give_back<K: ViewOwner>(owner: &K, meta: &Meta) {
    drop(Pinned::of_block(owner, meta, NO_BYTES));
}

impl<K: ViewOwner> Clone for Pinned<K> {
    /// Takes a second view of the same bytes.
    fn clone(&self) -> Pinned<K> {
        self.part(0..self.bytes.len())
    }
}

impl<K: ViewOwner> Pinned<K> {
    /// Takes a second view, of a part of the bytes. If the views of a block cannot be counted
    /// (there are too many, or this is a child of fork(2)), the result is a copy of the part.
    ///
    /// # Panics
    /// If the part reaches beyond the bytes.
    pub(crate) fn part(&self, range: Range<usize>) -> Pinned<K> {
        let bytes = NonNull::from_ref(&self[range]);
        let owner = match self.parts() {
            Some((meta, owner)) => {
                // A child of fork(2) has no metadata.
                let is_wiped = owner.frames().is_wiped();
                let cloned = (!is_wiped).then(|| meta.hold.try_clone_view()).flatten();
                match cloned {
                    Some(PutView::Kept) => {}
                    Some(PutView::Detached) => owner.detached_view_made(meta),
                    // SAFETY: these are a part of the bytes of `self`.
                    None => return Pinned::of_copy(Arc::from(unsafe { bytes.as_ref() })),
                }
                self.owner
            }
            None if bytes.is_empty() => std::ptr::null(),
            None if self.is_row() => {
                let part = self.part_of_row(bytes);
                // SAFETY: a part of the bytes of `self`.
                return part.unwrap_or_else(|| Pinned::of_copy(unsafe { bytes.as_ref() }.into()));
            }
            None if !self.owner.is_null() => {
                // SAFETY: the pointer is that of a boxed `Copied`, which is dropped with `self`.
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
        // SAFETY: for bytes of a block: the arena stays mapped (`ViewOwner`). The view forbids
        // WRITER and WMAPPED, and UPTODATE ended the filling, so the bytes are not written while
        // `self` lives. The frame is not freed before the view is dropped (`Hold`). The same holds
        // for the bytes of several blocks, which are consecutive. Other bytes live for ever, or as
        // long as the [`Copied`] to which `owner` points.
        unsafe { self.bytes.as_ref() }
    }
}

impl<K: ViewOwner> Drop for Pinned<K> {
    #[inline(always)]
    fn drop(&mut self) {
        let Some(meta) = self.block else {
            cold_path();
            if !self.owner.is_null() {
                self.drop_shared();
            }
            return;
        };
        // SAFETY: the metadata lives as long as the arena, which outlives the view, see
        // `ViewOwner`. After the word was changed the metadata is not touched, unless the block was
        // detached.
        let put = unsafe { meta.as_ref() }.hold.put_view();
        if put == PutView::Detached {
            cold_path();
            // SAFETY: the owner keeps itself and the frame alive until it has been notified that
            // this view is gone.
            unsafe { notify_owner::<K>(meta, self.owner) }
        }
    }
}

impl<K: ViewOwner> Pinned<K> {
    /// Drops a view whose bytes are in several blocks, or are a copy.
    #[cold]
    #[inline(never)]
    fn drop_shared(&mut self) {
        if self.is_row() {
            self.drop_row();
        } else {
            // SAFETY: the pointer is that of a boxed `Copied`, which `of_copy` or `part` has
            // stored. `self` is its only user.
            drop(unsafe { Box::from_raw(self.owner.cast_mut().cast::<Copied>()) });
        }
    }
}

/// The bit [`SEVERAL`] is clear in the address of a boxed [`Copied`]. [`super::row`] checks that it
/// is clear in an owner's address.
const _: () = assert!(align_of::<Copied>() > SEVERAL);

/// Notifies the owner of a dropped view of a detached block. Safety: the caller held the view, and
/// the owner has counted it.
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
