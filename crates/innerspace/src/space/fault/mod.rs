//! What an access does that finds no translation.
//!
//! | file | what is in it |
//! |---|---|
//! | `anonymous`, `zero` | pages of the space's own; the zero frame; the short ways of both |
//! | `driver` | one fault as steps, and cached files |
//! | `direct`, `fault_around` | direct access files; the pages around that of a file |

pub(crate) mod anonymous;
pub(crate) mod direct;
pub(crate) mod driver;
pub(crate) mod fault_around;
pub(crate) mod zero;
