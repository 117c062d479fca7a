//! The library's objects with their models, and one step of both.

use innerspace::{MIB, Memory, Threads, View, file::FileError};

use crate::files::{File, FileId};
use crate::ops::Op;
use crate::spaces::SpaceModel;

pub(crate) const PAGE: u64 = 4096;
/// The most views that are kept.
const MAX_VIEWS: usize = 5;
pub(crate) const MAX_SPACES: usize = 4;

/// The library's objects and their models.
pub(crate) struct World {
    pub(crate) memory: Memory,
    pub(crate) files: Vec<File>,
    pub(crate) spaces: Vec<SpaceModel>,
    /// The views, each with its bytes when it was taken.
    pub(crate) views: Vec<(View, Vec<u8>)>,
}

/// Whether an error says that the memory is full.
pub(crate) fn is_limit(error: &FileError) -> bool {
    matches!(error, FileError::Limit(_))
}

impl World {
    pub(crate) fn new(limit: u64) -> World {
        let options = Memory::builder(limit).threads(Threads::None);
        let memory = options.build().expect("a small memory");
        // Large blocks need contiguous memory, which soon runs out in the smallest memories.
        let large = if limit >= MIB { 64 << 10 } else { 16 << 10 };
        let files = vec![
            File::new(&memory, 4 << 10, 21 * PAGE + 123),
            File::new(&memory, 16 << 10, 50 * PAGE),
            File::new(&memory, large, 37 * PAGE + 4000),
        ];
        let spaces = vec![SpaceModel::new(
            memory.create_space().expect("an empty memory"),
        )];
        World {
            memory,
            files,
            spaces,
            views: Vec::new(),
        }
    }

    pub(crate) fn file_id(&self, number: u8) -> FileId {
        FileId(usize::from(number) % self.files.len())
    }

    pub(crate) fn step(&mut self, op: &Op) {
        match op {
            Op::Reclaim(pages) => drop(self.memory.reclaim(u64::from(*pages % 256) * PAGE)),
            Op::Tick => self.memory.tick(),
            Op::DropView(number) => {
                if !self.views.is_empty() {
                    let number = usize::from(*number) % self.views.len();
                    drop(self.views.swap_remove(number));
                }
            }
            _ => {
                if !self.file_step(op) {
                    self.space_step(op);
                }
            }
        }
    }

    pub(crate) fn keep_view(&mut self, view: View, shows: Vec<u8>) {
        if self.views.len() == MAX_VIEWS {
            self.views.remove(0);
        }
        self.views.push((view, shows));
    }

    /// Validates everything, and checks that views have not changed.
    pub(crate) fn check(&self) {
        self.memory.validate();
        for space in &self.spaces {
            space.space.validate();
        }
        for (view, shows) in &self.views {
            assert!(view[..] == shows[..], "a view's bytes changed");
        }
    }

    /// Heals the stores and drops everything that holds memory. Called when the memory is full, or
    /// files have to be inspected. From then on, all files can be read and written back.
    pub(crate) fn relieve(&mut self) {
        self.views.clear();
        self.spaces.clear();
        for file in &self.files {
            file.store.heal();
        }
        let space = self.memory.create_space().expect("room for a space");
        self.spaces.push(SpaceModel::new(space));
    }

    /// Ends a case, and checks that no data is lost.
    pub(crate) fn finish(mut self) {
        for space in &mut self.spaces {
            space.read_all(&self.files);
        }
        self.check();
        self.relieve();
        for file in &mut self.files {
            file.assert_synced();
        }
        for file in &self.files {
            file.assert_reads();
        }
        self.check();
        self.spaces.clear();
        let stores: Vec<_> = self.files.iter().map(|file| file.store.clone()).collect();
        let models: Vec<_> = self.files.drain(..).map(|file| file.bytes).collect();
        for (store, bytes) in stores.iter().zip(&models) {
            assert!(store.inner().to_vec() == *bytes, "closing changed a store");
        }
        assert!(self.memory.take_errors().is_empty());
        self.memory.validate();
        assert_eq!(self.memory.root_group().usage(), 0, "something is left");
    }
}
