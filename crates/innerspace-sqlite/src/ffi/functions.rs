//! SQL functions.

use std::ffi::{CStr, CString, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use super::api::{Api, Opaque};
use super::raw;
use crate::system::System;

/// What a function knows.
struct Context {
    api: Api,
    system: Arc<System>,
}

/// The functions of the SQLite that the extension was loaded by: a function of SQL gets no pointer
/// of ours without them.
static API: OnceLock<Api> = OnceLock::new();

/// A destructor that tells SQLite to copy a text.
const COPY: *const c_void = usize::MAX as *const c_void;

/// Adds the functions to a connection.
///
/// # Errors
/// SQLite's result code.
pub(super) fn add(connection: *mut Opaque, api: Api, system: &Arc<System>) -> Result<(), c_int> {
    add_one(connection, api, system, c"innerspace_stats", 0, stats)
}

fn add_one(
    connection: *mut Opaque,
    api: Api,
    system: &Arc<System>,
    name: &CStr,
    arguments: c_int,
    function: super::api::Function,
) -> Result<(), c_int> {
    API.get_or_init(|| api);
    let system = system.clone();
    let context = Box::into_raw(Box::new(Context { api, system }));
    let flags = raw::UTF8 | raw::DIRECTONLY;
    // SAFETY: the connection is SQLite's own, and it calls `forget` once, even if it fails.
    let code = unsafe {
        (api.sqlite3_create_function_v2)(
            connection,
            name.as_ptr(),
            arguments,
            flags,
            context.cast(),
            Some(function),
            None,
            None,
            Some(forget),
        )
    };
    match code {
        raw::OK => Ok(()),
        code => Err(code),
    }
}

unsafe extern "C" fn forget(context: *mut c_void) {
    // SAFETY: `add_one` made it, and SQLite is done with it.
    drop(unsafe { Box::from_raw(context.cast::<Context>()) });
}

/// Computes a text and makes it the function's result.
///
/// # Safety
/// `call` is the context that SQLite passed to a function of `add_one`.
unsafe fn answer(call: *mut Opaque, compute: impl FnOnce(&Context) -> Result<String, String>) {
    let Some(api) = API.get() else { return };
    // SAFETY: the context is that of `add_one`, and lives as long as the function.
    let context = unsafe { &*(api.sqlite3_user_data)(call).cast::<Context>() };
    let api = context.api;
    let result = catch_unwind(AssertUnwindSafe(|| compute(context)));
    let result = result.unwrap_or_else(|_| Err("a panic; please report it".to_owned()));
    let text = |text: String| CString::new(text.replace('\0', " ")).unwrap_or_default();
    // SAFETY: by the function's own rule; SQLite copies the texts.
    unsafe {
        match result {
            Ok(result) => (api.sqlite3_result_text)(call, text(result).as_ptr(), -1, COPY),
            Err(error) => (api.sqlite3_result_error)(call, text(error).as_ptr(), -1),
        }
    }
}

/// `innerspace_stats()`: what the memory is used for, as a text.
unsafe extern "C" fn stats(call: *mut Opaque, _: c_int, _: *mut *mut Opaque) {
    // SAFETY: the call is SQLite's.
    unsafe {
        answer(call, |context| {
            let memory = context.system.memory(None);
            let memory = memory.map_err(|failure| failure.reason)?;
            Ok(memory.stats().to_string())
        });
    }
}
