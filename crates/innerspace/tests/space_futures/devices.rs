//! Futures and tasks in the handlers of devices.

use super::*;

/// A device whose handler waits for a call on a file.
struct Syncs(PagedFile);

impl Device for Syncs {
    fn load(&self, _offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.fill(3);
        // Only a wait that never ends reaches the bound.
        let synced = self
            .0
            .defer(|file| file.sync_all())
            .wait_timeout(Duration::from_secs(60));
        synced.unwrap().unwrap();
        Ok(())
    }

    fn store(&self, _offset: u64, _bytes: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::new("read-only"))
    }
}

#[test]
fn who_waits_in_a_device_makes_no_calls_of_others() {
    let memory = memory(8 * MIB);
    let options = memory.file_options().access(FileAccess::ReadWrite);
    let file = options
        .open_store(MemoryStore::from_bytes(&[1; 10000]))
        .unwrap();
    let space = memory.create_space().unwrap();
    let device = space.map(Map::device(Syncs(file), PAGE)).unwrap();
    let at = space.map(Map::anonymous(PAGE).writable()).unwrap();
    let bell = Arc::new(Bell::default());
    let mut unmap = pin!(space.defer(move |space| space.unmap(at, PAGE)));
    assert!(poll(unmap.as_mut(), &bell).is_pending());
    assert_eq!(space.accessor().unwrap().load::<u8>(device).unwrap(), 3);
    assert_eq!(bell.rung(), 0);
    memory.tick();
    assert!(matches!(poll(unmap, &bell), Poll::Ready(Ok(()))));
}

/// A device whose handler defers an unmapping in its own space, and does not wait for it.
#[derive(Clone, Default)]
struct Unmaps {
    wanted: Arc<Mutex<Option<(Space, VirtAddr)>>>,
    call: Arc<Mutex<Option<Task<(), SpaceError>>>>,
}

impl Device for Unmaps {
    fn load(&self, _offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.fill(3);
        let (space, at) = self.wanted.lock().unwrap().take().unwrap();
        let mut call = space.defer(move |space| space.unmap(at, PAGE));
        assert!(poll(Pin::new(&mut call), &Arc::default()).is_pending());
        *self.call.lock().unwrap() = Some(call);
        Ok(())
    }

    fn store(&self, _offset: u64, _bytes: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::new("read-only"))
    }
}

#[test]
fn a_device_has_its_space_changed_later() {
    let memory = memory(8 * MIB);
    let space = memory.create_space().unwrap();
    let unmaps = Unmaps::default();
    let device = space.map(Map::device(unmaps.clone(), PAGE)).unwrap();
    let at = space.map(Map::anonymous(PAGE).writable()).unwrap();
    *unmaps.wanted.lock().unwrap() = Some((space.clone(), at));
    assert_eq!(space.accessor().unwrap().load::<u8>(device).unwrap(), 3);
    memory.tick();
    let call = unmaps.call.lock().unwrap().take().unwrap();
    at_once(call).unwrap();
    let fault = space.accessor().unwrap().load::<u8>(at).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::NotMapped);
}
