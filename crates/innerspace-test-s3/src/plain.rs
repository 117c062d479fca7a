//! A web server on loopback with files that cannot be changed, for clients other than S3's: for
//! HTTP, with TLS or without, and for Google Cloud Storage and Azure, whose reads are plain ones if
//! they are not signed.
//!
//! Its certificate and key were made for these tests, and protect nothing:
//!
//! ```text
//! openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 \
//!   -keyout key.pem -out certificate.pem -subj '/CN=a test on loopback' \
//!   -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE
//! ```

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED};
use hyper::header::{IF_MATCH, RANGE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use crate::front::{Body, full};

/// The certificate of servers with TLS, to be trusted by their clients (`SSL_CERT_FILE`).
pub const CERTIFICATE: &str = include_str!("../tls/certificate.pem");
const KEY: &str = include_str!("../tls/key.pem");

type Files = Arc<HashMap<String, Bytes>>;

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct PlainServer {
    address: SocketAddr,
    scheme: &'static str,
    runtime: Option<Runtime>,
}

impl PlainServer {
    /// Serves files by their paths, such as `/bucket/key`.
    ///
    /// # Panics
    /// If the system refuses a port or a thread.
    pub fn start(files: impl IntoIterator<Item = (String, Bytes)>) -> PlainServer {
        PlainServer::start_with(files, None)
    }

    /// Serves files by their paths, with TLS and the [`CERTIFICATE`].
    ///
    /// # Panics
    /// If the system refuses a port or a thread.
    pub fn start_tls(files: impl IntoIterator<Item = (String, Bytes)>) -> PlainServer {
        let certificate = CertificateDer::from_pem_slice(CERTIFICATE.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the versions of TLS")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.expect("a certificate")], key)
            .expect("the key of the certificate");
        PlainServer::start_with(files, Some(TlsAcceptor::from(Arc::new(config))))
    }

    fn start_with(
        files: impl IntoIterator<Item = (String, Bytes)>,
        tls: Option<TlsAcceptor>,
    ) -> PlainServer {
        let files: Files = Arc::new(files.into_iter().collect());
        let scheme = if tls.is_some() { "https" } else { "http" };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a thread for the server");
        let listener = runtime
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .expect("a port on loopback");
        let address = listener.local_addr().expect("the port's number");
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (files, tls) = (files.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(socket, &files).await,
                        // A client that does not trust the server goes away.
                        Some(tls) => {
                            if let Ok(socket) = tls.accept(socket).await {
                                serve(socket, &files).await;
                            }
                        }
                    }
                });
            }
        });
        PlainServer {
            address,
            scheme,
            runtime: Some(runtime),
        }
    }

    /// Returns the server's address, as `http://127.0.0.1:PORT`, or `https://` with TLS.
    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }
}

/// Serves one connection.
async fn serve(socket: impl AsyncRead + AsyncWrite + Unpin, files: &Files) {
    let answered = |request: Request<Incoming>| {
        let answer = answer(files, &request);
        async move { Ok::<_, Infallible>(answer) }
    };
    let connection = hyper::server::conn::http1::Builder::new();
    // A client that goes away does not count as a fault.
    let _ = connection
        .serve_connection(TokioIo::new(socket), service_fn(answered))
        .await;
}

impl Drop for PlainServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

const TAG: &str = "\"one\"";

fn answer(files: &HashMap<String, Bytes>, request: &Request<Incoming>) -> Response<Body> {
    let Some(bytes) = files.get(request.uri().path()) else {
        return status(StatusCode::NOT_FOUND);
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return status(StatusCode::METHOD_NOT_ALLOWED);
    }
    let header = |name| {
        request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    if header(IF_MATCH).is_some_and(|tag| tag != TAG) {
        return status(StatusCode::PRECONDITION_FAILED);
    }
    // Azure has a name of its own for it.
    let range = header(RANGE).or_else(|| request.headers().get("x-ms-range")?.to_str().ok());
    let range = range.and_then(|range| {
        let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
        let end = end.parse::<usize>().ok()?.min(bytes.len().checked_sub(1)?);
        Some((start.parse::<usize>().ok()?, end))
    });
    let mut response = match range {
        None => Response::new(bytes.clone()),
        Some((start, end)) if start <= end => {
            let mut response = Response::new(bytes.slice(start..=end));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let range = format!("bytes {start}-{end}/{}", bytes.len());
            let headers = response.headers_mut();
            headers.insert(CONTENT_RANGE, range.parse().expect("a header's value"));
            response
        }
        Some(_) => return status(StatusCode::RANGE_NOT_SATISFIABLE),
    };
    let len = response.body().len();
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, len.into());
    headers.insert(ETAG, TAG.parse().expect("a header's value"));
    headers.insert(ACCEPT_RANGES, "bytes".parse().expect("a header's value"));
    let time = "Fri, 01 Nov 2024 12:00:00 GMT";
    headers.insert(LAST_MODIFIED, time.parse().expect("a header's value"));
    response.map(full)
}

fn status(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    response
}
