//! SQL functions, which every connection of the program gets.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use super::api::{Api, Function, Opaque};
use super::methods::{BRANCH, CallOfBranch};
use super::raw;
use crate::error::{Failure, Outcome};
use crate::file::{BranchAnswer, BranchCall};

/// The functions of SQLite: a function of SQL gets no pointer of ours without them.
static API: OnceLock<Api> = OnceLock::new();

/// A destructor that tells SQLite to copy a text.
const COPY: *const c_void = usize::MAX as *const c_void;

/// Each function, and the number of its arguments.
const FUNCTIONS: [(&CStr, c_int, Function); 5] = [
    (c"innerspace_stats", 0, stats),
    (c"innerspace_branch", 1, begin),
    (c"innerspace_diff", 1, changes),
    (c"innerspace_discard", 1, discard),
    (c"innerspace_commit", 1, commit),
];

/// Gives the functions to every connection that is opened from now on.
pub(super) fn add_to_all(api: Api) {
    if API.set(api).is_ok() {
        let entry: unsafe extern "C" fn(*mut Opaque, *mut *mut c_char, *const c_void) -> c_int =
            add_at_opening;
        // SAFETY: SQLite calls the entry with the arguments of an extension's. If there is no
        // memory to note it, connections lack the functions.
        unsafe {
            (api.sqlite3_auto_extension)(Some(std::mem::transmute::<
                unsafe extern "C" fn(*mut Opaque, *mut *mut c_char, *const c_void) -> c_int,
                unsafe extern "C" fn(),
            >(entry)))
        };
    }
}

unsafe extern "C" fn add_at_opening(
    connection: *mut Opaque,
    _error: *mut *mut c_char,
    _table: *const c_void,
) -> c_int {
    add(connection).map_or_else(|code| code, |()| raw::OK)
}

/// Adds the functions to a connection.
///
/// # Errors
/// SQLite's result code.
pub(super) fn add(connection: *mut Opaque) -> Result<(), c_int> {
    let Some(api) = API.get() else { return Ok(()) };
    for (name, arguments, function) in FUNCTIONS {
        let flags = raw::UTF8 | raw::DIRECTONLY;
        // SAFETY: the connection is SQLite's own, and the functions are there for ever.
        let code = unsafe {
            (api.sqlite3_create_function_v2)(
                connection,
                name.as_ptr(),
                arguments,
                flags,
                ptr::null_mut(),
                Some(function),
                None,
                None,
                None,
            )
        };
        if code != raw::OK {
            return Err(code);
        }
    }
    Ok(())
}

/// What a function gets of its call.
struct Call {
    api: Api,
    connection: *mut Opaque,
    argument: String,
}

/// Computes a text and makes it the function's result.
///
/// # Safety
/// The arguments are those that SQLite passes to a function.
unsafe fn answer(
    call: *mut Opaque,
    count: c_int,
    arguments: *mut *mut Opaque,
    compute: impl FnOnce(&Call) -> Outcome<String>,
) {
    let Some(api) = API.get().copied() else {
        return;
    };
    let mut argument = String::new();
    if count > 0 {
        // SAFETY: there is an argument, and its text ends with a zero. It may be null.
        unsafe {
            let text = (api.sqlite3_value_text)(*arguments);
            if !text.is_null() {
                argument = CStr::from_ptr(text).to_string_lossy().into_owned();
            }
        }
    }
    // SAFETY: the call is SQLite's.
    let connection = unsafe { (api.sqlite3_context_db_handle)(call) };
    let of_call = Call {
        api,
        connection,
        argument,
    };
    let result = catch_unwind(AssertUnwindSafe(|| compute(&of_call)));
    let result =
        result.unwrap_or_else(|_| Err(Failure::new(raw::INTERNAL, "a panic; please report it")));
    let text = |text: &str| CString::new(text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the call is SQLite's; it copies the texts.
    unsafe {
        match result {
            Ok(result) => (api.sqlite3_result_text)(call, text(&result).as_ptr(), -1, COPY),
            Err(failure) => {
                api.log(failure.code, &failure.reason);
                (api.sqlite3_result_error)(call, text(&failure.reason).as_ptr(), -1);
            }
        }
    }
}

impl Call {
    /// Calls the connection's main database. Returns the answer, and the name of its VFS.
    fn main(&self, call: BranchCall<'_>) -> Outcome<(BranchAnswer, CString)> {
        ask(self.api, self.connection, call)
    }
}

/// Calls the main database of a connection.
fn ask(
    api: Api,
    connection: *mut Opaque,
    call: BranchCall<'_>,
) -> Outcome<(BranchAnswer, CString)> {
    let mut call = CallOfBranch {
        call,
        answer: Err(Failure::new(raw::NOTFOUND, "")),
        vfs: CString::default(),
    };
    // SAFETY: only our files know the operation, and they take its argument for what it is.
    let code = unsafe {
        (api.sqlite3_file_control)(
            connection,
            c"main".as_ptr(),
            BRANCH,
            ptr::from_mut(&mut call).cast(),
        )
    };
    if code != raw::OK {
        let reason = "the main database of this connection is not open by the VFS innerspace";
        return Err(Failure::new(raw::ERROR, reason));
    }
    Ok((call.answer?, call.vfs))
}

/// `innerspace_stats()`: what the memory is used for, as a text.
unsafe extern "C" fn stats(call: *mut Opaque, count: c_int, arguments: *mut *mut Opaque) {
    let compute = |call: &Call| match call.main(BranchCall::Stats) {
        Ok((BranchAnswer::Text(text), _)) => Ok(text),
        _ => super::extension::stats(),
    };
    // SAFETY: the arguments are SQLite's.
    unsafe { answer(call, count, arguments, compute) }
}

/// `innerspace_branch(name)`: makes a branch of the main database, and returns its name.
unsafe extern "C" fn begin(call: *mut Opaque, count: c_int, arguments: *mut *mut Opaque) {
    let compute = |call: &Call| {
        call.main(BranchCall::Begin(&call.argument, None))?;
        Ok(call.argument.clone())
    };
    // SAFETY: the arguments are SQLite's.
    unsafe { answer(call, count, arguments, compute) }
}

/// `innerspace_diff(name)`: the numbers of the pages that a branch has changed, with commas
/// between.
unsafe extern "C" fn changes(call: *mut Opaque, count: c_int, arguments: *mut *mut Opaque) {
    let compute = |call: &Call| match call.main(BranchCall::Changes(&call.argument))? {
        (BranchAnswer::Pages(pages), _) => {
            let pages: Vec<_> = pages.iter().map(u32::to_string).collect();
            Ok(pages.join(","))
        }
        _ => Ok(String::new()),
    };
    // SAFETY: the arguments are SQLite's.
    unsafe { answer(call, count, arguments, compute) }
}

/// `innerspace_discard(name)`: ends a branch.
unsafe extern "C" fn discard(call: *mut Opaque, count: c_int, arguments: *mut *mut Opaque) {
    let compute = |call: &Call| {
        call.main(BranchCall::Discard(&call.argument))?;
        Ok(call.argument.clone())
    };
    // SAFETY: the arguments are SQLite's.
    unsafe { answer(call, count, arguments, compute) }
}

/// `innerspace_commit(name)`: writes a branch back to the main database, its parent.
unsafe extern "C" fn commit(call: *mut Opaque, count: c_int, arguments: *mut *mut Opaque) {
    let compute = |call: &Call| {
        write_back(call.api, call.connection, &call.argument)?;
        Ok(call.argument.clone())
    };
    // SAFETY: the arguments are SQLite's.
    unsafe { answer(call, count, arguments, compute) }
}

/// Writes a branch back to the main database of a connection, in one transaction, which SQLite
/// itself makes: its backup replaces all pages.
pub(super) fn write_back(api: Api, connection: *mut Opaque, name: &str) -> Outcome {
    let (answer, vfs) = ask(api, connection, BranchCall::BeginCommit(name))?;
    let BranchAnswer::Path(path) = answer else {
        return Ok(());
    };
    let written = copy(api, connection, &path, &vfs);
    ask(api, connection, BranchCall::EndCommit)?;
    written
}

fn copy(api: Api, connection: *mut Opaque, path: &str, vfs: &CStr) -> Outcome {
    let path = CString::new(path).unwrap_or_default();
    let mut branch = ptr::null_mut();
    // SAFETY: the texts end with a zero. A connection is closed even if it could not be opened.
    unsafe {
        let flags = raw::OPEN_READWRITE;
        let mut code = (api.sqlite3_open_v2)(path.as_ptr(), &mut branch, flags, vfs.as_ptr());
        let mut says = branch;
        if code == raw::OK {
            let main = c"main".as_ptr();
            let backup = (api.sqlite3_backup_init)(connection, main, branch, main);
            if backup.is_null() {
                code = raw::ERROR;
            } else {
                (api.sqlite3_backup_step)(backup, -1);
                code = (api.sqlite3_backup_finish)(backup);
            }
            says = connection;
        }
        let reason = match code {
            raw::OK => String::new(),
            _ => CStr::from_ptr((api.sqlite3_errmsg)(says))
                .to_string_lossy()
                .into_owned(),
        };
        (api.sqlite3_close)(branch);
        match code {
            raw::OK => Ok(()),
            code => {
                let reason = format!("the branch was not written back: {reason}; try again");
                Err(Failure::new(code, reason))
            }
        }
    }
}

/// Writes a branch back to a database, by a connection of its own.
pub(crate) fn write_back_to(api: Api, path: &Path, vfs: &CStr, name: &str) -> Outcome {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    let mut parent = ptr::null_mut();
    // SAFETY: the texts end with a zero. A connection is closed even if it could not be opened.
    unsafe {
        let flags = raw::OPEN_READWRITE;
        let code = (api.sqlite3_open_v2)(path.as_ptr(), &mut parent, flags, vfs.as_ptr());
        let done = match code {
            raw::OK => write_back(api, parent, name),
            code => {
                let reason = CStr::from_ptr((api.sqlite3_errmsg)(parent)).to_string_lossy();
                Err(Failure::new(code, reason))
            }
        };
        (api.sqlite3_close)(parent);
        done
    }
}
