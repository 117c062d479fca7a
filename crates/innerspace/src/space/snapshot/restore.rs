//! Going back to a snapshot, in two forms.
//!
//! - **Drop**: where the space's table differs from the snapshot's, the space gets the snapshot's subtrees back, and lets its
//!   own go. Always right. The next store to each leaf has to copy the leaf again, and the page.
//! - **In place**: the bytes of each page the space has made its own are copied back, and page and table stay. The next stores
//!   are plain stores: no fault at all. Right when nothing but stores has happened since the last restore to the same
//!   snapshot, and every page of the space's own since then is recorded (`changes`).
//!
//! In place is chosen whenever it is right: copying back a page costs less than the fault, the copy and the freeing
//! that dropping it leads to, if the page is stored to again. Whether pages are is looked at every [`AUDIT`]th time: a page that two audits
//! in a row found unchanged is given back, and when fewer than a quarter were changed, all are.
//!
//! A restore in place leaves the accessors' leaves as they are. It closes the gate and leaves [`GATE_MAIL`]: no access hits
//! before it has read the mail, and whoever reads it looks at the gate.

use super::Snapshot;
use super::changes::{Changed, Changes, Record};
use crate::FrameId;
use crate::space::pte::{self, Holds, Pte};
use crate::space::table::{Detached, Image, Nodes, slot_index};
use crate::space::translate::{GATE_MAIL, leaf_number};
use crate::space::vma::Vma;
use crate::space::{Role, Space, SpaceError, SpaceInner, Tables};
use crate::stats::Event;
use crate::sync::domain::Post;
use crate::sync::gate::{Closed, Writer};
use crate::sync::raw::AtomicU64;

/// Restores in place from one look at which pages had changed to the next.
const AUDIT: u32 = 16;

impl Space {
    /// Goes back to `snapshot`: mappings, protections and private bytes are as they were then; what files show is not
    /// part of it. The snapshot must be one of this space, or the one this space was forked from. Costs time in proportion to what was changed since; a space that goes back to the same snapshot
    /// again and again, having stored to much the same pages each time, pays a copy of each of these pages and little more.
    ///
    /// # Errors
    /// [`SpaceError::OtherSpace`]; [`SpaceError::TooManyForks`]; [`SpaceError::Frozen`]. The space is as it was.
    pub fn restore(&self, snapshot: &Snapshot) -> Result<(), SpaceError> {
        let space = &*self.0;
        space.check_live("restore")?;
        let image = &*snapshot.0.0;
        let (of, is) = (image.role, image.id);
        let own = of == Role::Frozen { of: space.id };
        if !own && space.role != (Role::Live { born_of: Some(is) }) {
            return Err(SpaceError::OtherSpace);
        }
        let mut writer = space.tables.write();
        if let Some(known) = space.changes.take() {
            if known.snapshot == is && space.restore_in_place(image, &mut writer, known) {
                drop(writer);
                space.pool.safe_point();
                return Ok(());
            }
            Changes::uncharge(&space.pool, space.group_id());
        }
        self.restore_by_dropping(image, writer)
    }

    fn restore_by_dropping(
        &self,
        image: &SpaceInner,
        mut writer: Writer<'_, Tables>,
    ) -> Result<(), SpaceError> {
        let space = &*self.0;
        let nodes = Nodes { pool: &space.pool };
        // The image never changes its mappings, nor loses a part of its table.
        let (theirs, vmas) = image.inside(|tables| (tables.root, tables.vmas.clone()));
        for file in vmas.iter().filter_map(Vma::file) {
            self.use_file(file);
        }
        let mut detached = Detached::default();
        let mut closed = writer.close(&space.pool.domain, || space.post(Post::All));
        let planned = nodes.plan_restore(closed.root, theirs);
        let restored = planned.map(|plan| {
            nodes.apply_plan(plan, &mut detached);
            closed.vmas = vmas;
            space.start_record(image.id, &closed);
            space.pool.counters.count(Event::RestoreDrop);
        });
        drop(closed);
        self.drop_unused_files(&writer);
        drop(writer);
        space.finish(detached);
        restored.map_err(|_| SpaceError::TooManyForks)
    }
}

impl SpaceInner {
    fn start_record(&self, snapshot: u64, closed: &Closed<'_, Tables>) {
        if let Some(charge) = Changes::charge(&self.pool, self.group_id()) {
            let _group = charge.commit();
            self.changes.set(Record {
                snapshot,
                closings: closed.closings(),
                pages: Vec::new(),
                restores: 0,
            });
        }
    }

    /// Copies back what is recorded; false, with nothing changed, if that is not right or not worth it.
    fn restore_in_place(
        &self,
        image: &SpaceInner,
        writer: &mut Writer<'_, Tables>,
        mut known: Record,
    ) -> bool {
        let nodes = Nodes { pool: &self.pool };
        let theirs = image.inside(|tables| tables.root);
        let closed = writer.close(&self.pool.domain, || self.post(GATE_MAIL));
        if closed.closings() != known.closings + 1 {
            return false; // something else has changed the structure
        }
        let mut walk = Walk::new(nodes, &closed, theirs);
        if !known.pages.iter().all(|page| walk.can_overwrite(page.at)) {
            return false;
        }
        known.restores += 1;
        if known.restores.is_multiple_of(AUDIT) && !walk.audit(&mut known.pages) {
            return false;
        }
        let pages = known.pages.len() as u64;
        known.pages.retain(|page| walk.bring_back(page));
        known.closings = closed.closings();
        self.pool.counters.count(Event::RestoreInPlace);
        self.pool.counters.add(Event::RestorePages, pages);
        self.changes.set(known);
        true
    }
}

/// Looks pages up in the space's table and in the image's.
struct Walk<'a> {
    nodes: Nodes<'a>,
    tables: &'a Tables,
    theirs: FrameId,
    /// The leaves looked at last: number, the space's, the image's.
    leaf: Option<(u64, FrameId, Option<FrameId>)>,
}

/// A page of the space's own and what it is to be.
struct Pair<'a> {
    word: &'a AtomicU64,
    page: Pte,
    image: Option<Image>,
    /// Where the image has the page.
    theirs: Option<FrameId>,
    slot: usize,
}

impl<'a> Walk<'a> {
    fn new(nodes: Nodes<'a>, tables: &'a Tables, theirs: FrameId) -> Walk<'a> {
        Walk {
            nodes,
            tables,
            theirs,
            leaf: None,
        }
    }

    fn leaves(&mut self, at: u64) -> Option<(FrameId, Option<FrameId>)> {
        let number = leaf_number(at);
        match self.leaf {
            Some((known, ours, theirs)) if known == number => Some((ours, theirs)),
            _ => {
                let ours = self.nodes.find(self.tables.root, at);
                let ours = ours.filter(|leaf| leaf.exclusive)?.frame;
                let theirs = self.nodes.find(self.theirs, at).map(|leaf| leaf.frame);
                self.leaf = Some((number, ours, theirs));
                Some((ours, theirs))
            }
        }
    }

    /// The page at `at` if it is the space's alone, in a leaf of its own.
    fn pair(&mut self, at: u64) -> Option<Pair<'a>> {
        let (ours, theirs) = self.leaves(at)?;
        let slot = slot_index(at, 0);
        let word = &self.nodes.words(ours)[slot];
        let page = pte::load(word);
        if page.holds() != Holds::Own || !self.nodes.is_sole_owner(page) {
            return None;
        }
        let their = theirs.map_or(Pte::EMPTY, |leaf| pte::load(&self.nodes.words(leaf)[slot]));
        let image = match their.holds() {
            Holds::Own | Holds::Borrowed => Some(Image::Page(self.nodes.frame_of(their))),
            _ if self.shows_file(at) => None,
            _ => Some(Image::Zeros),
        };
        Some(Pair {
            word,
            page,
            image,
            theirs,
            slot,
        })
    }

    fn shows_file(&self, at: u64) -> bool {
        let vma = self.tables.vmas.find_containing(at);
        vma.is_none_or(|vma| vma.file().is_some())
    }

    fn can_overwrite(&mut self, at: u64) -> bool {
        self.pair(at).is_some()
    }

    /// Notes which pages are as in the image; false if most are, so that keeping them is not worth it.
    fn audit(&mut self, pages: &mut [Changed]) -> bool {
        let mut changed = 0;
        for page in &mut *pages {
            let pair = self.pair(page.at).expect("checked before");
            let same = pair
                .image
                .is_some_and(|image| self.nodes.is_as(pair.page, image));
            page.idle = if same { page.idle + 1 } else { 0 };
            changed += usize::from(!same);
        }
        changed * 4 >= pages.len()
    }

    /// Makes the page as in the image; false if the space no longer has one of its own.
    fn bring_back(&mut self, page: &Changed) -> bool {
        let pair = self.pair(page.at).expect("checked before");
        match pair.image {
            Some(image) if page.idle < 2 => {
                self.nodes.overwrite(pair.page, image);
                true
            }
            Some(Image::Page(_)) => {
                let theirs = pair.theirs.expect("the image has the page in a leaf");
                !self.nodes.share_page(pair.word, theirs, pair.slot)
            }
            Some(Image::Zeros) | None => {
                self.nodes.retire_page(pte::take(pair.word));
                false
            }
        }
    }
}
