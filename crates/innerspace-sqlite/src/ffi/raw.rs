//! SQLite's structs and numbers, as far as a VFS needs them.
//!
//! They are part of SQLite's stable interface: a newer version only appends to a struct, and says
//! so in `iVersion`. `tests/layout.rs` compares them with the header that rusqlite was made from.

use std::ffi::{c_char, c_int, c_void};

pub type Int64 = i64;

/// `sqlite3_file`: the part of an open file that SQLite knows.
#[repr(C)]
#[derive(Debug)]
pub struct SqliteFile {
    pub methods: *const IoMethods,
}

/// `sqlite3_io_methods`.
#[repr(C)]
#[derive(Debug)]
pub struct IoMethods {
    pub version: c_int,
    pub close: unsafe extern "C" fn(*mut SqliteFile) -> c_int,
    pub read: unsafe extern "C" fn(*mut SqliteFile, *mut c_void, c_int, Int64) -> c_int,
    pub write: unsafe extern "C" fn(*mut SqliteFile, *const c_void, c_int, Int64) -> c_int,
    pub truncate: unsafe extern "C" fn(*mut SqliteFile, Int64) -> c_int,
    pub sync: unsafe extern "C" fn(*mut SqliteFile, c_int) -> c_int,
    pub file_size: unsafe extern "C" fn(*mut SqliteFile, *mut Int64) -> c_int,
    pub lock: unsafe extern "C" fn(*mut SqliteFile, c_int) -> c_int,
    pub unlock: unsafe extern "C" fn(*mut SqliteFile, c_int) -> c_int,
    pub check_reserved_lock: unsafe extern "C" fn(*mut SqliteFile, *mut c_int) -> c_int,
    pub file_control: unsafe extern "C" fn(*mut SqliteFile, c_int, *mut c_void) -> c_int,
    pub sector_size: unsafe extern "C" fn(*mut SqliteFile) -> c_int,
    pub device_characteristics: unsafe extern "C" fn(*mut SqliteFile) -> c_int,
    pub shm_map:
        unsafe extern "C" fn(*mut SqliteFile, c_int, c_int, c_int, *mut *mut c_void) -> c_int,
    pub shm_lock: unsafe extern "C" fn(*mut SqliteFile, c_int, c_int, c_int) -> c_int,
    pub shm_barrier: unsafe extern "C" fn(*mut SqliteFile),
    pub shm_unmap: unsafe extern "C" fn(*mut SqliteFile, c_int) -> c_int,
    pub fetch: unsafe extern "C" fn(*mut SqliteFile, Int64, c_int, *mut *mut c_void) -> c_int,
    pub unfetch: unsafe extern "C" fn(*mut SqliteFile, Int64, *mut c_void) -> c_int,
}

/// A function that `xDlSym` returns.
pub type Symbol = Option<unsafe extern "C" fn(*mut SqliteVfs, *mut c_void, *const c_char)>;

/// `sqlite3_vfs`, version 3.
#[repr(C)]
#[derive(Debug)]
pub struct SqliteVfs {
    pub version: c_int,
    pub file_bytes: c_int,
    pub max_path: c_int,
    pub next: *mut SqliteVfs,
    pub name: *const c_char,
    pub app_data: *mut c_void,
    pub open: Option<
        unsafe extern "C" fn(
            *mut SqliteVfs,
            *const c_char,
            *mut SqliteFile,
            c_int,
            *mut c_int,
        ) -> c_int,
    >,
    pub delete: Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char, c_int) -> c_int>,
    pub access:
        Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char, c_int, *mut c_int) -> c_int>,
    pub full_pathname:
        Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char, c_int, *mut c_char) -> c_int>,
    pub dl_open: Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char) -> *mut c_void>,
    pub dl_error: Option<unsafe extern "C" fn(*mut SqliteVfs, c_int, *mut c_char)>,
    pub dl_sym: Option<unsafe extern "C" fn(*mut SqliteVfs, *mut c_void, *const c_char) -> Symbol>,
    pub dl_close: Option<unsafe extern "C" fn(*mut SqliteVfs, *mut c_void)>,
    pub randomness: Option<unsafe extern "C" fn(*mut SqliteVfs, c_int, *mut c_char) -> c_int>,
    pub sleep: Option<unsafe extern "C" fn(*mut SqliteVfs, c_int) -> c_int>,
    pub current_time: Option<unsafe extern "C" fn(*mut SqliteVfs, *mut f64) -> c_int>,
    pub get_last_error: Option<unsafe extern "C" fn(*mut SqliteVfs, c_int, *mut c_char) -> c_int>,
    pub current_time_int64: Option<unsafe extern "C" fn(*mut SqliteVfs, *mut Int64) -> c_int>,
    pub set_system_call:
        Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char, Symbol) -> c_int>,
    pub get_system_call: Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char) -> Symbol>,
    pub next_system_call:
        Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char) -> *const c_char>,
}

macro_rules! numbers {
    ($($name:ident = $value:expr;)*) => {
        $(pub const $name: c_int = $value;)*
        /// Each number with SQLite's name for it, without the prefix.
        pub const NUMBERS: &[(&str, c_int)] = &[$((stringify!($name), $name)),*];
    };
}

// SQLite's numbers, by its names without `SQLITE_`.
numbers! {
    OK = 0;
    ERROR = 1;
    INTERNAL = 2;
    BUSY = 5;
    NOMEM = 7;
    READONLY = 8;
    IOERR = 10;
    NOTFOUND = 12;
    FULL = 13;
    CANTOPEN = 14;
    PROTOCOL = 15;
    MISUSE = 21;
    NOTADB = 26;
    NOTICE = 27;
    WARNING = 28;
    IOERR_READ = IOERR | 1 << 8;
    IOERR_SHORT_READ = IOERR | 2 << 8;
    IOERR_WRITE = IOERR | 3 << 8;
    IOERR_FSYNC = IOERR | 4 << 8;
    IOERR_DIR_FSYNC = IOERR | 5 << 8;
    IOERR_TRUNCATE = IOERR | 6 << 8;
    IOERR_FSTAT = IOERR | 7 << 8;
    IOERR_UNLOCK = IOERR | 8 << 8;
    IOERR_RDLOCK = IOERR | 9 << 8;
    IOERR_DELETE = IOERR | 10 << 8;
    IOERR_NOMEM = IOERR | 12 << 8;
    IOERR_ACCESS = IOERR | 13 << 8;
    IOERR_CHECKRESERVEDLOCK = IOERR | 14 << 8;
    IOERR_LOCK = IOERR | 15 << 8;
    IOERR_CLOSE = IOERR | 16 << 8;
    IOERR_SHMOPEN = IOERR | 18 << 8;
    IOERR_SHMSIZE = IOERR | 19 << 8;
    IOERR_SHMLOCK = IOERR | 20 << 8;
    IOERR_SHMMAP = IOERR | 21 << 8;
    IOERR_DELETE_NOENT = IOERR | 23 << 8;
    READONLY_CANTINIT = READONLY | 5 << 8;
    READONLY_DIRECTORY = READONLY | 6 << 8;
    CANTOPEN_ISDIR = CANTOPEN | 2 << 8;
    OK_LOAD_PERMANENTLY = OK | 1 << 8;
    OPEN_READONLY = 0x1;
    OPEN_READWRITE = 0x2;
    OPEN_CREATE = 0x4;
    OPEN_DELETEONCLOSE = 0x8;
    OPEN_EXCLUSIVE = 0x10;
    OPEN_MAIN_DB = 0x100;
    OPEN_TEMP_DB = 0x200;
    OPEN_TRANSIENT_DB = 0x400;
    OPEN_MAIN_JOURNAL = 0x800;
    OPEN_TEMP_JOURNAL = 0x1000;
    OPEN_SUBJOURNAL = 0x2000;
    OPEN_SUPER_JOURNAL = 0x4000;
    OPEN_WAL = 0x80000;
    LOCK_NONE = 0;
    LOCK_SHARED = 1;
    LOCK_RESERVED = 2;
    LOCK_PENDING = 3;
    LOCK_EXCLUSIVE = 4;
    SYNC_NORMAL = 2;
    SYNC_FULL = 3;
    SYNC_DATAONLY = 0x10;
    ACCESS_EXISTS = 0;
    ACCESS_READWRITE = 1;
    ACCESS_READ = 2;
    SHM_UNLOCK = 1;
    SHM_LOCK = 2;
    SHM_SHARED = 4;
    SHM_EXCLUSIVE = 8;
    IOCAP_POWERSAFE_OVERWRITE = 0x1000;
    IOCAP_IMMUTABLE = 0x2000;
    IOCAP_SUBPAGE_READ = 0x8000;
    FCNTL_LOCKSTATE = 1;
    FCNTL_SIZE_HINT = 5;
    FCNTL_CHUNK_SIZE = 6;
    FCNTL_PERSIST_WAL = 10;
    FCNTL_VFSNAME = 12;
    FCNTL_POWERSAFE_OVERWRITE = 13;
    FCNTL_PRAGMA = 14;
    FCNTL_TEMPFILENAME = 16;
    FCNTL_MMAP_SIZE = 18;
    FCNTL_HAS_MOVED = 20;
    FCNTL_EXTERNAL_READER = 40;
    UTF8 = 1;
    DIRECTONLY = 0x80000;
}
