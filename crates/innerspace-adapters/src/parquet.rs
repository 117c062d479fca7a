//! Columns of Parquet files in a cache with a hard limit.

use bytes::Bytes;
use innerspace::{PagedFile, file::Cursor};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// A file of an [`innerspace::Memory`], for the synchronous readers of the crate `parquet`.
///
/// Clones share the file. A chunk inside one block is not copied, and stays charged until it is
/// decoded.
///
/// ```no_run
/// use innerspace::{KIB, MIB, Memory};
/// use innerspace_adapters::parquet::PagedReader;
/// use parquet::file::reader::{FileReader, SerializedFileReader};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let memory = Memory::with_limit(64 * MIB)?;
/// let file = memory.file_options().block_size(64 * KIB).open("data.parquet")?;
/// let reader = SerializedFileReader::new(PagedReader::new(file))?;
/// println!("{} rows", reader.metadata().file_metadata().num_rows());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct PagedReader(PagedFile);

impl PagedReader {
    /// Reads this file.
    pub fn new(file: PagedFile) -> PagedReader {
        PagedReader(file)
    }
}

impl Length for PagedReader {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for PagedReader {
    type T = Cursor;

    fn get_read(&self, start: u64) -> Result<Cursor> {
        use std::io::{Seek, SeekFrom};
        let mut cursor = self.0.cursor();
        cursor.seek(SeekFrom::Start(start))?;
        Ok(cursor)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let end = start.saturating_add(length as u64);
        match self.0.view(start..end) {
            Ok(view) => Ok(Bytes::from(view)),
            Err(error) => Err(ParquetError::External(Box::new(error))),
        }
    }
}
