//! A limit that holds: a file 32 times as large as the memory is read, and exceeding the limit is
//! an error where mmap would just take more.

use innerspace::{KIB, MIB, Memory, View, file::FileError};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data.bin");
    let bytes: Vec<u8> = (0..32 * MIB).map(|i| (i / 997) as u8).collect();
    std::fs::write(&path, &bytes)?;

    let memory = Memory::with_limit(MIB)?;
    let file = memory.open(&path)?;
    let mut sum = 0;
    file.scan(.., |piece| {
        sum += piece.iter().map(|&byte| u64::from(byte)).sum::<u64>()
    })?;
    assert_eq!(sum, bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>());

    let stats = memory.stats();
    println!("{} bytes read, sum {sum}", file.len());
    println!("at most {} of {} used", stats.peak, stats.limit);
    assert!(stats.peak <= MIB);

    // Blocks that nobody holds are evicted as needed. Blocks that are held are not, and the limit
    // holds nevertheless. A group confines the effects to its own part of the memory.
    let tenant = memory.create_group("tenant-a", 256 * KIB)?;
    let path = folder.path().join("other.bin");
    std::fs::write(&path, &bytes[..MIB as usize])?;
    let other = memory.file_options().group(&tenant).open(&path)?;
    let mut views: Vec<View> = Vec::new();
    let error = loop {
        let start = views.len() as u64 * 4 * KIB;
        match other.view(start..start + 4 * KIB) {
            Ok(view) => views.push(view),
            Err(error) => break error,
        }
    };
    println!("after {} views: {error}", views.len());
    let FileError::Limit(limit) = &error else {
        return Err(error.into());
    };
    assert_eq!(limit.details().group, tenant.path());
    assert!(tenant.usage() <= 256 * KIB);

    // Nothing is broken: drop what is not needed and continue.
    views.truncate(views.len() / 2);
    assert_eq!(
        other.view(MIB - 16..MIB)?[..],
        bytes[MIB as usize - 16..MIB as usize]
    );
    println!("with half of them dropped, the end of the file can be viewed");
    Ok(())
}
