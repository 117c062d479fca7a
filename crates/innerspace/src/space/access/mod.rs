//! Accesses, and the handles through which programs make them.
//!
//! - `what`, `forms`: what one access needs; its two forms, one that waits and one that does not
//! - `single`: one access in one page
//! - `device`, `across`: calls to devices; values that lie in two pages
//! - `session`, `accessor`: the handles
//! - `bulk`, `gather`, `atomics`, `values`: buffers; many reads in one call; atomic accesses;
//!   values of the program's own types
//! - `layout`, `watch_code`: for programs that generate or translate code

pub(crate) mod accessor;
pub(crate) mod across;
pub(crate) mod atomics;
pub(crate) mod bulk;
pub(crate) mod device;
pub(crate) mod forms;
pub(crate) mod gather;
#[cfg(all(feature = "layout", not(shuttle)))]
pub(crate) mod layout;
pub(crate) mod session;
pub(crate) mod single;
#[cfg(feature = "zerocopy_0_8")]
mod values;
pub(crate) mod watch_code;
pub(crate) mod what;
