//! SQL functions, which every connection of the program gets.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use super::api::{Api, Function, Opaque};
use super::methods::{BRANCH, CallOfBranch};
use super::raw;
use super::write_back::write_back_to;
use crate::error::{Failure, Outcome};
use crate::file::{BranchAnswer, BranchCall};

/// How many SQLites of one process can have the functions.
const SQLITES: usize = 4;

/// The functions of each SQLite of the process: the program may be linked with one, and a library
/// of it with another, and both may load the extension. A function of SQL needs those of its own
/// SQLite, and gets no pointer of ours without them; so there is one for each place.
static APIS: [OnceLock<Api>; SQLITES] = [const { OnceLock::new() }; SQLITES];

/// A destructor that tells SQLite to copy a text.
const COPY: *const c_void = usize::MAX as *const c_void;

/// A function's name, the number of its arguments, and the function itself.
type Named = (&'static CStr, c_int, Function);

type Entry = unsafe extern "C" fn(*mut Opaque, *mut *mut c_char, *const c_void) -> c_int;

/// The functions of the SQLite at place `N`.
struct Functions<const N: usize>;

impl<const N: usize> Functions<N> {
    /// Each function, and the number of its arguments.
    const ALL: [Named; 5] = [
        (c"innerspace_stats", 0, stats::<N>),
        (c"innerspace_branch", 1, begin::<N>),
        (c"innerspace_diff", 1, changes::<N>),
        (c"innerspace_discard", 1, discard::<N>),
        (c"innerspace_commit", 1, commit::<N>),
    ];

    unsafe extern "C" fn add_at_opening(
        connection: *mut Opaque,
        _error: *mut *mut c_char,
        _table: *const c_void,
    ) -> c_int {
        let Some(api) = APIS[N].get() else {
            return raw::OK;
        };
        add_all(connection, api, &Self::ALL).map_or_else(|code| code, |()| raw::OK)
    }
}

/// The entry and the functions of each place.
const PLACES: [(Entry, &[Named]); SQLITES] = [
    (Functions::<0>::add_at_opening, &Functions::<0>::ALL),
    (Functions::<1>::add_at_opening, &Functions::<1>::ALL),
    (Functions::<2>::add_at_opening, &Functions::<2>::ALL),
    (Functions::<3>::add_at_opening, &Functions::<3>::ALL),
];

/// Returns the place of a SQLite, and whether it is new. `None` if all are taken by others.
fn place_of(api: Api) -> Option<(usize, bool)> {
    let is_same = |other: &Api| std::ptr::fn_addr_eq(other.sqlite3_vfs_find, api.sqlite3_vfs_find);
    APIS.iter().enumerate().find_map(|(number, place)| {
        let mut is_new = false;
        let taken = place.get_or_init(|| {
            is_new = true;
            api
        });
        is_same(taken).then_some((number, is_new))
    })
}

/// Gives the functions to every connection that is opened from now on. If there are too many
/// SQLites, their connections lack them.
pub(super) fn add_to_all(api: Api) {
    if let Some((number, true)) = place_of(api) {
        let (entry, _) = PLACES[number];
        // SAFETY: SQLite calls the entry with the arguments of an extension's. If there is no
        // memory to note it, connections lack the functions.
        unsafe {
            (api.sqlite3_auto_extension)(Some(
                std::mem::transmute::<Entry, unsafe extern "C" fn()>(entry),
            ))
        };
    }
}

/// Adds the functions to a connection.
///
/// # Errors
/// SQLite's result code.
pub(super) fn add(connection: *mut Opaque, api: Api) -> Result<(), c_int> {
    match place_of(api) {
        Some((number, _)) => add_all(connection, &api, PLACES[number].1),
        None => Err(raw::ERROR),
    }
}

fn add_all(connection: *mut Opaque, api: &Api, functions: &[Named]) -> Result<(), c_int> {
    for (name, arguments, function) in functions {
        let flags = raw::UTF8 | raw::DIRECTONLY;
        // SAFETY: the connection is SQLite's own, and the functions are there for ever.
        let code = unsafe {
            (api.sqlite3_create_function_v2)(
                connection,
                name.as_ptr(),
                *arguments,
                flags,
                ptr::null_mut(),
                Some(*function),
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
unsafe fn answer<const N: usize>(
    call: *mut Opaque,
    count: c_int,
    arguments: *mut *mut Opaque,
    compute: impl FnOnce(&Call) -> Outcome<String>,
) {
    let Some(api) = APIS[N].get().copied() else {
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
                // SQLite's code of the failure, with the text of ours.
                (api.sqlite3_result_error_code)(call, failure.code);
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

/// Calls the main database of a connection. Returns the answer, and the name of its VFS.
pub(super) fn ask(
    api: Api,
    connection: *mut Opaque,
    call: BranchCall<'_>,
) -> Outcome<(BranchAnswer, CString)> {
    let mut call = CallOfBranch::new(call);
    // SAFETY: only our files know the operation, and they expect an argument of this type.
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
unsafe extern "C" fn stats<const N: usize>(
    call: *mut Opaque,
    count: c_int,
    arguments: *mut *mut Opaque,
) {
    let compute = |call: &Call| match call.main(BranchCall::Stats) {
        Ok((BranchAnswer::Text(text), _)) => Ok(text),
        _ => super::extension::stats(),
    };
    // SAFETY: the arguments are SQLite's.
    unsafe { answer::<N>(call, count, arguments, compute) }
}

/// `innerspace_branch(name)`: makes a branch of the main database, and returns its name.
unsafe extern "C" fn begin<const N: usize>(
    call: *mut Opaque,
    count: c_int,
    arguments: *mut *mut Opaque,
) {
    let compute = |call: &Call| {
        call.main(BranchCall::Begin(&call.argument, None))?;
        Ok(call.argument.clone())
    };
    // SAFETY: the arguments are SQLite's.
    unsafe { answer::<N>(call, count, arguments, compute) }
}

/// `innerspace_diff(name)`: the numbers of the pages that a branch has changed, with commas
/// between.
unsafe extern "C" fn changes<const N: usize>(
    call: *mut Opaque,
    count: c_int,
    arguments: *mut *mut Opaque,
) {
    let compute = |call: &Call| match call.main(BranchCall::Changes(&call.argument))? {
        (BranchAnswer::Pages(pages), _) => {
            let pages: Vec<_> = pages.iter().map(u32::to_string).collect();
            Ok(pages.join(","))
        }
        _ => Ok(String::new()),
    };
    // SAFETY: the arguments are SQLite's.
    unsafe { answer::<N>(call, count, arguments, compute) }
}

/// `innerspace_discard(name)`: ends a branch.
unsafe extern "C" fn discard<const N: usize>(
    call: *mut Opaque,
    count: c_int,
    arguments: *mut *mut Opaque,
) {
    let compute = |call: &Call| {
        call.main(BranchCall::Discard(&call.argument))?;
        Ok(call.argument.clone())
    };
    // SAFETY: the arguments are SQLite's.
    unsafe { answer::<N>(call, count, arguments, compute) }
}

/// `innerspace_commit(name)`: writes a branch back to the main database, its parent.
unsafe extern "C" fn commit<const N: usize>(
    call: *mut Opaque,
    count: c_int,
    arguments: *mut *mut Opaque,
) {
    let compute = |call: &Call| {
        // This takes a connection of its own, because this one may be reading.
        if let (BranchAnswer::Path(path), vfs) = call.main(BranchCall::Name)? {
            write_back_to(call.api, Path::new(&path), &vfs, &call.argument)?;
        }
        Ok(call.argument.clone())
    };
    // SAFETY: the arguments are SQLite's.
    unsafe { answer::<N>(call, count, arguments, compute) }
}
