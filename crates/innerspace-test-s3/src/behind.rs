//! The server behind the front: `s3s-fs` in this process, or one that runs already.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONNECTION, TRANSFER_ENCODING};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use s3s::service::S3Service;
use tokio::net::TcpStream;

use crate::front::{Body, Cause};

pub(crate) enum Behind {
    /// `s3s-fs`.
    Files(S3Service),
    /// A server at this address. Requests reach it as they were signed, with the front's name.
    Running(SocketAddr),
}

impl Behind {
    pub(crate) async fn answer(&self, request: Request<Bytes>) -> Result<Response<Body>, Cause> {
        match self {
            Behind::Files(service) => {
                let answer = service.call(request.map(s3s::Body::from)).await;
                let answer = answer.map_err(|error| format!("the server failed: {error:?}"))?;
                Ok(answer.map(|body| {
                    body.map_err(|error| -> Cause { error.to_string().into() })
                        .boxed_unsync()
                }))
            }
            Behind::Running(address) => pass_on(*address, request).await,
        }
    }
}

/// Sends a request over a connection of its own.
async fn pass_on(address: SocketAddr, request: Request<Bytes>) -> Result<Response<Body>, Cause> {
    let socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
    tokio::spawn(connection);
    let answer = sender.send_request(request.map(Full::new)).await?;
    let (mut parts, body) = answer.into_parts();
    // Both are about that connection.
    parts.headers.remove(CONNECTION);
    parts.headers.remove(TRANSFER_ENCODING);
    let body = body.map_err(|error| -> Cause { error.into() });
    Ok(Response::from_parts(parts, body.boxed_unsync()))
}
