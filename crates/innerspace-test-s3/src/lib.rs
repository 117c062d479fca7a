//! An S3 server on loopback, for tests and benchmarks: `s3s-fs`, behind a front that makes faults
//! on request.
//!
//! The front is an HTTP server of this process. It passes each request on to `s3s-fs`, after a
//! delay if one was set, and answers with a [`Fault`] instead where one was ordered. It counts the
//! requests, and notes the greatest number that were in flight at the same time.
//!
//! `s3s-fs` does not look at `If-Match` of a GET. The front does it as S3 does: it answers 412 if
//! the entity tag differs. [`S3Server::ignore_conditions`] turns that off, for servers that ignore
//! conditions.
//!
//! The same front stands before any other S3 server if `INNERSPACE_TEST_S3` has its address, as
//! `http://127.0.0.1:7070`. That server must run on this machine, know the key `test-key` with the
//! secret `test-secret-that-nobody-may-print`, and have a bucket named `bucket`, which is emptied
//! for each test. Tests then have to run one at a time.

mod behind;
mod front;
mod plain;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use http_body_util::BodyExt;
use hyper::Request;
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsAuthorizer, AwsCredential};
use object_store::client::HttpRequestBody;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use behind::Behind;
use front::{Cause, Front};
pub use front::{Fault, On};
pub use plain::{CERTIFICATE, PlainServer};

/// The bucket that every server has.
pub const BUCKET: &str = "bucket";
const KEY: &str = "test-key";
const SECRET: &str = "test-secret-that-nobody-may-print";
/// The variable with the address of another server.
const OTHER: &str = "INNERSPACE_TEST_S3";
/// Whether the one bucket of the other server is in use.
static OTHER_IN_USE: AtomicBool = AtomicBool::new(false);

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    folder: tempfile::TempDir,
    front: Arc<Front>,
    runtime: Option<Runtime>,
    /// Another server than `s3s-fs`, and the uploads that it had under way at the start.
    other: Option<SocketAddr>,
    parts_before: usize,
}

impl S3Server {
    /// Starts a server with one empty bucket, [`BUCKET`].
    ///
    /// # Panics
    /// If the system refuses a folder, a port or a thread.
    pub fn start() -> S3Server {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join(BUCKET)).expect("a folder for the bucket");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("test-s3")
            .enable_all()
            .build()
            .expect("threads for the server");
        let other = std::env::var(OTHER).ok().map(|url| {
            let address = url.strip_prefix("http://").unwrap_or(&url);
            let address: SocketAddr = address.parse().expect("http://ADDRESS:PORT");
            assert!(
                !OTHER_IN_USE.swap(true, Ordering::SeqCst),
                "another test uses {url}: add --test-threads=1"
            );
            address
        });
        let behind = match other {
            Some(address) => Behind::Running(address),
            None => {
                let files = s3s_fs::FileSystem::new(folder.path()).expect("a server on the folder");
                let mut builder = S3ServiceBuilder::new(files);
                builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
                Behind::Files(builder.build())
            }
        };
        let front = Arc::new(Front::new(behind));
        let listener = runtime
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .expect("a port on loopback");
        let address = listener.local_addr().expect("the port's number");
        runtime.spawn(front::serve(front.clone(), listener));
        let mut server = S3Server {
            address,
            folder,
            front,
            runtime: Some(runtime),
            other,
            parts_before: 0,
        };
        if server.other.is_some() {
            server.empty();
            server.parts_before = server.parts();
        }
        server
    }

    /// Whether the server is `s3s-fs`, and no other one.
    pub fn is_ours(&self) -> bool {
        self.other.is_none()
    }

    /// Deletes all objects.
    fn empty(&self) {
        let client = self.client();
        let emptied = self.quietly(async move {
            let all: Vec<_> = client.list(None).try_collect().await?;
            for object in all {
                client.delete(&object.location).await?;
            }
            Ok::<(), object_store::Error>(())
        });
        emptied.expect("a bucket that can be emptied");
    }

    /// Returns the number of multipart uploads that the other server has under way.
    fn parts(&self) -> usize {
        let address = self.other.expect("another server");
        let url = format!("http://{address}/{BUCKET}?uploads");
        let mut request = Request::get(url)
            .body(HttpRequestBody::from(Bytes::new()))
            .expect("a request");
        let credential = AwsCredential {
            key_id: KEY.to_owned(),
            secret_key: SECRET.to_owned(),
            token: None,
        };
        AwsAuthorizer::new(&credential, "s3", "us-east-1")
            .try_authorize(&mut request, None)
            .expect("a request that can be signed");
        let path = request.uri().path_and_query().cloned();
        let mut request = request.map(|_| Bytes::new());
        *request.uri_mut() = path.expect("a path").into();
        let host = address.to_string().parse().expect("a header's value");
        request.headers_mut().insert("host", host);
        let listed = self.quietly(async move {
            let answer = Behind::Running(address).answer(request).await?;
            Ok::<_, Cause>(answer.into_body().collect().await?.to_bytes())
        });
        let listed = String::from_utf8_lossy(&listed.expect("a list of uploads")).into_owned();
        assert!(listed.contains("ListMultipartUploadsResult"), "{listed}");
        listed.matches("<UploadId>").count()
    }

    /// Returns the server's address, as `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the environment through which the usual clients find the server.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT", self.endpoint()),
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    /// Returns the secret key, which must never be printed.
    pub fn secret(&self) -> &'static str {
        SECRET
    }

    /// Returns a client's settings for the bucket. The client itself retries nothing.
    pub fn client_builder(&self) -> AmazonS3Builder {
        // A second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        AmazonS3Builder::new()
            .with_endpoint(self.endpoint())
            .with_allow_http(true)
            .with_bucket_name(BUCKET)
            .with_region("us-east-1")
            .with_access_key_id(KEY)
            .with_secret_access_key(SECRET)
            .with_retry(object_store::RetryConfig {
                max_retries: 0,
                ..Default::default()
            })
    }

    /// Returns a client for the bucket, which retries nothing.
    ///
    /// # Panics
    /// If the client cannot be made.
    pub fn client(&self) -> Arc<AmazonS3> {
        Arc::new(self.client_builder().build().expect("a client"))
    }

    /// Puts an object, past all faults.
    ///
    /// # Panics
    /// If the server refuses it.
    pub fn put(&self, key: &str, bytes: impl Into<bytes::Bytes>) {
        let (client, path, bytes) = (self.client(), Path::from(key), bytes.into());
        self.quietly(async move { client.put(&path, bytes.into()).await })
            .expect("an object that is put");
    }

    /// Returns an object's bytes, past all faults, or `None` if there is no such object.
    ///
    /// # Panics
    /// If the server refuses to read it.
    pub fn get(&self, key: &str) -> Option<bytes::Bytes> {
        let (client, path) = (self.client(), Path::from(key));
        let got = self.quietly(async move { client.get(&path).await?.bytes().await });
        match got {
            Ok(bytes) => Some(bytes),
            Err(object_store::Error::NotFound { .. }) => None,
            Err(error) => panic!("{key}: {error}"),
        }
    }

    /// Deletes an object, past all faults.
    ///
    /// # Panics
    /// If the server refuses to.
    pub fn delete(&self, key: &str) {
        let (client, path) = (self.client(), Path::from(key));
        self.quietly(async move { client.delete(&path).await })
            .expect("an object that is deleted");
    }

    /// Returns the multipart uploads that were begun, and neither completed nor aborted.
    ///
    /// # Panics
    /// If the folder cannot be read.
    pub fn parts_left(&self) -> usize {
        if self.other.is_some() {
            return self.parts() - self.parts_before;
        }
        let entries = std::fs::read_dir(self.folder.path()).expect("the server's folder");
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with(".upload"))
            .count()
    }

    /// Returns the folder of the bucket's objects, which only `s3s-fs` fills.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().join(BUCKET)
    }

    /// Runs a call on the server's threads, without faults and without being counted.
    fn quietly<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = self.runtime.as_ref().expect("it runs");
        let (send, receive) = std::sync::mpsc::channel();
        self.front.quiet.fetch_add(1, Ordering::SeqCst);
        runtime.spawn(async move { send.send(call.await) });
        let result = receive.recv().expect("the call ends");
        self.front.quiet.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Orders a fault for the next request of a kind. Orders of one kind are served in turn.
    pub fn inject(&self, on: On, fault: Fault) {
        self.front.order(on, fault, Some(1));
    }

    /// Orders a fault for all requests of a kind from now on, until [`S3Server::heal`].
    pub fn inject_always(&self, on: On, fault: Fault) {
        self.front.order(on, fault, None);
    }

    /// Forgets all faults that were ordered.
    pub fn heal(&self) {
        self.front.heal();
    }

    /// Adds a delay to every request.
    pub fn set_delay(&self, delay: Duration) {
        let micros = delay.as_micros() as u64;
        self.front.delay_micros.store(micros, Ordering::SeqCst);
    }

    /// Chooses whether `If-Match` is ignored, and with it the header's promise.
    pub fn ignore_conditions(&self, ignore: bool) {
        self.front.ignore_conditions.store(ignore, Ordering::SeqCst);
    }

    /// Chooses whether objects have no entity tags. Such a server's times are finer than those of
    /// its answers.
    pub fn leave_tags_out(&self, leave_out: bool) {
        self.front.without_tags.store(leave_out, Ordering::SeqCst);
    }

    /// Returns how many requests came so far, or since [`S3Server::forget_counts`].
    pub fn requests(&self) -> u64 {
        self.front.requests.load(Ordering::SeqCst)
    }

    /// Returns the greatest number of requests that were in flight at the same time.
    pub fn most_in_flight(&self) -> u64 {
        self.front.most_in_flight.load(Ordering::SeqCst)
    }

    /// Sets both counts to 0.
    pub fn forget_counts(&self) {
        self.front.requests.store(0, Ordering::SeqCst);
        self.front.most_in_flight.store(0, Ordering::SeqCst);
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        if self.other.is_some() {
            OTHER_IN_USE.store(false, Ordering::SeqCst);
        }
    }
}
