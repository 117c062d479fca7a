//! The functions of SQLite that the VFS calls.
//!
//! A program that is linked with SQLite has them by name. An extension must not: it gets a table of
//! them from the SQLite that loads it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use super::raw::SqliteVfs;

/// `sqlite3_context`, `sqlite3_value` and `sqlite3`, of which nothing is known here.
#[repr(C)]
#[derive(Debug)]
pub struct Opaque {
    _nothing: [u8; 0],
}

pub(super) type Function = unsafe extern "C" fn(*mut Opaque, c_int, *mut *mut Opaque);

macro_rules! functions {
    ($($index:literal $name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        unsafe extern "C" {
            $(fn $name($(_: $argument),*) $(-> $result)?;)*
            fn sqlite3_log(code: c_int, format: *const c_char, ...);
            fn sqlite3_mprintf(format: *const c_char, ...) -> *mut c_char;
        }

        /// The functions, wherever they are from.
        #[allow(
            missing_debug_implementations,
            missing_docs,
            reason = "a table of functions under SQLite's own names"
        )]
        #[derive(Clone, Copy)]
        pub struct Api {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            pub sqlite3_log: unsafe extern "C" fn(c_int, *const c_char, ...),
            pub sqlite3_mprintf: unsafe extern "C" fn(*const c_char, ...) -> *mut c_char,
        }

        impl Api {
            /// Returns the functions of the SQLite that the program is linked with. It is compiled
            /// in the program that calls it, so that the extension needs no SQLite to link with.
            #[inline]
            pub fn linked() -> Api {
                Api { $($name,)* sqlite3_log, sqlite3_mprintf }
            }

            /// Returns the functions of the SQLite that loads the extension. `None` if it lacks
            /// one: it is too old.
            ///
            /// # Safety
            /// `table` is what SQLite passed to the extension's entry point.
            pub unsafe fn loaded(table: *const c_void) -> Option<Api> {
                let table = table.cast::<*const c_void>();
                // SAFETY: every table has this early entry, of this type; it takes nothing.
                let version = unsafe {
                    let version = entry(table, VERSION)?;
                    std::mem::transmute::<*const c_void, unsafe extern "C" fn() -> c_int>(version)()
                };
                if version < OLDEST {
                    return None;
                }
                // SAFETY: the table of this version has all the entries. Its order is part of
                // SQLite's stable interface, and each type is that of the function of this name.
                Some(unsafe {
                    Api {
                        $($name: std::mem::transmute::<*const c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                            entry(table, $index)?
                        ),)*
                        sqlite3_log: std::mem::transmute::<
                            *const c_void,
                            unsafe extern "C" fn(c_int, *const c_char, ...),
                        >(entry(table, LOG)?),
                        sqlite3_mprintf: std::mem::transmute::<
                            *const c_void,
                            unsafe extern "C" fn(*const c_char, ...) -> *mut c_char,
                        >(entry(table, MPRINTF)?),
                    }
                })
            }
        }
    };
}

/// The oldest SQLite that works: 3.37 of November 2021, with all the calls used here.
const OLDEST: c_int = 3_037_000;
const VERSION: usize = 67;
const MPRINTF: usize = 69;
const LOG: usize = 167;

/// # Safety
/// The table has an entry of this number.
unsafe fn entry(table: *const *const c_void, index: usize) -> Option<*const c_void> {
    // SAFETY: by the function's own rule.
    let entry = unsafe { *table.add(index) };
    (!entry.is_null()).then_some(entry)
}

// The numbers are the places in `sqlite3_api_routines` of `sqlite3ext.h`.
functions! {
    14 sqlite3_busy_timeout: fn(*mut Opaque, c_int) -> c_int;
    16 sqlite3_close: fn(*mut Opaque) -> c_int;
    53 sqlite3_errmsg: fn(*mut Opaque) -> *const c_char;
    55 sqlite3_exec: fn(
        *mut Opaque, *const c_char, Option<unsafe extern "C" fn()>, *mut c_void, *mut *mut c_char
    ) -> c_int;
    80 sqlite3_result_error: fn(*mut Opaque, *const c_char, c_int);
    85 sqlite3_result_text: fn(*mut Opaque, *const c_char, c_int, *const c_void);
    101 sqlite3_user_data: fn(*mut Opaque) -> *mut c_void;
    109 sqlite3_value_text: fn(*mut Opaque) -> *const c_char;
    127 sqlite3_file_control: fn(*mut Opaque, *const c_char, c_int, *mut c_void) -> c_int;
    141 sqlite3_vfs_find: fn(*const c_char) -> *mut SqliteVfs;
    142 sqlite3_vfs_register: fn(*mut SqliteVfs, c_int) -> c_int;
    135 sqlite3_open_v2: fn(*const c_char, *mut *mut Opaque, c_int, *const c_char) -> c_int;
    146 sqlite3_result_error_code: fn(*mut Opaque, c_int);
    149 sqlite3_context_db_handle: fn(*mut Opaque) -> *mut Opaque;
    155 sqlite3_backup_finish: fn(*mut Opaque) -> c_int;
    156 sqlite3_backup_init: fn(
        *mut Opaque, *const c_char, *mut Opaque, *const c_char
    ) -> *mut Opaque;
    159 sqlite3_backup_step: fn(*mut Opaque, c_int) -> c_int;
    162 sqlite3_create_function_v2: fn(
        *mut Opaque, *const c_char, c_int, c_int, *mut c_void, Option<Function>, Option<Function>,
        Option<unsafe extern "C" fn(*mut Opaque)>, Option<unsafe extern "C" fn(*mut c_void)>
    ) -> c_int;
    189 sqlite3_uri_parameter: fn(*const c_char, *const c_char) -> *const c_char;
    192 sqlite3_auto_extension: fn(Option<unsafe extern "C" fn()>) -> c_int;
    245 sqlite3_uri_key: fn(*const c_char, c_int) -> *const c_char;
}

impl Api {
    /// Writes a line to SQLite's log. It allocates nothing from SQLite, so any call may use it.
    pub fn log(&self, code: c_int, text: &str) {
        // SQLite cuts lines of its log after some 200 bytes.
        for line in text.lines() {
            let line = CString::new(line.replace('\0', " ")).unwrap_or_default();
            // SAFETY: the format takes one string, which ends with a zero.
            unsafe { (self.sqlite3_log)(code, c"innerspace: %s".as_ptr(), line.as_ptr()) };
        }
    }

    /// Returns a copy of a text in SQLite's own memory, which SQLite frees. Null without memory.
    pub fn text(&self, text: &str) -> *mut c_char {
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the format takes one string, which ends with a zero.
        unsafe { (self.sqlite3_mprintf)(c"%s".as_ptr(), text.as_ptr()) }
    }

    /// Returns the parameters of the URI with which a database is opened.
    ///
    /// # Safety
    /// `name` is the name that SQLite passed to `xOpen` for a database.
    pub unsafe fn parameters(&self, name: *const c_char) -> Vec<(String, String)> {
        let mut parameters = Vec::new();
        for number in 0.. {
            // SAFETY: the name is SQLite's own.
            let key = unsafe { (self.sqlite3_uri_key)(name, number) };
            if key.is_null() {
                break;
            }
            // SAFETY: the key is the name's, and texts of SQLite end with a zero.
            let value = unsafe { (self.sqlite3_uri_parameter)(name, key) };
            let text = |text: *const c_char| match text.is_null() {
                true => String::new(),
                // SAFETY: as above.
                false => unsafe { CStr::from_ptr(text) }
                    .to_string_lossy()
                    .into_owned(),
            };
            parameters.push((text(key), text(value)));
        }
        parameters
    }
}
