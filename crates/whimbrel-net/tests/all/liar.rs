//! A coordinator that does not keep to the protocol: its clients stop and say why.

use crate::stranger::runtime;
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

/// Asks one question after the other, and says that each answer was accepted.
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
                // A heartbeat may come before it, and its bytes after it.
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

/// How many questions a client answers, and what it says then.
fn asked(mut questions: Vec<(Kind, StepId, Vec<u8>)>) -> (u32, String) {
    let nothing = Vec::<whimbrel_core::method::Artifact>::new();
    questions.insert(0, (Kind::Enrol, StepId::enrolment(0), nothing.to_bytes()));
    let answered = Arc::new(AtomicU32::new(0));
    let said = joined(Asker { questions, answered: answered.clone() });
    (answered.load(Ordering::Relaxed) - 1, said)
}

/// The toy's message: a number that a lying coordinator chooses, and the uploads it accepted.
fn exchange(number: u32, chosen: u32, known: u32) -> (Kind, StepId, Vec<u8>) {
    let message = [chosen.to_le_bytes(), known.to_le_bytes()].concat();
    (Kind::Exchange, StepId::exchange(0, number), message)
}

fn evaluation(number: u32, theta: f64) -> (Kind, StepId, Vec<u8>) {
    (Kind::Evaluate, StepId::exchange(0, number), theta.to_bytes())
}

#[test]
fn a_coordinator_gets_no_more_answers_than_were_agreed_to() {
    // Two rounds and an opening.
    let all: Vec<_> = (0..40).map(|n| exchange(n, n, n)).collect();
    let (answered, said) = asked(all);
    assert!(answered == 3 && said.contains("3 were agreed to"), "{answered}: {said}");
    // The same exchange with sharper and sharper parameters.
    let same: Vec<_> = (0..40).map(|n| exchange(0, n, 0)).collect();
    let (answered, said) = asked(same);
    assert!(answered == 1 && said.contains("with another message"), "{answered}: {said}");
    let (answered, said) = asked(vec![exchange(3_999_999_999, 0, 0)]);
    assert!(answered == 0 && said.contains("exchange 4000000000"), "{answered}: {said}");
    // Evaluations at parameters of its choice.
    let (answered, said) = asked((0..40).map(|n| evaluation(n, f64::from(n))).collect());
    assert!(answered == 2 && said.contains("more evaluations"), "{answered}: {said}");
    let (answered, said) = asked((0..40).map(|n| evaluation(1, f64::from(n))).collect());
    assert!(answered == 1 && said.contains("with another message"), "{answered}: {said}");
    let other = (Kind::Enrol, StepId::enrolment(0), vec![1, 0, 0, 0]);
    let (answered, said) = asked(vec![exchange(0, 0, 0), other]);
    assert!(answered == 1 && said.contains("a second enrolment"), "{answered}: {said}");
}

/// What a client says that joined it.
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
