//! A disk of stores that lose their power, and databases on it.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, PoisonError};

use innerspace::store::faulty::Unsynced;
use innerspace::store::{FaultyStore, MemoryStore, Store, StoreError, SyncWhat};
use innerspace_sqlite::{Deletion, Disk};

type Medium = FaultyStore<MemoryStore>;

/// A disk whose power can be cut at a given change.
#[derive(Clone, Default)]
pub(crate) struct PowerDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: HashMap<String, Arc<Medium>>,
    /// Deleted, and not yet for good: a power cut may bring them back.
    deleted: Vec<(String, Arc<Medium>)>,
    /// The changes left until the cut, and what it does.
    cut: Option<(u64, Unsynced)>,
    is_off: bool,
    changes: u64,
}

impl PowerDisk {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power before a change: the `n`th from now on, counted from 1.
    pub(crate) fn cut_at(&self, n: u64, unsynced: Unsynced) {
        self.state().cut = Some((n, unsynced));
    }

    /// Turns the power on. Returns whether it was off.
    pub(crate) fn power_on(&self) -> bool {
        let mut state = self.state();
        state.cut = None;
        state.files.values().for_each(|file| file.power_on());
        std::mem::take(&mut state.is_off)
    }

    /// The files with their bytes, as they are.
    pub(crate) fn copy(&self) -> PowerDisk {
        let state = self.state();
        let copy = |(name, file): (&String, &Arc<Medium>)| {
            let bytes = MemoryStore::from_bytes(&file.inner().to_vec());
            (name.clone(), Arc::new(FaultyStore::new(bytes)))
        };
        let files = state.files.iter().map(copy).collect();
        PowerDisk(Arc::new(Mutex::new(State {
            files,
            ..State::default()
        })))
    }

    pub(crate) fn file(&self, name: &str) -> Option<Arc<Medium>> {
        self.state().files.get(name).cloned()
    }

    /// Returns the number of changes so far.
    pub(crate) fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Counts a change, and cuts the power if it is the one.
    fn change(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.is_off {
            return Err(StoreError::NoPower.into());
        }
        state.changes += 1;
        let Some((left, unsynced)) = &mut state.cut else {
            return Ok(());
        };
        *left -= 1;
        if *left > 0 {
            return Ok(());
        }
        let unsynced = *unsynced;
        state.is_off = true;
        for file in state.files.values() {
            file.power_cut(unsynced)?;
        }
        for (name, file) in std::mem::take(&mut state.deleted) {
            let comes_back = match unsynced {
                Unsynced::Lose => true,
                Unsynced::Keep => false,
                Unsynced::Some(seed) => seed % 2 == 0,
            };
            if comes_back && !state.files.contains_key(&name) {
                file.power_cut(unsynced)?;
                state.files.insert(name, file);
            }
        }
        Err(StoreError::NoPower.into())
    }
}

impl Disk for PowerDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn Store>> {
        let state = self.state();
        let is_missing = !state.is_off && !state.files.contains_key(name);
        drop(state);
        match is_missing {
            true => Err(io::ErrorKind::NotFound.into()),
            false => self.open_or_create(name),
        }
    }

    fn open_or_create(&self, name: &str) -> io::Result<Arc<dyn Store>> {
        let mut state = self.state();
        if state.is_off {
            return Err(StoreError::NoPower.into());
        }
        let new = || Arc::new(FaultyStore::new(MemoryStore::new()));
        let file = state.files.entry(name.to_owned()).or_insert_with(new);
        Ok(Arc::new(Counting {
            disk: self.clone(),
            file: file.clone(),
        }))
    }

    fn delete(&self, name: &str, deletion: Deletion) -> io::Result<()> {
        self.change()?;
        let mut state = self.state();
        let file = state.files.remove(name);
        let file = file.ok_or(io::ErrorKind::NotFound)?;
        match deletion {
            Deletion::Durable => state.deleted.clear(),
            Deletion::MayComeBack => state.deleted.push((name.to_owned(), file)),
        }
        Ok(())
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        Ok(self.state().files.contains_key(name))
    }
}

/// A file of the disk.
struct Counting {
    disk: PowerDisk,
    file: Arc<Medium>,
}

impl Store for Counting {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.disk.change()?;
        self.file.write_at(buf, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.disk.change()?;
        self.file.write_vectored_at(bufs, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.change()?;
        self.file.set_len(len)
    }

    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        self.disk.change()?;
        self.file.sync(what)
    }

    fn writable(&self) -> bool {
        true
    }
}

/// Registers a VFS over a disk.
pub(crate) fn register(name: &str, disk: &PowerDisk, memory: &innerspace::Memory) {
    crate::common::collect_log();
    let options = innerspace_sqlite::Options::new().name(name).memory(memory);
    options.disk(disk.clone()).register().unwrap();
}

/// Cuts the power before each change of a disk, with each fate of what was not synced. `cut` is
/// given the number of the change, and returns whether there was one. Returns how many there were.
pub(crate) fn cut_at_each(cut: impl Fn(u64, Unsynced) -> bool) -> u64 {
    let mut n = 1;
    loop {
        let fates = [
            Unsynced::Lose,
            Unsynced::Keep,
            Unsynced::Some(2 * n),
            Unsynced::Some(2 * n + 1),
        ];
        let reached = fates.map(|fate| cut(n, fate));
        if !reached[0] {
            return n;
        }
        n += 1;
    }
}
