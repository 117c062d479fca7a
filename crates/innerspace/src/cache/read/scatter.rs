//! Views of a range block by block, where the blocks need not be contiguous in memory: one after
//! the other ([`Chunks`]), or all together ([`ScatterView`]).

use std::fmt;
#[cfg(feature = "bytes_1")]
use std::io::IoSlice;
use std::iter::FusedIterator;
use std::ops::{Range, RangeBounds};
use std::vec;

use crate::cache::errors::FileError;
use crate::cache::file::handle::PagedFile;
use crate::cache::read::copy::next_piece;
use crate::cache::read::view::View;
use crate::cache::wait::Wait;
use crate::group::{HeapBytes, MayReclaim};

impl PagedFile {
    /// Returns an iterator over views of a range, in order, each of one block or a part of one.
    /// Nothing is copied, and only the views that the caller keeps stay in memory.
    ///
    /// ```
    /// # use innerspace::{MIB, Memory, store::MemoryStore};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let memory = Memory::with_limit(4 * MIB)?;
    /// let file = memory.file_options().open_store(MemoryStore::from_bytes(&[1; 10_000]))?;
    /// let mut sum = 0;
    /// for chunk in file.chunks(100..)? {
    ///     sum += chunk?.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    /// }
    /// assert_eq!(sum, 9_900);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`FileError::BadRange`], [`FileError::PastEnd`]. The iterator returns the errors of
    /// [`PagedFile::view`], and ends after one.
    pub fn chunks(&self, range: impl RangeBounds<u64>) -> Result<Chunks, FileError> {
        let range = self.bytes(range)?;
        let core = self.core();
        if range.end > core.size() {
            return Err(core.past_end(range.start, range.end - range.start, core.size()));
        }
        let stream = &self.handle().stream;
        stream.expect(core.blocks_of(range.clone()), &core.tuning());
        Ok(Chunks {
            file: self.same_handle(),
            left: range,
        })
    }

    /// Returns views of all blocks of a range at once. The blocks need not be contiguous: unlike a
    /// [`View`] of the range, this moves and copies nothing.
    ///
    /// # Errors
    /// The errors of [`PagedFile::view`].
    pub fn scatter(&self, range: impl RangeBounds<u64>) -> Result<ScatterView, FileError> {
        let chunks = self.chunks(range)?;
        let core = self.core();
        let blocks = core.blocks_of(chunks.left.clone());
        let count = (blocks.end - blocks.start) as usize;
        let bytes = count.saturating_mul(size_of::<View>());
        let heap = core.id.group.charge_heap(bytes, MayReclaim::Clean)?;
        let left = chunks.left.end - chunks.left.start;
        let views = chunks.collect::<Result<Vec<View>, FileError>>()?;
        Ok(ScatterView {
            left: left as usize,
            first: 0,
            views: views.into_iter(),
            _heap: heap,
        })
    }
}

/// Views of a range, block by block. Created by [`PagedFile::chunks`].
#[derive(Debug)]
#[must_use = "iterators do nothing unless used"]
pub struct Chunks {
    file: PagedFile,
    left: Range<u64>,
}

impl Iterator for Chunks {
    type Item = Result<View, FileError>;

    fn next(&mut self) -> Option<Result<View, FileError>> {
        let piece = next_piece(self.file.core(), &mut self.left)?;
        let view = self.file.handle().view(piece, Wait::Yes);
        if view.is_err() {
            self.left.start = self.left.end;
        }
        Some(view)
    }
}

impl FusedIterator for Chunks {}

/// Bytes of a file that do not change, in views of at most a block each. It is an iterator that
/// hands out the views, and a cursor over their bytes. Created by [`PagedFile::scatter`].
///
/// ```
/// # use innerspace::{MIB, Memory, store::MemoryStore};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let memory = Memory::with_limit(4 * MIB)?;
/// let file = memory.file_options().open_store(MemoryStore::from_bytes(&[7; 10_000]))?;
/// let mut bytes = file.scatter(1000..)?;
/// assert_eq!(bytes.len(), 9_000);
/// bytes.advance(5_000);
/// assert_eq!(bytes.chunk().len(), 2_192, "up to the block's end");
/// assert_eq!(bytes.map(|view| view.len()).sum::<usize>(), 4_000);
/// # Ok(()) }
/// ```
#[must_use = "iterators do nothing unless used"]
pub struct ScatterView {
    /// The number of bytes that are left.
    left: usize,
    /// The number of bytes of the first view that have already been skipped.
    first: usize,
    views: vec::IntoIter<View>,
    /// The charge to the file's group for the heap memory of `views`.
    _heap: HeapBytes,
}

impl ScatterView {
    /// Returns the number of bytes that are left.
    pub fn len(&self) -> usize {
        self.left
    }

    /// Whether no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Returns the first bytes that are left, up to the end of their block. Empty at the end.
    pub fn chunk(&self) -> &[u8] {
        let first = self.views.as_slice().first();
        first.map_or(&[], |view| &view[self.first..])
    }

    /// Skips `count` bytes. Views that are skipped completely are dropped.
    ///
    /// # Panics
    /// If fewer bytes are left.
    pub fn advance(&mut self, mut count: usize) {
        assert!(count <= self.left, "advances {count} of {}", self.left);
        self.left -= count;
        while count > 0 {
            let here = self.chunk().len();
            if count < here {
                self.first += count;
                return;
            }
            count -= here;
            self.first = 0;
            drop(self.views.next());
        }
    }
}

/// Makes no copy: the chunks are the views' bytes.
#[cfg(feature = "bytes_1")]
impl bytes::Buf for ScatterView {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        self.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.advance(count);
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut first = self.first;
        let chunks = (self.views.as_slice().iter()).map(|view| &view[std::mem::take(&mut first)..]);
        let pairs = into.iter_mut().zip(chunks);
        pairs
            .map(|(slice, chunk)| *slice = IoSlice::new(chunk))
            .count()
    }
}

impl Iterator for ScatterView {
    type Item = View;

    fn next(&mut self) -> Option<View> {
        let view = self.views.next()?;
        let first = std::mem::take(&mut self.first);
        self.left -= view.len() - first;
        match first {
            0 => Some(view),
            _ => Some(view.slice(first..)),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.views.size_hint()
    }
}

impl FusedIterator for ScatterView {}

impl fmt::Debug for ScatterView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let views = self.views.len();
        write!(f, "ScatterView({} bytes in {views} views)", self.left)
    }
}
