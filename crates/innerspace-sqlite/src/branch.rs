//! Branches: writable copies of a database as it was at a moment.
//!
//! A branch is made without a copy, and lives in this process until it is discarded. Its pages are,
//! in this order: what it has written itself, in a file of the memory that is on disk only as far
//! as there is no room; with a WAL, the newest frame of its moment ([`crate::wal`]); what the
//! parent has saved before it wrote ([`crate::history`]); the parent's present bytes.
//!
//! **Why not by a `Space`.** A private mapping of the database's file and a fork of it would freeze
//! the branch's own writes, but not the parent's: SQLite writes the file, and a page that no branch
//! has touched yet would change under all of them. Saving pages before the write makes the parent
//! pay once for each page that it changes, however many branches there are, and nothing for the
//! pages that it does not.
//!
//! **The moment** is one at which no connection is changing the file: a shared lock is taken with a
//! rollback journal. With a WAL it is the last committed transaction, whatever is being appended or
//! copied just then. Both are determined while the history is locked, and so no write of the file
//! falls between.
//!
//! **Other processes** can read the parent and not write it while branches are alive:
//! [`crate::gate`].
//!
//! A branch of a branch is the same, with the branch as its parent. A branch has a rollback journal
//! at first, whatever the parent has; its journals are in the memory like its pages.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use innerspace::file::FileAccess;
use innerspace::store::{Accepted, Store, SyncWhat};
use innerspace::{FileOpener, PagedFile};

use crate::database::Database;
use crate::error::{Failure, Outcome};
use crate::ffi::raw;
use crate::history::UNIT;
use crate::temporary::spill;
use crate::wal::Generation;

/// What stands between the path of a database and the name of a branch. There is no such file:
/// nothing is below a file that is no folder.
const MARK: &str = "/branch:";

/// The longest name of a branch.
const LONGEST_NAME: usize = 64;

/// The branches of a database, and of its branches.
#[derive(Default)]
pub(crate) struct Branches(Mutex<HashMap<String, Arc<Branch>>>);

/// The bytes of a branch.
pub(crate) struct Branch {
    pub(crate) name: String,
    /// The database that is no branch.
    pub(crate) root: Arc<Database>,
    pub(crate) parent: Arc<Database>,
    pub(crate) moment: Moment,
    spill: FileOpener,
    /// Where its own pages are, if it has a place of its own.
    place: Option<Arc<dyn Store>>,
    state: Mutex<State>,
    /// Its journals.
    files: Mutex<HashMap<String, PagedFile>>,
    open: Mutex<Weak<Database>>,
}

/// The moment at which a branch began.
pub(crate) struct Moment {
    pub(crate) epoch: u64,
    pub(crate) len: u64,
    pub(crate) page_size: u64,
    /// The parent's WAL, and its last frame.
    pub(crate) wal: Option<(Arc<Generation>, u32)>,
    /// The number of the parent's last transaction, if it has a WAL. If a commit of the branch
    /// fails, it may leave a later transaction behind that changes nothing.
    pub(crate) change: Option<AtomicU32>,
}

struct State {
    len: u64,
    /// How much of the parent's bytes is left.
    base_len: u64,
    /// The units that the branch has written.
    units: BTreeSet<u64>,
    own: Option<PagedFile>,
}

/// Splits the name of a branch's file: the database's, and the branch's with what SQLite has put
/// behind it.
pub(crate) fn split(name: &str) -> Option<(&str, &str)> {
    // What follows the mark in the path of a real file has a folder in it.
    name.rsplit_once(MARK)
        .filter(|(_, branch)| !branch.contains('/'))
}

/// The name of a branch's file.
pub(crate) fn join(database: &str, branch: &str) -> String {
    format!("{database}{MARK}{branch}")
}

fn refused(reason: String) -> Failure {
    Failure::new(raw::ERROR, reason)
}

impl Branches {
    fn list(&self) -> MutexGuard<'_, HashMap<String, Arc<Branch>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a branch by its name, or by that of one of its journals.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Branch>> {
        let list = self.list();
        let journals = ["-journal", "-wal"];
        let of = journals.iter().find_map(|end| name.strip_suffix(end));
        list.get(name).or_else(|| list.get(of?)).cloned()
    }

    pub(crate) fn named(&self, name: &str) -> Outcome<Arc<Branch>> {
        self.get(name).ok_or_else(|| {
            refused(format!(
                "there is no branch {name:?}; innerspace_branch() makes one"
            ))
        })
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.list().keys().cloned().collect();
        names.sort();
        names
    }

    /// Whether this parent has a branch.
    pub(crate) fn are_of(&self, parent: &Database) -> bool {
        let list = self.list();
        list.values()
            .any(|branch| std::ptr::eq(&*branch.parent, parent))
    }

    /// Whether a branch has not been discarded.
    pub(crate) fn has(&self, branch: &Arc<Branch>) -> bool {
        let list = self.list();
        list.get(&branch.name)
            .is_some_and(|listed| Arc::ptr_eq(listed, branch))
    }

    pub(crate) fn check_new(&self, name: &str) -> Outcome {
        let is_name = !name.is_empty()
            && name.len() <= LONGEST_NAME
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"_.".contains(&byte));
        if !is_name {
            return Err(refused(format!(
                "{name:?} is no name for a branch; take up to {LONGEST_NAME} letters, digits, \
                 underscores and dots"
            )));
        }
        match self.list().contains_key(name) {
            true => Err(refused(format!(
                "there is a branch {name:?} already; choose another name, or discard that one"
            ))),
            false => Ok(()),
        }
    }

    /// Ends a branch. Its connections must be closed, and so must its own branches.
    pub(crate) fn discard(&self, name: &str) -> Outcome {
        let branch = self.named(name)?;
        let mut list = self.list();
        if branch.opened().upgrade().is_some() {
            let reason = format!(
                "branch {name:?} is in use; close its connections, and discard its branches"
            );
            return Err(Failure::new(raw::BUSY, reason));
        }
        if list.remove(name).is_some() {
            branch.parent.history().end(branch.moment.epoch);
        }
        drop(list);
        // If a connection is writing, the gate opens when it unlocks.
        let parent = &branch.parent;
        parent.gate.open_if(|| !parent.has_branches());
        Ok(())
    }
}

impl Branch {
    pub(crate) fn begin(
        name: &str,
        place: Option<Arc<dyn Store>>,
        root: &Arc<Database>,
        parent: &Arc<Database>,
        moment: Moment,
    ) -> Outcome {
        let state = State {
            len: moment.len,
            base_len: moment.len,
            units: BTreeSet::new(),
            own: None,
        };
        let branch = Arc::new(Branch {
            name: name.to_owned(),
            root: root.clone(),
            parent: parent.clone(),
            moment,
            spill: root.spill.clone(),
            place,
            state: Mutex::new(state),
            files: Mutex::default(),
            open: Mutex::default(),
        });
        let mut list = root.branches.list();
        if list.contains_key(name) {
            drop(list);
            parent.history().end(branch.moment.epoch);
            return root.branches.check_new(name);
        }
        list.insert(name.to_owned(), branch);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened(&self) -> MutexGuard<'_, Weak<Database>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the branch as a database.
    pub(crate) fn database(self: &Arc<Branch>) -> Arc<Database> {
        let mut opened = self.opened();
        opened.upgrade().unwrap_or_else(|| {
            let name = join(&self.root.name, &self.name);
            let database = Arc::new(Database::branch(&name, self.clone(), &self.root));
            *opened = Arc::downgrade(&database);
            database
        })
    }

    /// Returns one of the branch's journals. `None` if there is none.
    pub(crate) fn file(&self, name: &str, create: bool) -> Outcome<Option<PagedFile>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(name) {
            return Ok(Some(file.clone()));
        }
        if !create {
            return Ok(None);
        }
        let file = spill(&self.spill, "journal of a branch")?;
        files.insert(name.to_owned(), file.clone());
        Ok(Some(file))
    }

    pub(crate) fn delete_file(&self, name: &str) -> bool {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.remove(name).is_some()
    }

    /// Returns the pages that differ from the parent's as they were.
    pub(crate) fn changed_pages(&self) -> Outcome<BTreeSet<u32>> {
        let units = self.state().units.clone();
        let size = self.moment.page_size;
        let mut pages = BTreeSet::new();
        let (mut old, mut new) = ([0; UNIT as usize], [0; UNIT as usize]);
        for unit in units {
            let start = unit * UNIT;
            self.pieces(start..start + UNIT, |piece, inside| {
                self.read_piece(&mut new[inside.clone()], piece)?;
                match piece < self.moment.len {
                    true => self.read_base(&mut old[inside.clone()], piece)?,
                    false => old[inside.clone()].fill(0),
                }
                if piece >= self.moment.len || old[inside.clone()] != new[inside] {
                    pages.insert((piece / size) as u32 + 1);
                }
                Ok(())
            })?;
        }
        let len = self.state().len;
        pages.retain(|page| u64::from(*page - 1) * size < len);
        Ok(pages)
    }

    /// Calls `each` for each part of a range that is in one unit and one page, with the part's
    /// offset and its place in the range.
    fn pieces(
        &self,
        bytes: Range<u64>,
        mut each: impl FnMut(u64, Range<usize>) -> Outcome,
    ) -> Outcome {
        let mut at = bytes.start;
        while at < bytes.end {
            let next = |size: u64| (at / size + 1) * size;
            let end = next(UNIT).min(next(self.moment.page_size)).min(bytes.end);
            each(
                at,
                (at - bytes.start) as usize..(end - bytes.start) as usize,
            )?;
            at = end;
        }
        Ok(())
    }

    fn read_piece(&self, buf: &mut [u8], at: u64) -> Outcome {
        let state = self.state();
        if let Some(own) = &state.own
            && state.units.contains(&(at / UNIT))
        {
            let read = own.read_at(buf, at);
            let read = read.map_err(|error| Failure::file(raw::IOERR_READ, &error))?;
            buf[read..].fill(0);
            return Ok(());
        }
        let base_len = state.base_len;
        drop(state);
        let rest = base_len.saturating_sub(at).min(buf.len() as u64) as usize;
        buf[rest..].fill(0);
        match rest {
            0 => Ok(()),
            _ => self.read_base(&mut buf[..rest], at),
        }
    }

    /// Reads what the parent had at the branch's moment.
    fn read_base(&self, buf: &mut [u8], at: u64) -> Outcome {
        let is_in_wal = match &self.moment.wal {
            Some((wal, last)) => wal.read(*last, buf, at)?,
            None => false,
        };
        if !is_in_wal {
            self.parent.read_as_of(self.moment.epoch, buf, at)?;
        }
        // The frames of the parent's WAL are in the pages: the branch has none of its own.
        for version in [18, 19] {
            if at <= version && version < at + buf.len() as u64 && self.moment.change.is_some() {
                let byte = &mut buf[(version - at) as usize];
                *byte = (*byte).min(1);
            }
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: u64) -> Outcome {
        let end = at + bytes.len() as u64;
        let failed = |error| Failure::file(raw::IOERR_WRITE, &error);
        let own = self.state().own.clone();
        let own = match own {
            Some(own) => own,
            None => self.open_own()?,
        };
        for unit in at / UNIT..end.div_ceil(UNIT) {
            let whole = unit * UNIT..(unit + 1) * UNIT;
            let is_whole = at <= whole.start && whole.end <= end;
            if !is_whole && !self.state().units.contains(&unit) {
                let mut old = [0; UNIT as usize];
                self.pieces(whole.clone(), |piece, inside| {
                    self.read_piece(&mut old[inside], piece)
                })?;
                own.write_at(&old, whole.start).map_err(failed)?;
            }
        }
        own.write_at(bytes, at).map_err(failed)?;
        let mut state = self.state();
        state.units.extend(at / UNIT..end.div_ceil(UNIT));
        state.len = state.len.max(end);
        state.own = Some(own);
        Ok(())
    }

    /// Opens the file of the branch's own pages.
    fn open_own(&self) -> Outcome<PagedFile> {
        let Some(place) = &self.place else {
            return spill(&self.spill, &self.name);
        };
        let options = self.spill.clone().access(FileAccess::ReadWrite);
        let own = options
            .name(&self.name)
            .open_store(place.clone())
            .map_err(|error| Failure::open(&error))?;
        // What an earlier branch left there does not belong to this one.
        let cut = own.set_len(0);
        cut.map_err(|error| Failure::file(raw::IOERR_TRUNCATE, &error))?;
        Ok(own)
    }

    fn cut(&self, len: u64) -> Outcome {
        let mut state = self.state();
        if let Some(own) = state.own.as_ref().filter(|own| own.len() > len) {
            let cut = own.set_len(len);
            cut.map_err(|error| Failure::file(raw::IOERR_TRUNCATE, &error))?;
        }
        state.units.split_off(&len.div_ceil(UNIT));
        state.base_len = state.base_len.min(len);
        state.len = len;
        Ok(())
    }
}

fn as_io(failure: Failure) -> io::Error {
    let kind = match failure.code {
        raw::FULL => io::ErrorKind::StorageFull,
        raw::IOERR_NOMEM | raw::NOMEM => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, failure.reason)
}

impl Store for Branch {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = self
            .state()
            .len
            .saturating_sub(offset)
            .min(buf.len() as u64);
        let read = self.pieces(offset..offset + len, |piece, inside| {
            self.read_piece(&mut buf[inside], piece)
        });
        read.map_err(as_io)?;
        Ok(len as usize)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.write(buf, offset).map_err(as_io)?;
        Ok(buf.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.cut(len).map_err(as_io)
    }

    /// Writes the branch's pages to the place of its own, if it has one.
    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        let own = self.state().own.clone();
        let Some(own) = own.filter(|_| self.place.is_some()) else {
            return Ok(());
        };
        let synced = match what {
            SyncWhat::Data => own.sync_data(),
            SyncWhat::All => own.sync_all(),
        };
        synced.map_err(|error| as_io(Failure::file(raw::IOERR_FSYNC, &error)))
    }

    fn accepted(&self) -> Accepted {
        Accepted::Kept
    }

    fn writable(&self) -> bool {
        true
    }
}
