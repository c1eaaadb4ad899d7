//! A coordinator that violates the protocol: its clients stop and report why.

use crate::raw_session::runtime;
use crate::support::{Town, Toys};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use whimbrel_core::Wire;
use whimbrel_engine::StepId;
use whimbrel_net::Invitation;
use whimbrel_net::proto::federation_server::{Federation, FederationServer};
use whimbrel_net::proto::{self, ClientFrame, Kind, ServerFrame, client_frame, server_frame};
use whimbrel_net::tls::{Identity, server_config};

/// Sends a welcome and these frames, the last one repeatedly.
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
            let welcome = proto::Welcome { verdict: 0, heartbeat_ms: 10_000, ..Default::default() };
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

/// Sends one task after the other and accepts each answer.
#[derive(Clone)]
struct Asker {
    questions: Vec<(Kind, StepId, Vec<u8>)>,
    answered: Arc<AtomicU32>,
}

#[tonic::async_trait]
impl Federation for Asker {
    async fn enrol(
        &self,
        _: Request<proto::EnrolRequest>,
    ) -> Result<Response<proto::EnrolReply>, Status> {
        Liar(Vec::new()).enrol(Request::new(proto::EnrolRequest::default())).await
    }

    type SessionStream = ReceiverStream<Result<ServerFrame, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<ClientFrame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (frames, out) = mpsc::channel(4);
        let (questions, answered) = (self.questions.clone(), self.answered.clone());
        let mut incoming = request.into_inner();
        tokio::spawn(async move {
            let send =
                async |frame| frames.send(Ok(ServerFrame { frame: Some(frame) })).await.is_ok();
            let welcome = proto::Welcome { verdict: 0, heartbeat_ms: 10_000, ..Default::default() };
            send(server_frame::Frame::Welcome(welcome)).await;
            for (kind, at, message) in questions {
                let (kind, at, bytes) = (kind.into(), Some(at.into()), message.len() as u64);
                let task = proto::Task { kind, at, client: 0, bytes };
                send(server_frame::Frame::Task(task)).await;
                send(server_frame::Frame::Chunk(proto::Chunk { data: message.into() })).await;
                loop {
                    match incoming.message().await.ok().flatten().and_then(|frame| frame.frame) {
                        Some(client_frame::Frame::Upload(_)) => break,
                        Some(_) => {}
                        None => return,
                    }
                }
                answered.fetch_add(1, Ordering::Relaxed);
                let ack = proto::Ack { kind, at, accepted: true, reason: String::new() };
                send(server_frame::Frame::Ack(ack)).await;
            }
            std::future::pending::<()>().await;
        });
        Ok(Response::new(ReceiverStream::new(out)))
    }
}

/// Number of answered tasks, and the client's error.
fn asked(mut questions: Vec<(Kind, StepId, Vec<u8>)>) -> (u32, String) {
    let nothing = Vec::<whimbrel_core::method::Artifact>::new();
    questions.insert(0, (Kind::Enrol, StepId::enrolment(0), nothing.to_bytes()));
    let answered = Arc::new(AtomicU32::new(0));
    let said = joined(Asker { questions, answered: answered.clone() });
    (answered.load(Ordering::Relaxed) - 1, said)
}

/// The toy's message: a number chosen by the coordinator, and the number of accepted uploads.
fn exchange(number: u32, chosen: u32, known: u32) -> (Kind, StepId, Vec<u8>) {
    let message = [chosen.to_le_bytes(), known.to_le_bytes()].concat();
    (Kind::Exchange, StepId::exchange(0, number), message)
}

fn evaluation(number: u32, theta: f64) -> (Kind, StepId, Vec<u8>) {
    (Kind::Evaluate, StepId::exchange(0, number), theta.to_bytes())
}

#[test]
fn a_coordinator_gets_no_more_answers_than_were_agreed_to() {
    let other = (Kind::Enrol, StepId::enrolment(0), vec![1, 0, 0, 0]);
    for (tasks, count, wanted) in [
        // Two rounds and an opening.
        ((0..40).map(|n| exchange(n, n, n)).collect::<Vec<_>>(), 3, "3 were agreed to"),
        // The same exchange with increasingly precise parameters.
        ((0..40).map(|n| exchange(0, n, 0)).collect(), 1, "with another message"),
        (vec![exchange(3_999_999_999, 0, 0)], 0, "exchange 4000000000"),
        // Evaluations at parameters of its choice.
        ((0..40).map(|n| evaluation(n, f64::from(n))).collect(), 2, "more evaluations"),
        ((0..40).map(|n| evaluation(1, f64::from(n))).collect(), 1, "with another message"),
        (vec![exchange(0, 0, 0), other], 1, "a second enrolment"),
    ] {
        let (answered, said) = asked(tasks);
        assert!(answered == count && said.contains(wanted), "{answered}: {said}");
    }
}

/// The error of a client that joins this coordinator.
fn joined(liar: impl Federation + Clone) -> String {
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
    town.join_with(0, invitation).error().to_string()
}

fn task(bytes: u64) -> server_frame::Frame {
    let at = Some(proto::StepId { stage: 0, step: 0 });
    server_frame::Frame::Task(proto::Task { kind: Kind::Enrol.into(), at, client: 0, bytes })
}

fn chunk(bytes: usize) -> server_frame::Frame {
    server_frame::Frame::Chunk(proto::Chunk { data: vec![0; bytes].into() })
}

#[test]
fn frames_that_violate_the_protocol_are_refused() {
    for (script, wanted) in [
        (
            vec![task(4 << 30), chunk(1000)],
            "announces a message of 4294967296 bytes, and the offer allows 1073741824",
        ),
        (vec![task(2500), chunk(1000)], "more bytes than announced"),
        // A task within a task, and a chunk without one.
        (vec![task(10)], "frames out of order"),
        (vec![chunk(10)], "frames out of order"),
    ] {
        let said = joined(Liar(script));
        assert!(said.contains(wanted), "{said}");
    }
}
