//! What A has: a group, files, spaces and other things, shared by the threads of its acts.

use std::any::Any;
use std::collections::HashMap;
use std::error::Error;
use std::fmt::Debug;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::thread::{self, ThreadId};

use innerspace::{
    Accessor, DaxFile, DaxOpener, FileOpener, Group, MIB, Map, Memory, PAGE_SIZE, PagedFile, Space,
    VirtAddr,
    dax::DaxDevice,
    file::FileAccess,
    space::{AtFork, Pinned, SpaceError},
};

use crate::calls::Arguments;
use crate::foreign::{Callee, Conduct, Foreign, PANIC, Rope};

const PAGE: u64 = PAGE_SIZE as u64;

/// Mappings that are remembered.
const PLACES: usize = 16;

pub(crate) type Ended = Result<(), Box<dyn Error>>;

pub(crate) struct Held {
    pub(crate) memory: Memory,
    pub(crate) group: Group,
    pub(crate) rope: Rope,
    pub(crate) device: DaxDevice,
    folder: tempfile::TempDir,
    files: Mutex<Vec<PagedFile>>,
    spaces: Mutex<Vec<Space>>,
    places: Mutex<Vec<VirtAddr>>,
    things: Mutex<Vec<Box<dyn Any + Send>>>,
    /// What each thread does.
    under_way: Mutex<HashMap<ThreadId, String>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a panic is A's own doing.
///
/// # Errors
/// When it is not: then the library panicked.
pub(crate) fn own(panic: &(dyn Any + Send)) -> Result<(), String> {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    match text.or_else(|| panic.downcast_ref::<&str>().copied()) {
        Some(PANIC) => Ok(()),
        text => Err(format!("an act panicked: {text:?}")),
    }
}

impl Held {
    pub(crate) fn new(memory: &Memory, group: &Group) -> Held {
        Held {
            memory: memory.clone(),
            group: group.clone(),
            rope: Rope::default(),
            device: DaxDevice::memory(4 * MIB).unwrap(),
            folder: tempfile::tempdir().unwrap(),
            files: Mutex::default(),
            spaces: Mutex::default(),
            places: Mutex::default(),
            things: Mutex::default(),
            under_way: Mutex::default(),
        }
    }

    /// Notes what this thread is about to do.
    pub(crate) fn note(&self, what: &dyn Debug) {
        let own = thread::current().id();
        lock(&self.under_way).insert(own, format!("{what:?}"));
    }

    /// What a thread does, or did last.
    pub(crate) fn noted(&self, of: ThreadId) -> String {
        lock(&self.under_way).remove(&of).unwrap_or_default()
    }

    pub(crate) fn keep(&self, thing: impl Any + Send) {
        lock(&self.things).push(Box::new(thing));
    }

    /// Polls a future once, by a waker of this conduct, and keeps it.
    pub(crate) fn poll(&self, future: impl Future + Send + 'static, conduct: Conduct) {
        let mut future = Box::pin(future);
        let waker = Waker::from(Arc::new(self.callee(conduct)));
        if future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
        {
            self.keep(future);
        }
    }

    pub(crate) fn callee(&self, conduct: Conduct) -> Callee {
        Callee {
            conduct,
            rope: self.rope.clone(),
        }
    }

    pub(crate) fn options(&self) -> FileOpener {
        let options = self.memory.file_options().access(FileAccess::ReadWrite);
        options.group(&self.group)
    }

    pub(crate) fn store(&self, with: &mut Arguments) -> Foreign {
        Foreign::new(with.conduct(), with.conduct(), &self.rope).or_worse(with)
    }

    /// Opens a file on a store of A's own, and keeps it.
    pub(crate) fn foreign(
        &self,
        reads: Conduct,
        writes: Conduct,
    ) -> Result<PagedFile, Box<dyn Error>> {
        let file = self
            .options()
            .open_store(Foreign::new(reads, writes, &self.rope))?;
        self.file_of(file.clone());
        Ok(file)
    }

    pub(crate) fn file_of(&self, file: PagedFile) {
        lock(&self.files).push(file);
    }

    /// The last file, or a new one.
    pub(crate) fn file(&self) -> Result<PagedFile, Box<dyn Error>> {
        let last = lock(&self.files).last().cloned();
        last.map_or_else(|| self.foreign(Conduct::Works, Conduct::Works), Ok)
    }

    /// A few paths, of files that exist or do not.
    pub(crate) fn path(&self, with: &mut Arguments) -> PathBuf {
        let number: u64 = with.below(4);
        let path = self.folder.path().join(number.to_string());
        if number > 0 && !path.exists() {
            let _ = std::fs::write(&path, [number as u8; 70_000]);
        }
        path
    }

    pub(crate) fn dax_options(&self) -> DaxOpener {
        let options = self.memory.dax_options().access(FileAccess::ReadWrite);
        options.group(&self.group)
    }

    pub(crate) fn on(
        &self,
        device: &DaxDevice,
        with: &mut Arguments,
    ) -> Result<DaxFile, Box<dyn Error>> {
        let name = format!("direct {}", with.below(4));
        let file = self.dax_options().create_on(device, &name)?;
        file.set_len(MIB)?;
        Ok(file)
    }

    pub(crate) fn direct(&self, with: &mut Arguments) -> Result<DaxFile, Box<dyn Error>> {
        let file = self.on(&self.device, with)?;
        self.keep(file.clone());
        Ok(file)
    }

    pub(crate) fn space_of(&self, space: Space) {
        lock(&self.spaces).push(space);
    }

    pub(crate) fn space(&self) -> Result<Space, Box<dyn Error>> {
        if let Some(space) = lock(&self.spaces).last() {
            return Ok(space.clone());
        }
        let space = self.memory.create_space_in(&self.group)?;
        self.space_of(space.clone());
        Ok(space)
    }

    pub(crate) fn map(&self, map: Map) -> Result<VirtAddr, Box<dyn Error>> {
        let at = self.space()?.map(map)?;
        let mut places = lock(&self.places);
        if places.len() == PLACES {
            places.remove(0);
        }
        places.push(at);
        Ok(at)
    }

    /// An address: most often near the start of a mapping.
    pub(crate) fn at(&self, with: &mut Arguments) -> VirtAddr {
        let places = lock(&self.places);
        if places.is_empty() || with.below(16) == 0 {
            return VirtAddr(with.number());
        }
        let place = places[with.below(places.len() as u64) as usize];
        drop(places);
        let page = with.below(16) * PAGE;
        let inside = if with.below(2) == 0 {
            0
        } else {
            with.below(PAGE)
        };
        VirtAddr(place.0.saturating_add(page + inside))
    }

    /// An accessor, of a space in which something is mapped.
    pub(crate) fn accessor(&self, with: &mut Arguments) -> Result<Accessor, Box<dyn Error>> {
        if lock(&self.places).is_empty() || with.below(16) == 0 {
            self.map(Map::anonymous(MIB))?;
        }
        Ok(self.space()?.accessor()?)
    }

    pub(crate) fn pinned(&self, pages: u64) -> Result<Pinned, Box<dyn Error>> {
        let (space, at) = self.pages(pages + 2)?;
        let pin = || -> Result<Pinned, SpaceError> { space.pin(at, 2 * PAGE, AtFork::Copy) };
        Ok(pin()?)
    }

    /// New pages of anonymous memory, stored to.
    pub(crate) fn pages(&self, pages: u64) -> Result<(Space, VirtAddr), Box<dyn Error>> {
        let (at, space) = (self.map(Map::anonymous(pages * PAGE))?, self.space()?);
        let mut accessor = space.accessor()?;
        for page in 0..pages {
            accessor.store(at + page * PAGE, page)?;
        }
        Ok((space, at))
    }

    pub(crate) fn drop_half(&self) {
        let mut things = lock(&self.things);
        let half = things.len() / 2;
        let dropped: Vec<_> = things.drain(..half).collect();
        drop(things);
        for thing in dropped {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(thing)));
        }
    }

    /// Drops all that is held, one thing after the other: a file's store may panic when it is
    /// closed.
    ///
    /// # Errors
    /// When the library panicked.
    pub(crate) fn drop_all(&self) -> Result<(), String> {
        let things = std::mem::take(&mut *lock(&self.things));
        let files = std::mem::take(&mut *lock(&self.files));
        let spaces = std::mem::take(&mut *lock(&self.spaces));
        lock(&self.places).clear();
        let files = files
            .into_iter()
            .map(|file| Box::new(file) as Box<dyn Any + Send>);
        let spaces = spaces
            .into_iter()
            .map(|space| Box::new(space) as Box<dyn Any + Send>);
        let mut ended = Ok(());
        for thing in things.into_iter().chain(files).chain(spaces) {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(thing))) {
                ended = ended.and(own(&*panic));
            }
        }
        ended
    }
}
