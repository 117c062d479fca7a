//! One column of a Parquet file of eight, read in a memory of 4 MiB.

use std::sync::Arc;

use innerspace::{ByteSize, KIB, MIB, Memory};
use innerspace_adapters::parquet::PagedReader;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::Int64Type;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

const ROWS: i64 = 200_000;
const COLUMNS: i64 = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data.parquet");
    write_columns(&path)?;

    let memory = Memory::with_limit(4 * MIB)?;
    let file = memory.file_options().block_size(64 * KIB).open(&path)?;
    let reader = SerializedFileReader::new(PagedReader::new(file.clone()))?;
    let mut sum = 0;
    for number in 0..reader.num_row_groups() {
        let group = reader.get_row_group(number)?;
        let mut column = get_typed_column_reader::<Int64Type>(group.get_column_reader(3)?);
        let mut values = Vec::new();
        while column.read_records(8192, None, None, &mut values)?.0 > 0 {
            sum += values.drain(..).sum::<i64>();
        }
    }
    println!(
        "the column's sum is {sum}: {} read of {}",
        ByteSize(file.stats().filled * file.block_size()),
        ByteSize(file.len())
    );
    assert_eq!(sum, 3 * (0..ROWS).sum::<i64>());
    Ok(())
}

/// Column n has the multiples of n.
fn write_columns(path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let columns = (0..COLUMNS).map(|n| format!("required int64 column{n};"));
    let schema = format!("message rows {{ {} }}", columns.collect::<String>());
    let schema = Arc::new(parse_message_type(&schema)?);
    let file = std::fs::File::create(path)?;
    let mut writer = SerializedFileWriter::new(file, schema, Arc::default())?;
    let mut group = writer.next_row_group()?;
    for n in 0..COLUMNS {
        let mut column = group.next_column()?.expect("there are eight");
        let values: Vec<i64> = (0..ROWS).map(|row| row * n).collect();
        column
            .typed::<Int64Type>()
            .write_batch(&values, None, None)?;
        column.close()?;
    }
    group.close()?;
    writer.close()?;
    Ok(())
}
