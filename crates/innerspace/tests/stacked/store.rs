//! Stores made of files.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use innerspace::store::{Identity, MemoryStore, Store, SyncWhat};
use innerspace::{
    Map, Memory, PagedFile, Space, View, VirtAddr,
    file::{FileAccess, FileError},
    space::{Fault, FaultKind},
};

use crate::PAGE;
use crate::notes;
use crate::program::Random;

/// Objects that the program's threads leave here, for the store's calls to use.
pub(crate) struct Around {
    pub(crate) memory: Memory,
    /// A file in which no other file is stored.
    pub(crate) apart: PagedFile,
    pub(crate) views: Mutex<Vec<View>>,
    pub(crate) spaces: Mutex<Vec<Space>>,
    pub(crate) handles: Mutex<Vec<PagedFile>>,
    /// Whether calls fail now and then.
    pub(crate) failing: AtomicBool,
}

/// Takes an object, and unlocks the list: dropping the object may call stores.
pub(crate) fn take_one<T>(of: &Mutex<Vec<T>>) -> Option<T> {
    of.lock().unwrap().pop()
}

/// The place of the bytes in the file below.
pub(crate) enum Where {
    /// All of it: the file below is as long as this one.
    Whole,
    /// A part of it, with this start and length.
    Part { start: u64, len: AtomicU64 },
}

/// A store that keeps its bytes in another file.
pub(crate) struct Stacked {
    pub(crate) name: &'static str,
    pub(crate) below: PagedFile,
    pub(crate) place: Where,
    /// A space that maps the file below, if the store uses it by accesses instead of calls.
    pub(crate) through: Option<(Space, VirtAddr)>,
    /// The file in which every change is noted as well.
    pub(crate) log: Option<PagedFile>,
    pub(crate) around: Arc<Around>,
    pub(crate) random: Mutex<Random>,
    /// One in this many calls first does other work.
    pub(crate) meddles: u64,
}

/// The log is emptied when it reaches this length.
const LOG: u64 = 24 * PAGE;

fn faulted(fault: Fault) -> io::Error {
    let unexpected = fault.kind() == FaultKind::Reentered;
    assert!(!unexpected, "nobody changes the space: {fault}");
    io::Error::new(io::ErrorKind::OutOfMemory, fault)
}

fn failed(error: FileError) -> io::Error {
    let unexpected = matches!(error, FileError::Reentered { .. });
    assert!(!unexpected, "a file below is no way back: {error}");
    error.into()
}

impl Stacked {
    fn below(&self, random: u64) {
        let offset = random % (200 * PAGE);
        let mut buffer = [0; 5000];
        let below = &self.below;
        match random / 7 % 7 {
            0 => drop(below.read_at(&mut buffer, offset).map_err(failed)),
            1 => drop(below.sync_data().map_err(failed)),
            2 => drop(below.evict(..)),
            3 => drop(below.prefetch(offset..offset + 8 * PAGE).map_err(failed)),
            4 => drop(below.invalidate(..).map_err(failed)),
            5 => drop(below.view(offset..offset + 100)),
            _ => drop((below.stats(), below.len())),
        }
    }

    /// Does other work: with files below this one, or with unrelated ones.
    fn meddle(&self) {
        let (what, more) = {
            let mut random = self.random.lock().unwrap();
            if random.below(self.meddles) > 0 {
                return;
            }
            (random.below(14), random.below(u64::MAX))
        };
        let _at = notes::at(format!("meddle {what} {}", more % 1000));
        let Around { memory, apart, .. } = &*self.around;
        match what {
            0..4 => self.below(more),
            4 => memory.tick(),
            5 => drop((memory.stats(), memory.pressure())),
            6 => {
                let options = memory
                    .file_options()
                    .access(FileAccess::ReadWrite)
                    .name("new");
                // There may be no room for another file.
                if let Ok(file) = options.open_store(MemoryStore::new()) {
                    let _ = file.write_at(&[1; 5000], more % 9000);
                }
            }
            7 => drop(take_one(&self.around.views)),
            8 => drop(take_one(&self.around.spaces)),
            9 => drop(take_one(&self.around.handles)),
            10 => drop(memory.reclaim(more % 20 * PAGE)),
            11 => {
                let _ = memory.create_space().map(|space| {
                    let at = space.map(Map::anonymous(4 * PAGE))?;
                    if let Ok(mut accessor) = space.accessor() {
                        let _ = accessor.store(at + more % 4 * PAGE, 1_u8);
                    }
                    space.unmap(at, PAGE)
                });
            }
            12 => {
                let mut future =
                    pin!(apart.defer(move |file| file.write_at(&[3; 100], more % (9 * PAGE))));
                let _ = future
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()));
            }
            _ => drop(apart.write_at(&[2; 100], more % (9 * PAGE))),
        }
    }

    fn begin(&self, what: &str, offset: u64, len: u64) -> io::Result<notes::At> {
        let at = notes::at(format!("{}.{what} {offset} +{len}", self.name));
        self.meddle();
        let failing = self.around.failing.load(Ordering::Relaxed);
        if failing && self.random.lock().unwrap().below(8) == 0 {
            return Err(io::Error::other("a fault"));
        }
        Ok(at)
    }

    fn note(&self, bytes: &[u8]) -> io::Result<()> {
        let Some(log) = &self.log else {
            return Ok(());
        };
        if log.len() > LOG {
            log.set_len(0).map_err(failed)?;
        }
        log.append(bytes).map_err(failed)?;
        Ok(())
    }

    fn place(&self, offset: u64) -> u64 {
        match &self.place {
            Where::Whole => offset,
            Where::Part { start, .. } => start + offset,
        }
    }
}

impl Store for Stacked {
    fn uses_files(&self) -> bool {
        true
    }

    fn len(&self) -> io::Result<u64> {
        Ok(match &self.place {
            Where::Whole => self.below.len(),
            Where::Part { len, .. } => len.load(Ordering::SeqCst),
        })
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let _at = self.begin("read", offset, buffer.len() as u64)?;
        let left = self.len()?.saturating_sub(offset).min(buffer.len() as u64);
        let buffer = &mut buffer[..left as usize];
        if let Some((space, at)) = &self.through {
            let read = space.accessor()?.read(*at + self.place(offset), buffer);
            return read.map(|()| buffer.len()).map_err(faulted);
        }
        let read = self.below.read_at(buffer, self.place(offset));
        read.map_err(failed)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let _at = self.begin("write", offset, bytes.len() as u64)?;
        self.note(&bytes[..bytes.len().min(3000)])?;
        if let Where::Part { len, .. } = &self.place {
            // This comes first, since a write that fails may have written a part. Past the end
            // there are only zeros.
            len.fetch_max(offset + bytes.len() as u64, Ordering::SeqCst);
        }
        if let Some((space, at)) = &self.through {
            let written = space.accessor()?.write(*at + self.place(offset), bytes);
            return written.map(|()| bytes.len()).map_err(faulted);
        }
        let written = self.below.write_at(bytes, self.place(offset));
        written.map_err(failed)?;
        Ok(bytes.len())
    }

    fn set_len(&self, new: u64) -> io::Result<()> {
        let _at = self.begin("set_len", new, 0)?;
        match &self.place {
            Where::Whole => self.below.set_len(new).map_err(failed),
            Where::Part { start, len } => {
                let cut = start + new..start + len.load(Ordering::SeqCst).max(new);
                self.below.punch(cut).map_err(failed)?;
                len.store(new, Ordering::SeqCst);
                Ok(())
            }
        }
    }

    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        let _at = self.begin("sync", 0, 0)?;
        if let Some(log) = &self.log {
            log.sync_data().map_err(failed)?;
        }
        match what {
            SyncWhat::Data => self.below.sync_data(),
            SyncWhat::All => self.below.sync_all(),
        }
        .map_err(failed)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let _at = self.begin("punch", offset, len)?;
        let end = offset.saturating_add(len).min(self.len()?);
        self.note(&[4; 100])?;
        let range = self.place(offset.min(end))..self.place(end);
        self.below.punch(range).map_err(failed)
    }

    fn identity(&self) -> Option<Identity> {
        let at = std::ptr::from_ref(self) as u64;
        Some(Identity::new("stacked", [at, 0]))
    }

    fn writable(&self) -> bool {
        true
    }
}
