//! The work of the service thread (or `tick`) between requests.
//!
//! [`state`] has the watermarks, the clock and the sleep of the service thread. [`steps`] has the
//! work itself.

mod state;
mod steps;

pub(super) use state::Background;
pub(crate) use steps::{LeftFlush, Step};
