//! [`TieredStore`]: a store whose chunks are cached on local disk.
//!
//! A read is answered from its front, chunk by chunk: chunks that are on the disk, as long as their
//! slots are neighbours, or chunks that are not, by one read of the store behind. What is missing
//! then is left to the next call, as the rules of stores allow.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use innerspace::store::{Accepted, Identity, Limits, Store, SyncWhat, Version, read_exact_or_eof};
use twox_hash::XxHash3_64;

use super::disk::{self, Record};
use super::table::Key;
use super::{Inner, Tier, count};

/// Direct I/O wants lengths that are multiples of this.
const UNIT: usize = 4096;

/// A store behind a [`Tier`].
///
/// Its chunks are used again after a restart, if the store is read-only and reports its version, as
/// [`ObjectStoreFile`](crate::ObjectStoreFile)s and files do. A store without a version begins anew
/// each time it is opened. So does a store that can be written, and every change makes all that the
/// tier has of it useless: the tier is meant for what is read.
#[derive(Debug)]
pub struct TieredStore<S> {
    store: S,
    tier: Tier,
    /// The fingerprint of the store's name and version.
    file: [u64; 2],
    /// The number of the chunks' generation: each change of the store begins a new one, before and
    /// after it. So chunks that were read during a change belong to a generation that nobody reads.
    epoch: AtomicU64,
}

/// What a read does next.
enum Step {
    /// Chunks in neighbouring slots.
    Hit(Vec<(u32, Record)>),
    /// Chunks that this thread has claimed.
    Miss(Range<u64>),
    /// The tier takes nothing in at the moment.
    Bypass,
}

/// Chunks that this thread fetches. Others wait for it.
struct Claims<'a> {
    tier: &'a Inner,
    file: [u64; 2],
    chunks: Range<u64>,
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        let mut state = self.tier.state();
        for chunk in self.chunks.clone() {
            let file = self.file;
            state.table.unclaim(&Key { file, chunk });
        }
        drop(state);
        self.tier.fetched.notify_all();
    }
}

impl<S: Store> TieredStore<S> {
    pub(super) fn new(store: S, tier: Tier) -> io::Result<TieredStore<S>> {
        let version = match store.writable() {
            true => None,
            false => store.version()?,
        };
        let version = match version {
            Some(version) => format!("version {version} of {} bytes", store.len()?),
            None => {
                let number = tier.0.salted.fetch_add(1, Ordering::Relaxed);
                format!("opening {number} of {}", tier.0.salt)
            }
        };
        let text = format!("{}\0{version}", store.name());
        Ok(TieredStore {
            file: [0, 1].map(|seed| XxHash3_64::oneshot_with_seed(seed, text.as_bytes())),
            epoch: AtomicU64::new(0),
            store,
            tier,
        })
    }

    /// Returns the store behind the tier.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the tier.
    pub fn tier(&self) -> &Tier {
        &self.tier
    }

    /// Returns the fingerprint of the present generation.
    fn generation(&self) -> [u64; 2] {
        // Acquire: pairs with `change`. A reader that finds a generation finds the bytes that the
        // store had when it began.
        let epoch = self.epoch.load(Ordering::Acquire);
        [self.file[0], self.file[1].wrapping_add(epoch)]
    }

    /// Makes a change of the store.
    fn change<T>(&self, change: impl FnOnce(&S) -> T) -> T {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let done = change(&self.store);
        // Release: a reader that finds this generation finds the change as well.
        self.epoch.fetch_add(1, Ordering::AcqRel);
        done
    }

    /// Reads some of the wanted bytes, at least one. `wanted` is not beyond the end of `len` bytes.
    fn read(&self, bufs: &mut [IoSliceMut<'_>], wanted: Range<u64>, len: u64) -> io::Result<usize> {
        let tier = &*self.tier.0;
        let file = self.generation();
        loop {
            match next_step(tier, file, &wanted) {
                Step::Hit(chunks) => {
                    let got = read_slots(tier, &chunks, bufs, &wanted);
                    if got > 0 {
                        return Ok(got);
                    }
                }
                Step::Miss(chunks) => {
                    let claims = Claims { tier, file, chunks };
                    if let Some(got) = self.fetch(&claims, bufs, &wanted, len)? {
                        return Ok(got);
                    }
                    drop(claims);
                    return self.bypass(bufs, wanted.start);
                }
                Step::Bypass => return self.bypass(bufs, wanted.start),
            }
        }
    }

    fn bypass(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        count(&self.tier.0.counters.bypassed, 1);
        self.store.read_vectored_at(bufs, offset)
    }

    /// Reads the claimed chunks from the store behind, copies what is wanted, and writes them to
    /// the disk. Returns `None` if the store ends before them.
    fn fetch(
        &self,
        claims: &Claims<'_>,
        bufs: &mut [IoSliceMut<'_>],
        wanted: &Range<u64>,
        len: u64,
    ) -> io::Result<Option<usize>> {
        let tier = claims.tier;
        let chunk = tier.chunk as u64;
        let start = claims.chunks.start * chunk;
        let bytes = (claims.chunks.end * chunk).min(len) - start;
        let mut buffer = tier.buffers.take((bytes as usize).next_multiple_of(UNIT));
        let got = read_exact_or_eof(&self.store, &mut buffer[..bytes as usize], start)?;
        if (got as u64) < bytes {
            return Ok(None);
        }
        // What the last chunk lacks up to a multiple of the disk's unit goes to the disk, too.
        buffer[bytes as usize..].fill(0);
        let copied = copy_out(&buffer[..bytes as usize], start, bufs, wanted);
        let number = claims.chunks.end - claims.chunks.start;
        count(&tier.counters.misses, number);
        count(&tier.counters.bytes_from_store, bytes);
        let first = Key {
            file: claims.file,
            chunk: claims.chunks.start,
        };
        tier.insert(first, &buffer, bytes as usize);
        Ok(Some(copied))
    }
}

/// Finds out what to do for the first of the wanted chunks, and for those that go with it. Waits
/// for a chunk that another thread fetches.
fn next_step(tier: &Inner, file: [u64; 2], wanted: &Range<u64>) -> Step {
    let chunk = tier.chunk as u64;
    let first = wanted.start / chunk;
    let most = (tier.buffers.most() / tier.chunk).max(1) as u64;
    let end = wanted.end.div_ceil(chunk).min(first + most);
    let key = |chunk| Key { file, chunk };
    let mut state = tier.state();
    loop {
        if let Some(hit) = state.table.use_chunk(&key(first)) {
            let mut run = vec![hit];
            for number in first + 1..end {
                let (last, _) = run[run.len() - 1];
                match state.table.use_chunk(&key(number)) {
                    Some((slot, record)) if slot == last + 1 => run.push((slot, record)),
                    _ => break,
                }
            }
            return Step::Hit(run);
        }
        if state.is_paused() {
            return Step::Bypass;
        }
        if state.table.claim(key(first)) {
            let mut next = first + 1;
            while next < end && !state.table.has(&key(next)) && !state.table.is_claimed(&key(next))
            {
                state.table.claim(key(next));
                next += 1;
            }
            return Step::Miss(first..next);
        }
        state = tier
            .fetched
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
    }
}

/// Reads chunks from their slots, as far as they are what they should be. Returns how many of the
/// wanted bytes that was; 0 if the first chunk is no longer there.
fn read_slots(
    tier: &Inner,
    chunks: &[(u32, Record)],
    bufs: &mut [IoSliceMut<'_>],
    wanted: &Range<u64>,
) -> usize {
    if let Some(read) = read_in_place(tier, chunks, bufs, wanted) {
        return read;
    }
    let (first_slot, first) = chunks[0];
    let (_, last) = chunks[chunks.len() - 1];
    let bytes = (chunks.len() - 1) * tier.chunk + last.len as usize;
    let mut buffer = tier.buffers.take(bytes.next_multiple_of(UNIT));
    if tier.disk.read(first_slot, &mut buffer).is_err() {
        for (slot, record) in chunks {
            tier.forget(*slot, record, &tier.counters.read_errors);
        }
        tier.state().pause_now();
        return 0;
    }
    let good = good_bytes(tier, chunks, [&buffer[..]]);
    let start = first.key.chunk * tier.chunk as u64;
    let copied = copy_out(&buffer[..good], start, bufs, wanted);
    count(&tier.counters.bytes_from_disk, copied as u64);
    copied
}

/// Reads those of the first chunks that are wanted whole into the buffers themselves. Returns
/// `None` if there are none, or the disk cannot read into these buffers.
fn read_in_place(
    tier: &Inner,
    chunks: &[(u32, Record)],
    bufs: &mut [IoSliceMut<'_>],
    wanted: &Range<u64>,
) -> Option<usize> {
    let is_whole = |(_, record): &&(u32, Record)| {
        let start = record.key.chunk * tier.chunk as u64;
        let end = start + tier.chunk as u64;
        record.len as usize == tier.chunk && wanted.start <= start && end <= wanted.end
    };
    let number = chunks.iter().take_while(is_whole).count();
    let mut missing = number * tier.chunk;
    let mut pieces = Vec::with_capacity(bufs.len());
    for buf in bufs {
        let len = buf.len().min(missing);
        missing -= len;
        if len > 0 {
            pieces.push(IoSliceMut::new(&mut buf[..len]));
        }
    }
    let is_unit = |piece: &IoSliceMut<'_>| {
        piece.as_ptr().addr().is_multiple_of(UNIT) && piece.len().is_multiple_of(UNIT)
    };
    if pieces.is_empty() || !pieces.iter().all(is_unit) {
        return None;
    }
    // After an error the chunks are read again, by a buffer, and given up if that fails, too.
    let got = tier.disk.read_some(chunks[0].0, &mut pieces).ok()?;
    let number = number.min(got / tier.chunk);
    if number == 0 {
        return None;
    }
    let good = good_bytes(
        tier,
        &chunks[..number],
        pieces.iter().map(|piece| &piece[..]),
    );
    count(&tier.counters.bytes_from_disk, good as u64);
    Some(good)
}

/// Returns how many bytes of chunks that were read are what they should be, up to the first chunk
/// that is not, which the tier forgets. All chunks but the last are whole.
fn good_bytes<'a>(
    tier: &Inner,
    chunks: &[(u32, Record)],
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> usize {
    let mut pieces = pieces.into_iter();
    let (mut piece, mut good): (&[u8], usize) = (&[], 0);
    for (slot, record) in chunks {
        let mut sum = disk::Checksum::new(&record.key);
        let mut missing = record.len as usize;
        while missing > 0 {
            if piece.is_empty() {
                piece = pieces.next().expect("the pieces have the chunks' bytes");
            }
            let (now, later) = piece.split_at(missing.min(piece.len()));
            sum.add(now);
            missing -= now.len();
            piece = later;
        }
        if sum.end() != record.sum {
            // It was torn, or another chunk has taken its slot meanwhile, which is not an error.
            tier.forget(*slot, record, &tier.counters.dropped);
            break;
        }
        good += record.len as usize;
        count(&tier.counters.hits, 1);
    }
    good
}

/// Copies the wanted part of `bytes`, which begin at `start` in the store, and returns its length.
fn copy_out(bytes: &[u8], start: u64, bufs: &mut [IoSliceMut<'_>], wanted: &Range<u64>) -> usize {
    let from = ((wanted.start - start) as usize).min(bytes.len());
    let to = ((wanted.end - start) as usize).min(bytes.len());
    let mut rest = &bytes[from..to];
    for buf in bufs {
        let len = buf.len().min(rest.len());
        let (now, later) = rest.split_at(len);
        buf[..len].copy_from_slice(now);
        rest = later;
    }
    to - from
}

impl<S: Store> Store for TieredStore<S> {
    fn len(&self) -> io::Result<u64> {
        self.store.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_vectored_at(&mut [IoSliceMut::new(buf)], offset)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        let len = self.store.len()?;
        let end = offset.saturating_add(wanted as u64).min(len);
        if end <= offset {
            return self.store.read_vectored_at(bufs, offset);
        }
        self.read(bufs, offset..end, len)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.change(|store| store.write_at(buf, offset))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.change(|store| store.write_vectored_at(bufs, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|store| store.set_len(len))
    }

    /// A failed sync may bring older bytes back, and so counts as a change.
    fn sync(&self, what: SyncWhat) -> io::Result<()> {
        let done = self.store.sync(what);
        match done.is_err() && self.store.accepted() == Accepted::UntilSync {
            true => self.change(|_| done),
            false => done,
        }
    }

    fn accepted(&self) -> Accepted {
        self.store.accepted()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(|store| store.punch(offset, len))
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.store.next_data(offset)
    }

    fn next_hole(&self, offset: u64) -> io::Result<u64> {
        self.store.next_hole(offset)
    }

    fn identity(&self) -> Option<Identity> {
        self.store.identity()
    }

    fn version(&self) -> io::Result<Option<Version>> {
        self.store.version()
    }

    fn limits(&self) -> Limits {
        self.store.limits()
    }

    fn writable(&self) -> bool {
        self.store.writable()
    }

    fn uses_files(&self) -> bool {
        self.store.uses_files()
    }

    fn name(&self) -> String {
        self.store.name()
    }
}
