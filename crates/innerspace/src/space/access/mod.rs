//! Accesses, and the handles to them.

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
