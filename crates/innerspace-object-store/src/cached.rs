//! [`CachedObjectStore`]: an object store whose reads go through a memory's cache.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use innerspace::file::FileError;
use innerspace::{Memory, PagedFile};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, RenameOptions, Result, UploadPart,
};

use crate::file::{ObjectStoreFile, RemoteOptions};
use crate::tier::Tier;

/// The pieces in which the body of a long read is delivered.
const PIECE: u64 = 1 << 20;
/// The most objects that are kept open.
const MOST_OPEN: usize = 256;

/// An [`ObjectStore`] whose reads go through the cache of a [`Memory`], for everything that takes
/// one of version 0.14 (DataFusion 55 does not: it takes one of version 0.13).
///
/// The memory's limit holds for what is cached. What a read returns is a copy, and the caller's
/// memory, as it is with every object store. Writes, copies, deletions and lists go to the store
/// behind. So do reads of an old version by its id.
///
/// **Freshness.** An object that was read is assumed to be unchanged for 5 seconds
/// ([`revalidate_after`](CachedObjectStore::revalidate_after)). After that, the next read asks for
/// its metadata, and reads the new version if there is one. A change through this store is seen at
/// once. One read returns bytes of one version; a read that finds its version replaced begins
/// again, once.
///
/// ```
/// use std::sync::Arc;
/// use innerspace::{MIB, Memory};
/// use innerspace_object_store::CachedObjectStore;
/// use innerspace_object_store::object_store::{ObjectStore, ObjectStoreExt, memory::InMemory};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new()); // AmazonS3, for example
/// let store = Arc::new(CachedObjectStore::new(&Memory::with_limit(64 * MIB)?, store));
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// # runtime.block_on(async {
/// store.put(&"key".into(), "hello, world".into()).await?;
/// assert_eq!(store.get_range(&"key".into(), 7..12).await?, "world");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok(()) }
/// ```
pub struct CachedObjectStore {
    shared: Arc<Shared>,
}

struct Shared {
    store: Arc<dyn ObjectStore>,
    memory: Memory,
    tier: Option<Tier>,
    options: RemoteOptions,
    revalidate_after: Duration,
    open: Mutex<Opened>,
}

#[derive(Default)]
struct Opened {
    objects: HashMap<Path, Object>,
    /// The number of uses so far.
    clock: u64,
}

/// An object that is open.
#[derive(Clone)]
struct Object {
    file: PagedFile,
    meta: ObjectMeta,
    /// When the server was last asked for it.
    checked: Instant,
    /// The clock at the last use.
    used: u64,
}

impl CachedObjectStore {
    /// Caches the reads of a store in a memory.
    pub fn new(memory: &Memory, store: Arc<dyn ObjectStore>) -> CachedObjectStore {
        CachedObjectStore {
            shared: Arc::new(Shared {
                store,
                memory: memory.clone(),
                tier: None,
                options: RemoteOptions::default(),
                revalidate_after: Duration::from_secs(5),
                open: Mutex::default(),
            }),
        }
    }

    /// Changes a choice of a store that is not in use yet.
    fn with(self, choose: impl FnOnce(&mut Shared)) -> CachedObjectStore {
        let shared = self.shared;
        let mut new = Shared {
            store: shared.store.clone(),
            memory: shared.memory.clone(),
            tier: shared.tier.clone(),
            options: shared.options.clone(),
            revalidate_after: shared.revalidate_after,
            open: Mutex::default(),
        };
        choose(&mut new);
        CachedObjectStore {
            shared: Arc::new(new),
        }
    }

    /// Puts a tier on local disk between the memory and the store.
    #[must_use]
    pub fn tier(self, tier: &Tier) -> CachedObjectStore {
        self.with(|shared| shared.tier = Some(tier.clone()))
    }

    /// Opens the objects with these choices.
    #[must_use]
    pub fn options(self, options: RemoteOptions) -> CachedObjectStore {
        self.with(|shared| shared.options = options)
    }

    /// Sets for how long an object is assumed to be unchanged. Zero asks the server before each
    /// read. Default: 5 seconds.
    #[must_use]
    pub fn revalidate_after(self, after: Duration) -> CachedObjectStore {
        self.with(|shared| shared.revalidate_after = after)
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Opened> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, path: &Path) {
        let object = self.open().objects.remove(path);
        // Closing a file is not done under the mutex.
        drop(object);
    }

    /// Finds an object that was checked lately.
    fn fresh(&self, path: &Path) -> Option<Object> {
        let mut open = self.open();
        open.clock += 1;
        let now = open.clock;
        let object = open.objects.get_mut(path)?;
        object.used = now;
        (object.checked.elapsed() < self.revalidate_after).then(|| object.clone())
    }

    /// Returns the object as it is now, or was a moment ago.
    async fn object(&self, path: &Path) -> Result<Object> {
        match self.fresh(path) {
            Some(object) => Ok(object),
            None => {
                let meta = self.store.head(path).await?;
                self.object_of(meta)
            }
        }
    }

    /// Returns the object for which the server has just returned this metadata.
    fn object_of(&self, meta: ObjectMeta) -> Result<Object> {
        let path = meta.location.clone();
        {
            let mut open = self.open();
            if let Some(object) = open.objects.get_mut(&path)
                && is_same(&object.meta, &meta)
            {
                object.checked = Instant::now();
                return Ok(object.clone());
            }
        }
        let file = self.open_file(&meta)?;
        let mut open = self.open();
        open.clock += 1;
        let object = Object {
            file,
            meta,
            checked: Instant::now(),
            used: open.clock,
        };
        let mut closed = open.objects.insert(path, object.clone());
        if open.objects.len() > MOST_OPEN {
            let oldest = open.objects.iter().min_by_key(|(_, object)| object.used);
            let oldest = oldest.map(|(path, _)| path.clone());
            closed = closed.or(oldest.and_then(|path| open.objects.remove(&path)));
        }
        drop(open);
        drop(closed);
        Ok(object)
    }

    fn open_file(&self, meta: &ObjectMeta) -> Result<PagedFile> {
        let options = self.options.clone();
        let object: ObjectStoreFile = options
            .open_meta(self.store.clone(), meta.clone())
            .map_err(failed)?;
        let opener = self.memory.file_options();
        match &self.tier {
            Some(tier) => opener.open_store(tier.store(object).map_err(failed)?),
            None => opener.open_store(object),
        }
        .map_err(failed)
    }

    /// Reads ranges of one version.
    async fn read(&self, object: &Object, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let size = object.meta.size;
        let reads = ranges.iter().map(|range| {
            let range = clamp(range, size);
            async move { read_piece(&object.file, range?).await }
        });
        try_join_all(reads).await
    }
}

async fn read_piece(file: &PagedFile, range: Range<u64>) -> Result<Bytes> {
    let read = file.defer_shared::<_, FileError>(move |file| file.read_to_vec(range));
    read.await.map(Bytes::from).map_err(failed)
}

fn is_same(was: &ObjectMeta, now: &ObjectMeta) -> bool {
    was.size == now.size
        && was.e_tag == now.e_tag
        && was.version == now.version
        && (was.e_tag.is_some() || was.last_modified == now.last_modified)
}

/// Cuts a range at the end of the object.
fn clamp(range: &Range<u64>, size: u64) -> Result<Range<u64>> {
    match range.start < size && range.start < range.end {
        true => Ok(range.start..range.end.min(size)),
        false => Err(failed(format!(
            "no bytes from {} to {} in an object of {size}",
            range.start, range.end
        ))),
    }
}

fn failed(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic {
        store: "CachedObjectStore",
        source: cause.into(),
    }
}

#[async_trait::async_trait]
impl ObjectStore for CachedObjectStore {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let shared = &self.shared;
        if options.head || options.version.is_some() {
            return shared.store.get_opts(location, options).await;
        }
        let object = shared.object(location).await?;
        options.check_preconditions(&object.meta)?;
        let size = object.meta.size;
        let range = match &options.range {
            None => 0..size,
            Some(GetRange::Bounded(range)) => clamp(range, size)?,
            Some(GetRange::Offset(offset)) => clamp(&(*offset..size), size)?,
            Some(GetRange::Suffix(len)) => size.saturating_sub(*len)..size,
        };
        let (file, meta) = (object.file, object.meta);
        let (keeper, path) = (shared.clone(), location.clone());
        let pieces = stream::try_unfold(range.clone(), move |rest: Range<u64>| {
            let (file, keeper, path) = (file.clone(), keeper.clone(), path.clone());
            async move {
                if rest.is_empty() {
                    return Ok(None);
                }
                let middle = rest.end.min(rest.start + PIECE);
                match read_piece(&file, rest.start..middle).await {
                    Ok(bytes) => Ok(Some((bytes, middle..rest.end))),
                    Err(error) => {
                        // The next read opens the object anew.
                        keeper.forget(&path);
                        Err(error)
                    }
                }
            }
        });
        Ok(GetResult {
            payload: GetResultPayload::Stream(pieces.boxed()),
            meta,
            range,
            attributes: Default::default(),
            extensions: Default::default(),
        })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if ranges.is_empty() {
            return Ok(Vec::new());
        }
        let shared = &self.shared;
        let object = shared.object(location).await?;
        match shared.read(&object, ranges).await {
            Ok(bytes) => Ok(bytes),
            // Perhaps another version is there by now.
            Err(error) => {
                shared.forget(location);
                let now = shared.object(location).await?;
                match is_same(&now.meta, &object.meta) {
                    true => Err(error),
                    false => shared.read(&now, ranges).await,
                }
            }
        }
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let done = self.shared.store.put_opts(location, payload, opts).await;
        self.shared.forget(location);
        done
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.shared.store.put_multipart_opts(location, opts).await?;
        Ok(Box::new(Upload {
            upload,
            shared: self.shared.clone(),
            path: location.clone(),
        }))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let shared = self.shared.clone();
        let forgotten = shared.clone();
        let locations = locations.inspect_ok(move |path| forgotten.forget(path));
        let deleted = self.shared.store.delete_stream(locations.boxed());
        deleted.inspect_ok(move |path| shared.forget(path)).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.shared.store.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.shared.store.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.shared.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let done = self.shared.store.copy_opts(from, to, options).await;
        self.shared.forget(to);
        done
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let done = self.shared.store.rename_opts(from, to, options).await;
        self.shared.forget(from);
        self.shared.forget(to);
        done
    }
}

/// An upload after which the object is opened anew.
struct Upload {
    upload: Box<dyn MultipartUpload>,
    shared: Arc<Shared>,
    path: Path,
}

#[async_trait::async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.upload.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let done = self.upload.complete().await;
        self.shared.forget(&self.path);
        done
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for CachedObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CachedObjectStore({})", self.shared.store)
    }
}

impl fmt::Debug for CachedObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CachedObjectStore")
            .field(&self.shared.store)
            .finish()
    }
}
