//! Direct access files in several processes, and on a full disk.

use super::*;

/// Returns a page of a direct access file, by its number.
fn page(number: u64) -> [u8; BLOCK] {
    [number as u8 + 1; BLOCK]
}

pub(super) fn hold_direct(path: &Path) {
    let memory = Memory::with_limit(512 * KIB).unwrap();
    let file = memory.dax_options().create(path).unwrap();
    file.write_at(b"theirs", 0).unwrap();
    file.sync_all().unwrap();
    say("open");
    io::stdin().read_line(&mut String::new()).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_direct_file_that_another_process_has_open_is_refused_and_kept() {
    let folder = disk_folder();
    let path = folder.path().join("data.bin");
    let mut child = other(&[], "hold direct", &path).spawn().unwrap();
    assert_eq!(said(&mut child).next().as_deref(), Some("open"));
    let memory = Memory::with_limit(512 * KIB).unwrap();
    let options = memory
        .dax_options()
        .access(innerspace::file::FileAccess::ReadWrite);
    for refused in [options.clone().open(&path), options.clone().create(&path)] {
        let text = refused.unwrap_err().to_string();
        assert!(
            text.contains("data.bin is in use by another process")
                || text.contains("data.bin is in use by some process"),
            "{text}"
        );
    }
    memory.open_rw(&path).unwrap_err();
    child.kill().unwrap();
    child.wait().unwrap();
    let file = options.open(&path).unwrap();
    file.write_at(b"ours", 0).unwrap();
    drop(file);
    assert_eq!(std::fs::read(&path).unwrap(), b"oursrs");
}

/// Cuts the file to 16 pages, whether it is locked or not.
pub(super) fn cut(path: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(16 * BLOCK as u64).unwrap();
    say("done");
}

#[cfg(target_os = "linux")]
#[test]
fn a_direct_file_that_another_process_cuts_is_an_error_for_the_access() {
    let folder = disk_folder();
    let path = folder.path().join("data.bin");
    let memory = Memory::with_limit(512 * KIB).unwrap();
    let file = memory
        .dax_options()
        .on_shrink(OnShrink::Error)
        .create(&path)
        .unwrap();
    for number in 0..32 {
        file.write_at(&page(number), number * BLOCK as u64).unwrap();
    }
    file.sync_all().unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::dax(&file).shared().writable()).unwrap();
    let mut accessor = space.accessor().unwrap();
    let place = |number: u64| number * BLOCK as u64 + 8;
    assert_eq!(accessor.load::<u8>(at + place(20)), Ok(21));

    let child = other(&[], "cut", &path).spawn().unwrap();
    assert!(ends_well(child), "see above");
    let cut = "but the file now ends at 65,536 (it was 131,072 ";
    let faults = [
        accessor.load::<u8>(at + place(20)).map(drop),
        accessor.store(at + place(20), 9_u8),
    ];
    for fault in faults {
        let fault = fault.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::PastEnd);
        let text = accessor.explain(fault).to_string();
        assert!(
            text.contains(cut) && text.contains("data.bin: wanted "),
            "{text}"
        );
    }
    let errors = [
        file.read_exact_at(&mut [0; 8], place(20)),
        file.write_at(&[9; 8], place(20)),
    ];
    for error in errors {
        let error = error.unwrap_err();
        assert!(matches!(error, DaxError::Shrank { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("data.bin: wanted ") && text.contains(cut),
            "{text}"
        );
    }
    // The pages before the cut are there, in the mapping, by call and on the disk. The pages after
    // it have not come back.
    for number in 0..16 {
        assert_eq!(
            accessor.load::<u8>(at + place(number)),
            Ok(number as u8 + 1)
        );
    }
    let stored = std::fs::read(&path).unwrap();
    assert_eq!(stored.len(), 16 * BLOCK);
    assert!((0..16).all(|number| stored[number * BLOCK..].starts_with(&page(number as u64))));
}

/// Runs in a file system of 256 KiB at `path`.
pub(super) fn fill_the_disk_directly(path: &Path) {
    let memory = Memory::with_limit(512 * KIB).unwrap();
    let data = path.join("data.bin");
    let file = memory.dax_options().create(&data).unwrap();
    file.set_len(64 << 20).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::dax(&file).shared().writable()).unwrap();
    let mut accessor = space.accessor().unwrap();
    // Writes every second page, by call and by mapping in turn, until there is no room.
    let mut written = 0;
    let refused = loop {
        let offset = written * 2 * BLOCK as u64;
        let result = match written % 2 {
            0 => file
                .write_at(&page(written), offset)
                .map_err(|e| e.to_string()),
            _ => accessor
                .write(at + offset, &page(written))
                .map_err(|e| accessor.explain(e).to_string()),
        };
        match result {
            Ok(()) => written += 1,
            Err(text) => break text,
        }
        assert!(written <= 64, "more than the disk has");
    };
    assert!(written > 32, "{written}");
    let expected = format!(
        "data.bin: allocate at {} failed: ",
        Grouped(written * 2 * BLOCK as u64)
    );
    assert!(refused.contains(&expected), "{refused}");
    let error = file.write_at(&[1], 63 << 20).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
    // Every page that has a block can be written, and is there. The other pages are holes.
    file.sync_all().unwrap();
    file.write_at(&page(0), 0).unwrap();
    let check = |file: &DaxFile, from: u64| {
        let mut bytes = [0; BLOCK];
        for number in from..written {
            let offset = number * 2 * BLOCK as u64;
            file.read_exact_at(&mut bytes, offset).unwrap();
            assert!(bytes == page(number), "page {number} is lost");
            file.read_exact_at(&mut bytes, offset + BLOCK as u64)
                .unwrap();
            assert!(bytes == [0; BLOCK], "a hole behind page {number}");
        }
    };
    check(&file, 0);
    // Punching makes room for a page.
    file.punch(0..BLOCK as u64).unwrap();
    file.write_at(&page(7), 63 << 20).unwrap();
    file.sync_all().unwrap();
    drop((accessor, space, file));
    check(&memory.open_dax_rw(&data).unwrap(), 1);
    say("done");
}

#[cfg(target_os = "linux")]
#[test]
fn a_direct_file_on_a_full_disk_is_an_error_and_no_signal() {
    let folder = disk_folder();
    if let Some(child) = on_a_small_disk("fill direct", folder.path()) {
        assert!(ends_well(child), "see above");
    }
}

/// Runs in a file system of 16 MiB at `path`. Its page cache has large folios on newer systems.
pub(super) fn fill_the_disk_beside_holes(path: &Path) {
    const PAGES: u64 = 512;
    let memory = Memory::with_limit(1024 * KIB).unwrap();
    let data = path.join("data.bin");
    let every_eighth = || (0..PAGES).step_by(8);
    let offset = |number: u64| number * BLOCK as u64;
    let file = memory.dax_options().create(&data).unwrap();
    file.set_len(offset(PAGES)).unwrap();
    for number in every_eighth() {
        file.write_at(&page(number), offset(number)).unwrap();
    }
    file.sync_all().unwrap();
    // No page of the file is cached any more. Now it is read, a few pages at a time.
    drop(file);
    let mut forget = std::process::Command::new("dd");
    forget.arg(format!("if={}", data.display()));
    let forgot = forget
        .args(["iflag=nocache", "count=0", "status=none"])
        .status();
    assert!(forgot.unwrap().success());
    let others = std::fs::File::open(&data).unwrap();
    let mut bytes = vec![0; 16 * BLOCK];
    for at in (0..PAGES).step_by(16) {
        std::os::unix::fs::FileExt::read_exact_at(&others, &mut bytes, offset(at)).unwrap();
    }
    // This file takes all the room that is left.
    let mut fill = std::fs::File::create(path.join("fill.bin")).unwrap();
    for _ in 0..2 {
        while io::Write::write(&mut fill, &bytes[..BLOCK]).is_ok() {}
        let _ = fill.sync_all();
    }
    let file = memory.open_dax_rw(&data).unwrap();
    let space = memory.create_space().unwrap();
    let at = space.map(Map::dax(&file).shared().writable()).unwrap();
    let mut accessor = space.accessor().unwrap();
    let mut refused = 0;
    for number in every_eighth() {
        let new = [number as u8 ^ 0x55; BLOCK];
        let stored = match number % 16 {
            0 => accessor
                .write(at + offset(number), &new)
                .map_err(|fault| accessor.explain(fault).to_string()),
            _ => file
                .write_at(&new, offset(number))
                .map_err(|error| error.to_string()),
        };
        let mut now = [0; BLOCK];
        file.read_exact_at(&mut now, offset(number)).unwrap();
        match stored {
            Ok(()) => assert!(now == new, "page {number}"),
            Err(text) => {
                let expected =
                    format!("data.bin: allocate at {} failed: ", Grouped(offset(number)));
                assert!(text.contains(&expected), "{text}");
                assert!(now == page(number), "page {number} of a refused store");
                refused += 1;
            }
        }
    }
    file.sync_all().unwrap();
    // With room again, each of the stores succeeds.
    std::fs::remove_file(path.join("fill.bin")).unwrap();
    drop(fill);
    for number in every_eighth() {
        accessor.store(at + offset(number), 1_u8).unwrap();
    }
    file.sync_all().unwrap();
    say(&format!("{refused} stores were refused"));
    say("done");
}

#[cfg(target_os = "linux")]
#[test]
fn a_store_beside_holes_on_a_full_disk_is_an_error_and_no_signal() {
    let folder = disk_folder();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    if let Some(mut way) = on_a_disk(MOUNT_EXT4, "fill beside holes", &disk) {
        assert!(ends_well(way.spawn().unwrap()), "see above");
    }
}
