//! A coordinator that does not keep to the protocol: its clients stop and say why.

use crate::stranger::runtime;
use crate::support::{Town, Toys};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use whimbrel_net::Invitation;
use whimbrel_net::proto::federation_server::{Federation, FederationServer};
use whimbrel_net::proto::{self, ClientFrame, Kind, ServerFrame, server_frame};
use whimbrel_net::tls::{Identity, server_config};

/// Says welcome, then these frames, the last of them again and again.
#[derive(Clone)]
struct Liar(Vec<server_frame::Frame>);

#[tonic::async_trait]
impl Federation for Liar {
    async fn enrol(
        &self,
        _: Request<proto::EnrolRequest>,
    ) -> Result<Response<proto::EnrolReply>, Status> {
        let (run, offer) = (vec![1; 16].into(), b"the offer"[..].into());
        Ok(Response::new(proto::EnrolReply { run, name: "c00".into(), offer }))
    }

    type SessionStream = ReceiverStream<Result<ServerFrame, Status>>;

    async fn session(
        &self,
        _: Request<Streaming<ClientFrame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (frames, out) = mpsc::channel(4);
        let script = self.0.clone();
        tokio::spawn(async move {
            let welcome = proto::Welcome { verdict: 0, heartbeat_ms: 10_000 };
            let last = script.last().cloned();
            let script = [server_frame::Frame::Welcome(welcome)].into_iter().chain(script);
            for frame in script.chain(std::iter::repeat_with(|| last.clone()).flatten()) {
                if frames.send(Ok(ServerFrame { frame: Some(frame) })).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(out)))
    }
}

/// What a client says that joined it.
fn joined(liar: Liar) -> String {
    let town = Town::new(Toys::new(1, 2), 1);
    let identity = Identity::make("liar").unwrap();
    let runtime = runtime();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let acceptor = TlsAcceptor::from(server_config(&identity, None).unwrap());
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = acceptor.accept(stream).await.unwrap();
            let service = TowerToHyperService::new(FederationServer::new(liar.clone()));
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http.serve_connection(TokioIo::new(tls), service));
        }
    });
    let server = identity.fingerprint();
    let invitation = Invitation { address, server, ..town.invitations[0].clone() };
    town.join_with(0, Box::new(town.toys.clone()), invitation).error().to_string()
}

fn task(bytes: u64) -> server_frame::Frame {
    let at = Some(proto::StepId { stage: 0, step: 0 });
    server_frame::Frame::Task(proto::Task { kind: Kind::Enrol.into(), at, client: 0, bytes })
}

fn chunk(bytes: usize) -> server_frame::Frame {
    server_frame::Frame::Chunk(proto::Chunk { data: vec![0; bytes].into() })
}

#[test]
fn a_message_beyond_what_was_offered_is_refused_when_it_is_announced() {
    let said = joined(Liar(vec![task(4 << 30), chunk(1000)]));
    let expected =
        "announces a message of 4294967296 bytes, and 1073741824 were offered as the most";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn more_than_was_announced_is_refused() {
    let said = joined(Liar(vec![task(2500), chunk(1000)]));
    assert!(said.contains("more bytes than announced"), "{said}");
}

#[test]
fn a_task_in_the_middle_of_a_task_and_chunks_of_none_are_refused() {
    for script in [vec![task(10)], vec![chunk(10)]] {
        let said = joined(Liar(script));
        assert!(said.contains("frames out of order"), "{said}");
    }
}
