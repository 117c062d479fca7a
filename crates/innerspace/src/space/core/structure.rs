//! The state that the gate's writer lock protects: the mappings, the mapped files, and the pins.

use std::collections::BTreeMap;

use crate::FrameId;
use crate::cache::{MapperId, MapperList, Mappers, Released};
use crate::space::vma::area::{MappedFile, Vma};
use crate::space::vma::ledger::{Entry, Ledger};
use crate::space::vma::set::VmaSet;
use crate::sync::{Arc, Weak};

/// The state that the holder of the gate's writer lock may read and change.
pub(crate) struct Structure {
    /// The set of mappings, as it is published.
    pub(crate) vmas: VmaSet,
    /// The number of structural changes so far.
    pub(crate) revision: u64,
    /// The mapped files, by their keys. An entry keeps its file open.
    files: BTreeMap<usize, FileUse>,
    /// The heap bytes of the nodes of `files`, if it has any.
    nodes_of_files: Option<Entry>,
    /// The frames of each pin with [`AtFork::Refuse`](crate::space::AtFork::Refuse), which a fork
    /// may not copy.
    pub(crate) not_copied: Vec<Weak<[FrameId]>>,
}

/// A file that a space maps, and the space's mapper that is registered with it.
pub(crate) struct FileUse {
    file: MappedFile,
    id: MapperId,
    /// The mapper, which this value keeps alive: the file has only a `Weak` to it.
    _mapper: Arc<dyn Mappers>,
    /// The heap bytes of the mapper, and of its place in the file's list.
    heap: Entry,
}

impl FileUse {
    /// The size of a node of the map of files. A node has room for 11 files, and usually holds 7.
    const NODE_BYTES: usize = 11 * (size_of::<usize>() + size_of::<FileUse>()) + 16;

    fn register(mapper: Arc<dyn Mappers>, file: &MappedFile, ledger: &Arc<Ledger>) -> FileUse {
        let bytes = size_of_val(&*mapper) + 16 + MapperList::ENTRY_BYTES;
        FileUse {
            file: file.clone(),
            id: file.add_mapper(Arc::downgrade(&mapper)),
            _mapper: mapper,
            heap: Entry::new(ledger, bytes),
        }
    }

    /// Unregisters the mapper from the file, and returns the file if it is a cached one.
    pub(crate) fn unregister(self) -> Option<Released> {
        self.file.mappers().remove(self.id);
        match &self.file {
            MappedFile::Cached(file) => Some(Released::new(file)),
            MappedFile::Direct(_) => None,
        }
    }
}

impl Structure {
    pub(crate) fn new(vmas: VmaSet) -> Structure {
        Structure {
            revision: 0,
            files: BTreeMap::new(),
            nodes_of_files: None,
            vmas,
            not_copied: Vec::new(),
        }
    }

    /// Unregisters the space from all files, and empties the set of mappings. Returns a clone of
    /// the empty set, and the cached files among those unregistered.
    pub(crate) fn close(&mut self) -> (VmaSet, Vec<Released>) {
        let files = std::mem::take(&mut self.files).into_values();
        let files = files.filter_map(FileUse::unregister).collect();
        self.vmas = self.vmas.emptied();
        (self.vmas.clone(), files)
    }

    /// Registers a fork of this space with the files that the fork maps.
    pub(crate) fn register_fork(
        &self,
        fork: &mut Structure,
        mapper: impl Fn(&MappedFile) -> Arc<dyn Mappers>,
    ) {
        for used in self.files.values() {
            fork.add_file(&used.file, &mapper);
        }
    }

    /// Returns the heap bytes of the mappers, of their places in the files' lists, and of the nodes
    /// of `files`.
    pub(crate) fn bytes_of_files(&self) -> usize {
        let of_each = self.files.values().map(|used| &used.heap);
        of_each.chain(&self.nodes_of_files).map(Entry::bytes).sum()
    }

    /// Registers the space with the file, unless it is registered already.
    pub(crate) fn add_file(
        &mut self,
        file: &MappedFile,
        mapper: impl FnOnce(&MappedFile) -> Arc<dyn Mappers>,
    ) {
        let used = self.files.entry(file.key());
        used.or_insert_with(|| FileUse::register(mapper(file), file, self.vmas.ledger()));
        self.count_nodes();
    }

    /// Counts the nodes of `files` in the ledger. Their number is an estimate: one for every 7
    /// files.
    fn count_nodes(&mut self) {
        let nodes = self.files.len().div_ceil(7);
        let entry = || Entry::new(self.vmas.ledger(), nodes * FileUse::NODE_BYTES);
        self.nodes_of_files = (nodes > 0).then(entry);
    }

    /// Registers a new mapper with every mapped file. Returns the old registrations, which the
    /// caller ends.
    pub(crate) fn renew_files(
        &mut self,
        mapper: impl Fn(&MappedFile) -> Arc<dyn Mappers>,
    ) -> Vec<FileUse> {
        let ledger = self.vmas.ledger();
        let renewed = |used: &mut FileUse| {
            let new = FileUse::register(mapper(&used.file), &used.file, ledger);
            std::mem::replace(used, new)
        };
        self.files.values_mut().map(renewed).collect()
    }

    /// Forgets the pins that were dropped: their `Weak`s would keep the lists of frames on the
    /// heap.
    pub(crate) fn forget_unpinned(&mut self) {
        self.not_copied.retain(|frames| frames.strong_count() > 0);
    }

    /// Removes the files of these mappings from `files`, except those that the space still maps.
    /// Returns the removed entries.
    pub(crate) fn remove_files(&mut self, removed: &[Vma]) -> Vec<FileUse> {
        let mut unused = Vec::new();
        for file in removed.iter().filter_map(Vma::file) {
            if self.vmas.first_page(file.key(), 0).is_none() {
                unused.extend(self.files.remove(&file.key()));
            }
        }
        if self.files.is_empty() {
            self.files = BTreeMap::new(); // an empty map keeps its last node
        }
        self.count_nodes();
        unused
    }
}
