//! Revocations by mappings that were replaced after the revoker had read them.

use std::cell::Cell;
use std::sync::mpsc;

use super::direct::LARGE;
use super::*;
use crate::cache::{Cache, FileOptions, PagedFile};
use crate::space::access::single::Single;
use crate::space::access::what::What;
use crate::store::{MemoryStore, Store};
use crate::sync::domain::Domain;
use crate::sync::failpoint;

/// Creates a file of one page of `byte`.
fn filled(cache: &Arc<Cache>, byte: u8) -> PagedFile {
    let store = MemoryStore::with_len(PAGE);
    store.write_at(&[byte; PAGE_SIZE], 0).unwrap();
    PagedFile::open(cache, Arc::new(store), &FileOptions::new()).unwrap()
}

/// A thread that evicts a file.
type Evicting = thread::JoinHandle<u64>;

/// Evicts `file` in the middle of this thread's next structural change. The first channel delivers
/// the evicting thread, with the number of the last grace period, once that thread has read the
/// mappings in its section; the second channel tells it to go on.
fn evict_halfway(
    domain: &Arc<Domain>,
    file: &PagedFile,
) -> (
    failpoint::Armed,
    mpsc::Receiver<(Evicting, u64)>,
    mpsc::Sender<()>,
) {
    let (hand_over, evicting) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    let (domain, file) = (domain.clone(), file.clone());
    let there = failpoint::on("GateClosed", move || {
        let (told, has_read) = mpsc::channel();
        let thread = thread::spawn(move || {
            let _there = failpoint::on("Revocation", move || {
                told.send(()).unwrap();
                may_go_on.recv().unwrap();
            });
            file.evict(..).unwrap().0
        });
        has_read.recv().unwrap();
        hand_over.send((thread, domain.begun())).unwrap();
    });
    (there, evicting, go_on)
}

/// Another file's page is mapped at the address of the evicted page, and is being read when it is
/// evicted, too.
// spec: A2
#[test]
fn who_evicts_by_old_mappings_leaves_the_pages_of_new_ones() {
    let cache = Cache::new(&pool(256));
    let [old, new] = [1, 2].map(|byte| filled(&cache, byte));
    let space = space(&cache.pool);
    space.map(Map::file(&old)).unwrap(); // keeps the file mapped
    let at = VirtAddr(1 << 30);
    let map = |file| space.map(Map::file(file).range(..LARGE).replacing(at));
    map(&old).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u8>(at), Ok(1));
    let domain = &cache.pool.domain;
    let (there, evicting, go_on) = evict_halfway(domain, &old);
    map(&new).unwrap();
    drop(there);
    let (evicts_old, _) = evicting.recv().unwrap();
    assert_eq!(a.load::<u8>(at), Ok(2));
    let evicts_new = Cell::new(None);
    let what = What::value::<u8>(AccessKind::Load);
    let read = a.core.access::<Single, u8>(at, what, |page| {
        let is_over_or_waits = |thread: &Evicting, begun| {
            while !thread.is_finished() && domain.begun() == begun {
                thread::yield_now();
            }
            thread.is_finished()
        };
        let begun = domain.begun();
        go_on.send(()).unwrap();
        is_over_or_waits(&evicts_old, begun);
        let begun = domain.begun();
        let new = new.clone();
        let thread = thread::spawn(move || new.evict(..).unwrap().0);
        let is_over = is_over_or_waits(&thread, begun);
        evicts_new.set(Some((thread, is_over)));
        page.load::<u8>()
    });
    assert_eq!(read, Ok(2));
    let (thread, was_over) = evicts_new.take().unwrap();
    assert_eq!(thread.join().unwrap(), 1);
    assert!(!was_over, "the page was freed under the access");
    assert_eq!(evicts_old.join().unwrap(), 1);
    space.validate();
}

/// The page comes with a subtree of a snapshot whose gate is open.
// spec: A2
#[test]
fn who_evicts_by_old_mappings_leaves_the_pages_of_a_snapshot() {
    let cache = Cache::new(&pool(256));
    let [old, new] = [1, 2].map(|byte| filled(&cache, byte));
    let space = space(&cache.pool);
    let at = VirtAddr(1 << 30);
    let map = |file| space.map(Map::file(file).replacing(at)).unwrap();
    map(&new);
    let snapshot = space.freeze().unwrap();
    assert_eq!(snapshot.accessor().unwrap().load::<u8>(at), Ok(2));
    map(&old);
    assert_eq!(space.accessor().unwrap().load::<u8>(at), Ok(1));
    let (hand_over, to_evict) = mpsc::channel();
    let restoring = {
        let (space, snapshot, old) = (space.clone(), snapshot.clone(), old.clone());
        thread::spawn(move || {
            let (_there, evicting, go_on) = evict_halfway(&space.0.pool.domain, &old);
            hand_over.send((evicting, go_on)).unwrap();
            space.restore(&snapshot).unwrap();
        })
    };
    let (evicting, go_on) = to_evict.recv().unwrap();
    let (evicts_old, begun) = evicting.recv().unwrap();
    // The restore is over, or the nodes that it retired wait for the section of the eviction.
    while !restoring.is_finished() && cache.pool.domain.begun() == begun {
        thread::yield_now();
    }
    go_on.send(()).unwrap();
    assert_eq!(evicts_old.join().unwrap(), 1);
    restoring.join().unwrap();
    let pages = || snapshot.stats().pages.file.0;
    assert_eq!(pages(), 1, "taken by who evicts another file");
    assert_eq!(new.evict(..).unwrap().0, 1);
    assert_eq!(pages(), 0);
    space.validate();
}

/// The page comes with a leaf of a snapshot. The snapshot has ended by the time the revocation
/// reaches it.
// spec: A2
#[test]
fn a_space_that_went_back_since_it_was_asked_is_asked_again() {
    let cache = Cache::new(&pool(256));
    let file = filled(&cache, 1);
    let space = space(&cache.pool);
    let at = VirtAddr(1 << 30);
    space.map(Map::file(&file).at(at)).unwrap();
    space.map(Map::anonymous(PAGE).at(at + PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u8>(at), Ok(1));
    let snapshot = space.freeze().unwrap();
    // The store gives the space a leaf of its own, into which pages of files are not copied.
    a.store(at + PAGE, 1_u8).unwrap();
    assert_eq!(space.stats().pages.file.0, 0);
    let there = {
        let space = space.clone();
        failpoint::on("Revoked", move || {
            let going_back = thread::spawn(move || {
                space.restore(&snapshot).unwrap();
                drop(snapshot);
                assert_eq!(space.stats().pages.file.0, 1);
            });
            going_back.join().unwrap();
        })
    };
    assert_eq!(file.evict(..).unwrap().0, 1);
    drop(there);
    assert_eq!(
        space.stats().pages.file.0,
        0,
        "it shows a page that is gone"
    );
    assert_eq!(a.load::<u8>(at), Ok(1));
    space.validate();
}
