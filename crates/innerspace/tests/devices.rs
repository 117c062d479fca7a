//! Ranges whose accesses are calls to a device, and pages that code is fetched from.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use innerspace::{
    MIB, Map, Memory, PAGE_SIZE, Space, Threads, VirtAddr,
    space::{
        AccessKind, AddressWidth, Advice, AtFork, Device, DeviceError, Fault, FaultKind,
        Protection, Remap, SpaceError,
    },
};

const PAGE: u64 = PAGE_SIZE as u64;

fn space() -> Space {
    let options = Memory::builder(4 * MIB).threads(Threads::None);
    let memory: Memory = options.build().unwrap();
    memory.create_space().unwrap()
}

/// A device that notes each call, and answers loads with the low bytes of the offset.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Device for Recorder {
    fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.0
            .lock()
            .unwrap()
            .push(format!("load {} at {offset:#x}", bytes.len()));
        for (byte, at) in bytes.iter_mut().zip(offset..) {
            *byte = at as u8;
        }
        Ok(())
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if offset == 0x40 {
            return Err(DeviceError::new("register 0x40 is read-only"));
        }
        self.0
            .lock()
            .unwrap()
            .push(format!("store {bytes:02x?} at {offset:#x}"));
        Ok(())
    }
}

// spec: A17
#[test]
fn each_access_is_one_call_with_its_width_and_place() {
    let space = space();
    let calls = Recorder::default();
    let at = space.map(Map::device(calls.clone(), 2 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u8>(at + 7), Ok(7));
    assert_eq!(a.load::<u32>(at + 8), Ok(0x0b0a_0908));
    assert_eq!(a.load::<u32>(at + 8), Ok(0x0b0a_0908));
    assert_eq!(a.load::<u64>(at + 0x1001), Ok(0x0807_0605_0403_0201));
    a.store(at + 16, 0x1234_u16).unwrap();
    a.store(at + 24, 1_u128).unwrap();
    let want = [
        "load 1 at 0x7",
        "load 4 at 0x8",
        "load 4 at 0x8",
        "load 8 at 0x1001",
        "store [34, 12] at 0x10",
        "store [01, 00, 00, 00, 00, 00, 00, 00, 00, 00, 00, 00, 00, 00, 00, 00] at 0x18",
    ];
    assert_eq!(calls.take(), want, "never cached");
    // A session, and bulk accesses, which are split into aligned pieces.
    a.session(|a| a.load::<u16>(at + 2)).unwrap();
    assert_eq!(calls.take(), ["load 2 at 0x2"]);
    let mut bytes = [0; 11];
    a.read(at + 3, &mut bytes).unwrap();
    assert_eq!(bytes, [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
    let want = [
        "load 1 at 0x3",
        "load 4 at 0x4",
        "load 4 at 0x8",
        "load 2 at 0xc",
    ];
    assert_eq!(calls.take(), want);
    a.write(at + (PAGE - 1), &[1, 2]).unwrap();
    assert_eq!(
        calls.take(),
        ["store [01] at 0xfff", "store [02] at 0x1000"]
    );
    a.load_atomic::<u32>(at + 8, Ordering::Acquire).unwrap();
    a.store_atomic(at + 16, 0x1234_u16, Ordering::Release)
        .unwrap();
    assert_eq!(calls.take(), ["load 4 at 0x8", "store [34, 12] at 0x10"]);
    // After a part is unmapped, the rest keeps its offsets.
    space.unmap(at, PAGE).unwrap();
    a.load::<u8>(at + PAGE + 5).unwrap();
    assert_eq!(calls.take(), ["load 1 at 0x1005"]);
    assert_eq!(space.stats().pages.resident.0, 0);
    let info = space.mapping_at(at + PAGE).unwrap();
    let kind = innerspace::space::MappingKind::Device;
    assert_eq!((info.kind, info.file, info.offset), (kind, None, PAGE));
    assert!(space.stats().to_string().contains(" rw shared device: "));
    space.validate();
}

/// Checks the fault of an access that goes beyond the end of a device of 20 bytes.
#[track_caller]
fn check_past_device(a: &innerspace::Accessor, fault: Fault, at: VirtAddr, access: AccessKind) {
    let told = (fault.kind(), fault.address(), fault.access());
    assert_eq!(told, (FaultKind::PastDevice, at, access));
    let text = a.explain(fault).to_string();
    assert!(text.ends_with("the device has 20 bytes"), "{text}");
}

// spec: A17
#[test]
fn a_device_is_never_asked_beyond_its_length() {
    let space = space();
    let calls = Recorder::default();
    let device = Map::device(calls.clone(), 20);
    let at = space.map(device.at(VirtAddr(0x10_0000))).unwrap();
    let mut a = space.accessor().unwrap();
    a.load::<u64>(at + 8).unwrap();
    a.store(at + 4, 0_u128).unwrap();
    calls.take();
    for offset in [20, 17, 4092] {
        let at = at + offset;
        let [load, store] = [AccessKind::Load, AccessKind::Store];
        let loaded = a.load::<u32>(at).unwrap_err();
        check_past_device(&a, loaded, at, load);
        let stored = a.store(at, 1_u32).unwrap_err();
        check_past_device(&a, stored, at, store);
        let in_session = a.session(|a| a.store(at, 1_u32)).unwrap_err();
        check_past_device(&a, in_session, at, store);
        let tried = a.try_load::<u32>(at).unwrap_err();
        check_past_device(&a, tried, at, load);
    }
    let (end, acquire) = (at + 20, Ordering::Acquire);
    let atomic = a.load_atomic::<u32>(end, acquire).unwrap_err();
    check_past_device(&a, atomic, end, AccessKind::Load);
    let atomic = a.store_atomic(end, 1_u32, Ordering::Release).unwrap_err();
    check_past_device(&a, atomic, end, AccessKind::Store);
    let exchange = a.fetch_add(end, 1_u32, acquire).unwrap_err();
    check_past_device(&a, exchange, end, AccessKind::Exchange);
    assert!(calls.take().is_empty());
    // Bulk accesses of bytes end where the device does.
    let fault = a.read(at, &mut [0; 32]).unwrap_err();
    check_past_device(&a, fault, end, AccessKind::Load);
    let inside = ["load 8 at 0x0", "load 8 at 0x8", "load 4 at 0x10"];
    assert_eq!(calls.take(), inside);
    let fault = a.compare(at, &core::array::from_fn::<u8, 32, _>(|at| at as u8));
    check_past_device(&a, fault.unwrap_err(), end, AccessKind::Load);
    assert_eq!(calls.take(), inside);
    let stored = ["store [09, 09, 09, 09] at 0x10"];
    let fault = a.write(at + 16, &[9; 32]).unwrap_err();
    check_past_device(&a, fault, end, AccessKind::Store);
    assert_eq!(calls.take(), stored);
    let fault = a.fill(at + 16, 9, 32).unwrap_err();
    check_past_device(&a, fault, end, AccessKind::Store);
    assert_eq!(calls.take(), stored);
    let memory = space.map(Map::anonymous(PAGE)).unwrap();
    let fault = a.copy_within(at + 16, 16, memory).unwrap_err();
    check_past_device(&a, fault, end, AccessKind::Load);
    let fault = a.copy_within(memory, 16, at + 16).unwrap_err();
    check_past_device(&a, fault, end, AccessKind::Store);
    calls.take();
    // A fork has the same device, and so have pages that a remap has moved.
    let mut fork = space.fork().unwrap().accessor().unwrap();
    let fault = fork.load::<u32>(end).unwrap_err();
    check_past_device(&fork, fault, end, AccessKind::Load);
    let moved = space.remap(at, 20, 20, Remap::Replacing(at + 2 * PAGE));
    let fault = a.load::<u32>(moved.unwrap() + 20).unwrap_err();
    check_past_device(&a, fault, end + 2 * PAGE, AccessKind::Load);
    assert!(calls.take().is_empty());
}

// spec: A17
#[test]
fn a_device_has_its_pages_for_itself() {
    let space = space();
    let at = VirtAddr(0x10_0000);
    let device = |at| Map::device(Recorder::default(), 16).at(at);
    space.map(device(at)).unwrap();
    let refused = space.map(device(at + 16)).unwrap_err();
    assert!(matches!(refused, SpaceError::Unaligned { .. }), "{refused}");
    let refused = space.map(device(at)).unwrap_err();
    assert!(matches!(refused, SpaceError::Overlaps { .. }), "{refused}");
    space.map(device(at + PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let across = a.load::<u64>(at + (PAGE - 4)).unwrap_err();
    assert_eq!(across.kind(), FaultKind::PastDevice);
}

/// The end of the device is in its second page, and so are the last bytes of the value.
// spec: V24
#[test]
fn a_store_beyond_the_end_of_a_device_stores_nothing() {
    let space = space();
    let calls = Recorder::default();
    let at = VirtAddr(0x10_0000);
    let device = Map::device(calls.clone(), PAGE + 2);
    space.map(device.at(at)).unwrap();
    let mut a = space.accessor().unwrap();
    let fault = a.store(at + (PAGE - 4), 1_u64).unwrap_err();
    let told = (fault.kind(), fault.address());
    assert_eq!(told, (FaultKind::PastDevice, at + PAGE));
    assert!(calls.take().is_empty());
    a.store(at + (PAGE - 6), 1_u64).unwrap();
}

// spec: A17
#[test]
fn what_a_device_refuses_is_an_error_that_says_so() {
    let space = space();
    let at = space.map(Map::device(Recorder::default(), PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let fault = a.store(at + 0x40, 1_u8).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::Device, at + 0x40)
    );
    let text = a.explain(fault).to_string();
    assert!(text.ends_with("register 0x40 is read-only"), "{text}");
    let fault = a.swap(at, 1_u32, Ordering::SeqCst).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.access()),
        (FaultKind::Device, AccessKind::Exchange)
    );
    let text = a.explain(fault).to_string();
    let why = "a device has no atomic read-modify-write";
    assert!(text.ends_with(why), "{text}");
    let fault = a.fetch::<u32>(at).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Forbidden);
    space.protect(at, PAGE, Protection::READ).unwrap();
    assert_eq!(a.store(at, 1_u8).unwrap_err().kind(), FaultKind::Forbidden);
    let refused = space.protect(at, PAGE, Protection::EXECUTE);
    let refused = refused.unwrap_err().to_string();
    let why = "--x is forbidden, a device is never executable";
    assert!(refused.ends_with(why), "{refused}");
    let map = Map::device(Recorder::default(), PAGE).protection(Protection::EXECUTE);
    let refused = space.map(map.at(VirtAddr(0x10_0000))).unwrap_err();
    assert_eq!(refused.to_string(), format!("device at 0x100000: {why}"));
}

/// A value that crosses into a device's page is stored only if both pages accept it.
// spec: V24
#[test]
fn a_store_across_the_end_of_a_device_is_whole_or_none() {
    let space = space();
    let calls = Recorder::default();
    let at = VirtAddr(0x10_0000);
    let memory = |at| space.map(Map::anonymous(PAGE).replacing(at)).unwrap();
    // The pages are memory, a device, and unmapped.
    memory(at);
    space
        .map(Map::device(calls.clone(), PAGE).at(at + PAGE))
        .unwrap();
    let mut a = space.accessor().unwrap();
    let across = at + (2 * PAGE - 4);
    let fault = a.store(across, u64::MAX).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::NotMapped, at + 2 * PAGE)
    );
    assert!(calls.take().is_empty(), "the device was not asked");
    memory(at + 2 * PAGE);
    a.store(across, 0x0807_0605_0403_0201_u64).unwrap();
    assert_eq!(calls.take(), ["store [01, 02, 03, 04] at 0xffc"]);
    assert_eq!(a.load::<u32>(at + 2 * PAGE), Ok(0x0807_0605));
    a.session(|a| a.store(at + (PAGE - 4), 0x0807_0605_0403_0201_u64))
        .unwrap();
    assert_eq!(calls.take(), ["store [05, 06, 07, 08] at 0x0"]);
    assert_eq!(a.load::<u32>(at + (PAGE - 4)), Ok(0x0403_0201));
    // If the device refuses, the memory before it is unchanged too.
    let refusing = space.map(Map::device(Refusing, PAGE).replacing(at + PAGE));
    refusing.unwrap();
    for at in [at + (PAGE - 4), across] {
        let fault = a.store(at, u64::MAX).unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Device);
    }
    assert_eq!(a.load::<u32>(at + (PAGE - 4)), Ok(0x0403_0201));
    assert_eq!(a.load::<u32>(at + 2 * PAGE), Ok(0x0807_0605));
    // Two devices are called in order.
    for page in [1, 2] {
        let device = Map::device(calls.clone(), PAGE);
        space.map(device.replacing(at + page * PAGE)).unwrap();
    }
    a.store(across, 0x0807_0605_0403_0201_u64).unwrap();
    assert_eq!(
        calls.take(),
        [
            "store [01, 02, 03, 04] at 0xffc",
            "store [05, 06, 07, 08] at 0x0"
        ]
    );
}

struct Refusing;

impl Device for Refusing {
    fn load(&self, _offset: u64, _bytes: &mut [u8]) -> Result<(), DeviceError> {
        Err(DeviceError::new("no"))
    }

    fn store(&self, _offset: u64, _bytes: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::new("no"))
    }
}

// spec: V15
#[test]
fn a_device_gets_no_longer_by_a_remap() {
    let space = space();
    let at = space
        .map(Map::device(Recorder::default(), 2 * PAGE))
        .unwrap();
    let elsewhere = at + 16 * PAGE;
    for to in [Remap::InPlace, Remap::MayMove, Remap::Replacing(elsewhere)] {
        let refused = space.remap(at + PAGE, PAGE, 2 * PAGE, to);
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, SpaceError::DeviceEnds { .. }),
            "{to:?}: {refused}"
        );
    }
    let moved = space.remap(at, 2 * PAGE, 2 * PAGE, Remap::Replacing(elsewhere));
    assert_eq!(moved.unwrap(), elsewhere);
    let shorter = space.remap(elsewhere, 2 * PAGE, PAGE, Remap::InPlace);
    assert_eq!(shorter.unwrap(), elsewhere);
    let mut a = space.accessor().unwrap();
    let refused = a.store(elsewhere + 0x40, 1_u8).unwrap_err();
    assert_eq!(refused.kind(), FaultKind::Device);
    let gone = a.store(elsewhere + PAGE, 1_u8).unwrap_err();
    assert_eq!(gone.kind(), FaultKind::NotMapped);
}

/// A device that uses its own space in every way.
#[derive(Clone)]
struct Nosy(Arc<Mutex<Option<(Space, innerspace::Accessor, VirtAddr)>>>);

impl Device for Nosy {
    fn load(&self, _offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let mut own = self.0.lock().unwrap();
        let (space, warm, at) = own.as_mut().unwrap();
        let reentered = FaultKind::Reentered;
        for _ in 0..2 {
            // One accessor has the page's translation, and another has none.
            assert_eq!(warm.load::<u64>(*at).unwrap_err().kind(), reentered);
            assert_eq!(warm.store(*at, 1_u64).unwrap_err().kind(), reentered);
        }
        assert_eq!(
            space
                .accessor()
                .unwrap()
                .load::<u64>(*at)
                .unwrap_err()
                .kind(),
            reentered
        );
        let refused = |error: Option<SpaceError>, change: &str, start: VirtAddr, bytes: u64| {
            let error = error.unwrap();
            let named = matches!(error, SpaceError::Reentered { what, at, len }
                if (what, at, len) == (change, start, bytes));
            assert!(named, "{change}: {error}");
        };
        let (chosen, first) = (VirtAddr(0x7f00_0000_0000), VirtAddr(0));
        let whole = AddressWidth::default().end();
        let map = || Map::anonymous(3 * PAGE);
        refused(space.map(map()).err(), "map", chosen, 3 * PAGE);
        refused(space.map(map().at(*at)).err(), "map", *at, 3 * PAGE);
        refused(space.unmap(*at, PAGE).err(), "unmap", *at, PAGE);
        let protected = space.protect(*at, PAGE, Protection::READ);
        refused(protected.err(), "protect", *at, PAGE);
        let moved = space.remap(*at, PAGE, 2 * PAGE, Remap::InPlace);
        refused(moved.err(), "remap", *at, PAGE);
        let advised = space.advise(*at, PAGE, Advice::Cold);
        refused(advised.err(), "advise", *at, PAGE);
        refused(space.discard(*at, PAGE).err(), "discard", *at, PAGE);
        refused(space.lock(*at, PAGE).err(), "lock", *at, PAGE);
        let pinned = space.pin(*at, PAGE, AtFork::Copy);
        refused(pinned.err(), "pin", *at, PAGE);
        refused(space.take_dirty(*at, PAGE).err(), "take_dirty", *at, PAGE);
        refused(space.fork().err(), "fork", first, whole);
        let waited = space.wait_for_calls();
        refused(waited.err(), "wait for calls", first, whole);
        refused(space.freeze().err(), "freeze", first, whole);
        bytes.fill(9);
        Ok(())
    }

    fn store(&self, _offset: u64, _bytes: &[u8]) -> Result<(), DeviceError> {
        panic!("on purpose");
    }
}

// spec: A17
#[test]
fn a_handler_may_not_use_its_space_and_everybody_else_may() {
    let space = space();
    let nosy = Nosy(Arc::new(Mutex::new(None)));
    let at = space.map(Map::device(nosy.clone(), PAGE)).unwrap();
    let own = space.map(Map::anonymous(PAGE)).unwrap();
    let mut warm = space.accessor().unwrap();
    warm.store(own, 5_u64).unwrap();
    *nosy.0.lock().unwrap() = Some((space.clone(), warm, own));
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u64>(own), Ok(5));
    assert_eq!(a.load::<u8>(at), Ok(9));
    assert_eq!(a.session(|a| a.load::<u8>(at)), Ok(9));
    assert_eq!(a.load::<u64>(own), Ok(5));
    let (_, mut warm, _) = nosy.0.lock().unwrap().take().unwrap();
    assert_eq!(warm.load::<u64>(own), Ok(5), "it works again outside");
    // A handler that panics leaves nothing behind.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        a.session(|a| a.store(at, 1_u8))
    }));
    assert!(panicked.is_err());
    assert_eq!(a.load::<u64>(own), Ok(5));
    space.unmap(own, PAGE).unwrap();
}

// spec: V11
#[test]
fn a_page_that_was_fetched_from_counts_its_writes() {
    let space = space();
    let code = Protection::READ_WRITE | Protection::EXECUTE;
    let at = space
        .map(Map::anonymous(4 * PAGE).protection(code))
        .unwrap();
    let (mut a, mut b) = (space.accessor().unwrap(), space.accessor().unwrap());
    a.store(at, 0x13_u32).unwrap();
    let mut page = a.watch_code(at + 8).unwrap();
    let check =
        |page: &mut innerspace::space::CodePage, a: &mut innerspace::Accessor, what: &str| {
            assert!(!page.is_current(), "{what}");
            *page = a.watch_code(at).unwrap();
            assert!(page.is_current());
        };
    assert_eq!(a.fetch::<u32>(at), Ok(0x13));
    assert!(page.is_current());
    b.load::<u32>(at).unwrap();
    b.store(at + PAGE, 1_u8).unwrap();
    assert!(page.is_current(), "loads, and stores elsewhere");
    b.store(at + 100, 1_u8).unwrap();
    check(&mut page, &mut a, "a store by another accessor");
    a.write(at + 4090, &[1; 100]).unwrap();
    check(&mut page, &mut a, "a bulk store across its end");
    a.fetch_add(at, 1_u64, Ordering::Relaxed).unwrap();
    check(&mut page, &mut a, "an atomic");
    let fork = space.fork().unwrap();
    a.store(at, 0x17_u32).unwrap();
    check(&mut page, &mut a, "a store after a fork");
    fork.accessor().unwrap().store(at, 0_u32).unwrap();
    assert!(page.is_current(), "a store to the fork is none of ours");
    space
        .protect(at, PAGE, Protection::READ | Protection::EXECUTE)
        .unwrap();
    check(&mut page, &mut a, "another protection");
    space.discard(at, PAGE).unwrap();
    check(&mut page, &mut a, "new zeros");
    space.unmap(at, PAGE).unwrap();
    assert!(!page.is_current());
    assert_eq!(a.watch_code(at).unwrap_err().kind(), FaultKind::NotMapped);
    space
        .protect(at + PAGE, PAGE, Protection::READ_WRITE)
        .unwrap();
    assert_eq!(
        a.watch_code(at + PAGE).unwrap_err().kind(),
        FaultKind::Forbidden
    );
}

/// The usual layout of a JIT compiler: one file, mapped once for writing and once for execution.
// spec: V11
#[test]
fn a_store_to_the_same_page_of_a_file_counts_wherever_it_comes_from() {
    let memory: Memory = Memory::builder(4 * MIB)
        .threads(Threads::None)
        .build()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cached = memory
        .file_options()
        .access(innerspace::file::FileAccess::ReadWrite)
        .open_store(Arc::new(innerspace::store::MemoryStore::with_len(4 * PAGE)))
        .unwrap();
    let direct = memory.dax_options().create(folder.path().join("code"));
    let direct = direct.unwrap();
    direct.set_len(4 * PAGE).unwrap();
    for map in [Map::file(&cached), Map::dax(&direct)] {
        let (space, other) = (
            memory.create_space().unwrap(),
            memory.create_space().unwrap(),
        );
        let execute = Protection::READ | Protection::EXECUTE;
        let code = map.clone().shared().protection(execute);
        let code = space.map(code).unwrap();
        let writable = map.shared().writable();
        let written = space.map(writable.clone()).unwrap();
        let elsewhere = other.map(writable).unwrap();
        let fork = space.fork().unwrap();
        let mut a = space.accessor().unwrap();
        let mut stores = [
            (space.accessor().unwrap(), written),
            (fork.accessor().unwrap(), written),
            (other.accessor().unwrap(), elsewhere),
        ];
        for (value, at) in (1..).zip([0, 1, 2, 0, 1, 2]) {
            let (by, at) = &mut stores[at];
            // The page is writable through that mapping before it is watched.
            by.store(*at + 2 * PAGE, 0_u64).unwrap();
            let page = a.watch_code(code + 2 * PAGE).unwrap();
            assert!(page.is_current());
            by.store(*at, value).unwrap();
            by.store(*at + 3 * PAGE, value).unwrap();
            assert!(page.is_current(), "stores to other pages");
            by.store(*at + 2 * PAGE, value).unwrap();
            assert_eq!(a.fetch::<u64>(code + 2 * PAGE), Ok(value));
            assert!(!page.is_current(), "store {value}");
        }
        let page = a.watch_code(code).unwrap();
        space.unmap(written, 4 * PAGE).unwrap();
        assert!(page.is_current(), "the other mapping shows nothing here");
    }
}

/// A debugger does this when it sets a breakpoint in the file that is executed.
// spec: V11
#[test]
fn a_write_by_a_call_of_the_file_counts() {
    let options = Memory::builder(16 * MIB).threads(Threads::None);
    let memory: Memory = options.build().unwrap();
    let space = memory.create_space().unwrap();
    let check = |at: VirtAddr, change: &dyn Fn(), what: &str| {
        let mut a = space.accessor().unwrap();
        let pages = [at, at + PAGE, at + 2 * PAGE].map(|page| a.watch_code(page).unwrap());
        change();
        let current = pages.map(|page| page.is_current());
        assert_eq!(current, [true, false, true], "{what}");
    };
    let map = |map: Map| {
        let map = map.protection(Protection::READ | Protection::EXECUTE);
        space.map(map).unwrap()
    };
    for block in [1, 4] {
        let options = memory.file_options().block_size(block * PAGE);
        let file = options
            .access(innerspace::file::FileAccess::ReadWrite)
            .open_store(innerspace::store::MemoryStore::from_bytes(
                &[1; 4 * PAGE_SIZE],
            ))
            .unwrap();
        let at = map(Map::file(&file));
        let write = |offset, len| file.write_at(&vec![7; len], offset).unwrap();
        check(at, &|| write(PAGE + 8, 1), "a write");
        check(at, &|| write(PAGE, PAGE_SIZE), "of the whole page");
        let try_write = || file.try_write_at(&[8; 4], PAGE + 8).unwrap();
        check(at, &try_write, "a write that may not wait");
        let punch = || file.punch(PAGE + 10..PAGE + 20).unwrap();
        check(at, &punch, "a part is punched");
        let check_last = |change: &dyn Fn(), what: &str| {
            let mut a = space.accessor().unwrap();
            let pages = [at, at + PAGE].map(|page| a.watch_code(page).unwrap());
            change();
            assert_eq!(pages.map(|page| page.is_current()), [true, false], "{what}");
        };
        check_last(&|| file.set_len(2 * PAGE - 100).unwrap(), "a cut");
        let append = || assert_eq!(file.append(&[9; 4]).unwrap(), 2 * PAGE - 100);
        check_last(&append, "an append");
        let try_append = || assert_eq!(file.try_append(&[9; 4]).unwrap(), 2 * PAGE - 96);
        check_last(&try_append, "an append that may not wait");
    }
    let folder = tempfile::tempdir().unwrap();
    let direct = memory.dax_options().create(folder.path().join("code"));
    let direct = direct.unwrap();
    direct.write_at(&[1; 4 * PAGE_SIZE], 0).unwrap();
    let at = map(Map::dax(&direct));
    let write = || direct.write_at(&[7; 10], PAGE + 8).unwrap();
    check(at, &write, "a write to a direct file");
    let punch = || direct.punch(PAGE + 10..PAGE + 20).unwrap();
    check(at, &punch, "a part of a direct file is punched");
}

/// Code becomes stale when a file operation or a change of mappings takes its page away.
// spec: V11
#[test]
fn code_is_stale_when_its_page_goes_with_a_part_of_the_file_or_moves() {
    let memory: Memory = Memory::builder(4 * MIB)
        .threads(Threads::None)
        .build()
        .unwrap();
    let file = memory
        .file_options()
        .access(innerspace::file::FileAccess::ReadWrite)
        .open_store(Arc::new(innerspace::store::MemoryStore::with_len(4 * PAGE)))
        .unwrap();
    let space = memory.create_space().unwrap();
    let code = Map::file(&file).protection(Protection::READ | Protection::EXECUTE);
    let at = space.map(code.at(VirtAddr(0x10_0000))).unwrap();
    let mut a = space.accessor().unwrap();
    file.write_at(&[1; 4 * PAGE_SIZE], 0).unwrap();
    let mut watched = |at| {
        let page = a.watch_code(at).unwrap();
        a.fetch::<u8>(at).unwrap();
        assert!(page.is_current());
        page
    };
    let page = watched(at);
    file.punch(0..PAGE).unwrap();
    assert!(!page.is_current(), "a hole");
    let (page, stays) = (watched(at + 3 * PAGE), watched(at + PAGE));
    file.set_len(3 * PAGE).unwrap();
    assert!(!page.is_current(), "past the end");
    assert!(stays.is_current());
    let to = at + 16 * PAGE;
    let there = space.map(Map::anonymous(PAGE).at(to).protection(Protection::EXECUTE));
    there.unwrap();
    let (from, there) = (watched(at), watched(to));
    space.remap(at, PAGE, PAGE, Remap::Replacing(to)).unwrap();
    assert!(!from.is_current(), "moved away");
    assert!(!there.is_current(), "replaced by what was moved");
}

/// A translator that runs concurrently with a writer never takes old bytes for current ones.
// spec: V11
#[test]
fn a_translation_beside_a_writer_is_current_or_known_to_be_stale() {
    let space = space();
    let code = Protection::READ_WRITE | Protection::EXECUTE;
    let at = space.map(Map::anonymous(PAGE).protection(code)).unwrap();
    let mut writer = space.accessor().unwrap();
    writer.store(at, 0_u64).unwrap();
    let done = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let told = done.clone();
    let writing = std::thread::spawn(move || {
        for value in 1..=2000_u64 {
            writer.store(at, value).unwrap();
            told.store(value, Ordering::Release);
        }
    });
    let mut a = space.accessor().unwrap();
    while done.load(Ordering::Relaxed) < 2000 {
        let page = a.watch_code(at).unwrap();
        let made_of = a.fetch::<u64>(at).unwrap();
        let written = done.load(Ordering::Acquire);
        assert!(
            made_of >= written || !page.is_current(),
            "{made_of} is old: {written}"
        );
    }
    writing.join().unwrap();
}

/// Neither watching nor advice breaks a later restore in place.
#[test]
fn a_restore_brings_back_a_page_that_is_watched_or_cold() {
    let space = space();
    let code = Protection::READ_WRITE | Protection::EXECUTE;
    let at = space
        .map(Map::anonymous(2 * PAGE).protection(code))
        .unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 1_u64).unwrap();
    a.store(at + PAGE, 1_u64).unwrap();
    let snapshot = space.freeze().unwrap();
    for round in 0..8_u64 {
        a.store(at, 10 + round).unwrap();
        a.store(at + PAGE, 10 + round).unwrap();
        let page = a.watch_code(at).unwrap();
        space
            .advise(at, 2 * PAGE, innerspace::space::Advice::Cold)
            .unwrap();
        space.restore(&snapshot).unwrap();
        assert!(!page.is_current());
        assert_eq!(
            (a.load::<u64>(at), a.load::<u64>(at + PAGE)),
            (Ok(1), Ok(1)),
            "{round}"
        );
    }
}
