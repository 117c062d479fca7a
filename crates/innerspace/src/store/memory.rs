//! [`MemoryStore`]: a sparse store in this process's memory, which counts its calls.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;

use super::{
    Accepted, Batch, Identity, Own, Store, SyncWhat, Version, read_exact_or_eof, write_all_at,
};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, RwLock};
use crate::units::{Grouped, zeros};

/// The size of a chunk in bytes: the unit in which the store is sparse.
const CHUNK: u64 = 64 << 10;
/// The maximum number of punched or cut-off chunks whose memory is kept for later writes: 32 MiB in
/// all. New memory would cost more, because the system clears it and maps it page by page. That
/// takes several times as long as writing to it.
const MOST_SPARE: usize = 512;
/// The maximum length of a store. As in a file, an offset fits in 63 bits.
const MAX_LEN: u64 = i64::MAX as u64;

/// A store in memory. Ranges that were never written, or were punched or cut off, are holes, in
/// units of 64 KiB. Up to 32 MiB of the memory of punched or cut-off ranges is kept for later
/// writes.
///
/// The store can be written, and is empty at first. To share it between a file and a test, use an
/// `Arc`, which is a store too.
///
/// ```
/// # use std::sync::Arc;
/// # use innerspace::{MIB, Memory, file::FileAccess, store::MemoryStore};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = Arc::new(MemoryStore::from_bytes(b"before"));
/// let memory = Memory::with_limit(4 * MIB)?;
/// let options = memory.file_options().access(FileAccess::ReadWrite);
/// let file = options.open_store(store.clone())?;
/// file.write_at(b"after ", 0)?;
/// file.sync_all()?;
/// assert_eq!(store.to_vec(), b"after ");
/// assert_eq!(store.counts().syncs, 1);
/// # Ok(()) }
/// ```
pub struct MemoryStore {
    /// Boxed, so that its address, which is the store's identity, stays the same when the store
    /// moves.
    state: Box<State>,
}

struct State {
    /// The bytes and the length. A call holds the lock while it copies.
    bytes: RwLock<Bytes>,
    /// The counts of calls so far. The mutex is an innermost lock.
    counts: Mutex<StoreCounts>,
    /// The number of changes made by [`MemoryStore::change_externally`] and
    /// [`MemoryStore::set_len_externally`].
    generation: AtomicU64,
}

#[derive(Default)]
struct Bytes {
    len: u64,
    /// The chunks, by offset divided by [`CHUNK`]. An absent chunk is a hole. Bytes of a chunk past
    /// the end of its vector are zeros, and so are bytes at or past `len`.
    chunks: BTreeMap<u64, Vec<u8>>,
    /// The memory of former chunks: at most [`MOST_SPARE`] empty vectors, each with the capacity of
    /// a chunk.
    spare: Vec<Vec<u8>>,
}

/// Counts of the calls to a [`MemoryStore`] since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct StoreCounts {
    /// Calls to `read_at` and `read_vectored_at`.
    pub reads: u64,
    /// Bytes that calls to `read_at` and `read_vectored_at` returned.
    pub read_bytes: u64,
    /// Calls to `write_at` and `write_vectored_at`.
    pub writes: u64,
    /// Bytes that calls to `write_at` and `write_vectored_at` wrote.
    pub written_bytes: u64,
    /// Calls to `sync`.
    pub syncs: u64,
    /// Calls to `punch`.
    pub punches: u64,
}

/// Divides a range of bytes at the boundaries of chunks. Returns each chunk's number, and the part
/// of the range inside it, relative to the chunk.
fn pieces(begin: u64, end: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
    let chunks = begin / CHUNK..end.div_ceil(CHUNK);
    let piece = move |chunk: u64| {
        let start = chunk * CHUNK;
        let from = begin.saturating_sub(start) as usize;
        (chunk, from..(end - start).min(CHUNK) as usize)
    };
    chunks.map(piece).filter(|(_, inside)| !inside.is_empty())
}

impl Bytes {
    fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let count = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut rest = &mut buf[..count];
        for (chunk, inside) in pieces(offset, offset + count as u64) {
            let (to, after) = rest.split_at_mut(inside.len());
            let chunk = self.chunks.get(&chunk).map_or(&[][..], Vec::as_slice);
            let stored = &chunk[inside.start.min(chunk.len())..inside.end.min(chunk.len())];
            to[..stored.len()].copy_from_slice(stored);
            to[stored.len()..].fill(0);
            rest = after;
        }
        count
    }

    fn write(&mut self, mut buf: &[u8], offset: u64) {
        let end = offset + buf.len() as u64;
        for (chunk, inside) in pieces(offset, end) {
            let (now, later) = buf.split_at(inside.len());
            let chunk = self.chunks.entry(chunk).or_insert_with(|| {
                let mut chunk = self.spare.pop().unwrap_or_default();
                chunk.reserve_exact(CHUNK as usize);
                chunk
            });
            // Only the gap before the write is zeroed. The write itself fills the other bytes.
            if chunk.len() < inside.start {
                chunk.resize(inside.start, 0);
            }
            let stored = now.len().min(chunk.len() - inside.start);
            chunk[inside.start..][..stored].copy_from_slice(&now[..stored]);
            chunk.extend_from_slice(&now[stored..]);
            buf = later;
        }
        self.len = self.len.max(end);
    }

    /// Zeroes `begin..end`, and drops the chunks that the range covers completely.
    fn clear(&mut self, begin: u64, end: u64) {
        let (first, last) = (begin / CHUNK, end.div_ceil(CHUNK));
        let touched: Vec<u64> = self
            .chunks
            .range(first..last.max(first))
            .map(|(&k, _)| k)
            .collect();
        for key in touched {
            let from = begin.saturating_sub(key * CHUNK).min(CHUNK) as usize;
            let to = (end - key * CHUNK).min(CHUNK) as usize;
            if from == 0 && to == CHUNK as usize {
                self.remove(key);
            } else if let Some(chunk) = self.chunks.get_mut(&key) {
                let to = to.min(chunk.len());
                chunk[from.min(to)..to].fill(0);
            }
        }
    }

    fn remove(&mut self, key: u64) {
        if let Some(mut chunk) = self.chunks.remove(&key)
            && self.spare.len() < MOST_SPARE
        {
            chunk.clear();
            self.spare.push(chunk);
        }
    }

    fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.clear(len, self.len.next_multiple_of(CHUNK));
        }
        self.len = len;
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        let (&chunk, _) = self.chunks.range(offset / CHUNK..).next()?;
        Some(offset.max(chunk * CHUNK)).filter(|&at| at < self.len)
    }

    fn next_hole(&self, offset: u64) -> u64 {
        let mut chunk = offset / CHUNK;
        while self.chunks.contains_key(&chunk) {
            chunk += 1;
        }
        offset.max(chunk * CHUNK).min(self.len.max(offset))
    }
}

impl MemoryStore {
    /// Makes an empty store.
    pub fn new() -> MemoryStore {
        MemoryStore {
            state: Box::new(State {
                bytes: RwLock::new(Bytes::default()),
                counts: Mutex::default(),
                generation: AtomicU64::new(0),
            }),
        }
    }

    /// Makes a store of `len` zero bytes, all of it one hole.
    ///
    /// # Panics
    /// If `len` does not fit in 63 bits.
    pub fn with_len(len: u64) -> MemoryStore {
        assert!(len <= MAX_LEN, "a store of {len} bytes");
        let store = MemoryStore::new();
        store.state.bytes.write().set_len(len);
        store
    }

    /// Makes a store with a copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> MemoryStore {
        let store = MemoryStore::new();
        store.state.bytes.write().write(bytes, 0);
        store
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> StoreCounts {
        *self.state.counts.lock()
    }

    /// Returns a copy of the whole content. The read is not counted.
    ///
    /// # Panics
    /// If [`MemoryStore::try_to_vec`] fails.
    pub fn to_vec(&self) -> Vec<u8> {
        match self.try_to_vec() {
            Ok(copy) => copy,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns a copy of the whole content. The read is not counted.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`] if there is not enough memory for the copy, for example of a
    /// long store that is nearly all holes.
    pub fn try_to_vec(&self) -> io::Result<Vec<u8>> {
        let bytes = self.state.bytes.read();
        let Some(mut copy) = zeros(bytes.len) else {
            let text = format!("no memory for a copy of {} bytes", Grouped(bytes.len));
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, text));
        };
        bytes.read(&mut copy, 0);
        Ok(copy)
    }

    /// Returns how many bytes of memory the content takes: a multiple of 64 KiB, since memory is
    /// allocated in chunks of that size. Holes, and memory kept for later writes, are not counted.
    pub fn resident_bytes(&self) -> u64 {
        self.state.bytes.read().chunks.len() as u64 * CHUNK
    }

    /// Writes as another process would: the write is not counted, and changes [`Store::version`].
    ///
    /// # Errors
    /// [`io::ErrorKind::FileTooLarge`]: the end of the write would not fit in 63 bits.
    pub fn change_externally(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        end_of(offset, buf.len())?;
        self.state.bytes.write().write(buf, offset);
        self.state.generation.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Changes the length as another process would; see [`MemoryStore::change_externally`].
    ///
    /// # Errors
    /// [`io::ErrorKind::FileTooLarge`]: the length does not fit in 63 bits.
    pub fn set_len_externally(&self, len: u64) -> io::Result<()> {
        self.state.bytes.write().set_len(end_of(len, 0)?);
        self.state.generation.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Reads `store` by its plain calls, and makes a store with the same content.
    ///
    /// # Errors
    /// Those of reading `store`; [`io::ErrorKind::FileTooLarge`] if its length does not fit in 63
    /// bits.
    pub fn copy_of<S: Store + ?Sized>(store: &S) -> io::Result<MemoryStore> {
        let copy = MemoryStore::new();
        copy.set_len(store.len()?)?;
        let mut buf = vec![0; CHUNK as usize];
        let mut at = 0;
        while let Some(data) = store.next_data(at)? {
            let count = read_exact_or_eof(store, &mut buf, data)?;
            if count == 0 {
                break;
            }
            write_all_at(&copy, &buf[..count], data)?;
            at = data + count as u64;
        }
        Ok(copy)
    }
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

/// Returns where `len` bytes at `offset` end. Returns an error if the end does not fit in 63 bits.
fn end_of(offset: u64, len: usize) -> io::Result<u64> {
    let end = offset.checked_add(len as u64).filter(|&end| end <= MAX_LEN);
    end.ok_or_else(|| io::ErrorKind::FileTooLarge.into())
}

impl Store for MemoryStore {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.bytes.read().len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_vectored_at(&mut [IoSliceMut::new(buf)], offset)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let bytes = self.state.bytes.read();
        let mut count = 0;
        for buf in bufs {
            let got = bytes.read(buf, offset + count as u64);
            count += got;
            if got < buf.len() {
                break;
            }
        }
        drop(bytes);
        let mut counts = self.state.counts.lock();
        counts.reads += 1;
        counts.read_bytes += count as u64;
        Ok(count)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.write_vectored_at(&[IoSlice::new(buf)], offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let len = bufs.iter().map(|buf| buf.len()).sum();
        end_of(offset, len)?;
        if len > 0 {
            let mut bytes = self.state.bytes.write();
            let mut at = offset;
            for buf in bufs {
                bytes.write(buf, at);
                at += buf.len() as u64;
            }
        }
        let mut counts = self.state.counts.lock();
        counts.writes += 1;
        counts.written_bytes += len as u64;
        Ok(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.state.bytes.write().set_len(end_of(len, 0)?);
        Ok(())
    }

    fn sync(&self, _: SyncWhat) -> io::Result<()> {
        self.state.counts.lock().syncs += 1;
        Ok(())
    }

    fn accepted(&self) -> Accepted {
        Accepted::Kept
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.state.counts.lock().punches += 1;
        let mut bytes = self.state.bytes.write();
        let end = offset.saturating_add(len);
        // Past the end all bytes are zero already, so the whole of the last chunk can be dropped.
        let end = match end >= bytes.len {
            true => bytes.len.next_multiple_of(CHUNK),
            false => end,
        };
        if offset < bytes.len && offset < end {
            bytes.clear(offset, end);
        }
        Ok(())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        Ok(self.state.bytes.read().next_data(offset))
    }

    fn next_hole(&self, offset: u64) -> io::Result<u64> {
        Ok(self.state.bytes.read().next_hole(offset))
    }

    fn submit(&self, mut batch: Batch) {
        // Requests to memory never wait, so all of them are performed before this returns.
        while let Some(request) = batch.take() {
            request.run(self);
        }
    }

    fn fills_as_told(&self, _: Own) -> bool {
        true
    }

    fn identity(&self) -> Option<Identity> {
        Some(Identity::new("memory", [&raw const *self.state as u64, 0]))
    }

    fn version(&self) -> io::Result<Option<Version>> {
        Ok(Some(Version::new(
            self.state.generation.load(Ordering::Relaxed),
        )))
    }

    fn writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        "memory store".to_owned()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.state.bytes.read();
        f.debug_struct("MemoryStore")
            .field("len", &bytes.len)
            .field("resident_bytes", &(bytes.chunks.len() as u64 * CHUNK))
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn memory_of_what_was_cut_off_is_used_again_and_shows_nothing_of_it() {
        let store = MemoryStore::from_bytes(&[7; 3 * CHUNK as usize]);
        let spare = || store.state.bytes.read().spare.len();
        store.set_len(0).unwrap();
        assert_eq!((store.resident_bytes(), spare()), (0, 3));
        store.write_at(b"x", CHUNK + 5).unwrap();
        store.set_len(4 * CHUNK).unwrap();
        assert_eq!((store.resident_bytes(), spare()), (CHUNK, 2));
        let mut expected = vec![0; 4 * CHUNK as usize];
        expected[CHUNK as usize + 5] = b'x';
        assert!(store.to_vec() == expected);
        store.punch(CHUNK, CHUNK).unwrap();
        assert_eq!((store.resident_bytes(), spare()), (0, 3));
    }

    #[test]
    #[cfg_attr(miri, ignore = "32 MiB")]
    fn no_more_is_kept_than_said() {
        let store = MemoryStore::new();
        for chunk in 0..MOST_SPARE as u64 + 3 {
            store.write_at(b"x", chunk * CHUNK).unwrap();
        }
        store.set_len(0).unwrap();
        let bytes = store.state.bytes.read();
        assert_eq!((bytes.spare.len(), bytes.chunks.len()), (MOST_SPARE, 0));
    }
}
