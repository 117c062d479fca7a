//! Page faults: how an access that finds no translation gets one.
//!
//! | file | what is in it |
//! |---|---|
//! | `anonymous`, `zero` | the space's own pages; the zero frame; the short ways to both |
//! | `driver` | one fault as steps, and cached files |
//! | `direct`, `fault_around` | direct-access files; pages mapped around the wanted one |

pub(crate) mod anonymous;
pub(crate) mod direct;
pub(crate) mod driver;
pub(crate) mod fault_around;
pub(crate) mod zero;
