//! Snapshots that are saved and loaded.

use super::*;

// spec: F9
#[test]
fn a_private_copy_of_a_file_is_saved_and_the_file_is_found_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image.bin");
    std::fs::write(&path, vec![7; 8 * PAGE as usize]).unwrap();
    let one = memory(4 * MIB);
    let file = one.open(&path).unwrap();
    let space = one.create_space().unwrap();
    let at = space
        .map(Map::file(&file).range(PAGE..6 * PAGE).private().writable())
        .unwrap();
    space
        .accessor()
        .unwrap()
        .store(at + 2 * PAGE, 5u64)
        .unwrap();
    space
        .accessor()
        .unwrap()
        .fill(at + 3 * PAGE, 0, 4096)
        .unwrap();
    let mut saved = Vec::new();
    space.freeze().unwrap().save(&mut saved).unwrap();
    let other = memory(4 * MIB);
    let refused = other.load_snapshot(&mut &saved[..], |_| None);
    let Err(SnapshotFileError::UnknownFile { name }) = refused else {
        panic!("{refused:?}");
    };
    let file = other.open(&path).unwrap();
    let loaded = other
        .load_snapshot(&mut &saved[..], |asked| {
            (asked == name).then(|| file.clone())
        })
        .unwrap();
    let mut a = loaded.accessor().unwrap();
    assert_eq!(a.load::<u64>(at + 2 * PAGE), Ok(5));
    assert_eq!(a.load::<u64>(at + 3 * PAGE), Ok(0));
    assert_eq!(a.load::<u8>(at + 4 * PAGE), Ok(7));
    drop((a, loaded, file));
    other.validate();
}

// spec: F9
#[test]
#[cfg(unix)]
fn a_file_with_an_odd_name_is_found_by_its_own_and_shown_in_one_line_of_plain_text() {
    const ODD: &str = "a\n\u{1b}[2Jb";
    const SHOWN: &str = r"a\n\u{1b}[2Jb";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(ODD);
    std::fs::write(&path, vec![7; PAGE as usize]).unwrap();
    let memory = memory(4 * MIB);
    let by_path = memory.open(&path).unwrap();
    let named = memory.file_options().name(ODD);
    let named = named.open_store(innerspace::store::MemoryStore::from_bytes(&[8; 100]));
    let named = named.unwrap();
    assert_eq!(
        (by_path.name().ends_with(SHOWN), named.name()),
        (true, SHOWN)
    );
    let refused = named.write_at(&[1], 0).unwrap_err().to_string();
    assert!(refused.starts_with(SHOWN), "{refused}");
    for (file, name) in [(by_path, path.to_str().unwrap()), (named, ODD)] {
        let space = memory.create_space().unwrap();
        let at = space.map(Map::file(&file)).unwrap();
        let mut saved = Vec::new();
        space.freeze().unwrap().save(&mut saved).unwrap();
        let refused = memory.load_snapshot(&mut &saved[..], |_| None).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(SHOWN) && !text.contains(ODD), "{text}");
        let loaded = memory.load_snapshot(&mut &saved[..], |asked| {
            (asked == name).then(|| file.clone())
        });
        let byte = file.view(0..1).unwrap()[0];
        assert_eq!(loaded.unwrap().accessor().unwrap().load::<u8>(at), Ok(byte));
    }
}

/// Returns the records of a saved snapshot: the kind of each, and where its payload is.
fn records(saved: &[u8]) -> Vec<(u32, Range<usize>)> {
    let mut found = Vec::new();
    let mut at = 16;
    while at < saved.len() {
        let kind = u32::from_le_bytes(saved[at..at + 4].try_into().unwrap());
        let len = u64::from_le_bytes(saved[at + 8..at + 16].try_into().unwrap());
        found.push((kind, at + 16..at + 16 + len as usize));
        at += 16 + len as usize;
    }
    found
}

/// Makes the checksums of changed records right.
fn seal(saved: &mut [u8]) {
    let mut before = 12..16;
    for (_, payload) in records(saved) {
        let head = payload.start - 16;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&saved[before]);
        hasher.update(&saved[head..head + 4]);
        hasher.update(&saved[head + 8..payload.end]);
        before = head + 4..head + 8;
        saved[before.clone()].copy_from_slice(&hasher.finalize().to_le_bytes());
    }
}

/// Returns a save whose page records have the same length and different bytes, and an older one of
/// the same space with other bytes in the third.
fn saved_twice(memory: &Memory) -> [Vec<u8>; 2] {
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(16 * PAGE)).unwrap();
    let save = || {
        let mut saved = Vec::new();
        space.freeze().unwrap().save(&mut saved).unwrap();
        saved
    };
    let mut a = space.accessor().unwrap();
    for page in [0, 3, 6, 9] {
        a.store(at + page * PAGE, page + 5).unwrap();
    }
    let older = save();
    a.store(at + 6 * PAGE, 100u64).unwrap();
    [older, save()]
}

// spec: F9
#[test]
fn a_record_out_of_its_place_or_of_an_older_save_is_damage() {
    let memory = memory(4 * MIB);
    let [older, saved] = saved_twice(&memory);
    let load = |bytes: &[u8]| memory.load_snapshot(&mut &*bytes, |_| None).map(drop);
    let (whole, of_older) = (records_of(&saved), records_of(&older));
    assert_eq!(whole.len(), 7, "width, mapping, four of pages, end");
    let refused = |records: &[&[u8]], what: &str| {
        let bytes = [&saved[..16], &records.concat()].concat();
        let error = load(&bytes).expect_err(what);
        let damage = matches!(error, SnapshotFileError::Damaged { .. });
        assert!(damage, "{what}: {error}");
    };
    let unchanged: Vec<&[u8]> = whole.iter().map(Vec::as_slice).collect();
    let last = whole.len() - 1;
    for one in 0..=last {
        let mut records = unchanged.clone();
        records.remove(one);
        refused(&records, &format!("without {one}"));
        for other in 0..=last {
            let mut records = unchanged.clone();
            records.insert(other, &whole[one]);
            // Bytes after the end are not read.
            if (one, other) != (last, last) {
                refused(&records, &format!("{one} again, before {other}"));
            }
            let mut records = unchanged.clone();
            records[one] = &of_older[other];
            if records != unchanged {
                refused(&records, &format!("the older {other} over {one}"));
            }
            if one != other {
                let mut records = unchanged.clone();
                records[one] = &whole[other];
                refused(&records, &format!("{other} over {one}"));
                let mut records = unchanged.clone();
                records.swap(one, other);
                refused(&records, &format!("{one} and {other} exchanged"));
            }
        }
    }
    load(&saved).unwrap();
    load(&older).unwrap();
    memory.validate();
}

/// Returns the records of a saved snapshot, with their heads.
fn records_of(saved: &[u8]) -> Vec<Vec<u8>> {
    let payloads = records(saved).into_iter();
    let whole = payloads.map(|(_, payload)| saved[payload.start - 16..payload.end].to_vec());
    whole.collect()
}

#[test]
fn the_group_that_is_named_pays_for_a_loaded_snapshot() {
    let memory = memory(8 * MIB);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(100 * PAGE)).unwrap();
    space
        .accessor()
        .unwrap()
        .fill(at, 7, 100 * PAGE as usize)
        .unwrap();
    let mut saved = Vec::new();
    space.freeze().unwrap().save(&mut saved).unwrap();
    drop(space);
    let used_before = memory.root_group().usage();
    let load_in = |group| memory.load_snapshot_in(group, &mut &saved[..], |_| None);
    let small = memory.create_group("small", 64 * PAGE).unwrap();
    let refused = load_in(&small).map(drop).unwrap_err().to_string();
    assert!(refused.contains("group root/small is full"), "{refused}");
    assert_eq!(small.usage(), 0, "what was loaded before is given back");
    let large = memory.create_group("large", 128 * PAGE).unwrap();
    let loaded = load_in(&large).unwrap();
    let paid = large.usage();
    assert!(paid >= 100 * PAGE, "{paid}");
    assert_eq!(memory.root_group().usage(), used_before + paid);
    assert_eq!(loaded.accessor().unwrap().load::<u8>(at + 99 * PAGE), Ok(7));
    let fork = loaded.fork().unwrap();
    assert!(large.usage() > paid, "also for forks");
    let others = self::memory(MIB);
    assert_eq!(
        load_in(others.root_group())
            .map(drop)
            .unwrap_err()
            .to_string(),
        "the group given for the snapshot belongs to another memory"
    );
    drop((fork, loaded));
    assert_eq!(large.usage(), 0);
    memory.validate();
}

// spec: F9
#[test]
fn the_end_of_a_saved_snapshot_counts_its_mappings_and_pages() {
    let memory = memory(4 * MIB);
    let [saved, _] = saved_twice(&memory);
    let load = |bytes: &[u8]| memory.load_snapshot(&mut &*bytes, |_| None).map(drop);
    let found = records(&saved);
    let (_, end) = found.last().unwrap();
    assert_eq!(saved[end.clone()], [1u64, 4].map(u64::to_le_bytes).concat());
    let head = end.start - 16;
    let refused = |mut bytes: Vec<u8>, end: usize| {
        seal(&mut bytes);
        let Err(SnapshotFileError::Damaged { what, offset }) = load(&bytes) else {
            panic!("it was loaded, or refused for another reason");
        };
        assert_eq!(what, "the number of mappings or pages");
        assert_eq!(offset, end as u64);
    };
    // One record is missing, and the checksums are right.
    let (_, pages) = &found[2];
    let record = pages.start - 16..pages.end;
    let mut shorter = saved.clone();
    shorter.drain(record.clone());
    refused(shorter, head - record.len());
    for byte in [0, 8] {
        let mut other = saved.clone();
        other[end.start + byte] += 1;
        refused(other, head);
    }
    memory.validate();
}

#[test]
fn a_saved_snapshot_with_pages_of_a_shared_mapping_is_refused_and_writes_no_file() {
    const SHARING: usize = 25;
    let memory = memory(4 * MIB);
    let store = innerspace::store::MemoryStore::from_bytes(&[7; 2 * PAGE as usize]);
    let file = memory
        .file_options()
        .access(FileAccess::ReadWrite)
        .open_store(store)
        .unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).private().writable()).unwrap();
    space.accessor().unwrap().store(at, 5u64).unwrap();
    let mut saved = Vec::new();
    space.freeze().unwrap().save(&mut saved).unwrap();
    let found = records(&saved);
    let mapping = found.iter().find(|(kind, _)| *kind == 1);
    let mapping = mapping.map(|(_, payload)| payload.clone()).unwrap();
    saved[mapping.start + SHARING] = 1;
    seal(&mut saved);
    let pages = found.iter().find(|(kind, _)| *kind == 2).unwrap();
    let before = pages.1.start - 16;
    for len in [saved.len(), pages.1.end] {
        let refused = memory.load_snapshot(&mut &saved[..len], |_| Some(file.clone()));
        assert_eq!(
            refused.map(drop).unwrap_err().to_string(),
            format!("the snapshot is damaged: pages of a shared mapping at byte {before}")
        );
        assert_eq!(file.view(0..8).unwrap()[..], [7; 8]);
    }
}

#[test]
fn a_private_page_needs_its_files_page_neither_to_be_saved_nor_to_be_loaded() {
    let memory = memory(4 * MIB);
    let (store, file) = counted(&memory, 4, 7);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file).private().writable()).unwrap();
    // There is a mapping next to it, partly forbidden: only what may merge does.
    space.map(Map::anonymous(PAGE).at(at + 4 * PAGE)).unwrap();
    let mut a = space.accessor().unwrap();
    for page in [1, 2, 3, 4] {
        a.store(at + page * PAGE, page).unwrap();
    }
    space
        .protect(at + 2 * PAGE, PAGE, Protection::READ)
        .unwrap();
    let snapshot = space.freeze().unwrap();
    drop((a, space));
    file.set_len(2 * PAGE).unwrap();
    let mut saved = Vec::new();
    snapshot.save(&mut saved).unwrap();
    while memory.reclaim(MIB) > 0 {}
    store.read.store(0, Ordering::Relaxed);
    let loaded = memory
        .load_snapshot(&mut &saved[..], |_| Some(file.clone()))
        .unwrap();
    assert_eq!(store.read.load(Ordering::Relaxed), 0, "pages read");
    loaded.validate();
    let shape = |snapshot: &Snapshot| {
        let mappings = snapshot.stats().mappings.into_iter();
        let shape = mappings.map(|m| (m.start, m.end, m.protection, m.file, m.pages.resident.0));
        shape.collect::<Vec<_>>()
    };
    assert_eq!(shape(&loaded), shape(&snapshot));
    let fork = loaded.fork().unwrap();
    let mut a = fork.accessor().unwrap();
    for page in [1, 2, 3, 4] {
        assert_eq!(a.load::<u64>(at + page * PAGE), Ok(page));
    }
    assert_eq!(a.load::<u8>(at), Ok(7), "the file's");
    let refused = a.store(at + 2 * PAGE, 9u64).unwrap_err();
    assert_eq!(refused.kind(), FaultKind::Forbidden);
    // The file is mapped as usual: pages are taken away when it is cut.
    a.store(at + PAGE, 9u64).unwrap();
    file.set_len(0).unwrap();
    let beyond = a.load::<u8>(at).unwrap_err();
    assert_eq!(beyond.kind(), FaultKind::PastEnd);
    assert_eq!(a.load::<u64>(at + PAGE), Ok(9));
    fork.validate();
    drop((a, fork, loaded, snapshot, file));
    memory.validate();
}

#[test]
fn a_page_with_as_many_views_as_can_be_counted_is_saved() {
    let memory = memory(64 * MIB);
    let space = memory.create_space().unwrap();
    let at = space.map(Map::anonymous(2 * PAGE)).unwrap();
    space
        .accessor()
        .unwrap()
        .fill(at, 7, PAGE as usize)
        .unwrap();
    let snapshot = space.freeze().unwrap();
    // A view is the page itself, until the page has no more counts; then it is a copy.
    let view = || snapshot.view(at, 8).unwrap();
    let mut views = vec![view(), view()];
    while views[views.len() - 1].as_ptr() == views[0].as_ptr() {
        views.push(view());
    }
    assert!(views.len() > 1 << 18, "{}", views.len());
    let mut saved = Vec::new();
    snapshot.save(&mut saved).unwrap();
    drop((space, snapshot));
    let loaded = memory.load_snapshot(&mut &saved[..], |_| None).unwrap();
    assert_eq!(loaded.view(at, PAGE).unwrap()[..], [7; 4096]);
    assert_eq!(views[0][..], [7; 8]);
    drop((views, loaded));
    assert_eq!(memory.root_group().usage(), 0);
    memory.validate();
}

// spec: F9
#[test]
fn a_name_is_saved_as_far_as_it_is_loaded() {
    let memory = memory(4 * MIB);
    let save = |bytes: usize| {
        let name = "n".repeat(bytes);
        let store = innerspace::store::MemoryStore::from_bytes(&[7; PAGE as usize]);
        let file = memory.file_options().name(&name).open_store(store).unwrap();
        let space = memory.create_space().unwrap();
        let at = space.map(Map::file(&file).private()).unwrap();
        let mut saved = Vec::new();
        let ended = space.freeze().unwrap().save(&mut saved);
        ended.map(|()| (saved, file, at))
    };
    let longest = 64 * PAGE as usize + 8 - 28;
    let (saved, file, at) = save(longest).unwrap();
    let open = |name: &str| (*name == *file.name()).then(|| file.clone());
    let loaded = memory.load_snapshot(&mut &saved[..], open).unwrap();
    assert_eq!(loaded.accessor().unwrap().load::<u8>(at), Ok(7));
    let refused = save(longest + 1).map(drop).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!(
            "a snapshot that maps a file at {at} cannot be saved: the file's name has 262,125 bytes, and may have 262,124; \
             unmap it first"
        )
    );
}

#[test]
fn a_saved_snapshot_has_page_0_and_the_width_of_its_addresses() {
    let memory = memory(4 * MIB);
    let options = SpaceOptions::new().width(AddressWidth::Bits32);
    let space = memory.create_space_with(&options).unwrap();
    let null = VirtAddr(0);
    space
        .map(Map::anonymous(PAGE).at(null).with_null())
        .unwrap();
    space.accessor().unwrap().store(null, 5u64).unwrap();
    let mut saved = Vec::new();
    space.freeze().unwrap().save(&mut saved).unwrap();
    let loaded = memory.load_snapshot(&mut &saved[..], |_| None).unwrap();
    let fork = loaded.fork().unwrap();
    assert_eq!(fork.accessor().unwrap().load::<u64>(null), Ok(5));
    let chosen = [&space, &fork].map(|space| space.map(Map::anonymous(PAGE)).unwrap());
    assert_eq!(chosen[0], chosen[1]);
    let far = VirtAddr(1 << 32);
    let refused = fork.map(Map::anonymous(PAGE).at(far)).unwrap_err();
    assert!(matches!(refused, SpaceError::OutOfRange { .. }));
    let (kind, width) = records(&saved).remove(0);
    assert_eq!((kind, &saved[width]), (4, &[32, 0, 0, 0][..]));
}

#[test]
fn a_saved_snapshot_has_neither_locks_nor_advice_on_reading() {
    let memory = Memory::with_limit(4 * MIB).unwrap();
    let store = innerspace::store::MemoryStore::from_bytes(&[7; 8192]);
    let file = memory
        .file_options()
        .name("data.bin")
        .open_store(store)
        .unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::file(&file)).unwrap();
    space
        .advise(at, 8192, innerspace::space::Advice::Random)
        .unwrap();
    space.lock(at, 8192).unwrap();
    let mut saved = Vec::new();
    space.freeze().unwrap().save(&mut saved).unwrap();
    let loaded = memory.load_snapshot(&mut &saved[..], |_| Some(file.clone()));
    let fork = loaded.unwrap().fork().unwrap();
    for (space, locked, reading) in [
        (&space, true, innerspace::space::Advice::Random),
        (&fork, false, innerspace::space::Advice::Normal),
    ] {
        let shown = space.mapping_at(at).unwrap();
        assert_eq!((shown.locked, shown.reading), (locked, reading));
    }
}
