//! Pins: pages of private memory that stay where they are, for code that reads and writes them by
//! their address in the process: a device of the program's own, a system call, foreign code.
//!
//! - accessors load and store it: they use the same bytes as the pin
//! - [`Space::fork`], [`Space::freeze`]: the space keeps it, and stores to it with no fault; the
//!   fork or snapshot gets a copy of its own. Pinned with [`AtFork::Refuse`]: refused,
//!   [`SpaceError::PinnedAlone`]
//! - [`Space::restore`]: refused, [`SpaceError::Pinned`]
//! - unmap, map over it, `Advice::DontNeed`, the space ends: it leaves the space, stays charged,
//!   and lives on until it is unpinned
//! - remap: it goes to the new address, pinned as before
//! - protect: stays pinned; a pin is not asked for rights again
//! - it is pinned again: it is pinned until the last of its pins is dropped
//!
//! This is as in Linux (FOLL_PIN), except for the snapshots and refusals, which Linux does not
//! have.
//!
//! # How
//!
//! A pinned page is the space's own, in a leaf and on a path that it shares with nobody. A store
//! leaves it so, and only a fork would change that. So a fork gives the child copies of the nodes
//! on the path and of the leaf at once: its pinned pages are copied, the others shared by a
//! reference each. The cost is in proportion to the pages in leaves with pinned pages. The hold
//! word of a page counts its pins; the space remembers the leaves in which there may be such pages
//! (`PinnedLeaves`), and forgets those in which there are none any more when it next looks.
//!
//! Locking: pinning holds the gate's writer, but leaves the gate open: a store fault has installed
//! the page before, and only another writer can have taken it away since; then the fault is
//! repeated. Unpinning takes no lock, and works from any thread, also after the space has ended.

use std::fmt;
use std::ops::Range;

use crate::exec::reentry::InCallback;
use crate::group::{Group, HeapBytes, MayReclaim};
use crate::reclaim::{AllocMode, PoolFrame};
use crate::space::core::error::{AccessKind, Fault, FaultKind, SpaceError, checked_range};
use crate::space::core::space::{Space, SpaceInner};
use crate::space::core::structure::Structure;
use crate::space::table::nodes::{Nodes, TooManyForks};
use crate::space::table::pinned::{NotPinned, Pins};
use crate::space::table::{self};
use crate::space::vma::area::{Backing, Vma};
use crate::space::vma::protection::{Protection, Sharing};
use crate::space::vma::set::VmaSet;
use crate::sync::gate::Writer;
use crate::{FrameId, PAGE_SIZE, PageCount, VirtAddr};

/// Bytes of the counts beside a list of frames.
const ARC_BYTES: usize = 16;

/// Bytes in which a space notes a pin that a fork may not copy.
const NOTED_BYTES: usize = 16;

/// What a fork or a snapshot does about a pinned page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtFork {
    /// Copies it: the child starts with the bytes as they are then. A concurrent write through the
    /// pin may be copied in part.
    Copy,
    /// Fails, with nothing changed.
    Refuse,
}

/// Pages of a space that stay where they are in the process for as long as this lives; made by
/// [`Space::pin`].
///
/// It does not need the space: pages that were unmapped meanwhile stay readable and writable here,
/// and nowhere else.
///
/// ```
/// use innerspace::{AtFork, MIB, Map, Memory};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let space = Memory::with_limit(4 * MIB)?.space()?;
/// let at = space.map(Map::anonymous(64 * 1024))?;
/// let ring = space.pin(at, 8192, AtFork::Copy)?;
/// ring.write(4090, b"from a device");
/// let mut a = space.accessor()?;
/// let mut seen = [0; 13];
/// a.read(at + 4090, &mut seen)?;
/// assert_eq!(&seen, b"from a device");
/// let child = space.fork()?;
/// ring.write(0, b"x");
/// assert_eq!(a.load::<u8>(at)?, b'x'); // the pin is the parent's
/// assert_eq!(child.accessor()?.load::<u8>(at)?, 0);
/// # Ok(()) }
/// ```
#[must_use = "the pages are unpinned when this is dropped"]
pub struct Pinned {
    pins: Pins,
    at: VirtAddr,
    /// The charge for the list of frames.
    _heap: HeapBytes,
}

/// Frames for a fork's copies of pinned pages, and of the paths to them.
#[derive(Default)]
pub(super) struct PinnedCopies<'pool> {
    /// Where the leaves start, in order.
    leaves: Vec<u64>,
    nodes: Vec<PoolFrame<'pool>>,
    pages: Vec<PoolFrame<'pool>>,
}

impl Space {
    /// Brings in the pages of `len` bytes (rounded up to whole pages) at `at`, as stores would, and
    /// keeps them at their addresses in the process until the result is dropped. They count against
    /// the limit all the while.
    ///
    /// Accessors go on loading and storing there. They see bytes written through the pin, but no
    /// watch does: [`Space::take_dirty`] does not name it, and a [`CodePage`](crate::CodePage) does
    /// not count it.
    ///
    /// # Errors
    /// [`SpaceError::NotMapped`] unless all of the range is mapped; [`SpaceError::NotPinnable`] for
    /// anything but private writable memory, anonymous or of a file; [`SpaceError::Access`] when a
    /// page cannot be brought in, or is pinned 2^20 - 1 times already; [`SpaceError::Frozen`],
    /// [`SpaceError::Reentered`], [`SpaceError::Empty`], [`SpaceError::Unaligned`],
    /// [`SpaceError::OutOfRange`], [`SpaceError::Limit`]. Nothing is pinned.
    pub fn pin(&self, at: VirtAddr, len: u64, at_fork: AtFork) -> Result<Pinned, SpaceError> {
        const WHAT: &str = "pin";
        let space = &self.0;
        space.check_live(WHAT, at, len)?;
        let range = checked_range(WHAT, at, len, space.end())?;
        let check = |vmas: &VmaSet| match vmas.covers(&range) {
            true => check_pinnable(vmas.overlapping(&range), at),
            false => Err(SpaceError::NotMapped {
                what: WHAT,
                at,
                len,
            }),
        };
        let pages = ((range.end - range.start) / PAGE_SIZE as u64) as usize;
        let noted = match at_fork {
            AtFork::Copy => 0,
            AtFork::Refuse => NOTED_BYTES,
        };
        let bytes = (ARC_BYTES + pages * size_of::<FrameId>()).next_multiple_of(8) + noted;
        let heap = self.group().charge_heap(bytes, MayReclaim::Yes)?;
        loop {
            space.inside(|tables| check(tables.vmas))?;
            self.ensure_pages(WHAT, at, len)?;
            let mut writer = space.gate.write();
            check(&writer.vmas)?;
            match space.pin_pages(&range) {
                Ok(pins) => {
                    writer
                        .pins
                        .add(&range, pins.frames(), at_fork == AtFork::Copy);
                    if writer.pins.is_look_due() {
                        let _found = space.look_for_pins(&mut writer);
                    }
                    return Ok(Pinned {
                        pins,
                        at,
                        _heap: heap,
                    });
                }
                // A fork or a restore came between.
                Err(NotPinned::NotStoredTo) => {}
                Err(NotPinned::TooMany(page)) => {
                    let page = VirtAddr(page);
                    let fault = Fault::new(FaultKind::TooManyOwners, page, AccessKind::Store, 0);
                    return Err(SpaceError::Access {
                        what: WHAT,
                        explanation: self.explain(fault),
                    });
                }
            }
        }
    }
}

impl SpaceInner {
    /// Pins the pages if they are as a store leaves them. The gate's writer is held.
    pub(super) fn pin_pages(&self, range: &Range<u64>) -> Result<Pins, NotPinned> {
        let nodes = self.nodes();
        self.inside(|tables| {
            // For the reason that `zap` takes it: the leaf could be a fork's alone.
            let _paths = self.paths.lock();
            nodes.pin_range(&self.pool, tables.root, range.start, range.end)
        })
    }

    /// All pinned pages, by address.
    fn look_for_pins(&self, writer: &mut Writer<'_, Structure>) -> Vec<(u64, FrameId)> {
        let nodes = self.nodes();
        self.inside(|tables| writer.pins.look(nodes, tables.root))
    }

    /// Refuses while there is a pinned page in the space.
    pub(super) fn check_no_pins(
        &self,
        writer: &mut Writer<'_, Structure>,
        what: &'static str,
    ) -> Result<(), SpaceError> {
        match self.look_for_pins(writer).first() {
            None => Ok(()),
            Some((at, _)) => Err(SpaceError::Pinned {
                what,
                at: VirtAddr(*at),
            }),
        }
    }
}

fn check_pinnable<'a>(
    mut vmas: impl Iterator<Item = &'a Vma>,
    at: VirtAddr,
) -> Result<(), SpaceError> {
    let cannot = |vma: &&Vma| {
        let has_pages = !matches!(vma.backing, Backing::Device { .. });
        let private = vma.sharing == Sharing::Private && vma.protection.allows(Protection::WRITE);
        !(has_pages && private)
    };
    match vmas.find(cannot) {
        None => Ok(()),
        Some(vma) => Err(SpaceError::NotPinnable {
            at: VirtAddr(vma.start.max(at.0)),
            mapping: vma.to_string(),
        }),
    }
}

impl Pinned {
    /// The first address at which the pages were when they were pinned.
    pub fn start(&self) -> VirtAddr {
        self.at
    }

    /// How many pages are pinned.
    pub fn pages(&self) -> PageCount {
        PageCount(self.pins.frames().len() as u64)
    }

    /// Where the bytes are in the process: address and length of each piece, in order, as for a
    /// vectored system call.
    ///
    /// Each stays valid for reads and writes until the pin is dropped. Accessors, and other pins,
    /// may read and write the same bytes at the same time: a Rust reference to them is sound only
    /// as long as the program knows that nobody does.
    pub fn pieces(&self) -> Vec<(*mut u8, usize)> {
        let mut pieces: Vec<(*mut u8, usize)> = Vec::new();
        for page in 0..self.pins.frames().len() {
            let host = self.pins.host(page);
            match pieces.last_mut() {
                Some((start, len)) if start.wrapping_add(*len) == host => *len += PAGE_SIZE,
                _ => pieces.push((host, PAGE_SIZE)),
            }
        }
        pieces
    }

    /// Copies the bytes from `offset` on. A concurrent store may be copied in part.
    ///
    /// # Panics
    /// If they are not all pinned.
    pub fn read(&self, offset: usize, buffer: &mut [u8]) {
        let mut rest = buffer;
        for (page, start, len) in self.split(offset, rest.len()) {
            let (piece, more) = rest.split_at_mut(len);
            self.pins.copy_out(page, start, piece);
            rest = more;
        }
    }

    /// Stores `bytes` at `offset`.
    ///
    /// # Panics
    /// If they are not all pinned.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let mut rest = bytes;
        for (page, start, len) in self.split(offset, rest.len()) {
            let (piece, more) = rest.split_at(len);
            self.pins.copy_in(page, start, piece);
            rest = more;
        }
    }

    /// The parts of a range by pages: page, offset in it, length.
    fn split(
        &self,
        offset: usize,
        len: usize,
    ) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let size = self.pins.frames().len() * PAGE_SIZE;
        assert!(
            offset <= size && len <= size - offset,
            "{len} bytes at {offset} of {size} pinned ones"
        );
        let mut at = offset;
        let end = offset + len;
        std::iter::from_fn(move || {
            let (page, start) = (at / PAGE_SIZE, at % PAGE_SIZE);
            let len = (PAGE_SIZE - start).min(end - at);
            at += len;
            (len > 0).then_some((page, start, len))
        })
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = self.pages().0;
        write!(f, "Pinned({pages} pages from {})", self.at)
    }
}

impl<'pool> PinnedCopies<'pool> {
    /// Sets aside the frames that a fork of `space` needs, charged to `group`. The gate's writer is
    /// held, so that no page is pinned until the fork is done; if pages are unpinned meanwhile it
    /// needs less.
    pub(super) fn set_aside(
        space: &'pool SpaceInner,
        writer: &mut Writer<'_, Structure>,
        what: &'static str,
        group: &Group,
    ) -> Result<PinnedCopies<'pool>, SpaceError> {
        let found = space.look_for_pins(writer);
        if found.is_empty() {
            return Ok(PinnedCopies::default());
        }
        let alone = writer.pins.not_copied();
        if let Some((at, _)) = found.iter().find(|(_, frame)| alone.contains(frame)) {
            return Err(SpaceError::PinnedAlone {
                what,
                at: VirtAddr(*at),
            });
        }
        let mut leaves: Vec<u64> = found
            .iter()
            .map(|(at, _)| at & !(table::span(1) - 1))
            .collect();
        leaves.dedup();
        let _inside = InCallback::begin(space.id);
        let frames = |count: usize| {
            let alloc = |_| space.pool.alloc(group.id(), 0, AllocMode::Wait);
            (0..count).map(alloc).collect::<Result<Vec<_>, _>>()
        };
        let nodes = frames(Nodes::nodes_for_pinned(&leaves))?;
        let pages = frames(found.len())?;
        Ok(PinnedCopies {
            leaves,
            nodes,
            pages,
        })
    }

    /// Gives the fork below `root`, which has just got all the parent's subtrees, its copies. The
    /// gate is closed.
    pub(super) fn put(&mut self, nodes: Nodes<'_>, root: FrameId) -> Result<(), TooManyForks> {
        nodes.copy_pinned(root, &self.leaves, &mut self.nodes, &mut self.pages)
    }
}
