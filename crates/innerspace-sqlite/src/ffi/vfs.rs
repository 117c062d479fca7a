//! The VFS itself, as SQLite calls it: opening, deleting, names; and its registration.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use super::api::Api;
use super::functions;
use super::methods::{self, Handle};
use super::raw::{self, SqliteFile, SqliteVfs, Symbol};
use crate::branch::{join, split};
use crate::error::{Failure, Outcome};
use crate::system::{System, path_of};
use crate::uri::Wishes;

/// The longest path, as in SQLite's own VFS for Unix.
const LONGEST_PATH: c_int = 512;

/// What a registered VFS has. It is never freed: SQLite may use a VFS as long as the process lives.
#[allow(missing_debug_implementations, reason = "pointers and functions")]
pub(crate) struct App {
    pub(crate) api: Api,
    pub(crate) system: Arc<System>,
    pub(crate) name: CString,
    /// The VFS that was the default before: it resolves names, sleeps, and tells the time.
    base: *mut SqliteVfs,
}

/// Registers a VFS.
///
/// # Errors
/// SQLite's result code.
pub(crate) fn install(
    api: Api,
    system: Arc<System>,
    name: CString,
    is_default: bool,
) -> Result<(), c_int> {
    // SAFETY: null asks for the default VFS; SQLite initialises itself first.
    let base = unsafe { (api.sqlite3_vfs_find)(ptr::null()) };
    // SAFETY: SQLite's VFSs live as long as they are registered.
    let Some(of_base) = (unsafe { base.as_ref() }) else {
        return Err(raw::ERROR);
    };
    let app = Box::leak(Box::new(App {
        api,
        system,
        name,
        base,
    }));
    let bytes = size_of::<Handle>() as c_int;
    let vfs = SqliteVfs {
        version: 3.min(of_base.version),
        file_bytes: bytes,
        max_path: LONGEST_PATH.max(of_base.max_path),
        next: ptr::null_mut(),
        name: app.name.as_ptr(),
        app_data: ptr::from_mut(app).cast(),
        open: Some(open),
        delete: Some(delete),
        access: Some(access),
        full_pathname: Some(full_pathname),
        dl_open: Some(dl_open),
        dl_error: Some(dl_error),
        dl_sym: Some(dl_sym),
        dl_close: Some(dl_close),
        randomness: Some(randomness),
        sleep: Some(sleep),
        current_time: Some(current_time),
        get_last_error: Some(get_last_error),
        current_time_int64: Some(current_time_int64),
        // Tests of SQLite's own VFS set these.
        set_system_call: of_base.set_system_call.map(|_| set_system_call as _),
        get_system_call: of_base.get_system_call.map(|_| get_system_call as _),
        next_system_call: of_base.next_system_call.map(|_| next_system_call as _),
    };
    let vfs = Box::leak(Box::new(vfs));
    // SAFETY: the VFS is complete, and lives for ever.
    match unsafe { (app.api.sqlite3_vfs_register)(vfs, c_int::from(is_default)) } {
        raw::OK => {
            functions::add_to_all(api);
            Ok(())
        }
        code => Err(code),
    }
}

/// Returns the VFS's own data.
///
/// # Safety
/// `vfs` is one that `install` made.
pub(super) unsafe fn app<'a>(vfs: *mut SqliteVfs) -> &'a App {
    // SAFETY: by the function's own rule.
    unsafe { &*(*vfs).app_data.cast::<App>() }
}

/// Makes a call, reports its failure, and returns SQLite's result code.
pub(super) fn answer(app: &App, call: impl FnOnce() -> Outcome<c_int>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(code)) => return code,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(raw::INTERNAL, "a panic; please report it"),
    };
    if !failure.reason.is_empty() {
        app.api.log(failure.code, &failure.reason);
    }
    failure.code
}

unsafe extern "C" fn open(
    vfs: *mut SqliteVfs,
    name: *const c_char,
    file: *mut SqliteFile,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: the VFS is ours.
    let app = unsafe { app(vfs) };
    // SAFETY: SQLite gives room for a `Handle`. It closes no file whose methods are null.
    unsafe { (*file).methods = ptr::null() };
    answer(app, || {
        let is_main = flags & raw::OPEN_MAIN_DB != 0 && !name.is_null();
        let wishes = match is_main {
            // SAFETY: a main database's name is SQLite's own, with the parameters behind it.
            true => Wishes::parse(&unsafe { app.api.parameters(name) })?,
            false => Wishes::default(),
        };
        // SAFETY: a name that is not null ends with a zero, and lives as long as the file.
        let name = (!name.is_null()).then(|| path_of(unsafe { CStr::from_ptr(name) }));
        let opened = app.system.open(name, flags, &wishes)?;
        for remark in &opened.remarks {
            app.api.log(remark.code, &remark.reason);
        }
        // SAFETY: as above.
        unsafe { methods::begin(file, app, opened.file) };
        // SAFETY: SQLite gives a place, or null.
        if let Some(out) = unsafe { out_flags.as_mut() } {
            *out = opened.flags;
        }
        Ok(raw::OK)
    })
}

/// Calls the base VFS's method of the same name. Its own VFS is passed, not ours.
macro_rules! base {
    ($vfs:ident, $name:ident, $missing:expr $(, $argument:expr)*) => {{
        // SAFETY: the VFS is ours, and the base lives as long as the process.
        let base = unsafe { app($vfs) }.base;
        // SAFETY: as above.
        match unsafe { (*base).$name } {
            // SAFETY: the arguments are SQLite's own.
            Some(call) => unsafe { call(base $(, $argument)*) },
            None => $missing,
        }
    }};
}

unsafe extern "C" fn delete(vfs: *mut SqliteVfs, name: *const c_char, durably: c_int) -> c_int {
    // SAFETY: the VFS is ours, and names end with a zero.
    let (app, own) = unsafe { (app(vfs), path_of(CStr::from_ptr(name))) };
    if !app.system.is_own(own) {
        return base!(vfs, delete, raw::IOERR_DELETE, name, durably);
    }
    answer(app, || {
        let name = own;
        app.system.delete(name, durably != 0)?;
        Ok(raw::OK)
    })
}

unsafe extern "C" fn access(
    vfs: *mut SqliteVfs,
    name: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: the VFS is ours, and names end with a zero.
    let (app, own) = unsafe { (app(vfs), path_of(CStr::from_ptr(name))) };
    if !app.system.is_own(own) {
        return base!(vfs, access, raw::IOERR_ACCESS, name, flags, out);
    }
    answer(app, || {
        let name = own;
        let exists = app.system.exists(name)?;
        // SAFETY: SQLite gives a place.
        unsafe { *out = c_int::from(exists) };
        Ok(raw::OK)
    })
}

unsafe extern "C" fn full_pathname(
    vfs: *mut SqliteVfs,
    name: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: names end with a zero.
    let own = unsafe { CStr::from_ptr(name) };
    if let Some((database, branch)) = split(&path_of(own).to_string_lossy()) {
        // The name is already a branch's, so the base VFS resolves the database's name.
        let (Ok(database), branch) = (CString::new(database), branch.to_owned()) else {
            return raw::CANTOPEN;
        };
        return full_name(vfs, &database, Some(&branch), room, out);
    }
    // SAFETY: SQLite keeps the parameters behind the name that it passes here, as it does for its
    // own use just after this call.
    let branch = unsafe { parameter_behind(own, c"branch") };
    full_name(vfs, own, branch.as_deref(), room, out)
}

/// Writes the full name of a database, or of a branch of it.
fn full_name(
    vfs: *mut SqliteVfs,
    name: &CStr,
    branch: Option<&str>,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: the VFS is ours.
    let app = unsafe { app(vfs) };
    let bytes = room.max(0) as usize;
    let code = match app.system.is_host() {
        true => base!(vfs, full_pathname, raw::CANTOPEN, name.as_ptr(), room, out),
        false if name.count_bytes() >= bytes => return raw::CANTOPEN,
        false => {
            // SAFETY: there is room, as checked just now.
            unsafe { ptr::copy_nonoverlapping(name.as_ptr(), out, name.count_bytes() + 1) };
            raw::OK
        }
    };
    let Some(branch) = branch else { return code };
    if code & 0xff != raw::OK {
        return code;
    }
    // SAFETY: the base has written a name that ends with a zero.
    let full = unsafe { CStr::from_ptr(out) };
    let Ok(joined) = CString::new(join(&full.to_string_lossy(), branch)) else {
        return raw::CANTOPEN;
    };
    if joined.count_bytes() >= bytes {
        return raw::CANTOPEN;
    }
    // SAFETY: there is room, as checked just now.
    unsafe { ptr::copy_nonoverlapping(joined.as_ptr(), out, joined.count_bytes() + 1) };
    code
}

/// Returns a parameter of the URI that is behind a name: keys and values in turn, each with a zero
/// at its end, and an empty key at the end of all.
///
/// # Safety
/// They are there.
unsafe fn parameter_behind(name: &CStr, wanted: &CStr) -> Option<String> {
    let next = |text: &CStr| {
        // SAFETY: the function's contract says that something follows.
        unsafe { CStr::from_ptr(text.as_ptr().add(text.count_bytes() + 1)) }
    };
    let mut key = next(name);
    while !key.is_empty() {
        let value = next(key);
        if key == wanted {
            return Some(value.to_string_lossy().into_owned());
        }
        key = next(value);
    }
    None
}

unsafe extern "C" fn dl_open(vfs: *mut SqliteVfs, name: *const c_char) -> *mut c_void {
    base!(vfs, dl_open, ptr::null_mut(), name)
}

unsafe extern "C" fn dl_error(vfs: *mut SqliteVfs, room: c_int, out: *mut c_char) {
    base!(vfs, dl_error, (), room, out);
}

unsafe extern "C" fn dl_sym(
    vfs: *mut SqliteVfs,
    library: *mut c_void,
    name: *const c_char,
) -> Symbol {
    base!(vfs, dl_sym, None, library, name)
}

unsafe extern "C" fn dl_close(vfs: *mut SqliteVfs, library: *mut c_void) {
    base!(vfs, dl_close, (), library);
}

unsafe extern "C" fn randomness(vfs: *mut SqliteVfs, room: c_int, out: *mut c_char) -> c_int {
    base!(vfs, randomness, 0, room, out)
}

unsafe extern "C" fn sleep(vfs: *mut SqliteVfs, microseconds: c_int) -> c_int {
    base!(vfs, sleep, 0, microseconds)
}

unsafe extern "C" fn current_time(vfs: *mut SqliteVfs, out: *mut f64) -> c_int {
    base!(vfs, current_time, raw::ERROR, out)
}

unsafe extern "C" fn get_last_error(vfs: *mut SqliteVfs, room: c_int, out: *mut c_char) -> c_int {
    base!(vfs, get_last_error, 0, room, out)
}

unsafe extern "C" fn current_time_int64(vfs: *mut SqliteVfs, out: *mut i64) -> c_int {
    base!(vfs, current_time_int64, raw::ERROR, out)
}

unsafe extern "C" fn set_system_call(
    vfs: *mut SqliteVfs,
    name: *const c_char,
    call: Symbol,
) -> c_int {
    base!(vfs, set_system_call, raw::NOTFOUND, name, call)
}

unsafe extern "C" fn get_system_call(vfs: *mut SqliteVfs, name: *const c_char) -> Symbol {
    base!(vfs, get_system_call, None, name)
}

unsafe extern "C" fn next_system_call(vfs: *mut SqliteVfs, name: *const c_char) -> *const c_char {
    base!(vfs, next_system_call, ptr::null(), name)
}
