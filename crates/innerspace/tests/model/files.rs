//! Files with their models.

use std::sync::Arc;

use innerspace::store::MemoryStore;
use innerspace::store::faulty::{FaultyStore, Rule};
use innerspace::{
    Memory, PagedFile,
    file::{FileAccess, FileError},
};

use crate::ops::{Op, Part, SyncKind, ViewKind};
use crate::world::{PAGE, World, is_limit};

/// The greatest length of a file.
const MAX_LEN: u64 = 64 * PAGE;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileId(pub(crate) usize);

pub(crate) struct File {
    pub(crate) handle: PagedFile,
    pub(crate) store: Arc<FaultyStore<MemoryStore>>,
    pub(crate) bytes: Vec<u8>,
}

/// Returns bytes that differ from place to place.
pub(crate) fn pattern(byte: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| byte ^ (i * 7 + i / 251) as u8).collect()
}

/// Checks that the error is an allowed one: the store was told to fail, or the limit was reached.
fn assert_may_fail(error: &FileError) {
    let allowed = matches!(error, FileError::Store { .. } | FileError::Limit(_));
    assert!(allowed, "an error out of nowhere: {error}");
}

impl File {
    pub(crate) fn new(memory: &Memory, block: u64, len: u64) -> File {
        // The store has data, a hole, and data.
        let inner = MemoryStore::from_bytes(&pattern(block as u8, len as usize / 3));
        let mut bytes = inner.to_vec();
        bytes.resize(len as usize, 0);
        let tail = pattern(99, len as usize / 4);
        let at = len as usize - tail.len();
        innerspace::store::Store::set_len(&inner, len).expect("a vector");
        innerspace::store::write_all_at(&inner, &tail, at as u64).expect("a vector");
        bytes[at..].copy_from_slice(&tail);
        let store = Arc::new(FaultyStore::new(inner));
        let opener = memory.file_options().access(FileAccess::ReadWrite);
        let opener = opener.block_size(block).name("model");
        let handle = opener.open_store(store.clone()).expect("a new store");
        File {
            handle,
            store,
            bytes,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns a range that begins inside the file or a little after its end.
    fn range(&self, part: &Part) -> std::ops::Range<u64> {
        let start = u64::from(part.offset) % (self.len() + PAGE);
        start..start + u64::from(part.len)
    }

    fn inside(&self, range: std::ops::Range<u64>) -> &[u8] {
        let end = range.end.min(self.len());
        &self.bytes[range.start.min(end) as usize..end as usize]
    }

    /// Reads the whole file through the cache.
    fn read_back(&self) -> Result<Vec<u8>, FileError> {
        let mut back = vec![0xa5; self.handle.len() as usize];
        self.handle.read_exact_at(&mut back, 0)?;
        Ok(back)
    }

    /// Checks that the file reads as the model does. Its store does not fail, and there is room.
    pub(crate) fn assert_reads(&self) {
        let back = self.read_back().expect("a healthy store and room");
        assert!(back == self.bytes, "the file differs from its model");
    }

    /// Checks that after healing, a sync writes everything to the store. The first sync may report
    /// an earlier failure.
    pub(crate) fn assert_synced(&mut self) {
        self.store.heal();
        let _old_failure = self.handle.sync_all();
        self.handle.sync_all().expect("the store is healthy");
        let stored = self.store.inner().to_vec();
        assert_eq!(stored.len(), self.bytes.len(), "the store's length");
        let differs = (0..stored.len()).find(|&at| stored[at] != self.bytes[at]);
        assert_eq!(differs, None, "the store differs from the model there");
    }

    pub(crate) fn assert_len(&self) {
        assert_eq!(self.handle.len(), self.len(), "the file's length");
    }
}

impl World {
    /// Returns the bytes of a file after a failure, however full the memory is.
    fn look_at(&mut self, id: FileId) -> Vec<u8> {
        self.files[id.0].store.heal();
        match self.files[id.0].read_back() {
            Ok(back) => back,
            Err(error) => {
                assert!(is_limit(&error), "a healthy store: {error}");
                self.relieve();
                self.files[id.0].read_back().expect("room")
            }
        }
    }

    fn relieve_if_full(&mut self, error: &FileError) {
        if is_limit(error) {
            self.relieve();
            self.files.iter().for_each(File::assert_reads);
        }
    }

    /// Records the end of a write: of all bytes, or of the blocks before the one that failed.
    fn wrote(&mut self, id: FileId, bytes: &[u8], offset: u64, result: Result<(), FileError>) {
        let grown = |model: &[u8], done: usize| {
            let mut model = model.to_vec();
            let end = offset as usize + done;
            if done > 0 && model.len() < end {
                model.resize(end, 0);
            }
            model[offset as usize..][..done].copy_from_slice(&bytes[..done]);
            model
        };
        let file = &mut self.files[id.0];
        let Err(error) = result else {
            if !bytes.is_empty() {
                file.bytes = grown(&file.bytes, bytes.len());
            }
            return;
        };
        assert_may_fail(&error);
        let block = file.handle.block_size();
        let now = self.look_at(id);
        let model = &self.files[id.0].bytes;
        let parts = (1..).map(|n| ((offset / block + n) * block - offset) as usize);
        let parts = std::iter::once(0).chain(parts.take_while(|part| *part < bytes.len()));
        let found = parts
            .map(|done| {
                if done == 0 {
                    model.clone()
                } else {
                    grown(model, done)
                }
            })
            .find(|candidate| *candidate == now);
        let what = || panic!("a failed write ({error}) left neither old bytes nor a prefix");
        self.files[id.0].bytes = found.unwrap_or_else(what);
        self.relieve_if_full(&error);
    }

    /// Runs an operation on files. Returns false if it is another kind of operation.
    pub(crate) fn file_step(&mut self, op: &Op) -> bool {
        match op {
            Op::Read(part) => self.read(part),
            Op::Scan(part) => self.scan(part),
            Op::Write(part, byte) => {
                let id = self.file_id(part.file);
                let file = &self.files[id.0];
                let range = file.range(part);
                let end = range.end.min(MAX_LEN);
                let bytes = pattern(*byte, end.saturating_sub(range.start) as usize);
                let result = file.handle.write_at(&bytes, range.start);
                if !bytes.is_empty() {
                    self.wrote(id, &bytes, range.start, result);
                }
            }
            Op::Append(part, byte) => {
                let id = self.file_id(part.file);
                let file = &self.files[id.0];
                let offset = file.len();
                let len = u64::from(part.len).min(MAX_LEN.saturating_sub(offset));
                let bytes = pattern(*byte, len as usize);
                let result = file.handle.append(&bytes);
                let result = result.map(|at| assert_eq!(at, offset, "where the append went"));
                self.wrote(id, &bytes, offset, result);
            }
            Op::View(part, kind) => self.view(part, *kind),
            Op::SetLen(part) => {
                let id = self.file_id(part.file);
                let file = &mut self.files[id.0];
                let len = u64::from(part.offset) % MAX_LEN;
                match file.handle.set_len(len) {
                    Ok(()) => file.bytes.resize(len as usize, 0),
                    Err(error) => {
                        assert_may_fail(&error);
                        self.unchanged(id);
                    }
                }
            }
            Op::Punch(part) => self.punch(part),
            Op::Sync(part, kind) => self.sync(part, *kind),
            Op::Evict(part) => {
                let file = &self.files[self.file_id(part.file).0];
                file.handle.evict(file.range(part)).expect("a good range");
            }
            Op::Invalidate(part) => {
                let id = self.file_id(part.file);
                let file = &self.files[id.0];
                if let Err(error) = file.handle.invalidate(file.range(part)) {
                    assert_may_fail(&error);
                    self.unchanged(id);
                }
            }
            Op::Prefetch(part) => {
                let file = &self.files[self.file_id(part.file).0];
                if let Err(error) = file.handle.prefetch(file.range(part)) {
                    assert_may_fail(&error);
                }
            }
            Op::Break {
                file,
                kind,
                fault,
                nth,
                times,
            } => {
                let rule = Rule::new(*fault).on(&[*kind]);
                let rule = rule.nth(u64::from(*nth)).times(u64::from(*times));
                self.files[self.file_id(*file).0].store.add(rule);
            }
            Op::Heal(file) => {
                let id = self.file_id(*file);
                self.files[id.0].assert_synced();
            }
            _ => return false,
        }
        self.files.iter().for_each(File::assert_len);
        true
    }

    /// Checks that an operation that failed has changed nothing.
    fn unchanged(&mut self, id: FileId) {
        let now = self.look_at(id);
        let same = now == self.files[id.0].bytes;
        assert!(same, "a failed operation changed the file");
    }

    fn read(&mut self, part: &Part) {
        let id = self.file_id(part.file);
        let file = &self.files[id.0];
        let range = file.range(part);
        let mut buffer = vec![0xa5; part.len as usize];
        match file.handle.read_at(&mut buffer, range.start) {
            Ok(count) => {
                let want = file.inside(range);
                assert_eq!(count, want.len(), "bytes read");
                assert!(buffer[..count] == *want, "a read differs from the model");
            }
            Err(error) => {
                assert_may_fail(&error);
                self.relieve_if_full(&error);
            }
        }
    }

    fn scan(&mut self, part: &Part) {
        let id = self.file_id(part.file);
        let file = &self.files[id.0];
        let range = file.range(part);
        let mut seen = Vec::new();
        let result = file
            .handle
            .scan(range.clone(), |piece| seen.extend_from_slice(piece));
        match result {
            Ok(()) => assert!(seen == file.inside(range), "a scan differs from the model"),
            Err(FileError::PastEnd { .. }) => assert!(range.end > file.len()),
            Err(error) => {
                assert_may_fail(&error);
                let want = file.inside(range);
                assert!(want.starts_with(&seen), "pieces before a failure differ");
                self.relieve_if_full(&error);
            }
        }
    }

    fn view(&mut self, part: &Part, kind: ViewKind) {
        let id = self.file_id(part.file);
        let file = &self.files[id.0];
        let range = file.range(part);
        let result = match kind {
            ViewKind::View => file.handle.view(range.clone()),
            ViewKind::Try => file.handle.try_view(range.clone()),
        };
        match result {
            Ok(view) => {
                assert!(range.end <= file.len(), "a view past the end");
                let shows = file.inside(range).to_vec();
                assert!(view[..] == shows[..], "a view differs from the model");
                self.keep_view(view, shows);
            }
            Err(FileError::PastEnd { .. }) => assert!(range.end > file.len()),
            Err(error) if kind == ViewKind::Try && error.would_block() => {}
            Err(error) => {
                assert_may_fail(&error);
                self.relieve_if_full(&error);
            }
        }
    }

    fn punch(&mut self, part: &Part) {
        let id = self.file_id(part.file);
        let file = &mut self.files[id.0];
        let range = file.range(part);
        let end = range.end.min(file.len()) as usize;
        let range = (range.start as usize).min(end)..end;
        match file.handle.punch(range.start as u64..range.end as u64) {
            Ok(()) => file.bytes[range].fill(0),
            Err(error) => {
                assert_may_fail(&error);
                let now = self.look_at(id);
                let model = &self.files[id.0].bytes;
                assert_eq!(now.len(), model.len(), "a failed punch changed the length");
                let fits = |at: usize| now[at] == model[at] || range.contains(&at) && now[at] == 0;
                let bad = (0..now.len()).find(|&at| !fits(at));
                assert_eq!(bad, None, "a failed punch left neither old bytes nor zeros");
                self.files[id.0].bytes = now;
                self.relieve_if_full(&error);
            }
        }
    }

    fn sync(&mut self, part: &Part, kind: SyncKind) {
        let file = &self.files[self.file_id(part.file).0];
        let range = file.range(part);
        let result = match kind {
            SyncKind::Data => file.handle.sync_data(),
            SyncKind::All => file.handle.sync_all(),
            SyncKind::Range => file.handle.sync_range(range.clone()),
        };
        if let Err(error) = result {
            assert_may_fail(&error);
            return;
        }
        // After a sync that succeeded, these bytes are in the store.
        let synced = match kind {
            SyncKind::Range => range,
            SyncKind::Data | SyncKind::All => 0..file.len(),
        };
        let stored = file.store.inner().to_vec();
        let end = synced.end.min(file.len()) as usize;
        for at in synced.start as usize..end {
            // Past the store's end nothing was written yet, and bytes read as zero.
            let byte = stored.get(at).copied().unwrap_or(0);
            assert_eq!(byte, file.bytes[at], "byte {at} was synced");
        }
    }
}
