//! tantivy on `PagedDirectory`, compared with its own `MmapDirectory`.
//!
//! The text is generated: words by Zipf's law, 200 in each document. The queries are of one word,
//! two words of which both or either have to occur, and two in a row; the text of the ten best
//! documents is read. For queries both directories are told that reads come in no order, and for
//! merging nothing.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use innerspace::file::Reading;
use innerspace::{KIB, MIB, Memory};
use innerspace_adapters::tantivy::PagedDirectory;
use tantivy::collector::{Count, TopDocs};
use tantivy::directory::{Advice, MmapDirectory};
use tantivy::indexer::NoMergePolicy;
use tantivy::query::{BooleanQuery, Occur, PhraseQuery, Query, TermQuery};
use tantivy::schema::{Field, IndexRecordOption, STORED, Schema, TEXT, Value};
use tantivy::{Index, IndexWriter, Searcher, TantivyDocument, Term, doc};

use super::{MMAP, Make, Pair, Task, Work, link_all, unless};
use crate::disk::child::{Taken, timed};
use crate::disk::file::Random;
use crate::disk::{Fallible, interrupted};
use crate::harness::{Measured, Plan};

const MEMORY: u64 = 32 * MIB;
/// Room for the program: its code, its stacks, and what tantivy allocates.
const PROGRAM: u64 = 6 * MIB;
/// The same for merging, which collects the new segment's dictionary in memory.
const PROGRAM_MERGING: u64 = 96 * MIB;
/// Documents of the index: at least 500 MB.
const DOCUMENTS: u64 = 400_000;
const SEGMENTS: u64 = 8;
const WORDS: u64 = 200;
/// Different words.
const VOCABULARY: f64 = 200_000.0;
/// Distinct queries of the row with cold caches, and of each pass of the row with warm ones.
const COLD: u64 = 400;
pub(super) const WARM: u64 = 40;
/// Passes over the queries with warm caches.
const PASSES: u64 = 50;

fn schema() -> (Schema, Field) {
    let mut schema = Schema::builder();
    let text = schema.add_text_field("text", TEXT | STORED);
    (schema.build(), text)
}

/// A word by its rank: syllables, so that the dictionary has common prefixes.
fn word(mut rank: u64, to: &mut String) {
    const SYLLABLES: [&str; 16] = [
        "ba", "ke", "li", "mo", "nu", "pra", "ste", "ti", "vor", "xu", "ga", "he", "jin", "lo",
        "fu", "wa",
    ];
    rank += 16;
    while rank > 0 {
        to.push_str(SYLLABLES[(rank % 16) as usize]);
        rank /= 16;
    }
}

/// A rank between two, by Zipf's law.
fn rank(random: &mut Random, first: f64, last: f64) -> u64 {
    let part = random.next() as f64 / u64::MAX as f64;
    (first * (last / first).powf(part)) as u64
}

fn text(document: u64) -> String {
    let mut random = Random::new(document << 20);
    let mut text = String::new();
    for _ in 0..WORDS {
        word(rank(&mut random, 1.0, VOCABULARY), &mut text);
        text.push(' ');
    }
    text
}

/// Makes an index of several segments.
fn make(folder: &Path, documents: u64) -> Fallible {
    let (schema, field) = schema();
    let index = Index::create_in_dir(folder, schema)?;
    let mut writer: IndexWriter = index.writer_with_num_threads(1, 1 << 30)?;
    writer.set_merge_policy(Box::new(NoMergePolicy));
    for segment in 0..SEGMENTS {
        interrupted()?;
        for document in documents * segment / SEGMENTS..documents * (segment + 1) / SEGMENTS {
            writer.add_document(doc!(field => text(document)))?;
        }
        writer.commit()?;
    }
    Ok(writer.wait_merging_threads()?)
}

fn merge_all(index: &Index) -> Fallible {
    let mut writer: IndexWriter = index.writer_with_num_threads(1, 15_000_000)?;
    writer.set_merge_policy(Box::new(NoMergePolicy));
    writer.merge(&index.searchable_segment_ids()?).wait()?;
    Ok(writer.wait_merging_threads()?)
}

fn pair<'a>(name: String, work: Work, program: u64, budget: f64, make: &'a Make<'a>) -> Pair<'a> {
    Pair {
        name,
        work,
        own_way: MMAP,
        memory: MEMORY,
        program,
        budget,
        make,
    }
}

fn bytes(folder: &Path) -> std::io::Result<u64> {
    fs::read_dir(folder)?.try_fold(0, |sum, entry| Ok(sum + entry?.metadata()?.len()))
}

pub(super) fn rows(
    plan: Plan,
    only: &str,
    folder: &Path,
    measured: &mut Vec<Measured>,
) -> Result<(), Box<dyn Error>> {
    let names = [
        "tantivy, cold queries",
        "tantivy, warm queries",
        "tantivy, merging to one segment",
    ];
    let [cold, warm, merging] = names;
    if !names.iter().any(|name| name.contains(only)) {
        return Ok(());
    }
    let told = |error: Box<dyn Error + Send + Sync>| -> Box<dyn Error> { error };
    let documents = plan.operations(DOCUMENTS);
    let parts = tempfile::tempdir_in(folder)?;
    make(parts.path(), documents).map_err(told)?;
    let size = bytes(parts.path())? as f64 / 1e6;
    let linked = |from: &Path, to: &Path| -> Result<PathBuf, Box<dyn Error>> {
        link_all(from, to)?;
        Ok(to.to_owned())
    };
    if merging.contains(only) {
        let make = |to: &Path| linked(parts.path(), to);
        let work = Work::Merge { documents };
        let name = format!("{merging}, {size:.0} MB");
        let pair = pair(name, work, PROGRAM_MERGING, 1.3, &make);
        measured.push(pair.measure(plan.short(), folder)?);
    }
    if !cold.contains(only) && !warm.contains(only) {
        return Ok(());
    }
    let whole = tempfile::tempdir_in(folder)?;
    link_all(parts.path(), whole.path())?;
    let cold_queries = plan.operations(COLD);
    // Pages that this process maps would stay in the kernel's cache: it closes the index.
    let (cold_found, warm_found) = {
        let index = Index::open_in_dir(whole.path())?;
        merge_all(&index).map_err(told)?;
        let searcher = index.reader()?.searcher();
        let found = |queries| found(&searcher, queries).map_err(told);
        (found(cold_queries)?, found(WARM)?)
    };
    let make = |to: &Path| linked(whole.path(), to);
    if cold.contains(only) {
        let work = Work::ColdQueries {
            queries: cold_queries,
            found: cold_found,
        };
        let pair = pair(format!("{cold}, {size:.0} MB"), work, PROGRAM, 1.0, &make);
        measured.push(pair.measure(plan, folder)?);
    }
    if warm.contains(only) {
        let passes = plan.operations(PASSES);
        let work = Work::WarmQueries {
            passes,
            found: warm_found,
        };
        let pair = pair(format!("{warm}, {size:.0} MB"), work, PROGRAM, 2.0, &make);
        measured.push(pair.measure(plan, folder)?);
    }
    Ok(())
}

/// Asks queries, and reads the text of the ten best documents of each. Returns how many documents
/// were found, and bytes of text, together.
fn found(searcher: &Searcher, queries: u64) -> Fallible<u64> {
    let (_, field) = schema();
    let mut random = Random::new(queries);
    let mut sum = 0;
    for number in 0..queries {
        let mut term = |first, last| {
            let mut text = String::new();
            word(rank(&mut random, first, last), &mut text);
            Term::from_field_text(field, &text)
        };
        let one = |term| -> Box<dyn Query> {
            Box::new(TermQuery::new(term, IndexRecordOption::WithFreqs))
        };
        let query: Box<dyn Query> = match number % 4 {
            0 => one(term(100.0, VOCABULARY)),
            1 => {
                let both = [(); 2].map(|()| (Occur::Must, one(term(50.0, 20_000.0))));
                Box::new(BooleanQuery::new(both.into()))
            }
            2 => {
                let either = [(); 2].map(|()| (Occur::Should, one(term(100.0, 20_000.0))));
                Box::new(BooleanQuery::new(either.into()))
            }
            _ => {
                let phrase = [(); 2].map(|()| term(2.0, 200.0));
                if phrase[0] == phrase[1] {
                    continue;
                }
                Box::new(PhraseQuery::new(phrase.into()))
            }
        };
        let best = TopDocs::with_limit(10).order_by_score();
        let (count, best) = searcher.search(&*query, &(Count, best))?;
        sum += count as u64;
        for (_, at) in best {
            let document: TantivyDocument = searcher.doc(at)?;
            let text = document.get_first(field).and_then(|text| text.as_str());
            sum += text.map_or(0, |text| text.len() as u64);
        }
    }
    Ok(sum)
}

/// Opens the index through the contender's directory.
fn open(task: &Task, advice: Advice, block: u64) -> Fallible<(Index, Option<Memory>)> {
    if !task.ours {
        let directory = MmapDirectory::open_with_madvice(&task.path, advice)?;
        return Ok((Index::open(directory)?, None));
    }
    let memory = Memory::with_limit(task.memory)?;
    let options = memory.file_options().block_size(block);
    let reading = match advice {
        Advice::Random => Reading::Random,
        _ => Reading::Normal,
    };
    let directory = PagedDirectory::open(options, &task.path)?.reading(reading);
    Ok((Index::open(directory)?, Some(memory)))
}

pub(super) fn query(task: &Task) -> Fallible<Taken> {
    let (index, _memory) = open(task, Advice::Random, 4 * KIB)?;
    let searcher = index.reader()?.searcher();
    let ask = |queries, expected| {
        let sum = found(&searcher, queries)?;
        unless(sum == expected, || format!("found {sum}, not {expected}"))
    };
    match task.work {
        Work::ColdQueries { queries, found } => timed(|| ask(queries, found)),
        Work::WarmQueries { passes, found } => {
            ask(WARM, found)?;
            timed(|| (0..passes).try_for_each(|_| ask(WARM, found)))
        }
        _ => Err("no queries".into()),
    }
}

pub(super) fn merge(task: &Task, documents: u64) -> Fallible<Taken> {
    let (index, memory) = open(task, Advice::Normal, 64 * KIB)?;
    let taken = timed(|| merge_all(&index))?;
    if let Some(memory) = memory {
        let peak = memory.root_group().take_peak();
        unless(peak <= task.memory, || format!("it took {peak} bytes"))?;
    }
    let searcher = index.reader()?.searcher();
    let (segments, all) = (searcher.segment_readers().len(), searcher.num_docs());
    unless(segments == 1 && all == documents, || {
        format!("{segments} segments of {all} documents")
    })?;
    Ok(taken)
}
