//! Revoking pages of files: from a file's pages to the words that map them, for eviction,
//! truncation, writeback and aging.
//!
//! There is one mapper for each pair of space and file. It looks up the space's mappings of the
//! pages (`rmap`) and empties their words, or takes only their validity for stores or for all
//! accesses. Words in shared subtrees are changed where they are, which is right for every sharer
//! (I11). The caller waits for a grace period before it frees, cleans or reuses anything.
//!
//! A caller that empties words of pages holds the lock of their block or entry, so that no such
//! word is installed meanwhile. It leaves the words of other blocks alone (`steps`). Five callers
//! hold no such lock. Aging takes only validity. So do a call that watches a page of code, and
//! `restamp_mappings` of the cache, which makes stores take the slow path again. The sweep of holes
//! empties only words of zeros, and faults ask the store again afterwards.
//! [`SpaceInner::sample_use`] is called by an access, not by the file, and ages one word.

use std::ops::Range;

use crate::cache::{Cache, Mappers, Revoke};
use crate::frame::Dropped;
use crate::space::core::address::{LEAF_BYTES, leaf_number, slot_index};
use crate::space::core::space::SpaceInner;
use crate::space::table::pte::{self, Holds, VALID, VALID_R, VALID_W, VALID_X};
use crate::space::vma::area::{MappedFile, Vma};
use crate::space::vma::set::VmaSet;
use crate::sync::domain::Post;
use crate::sync::raw::AtomicU64;
use crate::sync::{Arc, Weak, failpoint};

/// The number of pages that are handled in one section.
const PAGES_A_SECTION: u64 = 512;

/// The most pages that are passed over in one section because they have no leaf: 16 GiB, so that
/// only about 16 nodes above the leaves are looked at.
const PAGES_PASSED_OVER: u64 = 1 << 22;

struct SpaceMapper {
    space: Weak<SpaceInner>,
    cache: Arc<Cache>,
    owner: u64,
    /// The file's key. The file is open while the mapper is registered, so no other file has this
    /// key meanwhile.
    file: usize,
}

/// Creates the mapper that revokes the pages of a file in a space.
pub(crate) fn mapper(space: &Arc<SpaceInner>, file: &MappedFile) -> Arc<dyn Mappers> {
    Arc::new(SpaceMapper {
        space: Arc::downgrade(space),
        cache: space.cache.clone(),
        owner: space.id,
        file: file.key(),
    })
}

impl Mappers for SpaceMapper {
    fn owner(&self) -> u64 {
        self.owner
    }

    fn has_locked(&self, pages: Range<u64>) -> bool {
        let _visit = self.cache.visit();
        let Some(space) = self.space.upgrade() else {
            return false;
        };
        let locked = space.inside(|vmas| {
            let mut showing = vmas.showing(self.file, &pages);
            // A snapshot records locks for restores, but keeps no pages in memory for them.
            vmas.has_locked() && !space.is_frozen() && showing.any(|(vma, _)| vma.is_locked())
        });
        hand_on(space);
        locked
    }

    fn revoke(&self, pages: Range<u64>, how: Revoke) {
        self.in_parts(pages, how, |space, vmas, part| {
            space.revoke_part(vmas, self.file, part, how);
        });
        failpoint!(Revoked);
    }

    fn age(&self, pages: Range<u64>, used: &mut dyn FnMut(u64)) {
        self.in_parts(pages, Revoke::All, |space, vmas, part| {
            space.age_part(vmas, self.file, part, used);
        });
        failpoint!(Revoked);
    }
}

impl SpaceMapper {
    /// Calls `work` for the parts of a range, each in a section. Parts that are not mapped are
    /// skipped, because the range of a truncation may have no end. Parts without a leaf are
    /// skipped, because a mapping may have 2^36 pages; not so for [`Revoke::Tables`], which has
    /// work to do there too.
    fn in_parts(
        &self,
        pages: Range<u64>,
        how: Revoke,
        mut work: impl FnMut(&SpaceInner, &VmaSet, &Range<u64>),
    ) {
        let _visit = self.cache.visit();
        let Some(space) = self.space.upgrade() else {
            return;
        };
        let (mut from, mut len) = (pages.start, PAGES_A_SECTION);
        while from < pages.end {
            let part = from..pages.end.min(from.saturating_add(len));
            if len == PAGES_A_SECTION {
                space.inside(|vmas| work(&space, vmas, &part));
            } else if space.inside(|vmas| space.has_leaf(vmas, self.file, &part)) {
                len = PAGES_A_SECTION;
                continue;
            }
            from = part.end;
            if how != Revoke::Tables {
                len = PAGES_PASSED_OVER.min(2 * len);
            }
            if from < pages.end {
                match space.inside(|vmas| vmas.first_page(self.file, from)) {
                    Some(next) => from = from.max(next),
                    None => break,
                }
            }
        }
        hand_on(space);
    }
}

/// Drops a reference to a space. If it is the last, the drop is deferred: it tears the space down,
/// which must not happen under the caller's block lock.
fn hand_on(space: Arc<SpaceInner>) {
    if let Some(space) = Arc::into_inner(space) {
        let (cache, group) = (space.cache.clone(), space.group_id());
        cache.defer(group, None, move || drop(space));
    }
}

impl SpaceInner {
    /// Samples an access to the page of a file at `at`. If the sampler wants to see the next use
    /// too, the page loses its validity, as in aging. The access may use the page while its section
    /// is open; the next access faults. The caller is in a section.
    #[cold]
    pub(crate) fn sample_use(&self, at: u64) {
        let nodes = self.nodes();
        let Some(leaf) = nodes.find(at) else {
            return;
        };
        let word = &nodes.words(leaf.frame)[slot_index(at, 0)];
        let page = pte::load(word);
        if page.holds() == Holds::File {
            let head = self.pool.frames.head_of(nodes.frame_of(page));
            if self.pool.sample_mapped(head) {
                let _aged = pte::take_valid_of_file(word, page, VALID);
            }
        }
    }

    fn age_part(&self, vmas: &VmaSet, file: usize, pages: &Range<u64>, used: &mut dyn FnMut(u64)) {
        let nodes = self.nodes();
        for (vma, addresses) in vmas.showing(file, pages) {
            nodes.for_each_slot(&addresses, |at, word| {
                let before = pte::take_valid_of_file(word, pte::load(word), VALID);
                if before.is_some_and(|page| page.has(VALID_R) || page.has(VALID_X)) {
                    used(vma.file_page(at));
                }
            });
        }
    }

    /// Returns whether there may be a leaf for the pages. Also true if more ranges map them than
    /// are looked at in one section.
    fn has_leaf(&self, vmas: &VmaSet, file: usize, pages: &Range<u64>) -> bool {
        let mut showing = vmas.showing(file, pages).zip(0_u64..);
        showing.any(|((_, addresses), count)| {
            count == PAGES_A_SECTION || self.nodes().has_leaf(&addresses)
        })
    }

    fn revoke_part(&self, vmas: &VmaSet, file: usize, pages: &Range<u64>, how: Revoke) {
        let nodes = self.nodes();
        failpoint!(Revocation);
        for (vma, addresses) in vmas.showing(file, pages) {
            nodes.for_each_slot(&addresses, |at, word| self.revoke_word(vma, at, word, how));
            if how == Revoke::Tables {
                self.revoke_tables(addresses);
            }
        }
    }

    /// Unlinks the leaf of zeros from each 2 MiB at these addresses. A fork that shares the node
    /// above may have unlinked it already, without telling this space's accessors, so they are told
    /// in any case.
    fn revoke_tables(&self, addresses: Range<u64>) {
        let nodes = self.nodes();
        for at in addresses.step_by(LEAF_BYTES as usize) {
            nodes.unlink_zero_leaf(at);
            self.code.changed(&(at..at + LEAF_BYTES));
            self.post(Post::One(leaf_number(at)));
        }
    }

    fn revoke_word(&self, vma: &Vma, at: u64, word: &AtomicU64, how: Revoke) {
        let mut now = pte::load(word);
        if how == Revoke::Write {
            let _before = pte::take_valid_of_file(word, now, VALID_W);
            return;
        }
        // After the word was loaded, aging may change it, a write fault may install a private copy,
        // and a read fault may install the page that ends a hole. So the word is replaced only if
        // it is unchanged, and otherwise loaded again.
        while self.may_empty(vma, at, now, how) {
            if pte::replace(word, now, pte::Pte::EMPTY) {
                self.code.changed(&(at..at + 1));
                // A fork may share the word, and its own mapper then finds the word empty. So the
                // page is noted as stored to here, for all spaces.
                if let Some(file) = vma.file() {
                    let page = vma.file_page(at);
                    self.pool.watched.stored(file.key(), page..page + 1);
                }
                if now.holds() == Holds::File {
                    let frames = &self.pool.frames;
                    let head = frames.head_of(self.nodes().frame_of(now));
                    let dropped = frames.meta(head).hold.unmap();
                    debug_assert_eq!(dropped, Dropped::Held, "the revoker has its block");
                }
                return;
            }
            now = pte::load(word);
        }
    }

    /// Returns whether the revoker may empty the word at `at`. The address was in a mapping of the
    /// file when the revoker's section began. If the word leads to a page of a cached file, only
    /// the revoker that has locked the page's block may empty it: see `steps`.
    fn may_empty(&self, vma: &Vma, at: u64, now: pte::Pte, how: Revoke) -> bool {
        match now.holds() {
            Holds::File | Holds::Direct if how == Revoke::Holes => false,
            Holds::File => vma.shows_frame(at, self.nodes().frame_of(now)),
            Holds::Direct | Holds::Zero => true,
            // The word is empty or leads to a private copy.
            Holds::Nothing | Holds::Own | Holds::Borrowed => false,
        }
    }
}
