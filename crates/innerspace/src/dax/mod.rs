//! Direct access: files whose bytes are addressable themselves, so that no page of them is cached.
//!
//! **What it is.** A [`DaxDevice`] is a range of bytes that the process can address. An extent map says which block of the
//! device holds which page of a file, or that the page is a hole. What is stored in a block is durable once its cache lines
//! are flushed, or the host has written it out; [`Durability`] says which.
//!
//! | file | what |
//! |---|---|
//! | `device` | bytes at an address: memory, sealed files in memory, host files; flushing them |
//! | `extents` | page of a file to page of a device: in place over a sparse host file, or scattered over memory |
//! | `open` | host files: opening, what can happen to them under us |
//! | `error` | what can go wrong |
//!
//! **Locking.** The free list of a device and what an extent map knows have a mutex each, all of them leaves: with one of
//! them held nothing is called but the system. A caller of an extent map keeps others from the pages it asks about.
//!
//! **Neighbours.** Below: `sys` maps and flushes; `store` opens host files and knows their errors.
#![allow(
    dead_code,
    unused_imports,
    reason = "the files that stand on devices and extents take them into use"
)]

mod device;
mod error;
mod extents;
#[cfg(not(target_family = "wasm"))]
mod open;

pub use device::{DaxDevice, Durability};
pub use error::{DaxAction, DaxError, DaxFeature, PinHolder};
pub(crate) use extents::{Extent, ExtentMap, ScatteredMap, Used};
#[cfg(not(target_family = "wasm"))]
pub(crate) use {extents::IdentityMap, open::HostFile};
