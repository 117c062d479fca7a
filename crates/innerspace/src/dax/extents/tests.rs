//! Tests of both extent maps against a plain model, of the free list, and of the maps' errors.

use proptest::collection::vec;
use proptest::prelude::*;

use super::blocks::Taken;
use super::faulty::{Faulty, Misplace};
use super::*;
use crate::dax::DaxDevice;
use crate::units::{MIB, PAGE_SIZE};

const PAGE: u64 = PAGE_SIZE as u64;
/// The number of pages of a file in the random tests: more than two large extents.
const FILE_PAGES: u64 = 3 * LARGE_PAGES;

/// One operation on a file.
#[derive(Clone, Debug)]
enum Step {
    /// Allocates pages in place of a hole, keeps them or not, and fills them with a byte.
    Allocate {
        page: u64,
        pages: u64,
        used: bool,
        fill: u8,
    },
    Free(Range<u64>),
    SetLen(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let allocate = |page: BoxedStrategy<u64>, pages| {
        (page, any::<bool>(), 1..=255_u8).prop_map(move |(page, used, fill)| Step::Allocate {
            page,
            pages,
            used,
            fill,
        })
    };
    let small = allocate((0..FILE_PAGES).boxed(), 1);
    let dense = allocate((500..540_u64).boxed(), 1);
    let large = (0..FILE_PAGES / LARGE_PAGES).prop_map(|number| number * LARGE_PAGES);
    let large = allocate(large.boxed(), LARGE_PAGES);
    let free = (0..FILE_PAGES, 0..700_u64);
    prop_oneof![
        4 => small,
        4 => dense,
        1 => large,
        2 => free.prop_map(|(start, len)| Step::Free(start..(start + len).min(FILE_PAGES))),
        1 => (0..=FILE_PAGES * PAGE).prop_map(Step::SetLen),
    ]
}

/// The bytes of a file, by page; `None` is a hole. Each page repeats a single byte, up to where the
/// file was cut.
struct Model {
    pages: Vec<Option<Vec<u8>>>,
    len: u64,
}

impl Model {
    fn new() -> Model {
        Model {
            pages: vec![None; FILE_PAGES as usize],
            len: FILE_PAGES * PAGE,
        }
    }

    fn free(&mut self, pages: Range<u64>) {
        self.pages[pages.start as usize..pages.end as usize].fill(None);
    }

    fn set_len(&mut self, len: u64) {
        let (shorter, inside) = (self.len.min(len), (self.len.min(len) % PAGE) as usize);
        if inside > 0
            && let Some(page) = &mut self.pages[(shorter / PAGE) as usize]
        {
            page[inside..].fill(0);
        }
        if len < self.len {
            self.free(len.div_ceil(PAGE)..FILE_PAGES);
        }
        self.len = len;
    }

    fn used(&self) -> u64 {
        self.pages.iter().flatten().count() as u64
    }
}

/// The answers that a map may give for a page that is a hole in the model.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holes {
    /// Only that the page is a hole.
    Exact,
    /// Also that the page is data, if all of its bytes are zeros.
    Approximate,
}

/// A map, with the device to which it maps, and the file's model.
struct Side<M> {
    map: M,
    device: DaxDevice,
    model: Model,
    holes: Holes,
}

impl<M: ExtentMap> Side<M> {
    fn run(&mut self, step: &Step) {
        match step {
            Step::Allocate {
                page,
                pages,
                used,
                fill,
            } => self.allocate(*page, *pages, *used, *fill),
            Step::Free(pages) => {
                // Pages past the end are not a hole of the file.
                let pages = pages.start..pages.end.min(self.model.len.div_ceil(PAGE));
                if pages.start < pages.end {
                    self.map.free(pages.clone()).unwrap();
                    self.model.free(pages);
                }
            }
            Step::SetLen(len) => self.set_len(*len),
        }
    }

    fn allocate(&mut self, page: u64, pages: u64, used: bool, fill: u8) {
        let range = page as usize..(page + pages) as usize;
        let inside = (page + pages) * PAGE <= self.model.len;
        if !inside || self.model.pages[range.clone()].iter().any(Option::is_some) {
            return;
        }
        let at = match self.map.allocate(page, pages) {
            Ok(at) => at,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::StorageFull);
                return;
            }
        };
        assert!(at.is_multiple_of(pages), "{at} for {pages} pages");
        assert_eq!(
            self.map.lookup(page, pages).unwrap(),
            Extent {
                at: Some(at),
                pages
            }
        );
        let mut bytes = vec![0xEE; (pages * PAGE) as usize];
        self.device.read(at * PAGE, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0), "a new block is zeros");
        if used {
            bytes.fill(fill);
            self.device.write(at * PAGE, &bytes);
            self.model.pages[range].fill(Some(bytes[..PAGE_SIZE].to_vec()));
        } else {
            self.map.free(page..page + pages).unwrap();
        }
    }

    /// Changes the length as a file does: first zeroes the rest of the page in which the shorter of
    /// the two lengths ends, and frees the pages past it.
    fn set_len(&mut self, len: u64) {
        let old = self.model.len;
        let (page, inside) = (len.min(old) / PAGE, len.min(old) % PAGE);
        if inside > 0
            && let Some(at) = self.map.lookup(page, 1).unwrap().at
        {
            self.device.zero(at * PAGE + inside, PAGE - inside);
        }
        let gone = len.div_ceil(PAGE)..old.div_ceil(PAGE);
        if !gone.is_empty() {
            self.map.free(gone).unwrap();
        }
        self.map.set_len(len).unwrap();
        self.model.set_len(len);
    }

    /// Looks up every page and compares it with the model. Returns the device's pages that are in
    /// use.
    fn check(&self) -> Vec<u64> {
        let end = self.model.len.div_ceil(PAGE);
        let mut in_use = Vec::new();
        let mut page = 0;
        while page < end {
            let extent = self.map.lookup(page, end - page).unwrap();
            assert!((1..=end - page).contains(&extent.pages), "{extent:?}");
            assert_eq!(self.map.lookup(page, 1).unwrap().at, extent.at);
            for step in 0..extent.pages {
                let expected = &self.model.pages[(page + step) as usize];
                let Some(at) = extent.at.map(|at| at + step) else {
                    assert!(expected.is_none(), "page {} was lost", page + step);
                    continue;
                };
                in_use.push(at);
                let mut bytes = vec![0xEE; PAGE_SIZE];
                self.device.read(at * PAGE, &mut bytes);
                match expected {
                    // Bytes past the end may have any value, as on any file system.
                    Some(expected) => {
                        let known = PAGE.min(self.model.len - (page + step) * PAGE) as usize;
                        assert!(bytes[..known] == expected[..known], "page {}", page + step);
                    }
                    None => {
                        assert!(self.holes == Holes::Approximate, "page {}", page + step);
                        assert!(bytes.iter().all(|byte| *byte == 0));
                    }
                }
            }
            page += extent.pages;
        }
        in_use
    }
}

fn scattered(device: &DaxDevice) -> Side<ScatteredMap> {
    let map = ScatteredMap::new(device);
    Side {
        map,
        device: device.clone(),
        model: Model::new(),
        holes: Holes::Exact,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 48 }, ..ProptestConfig::default() })]

    #[test]
    fn two_scattered_files_on_one_device_keep_to_their_blocks(
        steps in vec((any::<bool>(), step()), 1..if cfg!(miri) { 5 } else { 80 })
    ) {
        // The device is so small that it is full at times.
        let device = DaxDevice::memory(5 * MIB + 3 * PAGE).unwrap();
        let mut sides = [scattered(&device), scattered(&device)];
        for (which, step) in steps {
            sides[usize::from(which)].run(&step);
            device.blocks().unwrap().validate();
        }
        let mut in_use: Vec<u64> = sides.iter().flat_map(Side::check).collect();
        let count = in_use.len() as u64;
        in_use.sort_unstable();
        in_use.dedup();
        prop_assert_eq!(in_use.len() as u64, count, "a block of two pages");
        prop_assert_eq!(count, sides[0].model.used() + sides[1].model.used());
        prop_assert_eq!(device.free_pages().0, device.pages() - count);
        drop(sides);
        prop_assert_eq!(device.free_pages().0, device.pages());
    }
}

#[test]
fn offset_and_block_differ_and_single_pages_leave_large_runs_alone() {
    let device = DaxDevice::memory(8 * MIB).unwrap();
    let map = ScatteredMap::new(&device);
    let blocks: Vec<u64> = (0..600)
        .map(|page| map.allocate(page, 1).unwrap())
        .collect();
    assert!((0..).zip(&blocks).all(|(page, block)| page != *block));
    assert!(blocks.windows(2).all(|pair| pair[0] + 1 != pair[1]));
    assert_eq!(map.runs(), 600);
    // 600 pages are in two regions, so the other two are whole.
    let large = [1024, 2048].map(|page| map.allocate(page, LARGE_PAGES).unwrap());
    assert!(large.iter().all(|block| block.is_multiple_of(LARGE_PAGES)));
    let error = map.allocate(4096, LARGE_PAGES).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    // Runs that are neighbours both in the file and on the device are one run.
    map.free(1024..1536).unwrap();
    let at = large[0] + 10;
    map.place_at(5000, at..at + 5);
    map.place_at(5010, at + 10..at + 15);
    map.place_at(5005, at + 5..at + 10);
    assert_eq!(
        map.lookup(5001, 100).unwrap(),
        Extent {
            at: Some(at + 1),
            pages: 14
        }
    );
    assert_eq!(map.runs(), 602);
}

#[test]
fn a_full_device_is_an_error_that_names_file_offset_and_device() {
    let device = DaxDevice::memory(3 * PAGE).unwrap();
    let map = ScatteredMap::new(&device);
    for page in 0..3 {
        map.allocate(page, 1).unwrap();
    }
    let full = || map.allocate(7, 1).unwrap_err();
    assert_eq!(full().kind(), io::ErrorKind::StorageFull);
    let file: Arc<str> = "data.bin".into();
    let error = DaxError::from_extents(&file, DaxAction::Allocate, 7 * PAGE, PAGE, full());
    let text = "data.bin: no block for offset 28,672: the device of 12.0 KiB is full";
    assert_eq!(error.to_string(), text);
    map.free(1..2).unwrap();
    map.allocate(7, 1).unwrap();
}

#[test]
fn what_a_map_says_keeps_its_meaning() {
    let file: Arc<str> = "data.bin".into();
    let from = |what, error| DaxError::from_extents(&file, what, 4096, 8, error).to_string();
    let unsupported = || io::Error::new(io::ErrorKind::Unsupported, "not here");
    let texts = [
        (
            from(DaxAction::Allocate, unsupported()),
            "data.bin: no direct access without allocating blocks ahead of writes: not here",
        ),
        (
            from(DaxAction::Punch, unsupported()),
            "data.bin: no direct access without punching holes: not here",
        ),
        (
            from(DaxAction::Query, unsupported()),
            "data.bin: query at 4,096 failed: not here",
        ),
    ];
    for (text, expected) in texts {
        assert_eq!(text, expected);
    }
}

#[test]
fn threads_have_regions_of_their_own_until_few_are_whole() {
    const REGIONS: u64 = 64;
    let blocks = Blocks::new(REGIONS * LARGE_PAGES);
    let mut owners = vec![None; REGIONS as usize];
    // Two stripes take all pages but the last few in turn.
    for number in 0..58 * LARGE_PAGES {
        let stripe = (number % 2) as usize;
        let Taken { page, .. } = blocks.take_one_by(stripe).unwrap();
        let owner = owners[(page / LARGE_PAGES) as usize].get_or_insert(stripe);
        assert_eq!(*owner, stripe, "page {page} is in the other's region");
    }
    for _ in 58 * LARGE_PAGES..REGIONS * LARGE_PAGES {
        blocks.take_one_by(0).unwrap();
    }
    assert_eq!(blocks.take_one_by(1), None);
    assert_eq!(blocks.take_one_by(0), None);
    blocks.validate();
}

#[test]
fn many_threads_break_up_an_eighth_of_the_regions() {
    let blocks = Blocks::new(64 * LARGE_PAGES);
    for stripe in 0..16 {
        blocks.take_one_by(stripe).unwrap();
    }
    let whole = std::iter::from_fn(|| blocks.take_large()).count();
    assert_eq!(whole, 56);
    let few = Blocks::new(4 * LARGE_PAGES);
    for stripe in 0..16 {
        few.take_one_by(stripe).unwrap();
    }
    assert_eq!(std::iter::from_fn(|| few.take_large()).count(), 3);
}

#[test]
#[should_panic = "is freed twice"]
fn a_block_that_is_freed_twice_is_a_panic() {
    let blocks = Blocks::new(10);
    let Taken { page, .. } = blocks.take_one().unwrap();
    blocks.give_back(page..page + 1);
    blocks.give_back(page..page + 1);
}

#[test]
#[should_panic = "were allocated over others"]
fn an_allocation_over_another_is_a_panic() {
    let map = ScatteredMap::new(&DaxDevice::memory(4 * MIB).unwrap());
    map.allocate(511, 1).unwrap();
    let _ = map.allocate(0, LARGE_PAGES);
}

#[test]
fn the_faulty_map_fails_and_misplaces_on_order() {
    let device = DaxDevice::memory(8 * MIB).unwrap();
    let faulty = Faulty::new(&device);
    faulty.plan(|plan| plan.fail_allocate = Some((1, io::ErrorKind::StorageFull)));
    faulty.allocate(0, 1).unwrap();
    assert_eq!(
        faulty.allocate(1, 1).unwrap_err().kind(),
        io::ErrorKind::StorageFull
    );
    faulty.allocate(1, 1).unwrap();
    faulty.free(1..2).unwrap();
    assert_eq!(faulty.lookup(1, 1).unwrap().at, None);
    faulty.plan(|plan| plan.misplace_large = Misplace::Unaligned);
    let at = faulty.allocate(LARGE_PAGES, LARGE_PAGES).unwrap();
    assert!(!at.is_multiple_of(LARGE_PAGES));
    let whole = faulty.lookup(LARGE_PAGES, LARGE_PAGES).unwrap();
    assert_eq!(
        whole,
        Extent {
            at: Some(at),
            pages: LARGE_PAGES
        }
    );
    faulty.plan(|plan| {
        plan.short = Some(5);
        plan.fail_lookup = Some((3, io::ErrorKind::TimedOut));
        plan.fail_free = Some(io::ErrorKind::Unsupported);
    });
    assert_eq!(faulty.lookup(LARGE_PAGES, LARGE_PAGES).unwrap().pages, 5);
    assert_eq!(
        faulty.lookup(0, 1).unwrap_err().kind(),
        io::ErrorKind::TimedOut
    );
    assert_eq!(
        faulty.free(0..1).unwrap_err().kind(),
        io::ErrorKind::Unsupported
    );
    let calls = faulty.calls();
    assert_eq!((calls.allocated, calls.failed), (3, 1));
    assert_eq!((calls.lookups, calls.freed), (4, 2));
    faulty.set_len(0).unwrap();
    faulty.sync_metadata().unwrap();
    drop(faulty);
    assert_eq!(device.free_pages().0, device.pages());
}

#[cfg(all(target_os = "linux", not(miri)))]
mod in_place {
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::*;
    use crate::dax::HostFile;
    use crate::store::{Create, FileAccess};
    use crate::sys::file::disk_dir;
    use crate::units::Grouped;

    fn open(folder: &Path) -> Arc<HostFile> {
        let path = folder.join("data.bin");
        HostFile::open(&path, FileAccess::ReadWrite, Create::Truncate).unwrap()
    }

    fn side(folder: &Path, holes: Holes) -> Side<IdentityMap> {
        let host = open(folder);
        let device = DaxDevice::host_file(&host, FILE_PAGES * PAGE).unwrap();
        let map = IdentityMap::new(host);
        map.set_len(FILE_PAGES * PAGE).unwrap();
        Side {
            map,
            device,
            model: Model::new(),
            holes,
        }
    }

    /// Returns a folder, if there is one, on a file system that makes exactly the holes that it is
    /// asked for.
    fn memory_folder() -> Option<tempfile::TempDir> {
        tempfile::tempdir_in("/dev/shm").ok()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn a_sparse_file_keeps_what_it_was_given(steps in vec(step(), 1..60)) {
            let folders = [Some((disk_dir(), Holes::Approximate)), memory_folder().map(|f| (f, Holes::Exact))];
            for (folder, holes) in folders.into_iter().flatten() {
                let mut side = side(folder.path(), holes);
                for step in &steps {
                    side.run(step);
                }
                side.check();
                // The check is repeated by a map that knows nothing beforehand.
                let path = folder.path().join("data.bin");
                let reader = HostFile::open(&path, FileAccess::ReadOnly, Create::Never).unwrap();
                prop_assert_eq!(reader.len_now().unwrap(), side.model.len);
                side.map = IdentityMap::new(reader);
                side.check();
            }
        }
    }

    #[test]
    fn blocks_are_allocated_one_by_one_and_given_back() {
        let Some(folder) = memory_folder() else {
            return eprintln!("skipped: no /dev/shm here");
        };
        let probe = folder.path().join("probe");
        std::fs::write(&probe, [1]).unwrap();
        if std::fs::metadata(&probe).unwrap().blocks() * 512 != PAGE {
            return eprintln!(
                "skipped: it is mounted with huge pages, or those of this machine are"
            );
        }
        let mut side = side(folder.path(), Holes::Exact);
        let path = folder.path().join("data.bin");
        let blocks = || std::fs::metadata(&path).unwrap().blocks() * 512 / PAGE;
        assert_eq!(blocks(), 0);
        side.allocate(5, 1, true, 1);
        side.allocate(LARGE_PAGES, LARGE_PAGES, true, 2);
        assert_eq!(blocks(), 513);
        side.allocate(6, 1, false, 3);
        assert_eq!(blocks(), 513, "a dropped allocation is a hole again");
        side.run(&Step::Free(5..6));
        side.run(&Step::SetLen(600 * PAGE));
        assert_eq!(blocks(), 600 - 512);
        side.map.sync_metadata().unwrap();
        side.check();
    }

    #[test]
    fn a_file_that_others_cut_is_noticed_when_a_block_is_wanted() {
        for folder in [Some(disk_dir()), memory_folder()].into_iter().flatten() {
            let side = side(folder.path(), Holes::Approximate);
            let path = folder.path().join("data.bin");
            let other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            other.set_len(3 * PAGE).unwrap();
            for page in [0, 8] {
                let error = side.map.allocate(page, 1).unwrap_err();
                let file: Arc<str> = "data.bin".into();
                let what = DaxAction::Allocate;
                let error = DaxError::from_extents(&file, what, page * PAGE, 8, error);
                assert_eq!(
                    error.to_string(),
                    format!(
                        "data.bin: wanted 8 bytes at {} but the file now ends at 12,288 (it was 6,291,456 \
                         after it was last changed here)",
                        Grouped(page * PAGE)
                    )
                );
            }
            // The file does not grow over the cut. A length that this process sets, at or before
            // the cut, is right again.
            let error = side.map.set_len(FILE_PAGES * PAGE + 1).unwrap_err();
            let inside = error.get_ref().and_then(|e| e.downcast_ref::<StoreError>());
            assert!(matches!(inside, Some(StoreError::Shrank { .. })), "{error}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * PAGE);
            side.map.set_len(2 * PAGE).unwrap();
            side.map.set_len(10 * PAGE).unwrap();
            side.map.allocate(8, 1).unwrap();
        }
    }
}
