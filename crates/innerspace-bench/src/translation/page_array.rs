//! A direct-mapped array of pages. Each entry is a page's address, and the number to add to get the
//! address in the page's frame.
//!
//! A hit never looks at the page table, so a thread that changes an entry there must post the page
//! to every accessor that may have cached it. The comparison of the tag also checks the alignment:
//! the low bits of the address are kept, and they are 0 in every tag.

use std::hint::cold_path;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use super::line::{Flag, Line, Mail, Section};
use super::table::{HOST_ADDRESS, PAGE_SHIFT, PageTable};
use super::{Access, Accessor, Fault, Revocable};

/// The number of entries: 512 MiB of address space without a collision, 2 MiB of memory.
const ENTRIES: usize = 1 << 17;

/// A number that is not the address of a page.
const NO_PAGE: u64 = u64::MAX;

/// The address of a page, and its host address minus that address, wrapping.
#[derive(Clone, Copy)]
struct Entry {
    tag: u64,
    addend: u64,
}

const EMPTY: Entry = Entry {
    tag: NO_PAGE,
    addend: 0,
};

#[repr(C)]
struct Inner<'t> {
    line: Line,
    cache: Cache<'t>,
}

struct Cache<'t> {
    entries: Box<[Entry; ENTRIES]>,
    space: &'t PageTable,
}

pub(super) struct PageArray<'t> {
    inner: NonNull<Inner<'t>>,
}

/// The accessor in a section until this is dropped.
pub(super) struct PageSession<'a, 't> {
    inner: NonNull<Inner<'t>>,
    accessor: PhantomData<&'a mut PageArray<'t>>,
}

impl<'t> PageArray<'t> {
    pub(super) fn new(space: &'t PageTable) -> PageArray<'t> {
        let entries: Box<[Entry]> = vec![EMPTY; ENTRIES].into();
        let Ok(entries) = entries.try_into() else {
            unreachable!("as many as asked for")
        };
        let inner = Box::new(Inner {
            line: Line::default(),
            cache: Cache { entries, space },
        });
        PageArray {
            inner: NonNull::from(Box::leak(inner)),
        }
    }

    #[inline(always)]
    fn line(&self) -> &Line {
        // SAFETY: the pointer is valid as long as self; the line is atomics and a mutex, shared
        // anyway.
        unsafe { &(*self.inner.as_ptr()).line }
    }
}

impl Drop for PageArray<'_> {
    fn drop(&mut self) {
        // SAFETY: `new` made the pointer from a box, and this drop alone gives it back.
        drop(unsafe { Box::from_raw(self.inner.as_ptr()) });
    }
}

fn index(page: u64) -> usize {
    page as usize & (ENTRIES - 1)
}

/// Returns the word at `at`, if its page is cached. A section must be open.
#[inline(always)]
fn hit(inner: &Inner<'_>, at: u64) -> Option<*const AtomicU64> {
    if inner.line.is_requested() {
        cold_path();
        return None;
    }
    let entry = &inner.cache.entries[index(at >> PAGE_SHIFT)];
    if entry.tag != at & (HOST_ADDRESS | 7) {
        cold_path();
        return None;
    }
    Some(ptr::with_exposed_provenance(
        entry.addend.wrapping_add(at) as usize
    ))
}

/// Serves requests, with the section closed for that, then fills the cache inside the section.
/// Returns null if the address may not be accessed; the section is open in that case, too.
#[cold]
#[inline(never)]
fn miss(inner: NonNull<Inner<'_>>, at: u64) -> *const AtomicU64 {
    let inner = inner.as_ptr();
    // SAFETY: the owner calls this with its own pointer and holds no reference to the cache, which
    // no other thread touches; the line is shared by design.
    let (line, cache) = unsafe { (&(*inner).line, &mut (*inner).cache) };
    while line.is_requested() {
        Flag::leave(line);
        match line.take_mail() {
            Mail::Flush => cache.entries.fill(EMPTY),
            Mail::Numbers(pages) => pages.into_iter().for_each(|page| cache.forget(page)),
        }
        Flag::enter(line);
    }
    match cache.space.resolve(at) {
        Some((_, entry)) if at.is_multiple_of(8) => {
            let tag = at & HOST_ADDRESS;
            let addend = (entry & HOST_ADDRESS).wrapping_sub(tag);
            cache.entries[index(at >> PAGE_SHIFT)] = Entry { tag, addend };
            ptr::with_exposed_provenance(addend.wrapping_add(at) as usize)
        }
        _ => ptr::null(),
    }
}

impl Cache<'_> {
    fn forget(&mut self, page: u64) {
        let entry = &mut self.entries[index(page)];
        if entry.tag == page << PAGE_SHIFT {
            *entry = EMPTY;
        }
    }
}

/// Returns the word at `at`, by the hit or the slow path. A section must be open.
#[inline(always)]
fn word(inner: NonNull<Inner<'_>>, at: u64) -> Result<*const AtomicU64, Fault> {
    // SAFETY: the pointer is the owner's, and the reference ends with the expression.
    match hit(unsafe { inner.as_ref() }, at) {
        Some(word) => Ok(word),
        None => {
            let word = miss(inner, at);
            if word.is_null() {
                Err(Fault(at))
            } else {
                Ok(word)
            }
        }
    }
}

#[inline(always)]
fn load_in(inner: NonNull<Inner<'_>>, at: u64) -> Result<u64, Fault> {
    let word = word(inner, at)?;
    // SAFETY: an aligned word in a frame of the mapping, which the table keeps as long as we live.
    Ok(unsafe { (*word).load(Ordering::Relaxed) })
}

#[inline(always)]
fn store_in(inner: NonNull<Inner<'_>>, at: u64, value: u64) -> Result<(), Fault> {
    let word = word(inner, at)?;
    // SAFETY: as for load_in.
    unsafe { (*word).store(value, Ordering::Relaxed) };
    Ok(())
}

impl Access for PageArray<'_> {
    #[inline(always)]
    fn load(&mut self, at: u64) -> Result<u64, Fault> {
        Flag::enter(self.line());
        let result = load_in(self.inner, at);
        Flag::leave(self.line());
        result
    }

    #[inline(always)]
    fn store(&mut self, at: u64, value: u64) -> Result<(), Fault> {
        Flag::enter(self.line());
        let result = store_in(self.inner, at, value);
        Flag::leave(self.line());
        result
    }
}

impl<'t> Accessor for PageArray<'t> {
    type Session<'a>
        = PageSession<'a, 't>
    where
        Self: 'a;

    #[inline(always)]
    fn session(&mut self) -> PageSession<'_, 't> {
        Flag::enter(self.line());
        PageSession {
            inner: self.inner,
            accessor: PhantomData,
        }
    }

    fn base(&self) -> u64 {
        // SAFETY: the pointer is valid as long as self; no thread writes this field after `new`.
        unsafe { self.inner.as_ref() }.cache.space.base()
    }
}

impl Access for PageSession<'_, '_> {
    #[inline(always)]
    fn load(&mut self, at: u64) -> Result<u64, Fault> {
        load_in(self.inner, at)
    }

    #[inline(always)]
    fn store(&mut self, at: u64, value: u64) -> Result<(), Fault> {
        store_in(self.inner, at, value)
    }
}

impl Drop for PageSession<'_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the session borrows the accessor, whose box is therefore alive.
        Flag::leave(unsafe { &(*self.inner.as_ptr()).line });
    }
}

impl Revocable for PageArray<'_> {
    /// Changes the entry, then posts the page: cached translations do not depend on the entry.
    fn revoke(&mut self, at: u64) {
        // SAFETY: as for base.
        unsafe { self.inner.as_ref() }.cache.space.revoke(at);
        self.line().post(at >> PAGE_SHIFT);
    }
}
