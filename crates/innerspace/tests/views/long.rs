//! Views over several blocks: one slice, of the blocks themselves.

use super::*;

/// A store that notes what it is asked for, and can refuse a range.
#[derive(Clone)]
struct Noting {
    bytes: Arc<Vec<u8>>,
    reads: Arc<Mutex<Vec<(u64, u64)>>>,
    /// A read that comes to this byte fails.
    bad: Arc<Mutex<Option<u64>>>,
}

impl Noting {
    fn new(bytes: Vec<u8>) -> Noting {
        Noting {
            bytes: Arc::new(bytes),
            reads: Arc::default(),
            bad: Arc::default(),
        }
    }

    /// What was asked for since the last time: offsets and lengths.
    fn take(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.reads.lock().unwrap())
    }
}

impl Store for Noting {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_vectored_at(&mut [io::IoSliceMut::new(buf)], offset)
    }

    fn read_vectored_at(&self, bufs: &mut [io::IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let asked: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let bad = *self.bad.lock().unwrap();
        self.reads.lock().unwrap().push((offset, asked));
        if bad.is_some_and(|bad| (offset..offset + asked).contains(&bad)) {
            return Err(io::Error::other("bad"));
        }
        let mut done = 0;
        for buf in bufs {
            let from = &self.bytes[(offset as usize + done).min(self.bytes.len())..];
            let len = from.len().min(buf.len());
            buf[..len].copy_from_slice(&from[..len]);
            done += len;
        }
        Ok(done)
    }
}

/// Brings all blocks of a file in, in an order that leaves no two of them in a row.
fn scatter(file: &PagedFile, block: u64) {
    let blocks = file.len().div_ceil(block);
    for step in [2, 1] {
        for at in (0..blocks).rev().filter(|at| at % 2 == step % 2) {
            let start = at * block;
            drop(file.view(start..(start + 1).min(file.len())).unwrap());
        }
    }
}

// spec: R1
#[test]
fn a_view_or_read_asks_for_its_blocks_in_one_request_and_for_nothing_else() {
    let store = Noting::new(pattern(MIB));
    let memory = Memory::with_limit(8 * MIB).unwrap();
    let open = || memory.file_options().open_store(store.clone()).unwrap();
    // In order, at one distance from each other, and backwards.
    for starts in [
        [0, 10_000, 20_000],
        [0, 100_000, 200_000],
        [700_000, 600_000, 500_000],
    ] {
        for is_view in [true, false] {
            let file = open();
            let mut asked = Vec::new();
            for start in starts {
                if is_view {
                    let view = file.view(start..start + 10_000).unwrap();
                    assert_eq!(view[..], store.bytes[start as usize..][..10_000]);
                } else {
                    file.read_exact_at(&mut [0; 10_000], start).unwrap();
                }
                let reads = store.take();
                assert_eq!(reads.len(), 1, "{reads:?}");
                asked.extend(reads);
            }
            let mut blocks: Vec<u64> = Vec::new();
            for start in starts {
                blocks.extend(start / 4096..(start + 10_000).div_ceil(4096));
            }
            blocks.sort_unstable();
            blocks.dedup();
            let bytes: u64 = asked.iter().map(|(_, len)| len).sum();
            assert_eq!(bytes, 4096 * blocks.len() as u64, "{asked:?}");
        }
    }
    // A reader that goes on in order is read ahead of.
    let file = open();
    for at in 0..8 {
        drop(file.view(at * 10_000..at * 10_000 + 10_000).unwrap());
    }
    assert!(file.stats().read_ahead > 0);
}

// spec: P28
#[test]
fn a_view_of_a_whole_file_is_one_slice_and_the_blocks_stay_in_a_row() {
    for (block, len) in [
        (4 * KIB, 6 * MIB + 5),
        (64 * KIB, 6 * MIB + 5),
        (2 * MIB, 12 * MIB + 5),
    ] {
        for is_scattered in [false, true] {
            let memory = Memory::with_limit(24 * MIB).unwrap();
            let bytes = pattern(len);
            let file = open(&memory, block, &bytes);
            if is_scattered {
                scatter(&file, block);
            }
            let view = file.view(..).unwrap();
            assert!(view[..] == bytes[..]);
            let pages = len.div_ceil(block) * block / 4096;
            let cached = file.stats().cached.0;
            assert_eq!(cached, pages, "once: {}", file.stats());
            assert_eq!(file.view(..).unwrap().as_ptr(), view.as_ptr());
            let part = file.view(block - 5..block + 5).unwrap();
            assert_eq!(part.as_ptr(), view[block as usize - 5..].as_ptr());
            assert_eq!(file.stats().copied_views, 0);
            memory.validate();
            drop((view, part));
            // Evicting some and reading them again changes nothing but where they lie.
            file.evict(..3 * block).unwrap();
            assert!(file.view(1..).unwrap()[..] == bytes[1..]);
            file.evict(..).unwrap();
            assert_eq!(file.stats().cached.0, 0);
            drop(file);
            memory.validate();
        }
    }
}

#[test]
fn a_long_view_does_not_change_and_a_new_one_has_what_was_written() {
    for block in SIZES {
        let memory = Memory::with_limit(32 * MIB).unwrap();
        let mut bytes = pattern(3 * block);
        let file = open(&memory, block, &bytes);
        scatter(&file, block);
        file.write_at(&[0; 50], block + 7).unwrap();
        bytes[block as usize + 7..][..50].fill(0);
        let old = file.view(100..).unwrap();
        assert!(old[..] == bytes[100..], "what was dirty moved, too");
        file.write_at(&[1; 50], 2 * block - 25).unwrap();
        assert!(old[..] == bytes[100..]);
        let was = bytes.clone();
        bytes[2 * block as usize - 25..][..50].fill(1);
        let new = file.view(100..).unwrap();
        assert!(new[..] == bytes[100..] && old[..] == was[100..]);
        let kept = old.slice(3..9);
        drop((old, new));
        file.sync_all().unwrap();
        file.set_len(block).unwrap();
        file.evict(..).unwrap();
        assert_eq!(kept[..], was[103..109]);
        drop(kept);
        memory.validate();
        assert!(file.view(..).unwrap()[..] == bytes[..block as usize]);
    }
}

#[test]
fn parts_of_a_long_view_keep_their_own_blocks_alone() {
    let memory = Memory::with_limit(8 * MIB).unwrap();
    let bytes = pattern(MIB);
    let file = open(&memory, 4096, &bytes);
    let view = file.view(10..MIB - 10).unwrap();
    let parts = [
        view.slice(4000..9000),
        view.slice(500_000..500_010),
        view.slice(..),
    ];
    drop(view);
    let whole = parts[2].clone();
    file.set_len(0).unwrap();
    let [across, inside, all] = parts;
    assert!(all[..] == bytes[10..MIB as usize - 10] && whole[..] == all[..]);
    drop((all, whole));
    assert!(used(&memory) < 40 * 4096, "{}", used(&memory));
    assert_eq!(across[..], bytes[4010..9010]);
    assert_eq!(inside[..], bytes[500_010..500_020]);
    drop((across, inside, file));
    memory.validate();
}

#[test]
fn holes_in_a_long_view_are_zeros() {
    for block in SIZES {
        let memory = Memory::with_limit(32 * MIB).unwrap();
        let file = open(&memory, block, &[]);
        file.set_len(4 * block).unwrap();
        if 4 * block <= 2 * MIB {
            assert!(file.view(..).unwrap().iter().all(|byte| *byte == 0));
            assert_eq!(
                file.stats().cached.0,
                0,
                "nothing is charged for zeros alone"
            );
        }
        file.write_at(&[7; 10], 2 * block + 5).unwrap();
        let view = file.view(..).unwrap();
        let start = 2 * block as usize + 5;
        assert_eq!(view[start..start + 10], [7; 10]);
        assert_eq!(view.iter().filter(|byte| **byte != 0).count(), 10);
        file.write_at(&[8; 10], 5).unwrap();
        assert_eq!(view[5..15], [0; 10]);
        drop(view);
        file.punch(2 * block..3 * block).unwrap();
        let view = file.view(..).unwrap();
        assert_eq!(view[5..15], [8; 10]);
        assert_eq!(view.iter().filter(|byte| **byte != 0).count(), 10);
        drop(view);
        file.sync_all().unwrap();
        memory.validate();
    }
}

#[test]
fn views_that_lie_about_do_not_stand_in_the_way_of_a_long_one() {
    let memory = Memory::with_limit(32 * MIB).unwrap();
    let bytes = pattern(64 * MIB);
    let file = open(&memory, 4096, &bytes);
    file.scan(..32 * MIB, |_| {}).unwrap();
    // One in each 2 MiB of what is cached now.
    let views: Vec<View> = (0..16)
        .map(|at| {
            file.view((2 * at + 1) * MIB..(2 * at + 1) * MIB + 9)
                .unwrap()
        })
        .collect();
    let before = used(&memory);
    let view = file.view(40 * MIB..42 * MIB).unwrap();
    assert!(view[..] == bytes[40 << 20..42 << 20]);
    let long = file.view(42 * MIB..60 * MIB).unwrap();
    assert!(long[..] == bytes[42 << 20..60 << 20]);
    assert!(used(&memory) <= 32 * MIB && before <= 32 * MIB);
    drop((views, view, long));
    memory.validate();
}

#[test]
fn small_views_over_the_ends_of_blocks_that_were_read_in_order_are_not_copied() {
    for block in [4 * KIB, 64 * KIB] {
        let memory = Memory::with_limit(32 * MIB).unwrap();
        let bytes = pattern(8 * MIB);
        let file = open(&memory, block, &bytes);
        file.prefetch(..).unwrap();
        for _ in 0..3 {
            for end in (block..8 * MIB).step_by(block as usize) {
                let view = file.view(end - 30..end + 34).unwrap();
                assert_eq!(view[..], bytes[end as usize - 30..end as usize + 34]);
            }
        }
        let (stats, blocks) = (file.stats(), 8 * MIB / block);
        assert!(stats.copied_views <= blocks / 10, "{stats}");
    }
}

#[test]
fn a_view_over_the_end_of_a_page_lets_go_of_both_pages() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let bytes = pattern(5 * 4096);
    let file = open(&memory, 4096, &bytes);
    drop(file.view(..).unwrap());
    for page in 1..5 {
        let range = page * 4096 - 9..page * 4096 + 9;
        let expected = &bytes[range.start as usize..range.end as usize];
        // From the second view on both pages are hot.
        let views: Vec<View> = (0..3).map(|_| file.view(range.clone()).unwrap()).collect();
        assert_eq!(file.stats().copied_views, 0);
        let parts = [views[2].clone(), views[2].slice(..9), views[2].slice(9..)];
        drop(views);
        let moved = file.stats().moved;
        file.write_at(&[0; 5 * 4096], 0).unwrap();
        assert_eq!(
            file.stats().moved - moved,
            2,
            "the two pages alone are viewed"
        );
        assert_eq!(parts[0][..], *expected);
        assert_eq!([&parts[1][..], &parts[2][..]].concat(), expected);
        drop(parts);
        file.write_at(&bytes, 0).unwrap();
        assert_eq!(file.stats().moved - moved, 2, "nothing is viewed any more");
        drop(file.view(..).unwrap());
    }
}

#[test]
fn a_view_is_charged_by_the_page() {
    let memory = Memory::with_limit(16 * MIB).unwrap();
    let file = open(&memory, 4096, &pattern(2 * MIB));
    let before = used(&memory);
    let view = file.view(..MIB + 1).unwrap();
    let pages = (used(&memory) - before) / 4096;
    // With their metadata and the nodes of the index.
    assert!((257..280).contains(&pages), "{pages} pages");
    drop(view);
}

#[test]
fn a_view_that_does_not_fit_says_what_is_in_the_way() {
    let memory = Memory::with_limit(8 * MIB).unwrap();
    let bytes = pattern(12 * MIB);
    let file = open(&memory, 4096, &bytes);
    let error = file.view(..).unwrap_err();
    let FileError::ViewTooLarge { len, max, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(len, 12 * MIB);
    assert!(max < 8 * MIB);
    let other = open(&memory, 4096, &bytes);
    let kept = other.scatter(..4 * MIB).unwrap();
    let error = file.view(..5 * MIB).unwrap_err();
    let FileError::Limit(full) = &error else {
        panic!("{error}");
    };
    let details = full.details();
    assert_eq!(details.requested.bytes(), 5 * MIB);
    assert_eq!(details.reason, LimitReason::NothingEvictable);
    assert_eq!(
        details.holders.views, 1024,
        "the view's own are not counted"
    );
    let text = error.to_string();
    assert!(
        text.contains("pinned by 1,024 views") && text.contains("Drop views"),
        "{text}"
    );
    memory.validate();
    drop(kept);
    assert!(file.view(..5 * MIB).unwrap()[..] == bytes[..5 << 20]);
}

#[test]
fn a_store_that_fails_half_way_is_an_error_with_its_place_and_nothing_is_lost() {
    for block in SIZES {
        let memory = Memory::with_limit(64 * MIB).unwrap();
        let bytes = pattern(5 * block);
        let store = Noting::new(bytes.clone());
        let file = memory
            .file_options()
            .block_size(block)
            .open_store(store.clone())
            .unwrap();
        for at in [0, 2] {
            drop(file.view(at * block..at * block + 1).unwrap());
        }
        *store.bad.lock().unwrap() = Some(3 * block + 9);
        let error = file.view(..).unwrap_err();
        let FileError::Store { offset, .. } = &error else {
            panic!("{error}");
        };
        assert!((3 * block..4 * block).contains(offset), "{error}");
        memory.validate();
        *store.bad.lock().unwrap() = None;
        assert!(file.view(..).unwrap()[..] == bytes[..]);
        file.evict(..).unwrap();
        assert_eq!(file.stats().cached.0, 0);
        memory.validate();
    }
}

#[test]
fn a_page_that_is_mapped_moves_with_its_bytes() {
    let memory = Memory::with_limit(8 * MIB).unwrap();
    let file = open(&memory, 4096, &pattern(100 * 4096));
    scatter(&file, 4096);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).shared().writable()).unwrap();
    let mut accessor = space.accessor().unwrap();
    for page in 0..100 {
        accessor
            .store::<u64>(at + page * 4096, page + 1000)
            .unwrap();
    }
    let word = |view: &View, page: usize| {
        u64::from_le_bytes(view[page * 4096..page * 4096 + 8].try_into().unwrap())
    };
    let view = file.view(..).unwrap();
    assert!((0..100).all(|page| word(&view, page) == page as u64 + 1000));
    for page in 0..100 {
        assert_eq!(accessor.load::<u64>(at + page * 4096).unwrap(), page + 1000);
        accessor
            .store::<u64>(at + page * 4096, page + 2000)
            .unwrap();
    }
    assert!((0..100).all(|page| word(&view, page) == page as u64 + 1000));
    let new = file.view(..).unwrap();
    assert!((0..100).all(|page| word(&new, page) == page as u64 + 2000));
    drop((view, new));
    file.sync_all().unwrap();
    memory.validate();
}

#[test]
fn threads_that_want_one_file_at_once_share_one_row() {
    let bytes = Arc::new(pattern(8 * MIB));
    for _ in 0..4 {
        let memory = Memory::with_limit(16 * MIB).unwrap();
        let file = open(&memory, 4096, &bytes);
        let start = Arc::new(Barrier::new(4));
        let viewers: Vec<_> = (0..4)
            .map(|_| {
                let (file, bytes, start) = (file.clone(), bytes.clone(), start.clone());
                thread::spawn(move || {
                    start.wait();
                    let view = file.view(..).unwrap();
                    assert!(view[..] == bytes[..]);
                    view
                })
            })
            .collect();
        let views: Vec<View> = viewers
            .into_iter()
            .map(|viewer| viewer.join().unwrap())
            .collect();
        assert!(views.iter().all(|view| view.as_ptr() == views[0].as_ptr()));
        drop(views);
        memory.validate();
    }
}

#[test]
fn long_views_race_with_readers_writers_and_cuts() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let len = 200 * 4096_u64;
    let file = open(&memory, 4096, &vec![1; len as usize]);
    let (writer, cutter, reader) = (file.clone(), file.clone(), file.clone());
    let threads = [
        thread::spawn(move || {
            for at in 0..3_000_u64 {
                let page = at * 7 % 200;
                writer.write_at(&[1; 4096], page * 4096).unwrap();
            }
        }),
        thread::spawn(move || {
            for at in 0..300_u64 {
                cutter.set_len(len - (at % 100) * 4096).unwrap();
                cutter.evict(..).unwrap();
                cutter.set_len(len).unwrap();
            }
        }),
        thread::spawn(move || {
            for at in 0..3_000_u64 {
                let page = at * 13 % 199;
                match reader.view(page * 4096 + 4000..page * 4096 + 4200) {
                    Ok(view) => assert!(view.iter().all(|byte| *byte <= 1)),
                    Err(error) => assert!(matches!(error, FileError::PastEnd { .. }), "{error}"),
                }
            }
        }),
    ];
    while !threads.iter().all(|thread| thread.is_finished()) {
        match file.view(50..150 * 4096 + 9) {
            Ok(view) => {
                assert_eq!(view.len(), 150 * 4096 + 9 - 50);
                assert!(view.iter().all(|byte| *byte <= 1));
            }
            Err(error) => assert!(matches!(error, FileError::PastEnd { .. }), "{error}"),
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(file.view(..).unwrap().iter().all(|byte| *byte <= 1));
    memory.validate();
}
