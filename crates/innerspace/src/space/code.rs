//! Pages that code was fetched from: their generations, by which a translator can tell that what it
//! made of them is stale.
//!
//! A page is *watched* from the first [`Accessor::watch_code`] on. A fault that makes a watched
//! page writable counts one generation first, in its section. To watch: close the gate on the page,
//! so that no fault is between its count and the page's word; make the page read-only; wait for a
//! grace period; read the generation; open the gate. Stores that needed no fault began before the
//! page was read-only, so are over when the grace period is; whoever makes it writable again counts
//! after the generation was read. The grace period is needed whoever made the page read-only:
//! writeback, aging and samples do it, too, and a store may be under way by what the page was.
//!
//! The gate has to be closed for the page's own sake as well: a fault that copies it must find its
//! word changed if there were stores to it meanwhile (`pte`).
//!
//! A page of a file may be shown elsewhere, too: at other addresses, in forks, in other spaces.
//! Stores there count as well. Its generation is known to the pool (`reclaim::watched`) by the
//! file's page, and a fault that makes such a page writable anywhere counts it, in its section. No
//! gate keeps these faults out, so the watcher goes by their counts: it makes itself known; reads
//! the generation; waits for a grace period, by which every fault is over that did not see it, or
//! counted before it read; takes the right to store away in every space (`Revoke::Write`); waits
//! for a grace period, by which the stores are over. What is writable after that was made so by a
//! fault that counted after the generation was read.
//!
//! A call that writes to a page of a file counts afterwards, in a section of its own: either that
//! is seen to be open by a watcher's grace period, and then the bytes are there before the watcher
//! fetches them; or it sees that the page is watched, and counts. It looks whether anybody maps the
//! page once the bytes are there: who maps it later finds them.
//!
//! Structural changes count a generation first, too: who finds a page as they leave it finds its
//! code stale, and their writer keeps watchers out from before the count until they are over. Files
//! that take pages away count once the page's word is changed, with its block locked.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::exec::reentry::is_in_callback;
use crate::space::access::accessor::Accessor;
use crate::space::access::single::Single;
use crate::space::core::error::{AccessKind, Fault, FaultKind};
use crate::space::table::pte::{self, VALID_W};
use crate::space::table::{LEAF_BYTES, Nodes, slot_index};
use crate::space::vma::area::Vma;
use crate::space::vma::set::VmaSet;
use crate::space::{SpaceInner, page_start};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, failpoint};
use crate::{PAGE_SIZE, VirtAddr};

/// The watched pages of a space.
#[derive(Debug, Default)]
pub(super) struct Code {
    /// Their number, for those who need not look closer.
    watched: AtomicUsize,
    /// By the address of the page.
    pages: Mutex<BTreeMap<u64, Arc<AtomicU64>>>,
}

/// The state of a page that code was fetched from; see [`Accessor::watch_code`].
#[derive(Clone, Debug)]
pub struct CodePage {
    generation: Arc<AtomicU64>,
    seen: u64,
}

impl CodePage {
    /// Whether nothing was stored to the page, nor its mapping changed, since it was watched. Costs
    /// one load.
    ///
    /// [`Accessor::watch_code`] says which stores count. It may also say false where nothing was
    /// stored: where a store began at the same time, or pages of the file were taken away. It never
    /// turns true again.
    #[inline]
    pub fn is_current(&self) -> bool {
        self.generation.load(Ordering::Acquire) == self.seen
    }

    /// The generation that was seen. Counts up, by one or more, for a run of stores.
    pub fn generation(&self) -> u64 {
        self.seen
    }
}

impl Code {
    /// A fault is about to make the page at `at` writable. In its section.
    #[inline(always)]
    fn written(&self, at: u64) {
        if self.watched.load(Ordering::Acquire) != 0 {
            self.changed(&(page_start(at)..page_start(at) + 1));
        }
    }

    /// Pages that begin in the range show something else now.
    pub(super) fn changed(&self, range: &Range<u64>) {
        if self.watched.load(Ordering::Acquire) == 0 {
            return;
        }
        for (_, generation) in self.pages.lock().range(range.clone()) {
            // Release: whoever sees the new number sees that the page is no longer what it was.
            generation.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Watched pages of the range that show a file may show something else now, with nobody to
    /// tell.
    fn left_out(&self, vmas: &VmaSet, range: &Range<u64>) {
        for (page, generation) in self.pages.lock().range(range.clone()) {
            let shown = vmas.find_containing(*page);
            if shown.is_some_and(|vma| vma.file().is_some()) {
                // Release: as in `changed`.
                generation.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    fn watch(&self, page: u64) -> Arc<AtomicU64> {
        let mut pages = self.pages.lock();
        let generation = pages.entry(page).or_default().clone();
        self.watched.store(pages.len(), Ordering::Release);
        generation
    }
}

impl SpaceInner {
    /// The leaves that show this range may have been copied. A copy leaves out what shows a file,
    /// which faults in again: until then nobody who changes such a page comes by this space, so it
    /// counts as changed.
    pub(super) fn leaves_copied(&self, range: &Range<u64>) {
        if self.code.watched.load(Ordering::Acquire) == 0 {
            return;
        }
        let start = |at| at & !(LEAF_BYTES - 1);
        let leaves = start(range.start)..start(range.end - 1) + LEAF_BYTES;
        // mutant: V11-copied (test after_forks: code_of_a_file_is_stale_after_a_write_though_its_leaf_was_copied) not counted
        if cfg!(not(mutant = "V11-copied")) {
            self.inside(|tables| self.code.left_out(tables.vmas, &leaves));
        }
    }

    /// A fault is about to make the page at `at` writable: tells all who watch for stores. In its
    /// section, inside the gate.
    #[inline(always)]
    pub(super) fn written(&self, at: u64) {
        self.code.written(at);
        self.dirty.stored(self, at);
        failpoint!(WatchersNotified);
    }

    /// The same, of a page that belongs to the file that `vma` shows there.
    pub(super) fn file_written(&self, vma: &Vma, at: u64) {
        if let Some(file) = vma.file() {
            let page = vma.file_page(page_start(at));
            // mutant: V11-file (test devices: a_store_to_the_same_page_of_a_file_counts_wherever_it_comes_from) by address alone
            if cfg!(not(mutant = "V11-file")) {
                self.pool.watched.stored(file.key(), page..page + 1);
            }
        }
        self.written(at);
    }

    /// Takes the write validity of the page away; whether it had any. The gate is closed on it.
    fn end_writes(&self, page: u64) -> bool {
        let nodes = Nodes { pool: &self.pool };
        self.inside(|tables| {
            let leaf = nodes.find(tables.root, page);
            leaf.is_some_and(|leaf| {
                let word = &nodes.words(leaf.frame)[slot_index(page, 0)];
                pte::take_valid(word, VALID_W).has(VALID_W)
            })
        })
    }
}

impl Accessor {
    /// Watches the page of `at`, whose mapping has to allow execution, for changes: call it, then
    /// fetch and translate; what was made of the page is stale as soon as [`CodePage::is_current`]
    /// is false.
    ///
    /// What counts is every store by an accessor to what the page shows: by any accessor of this
    /// space; of a page of a file, also through other mappings of the file, in this space, in its
    /// forks and in others of the same [`Memory`](crate::Memory), and by functions of the file such
    /// as [`PagedFile::write_at`](crate::PagedFile::write_at), once they return. What does not
    /// count: writes to the file by others outside; and what is written to a page by way of a pin.
    ///
    /// Waits for grace periods: it costs a few microseconds. The space remembers each page it was
    /// called for, in some tens of bytes.
    ///
    /// There is no `try_` form, for the grace periods are what it is made of. All else that it may
    /// wait for is the page itself, which [`Accessor::try_fetch`] has, or
    /// [`Space::ready`](crate::Space::ready), and changes of the mappings.
    ///
    /// # Errors
    /// The [`Fault`] of a fetch there.
    pub fn watch_code(&mut self, at: VirtAddr) -> Result<CodePage, Fault> {
        let space = self.core.space.clone();
        if is_in_callback(space.id) {
            // Also where the page is at hand: the change that the callback works for has the
            // writer.
            let kind = FaultKind::Reentered;
            return Err(Fault::new(kind, at, AccessKind::Fetch, 0));
        }
        self.core.have_in::<Single>(at, AccessKind::Fetch)?;
        let page = page_start(at.0);
        let generation = space.code.watch(page);
        let domain = &space.pool.domain;
        let writer = space.gate.write();
        let shown = writer.vmas.find_containing(page);
        let file = shown.and_then(|vma| Some((vma.file()?.clone(), vma.file_page(page))));
        if let Some((file, number)) = &file {
            space.pool.watched.watch(file.key(), *number, &generation);
        }
        let counted = generation.load(Ordering::Acquire);
        // mutant: V11 (test: a_page_is_not_watched_beside_a_store_that_has_counted_and_not_stored) nobody is waited for
        // mutant: A1-copy (test: a_store_beside_the_copy_of_its_page_is_not_lost_to_a_watch) nobody is kept out
        let closed = cfg!(not(any(mutant = "V11", mutant = "A1-copy")))
            .then(|| writer.close(domain, &(page..page + PAGE_SIZE as u64), || ()));
        if cfg!(mutant = "A1-copy") {
            domain.synchronize();
        }
        failpoint!(PageGated);
        if space.end_writes(page) {
            space.changes.doubt();
            // mutant: A1-watch (test: a_store_to_a_coalesced_leaf_counts_once_its_page_is_watched) the leaf stays coalesced
            if cfg!(not(mutant = "A1-watch")) {
                space.post_coalesced(page);
            }
        }
        // mutant: V11-taken (test: a_page_is_not_watched_beside_a_store_whose_page_was_aged) read-only is at rest
        let wait = || match cfg!(mutant = "V11-taken") {
            true => {}
            false => domain.synchronize(),
        };
        if let Some((file, number)) = &file {
            wait();
            // mutant: V11-alias (test devices: a_store_to_the_same_page_of_a_file_counts_wherever_it_comes_from; shuttle: code_beside_stores_elsewhere_is_current_or_known_to_be_stale) writable elsewhere
            if cfg!(not(mutant = "V11-alias")) {
                file.revoke_write(*number..number + 1);
            }
        }
        wait();
        let seen = match &file {
            Some(_) => counted,
            None => generation.load(Ordering::Acquire),
        };
        drop(closed);
        drop(writer);
        Ok(CodePage { generation, seen })
    }
}
