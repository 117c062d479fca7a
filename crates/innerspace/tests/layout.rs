//! The translation layout for code generators: accesses that follow its rules step by step, as
//! generated code does.
#![cfg(all(feature = "layout", not(any(miri, loom, shuttle))))]

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use innerspace::store::MemoryStore;
use innerspace::{
    Accessor, MIB, Map, Memory, PAGE_SHIFT, PAGE_SIZE, Space, Threads, VirtAddr,
    file::FileAccess,
    space::{Fault, FaultKind, Protection, TranslationLayout},
};

type Layout = TranslationLayout;
const PAGE: u64 = PAGE_SIZE as u64;

fn memory() -> Memory {
    let options = Memory::builder(8 * MIB).threads(Threads::None);
    options.build().unwrap()
}

/// Returns the host address of `size` bytes at `at`, if generated code may access them without a
/// call.
///
/// # Safety
/// The caller is in a session of this layout's accessor, and uses the address before it makes
/// another call.
unsafe fn hit(layout: &Layout, tags: usize, valid: u64, at: u64, size: u64) -> Option<*mut u64> {
    // SAFETY: the addresses are the layout's, whose accessor lives and is in a session of this
    // thread. The word is one of the leaf that the tag names.
    unsafe {
        let shown = AtomicPtr::from_ptr(layout.current.cast_mut().cast::<*mut u64>());
        let tags = shown.load(Ordering::Relaxed).byte_add(tags);
        let leaf = at >> Layout::LEAF_SHIFT;
        let slot = leaf as usize % Layout::LEAVES;
        if tags.add(slot).read_volatile() != leaf || at % PAGE > PAGE - size {
            return None;
        }
        let words = layout.words.add(slot).read_volatile();
        if words.addr() & Layout::COALESCED != 0 {
            let bytes = words.addr() - Layout::COALESCED;
            let bytes = bytes.wrapping_add(at as usize) as *mut u64;
            return (valid != Layout::VALID_FETCH).then_some(bytes);
        }
        let word = words.wrapping_add((at >> PAGE_SHIFT) as usize);
        let word = AtomicU64::from_ptr(word.cast_mut()).load(Ordering::Acquire);
        let host = (word & Layout::HOST) + at % PAGE;
        (word & valid != 0).then_some(host as *mut u64)
    }
}

fn load(layout: &Layout, at: VirtAddr) -> Option<u64> {
    // SAFETY: called in sessions alone, below. A page that may be loaded from stays there until the
    // session makes a call.
    unsafe {
        let bytes = hit(layout, Layout::READ_TAGS, Layout::VALID_READ, at.0, 8)?;
        Some(bytes.read_volatile())
    }
}

fn fetch(layout: &Layout, at: VirtAddr) -> Option<u64> {
    // SAFETY: as for `load`.
    unsafe {
        let bytes = hit(layout, Layout::READ_TAGS, Layout::VALID_FETCH, at.0, 8)?;
        Some(bytes.read_volatile())
    }
}

fn store(layout: &Layout, at: VirtAddr, value: u64) -> bool {
    // SAFETY: as for `load`.
    unsafe {
        let bytes = hit(layout, Layout::WRITE_TAGS, Layout::VALID_WRITE, at.0, 8);
        bytes.map(|bytes| bytes.write_volatile(value)).is_some()
    }
}

/// Creates a space of a few leaves of anonymous memory.
fn anonymous(memory: &Memory) -> (Space, VirtAddr, Accessor) {
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(8 * MIB)).unwrap();
    let accessor = space.accessor().unwrap();
    (space, at, accessor)
}

#[test]
fn what_a_session_has_found_is_hit_without_a_call() {
    let memory = memory();
    let (space, at, mut accessor) = anonymous(&memory);
    let layout = accessor.layout();
    let places: Vec<_> = (0..2048)
        .step_by(13)
        .map(|page| at + page * PAGE + 8 * (page % 512))
        .collect();
    let mut accessor = Box::new({
        accessor
            .session(|session| {
                for &place in &places {
                    assert_eq!(load(&layout, place), None, "nothing is there yet");
                    session.store(place, place.0)?;
                    assert_eq!(load(&layout, place), Some(place.0));
                    assert!(store(&layout, place, !place.0));
                }
                Ok::<(), Fault>(())
            })
            .unwrap();
        accessor
    });
    // The addresses are the same, although the accessor was moved.
    accessor.session(|session| {
        for &place in &places {
            assert_eq!(load(&layout, place), Some(!place.0));
            assert_eq!(session.load(place), Ok(!place.0));
        }
        // An access across the end of a page is a call.
        assert_eq!(
            load(&layout, VirtAddr(places[0].0 / PAGE * PAGE + PAGE - 4)),
            None
        );
    });
    drop(accessor);
    space.validate();
}

#[test]
fn what_was_taken_away_is_not_hit() {
    let memory = memory();
    let (space, at, mut accessor) = anonymous(&memory);
    let layout = accessor.layout();
    accessor.session(|session| {
        for page in 0..4 {
            session.store(at + page * PAGE, page).unwrap();
        }
        assert_eq!(
            [0, 1, 2, 3].map(|page| load(&layout, at + page * PAGE)),
            [0, 1, 2, 3].map(Some)
        );
        space.unmap(at, PAGE).unwrap();
        assert_eq!(load(&layout, at), None);
        assert_eq!(
            session.load::<u64>(at).unwrap_err().kind(),
            FaultKind::NotMapped
        );
        space.protect(at + PAGE, PAGE, Protection::READ).unwrap();
        assert!(!store(&layout, at + PAGE, 9));
        assert_eq!(
            session.store(at + PAGE, 9u64).unwrap_err().kind(),
            FaultKind::Forbidden
        );
        assert_eq!(session.load(at + PAGE), Ok(1u64));
        assert_eq!(load(&layout, at + PAGE), Some(1));
    });
    // A store after a fork is seen in this space only.
    let child = space.fork().unwrap();
    accessor.session(|session| {
        assert!(!store(&layout, at + 2 * PAGE, 7), "the page is shared");
        session.store(at + 2 * PAGE, 7u64).unwrap();
        assert!(store(&layout, at + 2 * PAGE, 8));
        // By now the leaf is the space's own, but this page of it is not yet.
        assert!(!store(&layout, at + 3 * PAGE, 7));
    });
    let mut other = child.accessor().unwrap();
    assert_eq!(
        [2, 3].map(|page| other.load(at + page * PAGE)),
        [2u64, 3].map(Ok)
    );
    assert_eq!(accessor.load(at + 2 * PAGE), Ok(8u64));
    space.validate();
}

#[test]
fn pages_that_lie_in_a_row_are_hit_without_their_words() {
    let memory = memory();
    let space = memory.create_space().unwrap();
    let all = Protection::READ | Protection::WRITE | Protection::EXECUTE;
    let at = VirtAddr(4 * MIB);
    let map = Map::anonymous(2 * MIB).at(at).protection(all);
    space.map(map).unwrap();
    let mut accessor = space.accessor().unwrap();
    let layout = accessor.layout();
    let is_coalesced = || {
        let slot = (at.0 >> Layout::LEAF_SHIFT) as usize % Layout::LEAVES;
        // SAFETY: of a layout whose accessor lives; no call is made meanwhile.
        let place = unsafe { layout.words.add(slot).read_volatile() };
        place.addr() & Layout::COALESCED != 0
    };
    accessor.session(|session| {
        let mut stores = 0;
        while !is_coalesced() {
            for page in 0..512 {
                session.store(at + page * PAGE, page).unwrap();
            }
            stores += 1;
            assert!(stores < 20, "pages of new memory lie in a row");
        }
        for page in 0..512 {
            let place = at + page * PAGE;
            assert_eq!(load(&layout, place), Some(page));
            assert!(store(&layout, place + (PAGE - 8), !page));
            assert_eq!(session.load(place + (PAGE - 8)), Ok(!page));
            assert_eq!(load(&layout, place + (PAGE - 7)), None, "over the end");
        }
        assert_eq!(fetch(&layout, at), None);
        assert_eq!(session.fetch(at), Ok(0u64));
        assert_eq!(fetch(&layout, at), Some(0));
        space.unmap(at + PAGE, PAGE).unwrap();
        assert_eq!(
            [0, 1].map(|page| load(&layout, at + page * PAGE)),
            [None; 2]
        );
        let gone = session.load::<u64>(at + PAGE).unwrap_err();
        assert_eq!(gone.kind(), FaultKind::NotMapped);
        assert_eq!(session.load(at), Ok(0u64));
        assert_eq!(load(&layout, at), Some(0));
    });
    space.validate();
}

#[test]
fn pages_of_files_are_hit_by_the_rights_that_were_used() {
    let memory = memory();
    let store_of = Arc::new(MemoryStore::from_bytes(&[5; 4 * PAGE_SIZE]));
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options.open_store(store_of).unwrap();
    let space = memory.create_space().unwrap();
    let all = Protection::READ | Protection::WRITE | Protection::EXECUTE;
    let map = Map::file(&file).shared().protection(all);
    let at = space.map(map).unwrap();
    let mut accessor = space.accessor().unwrap();
    let layout = accessor.layout();
    let fives = u64::from_ne_bytes([5; 8]);
    accessor.session(|session| {
        assert_eq!(session.load(at), Ok(fives));
        assert_eq!(load(&layout, at), Some(fives));
        assert!(!store(&layout, at, 1), "it would not be known to be dirty");
        session.store(at, 6u64).unwrap();
        assert!(store(&layout, at, 7));
    });
    file.sync_all().unwrap();
    accessor.session(|session| {
        assert!(!store(&layout, at, 8), "it is clean");
        assert_eq!(session.load(at), Ok(7u64));
        assert_eq!(session.fetch(at), Ok(7u64));
        assert_eq!(fetch(&layout, at), Some(7));
    });
    while memory.reclaim(8 * MIB) > 0 {}
    assert_eq!(file.stats().cached.0, 0);
    accessor.session(|session| {
        assert_eq!(load(&layout, at), None, "it was evicted");
        assert_eq!(session.load(at), Ok(7u64));
        assert_eq!(load(&layout, at), Some(7));
    });
}
