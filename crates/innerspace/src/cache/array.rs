//! A file as an array of plain numbers.

use std::fmt;
use std::marker::PhantomData;

use super::errors::FileError;
use super::file::PagedFile;
use super::view::Wait;

mod sealed {
    pub trait Sealed: Copy + Send + Sync + 'static {
        /// The number from its little-endian bytes; `bytes` has exactly its size.
        fn from_le(bytes: &[u8]) -> Self;
    }
}

/// A plain number: an integer of 1 to 16 bytes, `f32` or `f64`. It cannot be implemented elsewhere.
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
            }
            impl Element for $number {}
        )*
    };
}

elements!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64);

/// The largest element in bytes.
const MAX_ELEMENT: usize = 16;

/// A file seen as numbers stored one behind the other, little-endian. Made by [`PagedFile::array`]; its length is the file's at
/// that moment.
#[derive(Clone)]
pub struct Array<T> {
    file: PagedFile,
    len: u64,
    _element: PhantomData<T>,
}

impl<T: Element> Array<T> {
    pub(super) fn new(file: PagedFile) -> Result<Array<T>, FileError> {
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

    /// The number of elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The element with number `index`.
    ///
    /// # Errors
    /// [`FileError::NoSuchElement`], and those of [`PagedFile::read_exact_at`].
    #[inline]
    pub fn get(&self, index: u64) -> Result<T, FileError> {
        self.element(index, |bytes, offset| {
            self.file.read_exact_at(bytes, offset)
        })
    }

    /// Like [`Array::get`], but never waits. What would block is there when [`PagedFile::ready`] is done for its bytes.
    ///
    /// # Errors
    /// As [`Array::get`], and [`FileError::WouldBlock`].
    pub fn try_get(&self, index: u64) -> Result<T, FileError> {
        self.element(index, |bytes, offset| {
            self.file.try_read_exact_at(bytes, offset)
        })
    }

    #[inline(always)]
    fn element(
        &self,
        index: u64,
        read: impl FnOnce(&mut [u8], u64) -> Result<(), FileError>,
    ) -> Result<T, FileError> {
        if index >= self.len {
            let file = self.file.name().into();
            return Err(FileError::NoSuchElement {
                file,
                index,
                len: self.len,
            });
        }
        let mut bytes = [0; MAX_ELEMENT];
        let bytes = &mut bytes[..size_of::<T>()];
        read(bytes, index * size_of::<T>() as u64)?;
        Ok(T::from_le(bytes))
    }

    /// Reads the elements from number `first` on into `into`.
    ///
    /// # Errors
    /// As [`Array::get`].
    pub fn read(&self, first: u64, into: &mut [T]) -> Result<(), FileError> {
        self.elements(first, into, Wait::Yes)
    }

    /// Like [`Array::read`], but never waits. What would block is there when [`PagedFile::ready`] is done for its bytes.
    ///
    /// # Errors
    /// As [`Array::get`], and [`FileError::WouldBlock`]; `into` may be partly filled then.
    pub fn try_read(&self, first: u64, into: &mut [T]) -> Result<(), FileError> {
        self.elements(first, into, Wait::No)
    }

    fn elements(&self, first: u64, into: &mut [T], wait: Wait) -> Result<(), FileError> {
        let end = first.checked_add(into.len() as u64);
        let Some(end) = end.filter(|end| *end <= self.len) else {
            // The first that is not there.
            let (file, index) = (self.file.name().into(), first.max(self.len));
            return Err(FileError::NoSuchElement {
                file,
                index,
                len: self.len,
            });
        };
        let size = size_of::<T>() as u64;
        let mut to = into.iter_mut();
        // An element across two blocks arrives in two pieces.
        let mut part = [0; MAX_ELEMENT];
        let mut held = 0;
        let collect = |mut piece: &[u8]| {
            while !piece.is_empty() {
                let take = (size as usize - held).min(piece.len());
                part[held..held + take].copy_from_slice(&piece[..take]);
                piece = &piece[take..];
                held += take;
                if held == size as usize {
                    held = 0;
                    if let Some(to) = to.next() {
                        *to = T::from_le(&part[..size as usize]);
                    }
                }
            }
        };
        let bytes = first * size..end * size;
        self.file.handle().scan_all(bytes, collect, wait)
    }
}

impl<T> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} elements of {})", self.len, self.file.name())
    }
}
