//! A file is cut short while it is mapped. With mmap the next load is a SIGBUS; here it is an error
//! with file and offset.

use innerspace::{KIB, MIB, Map, Memory, file::FileError, space::FaultKind};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data.bin");
    std::fs::write(&path, vec![7; MIB as usize])?;

    let memory = Memory::with_limit(4 * MIB)?;
    let file = memory.open(&path)?;
    let space = memory.create_space()?;
    let at = space.map(Map::file(&file))?;
    let mut a = space.accessor()?;
    assert_eq!(a.load::<u8>(at)?, 7);

    // This is done by another program with the same permissions for the file.
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)?
        .set_len(64 * KIB)?;

    let fault = a.load::<u64>(at + 512 * KIB).unwrap_err();
    println!("load: {}", a.explain(fault));
    assert_eq!(fault.kind(), FaultKind::PastEnd);

    let error = file.view(512 * KIB..516 * KIB).unwrap_err();
    println!("view: {error}");
    assert!(matches!(error, FileError::Shrank { now, was, .. } if now == 64 * KIB && was == MIB));

    // A buffer is filled up to the fault, which says where the copy stopped.
    let mut buffer = vec![0; 128 * KIB as usize];
    let fault = a.read(at, &mut buffer).unwrap_err();
    let good = fault.address().0 - at.0;
    println!("read: {good} bytes are good");
    assert!(buffer[..good as usize].iter().all(|&byte| byte == 7));

    // The rest of the program continues, with the part of the file that is left.
    let first = file.view(0..4 * KIB)?;
    assert_eq!(first[..], [7; 4096]);
    println!("the first page is still there");
    Ok(())
}
