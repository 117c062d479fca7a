//! Copy-on-write after a fork, while the other side lives.

use std::error::Error;

use innerspace::{Accessor, VirtAddr};

use super::{Resident, new_space};
use crate::harness::{Budget, Contender, Outcome, Plan, Row, Sample, Unit, thread_time};
use crate::host::{Child, PAGE, Region};
use crate::translation::HostPages;

/// The bytes that one leaf of a page table maps, in the library and in the kernel.
const LEAF: u64 = 2 << 20;

fn store_every(
    accessor: &mut Accessor,
    at: VirtAddr,
    bytes: u64,
    stride: u64,
) -> Result<(), Box<dyn Error>> {
    for offset in (0..bytes).step_by(stride as usize) {
        accessor.store(at + offset, offset)?;
    }
    Ok(())
}

/// Times the parent's stores to one page in each `stride` while a child lives, in the library, with
/// a new space each round.
fn parent_stores(resident: &Resident, stride: u64) -> Outcome {
    let bytes = resident.bytes();
    let (space, at, mut accessor) = new_space(&resident.memory, bytes)?;
    let child = space.fork()?;
    let sample = thread_time(bytes.div_ceil(stride), || {
        store_every(&mut accessor, at, bytes, stride)
    });
    drop(child);
    sample
}

/// Like [`parent_stores`], with the stores made by the child.
fn child_stores(resident: &Resident, stride: u64) -> Outcome {
    let bytes = resident.bytes();
    let (space, at, _accessor) = new_space(&resident.memory, bytes)?;
    let child = space.fork()?;
    let mut accessor = child.accessor().unwrap();
    thread_time(bytes.div_ceil(stride), || {
        store_every(&mut accessor, at, bytes, stride)
    })
}

/// Like [`parent_stores`], with the kernel's fork and memory.
fn kernel_stores(resident: &Resident, stride: u64) -> Outcome {
    let child = Child::that_stays()?;
    let region = &mut *resident.region.borrow_mut();
    let sample = thread_time(resident.bytes().div_ceil(stride), || {
        region.write_every(stride as usize, 2);
        Ok(())
    });
    drop(child);
    // A page whose other owner is gone becomes writable again by a fault, which must not be in the
    // next figure.
    region.write_every(PAGE, 1);
    sample
}

/// The least possible work: copies of as many pages as each fault has to copy. The pages are no
/// longer in any cache, and in memory with huge pages, as the library's memory is.
struct Floor {
    from: Region,
    to: Region,
}

impl Floor {
    fn new(bytes: u64) -> Result<Floor, Box<dyn Error>> {
        let region = || -> Result<Region, Box<dyn Error>> {
            let mut region = Region::anonymous(bytes as usize, HostPages::Huge)?;
            region.keep_from_children();
            region.write_every(PAGE, 1);
            Ok(region)
        };
        Ok(Floor {
            from: region()?,
            to: region()?,
        })
    }

    /// Copies `pages` pages of each `stride`, with the largest distance between them.
    fn copy(&mut self, stride: u64, pages: u64) -> Outcome {
        let bytes = self.from.bytes().len();
        let apart = (stride / pages) as usize;
        thread_time((bytes as u64).div_ceil(stride), || {
            for at in (0..=bytes - PAGE).step_by(apart) {
                let page = at..at + PAGE;
                self.to.bytes_mut()[page.clone()].copy_from_slice(&self.from.bytes()[page]);
            }
            Ok(())
        })
    }
}

fn row<'a>(
    name: &str,
    resident: &'a Resident,
    stride: u64,
    budget: Budget,
) -> Result<Row<'a>, Box<dyn Error>> {
    let mut contenders = vec![
        Contender::new("kernel", move || kernel_stores(resident, stride)),
        Contender::new("innerspace", move || parent_stores(resident, stride)),
        Contender::new("innerspace, child", move || child_stores(resident, stride)),
    ];
    let mut pages = Floor::new(resident.bytes())?;
    let bare = move || pages.copy(stride, 1);
    contenders.push(Contender::new("memcpy of the pages", bare));
    if stride == LEAF {
        // A leaf is also a page of words. It has memory of its own, since the pages of the other
        // copy are in the caches by now.
        let mut both = Floor::new(resident.bytes())?;
        let bare = move || both.copy(stride, 2);
        contenders.push(Contender::new("memcpy of pages and leaves", bare));
    }
    Ok(Row {
        name: name.into(),
        unit: Unit::Nanoseconds,
        contenders,
        subject: "innerspace",
        baseline: "kernel",
        budget,
    })
}

/// Makes and drops forks, and stores to one page of each leaf while each fork lives. The figure is
/// the cost of a leaf, with its share of the fork and the drop.
pub(super) fn come_and_go<'a>(
    plan: Plan,
    resident: &'a Resident,
) -> Result<Row<'a>, Box<dyn Error>> {
    let bytes = resident.bytes();
    let leaves = bytes.div_ceil(LEAF);
    let (space, at, mut accessor) = new_space(&resident.memory, bytes)?;
    // Each turn stores to other pages: after one turn for each page of a leaf, every leaf has been
    // copied that many times.
    let mut turn = 0;
    let turns = plan.operations(8);
    let ours = move || -> Outcome {
        thread_time(turns * leaves, || {
            for _ in 0..turns {
                let child = space.fork()?;
                let page = turn % (LEAF / PAGE as u64) * PAGE as u64;
                store_every(&mut accessor, at + page, bytes - page, LEAF)?;
                turn += 1;
                drop(child);
            }
            Ok(())
        })
    };
    let kernel = move || -> Outcome {
        thread_time(leaves, || {
            let child = Child::that_stays()?;
            resident.region.borrow_mut().write_every(LEAF as usize, 2);
            drop(child);
            Ok(())
        })
    };
    Ok(Row {
        name: "forks that come and go, a page of each leaf stored to, a leaf".into(),
        unit: Unit::Nanoseconds,
        contenders: vec![
            Contender::new("innerspace", ours),
            Contender::new("fork(2)", kernel),
        ],
        subject: "innerspace",
        baseline: "fork(2)",
        budget: Budget::None,
    })
}

/// Stores to all pages: most of the faults copy a page whose path is already unshared.
pub(super) fn every_page(resident: &Resident) -> Result<Row<'_>, Box<dyn Error>> {
    let name = "copy-on-write fault, mean over all pages";
    row(name, resident, PAGE as u64, Budget::Faster(5.0))
}

/// Stores to one page of each leaf, the same one each time. The pages and the frames that come back
/// are in the caches, because a fork is made and dropped for each input. A parent that stores while
/// each fork lives also takes over the pages that it borrowed during the fork before.
pub(super) fn first_in_each_leaf_again(
    plan: Plan,
    resident: &Resident,
) -> Result<Row<'_>, Box<dyn Error>> {
    let bytes = resident.bytes().min(16 * LEAF);
    let leaves = bytes.div_ceil(LEAF);
    let turns = plan.operations(64);
    let (space, at, _accessor) = new_space(&resident.memory, bytes)?;
    let children = move || -> Outcome {
        times(turns, || {
            let child = space.fork()?;
            let mut accessor = child.accessor().unwrap();
            thread_time(leaves, || store_every(&mut accessor, at, bytes, LEAF))
        })
    };
    let (storing, of_parent, mut parent) = new_space(&resident.memory, bytes)?;
    let parents = move || -> Outcome {
        times(turns, || {
            let _child = storing.fork()?;
            thread_time(leaves, || store_every(&mut parent, of_parent, bytes, LEAF))
        })
    };
    let mut region = Region::anonymous(bytes as usize, HostPages::Base)?;
    region.write_every(PAGE, 1);
    let kernel = move || -> Outcome {
        times(plan.operations(4), || {
            let child = Child::that_stays()?;
            let sample = thread_time(leaves, || {
                region.write_every(LEAF as usize, 2);
                Ok(())
            });
            drop(child);
            region.write_every(LEAF as usize, 1);
            sample
        })
    };
    Ok(Row {
        name: "copy-on-write fault, first of a leaf, the same pages each time".into(),
        unit: Unit::Nanoseconds,
        contenders: vec![
            Contender::new("kernel", kernel),
            Contender::new("innerspace", children),
            Contender::new("innerspace, parent", parents),
        ],
        subject: "innerspace",
        baseline: "kernel",
        budget: Budget::Absolute(1_000.0),
    })
}

/// Adds up the samples of `turns` turns.
fn times(turns: u64, mut turn: impl FnMut() -> Outcome) -> Outcome {
    let mut all = Sample {
        operations: 0,
        total: 0,
    };
    for _ in 0..turns {
        let one = turn()?;
        all.operations += one.operations;
        all.total += one.total;
    }
    Ok(all)
}

/// Stores to one page of each leaf, so that each fault also copies a leaf.
pub(super) fn first_in_each_leaf(resident: &Resident) -> Result<Row<'_>, Box<dyn Error>> {
    let name = "copy-on-write fault, first of a leaf";
    row(name, resident, LEAF, Budget::Absolute(1_000.0))
}
