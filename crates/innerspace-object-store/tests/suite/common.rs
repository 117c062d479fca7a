//! What the tests share: bytes that say where they belong, and files of the test's server.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use innerspace::store::{Store, Version};
use innerspace_object_store::{ObjectStoreFile, RemoteOptions};
use innerspace_test_s3::S3Server;

/// Returns the byte at an offset of a version: neighbours, blocks and versions all differ.
pub(crate) fn byte(version: u64, offset: u64) -> u8 {
    let mixed = (offset / 8 + version * 1_000_003).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> (8 * (offset % 7))) as u8
}

pub(crate) fn bytes(version: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| byte(version, at)).collect()
}

/// Short pauses and deadlines.
pub(crate) fn quick() -> RemoteOptions {
    ObjectStoreFile::options()
        .first_pause(Duration::from_millis(2))
        .stall_timeout(Duration::from_millis(300))
        .deadline(Duration::from_secs(3))
        .retries(4)
}

pub(crate) fn open(server: &S3Server, key: &str) -> ObjectStoreFile {
    quick().open_on(server.client(), &key.into()).unwrap()
}

pub(crate) fn read(store: &impl Store, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let got = innerspace::store::read_exact_or_eof(store, &mut bytes, offset)?;
    bytes.truncate(got);
    Ok(bytes)
}

/// A store of computed bytes, with a version, which counts what is read.
#[derive(Clone, Debug)]
pub(crate) struct Computed {
    pub(crate) name: &'static str,
    pub(crate) version: Option<u64>,
    pub(crate) pattern: u64,
    pub(crate) len: u64,
    pub(crate) read: Arc<AtomicU64>,
}

impl Computed {
    pub(crate) fn new(version: u64, len: u64) -> Computed {
        Computed {
            name: "computed",
            version: Some(version),
            pattern: version,
            len,
            read: Arc::default(),
        }
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

impl Store for Computed {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        for (at, to) in (offset..).zip(&mut buf[..len]) {
            *to = byte(self.pattern, at);
        }
        self.read.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }

    fn version(&self) -> io::Result<Option<Version>> {
        Ok(self.version.map(Version::new))
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }
}
