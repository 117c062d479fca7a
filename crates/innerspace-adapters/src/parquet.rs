//! Columns of Parquet files in a cache with a hard limit.

use bytes::Bytes;
use innerspace::file::{Cursor, FileError};
use innerspace::{PagedFile, View};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// A file of an [`innerspace::Memory`], for the readers of the crate `parquet`: the synchronous
/// ones, and with the feature `parquet_async_60` those that read Arrow's batches as a stream.
///
/// Clones share the file, which may be one in object storage. A chunk inside one block is not
/// copied, and stays charged until it is decoded. The asynchronous reader asks for the wanted
/// columns of a row group together: they have to fit into the limit.
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
        bytes_of(self.0.view(start..end))
    }
}

fn bytes_of(view: std::result::Result<View, FileError>) -> Result<Bytes> {
    match view {
        Ok(view) => Ok(Bytes::from(view)),
        Err(error) => Err(ParquetError::External(Box::new(error))),
    }
}

#[cfg(feature = "parquet_async_60")]
mod asynchronous {
    use std::ops::Range;
    use std::sync::Arc;

    use bytes::Bytes;
    use futures_util::FutureExt;
    use futures_util::future::{BoxFuture, try_join_all};
    use parquet::arrow::arrow_reader::ArrowReaderOptions;
    use parquet::arrow::async_reader::AsyncFileReader;
    use parquet::errors::Result;
    use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
    use parquet::file::reader::Length;

    use super::{PagedReader, bytes_of};

    impl AsyncFileReader for PagedReader {
        fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
            self.0.ready(range).map(bytes_of).boxed()
        }

        /// Has all ranges in flight together.
        fn get_byte_ranges(
            &mut self,
            ranges: Vec<Range<u64>>,
        ) -> BoxFuture<'_, Result<Vec<Bytes>>> {
            let ready = |range| self.0.ready(range).map(bytes_of);
            try_join_all(ranges.into_iter().map(ready)).boxed()
        }

        fn get_metadata<'a>(
            &'a mut self,
            options: Option<&'a ArrowReaderOptions>,
        ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
            let len = self.len();
            let reader = ParquetMetaDataReader::new().with_arrow_reader_options(options);
            async move { Ok(Arc::new(reader.load_and_finish(self, len).await?)) }.boxed()
        }
    }
}
