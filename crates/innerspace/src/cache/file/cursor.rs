//! A position in a file, with the traits of `std::io`.

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::cache::file::handle::PagedFile;

/// Reads and writes a [`PagedFile`] from a position on. Made by [`PagedFile::cursor`].
#[derive(Clone, Debug)]
pub struct Cursor {
    file: PagedFile,
    position: u64,
}

impl PagedFile {
    /// A position in the file with [`std::io::Read`], [`std::io::Write`] and [`std::io::Seek`].
    pub fn cursor(&self) -> Cursor {
        Cursor::new(self.clone())
    }
}

impl Cursor {
    pub(crate) fn new(file: PagedFile) -> Cursor {
        Cursor { file, position: 0 }
    }

    /// The position in bytes; it may be past the end.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The file.
    pub fn file(&self) -> &PagedFile {
        &self.file
    }
}

impl Read for Cursor {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read_at(buf, self.position)?;
        self.position += got as u64;
        Ok(got)
    }
}

impl Write for Cursor {
    /// Writes all of `buf` or fails.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write_at(buf, self.position)?;
        self.position += buf.len() as u64;
        Ok(buf.len())
    }

    /// Does nothing: the bytes are in the file already. [`PagedFile::sync_all`] makes them durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Cursor {
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
