//! Which types may be sent to other threads, and shared with them, as their documentation says.

use innerspace::dax::{DaxDevice, DaxPin};
use innerspace::file::{BlockReader, Ready, ScatterView};
use innerspace::group::{GroupError, GroupWatch, LimitError};
use innerspace::space::{Fault, PageView, Pinned, Region, Snapshot, SpaceReady};
use innerspace::{Accessor, DaxFile, Group, Memory, PagedFile, Space, Task, View};

fn is_sent<T: Send>() {}
fn is_shared<T: Send + Sync>() {}

#[test]
fn handles_are_shared_by_threads_and_what_one_thread_uses_is_sent() {
    is_shared::<(Memory, Group, GroupWatch)>();
    is_shared::<(PagedFile, View, ScatterView)>();
    is_shared::<(Space, Region, Snapshot, PageView)>();
    is_shared::<(DaxFile, DaxDevice)>();
    is_shared::<(LimitError, GroupError, Fault)>();
    is_sent::<(Accessor, Pinned, DaxPin, BlockReader)>();
    is_sent::<(Ready, SpaceReady, Task<u64, innerspace::file::FileError>)>();
}
