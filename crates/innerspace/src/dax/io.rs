//! Reads and writes by call: directly from and to the device. Holes read as zeros, without an
//! access to the device.
//!
//! A read locks no entry: the bytes may be written meanwhile, as in any file, but their blocks are
//! not freed (`layout`). A write locks the entries of a few pages at a time, which keeps out syncs
//! and other allocations.

use std::io::ErrorKind;
use std::ops::Range;

use arrayvec::ArrayVec;

use super::core::DaxCore;
use super::entries::Locked;
use super::entry::{Content, Entry, LARGE_PAGES};
use super::error::{DaxAction, DaxError};
use super::extents::Extent;
use super::grab::range_start;
use super::open::HostFile;
use crate::cache::{FaultKind, Wait};
use crate::exec::reentry::FileLocked;
use crate::sync::atomic::Ordering;
use crate::units::{PAGE_SHIFT, PAGE_SIZE};

const PAGE: u64 = PAGE_SIZE as u64;

const LARGE_BYTES: usize = LARGE_PAGES as usize * PAGE_SIZE;

/// The most pages that a write locks at a time: 16 for a call of 64 KiB, and one more, because the
/// call may begin inside a page.
const RUN: usize = 17;

/// Splits `offset..offset + len` by pages. Yields the page, the offset in it, and the length of
/// each part.
pub(crate) fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let inside = (at % PAGE) as usize;
        let part = (PAGE_SIZE - inside).min(len - done);
        done += part;
        Some((at >> PAGE_SHIFT, inside, part))
    })
}

impl DaxCore {
    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    pub(super) fn read_at(
        &self,
        buf: &mut [u8],
        offset: u64,
        wait: Wait,
    ) -> Result<usize, DaxError> {
        self.check_process()?;
        let _layout = self.share_layout(offset, wait)?;
        let len = self.size().saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut left = &mut buf[..len];
        let mut at = offset;
        while !left.is_empty() {
            let (page, inside) = (at >> PAGE_SHIFT, at % PAGE);
            let wanted = (inside + left.len() as u64).div_ceil(PAGE);
            let extent = match wait {
                Wait::Yes => self.look_up_extent(page, wanted, at)?,
                Wait::No => {
                    // Each access to a guarded file is a call to the host, which may wait.
                    let known = match self.is_guarded() {
                        true => None,
                        false => self.parts.extents.known(page, wanted),
                    };
                    known.ok_or_else(|| self.would_block(at))?
                }
            };
            let extent = match extent.at {
                None => self.hole_or_block(page, extent.pages),
                Some(_) => extent,
            };
            let part = (extent.pages * PAGE - inside).min(left.len() as u64) as usize;
            let (now, rest) = std::mem::take(&mut left).split_at_mut(part);
            match extent.at {
                None => {
                    if self.is_guarded() {
                        self.check_host_len(at + part as u64 - 1)?;
                    }
                    now.fill(0);
                }
                Some(block) => self.read_device(block * PAGE + inside, now, at)?,
            }
            left = rest;
            at += part as u64;
        }
        Ok(len)
    }

    /// Returns the extent at a page where the extent map reports a hole of `pages` pages. A host
    /// may report a hole for a block that was never stored to, and the host is not asked again
    /// after a store.
    fn hole_or_block(&self, page: u64, pages: u64) -> Extent {
        let is_block = |entry: Entry, _| matches!(entry.content(), Content::Block(_));
        let next = self.entries.next(page, page + pages, is_block);
        match next.map(|(next, entry)| (next, entry.size().pages(), entry.content())) {
            Some((next, size, Content::Block(block))) if next == page => Extent {
                at: Some(block + page % size),
                pages: (size - page % size).min(pages),
            },
            next => Extent {
                at: None,
                pages: next.map_or(pages, |(next, ..)| next - page),
            },
        }
    }

    /// Fails if a read got fewer bytes than `buf` has.
    pub(super) fn check_whole(&self, got: usize, buf: &[u8], offset: u64) -> Result<(), DaxError> {
        match got == buf.len() {
            true => Ok(()),
            false => Err(self.past_end(offset, buf.len() as u64)),
        }
    }

    /// Writes all of `buf`, and lengthens the file if needed. If an error occurs after some bytes
    /// were written, returns their number instead of the error.
    pub(super) fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize, DaxError> {
        self.check_writable(offset)?;
        if buf.is_empty() {
            return Ok(0);
        }
        let end = self.end_of_write(buf, offset)?;
        let written = self.with_room(|| {
            let (_layout, _holding) = (self.layout.read(), FileLocked::begin());
            self.write_pages(buf, offset, end, Wait::Yes)
        });
        // If not all bytes were written, blocks past the file's end are freed.
        if !matches!(written, Ok(done) if done == buf.len()) {
            self.give_back_past_end(end)?;
        }
        written
    }

    /// Writes all of `buf` at the end of the file, and returns its offset. Neither another append
    /// nor a [`DaxCore::set_len`] comes between the bytes. So an append that has failed half-way is
    /// not continued once there is room.
    pub(super) fn append(&self, buf: &[u8]) -> Result<u64, DaxError> {
        self.check_writable(self.size())?;
        let (mut failed, mut end) = (None, None);
        let appended = self.with_room(|| {
            let _appending = self.appending.lock();
            let (_layout, _holding) = (self.layout.read(), FileLocked::begin());
            let offset = self.size();
            let all = *end.insert(self.end_of_write(buf, offset)?);
            let mut done = 0;
            while done < buf.len() {
                match self.write_pages(&buf[done..], offset + done as u64, all, Wait::Yes) {
                    Ok(more) => done += more,
                    Err(error) if done == 0 => return Err(error),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            Ok(offset)
        });
        let appended = appended.and_then(|offset| failed.map_or(Ok(offset), Err));
        if let (Err(_), Some(end)) = (&appended, end) {
            // If the append failed, blocks past the file's end are freed.
            self.give_back_past_end(end)?;
        }
        appended
    }

    /// Writes as many bytes from the beginning of `buf` as it can without waiting or lengthening
    /// the file. Returns their number. Fails if it can write none of a `buf` that is not empty.
    pub(super) fn try_write_at(&self, buf: &[u8], offset: u64) -> Result<usize, DaxError> {
        self.check_writable(offset)?;
        if buf.is_empty() {
            return Ok(0);
        }
        let end = self.end_of_write(buf, offset)?;
        let _layout = self.share_layout(offset, Wait::No)?;
        let _holding = FileLocked::begin();
        let end = end.min(self.size());
        match end.checked_sub(offset) {
            // Each access to a guarded file is a call to the host, which may wait.
            Some(len @ 1..) if !self.is_guarded() => {
                self.write_pages(&buf[..len as usize], offset, end, Wait::No)
            }
            _ => Err(self.would_block(offset)),
        }
    }

    fn end_of_write(&self, buf: &[u8], offset: u64) -> Result<u64, DaxError> {
        offset
            .checked_add(buf.len() as u64)
            .filter(|end| *end <= self.parts.most)
            .ok_or_else(|| self.too_long(offset, buf.len() as u64))
    }

    /// Writes `buf`, up to the first error. Returns the number of bytes written, or the error if
    /// none were written. The caller shares `layout`, and its whole write ends at `end`. With
    /// [`Wait::No`], `end` must be inside the file.
    fn write_pages(
        &self,
        buf: &[u8],
        offset: u64,
        end: u64,
        wait: Wait,
    ) -> Result<usize, DaxError> {
        let growth = (end > self.size()).then(|| self.growth.lock());
        if growth.is_some() && end > self.size() {
            self.clear_tail(self.size())?;
            self.set_len_of_map(end)?;
        }
        let mut done = 0;
        while done < buf.len() {
            let paid = self.pay_ahead(wait).map_err(DaxError::from);
            let (left, at) = (&buf[done..], offset + done as u64);
            match paid.and_then(|()| self.write_run(left, at, wait)) {
                Ok(written) => done += written,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        // The size is set after the bytes: a reader that sees the length sees the bytes. A thread
        // without `growth` does not lengthen the file here.
        let reached = offset + done as u64;
        self.size.fetch_max(reached, Ordering::SeqCst);
        Ok(done)
    }

    /// If `bytes` cover an aligned range of 2 MiB that is one block or becomes one, writes all of
    /// that range. Otherwise writes to the next few pages, all in one range of 2 MiB; in a guarded
    /// file, to one page. Returns the number of bytes written.
    ///
    /// The entries of these pages are locked together, by one descent. So no atomic operation,
    /// which would wait for the stores before it, comes between the copies.
    fn write_run(&self, bytes: &[u8], offset: u64, wait: Wait) -> Result<usize, DaxError> {
        let (first, guarded) = (offset >> PAGE_SHIFT, self.is_guarded());
        let is_large = bytes.len() >= LARGE_BYTES && offset.is_multiple_of(LARGE_BYTES as u64);
        let mut run = ArrayVec::<Locked<'_>, RUN>::new();
        if is_large && !guarded {
            run.extend(self.lock_large(first, FaultKind::Write, wait, || u64::MAX)?);
        }
        let most = match run.is_empty() {
            true if guarded => 1,
            true => RUN as u64,
            false => LARGE_PAGES,
        };
        // All pages are in one range: locking the first entry makes the node for the others, so no
        // memory is allocated with entries locked.
        let last = (first + most).min(range_start(first) + LARGE_PAGES);
        let end = (offset + bytes.len() as u64).min(last * PAGE);
        if run.is_empty() {
            self.lock_run(&mut run, first..end.div_ceil(PAGE), wait)?;
        }
        // The destinations on the device, each as its offset and number of bytes.
        let mut places = ArrayVec::<(u64, usize), RUN>::new();
        let (mut at, mut became_dirty, mut failed) = (offset, false, None);
        for locked in &mut run {
            let Range { start, end: stop } = locked.pages();
            let len = (end.min(stop * PAGE) - at) as usize;
            let place = |block| block * PAGE + (at - start * PAGE);
            let fill = |block| match guarded {
                true => self.write_device(place(block), &bytes[..len], at),
                false => Ok(()), // the bytes are copied below
            };
            match self.put_block(locked, at >> PAGE_SHIFT, wait, fill) {
                Ok((block, is_newly_dirty)) => {
                    became_dirty |= is_newly_dirty;
                    places.push((place(block), len));
                    at += len as u64;
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        // The range is recorded as dirty before the entries are unlocked.
        if became_dirty {
            self.note_dirty(first);
        }
        let done = (at - offset) as usize;
        if let Some(error) = failed.filter(|_| done == 0) {
            return Err(error);
        }
        if !guarded {
            self.write_pieces(&places, &bytes[..done]);
        }
        self.written_in_place(first..at.div_ceil(PAGE));
        Ok(done)
    }

    /// Copies bytes to the device. `places` are the offset and length of each part.
    fn write_pieces(&self, places: &[(u64, usize)], bytes: &[u8]) {
        let mut parts = places
            .iter()
            .flat_map(|(at, len)| pieces(*at, *len))
            .peekable();
        let mut left = bytes;
        while let Some((page, inside, part)) = parts.next() {
            // The processor's own prefetching mostly stops at the end of a page: see
            // `copy::prefetch`.
            if let Some((next, ..)) = parts.peek() {
                self.parts.device.prefetch_page(next * PAGE);
            }
            let (piece, rest) = left.split_at(part);
            self.parts.device.write(page * PAGE + inside as u64, piece);
            left = rest;
        }
    }

    /// Locks the entries of `pages`: small ones by one descent, or one large entry for all of them.
    /// With [`Wait::No`], stops at the first entry that it cannot lock without waiting, and fails
    /// if that is the first of all.
    fn lock_run<'e>(
        &'e self,
        run: &mut ArrayVec<Locked<'e>, RUN>,
        pages: Range<u64>,
        wait: Wait,
    ) -> Result<(), DaxError> {
        let mut next = pages.start;
        while next < pages.end {
            let left = next..pages.end;
            let each = |locked| run.push(locked);
            let reached = self.entries.lock_run(left, |_| true, each);
            if reached > next {
                next = reached;
                continue;
            }
            match self.lock_for(next, FaultKind::Write, wait) {
                Ok(locked) => {
                    next = locked.pages().end;
                    run.push(locked);
                }
                Err(_) if wait == Wait::No && !run.is_empty() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read_device(&self, at: u64, to: &mut [u8], offset: u64) -> Result<(), DaxError> {
        match self.guarded_host() {
            None => self.parts.device.read(at, to),
            Some(host) => {
                host.read_at(to, offset)
                    .map_err(|error| match error.kind() {
                        ErrorKind::UnexpectedEof => self.shrank(host, offset, to.len() as u64),
                        _ => self.failed(DaxAction::Read, offset)(error),
                    })?;
            }
        }
        Ok(())
    }

    pub(super) fn write_device(&self, at: u64, from: &[u8], offset: u64) -> Result<(), DaxError> {
        match self.guarded_host() {
            None => self.parts.device.write(at, from),
            Some(host) => {
                // A write past the end would lengthen the file again, over a range that another
                // process has cut off.
                self.check_host_len(offset)?;
                host.write_at(from, offset)
                    .map_err(self.failed(DaxAction::Write, offset))?;
            }
        }
        Ok(())
    }

    /// Fails if the byte at `offset` is inside the file, but the host file has lost it.
    pub(super) fn check_host_len(&self, offset: u64) -> Result<(), DaxError> {
        let Some(host) = &self.parts.host else {
            return Ok(());
        };
        let now = host
            .len_now()
            .map_err(self.failed(DaxAction::Query, offset))?;
        if now > offset || offset >= self.size() {
            return Ok(());
        }
        Err(self.shrank(host, offset, PAGE))
    }

    /// Makes the error for a host file that another process has cut.
    fn shrank(&self, host: &HostFile, offset: u64, wanted: u64) -> DaxError {
        let shrank = host.len.shrank(offset, wanted, host.len_now().unwrap_or(0));
        DaxError::from_extents(&self.parts.name, DaxAction::Query, offset, wanted, shrank)
    }

    /// Zeroes the bytes from `size` to the end of its page. A store through a mapping may have
    /// changed them.
    pub(super) fn clear_tail(&self, size: u64) -> Result<(), DaxError> {
        self.clear(size..size.next_multiple_of(PAGE))
    }

    // Accesses through guarded mappings.

    /// Loads bytes of a page; bytes past the file's end are zeros.
    pub(crate) fn load_guarded(&self, to: &mut [u8], offset: u64) -> Result<(), DaxError> {
        self.check_page(offset, to.len())?;
        to.fill(0);
        self.read_at(to, offset, Wait::Yes).map(drop)
    }

    /// Stores bytes to a page; bytes past the file's end are lost, as in any mapping.
    pub(crate) fn store_guarded(&self, from: &[u8], offset: u64) -> Result<(), DaxError> {
        self.check_page(offset, from.len())?;
        self.check_writable(offset)?;
        let written = self.with_room(|| {
            // While `layout` is shared the file does not become shorter, so this write does not
            // make it longer.
            let (_layout, _holding) = (self.layout.read(), FileLocked::begin());
            let inside = self.size().saturating_sub(offset).min(from.len() as u64);
            if inside == 0 {
                return Ok(0); // `offset` itself may be past the end
            }
            self.write_pages(&from[..inside as usize], offset, offset + inside, Wait::Yes)
        });
        written.map(drop)
    }

    /// Returns the error of an atomic read-modify-write of a guarded mapping.
    pub(crate) fn no_atomic_access(&self, offset: u64) -> DaxError {
        DaxError::NotAtomic {
            file: self.parts.name.clone(),
            offset,
        }
    }

    fn check_page(&self, offset: u64, len: usize) -> Result<(), DaxError> {
        match offset >> PAGE_SHIFT < self.pages() {
            true => Ok(()),
            false => Err(self.past_end(offset, len as u64)),
        }
    }
}
