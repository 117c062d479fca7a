//! [`ObjectStoreFile`]: one version of one object as a store of the library.

use std::hash::Hasher;
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::time::Duration;

use innerspace::store::{Batch, Identity, Limits, Operation, Request, Store, StoreError, Version};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use twox_hash::XxHash3_64;

use crate::error::{Reason, RemoteError};
use crate::fetch::{Patience, Slices, Source};
use crate::limit::{self, RemoteStats, RequestLimit};
use crate::runtime::Runtime;
use crate::url::{self, Target};

const MIB: usize = 1 << 20;

/// One version of one object in S3, Google Cloud Storage, Azure, or on an HTTP server, to be opened
/// in a [`Memory`](innerspace::Memory).
///
/// Every read asks for the version that was opened. Once the object is replaced, a read fails with
/// [`StoreError::Changed`], and old and new bytes are never mixed. What is in the cache can still
/// be read.
///
/// A read that fails is repeated, from the first byte that is missing, until the
/// [deadline](RemoteOptions::deadline). Bodies are copied into the cache's memory as they arrive;
/// nothing is collected on the way.
///
/// The store is read-only. A new object is written by [`NewObject`](crate::NewObject).
///
/// ```
/// use innerspace::{MIB, Memory};
/// use innerspace_object_store::ObjectStoreFile;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data");
/// # std::fs::write(&path, b"hello, world")?;
/// # let url = format!("file://{}", path.display());
/// let memory = Memory::with_limit(8 * MIB)?;
/// let object = ObjectStoreFile::open(&url)?; // s3://bucket/key, for example
/// let file = memory.file_options().open_store(object)?;
/// assert_eq!(&file.view(0..5)?[..], b"hello");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ObjectStoreFile {
    source: Arc<Source>,
    runtime: Runtime,
    url: Arc<str>,
    preferred_size: usize,
}

/// Choices for opening objects: [`ObjectStoreFile::options`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RemoteOptions {
    pub(crate) runtime: Option<Runtime>,
    pub(crate) preferred_size: usize,
    pub(crate) requests: u32,
    pub(crate) limit: Option<RequestLimit>,
    pub(crate) patience: Patience,
}

impl Default for RemoteOptions {
    fn default() -> RemoteOptions {
        RemoteOptions {
            runtime: None,
            preferred_size: 4 * MIB,
            requests: 64,
            limit: None,
            patience: Patience {
                retries: 8,
                first_pause: Duration::from_millis(50),
                deadline: Duration::from_secs(60),
                stall: Duration::from_secs(10),
                hedge_after: None,
            },
        }
    }
}

impl RemoteOptions {
    /// Runs the client on this runtime. Default: one that all files of the process share.
    pub fn runtime(mut self, runtime: &Runtime) -> RemoteOptions {
        self.runtime = Some(runtime.clone());
        self
    }

    /// Sets the size in bytes up to which neighbouring blocks are requested together. Default: 4
    /// MiB. A file that is read in order has eight such requests in flight, as far as an eighth of
    /// the memory's limit has room for them; a single block is requested alone.
    pub fn preferred_size(mut self, bytes: usize) -> RemoteOptions {
        self.preferred_size = bytes.max(1);
        self
    }

    /// Sets how many requests the file may have in flight, at least one. Default: 64.
    pub fn requests(mut self, requests: u32) -> RemoteOptions {
        self.requests = requests.max(1);
        self
    }

    /// Shares a limit on requests in flight with all other files that are opened with it. Default:
    /// only the file's own.
    pub fn request_limit(mut self, limit: &RequestLimit) -> RemoteOptions {
        self.limit = Some(limit.clone());
        self
    }

    /// Sets how often in a row a request is repeated that fails without a byte. Default: 8. A
    /// request that fails after some bytes is continued, and the count begins again.
    pub fn retries(mut self, retries: u32) -> RemoteOptions {
        self.patience.retries = retries;
        self
    }

    /// Sets the pause before the first repetition. It doubles with each, up to 5 seconds, and a
    /// random part of up to half is taken off. Default: 50 ms.
    pub fn first_pause(mut self, pause: Duration) -> RemoteOptions {
        self.patience.first_pause = pause;
        self
    }

    /// Sets how long a read is tried in all, once it has its place in flight. Default: 60 s.
    pub fn deadline(mut self, deadline: Duration) -> RemoteOptions {
        self.patience.deadline = deadline;
        self
    }

    /// Sets how long an attempt waits for an answer, or for further bytes. Default: 10 s.
    pub fn stall_timeout(mut self, stall: Duration) -> RemoteOptions {
        self.patience.stall = stall;
        self
    }

    /// Makes a second request if the first is not answered within this time, and the limits leave
    /// room for it. The answer that comes first is taken. Default: never.
    pub fn hedge_after(mut self, after: Duration) -> RemoteOptions {
        self.patience.hedge_after = Some(after);
        self
    }

    /// Opens the present version of the object at a URL, with credentials from the environment.
    ///
    /// # Errors
    /// [`RemoteError::Url`], [`RemoteError::Settings`], and [`RemoteError::Open`] with the reason.
    pub fn open(self, url: &str) -> Result<ObjectStoreFile, RemoteError> {
        let Target { store, path, shown } = url::target(url)?;
        self.open_shown(store, &path, shown)
    }

    /// Opens the present version of an object of a client that the program has made. Its own
    /// retries come on top of this crate's; turn them off with
    /// [`RetryConfig`](object_store::RetryConfig). Before a client is made, its TLS needs
    /// [`install_tls`](crate::install_tls).
    ///
    /// # Errors
    /// [`RemoteError::Settings`], and [`RemoteError::Open`] with the reason.
    pub fn open_on(
        self,
        store: Arc<dyn ObjectStore>,
        path: &Path,
    ) -> Result<ObjectStoreFile, RemoteError> {
        let shown = shown_name(&*store, path);
        self.open_shown(store, path, shown)
    }

    fn open_shown(
        self,
        store: Arc<dyn ObjectStore>,
        path: &Path,
        url: String,
    ) -> Result<ObjectStoreFile, RemoteError> {
        let (runtime, limits) = self.runtime_and_limits(&url)?;
        let head = Source::head(&*store, path, &limits, &self.patience);
        match runtime.wait(head) {
            Ok(meta) => Ok(self.pinned(store, meta, runtime, limits, url)),
            Err(reason) => Err(RemoteError::Open { url, reason }),
        }
    }

    /// Opens the version that `meta` describes, without asking the server.
    pub(crate) fn open_meta(
        self,
        store: Arc<dyn ObjectStore>,
        meta: ObjectMeta,
    ) -> Result<ObjectStoreFile, RemoteError> {
        let url = shown_name(&*store, &meta.location);
        let (runtime, limits) = self.runtime_and_limits(&url)?;
        Ok(self.pinned(store, meta, runtime, limits, url))
    }

    pub(crate) fn runtime_and_limits(
        &self,
        url: &str,
    ) -> Result<(Runtime, limit::Limits), RemoteError> {
        let runtime = match &self.runtime {
            Some(runtime) => runtime.clone(),
            None => Runtime::shared().map_err(|error| RemoteError::Settings {
                url: url.to_owned(),
                problem: error.to_string(),
            })?,
        };
        let limits = limit::Limits {
            own: RequestLimit::new(self.requests),
            shared: self.limit.clone(),
        };
        Ok((runtime, limits))
    }

    fn pinned(
        self,
        store: Arc<dyn ObjectStore>,
        meta: ObjectMeta,
        runtime: Runtime,
        limits: limit::Limits,
        url: String,
    ) -> ObjectStoreFile {
        ObjectStoreFile {
            source: Arc::new(Source::new(store, meta, limits, self.patience)),
            runtime,
            url: url.into(),
            preferred_size: self.preferred_size,
        }
    }
}

/// Names an object of a client without a URL.
pub(crate) fn shown_name(store: &dyn ObjectStore, path: &Path) -> String {
    crate::error::one_line(&format!("{store}/{path}"))
}

impl ObjectStoreFile {
    /// Returns the default choices.
    pub fn options() -> RemoteOptions {
        RemoteOptions::default()
    }

    /// Opens the present version of the object at a URL, with credentials from the environment:
    /// `s3://`, `gs://`, `az://`, `https://`, `http://` or `file://`.
    ///
    /// # Errors
    /// [`RemoteError::Url`], [`RemoteError::Settings`], and [`RemoteError::Open`] with the reason.
    pub fn open(url: &str) -> Result<ObjectStoreFile, RemoteError> {
        ObjectStoreFile::options().open(url)
    }

    /// Returns the URL, without credentials.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the metadata of the version that was opened.
    pub fn meta(&self) -> &ObjectMeta {
        &self.source.meta
    }

    /// Returns what the file's requests have done so far.
    pub fn stats(&self) -> RemoteStats {
        self.source.limits.own.stats()
    }

    /// Returns how many of `wanted` bytes the object has at `offset`.
    fn bytes_at(&self, offset: u64, wanted: usize) -> usize {
        let left = self.source.meta.size.saturating_sub(offset);
        left.min(wanted as u64) as usize
    }

    /// Returns two numbers that only this version has.
    fn fingerprint(&self) -> [u64; 2] {
        let meta = &self.source.meta;
        [0, 1].map(|seed| {
            let mut hash = XxHash3_64::with_seed(seed);
            let text = format!(
                "{}\0{:?}\0{:?}\0{}\0{}",
                self.url, meta.e_tag, meta.version, meta.size, meta.last_modified
            );
            hash.write(text.as_bytes());
            hash.finish()
        })
    }
}

impl Store for ObjectStoreFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.source.meta.size)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_vectored_at(&mut [IoSliceMut::new(buf)], offset)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        let wanted = self.bytes_at(offset, wanted);
        if wanted == 0 {
            return Ok(0);
        }
        let mut slices = Slices::new(bufs, wanted);
        let fetch = self.source.fetch(offset, &mut slices);
        self.runtime.wait(fetch).map_err(io::Error::from)?;
        Ok(wanted)
    }

    fn identity(&self) -> Option<Identity> {
        Some(Identity::new("object", self.fingerprint()))
    }

    /// The version never changes: a read of any other one fails.
    fn version(&self) -> io::Result<Option<Version>> {
        Ok(Some(Version::new(self.fingerprint()[0])))
    }

    fn limits(&self) -> Limits {
        Limits::default()
            .requests(self.source.limits.own.requests())
            .preferred_size(self.preferred_size)
    }

    fn name(&self) -> String {
        self.url.to_string()
    }

    fn submit(&self, mut batch: Batch) {
        while let Some(request) = batch.take() {
            if request.operation() != Operation::Read {
                request.complete(Err(StoreError::ReadOnly.into()));
                continue;
            }
            let source = self.source.clone();
            self.runtime.spawn(async move {
                let (request, result) = fetch_request(&source, request).await;
                request.complete(result.map(|()| 0).map_err(io::Error::from));
            });
        }
    }
}

/// Fills a request as far as the object reaches.
async fn fetch_request(source: &Source, request: Request) -> (Request, Result<(), Reason>) {
    struct Clamped(Request, usize);

    impl crate::fetch::Sink for Clamped {
        fn wanted(&self) -> usize {
            self.1
        }

        fn filled(&self) -> usize {
            self.0.filled()
        }

        fn push(&mut self, bytes: &[u8]) {
            self.0.fill(bytes);
        }
    }

    let offset = request.offset();
    let left = source.meta.size.saturating_sub(offset);
    let wanted = left.min(request.len() as u64) as usize;
    if wanted == 0 {
        return (request, Ok(()));
    }
    let mut sink = Clamped(request, wanted);
    let result = source.fetch(offset, &mut sink).await;
    (sink.0, result)
}
