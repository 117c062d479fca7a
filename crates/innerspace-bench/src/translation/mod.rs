//! The forms of software TLB that an accessor may have: prototypes, measured together.
//!
//! Every form translates the same 100,000 pages of one space to frames scattered over one mapping
//! of 400 MB, through the same page table ([`table`]), in two ways:
//!
//! - *single*: a section for each access. Enter it, check the request word, translate, access,
//!   leave it.
//! - *session*: one section over all accesses, of which each looks at the request word first.
//!
//! The forms are the direct-mapped array of pages ([`page_array`]) and the direct-mapped cache of 2
//! MiB leaves that reads the live page-table entry ([`leaf_cache`]). They are compared with the
//! flat mapping itself ([`raw`]). [`line`] is the part of an accessor that a revoker sees;
//! [`workloads`] has the loops.
//!
//! Faults, grace periods, groups, and more than one thread are not included. The frames are never
//! freed, so accessors only have to obey a revoker, which need not wait for them.
//!
//! The findings, on a 3.1 GHz Sapphire Rapids guest with other work on both cores (x is the raw
//! pointer on the same host pages, first of 4 KiB, then huge ones):
//!
//! - The page array needs 2 MiB for each accessor, and a post to every accessor for each page
//!   revoked. The leaf cache needs 6 KiB, and sees a changed entry at the next access. It is as
//!   fast on random loads (both 1.6 x, 1.8 x) and faster on dependent ones (1.2 x compared with 1.4
//!   to 1.6 x); a sequential load takes 0.1 to 0.2 ns more. The library has the leaf cache. Fewer
//!   than 256 leaves miss too often on 400 MB (2.4 to 3.1 x).
//! - Sequential loads in a session miss their budget of 1.6 ns: they take 1.6 to 1.8. A session
//!   that also keeps the last page in registers takes 1.1 to 1.5, and its random loads take 5 to 15
//!   % more. It was left out, because entries are then no longer read live, and an upgrade of the
//!   zero page would have to be posted to open sessions.
//! - Random loads seem to be limited by how many of them fit in the reorder buffer: fewer
//!   instructions helped even while the machine waited for memory. Two changes took the leaf cache
//!   from 2.0 x to 1.65 x: tags in an array of their own, compared as a shifted number whose low
//!   byte is the index; and leaf pointers biased so that the page number indexes them without a
//!   mask.
//! - A slow path that returns a `Result` made every hit test a discriminant that had just been set.
//!   It returns a pointer to the bytes instead, null for a fault, and the hit path joins behind it.
//! - `#[cold]` on the slow path did not keep its call out of a session's loop, perhaps because the
//!   session must be closed if it panics; `cold_path()` at each condition did.
//! - A section word of 1 and 0 instead of a counter saves 7 to 10 % of a random load and up to 0.1
//!   ns of a sequential one. A locked exchange instead adds more than 5 ns to a sequential load.

mod leaf_cache;
mod line;
mod page_array;
mod raw;
mod table;
mod workloads;

use std::cell::RefCell;
use std::error::Error;

use self::leaf_cache::LeafCache;
use self::line::{Counter, Exchange, Flag};
use self::page_array::PageArray;
use self::raw::Raw;
use self::table::PageTable;
use self::workloads::{Dependent, Independent, Sequential, Stores, Workload};
use crate::harness::{Budget, Contender, Plan, Row, Rows, Seeds, Unit, thread_time};
use crate::report::Table;

/// The number of resident pages of the space.
const PAGES: u64 = 100_000;

/// The kind of host pages requested: pages of 4 KiB, or huge ones if the kernel has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostPages {
    Base,
    Huge,
}

/// The reason why an access failed: the address and the error, in one word, so that a
/// `Result<u64, Fault>` is two registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault(u64);

const _: () = assert!(size_of::<Result<u64, Fault>>() == 16);

/// Typed access to a space by virtual address; addresses are multiples of 8.
trait Access {
    fn load(&mut self, at: u64) -> Result<u64, Fault>;
    fn store(&mut self, at: u64, value: u64) -> Result<(), Fault>;
}

/// A thread's handle on the space, each access in a section of its own.
trait Accessor: Access {
    /// The same accesses, with one section over many of them.
    type Session<'a>: Access
    where
        Self: 'a;
    fn session(&mut self) -> Self::Session<'_>;
    /// Returns the address of the first page of the space.
    fn base(&self) -> u64;
}

/// An accessor whose translations can be taken away.
trait Revocable: Accessor {
    /// Ends the translation of the page at `at` as a revoker would, without the grace period.
    fn revoke(&mut self, at: u64);
}

/// Measures every form under every workload, in the rows whose names contain `only`.
pub(crate) fn table(plan: Plan, only: &str, host: HostPages) -> Result<Table, Box<dyn Error>> {
    let space = PageTable::new(PAGES, host)?;
    let forms = Forms::new(&space);
    let mut rows = Rows::new(plan, only);
    let independent = Budgets {
        single: Budget::Ratio(2.5),
        session: Budget::Ratio(1.8),
    };
    let dependent = Budgets {
        single: Budget::Ratio(1.3),
        session: Budget::Ratio(1.3),
    };
    let sequential = Budgets {
        single: Budget::Absolute(2.1),
        session: Budget::Absolute(1.6),
    };
    let stores = Budgets {
        single: Budget::None,
        session: Budget::None,
    };
    forms.measure::<Independent>(plan, independent, &mut rows)?;
    forms.measure::<Dependent>(plan, dependent, &mut rows)?;
    forms.measure::<Sequential>(plan, sequential, &mut rows)?;
    forms.measure::<Stores>(plan, stores, &mut rows)?;
    rows.add(forms.revocation_row(plan))?;
    let name = match host {
        HostPages::Base => "translation",
        HostPages::Huge => "translation, huge host pages",
    };
    Ok(Table {
        name: name.into(),
        rows: rows.measured,
    })
}

struct Budgets {
    single: Budget,
    session: Budget,
}

/// An accessor of each form, in cells because the contenders of a row borrow them in turn.
struct Forms<'t> {
    seeds: RefCell<Seeds>,
    raw: RefCell<Raw>,
    page_array: RefCell<PageArray<'t>>,
    leaf_16: RefCell<LeafCache<'t, 16>>,
    leaf_64: RefCell<LeafCache<'t, 64>>,
    leaf_256: RefCell<LeafCache<'t, 256>>,
    leaf_256_counter: RefCell<LeafCache<'t, 256, Counter>>,
    leaf_256_exchange: RefCell<LeafCache<'t, 256, Exchange>>,
}

impl<'t> Forms<'t> {
    fn new(space: &'t PageTable) -> Forms<'t> {
        Forms {
            seeds: RefCell::default(),
            raw: RefCell::new(Raw::new(space)),
            page_array: RefCell::new(PageArray::new(space)),
            leaf_16: RefCell::new(LeafCache::<16, Flag>::new(space)),
            leaf_64: RefCell::new(LeafCache::<64, Flag>::new(space)),
            leaf_256: RefCell::new(LeafCache::<256, Flag>::new(space)),
            leaf_256_counter: RefCell::new(LeafCache::<256, Counter>::new(space)),
            leaf_256_exchange: RefCell::new(LeafCache::<256, Exchange>::new(space)),
        }
    }

    /// Measures two rows: single accesses, and the same accesses in a session.
    fn measure<W: Workload>(
        &self,
        plan: Plan,
        budgets: Budgets,
        rows: &mut Rows<'_>,
    ) -> Result<(), Box<dyn Error>> {
        let single = vec![
            self.single::<W, _>("raw", &self.raw, plan),
            self.single::<W, _>("page array", &self.page_array, plan),
            self.single::<W, _>("16 leaves", &self.leaf_16, plan),
            self.single::<W, _>("64 leaves", &self.leaf_64, plan),
            self.single::<W, _>("256 leaves", &self.leaf_256, plan),
            self.single::<W, _>("256 leaves, counter", &self.leaf_256_counter, plan),
            self.single::<W, _>("256 leaves, exchange", &self.leaf_256_exchange, plan),
        ];
        let session = vec![
            self.session::<W, _>("raw", &self.raw, plan),
            self.session::<W, _>("page array", &self.page_array, plan),
            self.session::<W, _>("16 leaves", &self.leaf_16, plan),
            self.session::<W, _>("64 leaves", &self.leaf_64, plan),
            self.session::<W, _>("256 leaves", &self.leaf_256, plan),
        ];
        for (form, contenders, budget) in [
            ("single", single, budgets.single),
            ("session", session, budgets.session),
        ] {
            let row = Row {
                name: format!("{}, {form}", W::NAME),
                unit: Unit::Nanoseconds,
                contenders,
                subject: "256 leaves",
                baseline: "raw",
                budget,
            };
            rows.add(row)?;
        }
        Ok(())
    }

    fn single<'a, W: Workload, A: Accessor + 'a>(
        &'a self,
        name: &str,
        accessor: &'a RefCell<A>,
        plan: Plan,
    ) -> Contender<'a> {
        let count = plan.operations(W::OPERATIONS);
        Contender::new(name, move || {
            let seed = self.seeds.borrow_mut().next();
            let accessor = &mut *accessor.borrow_mut();
            thread_time(count, || {
                Ok(workloads::single::<W, A>(accessor, count, seed)?)
            })
        })
    }

    fn session<'a, W: Workload, A: Accessor + 'a>(
        &'a self,
        name: &str,
        accessor: &'a RefCell<A>,
        plan: Plan,
    ) -> Contender<'a> {
        let count = plan.operations(W::OPERATIONS);
        Contender::new(name, move || {
            let seed = self.seeds.borrow_mut().next();
            let accessor = &mut *accessor.borrow_mut();
            thread_time(count, || {
                Ok(workloads::session::<W, A>(accessor, count, seed)?)
            })
        })
    }

    /// Measures the cost of an eviction or of aging for the accessor: revokes 64 pages, then loads
    /// from each again.
    fn revocation_row(&self, plan: Plan) -> Row<'_> {
        let count = plan.operations(100_000);
        Row {
            name: "revoke a page and load from it again".into(),
            unit: Unit::Nanoseconds,
            contenders: vec![
                self.revocation("page array", &self.page_array, count),
                self.revocation("256 leaves", &self.leaf_256, count),
            ],
            subject: "256 leaves",
            baseline: "page array",
            budget: Budget::None,
        }
    }

    fn revocation<'a, A: Revocable + 'a>(
        &'a self,
        name: &str,
        accessor: &'a RefCell<A>,
        count: u64,
    ) -> Contender<'a> {
        Contender::new(name, move || {
            let seed = self.seeds.borrow_mut().next();
            let accessor = &mut *accessor.borrow_mut();
            thread_time(count, || {
                Ok(workloads::revoke_and_load(accessor, count, seed)?)
            })
        })
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "access of 8 bytes at {:#x}: not mapped, or not a multiple of 8",
            self.0
        )
    }
}

impl Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a small space: 1,000 pages in two leaves, so that caches of one entry meet
    /// collisions.
    fn space() -> PageTable {
        PageTable::new(1_000, HostPages::Base).unwrap()
    }

    fn loads_what_the_frames_hold(space: &PageTable, accessor: &mut impl Accessor) {
        for page in [0, 1, 511, 512, 999, 0, 512] {
            let at = space.base() + page * 4096 + 8 * (page % 512);
            assert_eq!(accessor.load(at), Ok(space.word(at)), "single, page {page}");
            assert_eq!(
                accessor.session().load(at),
                Ok(space.word(at)),
                "session, page {page}"
            );
        }
    }

    fn stores_are_seen_by_all(space: &PageTable, accessor: &mut impl Accessor) {
        let at = space.base() + 700 * 4096 + 16;
        accessor.store(at, 7).unwrap();
        assert_eq!((space.word(at), accessor.load(at)), (7, Ok(7)));
        accessor.session().store(at, 8).unwrap();
        assert_eq!((space.word(at), accessor.load(at)), (8, Ok(8)));
    }

    fn faults_outside(space: &PageTable, accessor: &mut impl Accessor) {
        for at in [
            space.base() - 8,
            space.base() + 1_000 * 4096,
            space.base() + 4,
            0,
            u64::MAX - 7,
        ] {
            assert_eq!(accessor.load(at), Err(Fault(at)));
            assert_eq!(accessor.store(at, 1), Err(Fault(at)));
            assert_eq!(accessor.session().load(at), Err(Fault(at)));
            assert_eq!(accessor.session().store(at, 1), Err(Fault(at)));
        }
        assert_eq!(
            accessor.load(space.base()),
            Ok(space.word(space.base())),
            "works after faults"
        );
    }

    /// Revokes more pages than a mailbox holds, each of which moves to another frame, and checks
    /// that the new frame is read.
    fn obeys_a_revoker(space: &PageTable, accessor: &mut impl Revocable) {
        for page in 0..200 {
            accessor.load(space.base() + page * 4096).unwrap();
        }
        for page in 0..200 {
            space.swap_frames(
                space.base() + page * 4096,
                space.base() + (page + 200) * 4096,
            );
            accessor.revoke(space.base() + page * 4096);
            accessor.revoke(space.base() + (page + 200) * 4096);
        }
        for page in (0..400).rev() {
            let at = space.base() + page * 4096;
            assert_eq!(accessor.load(at), Ok(space.word(at)), "page {page}");
        }
    }

    fn all(space: &PageTable, accessor: &mut impl Revocable) {
        loads_what_the_frames_hold(space, accessor);
        stores_are_seen_by_all(space, accessor);
        faults_outside(space, accessor);
        obeys_a_revoker(space, accessor);
    }

    #[test]
    fn page_array() {
        let space = space();
        all(&space, &mut PageArray::new(&space));
    }

    #[test]
    fn leaf_cache() {
        let space = space();
        all(&space, &mut LeafCache::<1, Flag>::new(&space));
        all(&space, &mut LeafCache::<16, Flag>::new(&space));
        all(&space, &mut LeafCache::<256, Counter>::new(&space));
        all(&space, &mut LeafCache::<256, Exchange>::new(&space));
    }

    #[test]
    fn every_contender_runs() {
        let table = table(Plan::smoke(), "", HostPages::Base).unwrap();
        assert_eq!(table.rows.len(), 9);
        assert!(table.rows.iter().all(|row| row.ratio().is_some()));
    }
}
