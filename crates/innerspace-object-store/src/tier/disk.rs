//! The two files of a tier's folder.
//!
//! ```text
//! chunks   slot 0 | slot 1 | ...        each of the size of a chunk
//! records  header of 4 KiB | record of slot 0 | record of slot 1 | ...   each of 64 bytes
//! ```
//!
//! A record says which chunk of which version of which store its slot has, how long it is, and the
//! checksum of its bytes; and it has a checksum of its own. Records that are whole are trusted at
//! once. The bytes of a slot are trusted if their checksum is right, which each read checks.

use std::hash::Hasher;
use std::io::{self, IoSliceMut};
use std::path::Path;

use innerspace::store::{
    CacheMode, FileAccess, FileLock, FileOpenError, FileOptions, FileStore, Store,
    read_exact_or_eof, write_all_at,
};
use twox_hash::XxHash3_64;

use super::table::Key;

const CHUNKS: &str = "chunks";
const RECORDS: &str = "records";
const HEADER: u64 = 4096;
const RECORD: usize = 64;
/// The first bytes of a header and the version of the format.
const MAGIC: &[u8; 16] = b"innerspace tier1";
/// How many slots a tier may have.
pub(super) const MOST_SLOTS: u32 = u32::MAX >> 1;

/// What a slot has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) key: Key,
    /// The number of bytes; fewer than a chunk's only at the end of a store.
    pub(super) len: u32,
    /// The checksum of the bytes.
    pub(super) sum: u64,
}

#[derive(Debug)]
pub(super) struct Disk {
    chunks: FileStore,
    records: FileStore,
    chunk: usize,
}

/// The checksum of a chunk's bytes, which is another one for another chunk with the same bytes.
pub(super) struct Checksum(XxHash3_64);

impl Checksum {
    pub(super) fn new(key: &Key) -> Checksum {
        let seed = key.file[0] ^ key.file[1].rotate_left(17) ^ key.chunk.rotate_left(31);
        Checksum(XxHash3_64::with_seed(seed))
    }

    /// Goes on with the chunk's next bytes.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    pub(super) fn end(self) -> u64 {
        self.0.finish()
    }
}

/// Returns the checksum of all bytes of a chunk.
pub(super) fn checksum(key: &Key, bytes: &[u8]) -> u64 {
    let mut sum = Checksum::new(key);
    sum.add(bytes);
    sum.end()
}

/// How many pieces of a file one page of a file system's own tables has at least, as ext4's do.
const PIECES: u64 = 340;

/// Returns the size in bytes of both files with this many slots, in whole pages of the disk, with
/// the pages that say where each slot lies if no two are neighbours there.
pub(super) fn size_of(slots: u32, chunk: usize) -> u64 {
    let records = (u64::from(slots) * RECORD as u64).next_multiple_of(HEADER);
    let tables = u64::from(slots).div_ceil(PIECES) * HEADER;
    HEADER + records + tables + u64::from(slots) * chunk as u64
}

/// Returns how many slots a tier of a size has, or `None` if it would have none, or too many.
pub(super) fn slots_in(size: u64, chunk: usize) -> Option<u32> {
    let slots = size.checked_sub(HEADER)? / (chunk + RECORD) as u64;
    let mut slots = u32::try_from(slots).ok()?;
    // The last page of the records may be one too many.
    while slots > 0 && size_of(slots, chunk) > size {
        slots -= 1;
    }
    (1..=MOST_SLOTS).contains(&slots).then_some(slots)
}

impl Record {
    fn to_bytes(self, slot: u32) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&self.key.file[0].to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.file[1].to_le_bytes());
        bytes[16..24].copy_from_slice(&self.key.chunk.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sum.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.len.to_le_bytes());
        let own = own_checksum(&bytes, slot);
        bytes[56..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// Returns the record, if it is whole and was written for this slot.
    fn from_bytes(bytes: &[u8], slot: u32, chunk: usize) -> Option<Record> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let len = u32::from_le_bytes(bytes[32..36].try_into().expect("4 bytes"));
        let is_whole =
            word(56) == own_checksum(bytes, slot) && (1..=chunk).contains(&(len as usize));
        is_whole.then(|| Record {
            key: Key {
                file: [word(0), word(8)],
                chunk: word(16),
            },
            sum: word(24),
            len,
        })
    }
}

fn own_checksum(bytes: &[u8], slot: u32) -> u64 {
    XxHash3_64::oneshot_with_seed(u64::from(slot) + 1, &bytes[..56])
}

impl Disk {
    /// Opens or makes the files, sets their sizes, and reports each whole record.
    pub(super) fn open(
        folder: &Path,
        slots: u32,
        chunk: usize,
        mut found: impl FnMut(u32, Record),
    ) -> Result<Disk, FileOpenError> {
        let failed = |step: &'static str| {
            move |source: io::Error| FileOpenError::Io {
                path: folder.to_owned(),
                step,
                source,
            }
        };
        std::fs::create_dir_all(folder).map_err(failed("make the folder"))?;
        let options = || {
            FileOptions::new()
                .access(FileAccess::ReadWrite)
                .lock(FileLock::Exclusive)
        };
        // The lock on the records is the folder's.
        let records = options()
            .cache_mode(CacheMode::Kernel)
            .open_or_create(folder.join(RECORDS))?;
        let chunks = options().open_or_create(folder.join(CHUNKS))?;
        let disk = Disk {
            chunks,
            records,
            chunk,
        };
        disk.load(slots, &mut found)
            .map_err(failed("prepare its files"))?;
        Ok(disk)
    }

    fn load(&self, slots: u32, found: &mut dyn FnMut(u32, Record)) -> io::Result<()> {
        let mut header = [0; 32];
        let got = read_exact_or_eof(&self.records, &mut header, 0)?;
        let expected = self.header();
        if got < header.len() || header != expected {
            // The folder has another format, or none. Whole records of it would be mistaken for
            // ours.
            self.records.set_len(0)?;
            self.chunks.set_len(0)?;
            write_all_at(&self.records, &expected, 0)?;
        }
        self.records
            .set_len(HEADER + u64::from(slots) * RECORD as u64)?;
        self.chunks.set_len(u64::from(slots) * self.chunk as u64)?;
        let mut piece = vec![0; 1024 * RECORD];
        let mut slot = 0;
        while slot < slots {
            let count = (slots - slot).min(1024) as usize;
            let piece = &mut piece[..count * RECORD];
            let offset = HEADER + u64::from(slot) * RECORD as u64;
            let got = read_exact_or_eof(&self.records, piece, offset)?;
            for bytes in piece[..got].chunks_exact(RECORD) {
                if let Some(record) = Record::from_bytes(bytes, slot, self.chunk) {
                    found(slot, record);
                }
                slot += 1;
            }
            if got < piece.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    fn header(&self) -> [u8; 32] {
        let mut header = [0; 32];
        header[..16].copy_from_slice(MAGIC);
        header[16..24].copy_from_slice(&(self.chunk as u64).to_le_bytes());
        let sum = XxHash3_64::oneshot_with_seed(0, &header[..24]);
        header[24..].copy_from_slice(&sum.to_le_bytes());
        header
    }

    /// Writes chunks to slots that follow one another, and then their records. Syncs none of them.
    pub(super) fn write(&self, slot: u32, padded: &[u8], records: &[Record]) -> io::Result<()> {
        write_all_at(&self.chunks, padded, self.place(slot))?;
        let bytes = (slot..).zip(records);
        let bytes = bytes.flat_map(|(slot, record)| record.to_bytes(slot));
        let offset = HEADER + u64::from(slot) * RECORD as u64;
        write_all_at(&self.records, &bytes.collect::<Vec<u8>>(), offset)
    }

    /// Fills `buffer` with the bytes of slots that follow one another.
    pub(super) fn read(&self, slot: u32, buffer: &mut [u8]) -> io::Result<()> {
        match read_exact_or_eof(&self.chunks, buffer, self.place(slot))? {
            got if got == buffer.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads bytes of slots that follow one another into the buffers, and returns how many it read.
    /// That may be fewer than there is room for.
    pub(super) fn read_some(&self, slot: u32, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.chunks.read_vectored_at(bufs, self.place(slot))
    }

    fn place(&self, slot: u32) -> u64 {
        u64::from(slot) * self.chunk as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD_OF_ONE: Record = Record {
        key: Key {
            file: [7, 8],
            chunk: 9,
        },
        len: 4096,
        sum: 10,
    };

    #[test]
    fn a_record_is_believed_only_whole_and_in_its_slot() {
        let bytes = RECORD_OF_ONE.to_bytes(3);
        assert_eq!(Record::from_bytes(&bytes, 3, 65_536), Some(RECORD_OF_ONE));
        assert_eq!(Record::from_bytes(&bytes, 4, 65_536), None);
        assert_eq!(Record::from_bytes(&bytes, 3, 2048), None);
        assert_eq!(Record::from_bytes(&[0; RECORD], 0, 65_536), None);
        for at in 0..RECORD {
            let mut torn = bytes;
            torn[at] ^= 1;
            assert_eq!(Record::from_bytes(&torn, 3, 65_536), None, "byte {at}");
        }
    }

    #[test]
    fn equal_bytes_of_two_chunks_have_two_checksums() {
        let other = Key {
            chunk: 10,
            ..RECORD_OF_ONE.key
        };
        assert_ne!(
            checksum(&RECORD_OF_ONE.key, b"same"),
            checksum(&other, b"same")
        );
    }

    #[test]
    fn the_files_never_take_more_than_the_size() {
        for size in [80_000, 1 << 20, (1 << 30) + 12_345] {
            for chunk in [4096, 65_536] {
                let slots = slots_in(size, chunk).unwrap();
                assert!(size_of(slots, chunk) <= size);
                assert!(size_of(slots + 1, chunk) > size);
            }
        }
        assert_eq!(slots_in(65_536, 65_536), None);
    }
}
