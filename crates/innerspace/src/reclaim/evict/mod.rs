//! Eviction: which frames are freed when a group must become smaller.
//!
//! | file | what is in it |
//! |---|---|
//! | [`cluster`] | frames taken off a list, aged, judged, written and evicted |
//! | [`passes`] | one call: increasingly thorough passes over the groups of a subtree |
//! | [`room`] | rounds: when to try again, when to wait for another thread, when to give up |
//! | [`aging`] | clearing accessed bits of mapped pages before memory is full |

mod aging;
mod cluster;
mod passes;
mod room;

pub(super) use aging::age_if_due;
pub(super) use room::Rounds;
