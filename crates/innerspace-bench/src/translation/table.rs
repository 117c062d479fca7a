//! The space under test: frames in one mapping, and a page table of four levels that maps pages
//! onto them in random order.
//!
//! An entry is one word: the frame's host address, with the valid bits in its low bits.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::HostPages;
use crate::harness::xorshift;

/// The page may be loaded from without a fault.
pub(super) const VALID_READ: u64 = 1 << 0;
/// The page may be stored to without a fault.
pub(super) const VALID_WRITE: u64 = 1 << 1;
/// There is a frame, whatever the valid bits say.
const PRESENT: u64 = 1 << 2;

/// The bits of an entry that are the frame's host address.
pub(super) const HOST_ADDRESS: u64 = !4095;

pub(super) const PAGE_SHIFT: u32 = 12;
const PAGE: u64 = 1 << PAGE_SHIFT;
/// The number of pages in a leaf, and of entries in every node.
pub(super) const LEAF_PAGES: u64 = 512;
const HUGE: usize = 2 << 20;

/// The address at which the space begins, one like those of mmap.
const BASE: u64 = 0x7f00_0000_0000;

/// The entries of 2 MiB.
#[repr(C, align(4096))]
#[derive(Debug)]
pub(super) struct Leaf([AtomicU64; LEAF_PAGES as usize]);

/// An inner node; null where nothing is mapped.
struct Node<T>([AtomicPtr<T>; LEAF_PAGES as usize]);

pub(super) struct PageTable {
    root: Box<Node<Node<Node<Leaf>>>>,
    /// Kept only to be freed: the walk goes through the pointers of the nodes above.
    _middle: Box<Node<Node<Leaf>>>,
    _lower: Box<Node<Leaf>>,
    leaves: Vec<Box<Leaf>>,
    mapping: Mapping,
}

impl<T> Node<T> {
    fn new() -> Box<Node<T>> {
        Box::new(Node(
            [const { AtomicPtr::new(ptr::null_mut()) }; LEAF_PAGES as usize],
        ))
    }

    fn child(&self, number: u64) -> *const T {
        self.0[(number % LEAF_PAGES) as usize].load(Ordering::Acquire)
    }

    fn set_child(&self, number: u64, child: &T) {
        let child = ptr::from_ref(child).cast_mut();
        self.0[(number % LEAF_PAGES) as usize].store(child, Ordering::Release);
    }
}

impl Leaf {
    pub(super) fn entry(&self, page: u64) -> &AtomicU64 {
        &self.0[(page % LEAF_PAGES) as usize]
    }
}

impl PageTable {
    /// Maps `pages` pages, at most 1 GiB, onto as many frames filled with random words.
    pub(super) fn new(pages: u64, host: HostPages) -> io::Result<PageTable> {
        assert!(pages <= LEAF_PAGES * LEAF_PAGES, "one node of leaves");
        let mapping = Mapping::new((pages * PAGE) as usize, host)?;
        let mut state = 0x2545_f491_4f6c_dd1d;
        mapping.fill(|| xorshift(&mut state));
        let mut frames: Vec<u64> = (0..pages).map(|n| mapping.address() + n * PAGE).collect();
        for last in (1..frames.len()).rev() {
            frames.swap(last, (xorshift(&mut state) % (last as u64 + 1)) as usize);
        }
        let (root, middle, lower) = (Node::new(), Node::new(), Node::<Leaf>::new());
        root.set_child(BASE >> 39, &*middle);
        middle.set_child(BASE >> 30, &*lower);
        let mut leaves = Vec::new();
        for (number, frames) in frames.chunks(LEAF_PAGES as usize).enumerate() {
            let leaf = Box::new(Leaf([const { AtomicU64::new(0) }; LEAF_PAGES as usize]));
            for (entry, frame) in leaf.0.iter().zip(frames) {
                entry.store(
                    frame | PRESENT | VALID_READ | VALID_WRITE,
                    Ordering::Relaxed,
                );
            }
            lower.set_child(number as u64, &*leaf);
            leaves.push(leaf);
        }
        Ok(PageTable {
            root,
            _middle: middle,
            _lower: lower,
            leaves,
            mapping,
        })
    }

    /// Returns the address of the first page.
    pub(super) fn base(&self) -> u64 {
        BASE
    }

    /// Returns the host address of the mapping, for flat use.
    pub(super) fn flat(&self) -> u64 {
        self.mapping.address()
    }

    /// Walks from the root to the leaf that covers `at`.
    pub(super) fn leaf(&self, at: u64) -> Option<&Leaf> {
        if at >> 48 != 0 {
            return None;
        }
        // SAFETY: children are boxes that the table owns, set before it was shared and kept as long
        // as it.
        unsafe {
            let middle = self.root.child(at >> 39).as_ref()?;
            let lower = middle.child(at >> 30).as_ref()?;
            lower.child(at >> 21).as_ref()
        }
    }

    /// Takes the fault: makes the entry for `at` valid again. Returns `None` where nothing is
    /// mapped.
    pub(super) fn resolve(&self, at: u64) -> Option<(&Leaf, u64)> {
        let leaf = self.leaf(at)?;
        let entry = leaf.entry(at >> PAGE_SHIFT);
        let word = entry.load(Ordering::Acquire);
        if word & PRESENT == 0 {
            return None;
        }
        let valid = VALID_READ | VALID_WRITE;
        if word & valid != valid {
            return Some((leaf, entry.fetch_or(valid, Ordering::AcqRel) | valid));
        }
        Some((leaf, word))
    }

    /// Clears the valid bits for `at`, as aging does; the frame stays.
    pub(super) fn revoke(&self, at: u64) {
        if let Some(leaf) = self.leaf(at) {
            leaf.entry(at >> PAGE_SHIFT)
                .fetch_and(!(VALID_READ | VALID_WRITE), Ordering::AcqRel);
        }
    }
}

/// Prints sizes only.
impl std::fmt::Debug for PageTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageTable")
            .field("bytes", &self.mapping.bytes)
            .field("leaves", &self.leaves.len())
            .finish_non_exhaustive()
    }
}

/// Anonymous memory, aligned to 2 MiB.
struct Mapping {
    start: *mut libc::c_void,
    mapped: usize,
    frames: *mut AtomicU64,
    bytes: usize,
}

impl Mapping {
    fn new(bytes: usize, host: HostPages) -> io::Result<Mapping> {
        let mapped = bytes + HUGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), mapped, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let frames = start.map_addr(|at| at.next_multiple_of(HUGE));
        let advice = match host {
            HostPages::Base => libc::MADV_NOHUGEPAGE,
            HostPages::Huge => libc::MADV_HUGEPAGE,
        };
        // SAFETY: the range lies in the mapping just made. The advice may be refused by a kernel
        // without huge pages, which then has none to use.
        unsafe { libc::madvise(frames, bytes, advice) };
        Ok(Mapping {
            start,
            mapped,
            frames: frames.cast(),
            bytes,
        })
    }

    /// Returns the address, exposed, because entries hold addresses as numbers.
    fn address(&self) -> u64 {
        self.frames.expose_provenance() as u64
    }

    fn fill(&self, mut word: impl FnMut() -> u64) {
        for number in 0..self.bytes / 8 {
            // SAFETY: below the end of the mapping, which is aligned and zeroed, and lives as long
            // as self.
            unsafe { (*self.frames.add(number)).store(word(), Ordering::Relaxed) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that mmap returned; nothing borrows from the table any more.
        unsafe { libc::munmap(self.start, self.mapped) };
    }
}

#[cfg(test)]
impl PageTable {
    /// Returns the word at `at`, found by walking.
    pub(super) fn word(&self, at: u64) -> u64 {
        let entry = self
            .leaf(at)
            .unwrap()
            .entry(at >> PAGE_SHIFT)
            .load(Ordering::Acquire);
        let host = (entry & HOST_ADDRESS) + at % PAGE;
        // SAFETY: an entry's frame lies in the mapping, and `at` is aligned.
        unsafe {
            (*ptr::with_exposed_provenance::<AtomicU64>(host as usize)).load(Ordering::Relaxed)
        }
    }

    /// Exchanges the frames of two pages and ends both translations.
    pub(super) fn swap_frames(&self, one: u64, other: u64) {
        let entry = |at| self.leaf(at).unwrap().entry(at >> PAGE_SHIFT);
        let valid = VALID_READ | VALID_WRITE;
        let first = entry(one).fetch_and(!valid, Ordering::AcqRel) & !valid;
        let second = entry(other).swap(first, Ordering::AcqRel) & !valid;
        entry(one).store(second, Ordering::Release);
    }
}
