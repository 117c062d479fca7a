//! The space itself, and what the other rooms need.
//!
//! | file | what is in it |
//! |---|---|
//! | `address` | pages, leaves, and the levels of the page table as numbers |
//! | `calls` | counts of calls to devices and guarded files |
//! | `error` | `SpaceError` |
//! | `fault` | `Fault`, and the cause behind one |
//! | `options` | the bits of an address, the group |
//! | `structure` | what the gate's writer lock protects: mappings, files, pins |
//! | `space` | `Space` and `SpaceInner` |

pub(crate) mod address;
pub(crate) mod calls;
pub(crate) mod error;
pub(crate) mod fault;
pub(crate) mod options;
pub(crate) mod space;
pub(crate) mod structure;
