//! The cost of one client to others: memory for uploads, slow links, broken connections.

use crate::raw_session::{RawSession, frame, into_rounds, runtime};
use crate::support::{Serving, Town, Toys};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response, Uri};
use tonic::{Code, Status};
use whimbrel_net::coordinator::{Quorum, Rules};
use whimbrel_net::limits::CHUNK_BYTES;
use whimbrel_net::proto::federation_client::FederationClient;
use whimbrel_net::proto::{self, client_frame, server_frame};
use whimbrel_net::status::Refusal;
use whimbrel_net::tls::{Identity, client_config};
use whimbrel_net::{Invitation, PROTOCOL};

/// Memory for uploads in these tests, and its unit.
const MEMORY: usize = 64 << 10;
const UNIT: usize = 4096;

/// A town whose rounds close with one upload.
fn town_with_memory(clients: u32) -> Town {
    let mut town = Town::new(Toys { evaluate: None, ..Toys::new(1, 1_000_000) }, clients);
    let deadline = Some(Duration::from_millis(1));
    town.rules = Rules { quorum: Quorum::Number(1), deadline };
    town.limits.upload_bytes = MEMORY as u64;
    town
}

/// Raw sessions of these clients, and their tasks of the first exchange.
async fn raw_clients(invitations: &[Invitation]) -> (Vec<RawSession>, Vec<proto::Task>) {
    let mut sessions = Vec::new();
    for invitation in invitations {
        let identity = Identity::make("raw").unwrap();
        sessions.push(RawSession::open(invitation, &identity).await);
    }
    let tasks = into_rounds(&mut sessions).await;
    (sessions, tasks)
}

fn shows_more_rounds(serving: &Serving) {
    let before = serving.status().round;
    serving.shows("rounds of the others", |s| s.round >= before + 20);
}

/// Two clients stop within their uploads: one announces the maximum and sends one byte, one fills the
/// remaining memory. Other uploads proceed by the turn.
#[test]
fn incomplete_uploads_do_not_block_others() {
    let mut town = town_with_memory(3);
    let serving = town.serve(false);
    let honest = town.join(0);
    runtime().block_on(async {
        let (sessions, tasks) = raw_clients(&town.invitations[1..]).await;
        for ((session, task), sent) in sessions.iter().zip(&tasks).zip([1, MEMORY - UNIT]) {
            session.announce(task, town.limits.message_bytes).await;
            session.chunk(vec![0; sent]).await;
            shows_more_rounds(&serving);
        }
    });
    let status = serving.status();
    assert!(!status.refused.contains_key(&Refusal::Stalled));
    // Both are connected, and each round closes without them.
    assert!(status.clients["c01"].missed >= 20 && status.clients["c00"].missed == 0);
    assert!(serving.halt().is_ok());
    honest.halt();
}

/// Sends one byte of an upload per received frame, until the session is cut.
async fn drip(mut session: RawSession) -> Status {
    loop {
        if let Err(status) = session.any().await.map(|frame| frame.expect("an error")) {
            return status;
        }
        let drop = proto::Chunk { data: vec![0].into() };
        // The queue may be full while the upload waits for memory.
        let _ = session.frames.try_send(frame(client_frame::Frame::Chunk(drop)));
    }
}

/// Two clients announce the maximum and fill the memory. The one with the turn is too slow while
/// the other waits.
#[test]
fn a_slow_upload_with_the_turn_is_cut() {
    let mut town = town_with_memory(3);
    town.limits.turn = Duration::from_secs(2);
    let serving = town.serve(false);
    let honest = town.join(0);
    runtime().block_on(async {
        let (mut sessions, tasks) = raw_clients(&town.invitations[1..]).await;
        for (session, task) in sessions.iter().zip(&tasks) {
            session.announce(task, town.limits.message_bytes).await;
            session.chunk(vec![0; MEMORY]).await;
        }
        let (second, first) = (sessions.pop().unwrap(), sessions.pop().unwrap());
        let end = tokio::select! {
            end = drip(first) => end,
            end = drip(second) => end,
        };
        assert_eq!(end.code(), Code::DeadlineExceeded);
    });
    serving.shows_refused(Refusal::Stalled, 1);
    shows_more_rounds(&serving);
    assert!(serving.halt().is_ok());
    honest.halt();
}

/// Three interleaved uploads, each as long as the memory.
#[test]
fn uploads_beyond_the_memory_together_all_complete() {
    let mut town = Town::new(Toys::new(1, 2), 3);
    town.limits.upload_bytes = 4 * CHUNK_BYTES as u64;
    let serving = town.serve(false);
    runtime().block_on(async {
        let (mut sessions, tasks) = raw_clients(&town.invitations).await;
        for (session, task) in sessions.iter().zip(&tasks) {
            session.announce(task, town.limits.upload_bytes).await;
        }
        for _ in 0..4 {
            for session in &sessions {
                session.chunk(vec![0; CHUNK_BYTES]).await;
            }
        }
        for session in &mut sessions {
            // It is complete, and the method refuses it.
            assert_eq!(session.ack().await.reason, Refusal::Invalid.to_string());
        }
    });
    assert!(serving.halt().is_ok());
}

/// An upload over a slow link takes longer than the limit of silence.
#[test]
fn a_slow_upload_does_not_count_as_silence() {
    let mut town = Town::new(Toys::new(1, 2), 1);
    town.limits.heartbeat = Duration::from_secs(2);
    let serving = town.serve(false);
    runtime().block_on(async {
        let (mut sessions, tasks) = raw_clients(&town.invitations).await;
        let (session, task) = (&mut sessions[0], &tasks[0]);
        session.announce(task, 8).await;
        for piece in 1f64.to_le_bytes().chunks(2) {
            session.heartbeat().await;
            session.chunk(piece.to_vec()).await;
        }
        assert!(session.ack().await.accepted);
    });
    assert!(serving.halt().is_ok());
}

/// Occasional bytes do not suffice, whatever the announced length.
#[test]
fn the_duration_of_an_upload_is_limited() {
    let mut town = Town::new(Toys::new(1, 2), 1);
    town.limits.heartbeat = Duration::from_secs(2);
    town.limits.upload = Duration::from_secs(5);
    let serving = town.serve(false);
    runtime().block_on(async {
        let (mut sessions, tasks) = raw_clients(&town.invitations).await;
        let session = sessions.remove(0);
        session.announce(&tasks[0], town.limits.message_bytes).await;
        assert_eq!(drip(session).await.code(), Code::DeadlineExceeded);
    });
    serving.shows_refused(Refusal::Stalled, 1);
    assert!(serving.halt().is_ok());
}

/// While an upload waits for memory, the client receives heartbeats, and its own silence does not
/// count.
#[test]
fn an_upload_that_waits_for_memory_is_not_cut() {
    let mut town = Town::new(Toys::new(1, 2), 3);
    town.limits.heartbeat = Duration::from_secs(3);
    town.limits.upload_bytes = MEMORY as u64;
    let serving = town.serve(false);
    runtime().block_on(async {
        let (mut sessions, tasks) = raw_clients(&town.invitations).await;
        // The first fills the memory, and the second has the turn.
        for (session, task) in sessions.iter().zip(&tasks).take(2) {
            session.announce(task, 2 * MEMORY as u64).await;
            session.chunk(vec![0; MEMORY]).await;
        }
        sessions[1].heartbeat().await;
        let mut third = sessions.pop().unwrap();
        third.upload(&tasks[2], &[0; 9]).await;
        let (mut beats, mut acked) = (0, false);
        while beats < 4 && !acked {
            match third.any().await.unwrap() {
                Some(server_frame::Frame::Heartbeat(_)) => beats += 1,
                // It may be faster than the second.
                Some(server_frame::Frame::Ack(_)) => acked = true,
                Some(server_frame::Frame::Chunk(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        drop(sessions);
        if !acked {
            assert_eq!(third.ack().await.reason, Refusal::Invalid.to_string());
        }
    });
    assert!(serving.halt().is_ok());
}

/// Forwards a number of bytes to the coordinator and then resets the connection.
async fn resetting(upstream: String, limit: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut server = TcpStream::connect(&upstream).await.unwrap();
            tokio::spawn(async move {
                let (mut up, mut down, mut passed) = ([0; 4096], [0; 4096], 0);
                while passed < limit {
                    tokio::select! {
                        Ok(n @ 1..) = client.read(&mut up) => {
                            server.write_all(&up[..n]).await.unwrap();
                            passed += n;
                        }
                        Ok(n @ 1..) = server.read(&mut down) => {
                            client.write_all(&down[..n]).await.unwrap();
                        }
                        else => return,
                    }
                }
                server.set_zero_linger().unwrap();
            });
        }
    });
    address
}

#[test]
fn connections_reset_within_a_frame_do_not_count_as_violations() {
    let mut town = Town::new(Toys::new(1, 2), 2);
    let serving = town.serve(false);
    let honest = town.join(0);
    let invitation = town.invitations[1].clone();
    let identity = Identity::make("unlucky").unwrap();
    runtime().block_on(async {
        let mut first = [RawSession::open(&invitation, &identity).await];
        let task = into_rounds(&mut first).await.remove(0);
        drop(first);
        let gone = || {
            serving.shows("no client", |s| s.clients.get("c01").is_some_and(|c| !c.connected));
        };
        gone();
        let address = resetting(town.address.clone(), 50_000).await;
        let through = Invitation { address, ..invitation.clone() };
        for _ in 0..2 * town.limits.refusals_per_exchange {
            let session = RawSession::reopen(&through, &identity).await;
            session.announce(&task, 200_000).await;
            session.chunk(vec![0; 200_000]).await;
            gone();
        }
        let mut session = RawSession::reopen(&invitation, &identity).await;
        let task = session.task().await;
        assert!(session.accepts(&task, &1f64.to_le_bytes()).await);
    });
    assert_eq!(serving.status().refused.len(), 0);
    assert!(serving.halt().is_ok());
    honest.halt();
}

/// A connection with a small window, so that the coordinator can send little unread.
#[derive(Clone)]
struct Narrow(SendRequest<Body>);

impl Narrow {
    async fn connect(invitation: &Invitation, identity: &Identity) -> Self {
        let stream = TcpStream::connect(&invitation.address).await.unwrap();
        let config = client_config(identity, &[invitation.server]).unwrap();
        let name = ServerName::try_from("whimbrel.invalid").unwrap();
        let tls = TlsConnector::from(config).connect(name, stream).await.unwrap();
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.initial_stream_window_size(512);
        let (sender, driver) = http.handshake(TokioIo::new(tls)).await.unwrap();
        tokio::spawn(driver);
        Self(sender)
    }
}

impl Service<Request<Body>> for Narrow {
    type Response = Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// An enrolled client repeats its summary without reading the answers. Its connection does not stay:
/// each flood ends.
#[test]
fn a_client_that_does_not_read_is_cut() {
    let mut town = Town::new(Toys::new(1, 2), 2);
    town.limits.first_frame = Duration::from_secs(5);
    let serving = town.serve(false);
    let honest = town.join(0);
    let invitation = town.invitations[1].clone();
    let identity = Identity::make("unread").unwrap();
    runtime().block_on(async {
        into_rounds(&mut [RawSession::open(&invitation, &identity).await]).await;
        // The HTTP library may end a flood first; then the client returns.
        while !serving.status().refused.contains_key(&Refusal::NotReading) {
            flood(&invitation, &identity).await;
        }
    });
    assert!(!serving.status().refused.contains_key(&Refusal::Stalled));
    assert!(serving.halt().is_ok());
    honest.halt();
}

/// Sends the same summary until the connection ends.
async fn flood(invitation: &Invitation, identity: &Identity) {
    let narrow = Narrow::connect(invitation, identity).await;
    let origin = Uri::from_static("https://whimbrel.invalid");
    let mut client = FederationClient::with_origin(narrow, origin);
    let token = invitation.token.to_vec().into();
    let request =
        proto::EnrolRequest { version: PROTOCOL, token, name: String::new(), relay: false };
    let run = client.enrol(request).await.unwrap().into_inner().run;
    let (frames, outgoing) = mpsc::channel(8);
    let at = Some(proto::StepId { stage: 0, step: 0 });
    let hello = proto::Hello { version: PROTOCOL, run, committed: at, ..Default::default() };
    frames.send(frame(client_frame::Frame::Hello(hello))).await.unwrap();
    let _unread = client.session(ReceiverStream::new(outgoing)).await;
    let upload = proto::Upload { kind: proto::Kind::Enrol.into(), at, bytes: 0 };
    while frames.send(frame(client_frame::Frame::Upload(upload))).await.is_ok() {}
}
