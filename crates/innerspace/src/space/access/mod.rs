//! Accesses, and the handles to them.

pub(in crate::space) mod accessor;
pub(in crate::space) mod across;
pub(in crate::space) mod atomics;
pub(in crate::space) mod bulk;
pub(in crate::space) mod device;
pub(in crate::space) mod forms;
pub(in crate::space) mod gather;
pub(in crate::space) mod session;
pub(in crate::space) mod single;
#[cfg(feature = "zerocopy_0_8")]
mod values;
pub(in crate::space) mod what;
