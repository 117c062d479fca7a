//! A direct-mapped cache of leaves: `N` pointers to the entries of 2 MiB each. Every access reads
//! the live entry.
//!
//! The next access sees a changed entry, so revoking a page posts nothing. Only the replacement of
//! a leaf has to be posted.
//!
//! The hit path was shaped by measurement:
//!
//! - A tag is the leaf's number, `at >> 21`; with 256 entries its low byte is the index, which
//!   takes one instruction.
//! - Tags and pointers are arrays of their own, scaled by 8 in the address; one array of three
//!   words each takes two instructions more.
//! - A leaf's pointer is kept *biased*: it points to where the entry of page 0 of the space would
//!   be, so that the page's number is its index.
//! - The accessor is one pointer, to [`Inner`]. The slow path takes that pointer, not the accessor,
//!   so a session stays in registers.

use std::hint::cold_path;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use super::line::{Flag, Line, Mail, Section};
use super::table::{HOST_ADDRESS, LEAF_PAGES, PAGE_SHIFT, PageTable, VALID_READ, VALID_WRITE};
use super::{Access, Accessor, Fault, Revocable};

const LEAF_SHIFT: u32 = PAGE_SHIFT + LEAF_PAGES.trailing_zeros();

/// A tag that belongs to no address.
const NO_LEAF: u64 = u64::MAX;

/// The fields that a hit reads, behind one pointer. Other threads see only the line; the cache is
/// the owner's.
#[repr(C)]
struct Inner<'t, const N: usize> {
    line: Line,
    cache: Cache<'t, N>,
}

struct Cache<'t, const N: usize> {
    read_tags: [u64; N],
    write_tags: [u64; N],
    /// Biased pointers: each points to where the entry of page 0 would be. Meaningless where both
    /// tags are NO_LEAF.
    entries: [*const AtomicU64; N],
    space: &'t PageTable,
}

/// An accessor with `N` leaves (a power of two).
pub(super) struct LeafCache<'t, const N: usize, S: Section = Flag> {
    inner: NonNull<Inner<'t, N>>,
    section: PhantomData<S>,
}

/// The accessor in a section until this is dropped.
pub(super) struct LeafSession<'a, 't, const N: usize, S: Section> {
    inner: NonNull<Inner<'t, N>>,
    accessor: PhantomData<&'a mut LeafCache<'t, N, S>>,
}

impl<'t, const N: usize, S: Section> LeafCache<'t, N, S> {
    pub(super) fn new(space: &'t PageTable) -> LeafCache<'t, N, S> {
        const { assert!(N.is_power_of_two()) }
        let inner = Box::new(Inner {
            line: Line::default(),
            cache: Cache {
                read_tags: [NO_LEAF; N],
                write_tags: [NO_LEAF; N],
                entries: [ptr::null(); N],
                space,
            },
        });
        LeafCache {
            inner: NonNull::from(Box::leak(inner)),
            section: PhantomData,
        }
    }
}

impl<const N: usize, S: Section> Drop for LeafCache<'_, N, S> {
    fn drop(&mut self) {
        // SAFETY: `new` made the pointer from a box, and only this drop gives it back.
        drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
    }
}

/// The tags and the bit of the entry that an access is checked against.
trait Direction {
    const VALID: u64;
    fn tag<const N: usize>(cache: &Cache<'_, N>, index: usize) -> u64;
}

struct Read;
struct Write;

impl Direction for Read {
    const VALID: u64 = VALID_READ;
    #[inline(always)]
    fn tag<const N: usize>(cache: &Cache<'_, N>, index: usize) -> u64 {
        cache.read_tags[index]
    }
}

impl Direction for Write {
    const VALID: u64 = VALID_WRITE;
    #[inline(always)]
    fn tag<const N: usize>(cache: &Cache<'_, N>, index: usize) -> u64 {
        cache.write_tags[index]
    }
}

/// Returns the word at `at`, if the leaf is cached and its entry valid. A section must be open.
#[inline(always)]
fn hit<D: Direction, const N: usize>(inner: &Inner<'_, N>, at: u64) -> Option<*const AtomicU64> {
    if inner.line.is_requested() || !at.is_multiple_of(8) {
        cold_path();
        return None;
    }
    let page = at >> PAGE_SHIFT;
    let leaf = at >> LEAF_SHIFT;
    let index = leaf as usize & (N - 1);
    if D::tag(&inner.cache, index) != leaf {
        cold_path();
        return None;
    }
    let entry = inner.cache.entries[index].wrapping_add(page as usize);
    // SAFETY: the tag matches, so the biased pointer leads back into a leaf of the table, which
    // outlives us. Acquire pairs with the release that installed the frame, so its bytes are seen.
    let word = unsafe { (*entry).load(Ordering::Acquire) };
    if word & D::VALID == 0 {
        cold_path();
        return None;
    }
    let host = (word & HOST_ADDRESS) + at % (1 << PAGE_SHIFT);
    Some(ptr::with_exposed_provenance(host as usize))
}

/// Serves requests, with the section closed for that, then fills the cache inside the section.
/// Returns null if the address may not be accessed; the section is open in that case, too.
#[cold]
#[inline(never)]
fn miss<const N: usize, S: Section>(inner: NonNull<Inner<'_, N>>, at: u64) -> *const AtomicU64 {
    let inner = inner.as_ptr();
    // SAFETY: the owner calls this with its own pointer and holds no reference to the cache, which
    // no other thread touches; the line is shared by design.
    let (line, cache) = unsafe { (&(*inner).line, &mut (*inner).cache) };
    while line.is_requested() {
        S::leave(line);
        match line.take_mail() {
            Mail::Flush => cache.forget_all(),
            Mail::Numbers(leaves) => leaves.into_iter().for_each(|leaf| cache.forget(leaf)),
        }
        S::enter(line);
    }
    match cache.space.resolve(at) {
        Some((leaf, entry)) if at.is_multiple_of(8) => {
            let number = at >> LEAF_SHIFT;
            let index = number as usize & (N - 1);
            let first = ptr::from_ref(leaf).cast::<AtomicU64>();
            cache.entries[index] = first.wrapping_sub((number * LEAF_PAGES) as usize);
            cache.read_tags[index] = number;
            cache.write_tags[index] = number;
            ptr::with_exposed_provenance(((entry & HOST_ADDRESS) + at % (1 << PAGE_SHIFT)) as usize)
        }
        _ => ptr::null(),
    }
}

impl<const N: usize> Cache<'_, N> {
    fn forget(&mut self, leaf: u64) {
        let index = leaf as usize & (N - 1);
        if self.read_tags[index] == leaf {
            self.read_tags[index] = NO_LEAF;
            self.write_tags[index] = NO_LEAF;
        }
    }

    fn forget_all(&mut self) {
        self.read_tags.fill(NO_LEAF);
        self.write_tags.fill(NO_LEAF);
    }
}

/// Loads inside a section. The miss joins the hit at the pointer, not at a result, so that the hit
/// path has no discriminant to test.
#[inline(always)]
fn load_in<const N: usize, S: Section>(
    inner: NonNull<Inner<'_, N>>,
    at: u64,
) -> Result<u64, Fault> {
    // SAFETY: the pointer is the owner's, and the reference ends with the expression.
    let word = match hit::<Read, N>(unsafe { inner.as_ref() }, at) {
        Some(word) => word,
        None => {
            let word = miss::<N, S>(inner, at);
            if word.is_null() {
                return Err(Fault(at));
            }
            word
        }
    };
    // SAFETY: an aligned word in a frame of the mapping, which the table keeps as long as we live.
    Ok(unsafe { (*word).load(Ordering::Relaxed) })
}

/// Stores inside a section.
#[inline(always)]
fn store_in<const N: usize, S: Section>(
    inner: NonNull<Inner<'_, N>>,
    at: u64,
    value: u64,
) -> Result<(), Fault> {
    // SAFETY: as for load_in.
    let word = match hit::<Write, N>(unsafe { inner.as_ref() }, at) {
        Some(word) => word,
        None => {
            let word = miss::<N, S>(inner, at);
            if word.is_null() {
                return Err(Fault(at));
            }
            word
        }
    };
    // SAFETY: as for load_in.
    unsafe { (*word).store(value, Ordering::Relaxed) };
    Ok(())
}

impl<const N: usize, S: Section> LeafCache<'_, N, S> {
    #[inline(always)]
    fn line(&self) -> &Line {
        // SAFETY: the pointer is valid as long as self; the line is atomics and a mutex, shared
        // anyway.
        unsafe { &(*self.inner.as_ptr()).line }
    }
}

impl<const N: usize, S: Section> Access for LeafCache<'_, N, S> {
    #[inline(always)]
    fn load(&mut self, at: u64) -> Result<u64, Fault> {
        S::enter(self.line());
        let result = load_in::<N, S>(self.inner, at);
        S::leave(self.line());
        result
    }

    #[inline(always)]
    fn store(&mut self, at: u64, value: u64) -> Result<(), Fault> {
        S::enter(self.line());
        let result = store_in::<N, S>(self.inner, at, value);
        S::leave(self.line());
        result
    }
}

impl<'t, const N: usize, S: Section> Accessor for LeafCache<'t, N, S> {
    type Session<'a>
        = LeafSession<'a, 't, N, S>
    where
        Self: 'a;

    #[inline(always)]
    fn session(&mut self) -> LeafSession<'_, 't, N, S> {
        S::enter(self.line());
        LeafSession {
            inner: self.inner,
            accessor: PhantomData,
        }
    }

    fn base(&self) -> u64 {
        // SAFETY: as for line; no thread writes this field after `new`.
        unsafe { self.inner.as_ref() }.cache.space.base()
    }
}

impl<const N: usize, S: Section> Access for LeafSession<'_, '_, N, S> {
    #[inline(always)]
    fn load(&mut self, at: u64) -> Result<u64, Fault> {
        load_in::<N, S>(self.inner, at)
    }

    #[inline(always)]
    fn store(&mut self, at: u64, value: u64) -> Result<(), Fault> {
        store_in::<N, S>(self.inner, at, value)
    }
}

impl<const N: usize, S: Section> Drop for LeafSession<'_, '_, N, S> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the session borrows the accessor, whose box is therefore alive.
        S::leave(unsafe { &(*self.inner.as_ptr()).line });
    }
}

impl<const N: usize, S: Section> Revocable for LeafCache<'_, N, S> {
    /// Ends the translation. The entry is read live, so changing it is enough.
    fn revoke(&mut self, at: u64) {
        // SAFETY: as for base.
        unsafe { self.inner.as_ref() }.cache.space.revoke(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::translation::HostPages;

    #[test]
    fn a_posted_leaf_is_forgotten_before_the_next_access_and_others_are_not() {
        let space = PageTable::new(1_000, HostPages::Base).unwrap();
        let mut accessor = LeafCache::<16, Flag>::new(&space);
        let second = space.base() + (LEAF_PAGES << PAGE_SHIFT);
        accessor.load(space.base()).unwrap();
        accessor.load(second).unwrap();
        accessor.line().post(second >> LEAF_SHIFT);
        accessor.load(space.base()).unwrap();
        // SAFETY: no other thread uses the accessor.
        let tags = unsafe { accessor.inner.as_ref() }.cache.read_tags;
        let first = space.base() >> LEAF_SHIFT;
        assert_eq!(
            tags.iter()
                .filter(|&&tag| tag != NO_LEAF)
                .collect::<Vec<_>>(),
            [&first]
        );
    }

    #[test]
    fn an_open_session_takes_the_request_at_its_next_access() {
        let space = PageTable::new(1_000, HostPages::Base).unwrap();
        let mut accessor = LeafCache::<16, Flag>::new(&space);
        let inner = accessor.inner;
        let mut session = accessor.session();
        session.load(space.base()).unwrap();
        // SAFETY: the line is shared by design.
        let line = unsafe { &(*inner.as_ptr()).line };
        line.post(0);
        session.load(space.base()).unwrap();
        assert!(!line.is_requested());
    }
}
