//! Chunks of Parquet files.

#![cfg(feature = "parquet_60")]

use std::io::Read;
use std::sync::Arc;

use innerspace::{KIB, MIB, Memory, store::MemoryStore};
use innerspace_adapters::parquet::PagedReader;
use innerspace_object_store::ObjectStoreFile;
use innerspace_test_s3::S3Server;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::Int64Type;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

#[test]
fn chunks_are_those_of_the_file_and_end_with_it() {
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
    let memory = Memory::with_limit(MIB).unwrap();
    let file = memory
        .file_options()
        .open_store(MemoryStore::from_bytes(&bytes))
        .unwrap();
    let reader = PagedReader::new(file);
    assert_eq!(reader.len(), 100_000);
    for (start, len) in [(0, 8), (4_090, 12), (99_992, 8), (50_000, 40_000), (7, 0)] {
        let chunk = reader.get_bytes(start, len).unwrap();
        assert_eq!(chunk, &bytes[start as usize..][..len]);
    }
    assert!(reader.get_bytes(99_993, 8).is_err());
    assert!(reader.get_bytes(u64::MAX, 8).is_err());
    let mut tail = Vec::new();
    reader
        .get_read(99_000)
        .unwrap()
        .read_to_end(&mut tail)
        .unwrap();
    assert_eq!(tail, &bytes[99_000..]);
}

const COLUMNS: i64 = 8;
const GROUPS: i64 = 8;
const ROWS: i64 = 40_000;

/// Returns a file in which column n has the multiples of n, without a dictionary.
fn columns() -> Vec<u8> {
    let columns = (0..COLUMNS).map(|n| format!("required int64 column{n};"));
    let schema = format!("message rows {{ {} }}", columns.collect::<String>());
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let properties = WriterProperties::builder().set_dictionary_enabled(false);
    let mut writer =
        SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build())).unwrap();
    for group in 0..GROUPS {
        let rows = group * ROWS..(group + 1) * ROWS;
        let mut group = writer.next_row_group().unwrap();
        for n in 0..COLUMNS {
            let values: Vec<i64> = rows.clone().map(|row| row * n).collect();
            let mut column = group.next_column().unwrap().unwrap();
            let typed = column.typed::<Int64Type>();
            typed.write_batch(&values, None, None).unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

/// Reads an object of 20 MiB in a memory of 4 MiB by `query`, which returns the sum of two of the
/// eight columns, and checks that little else was fetched.
fn query_of_an_object(query: impl FnOnce(PagedReader) -> i64) {
    let server = S3Server::start();
    server.put("data.parquet", columns());
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let key = "data.parquet".into();
    let object = ObjectStoreFile::options().open_on(server.client(), &key);
    let object = object.unwrap();
    let file = memory
        .file_options()
        .block_size(64 * KIB)
        .open_store(object.clone())
        .unwrap();
    assert!(file.len() > 19 * MIB, "{}", file.len());
    let sum = query(PagedReader::new(file.clone()));
    assert_eq!(sum, (3 + 6) * (0..GROUPS * ROWS).sum::<i64>());
    let fetched = object.stats().bytes_fetched;
    assert!(fetched < file.len() / 2, "{fetched} of {}", file.len());
    assert!(memory.stats().peak <= 4 * MIB);
}

#[test]
fn two_columns_of_an_object_are_read_in_a_small_memory() {
    query_of_an_object(|reader| {
        let reader = SerializedFileReader::new(reader).unwrap();
        let mut sum = 0;
        for (group, column) in (0..reader.num_row_groups()).flat_map(|n| [(n, 3), (n, 6)]) {
            let group = reader.get_row_group(group).unwrap();
            let column = group.get_column_reader(column).unwrap();
            let mut column = get_typed_column_reader::<Int64Type>(column);
            let mut values = Vec::new();
            while column
                .read_records(8192, None, None, &mut values)
                .unwrap()
                .0
                > 0
            {
                sum += values.drain(..).sum::<i64>();
            }
        }
        sum
    });
}

#[cfg(feature = "parquet_async_60")]
#[test]
fn two_columns_of_an_object_are_read_as_a_stream_in_a_small_memory() {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use futures_util::TryStreamExt;
    use parquet::arrow::{ParquetRecordBatchStreamBuilder, ProjectionMask};

    query_of_an_object(|reader| {
        let sum = async {
            let builder = ParquetRecordBatchStreamBuilder::new(reader).await?;
            let columns = ProjectionMask::leaves(builder.parquet_schema(), [3, 6]);
            let batches = builder.with_projection(columns).build()?;
            let sum = |sum, batch: arrow_array::RecordBatch| async move {
                let columns = batch.columns().iter();
                let values = columns.flat_map(|column| column.as_primitive::<Int64Type>().values());
                Ok(sum + values.sum::<i64>())
            };
            batches.try_fold(0, sum).await
        };
        futures_executor::block_on(sum).unwrap()
    });
}
