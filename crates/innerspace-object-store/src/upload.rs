//! [`NewObject`]: a new object, collected in a file on local disk, and uploaded by a sync.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::path::Path as FilePath;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use innerspace::store::{
    Accepted, FileAccess, FileOptions, FileStore, Limits, Store, SyncWhat, read_exact_or_eof,
};
use object_store::path::Path;
use object_store::retry::{RetryContext, RetryFailure, RetryPolicy};
use object_store::{
    MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions,
    PutPayload, UpdateVersion,
};

use crate::error::{Failure, Reason, RemoteError};
use crate::file::{RemoteOptions, shown_name};
use crate::limit::Limits as RequestLimits;
use crate::runtime::Runtime;
use crate::url::{self, Target};

/// The largest object that is uploaded with one request.
const SINGLE: u64 = 16 << 20;
/// The least size of a part, and how many of them may be in flight.
const PART: u64 = 8 << 20;
const PARTS_IN_FLIGHT: usize = 4;
/// S3 has at most 10,000 parts.
const MOST_PARTS: u64 = 9_000;

/// What a new object may replace.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Replace {
    /// Nothing: it is an error if there is an object with this name.
    Nothing,
    /// Only the version with this entity tag.
    Tag(String),
    /// Whatever is there.
    Any,
}

/// A new object, which begins empty, is written in any order, and exists once a sync has succeeded.
///
/// Its bytes are collected in a file without a name, in a folder of the program's choice. A sync
/// uploads all of them: up to 16 MiB with one request, which the server makes conditional; more by
/// a multipart upload. **A failed sync leaves the old object as it was, and the new bytes where
/// they are**; the next sync uploads them again. The bytes are gone if the process ends before a
/// sync has succeeded. Parts of an existing object cannot be changed.
///
/// After a sync the file may be written further. The next sync replaces the object, on the
/// condition that it is still the one that was written here.
///
/// **The condition of a multipart upload** is checked by a request of its own right before the
/// upload is completed, since the client has no conditional form of it. Another program may write
/// the object in between; one of the two objects then replaces the other.
///
/// An upload takes up to four parts of memory, 32 MiB for objects below 70 GiB.
///
/// ```
/// use innerspace::{MIB, Memory};
/// use innerspace::file::FileAccess;
/// use innerspace_object_store::{NewObject, ObjectStoreFile, Replace};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let staging = folder.path();
/// # let url = format!("file://{}", folder.path().join("new").display());
/// let memory = Memory::with_limit(8 * MIB)?;
/// let object = NewObject::create(&url, Replace::Nothing, staging, ObjectStoreFile::options())?;
/// let file = memory.file_options().access(FileAccess::ReadWrite).open_store(object)?;
/// file.write_at(b"hello", 0)?;
/// file.sync_all()?; // now it exists
/// # assert_eq!(std::fs::read(folder.path().join("new"))?, b"hello");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct NewObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
    url: String,
    runtime: Runtime,
    limits: RequestLimits,
    options: RemoteOptions,
    staging: FileStore,
    /// Shared by writes; exclusive during an upload, which thus sees one state of the file.
    gate: RwLock<()>,
    /// What the next upload may replace.
    replace: Mutex<Replace>,
    /// Whether the file has bytes that the object lacks.
    is_dirty: AtomicBool,
}

impl NewObject {
    /// Begins a new object at a URL. Nothing is asked of the server. `staging` is a folder on a
    /// local disk with room for the object.
    ///
    /// # Errors
    /// [`RemoteError::Url`], [`RemoteError::Settings`], and [`RemoteError::Write`] with
    /// [`Reason::Staging`].
    pub fn create(
        url: &str,
        replace: Replace,
        staging: impl AsRef<FilePath>,
        options: RemoteOptions,
    ) -> Result<NewObject, RemoteError> {
        let Target { store, path, shown } = url::target(url)?;
        NewObject::begin(store, path, shown, replace, staging.as_ref(), options)
    }

    /// Begins a new object of a client that the program has made.
    ///
    /// # Errors
    /// [`RemoteError::Settings`], and [`RemoteError::Write`] with [`Reason::Staging`].
    pub fn create_on(
        store: Arc<dyn ObjectStore>,
        path: &Path,
        replace: Replace,
        staging: impl AsRef<FilePath>,
        options: RemoteOptions,
    ) -> Result<NewObject, RemoteError> {
        let shown = shown_name(&*store, path);
        NewObject::begin(
            store,
            path.clone(),
            shown,
            replace,
            staging.as_ref(),
            options,
        )
    }

    fn begin(
        store: Arc<dyn ObjectStore>,
        path: Path,
        url: String,
        replace: Replace,
        folder: &FilePath,
        options: RemoteOptions,
    ) -> Result<NewObject, RemoteError> {
        let (runtime, limits) = options.runtime_and_limits(&url)?;
        let staging = tempfile::tempfile_in(folder)
            .map_err(|error| error.to_string())
            .and_then(|file| staging_store(file).map_err(|error| error.to_string()))
            .map_err(|detail| RemoteError::Write {
                url: url.clone(),
                reason: Reason::Staging {
                    detail: format!("{}: {detail}", folder.display()),
                },
            })?;
        Ok(NewObject {
            store,
            path,
            url,
            runtime,
            limits,
            options,
            staging,
            gate: RwLock::new(()),
            replace: Mutex::new(replace),
            is_dirty: AtomicBool::new(true),
        })
    }

    /// Makes a change of the staging file, while no upload reads it.
    fn change<T>(&self, change: impl FnOnce(&FileStore) -> io::Result<T>) -> io::Result<T> {
        let _shared = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        // This comes first: a change that fails may have changed something.
        self.is_dirty.store(true, Ordering::Relaxed);
        change(&self.staging)
    }

    fn read_part(&self, offset: u64, len: u64) -> Result<PutPayload, Reason> {
        let staging = |error: io::Error| Reason::Staging {
            detail: error.to_string(),
        };
        let mut bytes = vec![0; len as usize];
        let got = read_exact_or_eof(&self.staging, &mut bytes, offset).map_err(staging)?;
        match got as u64 == len {
            true => Ok(PutPayload::from(bytes)),
            false => Err(staging(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Uploads the file, and returns the tag of the new object. The caller has the gate.
    async fn upload(&self, replace: &Replace) -> Result<Option<String>, Reason> {
        let len = self.staging.len().map_err(|error| Reason::Staging {
            detail: error.to_string(),
        })?;
        let _permits = self.limits.acquire().await;
        let tag = match len <= SINGLE {
            true => self.put(len, replace).await?,
            false => self.put_parts(len, replace).await?,
        };
        self.limits.count(|counters| &counters.bytes_written, len);
        Ok(tag)
    }

    /// Uploads a small object with one conditional request. It is repeated if the server refused it
    /// because of its load. If the answer is lost, the object may be there, and a repeated
    /// condition would fail: the caller has to decide what to do then.
    async fn put(&self, len: u64, replace: &Replace) -> Result<Option<String>, Reason> {
        let payload = self.read_part(0, len)?;
        let patience = &self.options.patience;
        let mut pause = patience.first_pause;
        let mut failures = 0;
        loop {
            let options = PutOptions::from(match replace {
                Replace::Nothing => PutMode::Create,
                Replace::Any => PutMode::Overwrite,
                Replace::Tag(tag) => PutMode::Update(UpdateVersion {
                    e_tag: Some(tag.clone()),
                    version: None,
                }),
            });
            self.limits.count(|counters| &counters.requests, 1);
            let put = self.store.put_opts(&self.path, payload.clone(), options);
            let failure = match tokio::time::timeout(patience.deadline, put).await {
                Ok(Ok(result)) => return Ok(result.e_tag),
                Ok(Err(error)) => Failure::of(&error, false),
                Err(_) => Failure::Final(Reason::TimedOut {
                    after: patience.deadline,
                }),
            };
            let may_repeat = matches!(failure, Failure::Again(Reason::Failing { .. }))
                || (matches!(failure, Failure::Again(_)) && *replace == Replace::Any);
            failures += 1;
            if !may_repeat || failures > patience.retries {
                return Err(failure.reason());
            }
            self.limits.count(|counters| &counters.retries, 1);
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(Duration::from_secs(5));
        }
    }

    async fn put_parts(&self, len: u64, replace: &Replace) -> Result<Option<String>, Reason> {
        let retry = PutMultipartOptions::default().with_retry_policy(Arc::new(PartRetry {
            retries: self.options.patience.retries,
            first_pause: self.options.patience.first_pause,
        }));
        let begun = self.store.put_multipart_opts(&self.path, retry).await;
        let mut upload = begun.map_err(|error| Failure::of(&error, false).reason())?;
        let done = self.fill_parts(&mut *upload, len, replace).await;
        if done.is_err() {
            // What is left on the server then has to be collected by the server.
            let _ = upload.abort().await;
        }
        done
    }

    async fn fill_parts(
        &self,
        upload: &mut dyn MultipartUpload,
        len: u64,
        replace: &Replace,
    ) -> Result<Option<String>, Reason> {
        let failed = |error: object_store::Error| Failure::of(&error, false).reason();
        let part = PART.max(len.div_ceil(MOST_PARTS).next_multiple_of(1 << 20));
        let mut in_flight = FuturesUnordered::new();
        let mut at = 0;
        while at < len {
            if in_flight.len() == PARTS_IN_FLIGHT {
                let done: Option<object_store::Result<()>> = in_flight.next().await;
                done.transpose().map_err(failed)?;
            }
            let step = part.min(len - at);
            self.limits.count(|counters| &counters.requests, 1);
            in_flight.push(upload.put_part(self.read_part(at, step)?));
            at += step;
        }
        while let Some(done) = in_flight.next().await {
            done.map_err(failed)?;
        }
        drop(in_flight);
        self.check_condition(replace).await?;
        let result = upload.complete().await.map_err(failed)?;
        Ok(result.e_tag)
    }

    /// Checks by a request of its own whether the object may be replaced.
    async fn check_condition(&self, replace: &Replace) -> Result<(), Reason> {
        if *replace == Replace::Any {
            return Ok(());
        }
        let present = match self.store.head(&self.path).await {
            Ok(meta) => Some(meta.e_tag),
            Err(object_store::Error::NotFound { .. }) => None,
            Err(error) => return Err(Failure::of(&error, false).reason()),
        };
        match (replace, present) {
            (Replace::Nothing, None) | (Replace::Any, _) => Ok(()),
            (Replace::Nothing, Some(_)) => Err(Reason::Exists),
            (Replace::Tag(tag), Some(Some(present))) if *tag == present => Ok(()),
            (Replace::Tag(_), _) => Err(Reason::Changed),
        }
    }
}

fn staging_store(file: File) -> Result<FileStore, innerspace::store::FileOpenError> {
    FileOptions::new()
        .access(FileAccess::ReadWrite)
        .open_file(file)
}

/// Repeats parts of an upload that failed on the way, or on a busy server.
#[derive(Debug)]
struct PartRetry {
    retries: u32,
    first_pause: Duration,
}

#[async_trait::async_trait]
impl RetryPolicy for PartRetry {
    async fn retry(&self, context: RetryContext) -> bool {
        let is_transient = match context.failure {
            RetryFailure::Status(status) => {
                status.is_server_error() || status.as_u16() == 429 || status.as_u16() == 408
            }
            RetryFailure::Transport(_) => true,
            _ => false,
        };
        if !is_transient || context.attempt > self.retries as usize {
            return false;
        }
        let pause = self
            .first_pause
            .saturating_mul(2_u32.saturating_pow(context.attempt as u32 - 1));
        tokio::time::sleep(pause.min(Duration::from_secs(5))).await;
        true
    }
}

impl Store for NewObject {
    fn len(&self) -> io::Result<u64> {
        self.staging.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.staging.read_at(buf, offset)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.staging.read_vectored_at(bufs, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        self.change(|staging| staging.write_at(buf, offset))
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.change(|staging| staging.write_vectored_at(bufs, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|staging| staging.set_len(len))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(|staging| staging.punch(offset, len))
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.staging.next_data(offset)
    }

    fn next_hole(&self, offset: u64) -> io::Result<u64> {
        self.staging.next_hole(offset)
    }

    /// Uploads the file, if it has changed since the last upload.
    fn sync(&self, _what: SyncWhat) -> io::Result<()> {
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if !self.is_dirty.load(Ordering::Relaxed) {
            return Ok(());
        }
        let replace = self
            .replace
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let tag = self.runtime.wait(self.upload(&replace))?;
        self.is_dirty.store(false, Ordering::Relaxed);
        let next = match tag {
            Some(tag) => Replace::Tag(tag),
            // A server without tags cannot tell its versions apart.
            None => Replace::Any,
        };
        *self.replace.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    /// The staging file keeps what a failed upload could not bring to the server.
    fn accepted(&self) -> Accepted {
        Accepted::Kept
    }

    fn limits(&self) -> Limits {
        self.staging.limits()
    }

    fn writable(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        self.url.clone()
    }
}
