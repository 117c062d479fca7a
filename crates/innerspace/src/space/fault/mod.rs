//! What an access does that finds no translation.
//!
//! | file | what is in it |
//! |---|---|
//! | `anonymous`, `zero` | pages of the space's own; the zero frame; the short ways of both |
//! | `driver` | one fault as steps, and cached files |
//! | `direct`, `fault_around` | direct access files; the pages around that of a file |

pub(in crate::space) mod anonymous;
pub(in crate::space) mod direct;
pub(in crate::space) mod driver;
pub(in crate::space) mod fault_around;
pub(in crate::space) mod zero;
