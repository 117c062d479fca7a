//! Spaces with their models: the content of each page.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;

use innerspace::{
    Accessor, Map, Space, VirtAddr,
    space::{AccessKind, Fault, FaultKind, Protection, SpaceError},
};

use crate::files::{File, FileId, pattern};
use crate::ops::{Allowed, Backing, Op, Place, Where, Width};
use crate::world::{MAX_SPACES, PAGE, World};

/// The window in which fixed mappings are made: pages on both sides of the border between two
/// leaves of the table.
const WINDOW: u64 = (8 << 20) - 24 * PAGE;
const WINDOW_PAGES: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    Zeros,
    Private(FileId, u64),
    Shared(FileId, u64),
}

/// One mapped page.
#[derive(Clone, Debug)]
struct Page {
    allowed: Allowed,
    source: Source,
    /// The page's own bytes, once it was stored to.
    own: Option<Box<[u8]>>,
}

pub(crate) struct SpaceModel {
    pub(crate) space: Space,
    accessor: Accessor,
    pages: BTreeMap<u64, Page>,
}

fn protection(allowed: Allowed) -> Protection {
    match allowed {
        Allowed::Nothing => Protection::NONE,
        Allowed::Read => Protection::READ,
        Allowed::Write => Protection::READ_WRITE,
    }
}

/// Splits a range by pages: returns the address and the length of each part.
fn pieces(at: u64, len: usize) -> Vec<(u64, usize)> {
    let mut pieces = Vec::new();
    let (mut at, mut left) = (at, len);
    while left > 0 {
        let piece = left.min((PAGE - at % PAGE) as usize);
        pieces.push((at, piece));
        at += piece as u64;
        left -= piece;
    }
    pieces
}

impl SpaceModel {
    pub(crate) fn new(space: Space) -> SpaceModel {
        SpaceModel {
            accessor: space.accessor().unwrap(),
            space,
            pages: BTreeMap::new(),
        }
    }

    /// Creates the model of a fork.
    fn fork(&self) -> Result<SpaceModel, SpaceError> {
        let space = self.space.fork()?;
        Ok(SpaceModel {
            accessor: space.accessor().unwrap(),
            space,
            pages: self.pages.clone(),
        })
    }

    /// Returns the address that a place means.
    fn address(&self, place: Place) -> u64 {
        let number = u64::from(place.page / 2);
        let page = match place.page % 2 {
            1 if !self.pages.is_empty() => {
                let nth = number as usize % self.pages.len();
                *self.pages.keys().nth(nth).expect("below the length")
            }
            _ => WINDOW / PAGE + number % WINDOW_PAGES,
        };
        page * PAGE + u64::from(place.offset)
    }

    /// Returns the reason for which the access to the page of `at` must fail, if there is one.
    fn refusal(&self, files: &[File], at: u64, kind: AccessKind) -> Option<FaultKind> {
        let Some(page) = self.pages.get(&(at / PAGE)) else {
            return Some(FaultKind::NotMapped);
        };
        let forbidden = match kind {
            AccessKind::Load => page.allowed == Allowed::Nothing,
            _ => page.allowed != Allowed::Write,
        };
        match page.source {
            _ if forbidden => Some(FaultKind::Forbidden),
            Source::Private(file, number) | Source::Shared(file, number)
                if page.own.is_none() && number * PAGE >= files[file.0].len() =>
            {
                Some(FaultKind::PastEnd)
            }
            _ => None,
        }
    }

    /// Returns the page's bytes. The page can be loaded.
    fn bytes(&self, files: &[File], at: u64) -> Vec<u8> {
        let page = &self.pages[&(at / PAGE)];
        if let Some(own) = &page.own {
            return own.to_vec();
        }
        match page.source {
            Source::Zeros => vec![0; PAGE as usize],
            Source::Private(file, number) | Source::Shared(file, number) => {
                let bytes = &files[file.0].bytes[(number * PAGE) as usize..];
                let mut page = bytes[..bytes.len().min(PAGE as usize)].to_vec();
                page.resize(PAGE as usize, 0);
                page
            }
        }
    }

    /// Makes the page of `at` the space's own, as a store does, and stores `bytes`, which are
    /// inside one page.
    fn put(&mut self, files: &mut [File], at: u64, bytes: &[u8]) {
        let start = (at % PAGE) as usize;
        if let Source::Shared(file, number) = self.pages[&(at / PAGE)].source {
            let from = number as usize * PAGE as usize + start;
            files[file.0].bytes[from..][..bytes.len()].copy_from_slice(bytes);
            return;
        }
        let mut own = self.bytes(files, at);
        own[start..][..bytes.len()].copy_from_slice(bytes);
        let page = self.pages.get_mut(&(at / PAGE)).expect("can be stored to");
        page.own = Some(own.into());
    }

    /// Whether a store would go past the end of a file inside its last page. It is unspecified
    /// whether such bytes are kept.
    fn stores_past_end(&self, files: &[File], at: u64, len: usize) -> bool {
        pieces(at, len).iter().any(|&(at, len)| {
            let page = self.pages.get(&(at / PAGE));
            let Some(Source::Shared(file, number)) = page.map(|page| page.source) else {
                return false;
            };
            let end = number * PAGE + at % PAGE + len as u64;
            number * PAGE < files[file.0].len() && end > files[file.0].len()
        })
    }

    /// Returns the reason and the address at which a bulk access has to stop.
    fn first_refusal(
        &self,
        files: &[File],
        at: u64,
        len: usize,
        kind: AccessKind,
    ) -> Option<(FaultKind, u64)> {
        let mut refused = pieces(at, len).into_iter();
        refused.find_map(|(at, _)| Some((self.refusal(files, at, kind)?, at)))
    }

    fn load_all(&self, files: &[File], at: u64, len: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for (at, len) in pieces(at, len) {
            all.extend_from_slice(&self.bytes(files, at)[(at % PAGE) as usize..][..len]);
        }
        all
    }

    fn put_all(&mut self, files: &mut [File], at: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (at, len) in pieces(at, bytes.len()) {
            let (piece, behind) = rest.split_at(len);
            self.put(files, at, piece);
            rest = behind;
        }
    }

    /// Checks that every page reads as the model says, as far as the stores and the limit allow.
    pub(crate) fn read_all(&mut self, files: &[File]) {
        let pages: Vec<u64> = self.pages.keys().copied().collect();
        for page in pages {
            self.read_and_compare(files, page * PAGE, PAGE as usize);
        }
    }

    fn read_and_compare(&mut self, files: &[File], at: u64, len: usize) -> Option<Fault> {
        let mut buffer = vec![0xa5; len];
        let end = self.accessor.read(VirtAddr(at), &mut buffer);
        let want = self.first_refusal(files, at, len, AccessKind::Load);
        let fault = judge(end, want, at, len);
        let done = match (fault, want) {
            (Some(fault), _) => (fault.address().0 - at) as usize,
            (None, Some((_, stop))) => (stop - at) as usize,
            (None, None) => len,
        };
        let same = buffer[..done] == self.load_all(files, at, done)[..];
        assert!(same, "bytes read at {at:#x} differ from the model");
        fault
    }
}

/// Compares the end of an access with the expected one. A fault that the model does not predict
/// (the store failed, or the memory is full) is returned if it is allowed and comes before the
/// predicted one.
fn judge(
    end: Result<(), Fault>,
    want: Option<(FaultKind, u64)>,
    at: u64,
    len: usize,
) -> Option<Fault> {
    let stop = want.map_or(at + len as u64, |(_, stop)| stop);
    match (end, want) {
        (Err(fault), _) if matches!(fault.kind(), FaultKind::Io | FaultKind::Limit) => {
            let inside = (at..=stop).contains(&fault.address().0);
            assert!(inside, "{fault}: not in {at:#x}..={stop:#x}");
            Some(fault)
        }
        (end, want) => {
            let got = end.err().map(|fault| (fault.kind(), fault.address().0));
            assert_eq!(got, want, "access of {len} bytes at {at:#x}");
            None
        }
    }
}

impl World {
    fn space_id(&self, number: u8) -> usize {
        usize::from(number) % self.spaces.len()
    }

    fn relieve_if_fault(&mut self, fault: Option<Fault>) {
        if fault.is_some_and(Fault::is_limit) {
            self.relieve();
            self.files.iter().for_each(File::assert_reads);
        }
    }

    /// Whether a structural change was made. If not, the memory is full and nothing has changed,
    /// which later steps check.
    fn made<T>(&mut self, result: Result<T, SpaceError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(SpaceError::Limit(_)) => {
                for space in &mut self.spaces {
                    space.read_all(&self.files);
                }
                self.relieve();
                self.files.iter().for_each(File::assert_reads);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn space_step(&mut self, op: &Op) {
        match op {
            Op::Map { .. } => self.map(op),
            Op::Unmap(space, place, pages) => self.unmap(*space, *place, u64::from(*pages)),
            Op::Protect(space, place, pages, allowed) => {
                self.protect(*space, *place, u64::from(*pages), *allowed);
            }
            Op::Fork(space) => self.fork(*space),
            Op::DropSpace(space) => {
                if self.spaces.len() > 1 {
                    let id = self.space_id(*space);
                    drop(self.spaces.swap_remove(id));
                }
            }
            Op::Load(space, place, width) => self.load(*space, *place, *width),
            Op::Store(space, place, width, value) => self.store(*space, *place, *width, *value),
            Op::Exchange(space, place, value) => self.exchange(*space, *place, *value),
            Op::ReadBytes(space, place, len) => {
                let id = self.space_id(*space);
                let at = self.spaces[id].address(*place);
                let fault = self.spaces[id].read_and_compare(&self.files, at, usize::from(*len));
                self.relieve_if_fault(fault);
            }
            Op::WriteBytes(space, place, len, byte) => {
                let bytes = pattern(*byte, usize::from(*len));
                self.write(*space, *place, &bytes, |a, at| a.write(at, &bytes));
            }
            Op::Fill(space, place, len, byte) => {
                let len = usize::from(*len);
                self.write(*space, *place, &vec![*byte; len], |a, at| {
                    a.fill(at, *byte, len)
                });
            }
            Op::Copy(space, to, from, len) => self.copy(*space, *to, *from, usize::from(*len)),
            Op::Session(space, stores) => self.session(*space, stores),
            other => unreachable!("{other:?}"),
        }
    }

    fn map(&mut self, op: &Op) {
        let Op::Map {
            space,
            backing,
            part,
            pages,
            place,
            at,
            allowed,
        } = op
        else {
            unreachable!("called for maps");
        };
        let (id, count) = (self.space_id(*space), u64::from(*pages));
        let file = self.file_id(part.file);
        let handle = &self.files[file.0].handle;
        let first = u64::from(part.offset) % 70;
        let range = first * PAGE..(first + count) * PAGE;
        let map = match backing {
            Backing::Anonymous => Map::anonymous(count * PAGE),
            Backing::Private => Map::file(handle).range(range).private(),
            Backing::Shared => Map::file(handle).range(range).shared(),
        };
        let map = map.protection(protection(*allowed));
        let fixed = WINDOW + u64::from(place.page) % WINDOW_PAGES * PAGE;
        let map = match at {
            Where::Chosen => map,
            Where::Free => map.at(VirtAddr(fixed)),
            Where::Replacing => map.replacing(VirtAddr(fixed)),
        };
        let model = &self.spaces[id];
        let taken = |start: u64| {
            let mut pages = model.pages.range(start / PAGE..start / PAGE + count);
            pages.next().is_some()
        };
        let start = match (model.space.map(map), at) {
            (Err(SpaceError::Overlaps { .. }), Where::Free) => {
                assert!(taken(fixed), "nothing is in the way");
                return;
            }
            (Ok(start), Where::Chosen) => {
                assert!(!taken(start.0), "a range was chosen that is taken");
                Ok(start)
            }
            (Ok(start), _) => {
                assert_eq!(start.0, fixed);
                assert!(*at == Where::Replacing || !taken(fixed), "it overlaps");
                Ok(start)
            }
            (error, _) => error,
        };
        let Some(start) = self.made(start) else {
            return;
        };
        for page in 0..count {
            let source = match backing {
                Backing::Anonymous => Source::Zeros,
                Backing::Private => Source::Private(file, first + page),
                Backing::Shared => Source::Shared(file, first + page),
            };
            let page_model = Page {
                allowed: *allowed,
                source,
                own: None,
            };
            let number = start.0 / PAGE + page;
            self.spaces[id].pages.insert(number, page_model);
        }
    }

    fn unmap(&mut self, space: u8, place: Place, count: u64) {
        let id = self.space_id(space);
        let first = self.spaces[id].address(place) / PAGE;
        let done = self.spaces[id]
            .space
            .unmap(VirtAddr(first * PAGE), count * PAGE);
        if self.made(done).is_some() {
            let model = &mut self.spaces[id];
            model
                .pages
                .retain(|page, _| !(first..first + count).contains(page));
        }
    }

    fn protect(&mut self, space: u8, place: Place, count: u64, allowed: Allowed) {
        let id = self.space_id(space);
        let first = self.spaces[id].address(place) / PAGE;
        let model = &self.spaces[id];
        let covered = model.pages.range(first..first + count).count() as u64 == count;
        let (at, wanted) = (VirtAddr(first * PAGE), protection(allowed));
        let done = match model.space.protect(at, count * PAGE, wanted) {
            Err(SpaceError::NotMapped { .. }) => {
                assert!(!covered, "all of it is mapped");
                return;
            }
            done => done,
        };
        assert!(covered || done.is_err(), "a part is not mapped");
        if self.made(done).is_some() {
            let pages = self.spaces[id].pages.range_mut(first..first + count);
            pages.for_each(|(_, page)| page.allowed = allowed);
        }
    }

    fn fork(&mut self, space: u8) {
        if self.spaces.len() == MAX_SPACES {
            drop(self.spaces.swap_remove(self.space_id(space)));
        }
        let child = self.spaces[self.space_id(space)].fork();
        if let Some(child) = self.made(child) {
            self.spaces.push(child);
        }
    }

    fn load(&mut self, space: u8, place: Place, width: Width) {
        let id = self.space_id(space);
        let model = &mut self.spaces[id];
        let at = VirtAddr(model.address(place));
        let a = &mut model.accessor;
        let got = match width {
            Width::One => a.load::<u8>(at).map(|value| value.to_le_bytes().to_vec()),
            Width::Four => a.load::<u32>(at).map(|value| value.to_le_bytes().to_vec()),
            Width::Eight => a.load::<u64>(at).map(|value| value.to_le_bytes().to_vec()),
            Width::Sixteen => a.load::<u128>(at).map(|value| value.to_le_bytes().to_vec()),
        };
        let len = size_of_width(width);
        let want = model.first_refusal(&self.files, at.0, len, AccessKind::Load);
        let bytes = got.as_ref().ok().cloned();
        let fault = judge(got.map(drop), want, at.0, len);
        if let Some(bytes) = bytes {
            let want = model.load_all(&self.files, at.0, len);
            assert_eq!(bytes, want, "load at {at}");
        }
        self.relieve_if_fault(fault);
    }

    fn store(&mut self, space: u8, place: Place, width: Width, value: u64) {
        let id = self.space_id(space);
        let model = &mut self.spaces[id];
        let at = VirtAddr(model.address(place));
        let len = size_of_width(width);
        if model.stores_past_end(&self.files, at.0, len) {
            return;
        }
        let wide = u128::from(value) << 64 | u128::from(!value);
        let a = &mut model.accessor;
        let end = match width {
            Width::One => a.store(at, wide as u8),
            Width::Four => a.store(at, wide as u32),
            Width::Eight => a.store(at, wide as u64),
            Width::Sixteen => a.store(at, wide),
        };
        let want = model.first_refusal(&self.files, at.0, len, AccessKind::Store);
        let succeeded = end.is_ok();
        let stopped = end.err().map(|fault| fault.address().0);
        let fault = judge(end, want, at.0, len);
        if succeeded {
            model.put_all(&mut self.files, at.0, &wide.to_le_bytes()[..len]);
        } else if stopped.is_some_and(|stop| stop > at.0) {
            // The value is stored wholly or not at all. But the first page was prepared, which
            // makes a private page a copy.
            model.put(&mut self.files, at.0, &[]);
        }
        self.relieve_if_fault(fault);
    }

    fn exchange(&mut self, space: u8, place: Place, value: u64) {
        let id = self.space_id(space);
        let model = &mut self.spaces[id];
        let at = model.address(place) & !7;
        if model.stores_past_end(&self.files, at, 8) {
            return;
        }
        let want = model.first_refusal(&self.files, at, 8, AccessKind::Exchange);
        let old = value % 2; // zeros are frequent
        let end = model
            .accessor
            .compare_exchange(VirtAddr(at), old, value, SeqCst, SeqCst);
        let got = end.as_ref().ok().copied();
        let fault = judge(end.map(drop), want, at, 8);
        if let Some(got) = got {
            let had = model.load_all(&self.files, at, 8);
            let had = u64::from_le_bytes(had.try_into().expect("eight bytes"));
            let want = if had == old { Ok(had) } else { Err(had) };
            assert_eq!(got, want, "exchange at {at:#x}");
            let now = if had == old { value } else { had };
            model.put(&mut self.files, at, &now.to_le_bytes());
        }
        self.relieve_if_fault(fault);
    }

    /// Makes a bulk store of these bytes.
    fn write(
        &mut self,
        space: u8,
        place: Place,
        bytes: &[u8],
        run: impl FnOnce(&mut Accessor, VirtAddr) -> Result<(), Fault>,
    ) {
        let id = self.space_id(space);
        let model = &mut self.spaces[id];
        let at = model.address(place);
        if model.stores_past_end(&self.files, at, bytes.len()) {
            return;
        }
        let want = model.first_refusal(&self.files, at, bytes.len(), AccessKind::Store);
        let end = run(&mut model.accessor, VirtAddr(at));
        let fault = judge(end, want, at, bytes.len());
        let stop = fault.map(|fault| fault.address().0);
        let stop = stop.or(want.map(|(_, stop)| stop));
        let done = stop.map_or(bytes.len(), |stop| (stop - at) as usize);
        model.put_all(&mut self.files, at, &bytes[..done]);
        self.relieve_if_fault(fault);
    }

    /// Copies page-sized pieces in the order of memmove, each read and then written.
    fn copy(&mut self, space: u8, to: Place, from: Place, len: usize) {
        let id = self.space_id(space);
        let model = &mut self.spaces[id];
        let (to, from) = (model.address(to), model.address(from));
        if model.stores_past_end(&self.files, to, len) {
            return;
        }
        let end = model
            .accessor
            .copy_within(VirtAddr(from), len, VirtAddr(to));
        let fault = end.err();
        let forward = to.wrapping_sub(from) >= len as u64;
        let mut done = 0;
        let mut judged = false;
        while done < len && !judged {
            let piece = len.min(done + PAGE as usize) - done;
            let offset = if forward { done } else { len - done - piece } as u64;
            let mut one = |model: &SpaceModel, at: u64, kind: AccessKind| {
                let want = model.first_refusal(&self.files, at, piece, kind);
                let here = fault.filter(|fault| {
                    fault.access() == kind
                        && (at..at + piece as u64).contains(&fault.address().0)
                        && (want.is_some()
                            || matches!(fault.kind(), FaultKind::Io | FaultKind::Limit))
                });
                if want.is_some() || here.is_some() {
                    judged = true;
                    judge(here.map_or(Ok(()), Err), want, at, piece);
                }
                here.map_or(piece, |fault| (fault.address().0 - at) as usize)
            };
            let readable = one(model, from + offset, AccessKind::Load);
            if readable == piece {
                let bytes = model.load_all(&self.files, from + offset, piece);
                let written = one(model, to + offset, AccessKind::Store);
                model.put_all(&mut self.files, to + offset, &bytes[..written]);
            }
            done += piece;
        }
        assert_eq!(judged, fault.is_some(), "copy: {fault:?}");
        self.relieve_if_fault(fault);
    }

    /// Makes several exchanges in one open section.
    fn session(&mut self, space: u8, stores: &[(Place, u64)]) {
        let id = self.space_id(space);
        let model = &mut self.spaces[id];
        let stores = stores
            .iter()
            .map(|(place, value)| (model.address(*place) & !7, *value));
        let stores: Vec<(u64, u64)> = stores
            .filter(|(at, _)| !model.stores_past_end(&self.files, *at, 8))
            .collect();
        let outcomes: Vec<_> = model.accessor.session(|accessor| {
            let mut swap = |(at, value)| (at, value, accessor.swap(VirtAddr(at), value, SeqCst));
            stores.into_iter().map(&mut swap).collect()
        });
        let mut full = None;
        for (at, value, outcome) in outcomes {
            let want = model.first_refusal(&self.files, at, 8, AccessKind::Exchange);
            let fault = judge(outcome.map(drop), want, at, 8);
            full = full.or(fault);
            if let Ok(old) = outcome {
                let had = model.load_all(&self.files, at, 8);
                assert_eq!(old.to_le_bytes(), had[..], "swap at {at:#x}");
                model.put(&mut self.files, at, &value.to_le_bytes());
            }
        }
        self.relieve_if_fault(full);
    }
}

fn size_of_width(width: Width) -> usize {
    match width {
        Width::One => 1,
        Width::Four => 4,
        Width::Eight => 8,
        Width::Sixteen => 16,
    }
}
