//! A full-text index in a memory of 16 MiB: written, and searched.

use innerspace::{MIB, Memory};
use innerspace_adapters::tantivy::PagedDirectory;
use tantivy::collector::Count;
use tantivy::query::QueryParser;
use tantivy::schema::{STORED, Schema, TEXT};
use tantivy::{Index, IndexSettings, doc};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let memory = Memory::with_limit(16 * MIB)?;
    let directory = PagedDirectory::open(memory.file_options(), folder.path())?;

    let mut schema = Schema::builder();
    let text = schema.add_text_field("text", TEXT | STORED);
    let index = Index::create(directory, schema.build(), IndexSettings::default())?;
    let mut writer = index.writer_with_num_threads(1, 15_000_000)?;
    for number in 0..20_000 {
        let colour = ["red", "green", "blue"][number % 3];
        writer.add_document(doc!(text => format!("document {number} is {colour}")))?;
    }
    writer.commit()?;

    let searcher = index.reader()?.searcher();
    let query = QueryParser::for_index(&index, vec![text]).parse_query("green")?;
    let found = searcher.search(&query, &Count)?;
    println!("{found} of {} documents are green", searcher.num_docs());
    println!("{}", memory.stats());
    assert_eq!((found, searcher.num_docs()), (6_667, 20_000));
    Ok(())
}
