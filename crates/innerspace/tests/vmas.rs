//! Concurrent faults of one space, also during changes of its mappings, while a store does not
//! answer.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use innerspace::store::Store;
use innerspace::{MIB, Map, Memory, PAGE_SIZE, Threads};

const PAGE: u64 = PAGE_SIZE as u64;

/// A store whose reads of the second page report that they have begun, and wait to be released.
/// Each byte is its page's number.
struct Blocked {
    begun: Mutex<Sender<()>>,
    go: Mutex<Receiver<()>>,
}

impl Store for Blocked {
    fn len(&self) -> io::Result<u64> {
        Ok(8 * PAGE)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset / PAGE == 1 {
            self.begun.lock().unwrap().send(()).unwrap();
            self.go.lock().unwrap().recv().unwrap();
        }
        for (at, byte) in (offset..).zip(&mut *buffer) {
            *byte = (at / PAGE) as u8;
        }
        Ok(buffer.len())
    }
}

fn memory() -> Memory {
    let options = Memory::builder(8 * MIB).threads(Threads::None);
    options.build().unwrap()
}

// spec: V22
#[test]
fn a_fault_that_waits_for_its_store_keeps_nobody_waiting() {
    let (begun, has_begun) = channel();
    let (go, may_go) = channel();
    let store = Arc::new(Blocked {
        begun: Mutex::new(begun),
        go: Mutex::new(may_go),
    });
    let memory = memory();
    let file = memory.file_options().open_store(store).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    let own = space.map(Map::anonymous(16 * PAGE)).unwrap();
    let mut waiting = space.accessor().unwrap();
    let waiter = thread::spawn(move || waiting.load::<u8>(at + PAGE));
    has_begun.recv().unwrap();
    // At the same time, there are faults on the same file and elsewhere, and changes around them.
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u8>(at + 5 * PAGE), Ok(5));
    a.store(own, 1u64).unwrap();
    let more = space.map(Map::anonymous(PAGE)).unwrap();
    a.store(more, 2u64).unwrap();
    space.unmap(more, PAGE).unwrap();
    space.unmap(at + 6 * PAGE, 2 * PAGE).unwrap();
    space
        .protect(own + 4 * PAGE, PAGE, innerspace::space::Protection::READ)
        .unwrap();
    let child = space.fork().unwrap();
    assert_eq!(child.accessor().unwrap().load::<u64>(own), Ok(1));
    go.send(()).unwrap();
    assert_eq!(waiter.join().unwrap(), Ok(1));
    space.validate();
}

/// The mapping is removed while its fault waits: nothing is installed.
// spec: V2
#[test]
fn a_mapping_that_goes_while_its_fault_waits_is_not_found() {
    let (begun, has_begun) = channel();
    let (go, may_go) = channel();
    let store = Arc::new(Blocked {
        begun: Mutex::new(begun),
        go: Mutex::new(may_go),
    });
    let memory = memory();
    let file = memory.file_options().open_store(store).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    let mut waiting = space.accessor().unwrap();
    let waiter = thread::spawn(move || waiting.load::<u8>(at + PAGE).map_err(|fault| fault.kind()));
    has_begun.recv().unwrap();
    space.unmap(at, 8 * PAGE).unwrap();
    go.send(()).unwrap();
    assert_eq!(
        waiter.join().unwrap(),
        Err(innerspace::space::FaultKind::NotMapped)
    );
    assert_eq!(space.stats().pages.resident.0, 0);
    space.validate();
}
