//! Views: owned, immutable bytes of a file.
//!
//! A view inside one block is the frame itself, held by a count in its hold word. A view over
//! several blocks is their consecutive frames, each held in the same way ([`super::long_view`]). A
//! view of a hole shows static zeros. In each case the bytes never change: writers move the block
//! to a new frame while views keep the old one (P28).

use std::fmt;
use std::ops::{Deref, Range, RangeBounds};

use crate::frame::{MAX_ORDER, Pinned};
use crate::reclaim::Pool;
use crate::sync::Arc;
use crate::units::{FrameId, MIB, PAGE_SIZE};

/// The longest view of a hole that takes no memory: as long as the largest block.
pub(crate) const MAX_ZEROS: u64 = (PAGE_SIZE as u64) << MAX_ORDER;
const _: () = assert!(MAX_ZEROS == 2 * MIB);

/// The bytes of a hole, aligned as a block is. Never written, so the host backs all of it with its
/// zero page.
#[repr(align(4096))]
struct Zeros([u8; MAX_ZEROS as usize]);

static ZEROS: Zeros = Zeros([0; MAX_ZEROS as usize]);

/// Bytes of a file that do not change while the view lives, even if the file is written, truncated,
/// evicted or dropped.
///
/// A view is owned, cloneable, `Send` and `Sync`. It keeps its blocks in memory (and charged) as
/// long as it lives, so drop views early: otherwise they fill up the group.
///
/// ```
/// use innerspace::{MIB, Memory, View, file::FileAccess, store::MemoryStore};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(4 * MIB)?;
/// let options = memory.file_options().access(FileAccess::ReadWrite);
/// let file = options.open_store(MemoryStore::from_bytes(b"as it was"))?;
/// let view: View = file.view(..)?;
/// file.write_at(b"changed  ", 0)?;
/// drop(file);
/// let reader = std::thread::spawn(move || view.to_vec());
/// assert_eq!(reader.join().unwrap(), b"as it was");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct View(pub(super) Pinned<Pool>);

impl View {
    pub(crate) fn zeros(len: usize) -> View {
        View(Pinned::of_static(&ZEROS.0[..len]))
    }

    /// Creates a view of part of a block that the caller holds. Returns `None` if the block has
    /// left the file's index, is being written, or is mapped writable, or if its count of views is
    /// full.
    pub(crate) fn of_frame(pool: &Arc<Pool>, frame: FrameId, inside: Range<usize>) -> Option<View> {
        let pinned = Pinned::try_new(pool, frame, inside)?;
        Some(View(pinned))
    }
}

impl View {
    /// Returns a view of a part of the bytes. The new view is independent of this one: it keeps its
    /// blocks in memory by itself. Nothing is copied.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory, View, store::MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = Memory::with_limit(4 * MIB)?;
    /// let file = memory.file_options().open_store(MemoryStore::from_bytes(b"key=value"))?;
    /// let entry = file.view(..)?;
    /// let value: View = entry.slice(4..);
    /// drop(entry);
    /// assert_eq!(value[..], *b"value");
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// If the range reaches beyond the view, or ends before it begins, as for a slice.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> View {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        let part = self[bounds].as_ptr_range();
        let start = part.start.addr() - self.as_ptr().addr();
        View(
            self.0
                .part(start..start + (part.end.addr() - part.start.addr())),
        )
    }

    /// Returns the bytes as values of another type, by means of the traits of `zerocopy`: in the
    /// machine's byte order, in place. Blocks are aligned to 4096 bytes in memory, so values that
    /// are aligned in the file are aligned here.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory, store::MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = Memory::with_limit(4 * MIB)?;
    /// let bytes: Vec<u8> = [0.5_f32, 1.5].into_iter().flat_map(f32::to_ne_bytes).collect();
    /// let file = memory.file_options().open_store(MemoryStore::from_bytes(&bytes))?;
    /// assert_eq!(file.view(..)?.cast::<f32>().unwrap(), [0.5, 1.5]);
    /// assert!(file.view(1..5)?.cast::<f32>().is_err(), "not aligned");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// If the bytes are not aligned for such values, or are not a whole number of them.
    #[cfg(feature = "zerocopy_0_8")]
    pub fn cast<T>(&self) -> Result<&[T], zerocopy::CastError<&[u8], [T]>>
    where
        T: zerocopy::FromBytes + zerocopy::Immutable,
    {
        <[T] as zerocopy::FromBytes>::ref_from_bytes(self)
    }
}

impl Deref for View {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} bytes, {})", self.len(), self.0.kind())
    }
}
