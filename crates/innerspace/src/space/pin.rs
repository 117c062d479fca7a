//! Pins: pages of private memory that keep their address in the process, for code that reads and
//! writes them by that address: one of the program's devices, a system call, foreign code.
//!
//! The effect of each operation on a pinned page:
//!
//! - load, store: accessors and the pin use the same bytes
//! - `Space::fork`, `Space::freeze`: the space keeps the page, and stores to it with no fault; the
//!   fork or snapshot gets its own copy. With [`AtFork::Refuse`] the operation is refused
//!   ([`SpaceError::PinnedAlone`])
//! - `Space::restore`: refused ([`SpaceError::Pinned`])
//! - unmap, map over it, `discard`, the end of the space: the page leaves the space, stays
//!   charged, and exists until it is unpinned
//! - remap: the page moves to the new address, and stays pinned
//! - protect: the page stays pinned; a pin does not check rights again
//! - another pin: the page is pinned until its last pin is dropped
//!
//! All this is as in Linux (FOLL_PIN), except for snapshots and refusals, which Linux does not
//! have.
//!
//! # How
//!
//! A pinned page belongs to the space alone, in a leaf and on a path that the space does not share.
//! A store makes it so, and only a fork would change that. So a fork gives the child copies of the
//! leaf and of the nodes on the path. In the copied leaf, pinned pages are copied, and the others
//! shared by a reference to each. The cost is in proportion to the pages in leaves with pinned
//! pages. The hold word of a page counts its pins. The nodes that lead to pinned pages are marked,
//! and unmarked if the next fork or restore finds no pinned page below them.
//!
//! Locking: pinning holds the gate's writer lock, but leaves the gate open. Before that, a store
//! fault has installed the page. If another writer has removed the page since, the fault is
//! repeated. Unpinning takes no lock, and works from any thread, even after the space has ended.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use crate::dax::pieces;
use crate::exec::reentry::Inside;
use crate::group::{Group, HeapBytes, MayReclaim};
use crate::reclaim::{AllocMode, PoolFrame};
use crate::space::core::error::SpaceError;
use crate::space::core::fault::{AccessKind, Fault, FaultKind};
use crate::space::core::space::SpaceInner;
use crate::space::core::structure::Structure;
use crate::space::table::nodes::{Nodes, TooManyForks};
use crate::space::table::pinned::{NotPinned, Pins};
use crate::space::vma::area::Vma;
use crate::space::vma::protection::{Protection, Sharing};
use crate::space::vma::set::VmaSet;
use crate::sync::gate::Writer;
use crate::sync::{Arc, Weak};
use crate::{FrameId, PAGE_SIZE, PageCount, VirtAddr};

/// The size of the reference counts that an `Arc` keeps next to a list of frames.
const ARC_BYTES: usize = 16;

/// The number of bytes that a space needs to note a pin with [`AtFork::Refuse`].
const NOTED_BYTES: usize = 16;

/// How a fork or a snapshot treats a pinned page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AtFork {
    /// The page is copied: the child starts with its present bytes. A concurrent write through the
    /// pin may be copied in part.
    Copy,
    /// The fork or snapshot fails, with nothing changed.
    Refuse,
}

/// Pages of a space that keep their address in the process while this value lives;
/// [`Space::pin`](crate::Space::pin) makes it.
///
/// A pin does not need the space: pages that were unmapped meanwhile stay readable and writable
/// through the pin, and through nothing else.
///
/// ```
/// use innerspace::{MIB, Map, Memory, space::AtFork};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let space = Memory::with_limit(4 * MIB)?.create_space()?;
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
    /// The charge for the list of frames and, with [`AtFork::Refuse`], for the space's note of the
    /// pin.
    _heap: HeapBytes,
}

/// Frames for a fork's copies of pinned pages, and of the paths to them.
#[derive(Default)]
pub(super) struct PinnedCopies<'pool> {
    nodes: Vec<PoolFrame<'pool>>,
    pages: Vec<PoolFrame<'pool>>,
}

/// Implements [`Space::pin`](crate::Space::pin). `ensure_pages` brings in the pages as stores
/// would.
pub(super) fn pin(
    space: &SpaceInner,
    at: VirtAddr,
    len: u64,
    at_fork: AtFork,
    ensure_pages: impl Fn(&'static str) -> Result<(), SpaceError>,
) -> Result<Pinned, SpaceError> {
    let what = "pin";
    let range = space.live_range(what, at, len)?;
    let check = |vmas: &VmaSet| {
        vmas.check_covers(&range, what, len)?;
        check_pinnable(vmas.overlapping(&range), at)
    };
    let pages = ((range.end - range.start) / PAGE_SIZE as u64) as usize;
    let noted = match at_fork {
        AtFork::Copy => 0,
        AtFork::Refuse => NOTED_BYTES,
    };
    let bytes = (ARC_BYTES + pages * size_of::<FrameId>()).next_multiple_of(8) + noted;
    let _heap = space.group.charge_heap(bytes, MayReclaim::Yes)?;
    loop {
        space.inside(|vmas| check(vmas))?;
        ensure_pages(what)?;
        let mut writer = space.gate.write();
        check(&writer.vmas)?;
        match pin_pages(space, &range) {
            Ok(pins) => {
                if at_fork == AtFork::Refuse {
                    if writer.not_copied.len() == writer.not_copied.capacity() {
                        writer.forget_unpinned();
                        let live = writer.not_copied.len();
                        writer.not_copied.reserve(live);
                    }
                    writer.not_copied.push(Arc::downgrade(pins.frames()));
                }
                return Ok(Pinned { pins, at, _heap });
            }
            // Another change, such as a fork, came between `ensure_pages` and the writer lock. So
            // the loop begins again.
            Err(NotPinned::NotStoredTo) => {}
            Err(NotPinned::TooMany(page)) => {
                let page = VirtAddr(page);
                let fault = Fault::new(FaultKind::TooManyOwners, page, AccessKind::Store, 0);
                return Err(space.access_error(what, fault));
            }
        }
    }
}

/// Pins the pages if they are in the state in which a store leaves them. The caller holds the
/// gate's writer lock.
pub(super) fn pin_pages(space: &SpaceInner, range: &Range<u64>) -> Result<Pins, NotPinned> {
    let nodes = space.nodes();
    space.inside(|_| {
        // Without this lock, a fault could replace the leaf meanwhile, and leave it to a fork
        // alone.
        let _paths = space.paths.lock();
        nodes.pin_range(&space.pool, range.start, range.end)
    })
}

/// Returns an error if the space has a pinned page. The caller holds the gate's writer lock.
pub(super) fn check_no_pins(space: &SpaceInner, what: &'static str) -> Result<(), SpaceError> {
    match space.inside(|_| space.nodes().pinned()).pages.first() {
        None => Ok(()),
        Some((at, _)) => Err(SpaceError::Pinned {
            what,
            at: VirtAddr(*at),
        }),
    }
}

fn check_pinnable<'a>(
    mut vmas: impl Iterator<Item = &'a Vma>,
    at: VirtAddr,
) -> Result<(), SpaceError> {
    let is_writable = |vma: &Vma| vma.protection.allows(Protection::WRITE);
    let can = |vma: &Vma| vma.has_pages() && vma.sharing == Sharing::Private && is_writable(vma);
    match vmas.find(|vma| !can(vma)) {
        None => Ok(()),
        Some(vma) => Err(SpaceError::NotPinnable {
            at: VirtAddr(vma.start.max(at.0)),
            mapping: vma.to_string(),
        }),
    }
}

impl Pinned {
    /// Returns the address at which the first page was when it was pinned.
    pub fn start(&self) -> VirtAddr {
        self.at
    }

    /// Returns the number of pinned pages.
    pub fn pages(&self) -> PageCount {
        PageCount(self.pins.frames().len() as u64)
    }

    /// Returns where the bytes are in the process: the address and length of each piece, in order,
    /// as for a vectored system call.
    ///
    /// Each piece stays valid for reads and writes until the pin is dropped. Accessors, and other
    /// pins, may read and write the same bytes at the same time. A Rust reference to the bytes is
    /// sound only while the program rules this out.
    #[expect(clippy::missing_panics_doc, reason = "a page is not at address 0")]
    pub fn pieces(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> {
        let mut pieces: Vec<(NonNull<u8>, usize)> = Vec::new();
        for page in 0..self.pins.frames().len() {
            let host = NonNull::new(self.pins.host(page)).expect("a page is not at address 0");
            match pieces.last_mut() {
                Some((start, len)) if start.as_ptr().wrapping_add(*len) == host.as_ptr() => {
                    *len += PAGE_SIZE;
                }
                _ => pieces.push((host, PAGE_SIZE)),
            }
        }
        pieces.into_iter()
    }

    /// Fills `buffer` with the pinned bytes from `offset` on. A concurrent store may be copied in
    /// part.
    ///
    /// # Panics
    /// Panics if the bytes are not all pinned.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) {
        let mut rest = buffer;
        for (page, start, len) in self.split(offset, rest.len()) {
            let (piece, more) = rest.split_at_mut(len);
            self.pins.copy_out(page as usize, start, piece);
            rest = more;
        }
    }

    /// Stores `bytes` at `offset`.
    ///
    /// # Panics
    /// Panics if the bytes are not all pinned.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (page, start, len) in self.split(offset, rest.len()) {
            let (piece, more) = rest.split_at(len);
            self.pins.copy_in(page as usize, start, piece);
            rest = more;
        }
    }

    /// Splits a range of the pinned bytes at page boundaries. Yields the number of the page, the
    /// offset in the page, and the length of each part. Panics if the bytes are not all pinned.
    fn split(&self, offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
        let size = self.pages().bytes();
        assert!(
            offset <= size && len as u64 <= size - offset,
            "{len} bytes at {offset} of {size} pinned ones"
        );
        pieces(offset, len)
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pages = self.pages().0;
        write!(f, "Pinned({pages} pages from {})", self.at)
    }
}

impl<'pool> PinnedCopies<'pool> {
    /// Sets aside the frames that a fork of `space` needs for pinned pages, charged to `group`.
    /// Fails if one of the pages is pinned with [`AtFork::Refuse`], or if the group is full. The
    /// caller holds the gate's writer lock until the fork is done, so no page is pinned meanwhile.
    /// If pages are unpinned meanwhile, fewer frames are needed.
    pub(super) fn set_aside(
        space: &'pool SpaceInner,
        writer: &mut Writer<'_, Structure>,
        what: &'static str,
        group: &Group,
    ) -> Result<PinnedCopies<'pool>, SpaceError> {
        writer.forget_unpinned();
        let found = space.inside(|_| space.nodes().pinned());
        if found.pages.is_empty() {
            return Ok(PinnedCopies::default());
        }
        let alone = writer.not_copied.iter().filter_map(Weak::upgrade);
        let alone: BTreeSet<FrameId> = alone.flat_map(|frames| frames.to_vec()).collect();
        if let Some((at, _)) = (found.pages.iter()).find(|(_, frame)| alone.contains(frame)) {
            return Err(SpaceError::PinnedAlone {
                what,
                at: VirtAddr(*at),
            });
        }
        let _inside = Inside::callback(space.id);
        let frames = |count: usize| {
            let alloc = |_| space.pool.alloc(group.id(), 0, AllocMode::Wait);
            (0..count).map(alloc).collect::<Result<Vec<_>, _>>()
        };
        let nodes = frames(found.nodes - 1)?; // the fork has its root already
        let pages = frames(found.pages.len())?;
        Ok(PinnedCopies { nodes, pages })
    }

    /// Gives the fork with the root `root` its copies of the pinned pages. Until then, the fork
    /// shares all of the parent's subtrees. The gate is closed.
    pub(super) fn put(&mut self, nodes: Nodes<'_>, root: FrameId) -> Result<(), TooManyForks> {
        if self.pages.is_empty() {
            return Ok(());
        }
        nodes.copy_pinned(root, &mut self.nodes, &mut self.pages)
    }
}
