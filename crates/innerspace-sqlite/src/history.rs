//! What a file was like earlier, for the branches that began then.
//!
//! Time is counted in *epochs*: each branch begins a new one. Before a unit of the file is
//! overwritten, its bytes are saved, if a branch is alive that began since it was last saved. A
//! saved version is marked with the epoch in which it was saved. A branch of epoch *e* takes the
//! version with the smallest mark from *e* on, or the file's present bytes if there is none.
//!
//! So a branch costs nothing when it begins, and a unit is saved once for all the branches between
//! two writes of it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use innerspace::{FileOpener, PagedFile};

use crate::error::{Failure, Outcome};
use crate::ffi::raw;
use crate::temporary::spill;
use crate::wal::Generation;

/// The bytes that are saved together.
pub(crate) const UNIT: u64 = 4096;

#[derive(Default)]
pub(crate) struct History {
    /// The epoch of the newest branch.
    epoch: u64,
    /// The epochs of the branches that are alive.
    alive: Vec<u64>,
    versions: HashMap<u64, Vec<Version>>,
    saved: Option<PagedFile>,
    free: Vec<u64>,
    slots: u64,
    /// The epoch in which the file was last written. (With a WAL, that is no change of the
    /// database.)
    written: u64,
    /// Why branches can no longer be read.
    pub(crate) lost: Option<String>,
    /// The WAL that the newest branch began with.
    pub(crate) wal: Option<Arc<Generation>>,
}

#[derive(Clone, Copy)]
struct Version {
    mark: u64,
    slot: u64,
}

impl History {
    /// Begins an epoch for a new branch.
    pub(crate) fn begin(&mut self) -> u64 {
        self.epoch += 1;
        self.alive.push(self.epoch);
        self.epoch
    }

    /// Ends a branch, and lets go of the versions that only it needed.
    pub(crate) fn end(&mut self, epoch: u64) {
        self.alive.retain(|alive| *alive != epoch);
        if self.alive.is_empty() {
            *self = History {
                epoch: self.epoch,
                written: self.written,
                ..History::default()
            };
            return;
        }
        let (alive, free) = (&self.alive, &mut self.free);
        self.versions.retain(|_, versions| {
            let mut before = 0;
            versions.retain(|version| {
                let since = std::mem::replace(&mut before, version.mark);
                let is_needed = alive.iter().any(|at| since < *at && *at <= version.mark);
                if !is_needed {
                    free.push(version.slot);
                }
                is_needed
            });
            !versions.is_empty()
        });
    }

    /// Whether the file was written since a branch began.
    pub(crate) fn was_written_since(&self, epoch: u64) -> bool {
        self.written >= epoch
    }

    /// Returns the epoch in which the file was last written.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Takes back what was noted of writes since: they were all undone.
    pub(crate) fn note_undone(&mut self, written: u64) {
        self.written = written;
    }

    /// Notes a write, and returns those of its units that have to be saved first.
    pub(crate) fn before_write(&mut self, bytes: Range<u64>) -> Vec<u64> {
        self.written = self.epoch;
        let Some(newest) = self.alive.iter().max() else {
            return Vec::new();
        };
        let units = bytes.start / UNIT..bytes.end.div_ceil(UNIT);
        let is_saved = |unit: &u64| {
            let last = self.versions.get(unit).and_then(|versions| versions.last());
            last.is_some_and(|version| version.mark >= *newest)
        };
        units.filter(|unit| !is_saved(unit)).collect()
    }

    /// Saves a unit's present bytes.
    pub(crate) fn save(&mut self, options: &FileOpener, unit: u64, bytes: &[u8]) -> Outcome {
        if self.saved.is_none() {
            self.saved = Some(spill(options, "versions for branches")?);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        if let Some(saved) = &self.saved {
            let written = saved.write_at(bytes, slot * UNIT);
            written.map_err(|error| Failure::file(raw::IOERR_WRITE, &error))?;
        }
        let mark = self.epoch;
        let versions = self.versions.entry(unit).or_default();
        versions.push(Version { mark, slot });
        Ok(())
    }

    /// Reads bytes of one unit as they were when a branch began. `false` if they are the file's
    /// present ones.
    pub(crate) fn read(&self, epoch: u64, buf: &mut [u8], at: u64) -> Outcome<bool> {
        if let Some(reason) = &self.lost {
            return Err(Failure::new(raw::IOERR_READ, reason.clone()));
        }
        let versions = self.versions.get(&(at / UNIT));
        let version = versions.and_then(|versions| {
            let first = versions.partition_point(|version| version.mark < epoch);
            versions.get(first)
        });
        let (Some(version), Some(saved)) = (version, &self.saved) else {
            return Ok(false);
        };
        let read = saved.read_exact_at(buf, version.slot * UNIT + at % UNIT);
        read.map_err(|error| Failure::file(raw::IOERR_READ, &error))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_saved_once_for_the_branches_between_two_writes() {
        let memory = innerspace::Memory::with_limit(1 << 20).unwrap();
        let options = memory.file_options();
        let mut history = History::default();
        assert!(
            history.before_write(0..UNIT).is_empty(),
            "no branch is alive"
        );
        let (first, second) = (history.begin(), history.begin());
        assert_eq!(history.before_write(100..UNIT + 1), [0, 1]);
        for unit in [0, 1] {
            history.save(&options, unit, &[1; UNIT as usize]).unwrap();
        }
        assert!(
            history.before_write(0..2 * UNIT).is_empty(),
            "both branches have it"
        );
        let third = history.begin();
        assert_eq!(history.before_write(0..UNIT), [0]);
        history.save(&options, 0, &[2; UNIT as usize]).unwrap();

        let read = |history: &History, epoch, at| {
            let mut buf = [0; 8];
            history.read(epoch, &mut buf, at).unwrap().then_some(buf[0])
        };
        assert_eq!(read(&history, first, 0), Some(1));
        assert_eq!(read(&history, second, 8), Some(1));
        assert_eq!(read(&history, third, 0), Some(2));
        assert_eq!(read(&history, third, UNIT), None);
        history.end(first);
        assert_eq!(read(&history, second, 0), Some(1));
        history.end(second);
        assert_eq!(history.free.len(), 2);
        assert_eq!(read(&history, third, 0), Some(2));
        history.end(third);
        assert!(history.saved.is_none());
        assert!(history.was_written_since(third));
    }
}
