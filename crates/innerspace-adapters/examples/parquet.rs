//! One column of a Parquet file of many, read in a memory of 4 MiB.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use innerspace::{ByteSize, KIB, MIB, Memory};
use innerspace_adapters::parquet::PagedReader;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ArrowWriter, ProjectionMask};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data.parquet");
    write_columns(&path)?;

    let memory = Memory::with_limit(4 * MIB)?;
    let file = memory.options().block_size(64 * KIB).open_path(&path)?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(PagedReader::new(file.clone()))?;
    let one = ProjectionMask::leaves(builder.parquet_schema(), [3]);
    let mut sum = 0;
    for batch in builder.with_projection(one).build()? {
        let batch = batch?;
        let column = batch.column(0).as_primitive::<Int64Type>();
        sum += column.values().iter().sum::<i64>();
    }
    println!(
        "the column's sum is {sum}: {} read of {}",
        ByteSize(file.stats().filled * file.block_size()),
        ByteSize(file.len())
    );
    assert_eq!(sum, 3 * (0..200_000).sum::<i64>());
    Ok(())
}

/// Eight columns of 200,000 numbers: column n has the multiples of n.
fn write_columns(path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let column =
        |n: i64| -> ArrayRef { Arc::new((0..200_000).map(|row| row * n).collect::<Int64Array>()) };
    let columns = (0..8).map(|n| (format!("column{n}"), column(n)));
    let batch = RecordBatch::try_from_iter(columns)?;
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path)?, batch.schema(), None)?;
    writer.write(&batch)?;
    writer.close()?;
    Ok(())
}
