//! What one client can cost the others: memory for uploads, slow links, connections that break.

use crate::stranger::{Stranger, Talk, back, frame, into_rounds, refused, runtime};
use crate::support::{Town, Toys};
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

/// Everything that fits into the memory for uploads of these tests.
const ROOM: usize = 64 << 10;

/// What the least upload takes of it.
const UNIT: usize = 4096;

/// A town whose rounds close with one upload.
fn town_with_room(clients: u32) -> Town {
    let mut town = Town::new(Toys { evaluate: None, ..Toys::new(1, 1_000_000) }, clients);
    let deadline = Some(Duration::from_millis(1));
    town.rules = Rules { quorum: Quorum::Number(1), deadline };
    town.limits.upload_bytes = ROOM as u64;
    town
}

async fn strangers(invitations: &[Invitation]) -> Vec<Talk> {
    let mut talks = Vec::new();
    for invitation in invitations {
        let identity = Identity::make("stranger").unwrap();
        talks.push(Stranger::new(invitation, &identity).await.talk().await);
    }
    talks
}

/// Two clients stop in the middle of their uploads: one announces all there may be and sends one
/// byte, one fills the rest of the room. The others' uploads come through by the turn.
#[test]
fn uploads_that_do_not_go_on_hold_nobody_up() {
    let mut town = town_with_room(3);
    let serving = town.serve(false);
    let honest = town.join(0);
    runtime().block_on(async {
        let mut talks = strangers(&town.invitations[1..]).await;
        let tasks = into_rounds(&mut talks).await;
        for ((talk, task), sent) in talks.iter().zip(&tasks).zip([1, ROOM - UNIT]) {
            talk.announce(task, town.limits.message_bytes).await;
            talk.chunk(vec![0; sent]).await;
            let before = serving.board.watch().borrow().round;
            tokio::task::block_in_place(|| {
                serving.shows("rounds of the others", |s| s.round >= before + 20);
            });
        }
    });
    assert!(!serving.board.watch().borrow().refused.contains_key(&Refusal::Stalled));
    assert!(serving.halt().is_ok());
    honest.halt();
}

/// Sends a byte of its upload for each frame that comes, until it is cut.
async fn drip(mut talk: Talk) -> Status {
    loop {
        match talk.any().await {
            Ok(Some(_)) => {
                let drop = proto::Chunk { data: vec![0].into() };
                // Nobody takes it while the upload waits for memory, or when it was closed.
                let _ = talk.frames.try_send(frame(client_frame::Frame::Chunk(drop)));
            }
            Ok(None) => panic!("the session ended in peace"),
            Err(status) => return status,
        }
    }
}

/// Two clients announce all there may be and send the room full. One of them has the turn then, and
/// makes little of it: too little, since somebody waits for it.
#[test]
fn whoever_has_the_turn_and_makes_little_of_it_is_cut() {
    let mut town = town_with_room(3);
    town.limits.turn = Duration::from_secs(2);
    let serving = town.serve(false);
    let honest = town.join(0);
    runtime().block_on(async {
        let mut talks = strangers(&town.invitations[1..]).await;
        let tasks = into_rounds(&mut talks).await;
        for (talk, task) in talks.iter().zip(&tasks) {
            talk.announce(task, town.limits.message_bytes).await;
            talk.chunk(vec![0; ROOM]).await;
        }
        let (second, first) = (talks.pop().unwrap(), talks.pop().unwrap());
        let end = tokio::select! {
            end = drip(first) => end,
            end = drip(second) => end,
        };
        assert_eq!(end.code(), Code::DeadlineExceeded);
    });
    refused(&serving, Refusal::Stalled, 1);
    let before = serving.board.watch().borrow().round;
    serving.shows("rounds of the others", |s| s.round >= before + 20);
    assert!(serving.halt().is_ok());
    honest.halt();
}

/// Three uploads, each as long as the room, that come half and half.
#[test]
fn uploads_beyond_the_room_together_all_come_through() {
    let mut town = Town::new(Toys::new(1, 2), 3);
    town.limits.upload_bytes = 4 * CHUNK_BYTES as u64;
    let serving = town.serve(false);
    runtime().block_on(async {
        let mut talks = strangers(&town.invitations).await;
        let tasks = into_rounds(&mut talks).await;
        for (talk, task) in talks.iter().zip(&tasks) {
            talk.announce(task, town.limits.upload_bytes).await;
        }
        for _ in 0..4 {
            for talk in &talks {
                talk.chunk(vec![0; CHUNK_BYTES]).await;
            }
        }
        for talk in &mut talks {
            // It has come whole: the method itself says that it is none.
            let ack = talk.ack().await;
            assert_eq!(ack.reason, Refusal::Invalid.to_string());
        }
    });
    assert!(serving.halt().is_ok());
}

/// An upload over a slow link takes longer than a silent client is waited for.
#[test]
fn a_slow_upload_is_no_silence() {
    let mut town = Town::new(Toys::new(1, 2), 1);
    town.limits.heartbeat = Duration::from_secs(2);
    let serving = town.serve(false);
    runtime().block_on(async {
        let mut talks = strangers(&town.invitations).await;
        let tasks = into_rounds(&mut talks).await;
        let (talk, task) = (&mut talks[0], &tasks[0]);
        talk.announce(task, 8).await;
        for piece in 1f64.to_le_bytes().chunks(2) {
            talk.heartbeat().await;
            talk.chunk(piece.to_vec()).await;
        }
        assert!(talk.ack().await.accepted);
    });
    assert!(serving.halt().is_ok());
}

/// A byte now and then is not enough, however much was announced.
#[test]
fn an_upload_may_not_last_for_ever() {
    let mut town = Town::new(Toys::new(1, 2), 1);
    town.limits.heartbeat = Duration::from_secs(2);
    town.limits.upload = Duration::from_secs(5);
    let serving = town.serve(false);
    runtime().block_on(async {
        let mut talks = strangers(&town.invitations).await;
        let tasks = into_rounds(&mut talks).await;
        let talk = talks.remove(0);
        talk.announce(&tasks[0], town.limits.message_bytes).await;
        assert_eq!(drip(talk).await.code(), Code::DeadlineExceeded);
    });
    refused(&serving, Refusal::Stalled, 1);
    assert!(serving.halt().is_ok());
}

/// While an upload waits for memory, the client hears that the coordinator is there, and its own
/// silence is not counted.
#[test]
fn an_upload_that_waits_for_memory_is_not_cut() {
    let mut town = Town::new(Toys::new(1, 2), 3);
    town.limits.heartbeat = Duration::from_secs(3);
    town.limits.upload_bytes = ROOM as u64;
    let serving = town.serve(false);
    runtime().block_on(async {
        let mut talks = strangers(&town.invitations).await;
        let tasks = into_rounds(&mut talks).await;
        // The first fills the room, and the second has the turn.
        for (talk, task) in talks.iter().zip(&tasks).take(2) {
            talk.announce(task, 2 * ROOM as u64).await;
            talk.chunk(vec![0; ROOM]).await;
        }
        talks[1].heartbeat().await;
        let mut third = talks.pop().unwrap();
        third.upload(&tasks[2], &[0; 9]).await;
        let mut beats = 0;
        let mut acked = false;
        while beats < 4 && !acked {
            match third.any().await.unwrap() {
                Some(server_frame::Frame::Heartbeat(_)) => beats += 1,
                // It may have been faster than the second.
                Some(server_frame::Frame::Ack(_)) => acked = true,
                Some(server_frame::Frame::Chunk(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        drop(talks);
        if !acked {
            assert_eq!(third.ack().await.reason, Refusal::Invalid.to_string());
        }
    });
    assert!(serving.halt().is_ok());
}

/// Passes so many bytes on to the coordinator, and then resets the connection to it.
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
fn connections_that_are_reset_in_the_middle_of_a_frame_do_not_count_against_a_client() {
    let mut town = Town::new(Toys::new(1, 2), 2);
    let serving = town.serve(false);
    let honest = town.join(0);
    let invitation = town.invitations[1].clone();
    let identity = Identity::make("unlucky").unwrap();
    runtime().block_on(async {
        let mut talks = vec![Stranger::new(&invitation, &identity).await.talk().await];
        let task = into_rounds(&mut talks).await.remove(0);
        drop(talks);
        let gone = || {
            serving.shows("it is gone", |s| s.clients.get("c01").is_some_and(|c| !c.connected));
        };
        tokio::task::block_in_place(gone);
        let address = resetting(town.address.clone(), 50_000).await;
        let through = Invitation { address, ..invitation.clone() };
        for _ in 0..2 * town.limits.refusals_per_exchange {
            let talk = back(&through, &identity, &serving).await;
            talk.announce(&task, 200_000).await;
            talk.chunk(vec![0; 200_000]).await;
            tokio::task::block_in_place(gone);
        }
        let mut talk = back(&invitation, &identity, &serving).await;
        let task = talk.task().await;
        talk.upload(&task, &1f64.to_le_bytes()).await;
        let ack = talk.ack().await;
        assert!(ack.accepted, "{}", ack.reason);
    });
    assert_eq!(serving.board.watch().borrow().refused.len(), 0);
    assert!(serving.halt().is_ok());
    honest.halt();
}

/// A connection on which the coordinator can send little before somebody reads it.
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

/// Its enrolment was accepted, and it sends it again and again without reading the answers.
#[test]
fn a_client_that_sends_and_does_not_read_is_cut_for_that() {
    let mut town = Town::new(Toys::new(1, 2), 2);
    let serving = town.serve(false);
    let honest = town.join(0);
    let invitation = town.invitations[1].clone();
    let identity = Identity::make("deaf").unwrap();
    runtime().block_on(async {
        let mut talks = vec![Stranger::new(&invitation, &identity).await.talk().await];
        into_rounds(&mut talks).await;
        drop(talks);

        // A flood may be too much for the HTTP library first, and then it comes back.
        let deaf = || serving.board.watch().borrow().refused.contains_key(&Refusal::NotReading);
        while !deaf() {
            flood(&invitation, &identity).await;
        }
    });
    assert!(!serving.board.watch().borrow().refused.contains_key(&Refusal::Stalled));
    assert!(serving.halt().is_ok());
    honest.halt();
}

/// Sends the same summary until the connection ends, without reading.
async fn flood(invitation: &Invitation, identity: &Identity) {
    let narrow = Narrow::connect(invitation, identity).await;
    let origin = Uri::from_static("https://whimbrel.invalid");
    let mut client = FederationClient::with_origin(narrow, origin);
    let token = invitation.token.to_vec().into();
    let request = proto::EnrolRequest { version: PROTOCOL, token, name: String::new() };
    let run = client.enrol(request).await.unwrap().into_inner().run;
    let (frames, outgoing) = mpsc::channel(8);
    let at = Some(proto::StepId { stage: 0, step: 0 });
    let hello =
        proto::Hello { version: PROTOCOL, run, committed: at, staged: None, ..Default::default() };
    frames.send(frame(client_frame::Frame::Hello(hello))).await.unwrap();
    let _unread = client.session(ReceiverStream::new(outgoing)).await;
    let upload = proto::Upload { kind: proto::Kind::Enrol.into(), at, bytes: 0 };
    while frames.send(frame(client_frame::Frame::Upload(upload))).await.is_ok() {}
}
