//! Tests of devices, created in each way.

use super::*;
use crate::units::MIB;

const PAGE: u64 = PAGE_SIZE as u64;

fn read(device: &DaxDevice, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; len];
    device.read(offset, &mut bytes);
    bytes
}

type Make = fn(u64) -> Result<DaxDevice, DaxError>;

fn makers() -> Vec<Make> {
    let mut makers: Vec<Make> = vec![DaxDevice::memory, DaxDevice::huge_pages];
    if cfg!(all(target_os = "linux", not(miri))) {
        makers.push(DaxDevice::memfd);
    }
    makers
}

#[test]
fn a_device_is_whole_pages_and_at_least_one() {
    for make in makers() {
        for len in [0, 1, PAGE - 1] {
            let error = make(len).unwrap_err();
            assert!(
                matches!(error, DaxError::DeviceTooSmall { len: l } if l == len),
                "{error}"
            );
        }
        for len in [PAGE + 1, 10 * PAGE - 1, u64::MAX] {
            let error = make(len).unwrap_err();
            assert!(
                matches!(error, DaxError::DeviceNotPages { len: l } if l == len),
                "{error}"
            );
        }
        let error = make(1 << 63).unwrap_err();
        assert!(
            matches!(
                &error,
                DaxError::Io {
                    what: DaxAction::Map,
                    ..
                }
            ),
            "{error}"
        );
        let device = make(PAGE).unwrap();
        assert_eq!(
            (device.len(), device.pages(), device.free_pages().0),
            (PAGE, 1, 1)
        );
    }
}

#[test]
fn a_device_is_zeros_then_what_was_written() {
    for make in makers() {
        let device = make(3 * PAGE).unwrap();
        assert_eq!(read(&device, 0, 3 * PAGE_SIZE), vec![0; 3 * PAGE_SIZE]);
        device.write(4000, &[7; 300]);
        device.flush(4000, 300).unwrap();
        device.fence().unwrap();
        assert_eq!(read(&device, 3999, 302)[..2], [0, 7]);
        assert_eq!(read(&device, 4299, 2), [7, 0]);
        device.zero(4100, 100);
        assert_eq!(read(&device, 4099, 102)[..2], [7, 0]);
        assert_eq!(read(&device, 4199, 2), [0, 7]);
        // A clone is the same device.
        assert_eq!(read(&device.clone(), 4299, 1), [7]);
        device.flush(3 * PAGE, 0).unwrap();
    }
}

#[test]
fn page_addresses_are_those_of_the_bytes_and_large_devices_are_aligned() {
    for make in makers().into_iter().take(if cfg!(miri) { 0 } else { 3 }) {
        let device = make(4 * MIB).unwrap();
        assert!(device.host(0).is_multiple_of(2 * MIB));
        device.write(5 * PAGE + 8, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let address = device.host(5) + 8;
        let word = std::ptr::with_exposed_provenance::<u64>(address as usize);
        // SAFETY: a word of page 5, to which no thread writes now.
        let found = unsafe { word.read() };
        assert_eq!(found.to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}

#[test]
#[should_panic = "2 bytes at 4095 of a device of 4096"]
fn a_range_past_the_end_is_refused() {
    DaxDevice::memory(PAGE).unwrap().zero(PAGE - 1, 2);
}

#[test]
#[should_panic = "page 1 of a device of 1"]
fn a_page_past_the_end_is_refused() {
    DaxDevice::memory(PAGE).unwrap().host(1);
}

#[test]
fn only_what_was_flushed_and_fenced_survives_a_power_cut() {
    let device = DaxDevice::with_power_cut(2 * PAGE).unwrap();
    let survives = |offset: usize| device.durable_image()[offset];
    device.write(60, &[1; 10]);
    assert_eq!((survives(60), survives(69)), (0, 0));
    // The flush covers both lines with these bytes.
    device.flush(60, 10).unwrap();
    assert_eq!((survives(60), survives(69), device.steps()), (0, 0, 2));
    // This store comes after the flush, so the fence does not cover it.
    device.write(60, &[2]);
    std::thread::scope(|scope| {
        scope.spawn(|| device.fence().unwrap());
    });
    assert_eq!(survives(60), 0, "the fence of another thread");
    device.fence().unwrap();
    assert_eq!((survives(60), survives(69), device.steps()), (1, 1, 4));
    assert_eq!(read(&device, 60, 2), [2, 1]);
    // Once the power is gone, nothing reaches the medium.
    device.cut_power_after(5);
    device.flush(60, 1).unwrap();
    device.fence().unwrap();
    assert_eq!(survives(60), 1);
}

#[test]
fn a_torn_image_has_each_line_old_or_new_and_both_occur() {
    let device = DaxDevice::with_power_cut(2 * PAGE).unwrap();
    device.write(0, &[1; 2 * PAGE_SIZE]);
    device.flush(0, PAGE).unwrap();
    device.fence().unwrap();
    device.write(0, &[2; PAGE_SIZE]);
    let mut seen = [0; 3];
    for seed in 0..8 {
        let image = device.torn_image(seed);
        for (number, line) in image.chunks(64).enumerate() {
            assert!(line.iter().all(|byte| *byte == line[0]), "a line is whole");
            let possible = if number < 64 { [1, 2] } else { [0, 1] };
            assert!(possible.contains(&line[0]));
            seen[line[0] as usize] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}

#[cfg(all(target_os = "linux", not(miri)))]
mod host {
    use super::*;
    use crate::store::{Create, FileAccess};

    #[test]
    fn a_host_file_shows_what_is_written_to_its_device() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        let host = HostFile::open(&path, FileAccess::ReadWrite, Create::New).unwrap();
        host.file.set_len(3 * PAGE).unwrap();
        let device = DaxDevice::host_file(&host, MIB + 1).unwrap();
        assert_eq!(device.len(), MIB + PAGE);
        assert!(device.blocks().is_none());
        // On test machines no file system supports MAP_SYNC; where one does, flushing lines is
        // enough.
        assert_eq!(device.durability(), Durability::HostSync);
        device.write(PAGE - 3, b"across");
        device.flush(PAGE - 3, 6).unwrap();
        device.fence().unwrap();
        let mut found = [0; 6];
        host.read_at(&mut found, PAGE - 3).unwrap();
        assert_eq!(&found, b"across");
        host.write_at(b"beside", 2 * PAGE).unwrap();
        assert_eq!(read(&device, 2 * PAGE, 6), b"beside");
        let text = format!("{device:?}");
        assert!(
            text.contains("data.bin") && text.contains("HostSync"),
            "{text}"
        );
    }

    #[test]
    fn a_read_only_file_and_an_impossible_capacity() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        std::fs::write(&path, b"content").unwrap();
        let host = HostFile::open(&path, FileAccess::ReadOnly, Create::Never).unwrap();
        let device = DaxDevice::host_file(&host, host.len.get()).unwrap();
        assert_eq!(read(&device, 0, 7), b"content");
        for capacity in [u64::MAX, 1 << 63, 1 << 60] {
            let error = DaxDevice::host_file(&host, capacity).unwrap_err();
            let text = error.to_string();
            assert!(
                text.starts_with(&format!("{}: map failed: ", path.display())),
                "{text}"
            );
        }
    }
}
