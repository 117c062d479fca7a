//! The bytes of a file as `bytes::Bytes`, for code that uses hyper, tonic or axum: without a copy,
//! and without a lifetime bound to a file.

use bytes::Bytes;
use innerspace::{KIB, MIB, Memory, PagedFile, file::FileError};

/// A range of a file as `Bytes`. The block stays in memory, and charged, until the last clone or
/// slice is dropped.
fn bytes_of(file: &PagedFile, range: std::ops::Range<u64>) -> Result<Bytes, FileError> {
    Ok(Bytes::from_owner(file.view(range)?))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("page.html");
    let content = "<p>hello</p>".repeat(20_000);
    std::fs::write(&path, &content)?;

    let memory = Memory::with_limit(MIB)?;
    let file = memory.file_options().block_size(64 * KIB).open(&path)?;

    // Inside one block the bytes are the cached ones themselves.
    let first = bytes_of(&file, 0..64 * KIB)?;
    let hello = first.slice(3..8);
    assert_eq!(hello, "hello");
    assert_eq!(file.stats().copied_views, 0);
    println!("{} bytes, no copy; a slice of them: {hello:?}", first.len());

    // Over several blocks, too: they move together once, if they do not lie in a row.
    let all = bytes_of(&file, 0..file.len())?;
    assert_eq!(all, content);
    println!(
        "{} bytes over blocks: {} copies",
        all.len(),
        file.stats().copied_views
    );

    // They need neither the file nor the memory's handle any more, and move to other threads.
    drop((first, all, file, memory));
    let thread = std::thread::spawn(move || hello.to_ascii_uppercase());
    assert_eq!(thread.join().expect("the thread ends"), b"HELLO");
    println!("a slice outlives the file");
    Ok(())
}
