//! Tests of spaces with anonymous memory; files are tested through the facade.

mod calls;
mod chains;
mod coalesced;
mod direct;
mod failpoints;
mod nonblocking;
mod noting;
mod old_mappings;
mod refused;
mod reports;
mod sessions;
mod short_ways;
mod vmas;
mod zap;

use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::cache::Cache;
use crate::group::GroupId;
use crate::reclaim::{AllocMode, Pool, PoolFrame, PoolOptions};
use crate::stats::Event;
use crate::sync::domain::Post;
use crate::sync::{Arc, thread};
use crate::{FrameId, Map, PAGE_SIZE, PageCount, VirtAddr};

const PAGE: u64 = PAGE_SIZE as u64;

fn pool(frames: u32) -> Arc<Pool> {
    Pool::new(&PoolOptions::new(frames)).unwrap()
}

fn space(pool: &Arc<Pool>) -> Space {
    Space::new(&Cache::new(pool), &pool.root_group(), AddressWidth::Bits48).unwrap()
}

/// Checks that all memory is given back: no frame is charged or missing.
fn assert_nothing_left(pool: &Arc<Pool>) {
    pool.flush_retired();
    pool.flush_retired(); // releases the entries that the first flush retired
    assert_eq!(pool.groups.usage(GroupId::ROOT), PageCount(0));
    pool.validate();
}

/// Allocates all frames that are left in a memory.
fn all_of(pool: &Pool) -> Vec<PoolFrame<'_>> {
    let alloc = || pool.alloc(GroupId::ROOT, 0, AllocMode::Wait).ok();
    std::iter::from_fn(alloc).collect()
}

#[test]
fn anonymous_memory_is_zero_until_written() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    assert_eq!(a.load::<u64>(at + 8), Ok(0));
    assert_eq!(space.stats().pages.zero.0, 1);
    a.store(at + 8, 7u64).unwrap();
    assert_eq!(a.load::<u64>(at + 8), Ok(7));
    assert_eq!(a.load::<u8>(at + 9), Ok(0));
    assert_eq!(
        (space.stats().pages.own.0, space.stats().pages.zero.0),
        (1, 0)
    );
    space.validate();
    drop((a, space));
    assert_nothing_left(&pool);
}

// spec: A13
#[test]
fn values_of_every_size_at_every_alignment_across_a_page_end() {
    let pool = pool(64);
    let space = space(&pool);
    let at = space.map(Map::anonymous(2 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    // The offsets include the beginning of a page, where values, but not bytes, take a path of
    // their own.
    for offset in PAGE - 20..PAGE + 50 {
        let value = 0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00 ^ u128::from(offset);
        let mut bytes = [0; 16];
        a.session(|a| {
            a.store(at + offset, !value).unwrap();
            assert_eq!(a.load::<u128>(at + offset), Ok(!value));
        });
        a.read(at + offset, &mut bytes).unwrap();
        assert_eq!(u128::from_ne_bytes(bytes), !value, "{offset}");
        a.store(at + offset, value).unwrap();
        assert_eq!(a.load::<u128>(at + offset), Ok(value));
        a.read(at + offset, &mut bytes).unwrap();
        assert_eq!(u128::from_ne_bytes(bytes), value, "{offset}");
        a.store(at + offset, value as u64).unwrap();
        assert_eq!(a.load::<u64>(at + offset), Ok(value as u64));
        a.store(at + offset, value as u16).unwrap();
        assert_eq!(a.load::<u16>(at + offset), Ok(value as u16));
        a.store(at + offset, value as u8).unwrap();
        assert_eq!(a.load::<u8>(at + offset), Ok(value as u8));
        let exchanged = a.compare_exchange(at + offset, 0u32, 1, SeqCst, SeqCst);
        match offset % 4 {
            0 => assert!(exchanged.is_ok()),
            _ => assert_eq!(exchanged.unwrap_err().kind(), FaultKind::Misaligned),
        }
    }
}

#[test]
fn a_value_over_the_end_of_a_mapping_is_stored_wholly_or_not_at_all() {
    let pool = pool(64);
    let space = space(&pool);
    let at = space.map(Map::anonymous(PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let fault = a.store(at + (PAGE - 4), u64::MAX).unwrap_err();
    assert_eq!(
        (fault.kind(), fault.address()),
        (FaultKind::NotMapped, at + PAGE)
    );
    assert_eq!(a.load::<u32>(at + (PAGE - 4)), Ok(0));
}

#[test]
fn each_wrong_access_is_its_own_error() {
    let pool = pool(64);
    let space = space(&pool);
    let at = space.map(Map::anonymous(4 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.store(at, 5u64).unwrap();
    space.protect(at, PAGE, Protection::READ).unwrap();
    assert_eq!(a.store(at, 6u64).unwrap_err().kind(), FaultKind::Forbidden);
    assert_eq!(a.load::<u64>(at), Ok(5));
    space.protect(at, PAGE, Protection::NONE).unwrap();
    assert_eq!(a.load::<u64>(at).unwrap_err().kind(), FaultKind::Forbidden);
    space.validate();
    space.protect(at, PAGE, Protection::READ_WRITE).unwrap();
    assert_eq!(a.load::<u64>(at), Ok(5));
    let fault = a.load::<u64>(VirtAddr(0x1000)).unwrap_err();
    let text = a.explain(fault).to_string();
    let want = format!(
        "load of 8 bytes at 0x1000: not mapped; nearest mapping {:#x}..{:#x} anonymous rw private",
        at.0,
        at.0 + 4 * PAGE
    );
    assert_eq!(text, want);
    assert_eq!(
        a.load::<u8>(VirtAddr(u64::MAX)).unwrap_err().kind(),
        FaultKind::NotMapped
    );
    assert_eq!(
        a.load::<u64>(VirtAddr(u64::MAX)).unwrap_err().kind(),
        FaultKind::NotMapped
    );
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let pool = pool(64);
    let space = space(&pool);
    let at = space.map(Map::anonymous(4 * PAGE)).unwrap();
    let before = space.stats();
    for (what, error) in [
        (space.map(Map::anonymous(0)).map(drop), "map of 0 bytes"),
        (
            space.map(Map::anonymous(u64::MAX)).map(drop),
            "the space ends at",
        ),
        (
            space.map(Map::anonymous(PAGE).at(at + 1)).map(drop),
            "not a multiple of the page size",
        ),
        (
            space.map(Map::anonymous(PAGE).at(at + PAGE)).map(drop),
            "overlaps",
        ),
        (
            space
                .map(Map::anonymous(PAGE).at(VirtAddr(1 << 48)))
                .map(drop),
            "the space ends at",
        ),
        (space.unmap(at, 0), "unmap of 0 bytes"),
        (space.unmap(at + 1, PAGE), "not a multiple"),
        (space.unmap(at, u64::MAX), "the space ends at"),
        (
            space.protect(at, 5 * PAGE, Protection::READ),
            "not all of it is mapped",
        ),
    ] {
        let text = what.unwrap_err().to_string();
        assert!(text.contains(error), "{text:?} should say {error:?}");
    }
    assert_eq!(space.stats(), before);
}

// spec: A5
#[test]
fn after_unmap_and_protect_no_old_translation_works() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(8 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    a.session(|session| {
        for page in 0..8 {
            session.store(at + page * PAGE, page).unwrap();
        }
        // This thread has a session open: the changes do not wait for it, and it notices them at
        // its next access.
        space.unmap(at + 2 * PAGE, 2 * PAGE).unwrap();
        space
            .protect(at + 4 * PAGE, PAGE, Protection::READ)
            .unwrap();
        assert_eq!(
            session.load::<u64>(at + 2 * PAGE).unwrap_err().kind(),
            FaultKind::NotMapped
        );
        assert_eq!(
            session.store(at + 3 * PAGE, 1u64).unwrap_err().kind(),
            FaultKind::NotMapped
        );
        assert_eq!(
            session.store(at + 4 * PAGE, 1u64).unwrap_err().kind(),
            FaultKind::Forbidden
        );
        assert_eq!(session.load::<u64>(at + 4 * PAGE), Ok(4));
        assert_eq!(session.load::<u64>(at + 5 * PAGE), Ok(5));
    });
    space.validate();
    drop((a, space));
    assert_nothing_left(&pool);
}

#[test]
fn bulk_accesses_cross_pages_and_say_how_far_they_got() {
    let pool = pool(256);
    let space = space(&pool);
    let at = space.map(Map::anonymous(4 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let bytes: Vec<u8> = (0..3 * PAGE).map(|i| (i % 251) as u8).collect();
    a.write(at + 100, &bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    a.read(at + 100, &mut back).unwrap();
    assert_eq!(back, bytes);
    assert_eq!(a.compare(at + 100, &bytes), Ok(std::cmp::Ordering::Equal));
    a.copy_within(at + 100, bytes.len(), at + 50).unwrap();
    assert_eq!(a.compare(at + 50, &bytes), Ok(std::cmp::Ordering::Equal));
    a.copy_within(at + 50, bytes.len(), at + 300).unwrap();
    assert_eq!(a.compare(at + 300, &bytes), Ok(std::cmp::Ordering::Equal));
    a.fill(at + (PAGE - 1), 0xee, 2).unwrap();
    assert_eq!(a.load::<u16>(at + (PAGE - 1)), Ok(0xeeee));
    let fault = a
        .read(at + 2 * PAGE, &mut vec![0; 3 * PAGE as usize])
        .unwrap_err();
    assert_eq!(
        (fault.address(), fault.kind()),
        (at + 4 * PAGE, FaultKind::NotMapped)
    );
    let fault = a.write(at + 3 * PAGE, &bytes).unwrap_err();
    assert_eq!(fault.address(), at + 4 * PAGE);
}

// spec: A4
#[test]
fn fork_separates_parent_and_child() {
    let pool = pool(4096);
    let parent = space(&pool);
    let at = parent.map(Map::anonymous(700 * PAGE)).unwrap();
    let mut p = parent.accessor().unwrap();
    for page in 0..700 {
        p.store(at + page * PAGE, page).unwrap();
    }
    let used = pool.groups.usage(GroupId::ROOT);
    let child = parent.fork().unwrap();
    assert_eq!(
        pool.groups.usage(GroupId::ROOT).0,
        used.0 + 1,
        "a fork costs its root"
    );
    let mut c = child.accessor().unwrap();
    for page in (0..700).step_by(3) {
        p.store(at + page * PAGE, page + 1000).unwrap();
        c.store(at + page * PAGE, page + 2000).unwrap();
    }
    for page in (1..700).step_by(3) {
        p.store(at + page * PAGE, page + 1000).unwrap();
    }
    for page in 0..700 {
        let (want_p, want_c) = match page % 3 {
            0 => (page + 1000, page + 2000),
            1 => (page + 1000, page),
            _ => (page, page),
        };
        assert_eq!(p.load::<u64>(at + page * PAGE), Ok(want_p));
        assert_eq!(c.load::<u64>(at + page * PAGE), Ok(want_c));
    }
    parent.validate();
    child.validate();
    drop((p, parent));
    child.validate();
    for page in 0..700 {
        let want = if page % 3 == 0 { page + 2000 } else { page };
        assert_eq!(c.load::<u64>(at + page * PAGE), Ok(want));
        c.store(at + page * PAGE, page).unwrap();
    }
    child.validate();
    let left = pool.groups.usage(GroupId::ROOT);
    drop((c, child));
    assert!(
        left.0 < 800,
        "the child took over what only it used: {left:?}"
    );
    assert_nothing_left(&pool);
}

#[test]
fn generations_of_forks_with_writes_keep_their_own_bytes() {
    let pool = pool(4096);
    let mut spaces = vec![space(&pool)];
    let at = spaces[0].map(Map::anonymous(40 * PAGE)).unwrap();
    for generation in 0..30u64 {
        let last = spaces.last().unwrap();
        let mut a = last.accessor().unwrap();
        a.store(at + generation * PAGE, generation + 1).unwrap();
        a.store(at + 39 * PAGE, generation).unwrap();
        drop(a);
        let next = last.fork().unwrap();
        spaces.push(next);
    }
    for (generation, space) in spaces.iter().enumerate() {
        let mut a = space.accessor().unwrap();
        for page in 0..30u64 {
            let want = if page <= generation as u64 && page < 30 {
                page + 1
            } else {
                0
            };
            let want = if generation == 30 { page + 1 } else { want };
            assert_eq!(
                a.load::<u64>(at + page * PAGE),
                Ok(want),
                "{generation} {page}"
            );
        }
        assert_eq!(
            a.load::<u64>(at + 39 * PAGE),
            Ok((generation as u64).min(29))
        );
        space.validate();
    }
    // The spaces are dropped in no particular order.
    while spaces.len() > 1 {
        let victim = (spaces.len() * 7) % spaces.len().max(2);
        spaces.swap_remove(victim);
        spaces[0].validate();
    }
    drop(spaces);
    assert_nothing_left(&pool);
}

/// In each round a child is forked, and dropped once its parent has written everything again.
#[test]
fn rounds_of_forks_leave_no_chain_of_dead_leaves() {
    let pool = pool(8192);
    let parent = space(&pool);
    let at = parent.map(Map::anonymous(600 * PAGE)).unwrap();
    let mut p = parent.accessor().unwrap();
    let mut write_all = |round: u64| {
        for page in 0..600 {
            p.store(at + page * PAGE, round + page).unwrap();
        }
    };
    write_all(0);
    let mut most = 0;
    for round in 1..40 {
        let child = parent.fork().unwrap();
        write_all(round);
        let mut c = child.accessor().unwrap();
        assert_eq!(c.load::<u64>(at + 599 * PAGE), Ok(round - 1 + 599));
        drop((c, child));
        pool.flush_retired();
        most = most.max(pool.groups.usage(GroupId::ROOT).0);
    }
    assert!(most <= 610, "{most} pages are charged for 600");
    parent.validate();
    drop((p, parent));
    assert_nothing_left(&pool);
}

#[test]
fn unmapping_part_of_a_forked_space_leaves_the_other_as_it_was() {
    let pool = pool(4096);
    let parent = space(&pool);
    let at = parent.map(Map::anonymous(1200 * PAGE)).unwrap();
    let mut p = parent.accessor().unwrap();
    for page in 0..1200 {
        p.store(at + page * PAGE, page).unwrap();
    }
    let child = parent.fork().unwrap();
    child.unmap(at + 100 * PAGE, 700 * PAGE).unwrap();
    child
        .protect(at + 900 * PAGE, 10 * PAGE, Protection::NONE)
        .unwrap();
    child
        .protect(at + 1000 * PAGE, 10 * PAGE, Protection::READ)
        .unwrap();
    parent.validate();
    child.validate();
    let mut c = child.accessor().unwrap();
    for page in 0..1200 {
        assert_eq!(p.load::<u64>(at + page * PAGE), Ok(page));
        let got = c.load::<u64>(at + page * PAGE).map_err(Fault::kind);
        let want = match page {
            100..800 => Err(FaultKind::NotMapped),
            900..910 => Err(FaultKind::Forbidden),
            _ => Ok(page),
        };
        assert_eq!(got, want, "page {page}");
        p.store(at + page * PAGE, page + 1).unwrap();
    }
    assert_eq!(
        c.store(at + 1000 * PAGE, 1u64).unwrap_err().kind(),
        FaultKind::Forbidden
    );
    assert_eq!(c.load::<u64>(at + 1000 * PAGE), Ok(1000));
    drop((p, parent, c, child));
    assert_nothing_left(&pool);
}

// spec: A5
#[test]
fn what_one_side_of_a_fork_allows_itself_the_other_does_not_see() {
    let pool = pool(256);
    let parent = space(&pool);
    let none = || Map::anonymous(4 * PAGE).protection(Protection::NONE);
    let at = parent.map(none()).unwrap();
    parent.protect(at, PAGE, Protection::READ_WRITE).unwrap();
    parent.accessor().unwrap().store(at, 1u64).unwrap(); // creates the leaf
    parent.protect(at, PAGE, Protection::NONE).unwrap();
    for protection in [Protection::READ, Protection::READ_WRITE] {
        let child = parent.fork().unwrap();
        let mut c = child.accessor().unwrap();
        child.protect(at, 2 * PAGE, protection).unwrap();
        assert_eq!(c.load::<u64>(at), Ok(1));
        assert_eq!(c.load::<u64>(at + PAGE), Ok(0));
        let mut p = parent.accessor().unwrap();
        for page in 0..2 {
            let fault = p.load::<u64>(at + page * PAGE).unwrap_err();
            assert_eq!(fault.kind(), FaultKind::Forbidden);
        }
        parent.validate();
        child.validate();
    }
    drop(parent);
    assert_nothing_left(&pool);
}

#[test]
fn a_full_group_is_an_error_to_the_access_and_nothing_more() {
    let pool = pool(256);
    let group = pool
        .root_group()
        .create_child("tenant-a", 32 * PAGE)
        .unwrap();
    let space = Space::new(&Cache::new(&pool), &group, AddressWidth::Bits48).unwrap();
    let at = space.map(Map::anonymous(64 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    let mut stored = 0;
    let fault = loop {
        match a.store(at + stored * PAGE, stored) {
            Ok(()) => stored += 1,
            Err(fault) => break fault,
        }
    };
    assert!(fault.is_limit() && (20..32).contains(&stored), "{stored}");
    assert!(
        a.explain(fault)
            .to_string()
            .contains("group root/tenant-a is full"),
        "{}",
        a.explain(fault)
    );
    for page in 0..stored {
        assert_eq!(a.load::<u64>(at + page * PAGE), Ok(page));
    }
    space.unmap(at, 4 * PAGE).unwrap();
    a.store(at + stored * PAGE, 1u64).unwrap();
    drop((a, space));
    pool.flush_retired();
    pool.flush_retired();
    assert_eq!(group.usage(), 0);
}

/// Two threads in one space see each other's stores once they synchronise, even if a page was the
/// zero page before, and after a fork.
// spec: A6
#[test]
fn an_upgrade_by_one_accessor_is_seen_by_another() {
    let pool = pool(8192);
    let space = space(&pool);
    let at = space.map(Map::anonymous(600 * PAGE)).unwrap();
    let (to_reader, from_writer) = std::sync::mpsc::channel::<u64>();
    let (to_writer, from_reader) = std::sync::mpsc::channel::<()>();
    let reader = {
        let space = space.clone();
        thread::spawn(move || {
            let mut a = space.accessor().unwrap();
            for page in 0..600 {
                assert_eq!(a.load::<u64>(at + page * PAGE), Ok(0)); // the zero page
            }
            to_writer.send(()).unwrap();
            for page in from_writer {
                let value = a.load::<u64>(at + page * PAGE).unwrap();
                assert_eq!(value, page + 1, "page {page}");
                to_writer.send(()).unwrap();
            }
        })
    };
    let mut a = space.accessor().unwrap();
    let mut forks = Vec::new();
    from_reader.recv().unwrap();
    for page in 0..600 {
        if page % 50 == 0 {
            forks.push(space.fork().unwrap()); // the next write replaces the leaf
        }
        a.store(at + page * PAGE, page + 1).unwrap();
        to_reader.send(page).unwrap();
        from_reader.recv().unwrap();
    }
    drop(to_reader);
    reader.join().unwrap();
    drop((a, forks, space));
    assert_nothing_left(&pool);
}

/// Several threads fork, write on both sides and unmap at the same time; then everything is given
/// back.
#[test]
fn forks_race_with_faults() {
    let pool = pool(8192);
    let space = space(&pool);
    let at = space.map(Map::anonymous(600 * PAGE)).unwrap();
    let writers: Vec<_> = (0..2u64)
        .map(|thread| {
            let space = space.clone();
            thread::spawn(move || {
                let mut a = space.accessor().unwrap();
                for round in 1..=60u64 {
                    for page in (thread..600).step_by(2 + round as usize % 7) {
                        let slot = at + page * PAGE + thread * 8;
                        let value = a.load::<u64>(slot).unwrap();
                        assert!(value <= round, "bytes of another generation");
                        a.store(slot, round).unwrap();
                        assert_eq!(a.load::<u64>(slot), Ok(round));
                    }
                }
            })
        })
        .collect();
    for _ in 0..60 {
        let child = space.fork().unwrap();
        let mut c = child.accessor().unwrap();
        let first: Vec<u64> = (0..600)
            .map(|page| c.load(at + page * PAGE).unwrap())
            .collect();
        for page in (0..600).step_by(17) {
            c.store(at + page * PAGE + 64, 1u64).unwrap();
        }
        for (page, value) in first.iter().enumerate() {
            let now = c.load::<u64>(at + page as u64 * PAGE).unwrap();
            assert_eq!(now, *value, "a store of the parent reached the child");
        }
        child.validate();
    }
    for writer in writers {
        writer.join().unwrap();
    }
    space.validate();
    drop(space);
    assert_nothing_left(&pool);
}
