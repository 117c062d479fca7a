//! The medium of a faulty store, as its difference from the inner store: the old content of every
//! sector that changed since the last sync.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;

use super::super::{Store, read_exact_or_eof, write_all_at};
use super::SECTOR;
use super::plan::Dice;

/// The effect of a power cut on unsynced changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unsynced {
    /// All changes had reached the medium.
    Keep,
    /// No change had reached the medium.
    Lose,
    /// Each sector, and the length, had reached the medium or not, as this seed decides.
    Some(u64),
}

type Sector = [u8; SECTOR as usize];

/// The medium, as the old content of those sectors that differ, or may differ, from the sectors of
/// the inner store.
#[derive(Debug, Default)]
pub(super) struct Medium {
    /// The sectors, by offset divided by [`SECTOR`]. Bytes past the medium's length are zero.
    sectors: BTreeMap<u64, Box<Sector>>,
    /// The medium's length. `None` if it is the inner store's.
    len: Option<u64>,
    /// The lowest length that was set since the last sync.
    cut: Option<u64>,
}

impl Medium {
    pub(super) fn unsynced(&self) -> usize {
        self.sectors.len()
    }

    /// Notes that the inner store's content is on the medium now.
    pub(super) fn synced(&mut self) {
        *self = Medium::default();
    }

    /// Notes that these bytes of the inner store have reached the medium, in whole sectors.
    pub(super) fn reached(&mut self, offset: u64, count: u64) {
        if count > 0 {
            for number in sectors(offset, offset + count) {
                self.sectors.remove(&number);
            }
            self.len = self.len.map(|len| len.max(offset + count));
        }
    }

    pub(super) fn write<S: Store>(
        &mut self,
        inner: &S,
        buf: &[u8],
        offset: u64,
    ) -> io::Result<u64> {
        let end = offset
            .checked_add(buf.len() as u64)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        self.keep_len(inner)?;
        for number in sectors(offset, end) {
            self.keep(inner, number)?;
        }
        write_all_at(inner, buf, offset)?;
        Ok(buf.len() as u64)
    }

    pub(super) fn set_len<S: Store>(&mut self, inner: &S, len: u64) -> io::Result<()> {
        self.keep_len(inner)?;
        self.keep_data(inner, len, u64::MAX)?;
        self.cut = Some(self.cut.map_or(len, |cut| cut.min(len)));
        inner.set_len(len)
    }

    pub(super) fn punch<S: Store>(&mut self, inner: &S, offset: u64, len: u64) -> io::Result<()> {
        self.keep_data(inner, offset, offset.saturating_add(len))?;
        inner.punch(offset, len)
    }

    /// Gives the inner store the content that the medium has after a power cut.
    pub(super) fn lose<S: Store>(&mut self, inner: &S, unsynced: Unsynced) -> io::Result<()> {
        let Medium { sectors, len, .. } = std::mem::take(self);
        let mut dice = Dice(match unsynced {
            Unsynced::Some(seed) => seed,
            Unsynced::Keep | Unsynced::Lose => 0,
        });
        let mut is_lost = || match unsynced {
            Unsynced::Keep => false,
            Unsynced::Lose => true,
            Unsynced::Some(_) => dice.roll() & 1 == 1,
        };
        let mut end = inner.len()?;
        if let Some(len) = len.filter(|_| is_lost()) {
            inner.set_len(len)?;
            end = len;
        }
        for (number, old) in sectors {
            let offset = number * SECTOR;
            if offset < end && is_lost() {
                let count = SECTOR.min(end - offset) as usize;
                write_all_at(inner, &old[..count], offset)?;
            }
        }
        Ok(())
    }

    /// Gives the inner store the content of the medium, for a failed sync that loses writes and
    /// punches. Lengths set since the last sync stay: bytes that they cut off read as zeros.
    pub(super) fn forget<S: Store>(&mut self, inner: &S) -> io::Result<()> {
        self.len = None;
        let cut = self.cut.unwrap_or(u64::MAX);
        for (number, old) in &mut self.sectors {
            let kept = cut.saturating_sub(number * SECTOR).min(SECTOR);
            old[kept as usize..].fill(0);
        }
        self.lose(inner, Unsynced::Lose)
    }

    fn keep_len<S: Store>(&mut self, inner: &S) -> io::Result<()> {
        if self.len.is_none() {
            self.len = Some(inner.len()?);
        }
        Ok(())
    }

    /// Remembers a sector's content, unless an older content is remembered already.
    fn keep<S: Store>(&mut self, inner: &S, number: u64) -> io::Result<()> {
        if let Entry::Vacant(place) = self.sectors.entry(number) {
            let mut old = Box::new([0; SECTOR as usize]);
            read_exact_or_eof(inner, &mut *old, number * SECTOR)?;
            place.insert(old);
        }
        Ok(())
    }

    /// Remembers those sectors of a range that have data. Holes read as zeros before and after the
    /// change, so they need not be remembered.
    fn keep_data<S: Store>(&mut self, inner: &S, from: u64, to: u64) -> io::Result<()> {
        let mut at = from;
        while let Some(data) = inner.next_data(at)?.filter(|&data| data < to) {
            at = inner.next_hole(data)?.min(to);
            for number in sectors(data, at) {
                self.keep(inner, number)?;
            }
        }
        Ok(())
    }
}

/// Returns the numbers of the sectors that a range of bytes touches.
fn sectors(begin: u64, end: u64) -> std::ops::Range<u64> {
    if begin == end {
        0..0
    } else {
        begin / SECTOR..end.div_ceil(SECTOR)
    }
}
