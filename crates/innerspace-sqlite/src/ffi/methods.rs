//! The methods of an open file, as SQLite calls them.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::slice;

use super::raw::{self, IoMethods, SqliteFile};
use super::vfs::{App, answer};
use crate::error::{Failure, Outcome};
use crate::file::{BranchAnswer, BranchCall, Control, OpenFile};

/// An open file, in memory that SQLite gives.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Handle {
    base: SqliteFile,
    app: *const App,
    file: *mut Box<dyn OpenFile>,
}

static METHODS: IoMethods = IoMethods {
    version: 3,
    close,
    read,
    write,
    truncate,
    sync,
    file_size,
    lock,
    unlock,
    check_reserved_lock,
    file_control,
    sector_size,
    device_characteristics,
    shm_map,
    shm_lock,
    shm_barrier,
    shm_unmap,
    fetch,
    unfetch,
};

/// The file control with which a connection's functions reach its database. Numbers above 100 are
/// for the use of a VFS.
pub(super) const BRANCH: c_int = 0x494e_5301;

/// Its address tells our argument from the argument of a stranger who has chosen the same number,
/// and from that of another copy of this library in the process.
static MARK: u64 = 0;

/// The argument of [`BRANCH`].
#[repr(C)]
pub(super) struct CallOfBranch<'a> {
    #[allow(
        dead_code,
        reason = "it is read by a pointer to all of it, before the rest is believed"
    )]
    mark: *const u64,
    pub(super) call: BranchCall<'a>,
    pub(super) answer: Outcome<BranchAnswer>,
    /// The name of the VFS that has answered.
    pub(super) vfs: CString,
}

impl<'a> CallOfBranch<'a> {
    pub(super) fn new(call: BranchCall<'a>) -> CallOfBranch<'a> {
        CallOfBranch {
            mark: &raw const MARK,
            call,
            answer: Err(Failure::new(raw::NOTFOUND, "")),
            vfs: CString::default(),
        }
    }
}

/// Makes an open file of the memory that SQLite gave for one.
///
/// # Safety
/// `at` has room for a `Handle`, and no file is open there.
pub(super) unsafe fn begin(at: *mut SqliteFile, app: &App, file: Box<dyn OpenFile>) {
    let handle = Handle {
        base: SqliteFile { methods: &METHODS },
        app,
        file: Box::into_raw(Box::new(file)),
    };
    // SAFETY: by the function's own rule.
    unsafe { at.cast::<Handle>().write(handle) };
}

/// Makes a call on an open file.
///
/// # Safety
/// `file` is one that `begin` made and that is open. SQLite makes one call at a time on it.
unsafe fn with(
    file: *mut SqliteFile,
    call: impl FnOnce(&mut dyn OpenFile, &App) -> Outcome<c_int>,
) -> c_int {
    // SAFETY: by the function's own rule.
    let (file, app) = unsafe {
        let handle = &*file.cast::<Handle>();
        (&mut **handle.file, &*handle.app)
    };
    answer(app, || call(file, app))
}

/// Returns an offset or a length of SQLite's, which is never negative.
fn bytes(number: i64) -> Outcome<u64> {
    u64::try_from(number).map_err(|_| Failure::new(raw::MISUSE, "a negative offset or length"))
}

unsafe extern "C" fn close(file: *mut SqliteFile) -> c_int {
    // SAFETY: the file is open, and is not used afterwards.
    let (app, open) = unsafe {
        (*file).methods = ptr::null();
        let handle = &*file.cast::<Handle>();
        (&*handle.app, Box::from_raw(handle.file))
    };
    answer(app, || {
        drop(open);
        Ok(raw::OK)
    })
}

unsafe extern "C" fn read(file: *mut SqliteFile, buf: *mut c_void, len: c_int, at: i64) -> c_int {
    let call = |file: &mut dyn OpenFile, _: &App| {
        let len = bytes(len.into())? as usize;
        // SAFETY: SQLite gives a buffer of this length.
        let buf = unsafe { slice::from_raw_parts_mut(buf.cast::<u8>(), len) };
        let read = file.read(buf, bytes(at)?)?;
        if read < len {
            buf[read..].fill(0);
            return Ok(raw::IOERR_SHORT_READ);
        }
        Ok(raw::OK)
    };
    // SAFETY: the file is open.
    unsafe { with(file, call) }
}

unsafe extern "C" fn write(
    file: *mut SqliteFile,
    buf: *const c_void,
    len: c_int,
    at: i64,
) -> c_int {
    let call = |file: &mut dyn OpenFile, _: &App| {
        let len = bytes(len.into())? as usize;
        // SAFETY: SQLite gives this many bytes.
        let buf = unsafe { slice::from_raw_parts(buf.cast::<u8>(), len) };
        file.write(buf, bytes(at)?)?;
        Ok(raw::OK)
    };
    // SAFETY: the file is open.
    unsafe { with(file, call) }
}

unsafe extern "C" fn truncate(file: *mut SqliteFile, len: i64) -> c_int {
    // SAFETY: the file is open.
    unsafe { with(file, |file, _| file.truncate(bytes(len)?).map(|()| raw::OK)) }
}

unsafe extern "C" fn sync(file: *mut SqliteFile, flags: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe { with(file, |file, _| file.sync(flags).map(|()| raw::OK)) }
}

unsafe extern "C" fn file_size(file: *mut SqliteFile, out: *mut i64) -> c_int {
    let call = |file: &mut dyn OpenFile, _: &App| {
        let len = file.len()?;
        // SAFETY: SQLite gives a place.
        unsafe { *out = len as i64 };
        Ok(raw::OK)
    };
    // SAFETY: the file is open.
    unsafe { with(file, call) }
}

unsafe extern "C" fn lock(file: *mut SqliteFile, level: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe { with(file, |file, _| file.lock(level).map(|()| raw::OK)) }
}

unsafe extern "C" fn unlock(file: *mut SqliteFile, level: c_int) -> c_int {
    // SAFETY: the file is open.
    unsafe { with(file, |file, _| file.unlock(level).map(|()| raw::OK)) }
}

unsafe extern "C" fn check_reserved_lock(file: *mut SqliteFile, out: *mut c_int) -> c_int {
    let call = |file: &mut dyn OpenFile, _: &App| {
        let is_reserved = file.is_reserved()?;
        // SAFETY: SQLite gives a place.
        unsafe { *out = c_int::from(is_reserved) };
        Ok(raw::OK)
    };
    // SAFETY: the file is open.
    unsafe { with(file, call) }
}

unsafe extern "C" fn file_control(
    file: *mut SqliteFile,
    operation: c_int,
    argument: *mut c_void,
) -> c_int {
    /// The argument as the operation's type.
    ///
    /// # Safety
    /// SQLite passes a pointer to this type for the operation.
    unsafe fn of<'a, T>(argument: *mut c_void) -> &'a mut T {
        // SAFETY: by the function's own rule.
        unsafe { &mut *argument.cast::<T>() }
    }
    let call = |file: &mut dyn OpenFile, app: &App| {
        // SAFETY: each operation has the type that SQLite's page on file controls gives it.
        let control = unsafe {
            match operation {
                raw::FCNTL_LOCKSTATE => Control::LockState(of(argument)),
                raw::FCNTL_SIZE_HINT => Control::SizeHint(*of(argument)),
                raw::FCNTL_CHUNK_SIZE => Control::ChunkSize(*of(argument)),
                raw::FCNTL_PERSIST_WAL => Control::PersistWal(of(argument)),
                raw::FCNTL_POWERSAFE_OVERWRITE => Control::PowersafeOverwrite(of(argument)),
                raw::FCNTL_MMAP_SIZE => Control::MmapSize(of(argument)),
                raw::FCNTL_HAS_MOVED => Control::HasMoved(of(argument)),
                raw::FCNTL_EXTERNAL_READER => Control::ExternalReader(of(argument)),
                raw::FCNTL_VFSNAME => {
                    *of::<*mut c_char>(argument) = app.api.text(&app.name.to_string_lossy());
                    return Ok(raw::OK);
                }
                BRANCH if !argument.is_null() && *of::<*const u64>(argument) == &raw const MARK => {
                    let call = of::<CallOfBranch<'_>>(argument);
                    call.vfs = app.name.clone();
                    call.answer = file.branch(call.call.clone());
                    return Ok(raw::OK);
                }
                _ => return Ok(raw::NOTFOUND),
            }
        };
        match file.control(control)? {
            true => Ok(raw::OK),
            false => Ok(raw::NOTFOUND),
        }
    };
    // SAFETY: the file is open.
    unsafe { with(file, call) }
}

unsafe extern "C" fn sector_size(file: *mut SqliteFile) -> c_int {
    // SAFETY: the file is open.
    unsafe { with(file, |file, _| Ok(file.sector_size())) }
}

unsafe extern "C" fn device_characteristics(file: *mut SqliteFile) -> c_int {
    // SAFETY: the file is open.
    unsafe { with(file, |file, _| Ok(file.characteristics())) }
}

unsafe extern "C" fn shm_map(
    file: *mut SqliteFile,
    region: c_int,
    len: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: SQLite gives a place.
    unsafe { *out = ptr::null_mut() };
    let call = |file: &mut dyn OpenFile, _: &App| {
        let (number, len) = (bytes(region.into())?, bytes(len.into())?);
        let region = file.shm_map(number as usize, len as usize, extend != 0)?;
        let start = region.start.map_or(ptr::null_mut(), NonNull::as_ptr);
        // SAFETY: as above.
        unsafe { *out = start.cast() };
        Ok(match region.is_read_only {
            true => raw::READONLY,
            false => raw::OK,
        })
    };
    // SAFETY: the file is open.
    unsafe { with(file, call) }
}

unsafe extern "C" fn shm_lock(
    file: *mut SqliteFile,
    first: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    let call = |file: &mut dyn OpenFile, _: &App| {
        let locks = 0..=8;
        if !locks.contains(&first) || !locks.contains(&(first + count)) {
            return Err(Failure::new(raw::IOERR_SHMLOCK, "there is no such lock"));
        }
        file.shm_lock(first as u8, count as u8, flags)?;
        Ok(raw::OK)
    };
    // SAFETY: the file is open.
    unsafe { with(file, call) }
}

unsafe extern "C" fn shm_barrier(file: *mut SqliteFile) {
    let call = |file: &mut dyn OpenFile, _: &App| {
        file.shm_barrier();
        Ok(raw::OK)
    };
    // SAFETY: the file is open.
    unsafe { with(file, call) };
}

unsafe extern "C" fn shm_unmap(file: *mut SqliteFile, delete: c_int) -> c_int {
    let call = |file: &mut dyn OpenFile, _: &App| file.shm_unmap(delete != 0).map(|()| raw::OK);
    // SAFETY: the file is open.
    unsafe { with(file, call) }
}

unsafe extern "C" fn fetch(
    file: *mut SqliteFile,
    at: i64,
    len: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: SQLite gives a place.
    unsafe { *out = ptr::null_mut() };
    let call = |file: &mut dyn OpenFile, _: &App| {
        let start = file.fetch(bytes(at)?, bytes(len.into())? as usize)?;
        // SAFETY: as above.
        unsafe { *out = start.map_or(ptr::null_mut(), NonNull::as_ptr).cast() };
        Ok(raw::OK)
    };
    // SAFETY: the file is open.
    unsafe { with(file, call) }
}

unsafe extern "C" fn unfetch(file: *mut SqliteFile, _at: i64, pointer: *mut c_void) -> c_int {
    let call = |file: &mut dyn OpenFile, _: &App| {
        file.unfetch(NonNull::new(pointer.cast()));
        Ok(raw::OK)
    };
    // SAFETY: the file is open.
    unsafe { with(file, call) }
}
