//! Watching a page that code is fetched from; `code` has the protocol.

use crate::exec::reentry::is_in_callback;
use crate::space::access::accessor::Accessor;
use crate::space::access::single::Single;
use crate::space::code::{Code, CodePage};
use crate::space::core::address::{page_start, slot_index};
use crate::space::core::error::{AccessKind, Fault, FaultKind};
use crate::space::core::space::SpaceInner;
use crate::space::table::nodes::Nodes;
use crate::space::table::pte::{self, VALID_W};
use crate::sync::atomic::Ordering;
use crate::sync::failpoint;
use crate::{PAGE_SIZE, VirtAddr};

impl SpaceInner {
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
        Ok(Code::page(generation, seen))
    }
}
