//! Accesses, and the handles to them.
//!
//! | file | what is in it |
//! |---|---|
//! | `what`, `forms` | what one access wants; its two forms, one that waits and one that does not |
//! | `single` | one access in one page |
//! | `device`, `across` | calls of devices; values that lie in two pages |
//! | `session`, `accessor` | the handles |
//! | `bulk`, `gather`, `atomics`, `values` | buffers; many reads at once; atomic accesses; types of a program's own |
//! | `layout`, `watch_code` | for programs that generate code, or translate it |

pub(in crate::space) mod accessor;
pub(in crate::space) mod across;
pub(in crate::space) mod atomics;
pub(in crate::space) mod bulk;
pub(in crate::space) mod device;
pub(in crate::space) mod forms;
pub(in crate::space) mod gather;
#[cfg(all(feature = "layout", not(shuttle)))]
pub(in crate::space) mod layout;
pub(in crate::space) mod session;
pub(in crate::space) mod single;
#[cfg(feature = "zerocopy_0_8")]
mod values;
pub(in crate::space) mod watch_code;
pub(in crate::space) mod what;
