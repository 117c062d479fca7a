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
    pub(crate) files: Files,
    /// The frames of each pin with [`AtFork::Refuse`](crate::space::AtFork::Refuse), which a fork
    /// may not copy.
    pub(crate) not_copied: Vec<Weak<[FrameId]>>,
}

/// The mapped files, by their keys. An entry keeps its file open.
pub(crate) struct Files {
    by_key: BTreeMap<usize, FileUse>,
    /// The heap bytes of the files, entered in the ledger of the space.
    heap: Entry,
}

/// A file that a space maps, and the space's mapper that is registered with it.
pub(crate) struct FileUse {
    file: MappedFile,
    id: MapperId,
    /// The mapper, which this keeps alive: the file has only a `Weak` to it.
    _mapper: Arc<dyn Mappers>,
}

impl FileUse {
    fn register(mapper: Arc<dyn Mappers>, file: &MappedFile) -> FileUse {
        let id = file.add_mapper(Arc::downgrade(&mapper));
        FileUse {
            file: file.clone(),
            id,
            _mapper: mapper,
        }
    }

    /// Unregisters from the file, and returns the file if it is a cached one.
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
            files: Files::new(vmas.ledger()),
            vmas,
            not_copied: Vec::new(),
        }
    }

    /// Unregisters from all files, and empties the set of mappings. Returns a clone of the empty
    /// set, and the files.
    pub(crate) fn close(&mut self) -> (VmaSet, Vec<Released>) {
        let files = std::mem::take(&mut self.files.by_key).into_values();
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
        for used in self.files.by_key.values() {
            fork.files.add(&used.file, &mapper);
        }
    }
}

impl Files {
    /// The bytes of a node of the map. A node has room for 11 files, and mostly has 7.
    const NODE_BYTES: usize = 11 * (size_of::<usize>() + size_of::<FileUse>()) + 16;

    fn new(ledger: &Arc<Ledger>) -> Files {
        Files {
            by_key: BTreeMap::new(),
            heap: Entry::new(ledger, 0),
        }
    }

    /// Returns the heap bytes that the files take.
    pub(crate) fn bytes(&self) -> usize {
        self.heap.bytes()
    }

    /// Enters the bytes that the files take now in the ledger.
    fn count(&mut self) {
        let files = self.by_key.len();
        if files == 0 {
            // An empty map keeps its last node.
            self.by_key = BTreeMap::new();
        }
        let mapper = |used: &FileUse| size_of_val(&*used._mapper) + 16 + MapperList::ENTRY_BYTES;
        let each = self.by_key.values().next().map_or(0, mapper);
        let bytes = files.div_ceil(7) * Files::NODE_BYTES + files * each;
        self.heap.set(bytes);
    }

    /// Registers with the file, if it was not mapped yet.
    pub(crate) fn add(
        &mut self,
        file: &MappedFile,
        mapper: impl FnOnce(&MappedFile) -> Arc<dyn Mappers>,
    ) {
        let used = self.by_key.entry(file.key());
        used.or_insert_with(|| FileUse::register(mapper(file), file));
        self.count();
    }

    /// Registers anew with every file, and returns the old registrations.
    pub(crate) fn renew(
        &mut self,
        mapper: impl Fn(&MappedFile) -> Arc<dyn Mappers>,
    ) -> Vec<FileUse> {
        let renewed = |used: &mut FileUse| {
            let new = FileUse::register(mapper(&used.file), &used.file);
            std::mem::replace(used, new)
        };
        self.by_key.values_mut().map(renewed).collect()
    }

    /// Removes and returns the files of these mappings that no mapping in `left` shows.
    pub(crate) fn remove(&mut self, removed: &[Vma], left: &VmaSet) -> Vec<FileUse> {
        let mut unused = Vec::new();
        for file in removed.iter().filter_map(Vma::file) {
            if left.first_page(file.key(), 0).is_none() {
                unused.extend(self.by_key.remove(&file.key()));
            }
        }
        self.count();
        unused
    }
}
