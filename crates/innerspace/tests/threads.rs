//! Which types may be sent to other threads, and shared with them, as their documentation says, and
//! what can be done with every error and every small value.

use std::error::Error;
use std::fmt::Debug;
use std::hash::Hash;

use innerspace::dax::{DaxDevice, DaxPin, DaxStats, Durability, HoleWrites, OnShrink};
use innerspace::error::{
    AccessKind, CloseError, DaxAction, DaxError, DaxFeature, DeviceError, Explanation, Fault,
    FaultKind, FileError, FileOpenError, GroupError, HeldReason, KnownSince, LimitError,
    LimitReason, MemoryError, OpenError, ParseVirtAddrError, PinHolder, SnapshotFileError,
    SpaceError, StoreAction, StoreError, StoreErrorKind,
};
use innerspace::file::{
    Array, BlockReader, Chunks, Cursor, FileAccess, FileStats, Reading, Ready, ScatterView,
    WriteOrder,
};
use innerspace::group::{GroupEvents, GroupStats, GroupWatch, Pressure};
use innerspace::space::{
    AddressWidth, Advice, AtFork, MappingInfo, MappingKind, PageView, Pinned, Protection, Region,
    Remap, Sharing, Snapshot, SpaceOptions, SpaceReady, SpaceStats,
};
use innerspace::store::{
    Accepted, Batch, CacheMode, FileEngine, FileLock, FileOptions, FileStore, Identity, Limits,
    LockHolder, MemoryStore, Operation, Request, SyncWhat, Version,
};
use innerspace::{
    Accessor, ByteSize, DaxFile, DaxOpener, EvictionPolicy, FileOpener, Group, Grouped, Limit, Map,
    Memory, MemoryBuilder, MemoryStats, PageCount, PagedFile, Space, Task, Threads, TimedOut, View,
    VirtAddr,
};

fn is_sent<T: Send>() {}
fn is_an_error<T: Error + Into<std::io::Error> + Send + Sync + 'static>() {}
fn is_a_value<T: Copy + Eq + Hash + Debug + Send + Sync>() {}
fn is_shared<T: Send + Sync>() {}

#[test]
fn handles_are_shared_by_threads_and_what_one_thread_uses_is_sent() {
    is_shared::<(Memory, Group, GroupWatch)>();
    is_shared::<(PagedFile, View, ScatterView)>();
    is_shared::<(Space, Region, Snapshot, PageView)>();
    is_shared::<(DaxFile, DaxDevice)>();
    is_shared::<(FileStore, MemoryStore, Array<u32>)>();
    is_shared::<(FileOpener, DaxOpener, FileOptions, MemoryBuilder)>();
    is_shared::<(SpaceOptions, Map, Limit)>();
    is_shared::<(MemoryStats, GroupStats, GroupEvents, Pressure)>();
    is_shared::<(FileStats, DaxStats, SpaceStats, MappingInfo)>();
    is_shared::<(LimitError, GroupError, Fault)>();
    is_sent::<(Accessor, Pinned, DaxPin, BlockReader)>();
    is_sent::<(Cursor, Cursor<DaxFile>, Chunks, Request, Batch)>();
    is_sent::<(Ready, SpaceReady, Task<u64, innerspace::file::FileError>)>();
}

#[test]
fn every_error_can_be_sent_and_kept() {
    is_an_error::<MemoryError>();
    is_an_error::<OpenError>();
    is_an_error::<FileOpenError>();
    is_an_error::<FileError>();
    is_an_error::<CloseError>();
    is_an_error::<DaxError>();
    is_an_error::<SpaceError>();
    is_an_error::<Fault>();
    is_an_error::<FaultKind>();
    is_an_error::<Explanation>();
    is_an_error::<SnapshotFileError>();
    is_an_error::<GroupError>();
    is_an_error::<LimitError>();
    is_an_error::<StoreError>();
    is_an_error::<DeviceError>();
    is_an_error::<ParseVirtAddrError>();
    is_an_error::<TimedOut>();
}

#[test]
fn what_is_copied_is_compared_and_hashed_too() {
    is_a_value::<(VirtAddr, PageCount, ByteSize, Grouped)>();
    is_a_value::<(Threads, TimedOut, EvictionPolicy)>();
    is_a_value::<(FileAccess, Reading, WriteOrder, HeldReason, StoreAction)>();
    is_a_value::<(AddressWidth, Advice, AtFork, MappingKind, Protection, Remap)>();
    is_a_value::<(Sharing, Fault, FaultKind, AccessKind)>();
    is_a_value::<(
        Durability,
        HoleWrites,
        OnShrink,
        DaxAction,
        DaxFeature,
        PinHolder,
    )>();
    is_a_value::<(Accepted, CacheMode, FileEngine, FileLock, Identity, Limits)>();
    is_a_value::<(LockHolder, Operation, SyncWhat, Version)>();
    is_a_value::<(KnownSince, LimitReason, StoreErrorKind)>();
}
