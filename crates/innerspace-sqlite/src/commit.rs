//! Writing the pages that a branch has changed back to its parent.
//!
//! The caller is SQLite's connection to the parent, which is in an exclusive transaction in which
//! SQLite itself writes nothing. What is written is what SQLite would write:
//!
//! | the parent has | what is written | the moment of the commit |
//! |---|---|---|
//! | a journal | the old pages to it, then the new ones to the file | it is cut to nothing |
//! | a WAL | the new pages as frames, the last of which ends a transaction | the WAL is durable |
//!
//! Whatever happens in between, the next reader undoes it by the journal, or does not find a whole
//! transaction in the WAL. The index of the WAL is not kept up to date: its header is spoiled, as
//! if a writer had been killed, and the next reader makes the index anew from the WAL.
//!
//! In both cases the first page is written too, with a new change counter, from which other
//! connections learn that their caches are old.

use innerspace::store::{Store, SyncWhat, read_exact_or_eof, write_all_at};

use crate::branch::Branch;
use crate::branching::VERSION;
use crate::error::{Failure, Outcome};
use crate::ffi::raw;
use crate::file::{OpenFile, SECTOR_SIZE};
use crate::index::{Index, Tail};
use crate::wal::{FRAME_HEADER, HEADER};

/// The first bytes of a journal.
const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];

/// The first of the bytes of a database that are locked.
const PENDING_BYTE: u64 = 0x4000_0000;

/// The step in which SQLite looks at bytes of a page for a journal's checksum.
const CHECK_STEP: usize = 200;

/// Where the first page has the change counter, and the number of the change that wrote the
/// database's length.
const COUNTERS: [usize; 2] = [24, 92];

/// The pages to be written, and the parent as it was before.
struct Change<'a> {
    branch: &'a Branch,
    page_size: usize,
    /// The numbers of the pages, the first one included.
    pages: Vec<u32>,
    /// The branch's length in bytes.
    len: u64,
    /// A change counter that is not the parent's.
    counter: u32,
}

impl<'a> Change<'a> {
    /// `counter` is the parent's change counter, as its file has it.
    fn new(branch: &'a Branch, counter: u32) -> Outcome<Change<'a>> {
        let mut pages = branch.changed_pages()?;
        pages.insert(1);
        let mut own = [0; 4];
        read_exact_or_eof(branch, &mut own, COUNTERS[0] as u64)
            .map_err(|error| cannot_read(branch, &error))?;
        Ok(Change {
            branch,
            page_size: branch.moment.page_size as usize,
            pages: pages.into_iter().collect(),
            len: Store::len(branch).map_err(|error| cannot_read(branch, &error))?,
            counter: counter.max(u32::from_be_bytes(own)).wrapping_add(1),
        })
    }

    fn at(&self, page: u32) -> u64 {
        u64::from(page - 1) * self.page_size as u64
    }

    /// Returns a page as the branch has it. `version` is the format version in the parent's header.
    fn page(&self, page: u32, version: u8) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; self.page_size];
        read_exact_or_eof(self.branch, &mut bytes, self.at(page))
            .map_err(|error| cannot_read(self.branch, &error))?;
        if page == 1 {
            let counter = self.counter.to_be_bytes();
            for at in COUNTERS {
                bytes[at..at + 4].copy_from_slice(&counter);
            }
            bytes[VERSION as usize..][..2].fill(version);
        }
        Ok(bytes)
    }
}

fn cannot_read(branch: &Branch, error: &std::io::Error) -> Failure {
    Failure::io(raw::IOERR_READ, "cannot read", &branch.name, error)
}

fn journal_failed(what: &str, error: &std::io::Error) -> Failure {
    Failure::io(
        raw::IOERR_WRITE,
        &format!("cannot {what}"),
        "the journal",
        error,
    )
}

/// A branch was not written back.
pub(crate) struct NotWritten {
    pub(crate) failure: Failure,
    /// Whether the parent is what it was.
    pub(crate) is_undone: bool,
}

/// Writes a branch back to a parent with a rollback journal. The caller has the parent's exclusive
/// lock.
pub(crate) fn by_journal(
    branch: &Branch,
    parent: &mut dyn OpenFile,
    journal: &dyn Store,
) -> Result<(), NotWritten> {
    let untouched = |failure| NotWritten {
        failure,
        is_undone: true,
    };
    let mut counter = [0; 4];
    let read = parent.read(&mut counter, COUNTERS[0] as u64);
    read.map_err(untouched)?;
    let change = Change::new(branch, u32::from_be_bytes(counter)).map_err(untouched)?;
    let old_len = parent.len().map_err(untouched)?;
    let saved = save(&change, parent, journal, old_len).map_err(|failure| {
        // What has been written of it must not be mistaken for a journal later.
        let _ = journal.set_len(0);
        untouched(failure)
    })?;
    let ended = write(&change, parent, old_len).and_then(|()| end(journal));
    ended.map_err(|failure| {
        // Undone at once: other processes are kept out by a lock that lets them read, and do not
        // look at the journal.
        let is_undone = undo(&saved, &change, parent, journal, old_len).and_then(|()| end(journal));
        NotWritten {
            failure,
            is_undone: is_undone.is_ok(),
        }
    })
}

/// Ends the transaction: a journal without a header does not count as one.
fn end(journal: &dyn Store) -> Outcome {
    let cut = journal.set_len(0);
    cut.map_err(|error| journal_failed("cut", &error))?;
    let synced = journal.sync(SyncWhat::All);
    synced.map_err(|error| journal_failed("sync", &error))
}

/// Returns the numbers of the pages that a transaction overwrites or cuts off, in order. The page
/// with the bytes that are locked is never used, and ends a journal that has it.
fn overwritten(changed: &[u32], pages: u32, old_pages: u32, page_size: usize) -> Vec<u32> {
    let locked = (PENDING_BYTE / page_size as u64) as u32 + 1;
    let mut numbers: Vec<u32> = changed
        .iter()
        .copied()
        .chain(pages + 1..=old_pages)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.retain(|page| *page <= old_pages && *page != locked);
    numbers
}

/// Returns where the journal has the old bytes of its `n`th page, from 0 on. Its number is before
/// them, and their checksum follows.
fn in_journal(n: usize, page_size: usize) -> u64 {
    SECTOR_SIZE as u64 + n as u64 * (page_size as u64 + 8) + 4
}

/// Writes the old pages to the journal, and then its header, and returns their numbers.
fn save(
    change: &Change<'_>,
    parent: &mut dyn OpenFile,
    journal: &dyn Store,
    old_len: u64,
) -> Outcome<Vec<u32>> {
    let in_pages = |len: u64| (len / change.page_size as u64) as u32;
    let old_pages = in_pages(old_len);
    let numbers = overwritten(
        &change.pages,
        in_pages(change.len),
        old_pages,
        change.page_size,
    );

    let failed = |error: std::io::Error| journal_failed("write", &error);
    journal.set_len(0).map_err(failed)?;
    let start: u32 = change.counter.wrapping_mul(0x9e37_79b9) ^ old_pages;
    for (n, page) in numbers.iter().enumerate() {
        let mut bytes = vec![0; change.page_size];
        parent.read(&mut bytes, change.at(*page))?;
        let mut record = page.to_be_bytes().to_vec();
        record.extend(&bytes);
        record.extend(checksum(start, &bytes).to_be_bytes());
        let at = in_journal(n, change.page_size) - 4;
        write_all_at(journal, &record, at).map_err(failed)?;
    }
    // Without its header the journal does not count as one. So the header comes once all the rest
    // is durable.
    journal.sync(SyncWhat::All).map_err(failed)?;
    let mut header = MAGIC.to_vec();
    let fields = [
        numbers.len() as u32,
        start,
        old_pages,
        SECTOR_SIZE.cast_unsigned(),
        change.page_size as u32,
    ];
    header.extend(fields.iter().flat_map(|field| field.to_be_bytes()));
    write_all_at(journal, &header, 0).map_err(failed)?;
    journal.sync(SyncWhat::All).map_err(failed)?;
    Ok(numbers)
}

/// SQLite's checksum of a page in a journal.
fn checksum(start: u32, page: &[u8]) -> u32 {
    let places = (1..page.len())
        .rev()
        .filter(|at| (page.len() - at).is_multiple_of(CHECK_STEP));
    places.fold(start, |sum, at| sum.wrapping_add(page[at].into()))
}

fn write(change: &Change<'_>, parent: &mut dyn OpenFile, old_len: u64) -> Outcome {
    let mut version = [0];
    parent.read(&mut version, VERSION)?;
    for &page in &change.pages {
        let bytes = change.page(page, version[0])?;
        parent.write(&bytes, change.at(page))?;
    }
    if change.len != old_len {
        parent.truncate(change.len)?;
    }
    parent.sync(raw::SYNC_FULL)
}

fn undo(
    saved: &[u32],
    change: &Change<'_>,
    parent: &mut dyn OpenFile,
    journal: &dyn Store,
    old_len: u64,
) -> Outcome {
    let mut bytes = vec![0; change.page_size];
    for (n, page) in saved.iter().enumerate() {
        let read = read_exact_or_eof(journal, &mut bytes, in_journal(n, change.page_size));
        let read = read.map_err(|error| journal_failed("read", &error))?;
        if read < bytes.len() {
            let cut = std::io::ErrorKind::UnexpectedEof.into();
            return Err(journal_failed("read", &cut));
        }
        parent.write(&bytes, change.at(*page))?;
    }
    parent.truncate(old_len)?;
    parent.sync(raw::SYNC_FULL)
}

/// Writes a branch back to a parent with a WAL. The caller has the lock of its writer.
pub(crate) fn by_wal(branch: &Branch, wal: &dyn Store, index: &Index) -> Outcome {
    let missing = || Failure::new(raw::BUSY, "the WAL is being changed");
    let mut tail = index.tail().ok_or_else(missing)?;
    // Readers with a WAL do not look at the counter.
    let change = Change::new(branch, 0)?;
    if tail.page_size as usize != change.page_size || tail.last == 0 {
        return Err(missing());
    }
    let failed =
        |error: std::io::Error| Failure::io(raw::IOERR_WRITE, "cannot write", "the WAL", &error);
    let frame_len = FRAME_HEADER + change.page_size as u64;
    let mut at = HEADER + u64::from(tail.last) * frame_len;
    let pages = (change.len / change.page_size as u64) as u32;
    for (number, &page) in change.pages.iter().enumerate() {
        // The last frame of a transaction has the database's length.
        let is_last = number + 1 == change.pages.len();
        let bytes = change.page(page, crate::branching::WAL_VERSION)?;
        let frame = frame(&mut tail, page, if is_last { pages } else { 0 }, &bytes);
        write_all_at(wal, &frame, at).map_err(failed)?;
        at += frame_len;
    }
    wal.sync(SyncWhat::All).map_err(failed)?;
    index.spoil();
    Ok(())
}

/// Makes a frame, and continues the checksum of all frames.
fn frame(tail: &mut Tail, page: u32, pages: u32, bytes: &[u8]) -> Vec<u8> {
    let mut frame = page.to_be_bytes().to_vec();
    frame.extend(pages.to_be_bytes());
    tail.add(&frame);
    tail.add(bytes);
    frame.extend(tail.salts.iter().flat_map(|salt| salt.to_ne_bytes()));
    frame.extend(tail.sums.iter().flat_map(|sum| sum.to_be_bytes()));
    frame.extend(bytes);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_locks_is_not_in_the_journal() {
        assert_eq!(overwritten(&[1, 7], 5, 6, 4096), [1, 6]);
        let locked = 0x4000_0000 / 4096 + 1;
        let saved = overwritten(&[1, locked - 1], locked - 1, locked + 2, 4096);
        assert_eq!(saved, [1, locked - 1, locked + 1, locked + 2]);
    }
}
