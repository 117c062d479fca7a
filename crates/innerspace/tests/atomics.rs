//! Atomic accesses: compares each operation with the standard library's at every width, and tests
//! misalignment and orders between threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

use innerspace::{
    Accessor, MIB, Map, Memory, PAGE_SIZE, Space, VirtAddr,
    space::{AtomicScalar, Fault, FaultKind, Protection},
};

const PAGE: u64 = PAGE_SIZE as u64;

fn space() -> (Space, VirtAddr) {
    let space = Memory::with_limit(4 * MIB).unwrap().create_space().unwrap();
    let at = space.map(Map::anonymous(4 * PAGE)).unwrap();
    (space, at)
}

/// Applies each operation to `old` with `operand`, checks that it returns `old`, and returns the
/// values that it leaves behind.
fn after_each<T: AtomicScalar + std::fmt::Debug>(
    a: &mut Accessor,
    at: VirtAddr,
    old: T,
    operand: T,
) -> [T; 8] {
    type Operation<T> = fn(&mut Accessor, VirtAddr, T) -> Result<T, innerspace::space::Fault>;
    let operations: [Operation<T>; 8] = [
        |a, at, x| a.swap(at, x, SeqCst),
        |a, at, x| a.fetch_add(at, x, Relaxed),
        |a, at, x| a.fetch_sub(at, x, Acquire),
        |a, at, x| a.fetch_and(at, x, Release),
        |a, at, x| a.fetch_or(at, x, AcqRel),
        |a, at, x| a.fetch_xor(at, x, SeqCst),
        |a, at, x| a.session(|a| a.fetch_min(at, x, Relaxed)),
        |a, at, x| a.session(|a| a.fetch_max(at, x, Relaxed)),
    ];
    operations.map(|operation| {
        a.store_atomic(at, old, Release).unwrap();
        assert_eq!(operation(a, at, operand), Ok(old));
        a.load_atomic(at, Acquire).unwrap()
    })
}

// spec: A13
#[test]
fn every_operation_does_what_it_says_at_every_width() {
    let (space, at) = space();
    let mut a = space.accessor().unwrap();
    macro_rules! widths {
        ($($type:ty),*) => {$(
            for (old, x) in [(0, 0), (200u8 as $type, 77), (<$type>::MAX, 1), (<$type>::MIN, 1), (0x55, 0x0f)] {
                let expected = [
                    x,
                    old.wrapping_add(x),
                    old.wrapping_sub(x),
                    old & x,
                    old | x,
                    old ^ x,
                    old.min(x),
                    old.max(x),
                ];
                assert_eq!(after_each(&mut a, at + 8, old, x), expected, "{old} {x}");
                let mut exchange = |old, new| {
                    a.compare_exchange::<$type>(at + 8, old, new, AcqRel, Relaxed).unwrap()
                };
                let now = old.max(x);
                assert_eq!(exchange(now.wrapping_add(1), x), Err(now));
                assert_eq!(exchange(now, x), Ok(now));
                assert_eq!(exchange(x, x), Ok(x));
            }
        )*};
    }
    widths!(u8, u16, u32, u64, i8, i16, i32, i64);
    assert_eq!(a.load::<u64>(at), Ok(0), "bytes beside the value");
    assert_eq!(a.load::<u64>(at + 16), Ok(0), "bytes beside the value");
}

// spec: A13
#[test]
fn a_misaligned_address_is_an_error_that_names_it() {
    let (space, at) = space();
    let mut a = space.accessor().unwrap();
    for offset in [1, 2, 4, 7, PAGE - 1, PAGE - 4] {
        let at = at + offset;
        let faults = [
            a.load_atomic::<u64>(at, SeqCst).unwrap_err(),
            a.store_atomic(at, 1_u64, SeqCst).unwrap_err(),
            a.fetch_or(at, 1_u64, SeqCst).unwrap_err(),
            a.session(|a| a.compare_exchange(at, 0, 1_u64, SeqCst, SeqCst))
                .unwrap_err(),
        ];
        for fault in faults {
            assert_eq!(fault.kind(), FaultKind::Misaligned);
            assert_eq!(fault.address(), at);
        }
    }
    assert_eq!(space.stats().pages.resident.0, 0, "nothing was touched");
}

#[test]
fn an_atomic_access_asks_for_the_rights_it_needs() {
    let (space, at) = space();
    let mut a = space.accessor().unwrap();
    space.protect(at, PAGE, Protection::READ).unwrap();
    assert_eq!(a.load_atomic::<u32>(at, Acquire), Ok(0));
    let refused = [
        a.store_atomic(at, 1_u32, Release).unwrap_err(),
        a.fetch_add(at, 0_u32, Relaxed).unwrap_err(),
    ];
    for fault in refused {
        assert_eq!(fault.kind(), FaultKind::Forbidden);
    }
}

/// An invalid order panics, as in the standard library, and leaves no thread waiting for the
/// accessor.
// spec: A10
#[test]
fn an_order_that_there_is_not_leaves_no_section_open() {
    let (space, at) = space();
    let mut a = space.accessor().unwrap();
    a.store(at, 1_u64).unwrap();
    type Access = fn(&mut Accessor, VirtAddr) -> Result<(), Fault>;
    let wrong: [Access; 4] = [
        |a, at| a.load_atomic::<u64>(at, Release).map(drop),
        |a, at| a.store_atomic(at, 2_u64, AcqRel),
        |a, at| {
            a.compare_exchange(at, 1, 2_u64, SeqCst, Release)
                .map(|_| ())
        },
        |a, at| a.session(|a| a.load_atomic::<u64>(at, AcqRel)).map(drop),
    ];
    for access in wrong {
        let panicked = catch_unwind(AssertUnwindSafe(|| access(&mut a, at)));
        panicked.unwrap_err();
        let (done, unmapped) = channel();
        let other = space.clone();
        std::thread::spawn(move || done.send(other.unmap(at + PAGE, PAGE).is_ok()));
        assert_eq!(unmapped.recv_timeout(Duration::from_secs(60)), Ok(true));
        let page = Map::anonymous(PAGE).at(at + PAGE);
        space.map(page).unwrap();
    }
    assert_eq!(a.load::<u64>(at), Ok(1));
}

#[test]
fn what_is_released_in_a_space_is_acquired_from_it() {
    let (space, at) = space();
    let (data, turn) = (at, at + 2 * PAGE);
    let threads: Vec<_> = (0..2_u64)
        .map(|number| {
            let mut a = space.accessor().unwrap();
            std::thread::spawn(move || {
                for round in 0..2_000_u64 {
                    while a.load_atomic::<u64>(turn, Acquire).unwrap() % 2 != number {
                        std::thread::yield_now();
                    }
                    // These are plain accesses, ordered by the atomic turn alone.
                    let value = a.load::<u64>(data).unwrap();
                    assert_eq!(value, 2 * round + number);
                    a.store(data, value + 1).unwrap();
                    a.fetch_add(turn, 1_u64, Release).unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
