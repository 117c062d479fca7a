//! tantivy on the library: the same answers as on its own directory, within the limit.

#![cfg(feature = "tantivy_0_27")]

use std::path::Path;

use innerspace::{MIB, Memory};
use innerspace_adapters::tantivy::PagedDirectory;
use tantivy::collector::{Count, TopDocs};
use tantivy::directory::error::OpenReadError;
use tantivy::directory::{Directory, MmapDirectory};
use tantivy::query::QueryParser;
use tantivy::schema::{FAST, Field, STORED, Schema, TEXT, Value};
use tantivy::{Index, IndexSettings, TantivyDocument, doc};

fn schema() -> (Schema, Field, Field) {
    let mut schema = Schema::builder();
    let text = schema.add_text_field("text", TEXT | STORED);
    let number = schema.add_u64_field("number", FAST | STORED);
    (schema.build(), text, number)
}

/// The number of the documents found, and the best of them.
fn answers(index: &Index) -> Vec<(usize, Vec<(String, u64)>)> {
    let (_, text, number) = schema();
    let searcher = index.reader().unwrap().searcher();
    let parser = QueryParser::for_index(index, vec![text]);
    let queries = [
        "red",
        "green AND seven",
        "\"document 77\"",
        "number:[10 TO 20]",
        "none",
    ];
    let answer = |query: &&str| {
        let query = parser.parse_query(query).unwrap();
        let best = TopDocs::with_limit(5).order_by_score();
        let (count, best) = searcher.search(&query, &(Count, best)).unwrap();
        let best = best.into_iter().map(|(_, at)| {
            let document: TantivyDocument = searcher.doc(at).unwrap();
            let text = document
                .get_first(text)
                .unwrap()
                .as_str()
                .unwrap()
                .to_owned();
            (text, document.get_first(number).unwrap().as_u64().unwrap())
        });
        let mut best: Vec<_> = best.collect();
        best.sort();
        (count, best)
    };
    queries.iter().map(answer).collect()
}

fn on_library(memory: &Memory, path: &Path) -> PagedDirectory {
    PagedDirectory::open(memory.file_options(), path).unwrap()
}

#[test]
fn an_index_gives_the_answers_that_it_gives_to_tantivy_itself() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let (schema, text, number) = schema();
    let directory = on_library(&memory, folder.path());
    let index = Index::create(directory.clone(), schema, IndexSettings::default()).unwrap();
    let mut writer = index.writer_with_num_threads(1, 15_000_000).unwrap();
    for batch in 0..4_u64 {
        for at in batch * 1_000..(batch + 1) * 1_000 {
            let colour = ["red", "green", "blue"][at as usize % 3];
            let seven = if at % 7 == 0 { " seven" } else { "" };
            let words = format!("document {at} is {colour}{seven}");
            writer
                .add_document(doc!(text => words, number => at))
                .unwrap();
        }
        writer.commit().unwrap();
    }
    let here = answers(&index);
    assert_eq!(here[0].0, 1_334);
    let itself = || Index::open(MmapDirectory::open(folder.path()).unwrap()).unwrap();
    assert_eq!(here, answers(&itself()));

    // Merged into one segment; the old files go while a searcher may have them open.
    let segments = index.searchable_segment_ids().unwrap();
    writer.merge(&segments).wait().unwrap();
    writer.wait_merging_threads().unwrap();
    assert_eq!(index.searchable_segment_ids().unwrap().len(), 1);
    assert_eq!(here, answers(&index));
    assert_eq!(here, answers(&itself()));
    let again = Index::open(on_library(&memory, folder.path())).unwrap();
    assert_eq!(here, answers(&again));
    assert!(memory.root_group().usage() <= 4 * MIB);
}

#[test]
fn segments_with_more_stored_documents_than_the_limit_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::with_limit(MIB).unwrap();
    let (schema, text, number) = schema();
    let directory = on_library(&memory, folder.path());
    let index = Index::create(directory, schema, IndexSettings::default()).unwrap();
    let mut writer = index.writer_with_num_threads(1, 60_000_000).unwrap();
    // Words that do not compress: a store of more than 1 MiB for each segment.
    let mut state = 1_u64;
    let mut word = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        format!("{:016x} ", state ^ state >> 29)
    };
    for segment in 0..2_u64 {
        for at in 0..300 {
            let words: String = (0..400).map(|_| word()).collect();
            writer
                .add_document(doc!(text => words, number => segment * 300 + at))
                .unwrap();
        }
        writer.commit().unwrap();
    }
    let segments = index.searchable_segment_ids().unwrap();
    assert_eq!(segments.len(), 2);
    writer.merge(&segments).wait().unwrap();
    writer.wait_merging_threads().unwrap();
    let searcher = index.reader().unwrap().searcher();
    assert_eq!(searcher.segment_readers().len(), 1);
    let mut numbers: Vec<_> = (0..600)
        .map(|id| {
            let document: TantivyDocument = searcher.doc(tantivy::DocAddress::new(0, id)).unwrap();
            document.get_first(number).unwrap().as_u64().unwrap()
        })
        .collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..600));
}

#[test]
fn what_is_missing_or_there_already_is_tantivys_error() {
    let folder = tempfile::tempdir().unwrap();
    let memory = Memory::with_limit(MIB).unwrap();
    let directory = on_library(&memory, folder.path());
    let missing = directory.open_read(Path::new("missing")).unwrap_err();
    assert!(matches!(missing, OpenReadError::FileDoesNotExist(_)));
    std::fs::write(folder.path().join("there"), b"bytes").unwrap();
    assert!(directory.open_write(Path::new("there")).is_err());
    let slice = directory.open_read(Path::new("there")).unwrap();
    directory.delete(Path::new("there")).unwrap();
    assert_eq!(slice.read_bytes().unwrap().as_slice(), b"bytes");
}
