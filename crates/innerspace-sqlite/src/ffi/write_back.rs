//! Writing a branch back: SQLite holds the locks and reads the branch, and [`crate::commit`] writes
//! the pages that the branch has changed.

use std::ffi::{CStr, CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use super::api::{Api, Opaque};
use super::functions::ask;
use super::raw;
use crate::error::{Failure, Outcome};
use crate::file::{BranchAnswer, BranchCall};

/// How long other connections are waited for, in milliseconds.
const PATIENCE: c_int = 1000;

/// A connection of SQLite, closed when it is dropped.
struct Connection {
    api: Api,
    handle: *mut Opaque,
}

impl Connection {
    fn open(api: Api, path: &CStr, vfs: &CStr) -> Outcome<Connection> {
        let mut handle = ptr::null_mut();
        let flags = raw::OPEN_READWRITE;
        // SAFETY: the texts end with a zero. There is a handle even if it could not be opened.
        let code =
            unsafe { (api.sqlite3_open_v2)(path.as_ptr(), &mut handle, flags, vfs.as_ptr()) };
        let connection = Connection { api, handle };
        match code {
            raw::OK => {
                // SAFETY: the connection is open.
                unsafe { (api.sqlite3_busy_timeout)(handle, PATIENCE) };
                Ok(connection)
            }
            code => Err(Failure::new(code, connection.says())),
        }
    }

    /// Returns SQLite's text for the last failure.
    fn says(&self) -> String {
        // SAFETY: SQLite has a text for every handle, and for null.
        let text = unsafe { CStr::from_ptr((self.api.sqlite3_errmsg)(self.handle)) };
        text.to_string_lossy().into_owned()
    }

    fn run(&self, sql: &CStr) -> Outcome {
        let none = ptr::null_mut();
        // SAFETY: the connection is open, and the text ends with a zero; no row and no text of an
        // error is asked for.
        let code =
            unsafe { (self.api.sqlite3_exec)(self.handle, sql.as_ptr(), None, none, none.cast()) };
        match code {
            raw::OK => Ok(()),
            code => Err(Failure::new(code, self.says())),
        }
    }

    fn ask(&self, call: BranchCall<'_>) -> Outcome<BranchAnswer> {
        ask(self.api, self.handle, call).map(|(answer, _)| answer)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the handle is SQLite's own, and nothing of it is in use.
        unsafe { (self.api.sqlite3_close)(self.handle) };
    }
}

/// Writes a branch back to a database, in one transaction.
pub(crate) fn write_back_to(api: Api, path: &Path, vfs: &CStr, name: &str) -> Outcome {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    let parent = Connection::open(api, &path, vfs)?;
    let BranchAnswer::Path(branch) = parent.ask(BranchCall::BeginCommit(name))? else {
        return Ok(());
    };
    let written = transact(&parent, &branch, vfs, name);
    parent.ask(BranchCall::EndCommit)?;
    written.map_err(|failure| {
        let again = match failure.reason.ends_with("try again") {
            true => "",
            false => "; try again",
        };
        let reason = format!(
            "branch {name:?} was not written back, and has all that it had: {}{again}",
            failure.reason
        );
        Failure::new(failure.code, reason)
    })
}

fn transact(parent: &Connection, branch: &str, vfs: &CStr, name: &str) -> Outcome {
    let path = CString::new(branch).unwrap_or_default();
    let branch = Connection::open(parent.api, &path, vfs)?;
    // A shared lock on the branch: what a transaction of it may have left is undone, and no new one
    // ends meanwhile.
    branch.run(c"BEGIN; SELECT count(*) FROM sqlite_schema")?;
    let is_possible = parent.ask(BranchCall::PrepareCommit(name))?;
    if matches!(is_possible, BranchAnswer::Impossible) {
        drop(branch);
        return copy(parent, &path, vfs);
    }
    if let BranchAnswer::Wal(version) = is_possible {
        // A transaction of SQLite's own that changes nothing: afterwards the WAL has a header and a
        // last frame to go on from.
        let touch = CString::new(format!("PRAGMA user_version = {version}")).unwrap_or_default();
        parent.run(&touch)?;
        parent.ask(BranchCall::NoteTouch(name))?;
    }
    parent.run(c"BEGIN EXCLUSIVE")?;
    let written = parent.ask(BranchCall::WriteBack(name));
    // SQLite has written nothing in this transaction.
    parent.run(c"COMMIT")?;
    written?;
    // With a WAL this connection now recovers the index, from the WAL. Should that fail, the next
    // reader does it.
    let _ = parent.run(c"SELECT count(*) FROM sqlite_schema");
    Ok(())
}

/// Replaces all pages of the parent, by SQLite's backup.
fn copy(parent: &Connection, path: &CStr, vfs: &CStr) -> Outcome {
    let api = parent.api;
    let branch = Connection::open(api, path, vfs)?;
    let main = c"main".as_ptr();
    // SAFETY: both connections are open, and the names end with a zero.
    let code = unsafe {
        let backup = (api.sqlite3_backup_init)(parent.handle, main, branch.handle, main);
        match backup.is_null() {
            true => raw::ERROR,
            false => {
                (api.sqlite3_backup_step)(backup, -1);
                (api.sqlite3_backup_finish)(backup)
            }
        }
    };
    match code {
        raw::OK => Ok(()),
        code => Err(Failure::new(code, parent.says())),
    }
}
