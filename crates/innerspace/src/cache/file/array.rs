//! A view of a file as an array of plain numbers.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use crate::cache::errors::FileError;
use crate::cache::file::handle::PagedFile;
use crate::cache::wait::Wait;
use crate::cache::write::write_at::{End, write_at};
use crate::units::KIB;

mod sealed {
    pub trait Sealed: Copy + Send + Sync + 'static {
        /// Converts little-endian bytes to the number. `bytes` has exactly the number's size.
        fn from_le(bytes: &[u8]) -> Self;
        /// Stores the number as little-endian bytes. `bytes` has exactly the number's size.
        fn to_le(self, bytes: &mut [u8]);
    }
}

/// A plain number: an integer of 1 to 16 bytes, `f32` or `f64`. Other crates cannot implement it.
pub trait Element: sealed::Sealed {}

macro_rules! elements {
    ($($number:ty)*) => {
        $(
            impl sealed::Sealed for $number {
                #[inline]
                fn from_le(bytes: &[u8]) -> $number {
                    let mut own = [0; size_of::<$number>()];
                    own.copy_from_slice(bytes);
                    <$number>::from_le_bytes(own)
                }

                #[inline]
                fn to_le(self, bytes: &mut [u8]) {
                    bytes.copy_from_slice(&self.to_le_bytes());
                }
            }
            impl Element for $number {}
        )*
    };
}

elements!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

/// The size of the largest element in bytes. Sizes are powers of two, and each element is at a
/// multiple of its size, so no element crosses the end of a block.
const MAX_ELEMENT: usize = 16;
/// The number of bytes that a write converts at a time. If blocks are larger, it converts a block
/// at a time.
const PIECE: u64 = 64 * KIB;

/// A file as numbers stored one after the other, little-endian. Created by [`PagedFile::array`].
/// The length of the array is fixed when it is created: an array does not make its file longer.
///
/// ```
/// use innerspace::{MIB, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("samples.f32");
/// let memory = Memory::with_limit(4 * MIB)?;
/// let file = memory.create(&path)?;
/// file.set_len(4 * 1000)?;                           // a thousand zeros
/// let samples = file.array::<f32>()?;
/// samples.set(7, 0.5)?;
/// samples.write(8, &[1.0, 2.0])?;
/// let mut first = [0.0; 10];
/// samples.read(0, &mut first)?;
/// assert_eq!(first[6..], [0.0, 0.5, 1.0, 2.0]);
/// assert!(samples.set(1000, 3.0).is_err());
/// file.sync_all()?;                                  // as for any write
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Array<T> {
    file: PagedFile,
    len: u64,
    _element: PhantomData<T>,
}

impl PagedFile {
    /// Returns the file as an array of plain numbers, stored little-endian. The file's length must
    /// be a multiple of their size.
    ///
    /// # Errors
    /// [`FileError::NotWhole`].
    pub fn array<T: Element>(&self) -> Result<Array<T>, FileError> {
        Array::new(self.clone())
    }
}

impl<T: Element> Array<T> {
    pub(crate) fn new(file: PagedFile) -> Result<Array<T>, FileError> {
        let (size, element) = (file.len(), size_of::<T>() as u64);
        if !size.is_multiple_of(element) {
            return Err(FileError::NotWhole {
                file: file.name().into(),
                size,
                element,
            });
        }
        Ok(Array {
            file,
            len: size / element,
            _element: PhantomData,
        })
    }

    /// Returns the number of elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the element with number `index`.
    ///
    /// # Errors
    /// [`FileError::NoSuchElement`], and the errors of [`PagedFile::read_exact_at`].
    #[inline]
    pub fn get(&self, index: u64) -> Result<T, FileError> {
        self.element(index, Wait::Yes)
    }

    /// Like [`Array::get`], but never waits. If this would block, wait with [`PagedFile::ready`]
    /// for the element's bytes.
    ///
    /// # Errors
    /// The errors of [`Array::get`], and [`FileError::WouldBlock`].
    pub fn try_get(&self, index: u64) -> Result<T, FileError> {
        self.element(index, Wait::No)
    }

    #[inline(always)]
    fn element(&self, index: u64, wait: Wait) -> Result<T, FileError> {
        let offset = self.offset_of(index)?;
        let mut bytes = [0; MAX_ELEMENT];
        let bytes = &mut bytes[..size_of::<T>()];
        self.file.read_exact(bytes, offset, wait)?;
        Ok(T::from_le(bytes))
    }

    /// Reads `into.len()` elements, beginning with number `first`.
    ///
    /// # Errors
    /// The errors of [`Array::get`].
    pub fn read(&self, first: u64, into: &mut [T]) -> Result<(), FileError> {
        self.elements(first, into, Wait::Yes)
    }

    /// Like [`Array::read`], but never waits. If this would block, wait with [`PagedFile::ready`]
    /// for the elements' bytes.
    ///
    /// # Errors
    /// The errors of [`Array::get`], and [`FileError::WouldBlock`], in which case `into` may be
    /// partly filled.
    pub fn try_read(&self, first: u64, into: &mut [T]) -> Result<(), FileError> {
        self.elements(first, into, Wait::No)
    }

    fn elements(&self, first: u64, into: &mut [T], wait: Wait) -> Result<(), FileError> {
        let bytes = self.bytes_of(first, into.len())?;
        let mut to = into.iter_mut();
        let collect = |piece: &[u8]| {
            for (from, to) in piece.chunks_exact(size_of::<T>()).zip(&mut to) {
                *to = T::from_le(from);
            }
        };
        self.file.handle().scan_all(bytes, collect, wait)
    }

    /// Returns the offset in the file of the element with number `index`.
    #[inline(always)]
    fn offset_of(&self, index: u64) -> Result<u64, FileError> {
        match index < self.len {
            true => Ok(index * size_of::<T>() as u64),
            false => Err(self.no_such(index)),
        }
    }

    /// Returns the byte range in the file of `count` elements, beginning with number `first`.
    fn bytes_of(&self, first: u64, count: usize) -> Result<Range<u64>, FileError> {
        let size = size_of::<T>() as u64;
        match first.checked_add(count as u64) {
            Some(end) if end <= self.len => Ok(first * size..end * size),
            _ => Err(self.no_such(first)),
        }
    }

    #[cold]
    fn no_such(&self, first: u64) -> FileError {
        FileError::NoSuchElement {
            file: self.file.name().into(),
            // The first element that does not exist.
            index: first.max(self.len),
            len: self.len,
        }
    }

    /// Sets the element with number `index`. A sync of the file makes it durable.
    ///
    /// # Errors
    /// [`FileError::NoSuchElement`], [`FileError::PastEnd`] if the file was cut after the array was
    /// created, and the errors of [`PagedFile::write_at`]. After an error the element is unchanged.
    pub fn set(&self, index: u64, value: T) -> Result<(), FileError> {
        self.set_element(index, value, Wait::Yes)
    }

    /// Like [`Array::set`], but never waits. It succeeds if the element's block is cached and not
    /// viewed. Otherwise wait with [`PagedFile::ready`] for the block's bytes, and drop the view
    /// before you try again. If so much data is unwritten that a writer has to write some itself,
    /// use [`Array::set`].
    ///
    /// # Errors
    /// The errors of [`Array::set`], and [`FileError::WouldBlock`].
    pub fn try_set(&self, index: u64, value: T) -> Result<(), FileError> {
        self.set_element(index, value, Wait::No)
    }

    #[inline(always)]
    fn set_element(&self, index: u64, value: T, wait: Wait) -> Result<(), FileError> {
        let offset = self.offset_of(index)?;
        let mut bytes = [0; MAX_ELEMENT];
        let bytes = &mut bytes[..size_of::<T>()];
        value.to_le(bytes);
        match wait {
            Wait::Yes => write_at(self.file.core(), bytes, offset, End::Stays),
            Wait::No => self.try_overwrite(bytes, offset),
        }
    }

    /// Copies the elements of `from` to the array, beginning at number `first`. A sync of the file
    /// makes them durable. Allocates heap memory for at most 64 KiB of elements, or for a block of
    /// the file if that is larger.
    ///
    /// # Errors
    /// The errors of [`Array::set`], and [`FileError::NoMemory`]. If some elements are beyond the
    /// array, nothing is written. Otherwise the elements before the failure may have been written.
    pub fn write(&self, first: u64, from: &[T]) -> Result<(), FileError> {
        let Range { start, end } = self.bytes_of(first, from.len())?;
        let (size, piece) = (size_of::<T>(), self.file.block_size().max(PIECE));
        let mut bytes = self.file.core().zeros(piece.min(end - start))?;
        let (mut at, mut rest) = (start, from);
        loop {
            // Each piece but the last ends where a block ends. So only the first and the last block
            // may have to be read from the store, for the bytes that are not overwritten.
            let left = (piece - at % piece).min(end - at) as usize;
            let (now, later) = rest.split_at(left / size);
            let bytes = &mut bytes[..left];
            put_all(now, bytes);
            write_at(self.file.core(), bytes, at, End::Stays)?;
            (at, rest) = (at + left as u64, later);
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Like [`Array::write`], but never waits. It writes all elements, if they are inside one
    /// cached block that is not viewed, or nothing. If this would block, wait with
    /// [`PagedFile::ready`] for the elements' bytes, and drop the view before you try again. If the
    /// elements are in more than one block, or so much data is unwritten that a writer has to write
    /// some itself, use [`Array::write`].
    ///
    /// # Errors
    /// The errors of [`Array::write`], and [`FileError::WouldBlock`].
    pub fn try_write(&self, first: u64, from: &[T]) -> Result<(), FileError> {
        let Range { start, end } = self.bytes_of(first, from.len())?;
        if end - start > self.file.block_size() {
            return Err(self.file.core().would_block(start));
        }
        let mut bytes = self.file.core().zeros(end - start)?;
        put_all(from, &mut bytes);
        self.try_overwrite(&bytes, start)
    }

    fn try_overwrite(&self, bytes: &[u8], offset: u64) -> Result<(), FileError> {
        let (len, size) = (bytes.len() as u64, self.file.len());
        if len > 0 && offset + len > size {
            return Err(self.file.core().past_end(offset, len, size));
        }
        // `try_write_at` does not make the file longer.
        self.file.try_write_at(bytes, offset)
    }
}

/// Converts the elements of `from` to bytes in `into`, which has room for them.
fn put_all<T: Element>(from: &[T], into: &mut [u8]) {
    let places = into.chunks_exact_mut(size_of::<T>());
    for (value, place) in from.iter().zip(places) {
        value.to_le(place);
    }
}

impl<T> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} elements of {})", self.len, self.file.name())
    }
}
