//! An accessor's own cache of mappings: four slots, so that threads that fault in different places
//! each find their mapping without walking the tree.
//!
//! A slot has a copy of a mapping. The cache records the number that the space's [`Sequence`] had
//! when the slots were filled, and all slots are valid as long as the sequence still has that
//! number. Every change of an existing mapping (bounds, protection, backing) increments the number
//! once, after the new tree is published and before the gate opens again. Adding a mapping does
//! not, since a slot never says that an address is unmapped. When a mapping is copied, the low bits
//! of the page's number select the slot. A lookup tries the slot that answered last, and then all:
//! for other pages of the same mapping, the low bits usually select another slot.
//!
//! Order: a lookup reads the number before it reads the tree; a writer publishes the tree before it
//! increments the number. So a copy from an old tree has an old number. The gate keeps out lookups
//! of addresses that are being changed, so copies that are used meanwhile are of mappings that do
//! not change.
//!
//! The number has 64 bits and does not wrap while a machine runs. Tests may make it narrower: when
//! it wraps, every cache of the space is told to forget everything, whatever the number of caches.
//! (A cache that is just about to note the last number may miss that; only such tests can reach
//! this case. The kernel's vmacache did not tell the only thread of a process to forget, and that
//! thread's slots became valid again once threads started later had moved the number on:
//! CVE-2018-17182.)

use super::area::{Backing, MappedFile, Vma};
use super::device::DeviceCall;
use super::protection::Protection;
use crate::PAGE_SHIFT;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::members::{Members, Ticket};
use crate::sync::{Arc, Mutex};

/// The number of slots in a cache.
const SLOTS: usize = 4;
/// A number that no sequence reaches.
const FORGOTTEN: u64 = u64::MAX;

/// How often the accessors' caches were asked for a mapping, and with what result.
///
/// A lookup counts as a call even if every slot is out of date, so hits and misses add up to calls.
/// An access that gets its page in one step, by a mapping in a slot, is counted once it has
/// succeeded. If it does not succeed, the lookup of its fault is counted instead.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct VmaLookups {
    /// The number of lookups.
    pub calls: u64,
    /// The number of lookups that a slot answered.
    pub hits: u64,
    /// The number of lookups that the tree answered, or for which there was no mapping.
    pub misses: u64,
}

impl VmaLookups {
    fn add(&mut self, more: VmaLookups) {
        self.calls += more.calls;
        self.hits += more.hits;
        self.misses += more.misses;
    }
}

/// The state that a cache shares with its space. Every fault increments a counter here, so it is
/// aligned to two cache lines, which processors prefetch together.
#[derive(Default)]
#[repr(align(128))]
struct Shared {
    /// The number of the sequence when the cache filled its slots. The space stores [`FORGOTTEN`]
    /// to make the cache forget everything.
    number: AtomicU64,
    // Only the cache's owner writes the next two counters. Hits are the calls that are not misses.
    calls: AtomicU64,
    misses: AtomicU64,
    /// The files of the slots. The space empties this when the mappings change, so a file is kept
    /// open only as long as it is mapped. An innermost lock.
    kept: Mutex<[Option<MappedFile>; SLOTS]>,
}

impl Shared {
    fn lookups(&self) -> VmaLookups {
        // The misses are read first, so that for each miss seen, its call is seen too. Acquire:
        // pairs with the Release in `count`.
        let misses = self.misses.load(Ordering::Acquire);
        let calls = self.calls.load(Ordering::Relaxed);
        VmaLookups {
            calls,
            hits: calls - misses,
            misses,
        }
    }
}

/// Counts one event without a read-modify-write: only the cache's owner writes the counter.
fn count(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Release);
}

/// Counts the changes of a space's mappings.
pub(crate) struct Sequence {
    number: AtomicU64,
    /// A mask of the bits of the number that are used.
    mask: u64,
    caches: Mutex<Caches>,
}

#[derive(Default)]
struct Caches {
    alive: Members<Arc<Shared>>,
    /// The sum of the counts of caches that no longer exist.
    gone: VmaLookups,
}

impl Default for Sequence {
    fn default() -> Sequence {
        Sequence::with_width(u64::BITS)
    }
}

impl Sequence {
    /// Creates a sequence whose numbers have this many bits.
    pub(crate) fn with_width(bits: u32) -> Sequence {
        Sequence {
            number: AtomicU64::new(0),
            mask: u64::MAX >> (u64::BITS - bits),
            caches: Mutex::default(),
        }
    }

    /// Invalidates every slot of all caches of the space. Called by one writer at a time.
    pub(crate) fn bump(&self) {
        let next = (self.number.load(Ordering::Relaxed) + 1) & self.mask;
        let wraps = next == 0;
        if wraps {
            self.forget_all();
        }
        // Release: pairs with the Acquire in `now`. A reader of the number sees the tree that was
        // published before it, and `FORGOTTEN` if that was stored in its cache.
        self.number.store(next, Ordering::Release);
        // The change may have removed a file's last mapping. The caller has the old set of
        // mappings, so no reference that is dropped here is the last one to its file.
        for cache in self.caches.lock().alive.iter() {
            *cache.kept.lock() = Default::default();
        }
        if wraps {
            // A cache that forgot before the number changed may since have filled a slot with the
            // old number.
            self.forget_all();
        }
    }

    fn forget_all(&self) {
        for cache in self.caches.lock().alive.iter() {
            cache.number.store(FORGOTTEN, Ordering::Relaxed);
        }
    }

    /// Returns the sum of the counts of all caches of the space.
    pub(crate) fn lookups(&self) -> VmaLookups {
        let caches = self.caches.lock();
        let mut sum = caches.gone;
        caches
            .alive
            .iter()
            .for_each(|cache| sum.add(cache.lookups()));
        sum
    }

    /// Removes a cache that is about to be dropped.
    pub(crate) fn forget_cache(&self, cache: &VmaCache) {
        let mut caches = self.caches.lock();
        caches.alive.leave(cache.ticket);
        caches.gone.add(cache.shared.lookups());
        // A later change does not find the cache in the list, so its files are released here.
        *cache.shared.kept.lock() = Default::default();
    }

    fn now(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }
}

/// The copy of a mapping in a slot. Mappings of devices are not copied.
struct Copy {
    /// The mapping, with an anonymous backing, so that the copy keeps no file open.
    vma: Vma,
    /// Whether the mapping is of a file. [`Shared::kept`] has the file, unless the space has
    /// emptied it since.
    is_of_file: bool,
}

/// The cache of one accessor, as this module describes it.
pub(crate) struct VmaCache {
    copies: [Option<Copy>; SLOTS],
    /// The slot that answered last, which is tried first.
    last: usize,
    shared: Arc<Shared>,
    /// The cache's place in the sequence's list.
    ticket: Ticket,
    /// The call to make if the last fault found a device instead of a page.
    pub(crate) device: Option<DeviceCall>,
}

impl VmaCache {
    /// Creates an empty cache for the space with this sequence.
    pub(crate) fn new(sequence: &Sequence) -> VmaCache {
        let shared = Arc::new(Shared::default());
        let ticket = sequence.caches.lock().alive.join(shared.clone());
        VmaCache {
            copies: Default::default(),
            last: 0,
            shared,
            ticket,
            device: None,
        }
    }

    /// Returns the mapping that contains `at`, from a slot or from `tree`, which is called after
    /// the number was read. The caller is in a section that saw the gate open at `at`. `sequence`
    /// is the one for which the cache was created. If the result names a file, a reference that
    /// keeps the file alive is put in `named`, which is `None` before the call; the caller drops
    /// the reference with no section open.
    pub(crate) fn find<'t>(
        &'t mut self,
        sequence: &Sequence,
        at: u64,
        named: &'t mut Option<Vma>,
        tree: impl FnOnce() -> Option<&'t Vma>,
    ) -> Option<&'t Vma> {
        self.count_lookup();
        let number = sequence.now();
        if number != self.shared.number.load(Ordering::Relaxed) {
            self.flush(number);
        }
        if let Some(place) = self.holding(at) {
            if !self.copies[place].as_ref()?.is_of_file {
                return Some(&self.copies[place].as_ref()?.vma);
            }
            // If the file is no longer kept, it may no longer be mapped; the tree is asked below.
            if let Some(file) = self.shared.kept.lock()[place].clone() {
                let backing = Backing::File(file);
                let vma = &self.copies[place].as_ref()?.vma;
                return Some(named.insert(Vma { backing, ..*vma }));
            }
        }
        count(&self.shared.misses);
        let found = tree()?;
        // Devices are not cached: a slot would keep one of the user's devices alive, and accesses
        // to it are calls, which are slow anyway.
        if !found.has_pages() {
            return Some(found);
        }
        let own = (at >> PAGE_SHIFT) as usize % SLOTS;
        let backing = Backing::Anonymous;
        self.copies[own] = Some(Copy {
            vma: Vma { backing, ..*found },
            is_of_file: found.file().is_some(),
        });
        self.last = own;
        // The tree's own reference to a file may be dropped while the caller waits for the file.
        Some(match found.file() {
            Some(file) => {
                let backing = Backing::File(self.keep(sequence, own, file));
                named.insert(Vma { backing, ..*found })
            }
            None => found,
        })
    }

    /// Returns whether no mapping has changed since the slots were filled. Mappings may have been
    /// added.
    #[inline(always)]
    fn is_good(&self, sequence: &Sequence) -> bool {
        sequence.now() == self.shared.number.load(Ordering::Relaxed)
    }

    /// Returns the slot whose mapping contains `at`, if there is one, and makes it the slot that is
    /// tried first next time.
    #[inline(always)]
    fn holding(&mut self, at: u64) -> Option<usize> {
        let holds = |copy: &Copy| copy.vma.contains(at);
        let holds = |place: &usize| self.copies[*place % SLOTS].as_ref().is_some_and(holds);
        if !holds(&self.last) {
            self.last = (0..SLOTS).find(holds)?;
        }
        Some(self.last % SLOTS)
    }

    /// Returns whether a slot has the mapping that contains `at`, and that mapping allows this
    /// access. With `anonymous`, the mapping must also be anonymous memory. The conditions of
    /// [`VmaCache::find`] apply. A caller that uses the result counts the lookup by
    /// [`VmaCache::count_lookup`].
    #[inline(always)]
    pub(crate) fn allows(
        &mut self,
        wanted: Protection,
        anonymous: bool,
        sequence: &Sequence,
        at: u64,
    ) -> bool {
        if !self.is_good(sequence) {
            return false;
        }
        let held = self
            .holding(at)
            .and_then(|place| self.copies[place].as_ref());
        held.is_some_and(|copy| {
            !(anonymous && copy.is_of_file) && copy.vma.protection.allows(wanted)
        })
    }

    /// Counts a lookup.
    #[inline(always)]
    pub(crate) fn count_lookup(&self) {
        count(&self.shared.calls);
    }

    /// Keeps the file of a slot until the mappings change, and returns it. A direct-access file is
    /// kept by a reference with its own count. A file that was kept for this slot before is still
    /// in the set of mappings, or in the old set, which its writer keeps until it has emptied
    /// `kept`. So this call does not drop the last reference to a file.
    #[cold]
    fn keep(&self, sequence: &Sequence, slot: usize, file: &MappedFile) -> MappedFile {
        let mut kept = self.shared.kept.lock();
        // Another slot of this cache may have the file already. One count serves both slots,
        // because only this thread's faults change it.
        let known = kept
            .iter()
            .flatten()
            .find(|known| known.key() == file.key());
        let own = known.cloned().unwrap_or_else(|| match file {
            MappedFile::Cached(_) => file.clone(),
            MappedFile::Direct(file) => MappedFile::Direct(file.with_own_count()),
        });
        // `kept` is locked here. A thread that increments the number empties `kept` afterwards:
        // either after this call, or before it, and then this thread sees the new number.
        if self.is_good(sequence) {
            kept[slot] = Some(own.clone());
        }
        own
    }

    #[cold]
    fn flush(&mut self, number: u64) {
        self.shared.number.store(number, Ordering::Relaxed);
        self.copies = Default::default();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
