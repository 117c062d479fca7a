//! Making and ending branches: what a connection to the parent does.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use innerspace::store::{Store, read_exact_or_eof};

use crate::branch::{Branch, Moment, join};
use crate::database::Database;
use crate::disk::{self, Opening};
use crate::error::{Failure, Outcome};
use crate::ffi::raw;
use crate::file::{BranchAnswer, BranchCall};
use crate::gate::{Kept, Writer};
use crate::history::History;
use crate::index::Index;
use crate::locks::{DATABASE, Kind, Locks, RESERVED, SHARED};
use crate::wal::{Generation, WalState};

/// How often a moment without a writer is looked for, and the time in between.
const TRIES: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(1);

/// Where a database's header says which version of SQLite may write it, and the version that uses
/// a WAL.
pub(crate) const VERSION: u64 = 18;
pub(crate) const WAL_VERSION: u8 = 2;

/// The region of a WAL's index that has its state.
const REGION: usize = 32 << 10;

/// Makes a call for a connection to `database`. `path` is where it is in the file system.
pub(crate) fn answer(
    call: BranchCall<'_>,
    database: &Arc<Database>,
    path: Option<&Path>,
    connection: u64,
) -> Outcome<BranchAnswer> {
    let root = match &database.of_branch {
        Some(branch) => branch.root.clone(),
        None => database.clone(),
    };
    match call {
        BranchCall::Begin(name, own) => {
            root.branches.check_new(name)?;
            begin(&New { name, own }, &root, database, path)?;
            Ok(BranchAnswer::Done)
        }
        BranchCall::Changes(name) => {
            let branch = root.branches.named(name)?;
            branch.changed_pages().map(BranchAnswer::Pages)
        }
        BranchCall::Discard(name) => {
            root.branches.discard(name)?;
            Ok(BranchAnswer::Done)
        }
        BranchCall::BeginCommit(name) => {
            let branch = root.branches.named(name)?;
            begin_commit(&branch, database, connection)?;
            Ok(BranchAnswer::Path(join(&root.name, name)))
        }
        BranchCall::PrepareCommit(name) => {
            let branch = root.branches.named(name)?;
            prepare_commit(&branch, database)
        }
        BranchCall::NoteTouch(name) => {
            let branch = root.branches.named(name)?;
            note_touch(&branch, database);
            Ok(BranchAnswer::Done)
        }
        BranchCall::WriteBack(_) => Err(Failure::new(raw::MISUSE, "no connection writes")),
        BranchCall::Name => Ok(BranchAnswer::Path(database.name.clone())),
        BranchCall::Stats => Ok(BranchAnswer::Text(root.memory.stats().to_string())),
        BranchCall::EndCommit => {
            database.gate.end_reserve();
            Ok(BranchAnswer::Done)
        }
    }
}

/// A branch to be made.
struct New<'a> {
    name: &'a str,
    /// Where its own pages are, if it has a place of its own.
    own: Option<Arc<dyn Store>>,
}

/// Makes a branch at the first moment at which that is possible.
fn begin(
    new: &New<'_>,
    root: &Arc<Database>,
    parent: &Arc<Database>,
    path: Option<&Path>,
) -> Outcome {
    let is_in_vain = |failure: &Failure| failure.code != raw::BUSY;
    for _ in 0..TRIES {
        match try_begin(new, root, parent, path) {
            Err(failure) if !is_in_vain(&failure) => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
    let reason = format!(
        "no branch of {} could begin: another connection was writing all the time; try again",
        parent.name
    );
    Err(Failure::new(raw::BUSY, reason))
}

fn try_begin(
    new: &New<'_>,
    root: &Arc<Database>,
    parent: &Arc<Database>,
    path: Option<&Path>,
) -> Outcome {
    if let Some(reason) = &parent.history().lost {
        return Err(Failure::new(raw::ERROR, reason.clone()));
    }
    let has_wal = has_wal(parent)?;
    if parent.of_branch.is_some() && has_wal {
        return Err(Failure::new(
            raw::ERROR,
            format!(
                "{} has a WAL of its own; set its journal_mode to DELETE first",
                parent.name
            ),
        ));
    }
    parent.gate.close(|| keep_out(parent, path, has_wal))?;
    let is_writing = parent.gate.is_taken(Writer::Reserved, u64::MAX);
    let begun = parent.gate.with(|kept| match (&kept.index, has_wal) {
        (Some(index), true) => begin_with_wal(new, root, parent, index),
        (None, false) => {
            let is_writing = is_writing == Some(true);
            begin_with_journal(new, root, parent, kept, is_writing)
        }
        // Connections changed the journal mode while there are branches.
        _ => Err(Failure::new(
            raw::ERROR,
            format!(
                "the journal mode of {} was changed since its first branch; discard its branches",
                parent.name
            ),
        )),
    });
    let begun = begun.unwrap_or_else(|| Err(Failure::busy()));
    if begun.is_err() {
        parent.gate.open_if(|| !parent.has_branches());
    }
    begun
}

/// Takes the writers' locks against other processes, and makes sure that the cache is current.
fn keep_out(parent: &Database, path: Option<&Path>, has_wal: bool) -> Outcome<Kept> {
    let failed = |error: io::Error| parent.failure(raw::IOERR_LOCK, "cannot lock", &error);
    let how = Opening {
        write: true,
        create: false,
        exclusive: false,
        mode: 0,
    };
    let file: Option<Arc<File>> = match path {
        Some(path) => Some(Arc::new(disk::open(path, how).map_err(failed)?)),
        None => None,
    };
    let locks = match &file {
        Some(file) => Locks::host(file.clone(), &DATABASE),
        None => Locks::process(&parent.table),
    };
    let (kind, unit) = match has_wal {
        true => (Kind::Shared, SHARED),
        false => (Kind::Exclusive, RESERVED),
    };
    if !locks.take(kind, unit..unit + 1).map_err(failed)? {
        return Err(Failure::busy());
    }
    let mut index = None;
    if has_wal {
        let mut opened = match (path, &file) {
            (Some(path), Some(file)) => Index::host(path, file, false)?,
            _ => Index::heap(&parent.index),
        };
        if opened.region(0, REGION, false)?.start.is_none() {
            return Err(Failure::new(
                raw::ERROR,
                format!(
                    "the WAL of {} is not in use; read the database once first",
                    parent.name
                ),
            ));
        }
        opened.lock(0, 2, raw::SHM_LOCK | raw::SHM_EXCLUSIVE)?;
        index = Some(opened);
    }
    if let Some(file) = &file {
        parent.check_header(file)?;
        if let Some(index) = &index {
            parent.check_progress(index.progress());
        }
    }
    Ok(Kept { locks, index })
}

/// Begins a branch of a database with a rollback journal: nobody is changing the file, and none of
/// its changes is left to be undone.
fn begin_with_journal(
    new: &New<'_>,
    root: &Arc<Database>,
    parent: &Arc<Database>,
    kept: &Kept,
    is_writing: bool,
) -> Outcome {
    let failed = |error: io::Error| parent.failure(raw::IOERR_LOCK, "cannot lock", &error);
    let shared = SHARED..SHARED + 1;
    if !kept
        .locks
        .take(Kind::Shared, shared.clone())
        .map_err(failed)?
    {
        return Err(Failure::busy());
    }
    let begun = check_journal(parent, is_writing).and_then(|()| {
        let mut history = parent.history();
        let len = parent.len()?;
        let mut page_size = [0; 2];
        parent.read_now(&mut page_size, 16)?;
        let page_size = page_size_of(page_size);
        let moment = Moment {
            epoch: history.begin(),
            len,
            page_size,
            wal: None,
            change: None,
        };
        drop(history);
        Branch::begin(new.name, new.own.clone(), root, parent, moment)
    });
    kept.locks.release(shared).map_err(failed)?;
    begun
}

/// Checks that no transaction that did not end has left a journal. A writer that is at work has one
/// too, and has not touched the file as long as others may share it.
fn check_journal(parent: &Database, is_writing: bool) -> Outcome {
    match !is_writing && has_hot_journal(parent) {
        true => Err(Failure::new(
            raw::BUSY,
            format!(
                "{} has a journal to be undone; read the database once first",
                parent.name
            ),
        )),
        false => Ok(()),
    }
}

fn has_hot_journal(parent: &Database) -> bool {
    let mut first = [0];
    (parent.beside)("-journal", false)
        .and_then(|journal| read_exact_or_eof(&*journal, &mut first, 0))
        .is_ok_and(|read| read == 1 && first[0] != 0)
}

/// Looks at the journal as a writer ends. If it could not end its transaction, the next connection
/// has to undo it. Other processes would mistake the lock that keeps them out for the lock of a
/// writer at work, and read the file as it is; so they are let in, and the branches are lost.
pub(crate) fn check_end(parent: &Database) {
    if parent.of_branch.is_none() && parent.gate.is_kept() && has_hot_journal(parent) {
        parent.history().lost = Some(format!(
            "the branches of {} are lost: a transaction of it could neither end nor be undone; \
             discard them",
            parent.name
        ));
        parent.gate.force_open();
    }
}

/// Begins a branch of a database with a WAL, at its last committed transaction.
fn begin_with_wal(
    new: &New<'_>,
    root: &Arc<Database>,
    parent: &Arc<Database>,
    index: &Index,
) -> Outcome {
    let mut history = parent.history();
    // A writer is changing the state just now.
    let state = index.state().ok_or_else(Failure::busy)?;
    let wal = match state.last {
        0 => None,
        last => Some((generation(&mut history, parent, &state)?, last)),
    };
    if let Some((wal, last)) = &wal {
        wal.need(*last);
    }
    let page_size = u64::from(state.page_size);
    let len = match state.last {
        0 => parent.len()?,
        _ => u64::from(state.pages) * page_size,
    };
    let moment = Moment {
        epoch: history.begin(),
        len,
        page_size,
        wal,
        change: Some(AtomicU32::new(state.change)),
    };
    drop(history);
    Branch::begin(new.name, new.own.clone(), root, parent, moment)
}

/// Returns the WAL as it is since it last started over.
fn generation(
    history: &mut History,
    parent: &Database,
    state: &WalState,
) -> Outcome<Arc<Generation>> {
    if let Some(wal) = history.wal.as_ref().filter(|wal| wal.is(state)) {
        return Ok(wal.clone());
    }
    let wal = (parent.beside)("-wal", false);
    let wal =
        wal.map_err(|error| parent.failure(raw::IOERR_READ, "cannot open the WAL of", &error))?;
    let wal = Arc::new(Generation::new(state, wal));
    history.wal = Some(wal.clone());
    Ok(wal)
}

fn has_wal(database: &Database) -> Outcome<bool> {
    let mut version = [0];
    database.read_now(&mut version, VERSION)?;
    Ok(version == [WAL_VERSION])
}

/// Lets only `connection` write the parent, if the branch can be written back.
fn begin_commit(branch: &Branch, database: &Arc<Database>, connection: u64) -> Outcome {
    let name = &branch.name;
    if !Arc::ptr_eq(&branch.parent, database) {
        let reason = format!("{} is not the parent of branch {name:?}", database.name);
        return Err(Failure::new(raw::ERROR, reason));
    }
    let mut version = [0];
    read_exact_or_eof(branch, &mut version, VERSION)
        .map_err(|error| Failure::io(raw::IOERR_READ, "cannot read", name, &error))?;
    if version == [WAL_VERSION] && !has_wal(database)? {
        let reason = format!(
            "branch {name:?} has a WAL and {} has none; set its journal_mode to DELETE first",
            database.name
        );
        return Err(Failure::new(raw::ERROR, reason));
    }
    if !database.gate.reserve(connection) {
        let reason = format!("another connection is writing {}; try again", database.name);
        return Err(Failure::new(raw::BUSY, reason));
    }
    let has_moved = match &branch.moment.change {
        // The gate's lock orders the note and this look.
        Some(change) => last_change(database) != Some(change.load(Ordering::Relaxed)),
        None => database.history().was_written_since(branch.moment.epoch),
    };
    if has_moved {
        database.gate.end_reserve();
        let reason = format!(
            "{} has moved on since branch {name:?} began; make a new branch of it, and change that",
            database.name
        );
        return Err(Failure::new(raw::ERROR, reason));
    }
    Ok(())
}

/// Returns the number of the last transaction of a database with a WAL and branches.
fn last_change(database: &Database) -> Option<u32> {
    let state = database
        .gate
        .with(|kept| kept.index.as_ref().and_then(Index::state));
    Some(state.flatten()?.change)
}

/// Notes that the parent's last transaction has changed nothing, so that the branch can still be
/// written back. Nobody else writes the parent.
fn note_touch(branch: &Branch, database: &Database) {
    if let (Some(change), Some(last)) = (&branch.moment.change, last_change(database)) {
        change.store(last, Ordering::Relaxed);
    }
}

/// Returns how the branch's pages can be written. All pages have to be written if the size of a
/// page has changed, if the branch has a WAL of its own, or if the parent is a branch, which has no
/// journal that outlives it.
fn prepare_commit(branch: &Branch, database: &Arc<Database>) -> Outcome<BranchAnswer> {
    let mut head = [0; 100];
    read_exact_or_eof(branch, &mut head, 0)
        .map_err(|error| Failure::io(raw::IOERR_READ, "cannot read", &branch.name, &error))?;
    let is_possible = branch.parent.of_branch.is_none()
        && page_size_of([head[16], head[17]]) == branch.moment.page_size
        && head[VERSION as usize] != WAL_VERSION;
    if !is_possible {
        return Ok(BranchAnswer::Impossible);
    }
    match has_wal(database)? {
        true => {
            let version = [head[60], head[61], head[62], head[63]];
            Ok(BranchAnswer::Wal(i32::from_be_bytes(version)))
        }
        false => Ok(BranchAnswer::Done),
    }
}

/// Returns the size of a page that a database's header tells.
fn page_size_of(header: [u8; 2]) -> u64 {
    match u16::from_be_bytes(header) {
        1 => 65_536,
        0 => 4096,
        size => u64::from(size),
    }
}
