//! The front of the server: counts, delays, conditions and faults.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyDataStream, BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{
    CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_MATCH, IF_UNMODIFIED_SINCE, LAST_MODIFIED,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::behind::Behind;

/// A fault of one answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The answer is this status, and an error text as S3 has it. The server does nothing.
    Status(u16),
    /// The connection is cut after this many bytes of the body.
    CutAfter(usize),
    /// There is no answer, ever.
    Stall,
    /// After this many bytes of the body nothing follows, ever.
    StallAfter(usize),
    /// The answer has one byte fewer than was requested, and says so.
    Shorter,
    /// The answer is late by this many milliseconds.
    Late(u64),
    /// The server does what it was asked, and the connection is cut before the answer.
    CutAfterwards,
}

/// The requests that a fault is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum On {
    /// Reads of bytes.
    Get,
    /// Reads of metadata.
    Head,
    /// Puts of objects and of parts.
    Put,
    /// The beginning and the end of multipart uploads.
    Post,
    /// All requests.
    Any,
}

impl On {
    fn is(self, method: &Method) -> bool {
        match self {
            On::Get => method == Method::GET,
            On::Head => method == Method::HEAD,
            On::Put => method == Method::PUT,
            On::Post => method == Method::POST,
            On::Any => true,
        }
    }
}

pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Body = UnsyncBoxBody<Bytes, Cause>;

struct Order {
    on: On,
    fault: Fault,
    /// How often it is still to be made; `None` for ever.
    left: Option<u32>,
}

pub(crate) struct Front {
    behind: Behind,
    orders: Mutex<VecDeque<Order>>,
    pub(crate) delay_micros: AtomicU64,
    pub(crate) ignore_conditions: AtomicBool,
    pub(crate) without_tags: AtomicBool,
    pub(crate) requests: AtomicU64,
    in_flight: AtomicU64,
    pub(crate) most_in_flight: AtomicU64,
    /// The number of calls of the server's owner, for which there are no faults.
    pub(crate) quiet: AtomicU64,
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").finish_non_exhaustive()
    }
}

/// Counts a request as in flight until its body was sent, or was given up.
struct InFlight(Arc<Front>);

impl InFlight {
    fn new(front: &Arc<Front>) -> InFlight {
        let now = front.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        front.most_in_flight.fetch_max(now, Ordering::SeqCst);
        InFlight(front.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Front {
    pub(crate) fn new(behind: Behind) -> Front {
        Front {
            behind,
            orders: Mutex::default(),
            delay_micros: AtomicU64::new(0),
            ignore_conditions: AtomicBool::new(false),
            without_tags: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            most_in_flight: AtomicU64::new(0),
            quiet: AtomicU64::new(0),
        }
    }

    pub(crate) fn order(&self, on: On, fault: Fault, left: Option<u32>) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.push_back(Order { on, fault, left });
    }

    pub(crate) fn heal(&self) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.clear();
    }

    /// Takes the oldest fault that was ordered for such a request.
    fn fault_of(&self, method: &Method) -> Option<Fault> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let at = orders.iter().position(|order| order.on.is(method))?;
        let order = &mut orders[at];
        let fault = order.fault;
        match &mut order.left {
            Some(1) => drop(orders.remove(at)),
            Some(left) => *left -= 1,
            None => {}
        }
        Some(fault)
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Cause> {
        if self.quiet.load(Ordering::SeqCst) > 0 {
            return self.pass_on(request).await;
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        let in_flight = InFlight::new(&self);
        let delay = self.delay_micros.load(Ordering::SeqCst);
        if delay > 0 {
            tokio::time::sleep(Duration::from_micros(delay)).await;
        }
        let fault = self.fault_of(request.method());
        match fault {
            Some(Fault::Status(status)) => {
                // A client that still sends would see a broken connection, and no status.
                request.into_body().collect().await?;
                return Ok(error(status));
            }
            Some(Fault::Stall) => std::future::pending().await,
            Some(Fault::Late(millis)) => tokio::time::sleep(Duration::from_millis(millis)).await,
            _ => {}
        }
        let response = self.pass_on(request).await?;
        Ok(match fault {
            Some(Fault::CutAfterwards) => return Err("cut".into()),
            Some(Fault::CutAfter(len)) => {
                response.map(|body| Answer::part(body, in_flight, len, false))
            }
            Some(Fault::StallAfter(len)) => {
                response.map(|body| Answer::part(body, in_flight, len, true))
            }
            Some(Fault::Shorter) => shorter(response).await?,
            _ => response.map(|body| Answer::part(body, in_flight, usize::MAX, false)),
        })
    }

    async fn pass_on(&self, request: Request<Incoming>) -> Result<Response<Body>, Cause> {
        let wanted = request.headers().get(IF_MATCH).cloned();
        let unmodified = request.headers().get(IF_UNMODIFIED_SINCE).cloned();
        let is_get = request.method() == Method::GET;
        let is_read = is_get || request.method() == Method::HEAD;
        // The whole request comes first: `s3s` answers some before their body has arrived, and the
        // client would see a broken connection.
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let mut response = self.behind.answer(Request::from_parts(parts, body)).await?;
        if is_read && self.without_tags.load(Ordering::SeqCst) {
            response.headers_mut().remove(ETAG);
            let modified = response.headers().get(LAST_MODIFIED);
            // Such a server's own time is finer, and later by a part of a second.
            if response.status().is_success()
                && modified.is_some()
                && modified == unmodified.as_ref()
            {
                return Ok(error(412));
            }
        }
        let has = response.headers().get(ETAG);
        match wanted {
            Some(wanted)
                if is_get
                    && !self.ignore_conditions.load(Ordering::SeqCst)
                    && response.status().is_success()
                    && has != Some(&wanted) =>
            {
                let (mut parts, _) = response.into_parts();
                parts.status = hyper::StatusCode::PRECONDITION_FAILED;
                parts.headers.remove(CONTENT_LENGTH);
                parts.headers.remove(CONTENT_RANGE);
                Ok(Response::from_parts(parts, full(Bytes::new())))
            }
            _ => Ok(response),
        }
    }
}

/// Bodies of answers.
struct Answer;

impl Answer {
    /// The first `len` bytes of a body; then the connection is cut, or nothing follows.
    fn part(body: Body, in_flight: InFlight, len: usize, stall: bool) -> Body {
        let data = BodyDataStream::new(body);
        let state = (data, in_flight, len);
        let frames = stream::unfold(state, move |(mut data, in_flight, left)| async move {
            if left == 0 && stall {
                std::future::pending::<()>().await;
            }
            if left == 0 {
                // An error drops what is not sent yet. It is sent while the body has nothing more.
                tokio::time::sleep(Duration::from_millis(20)).await;
                let cut: Cause = "cut".into();
                return Some((Err(cut), (data, in_flight, left)));
            }
            let mut bytes = match data.next().await? {
                Ok(bytes) => bytes,
                Err(error) => return Some((Err(error), (data, in_flight, left))),
            };
            bytes.truncate(left);
            let left = left - bytes.len();
            Some((Ok(Frame::data(bytes)), (data, in_flight, left)))
        });
        BodyExt::boxed_unsync(StreamBody::new(frames))
    }
}

/// Makes an answer with one byte fewer, whose headers agree with it.
async fn shorter(response: Response<Body>) -> Result<Response<Body>, Cause> {
    let (mut parts, body) = response.into_parts();
    let bytes = body.collect().await?.to_bytes();
    let bytes = bytes.slice(..bytes.len().saturating_sub(1));
    parts.headers.insert(CONTENT_LENGTH, bytes.len().into());
    if let Some(range) = parts.headers.get(CONTENT_RANGE) {
        let text = range.to_str()?.to_owned();
        let (range, size) = text.split_once('/').ok_or("a range without a size")?;
        let (start, end) = range.split_once('-').ok_or("a range without an end")?;
        let end: u64 = end.parse()?;
        let text = format!("{start}-{}/{size}", end.saturating_sub(1));
        parts.headers.insert(CONTENT_RANGE, text.parse()?);
    }
    Ok(Response::from_parts(parts, full(bytes)))
}

pub(crate) fn full(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

fn error(status: u16) -> Response<Body> {
    let code = match status {
        503 => "SlowDown",
        403 => "AccessDenied",
        404 => "NoSuchKey",
        _ => "InternalError",
    };
    let text = format!("<Error><Code>{code}</Code><Message>ordered by the test</Message></Error>");
    let mut response = Response::new(full(text.into()));
    *response.status_mut() = hyper::StatusCode::from_u16(status).expect("a status");
    response
}

/// Serves connections until its runtime ends.
pub(crate) async fn serve(front: Arc<Front>, listener: TcpListener) {
    while let Ok((socket, _)) = listener.accept().await {
        let _ = socket.set_nodelay(true);
        let front = front.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| front.clone().answer(request));
            let connection = hyper::server::conn::http1::Builder::new();
            // A cut connection is an error here, and is intended.
            let _ = connection
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}
