//! The extension, loaded into a process that has no VFS of ours.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;

use rusqlite::{Connection, LoadExtensionGuard, OpenFlags};

use crate::common::{child, collect_log, create, is_logged, role, transact, try_open, verify};

/// The extension, which cargo puts beside the test.
fn extension() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.with_file_name("libinnerspace_sqlite.so")
}

fn load(connection: &Connection) -> rusqlite::Result<()> {
    // SAFETY: the extension is ours.
    unsafe {
        let _guard = LoadExtensionGuard::new(connection)?;
        connection.load_extension(extension(), None::<&str>)
    }
}

#[test]
fn the_extension_is_loaded_and_used() {
    let test = "extension::the_extension_is_loaded_and_used";
    let Some((_, folder)) = role() else {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            child(test, "load", folder.path())
                .status()
                .unwrap()
                .success()
        );
        return;
    };
    collect_log();
    let path = folder.join("data.db");
    let loader = Connection::open_in_memory().unwrap();
    load(&loader).unwrap();

    // The first database sets the limit for all.
    let bad = try_open(&path, "innerspace", "&limit=4KiB");
    assert!(bad.is_err() && is_logged(&["(14)", "limit=4096", "choose another"]));
    let first = try_open(&path, "innerspace", "&limit=2MiB").unwrap();
    create(&first);
    let other = folder.join("other.db");
    let refused = try_open(&other, "innerspace", "&limit=3MiB");
    assert!(refused.is_err() && is_logged(&["limit=3145728", "one memory", "leave `limit` out"]));
    let second = try_open(
        &other,
        "innerspace",
        "&limit=2MiB&group=tenant&group_limit=512KiB",
    )
    .unwrap();
    create(&second);
    for n in 1..=30 {
        assert_eq!(transact(&first, "test").unwrap(), n);
        assert_eq!(transact(&second, "test").unwrap(), n);
    }
    assert_eq!((verify(&first), verify(&second)), (30, 30));

    // Loaded again, it gives the connection its functions, and leaves the memory as it is.
    let again = Connection::open_in_memory().unwrap();
    load(&again).unwrap();
    let stats: String = again
        .query_row("SELECT innerspace_stats()", [], |row| row.get(0))
        .unwrap();
    assert!(stats.contains("2.0 MiB"), "{stats}");
    assert_eq!(verify(&first), 30);
    drop(loader);
    assert_eq!(verify(&try_open(&path, "innerspace", "").unwrap()), 30);
}

#[test]
fn a_vfs_of_the_same_name_is_not_replaced() {
    crate::common::vfs();
    let connection = Connection::open_in_memory().unwrap();
    let error = load(&connection).unwrap_err();
    assert!(error.to_string().contains("registered already"), "{error}");
    let flags = OpenFlags::default();
    assert!(Connection::open_with_flags_and_vfs(":memory:", flags, "innerspace").is_ok());
}

/// The system's SQLite, beside the one that the test is linked with.
struct OtherSqlite {
    library: *mut c_void,
    connection: *mut c_void,
}

type Row = unsafe extern "C" fn(*mut c_void, c_int, *mut *mut c_char, *mut *mut c_char) -> c_int;

impl OtherSqlite {
    /// Opens a database in memory. `None` if the system has no SQLite.
    fn open() -> Option<OtherSqlite> {
        let name = c"libsqlite3.so.0".as_ptr();
        // SAFETY: the library does nothing when it is loaded.
        let library = unsafe { libc::dlopen(name, libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let mut other = (!library.is_null()).then_some(OtherSqlite {
            library,
            connection: std::ptr::null_mut(),
        })?;
        type Open = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
        // SAFETY: the function is of this type.
        let open =
            unsafe { std::mem::transmute::<*mut c_void, Open>(other.function(c"sqlite3_open")) };
        // SAFETY: the name ends with a zero.
        let code = unsafe { open(c":memory:".as_ptr(), &mut other.connection) };
        assert_eq!(code, 0);
        Some(other)
    }

    fn function(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library is open.
        let function = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        assert!(!function.is_null(), "{name:?}");
        function
    }

    fn load(&self) {
        type Enable = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
        type Load = unsafe extern "C" fn(
            *mut c_void,
            *const c_char,
            *const c_char,
            *mut *mut c_char,
        ) -> c_int;
        let path = CString::new(extension().into_os_string().into_encoded_bytes()).unwrap();
        let null = std::ptr::null_mut();
        // SAFETY: the functions are of these types, and the connection is open.
        unsafe {
            let enable = std::mem::transmute::<*mut c_void, Enable>(
                self.function(c"sqlite3_enable_load_extension"),
            );
            let load =
                std::mem::transmute::<*mut c_void, Load>(self.function(c"sqlite3_load_extension"));
            assert_eq!(enable(self.connection, 1), 0);
            assert_eq!(
                load(self.connection, path.as_ptr(), std::ptr::null(), null),
                0
            );
        }
    }

    /// Returns the first column of the last row, or SQLite's code.
    fn query(&self, sql: &CStr) -> Result<String, c_int> {
        unsafe extern "C" fn note(
            text: *mut c_void,
            _count: c_int,
            columns: *mut *mut c_char,
            _names: *mut *mut c_char,
        ) -> c_int {
            // SAFETY: `text` is the one below, and there is a column, which is no null.
            unsafe { *text.cast::<String>() = CStr::from_ptr(*columns).to_string_lossy().into() };
            0
        }
        type Exec = unsafe extern "C" fn(
            *mut c_void,
            *const c_char,
            Option<Row>,
            *mut c_void,
            *mut *mut c_char,
        ) -> c_int;
        let mut text = String::new();
        let null = std::ptr::null_mut();
        // SAFETY: the function is of this type, and the connection is open.
        let code = unsafe {
            let exec = std::mem::transmute::<*mut c_void, Exec>(self.function(c"sqlite3_exec"));
            let place = (&raw mut text).cast();
            exec(self.connection, sql.as_ptr(), Some(note), place, null)
        };
        if code == 0 { Ok(text) } else { Err(code) }
    }
}

/// The functions of each SQLite know nothing of the other's structs. The memory is one.
#[test]
fn two_sqlites_of_one_process_share_the_memory() {
    let test = "extension::two_sqlites_of_one_process_share_the_memory";
    let Some((_, folder)) = role() else {
        let folder = tempfile::tempdir().unwrap();
        let status = child(test, "load", folder.path()).status().unwrap();
        assert!(status.success(), "{status}");
        return;
    };
    let loader = Connection::open_in_memory().unwrap();
    load(&loader).unwrap();
    let path = folder.join("data.db");
    let first = try_open(&path, "innerspace", "&limit=3MiB").unwrap();
    create(&first);
    assert_eq!(transact(&first, "test").unwrap(), 1);
    let Some(other) = OtherSqlite::open() else {
        eprintln!("skipped: there is no libsqlite3.so.0");
        return;
    };
    other.load();
    let stats = other.query(c"SELECT innerspace_stats()").unwrap();
    assert!(stats.contains("3.0 MiB"), "{stats}");
    // Not open by this VFS: SQLite's own code for an error.
    assert_eq!(other.query(c"SELECT innerspace_branch('a')"), Err(1));
    let name: String = first
        .query_row("SELECT innerspace_branch('a')", [], |row| row.get(0))
        .unwrap();
    assert_eq!(name, "a");
    assert_eq!(verify(&first), 1);
}
