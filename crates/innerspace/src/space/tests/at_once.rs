//! Accesses that must not wait, beside a change of the mappings.

use super::*;
use crate::space::change::EVERYWHERE;
use crate::space::translate::GATE_MAIL;

// spec: P29
#[test]
fn while_the_mappings_change_it_would_block_each_time() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor();
    a.store(at, 1_u64).unwrap();
    let inner = &space.0;
    let writer = inner.gate.write();
    // As a restore does, which leaves what accessors remember as it is: they have to look at the gate.
    let closed = writer.close(&pool.domain, &EVERYWHERE, || inner.post(GATE_MAIL));
    let would_block = |got: Result<u64, Fault>| assert!(got.unwrap_err().would_block());
    for page in [0, 0, 1, 0] {
        would_block(a.try_load(at + page * PAGE));
        would_block(a.try_store(at + page * PAGE, 2_u64).map(|()| 2));
    }
    a.session(|a| {
        for _ in 0..3 {
            would_block(a.try_load(at));
        }
    });
    drop(closed);
    drop(writer);
    assert_eq!(a.try_load(at), Ok(1_u64));
    assert_eq!(a.try_store(at, 2_u64), Ok(()));
    assert_eq!(a.try_load(at + PAGE), Ok(0_u64));
    space.validate();
    drop((a, space));
    assert_nothing_left(&pool);
}

// spec: P29
#[test]
fn beside_a_change_elsewhere_nothing_waits() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor();
    let writer = space.0.gate.write();
    let closed = writer.close(&pool.domain, &(at.0 + 8 * PAGE..at.0 + 9 * PAGE), || ());
    assert_eq!(a.try_store(at, 1_u64), Ok(()));
    assert_eq!(a.try_load(at + 7 * PAGE), Ok(0_u64));
    let fault = a.try_load::<u64>(at + 8 * PAGE).unwrap_err();
    assert_eq!(
        (fault.would_block(), fault.address()),
        (true, at + 8 * PAGE)
    );
    drop(closed);
}
