//! The entry point of the loadable extension.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use super::api::{Api, Opaque};
use super::{functions, install, raw};
use crate::NAME;
use crate::error::{Failure, Outcome};
use crate::system::System;

/// The system of the extension: one for the process, however often it is loaded, and by however
/// many SQLites.
static SYSTEM: Mutex<Option<Arc<System>>> = Mutex::new(None);

/// What SQLite calls when it loads the extension: it registers the VFS `innerspace`, and gives the
/// connection its functions.
///
/// # Safety
/// Only SQLite calls it, with its own arguments.
#[unsafe(no_mangle)]
#[allow(unreachable_pub, reason = "SQLite finds it by its name")]
pub unsafe extern "C" fn sqlite3_innerspacesqlite_init(
    connection: *mut Opaque,
    error: *mut *mut c_char,
    table: *const c_void,
) -> c_int {
    // SAFETY: the table is SQLite's own.
    let Some(api) = (unsafe { Api::loaded(table) }) else {
        return raw::ERROR;
    };
    match load(connection, api) {
        Ok(()) => raw::OK_LOAD_PERMANENTLY,
        Err(text) => {
            api.log(raw::ERROR, &text);
            // SAFETY: SQLite gives a place for a text in its own memory, or null.
            if let Some(error) = unsafe { error.as_mut() } {
                *error = api.text(&text);
            }
            raw::ERROR
        }
    }
}

fn load(connection: *mut Opaque, api: Api) -> Result<(), String> {
    let mut system = SYSTEM.lock().unwrap_or_else(PoisonError::into_inner);
    let name = CString::new(NAME).unwrap_or_default();
    // SAFETY: the name ends with a zero.
    let is_registered = !unsafe { (api.sqlite3_vfs_find)(name.as_ptr()) }.is_null();
    let own = match (&*system, is_registered) {
        (None, true) => {
            return Err(format!(
                "a VFS named {NAME} is registered already, by another copy of this library; use \
                 that one, or do not load this"
            ));
        }
        (Some(own), _) => own.clone(),
        (None, false) => Arc::new(System::new(None, None, None)),
    };
    if !is_registered {
        install(api, own.clone(), name, false)
            .map_err(|code| format!("SQLite refused the VFS with code {code}"))?;
    }
    *system = Some(own);
    functions::add(connection, api)
        .map_err(|code| format!("SQLite refused the functions with code {code}"))
}

/// The counters of the extension's memory.
pub(super) fn stats() -> Outcome<String> {
    let system = SYSTEM
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let none = || Failure::new(raw::ERROR, "this connection uses no memory of innerspace");
    let memory = system.ok_or_else(none)?.memory(None)?;
    Ok(memory.stats().to_string())
}
