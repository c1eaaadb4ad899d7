//! Memory that a connection costs whose certificate belongs to nobody: TLS, HTTP/2, and an enrolment of
//! which all but the last byte has come.

use crate::served::{Load, Served};
use hyper::body::{Body as HttpBody, Frame};
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::codegen::{Bytes, Service};
use whimbrel_net::client::link::{Connection, Target, connect};
use whimbrel_net::tls::Identity;

/// Connections before the first reading, which fill the allocator's pools, and between both.
const WARM: usize = 100;
const COUNTED: usize = 500;
/// The longest enrolment that is read.
const ENROL_BYTES: usize = 1 << 10;

/// Kilobytes of the coordinator's resident memory for each of them.
pub fn measure() -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let served = Served::start(folder.path(), Load { clients: 1, numbers: 1, rounds: 1 });
    let invitation = &served.invitations[0];
    let (address, pins) = (invitation.address.clone(), vec![invitation.server]);
    let target = Target { address, pins, proxy: None };
    let identity = Identity::make("stranger").expect("an identity");
    let runtime = crate::runtime(2);
    let (held, warm) = runtime.block_on(async {
        let mut held = Vec::new();
        let mut warm = 0;
        for number in 0..WARM + COUNTED {
            if number == WARM {
                warm = served.resident_kb();
            }
            held.push(stranger(&target, &identity).await);
        }
        (held, warm)
    });
    let all = served.resident_kb();
    drop(held);
    served.kill();
    all.saturating_sub(warm) as f64 / COUNTED as f64
}

async fn stranger(target: &Target, identity: &Identity) -> Connection {
    let Ok(mut connection) = connect(target, identity).await else {
        panic!("the coordinator cannot be reached")
    };
    let length = (ENROL_BYTES as u32).to_be_bytes();
    let bytes = [&[0][..], &length, &vec![0; ENROL_BYTES - 1]].concat();
    let path = "https://whimbrel.invalid/whimbrel.v1.Federation/Enrol";
    let request = Request::post(path).header("content-type", "application/grpc");
    let request = request.body(Body::new(Unfinished(Some(bytes.into())))).expect("a request");
    poll_fn(|context| connection.sender.poll_ready(context)).await.expect("a connection");
    tokio::spawn(connection.sender.call(request));
    tokio::task::yield_now().await;
    connection
}

/// A body that does not go on.
struct Unfinished(Option<Bytes>);

impl HttpBody for Unfinished {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None => Poll::Pending,
        }
    }
}
