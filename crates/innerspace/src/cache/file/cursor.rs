//! A position in a file, with the traits of `std::io`.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::cache::file::handle::PagedFile;

/// Reads and writes a file sequentially, beginning at a position. Created by [`PagedFile::cursor`],
/// and by [`DaxFile::cursor`](crate::DaxFile::cursor) for a direct-access file.
///
/// ```
/// use std::io::{Read, Seek, SeekFrom, Write};
/// # use innerspace::{MIB, Memory, file::FileAccess, store::MemoryStore};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let memory = Memory::with_limit(4 * MIB)?;
/// # let options = memory.file_options().access(FileAccess::ReadWrite);
/// # let file = options.open_store(MemoryStore::new())?;
/// let mut cursor = file.cursor();
/// cursor.write_all(b"key=value")?;
/// cursor.seek(SeekFrom::Start(4))?;
/// let mut text = String::new();
/// cursor.read_to_string(&mut text)?;
/// assert_eq!((text.as_str(), cursor.position()), ("value", 9));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Cursor<F = PagedFile> {
    file: F,
    position: u64,
}

/// The operations that a cursor needs from its file.
pub trait Positioned {
    /// Returns the length in bytes.
    fn len(&self) -> u64;
    /// Reads up to `buf.len()` bytes, fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `bytes`, or fails.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
}

/// Implements [`Positioned`] with a type's own methods of the same names.
macro_rules! positioned {
    ($file:ty) => {
        impl $crate::cache::Positioned for $file {
            fn len(&self) -> u64 {
                self.len()
            }

            fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<usize> {
                Ok(self.read_at(buf, offset)?)
            }

            fn write_at(&self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
                Ok(self.write_at(bytes, offset)?)
            }
        }
    };
}
pub(crate) use positioned;

positioned!(PagedFile);

impl PagedFile {
    /// Creates a cursor at the beginning of the file. It implements [`std::io::Read`],
    /// [`std::io::Write`] and [`std::io::Seek`].
    pub fn cursor(&self) -> Cursor {
        Cursor::new(self.clone())
    }
}

impl<F> Cursor<F> {
    pub(crate) fn new(file: F) -> Cursor<F> {
        Cursor { file, position: 0 }
    }

    /// Returns the position in bytes. It may be past the end.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the file.
    pub fn file(&self) -> &F {
        &self.file
    }
}

impl<F: Positioned> Read for Cursor<F> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read_at(buf, self.position)?;
        self.position += got as u64;
        Ok(got)
    }
}

impl<F: Positioned> Write for Cursor<F> {
    /// Writes all of `buf` or fails.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write_at(buf, self.position)?;
        self.position += buf.len() as u64;
        Ok(buf.len())
    }

    /// Does nothing: the bytes are already in the file. `sync_all` of the file makes them durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<F: Positioned> Seek for Cursor<F> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(by) => self.file.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        let Some(target) = target else {
            let text = "seek to a negative or overflowing position";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        self.position = target;
        Ok(target)
    }
}
