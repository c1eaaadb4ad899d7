//! Unauthenticated peers and clients that violate the protocol are refused and counted, and the job
//! continues.

use crate::raw_session::{RawSession, enrol, frame, reach, runtime};
use crate::support::{PATIENCE, Town, Toys};
use hyper::body::{Body as HttpBody, Frame};
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::codegen::{Bytes, Service};
use tonic::{Code, Status};
use whimbrel_core::Key;
use whimbrel_net::Limits;
use whimbrel_net::proto::{self, ClientFrame, Kind, client_frame, server_frame};
use whimbrel_net::registry::Standing;
use whimbrel_net::status::Refusal;
use whimbrel_net::tls::Identity;

#[test]
fn unauthenticated_peers_are_refused_and_the_job_ends_in_the_same_bits() {
    let toys = Toys::new(1, 5);
    let mut town = Town::new(toys.clone(), 2);
    let revoked = town.invite("revoked");
    town.registry().stand("revoked", Standing::Revoked).unwrap();
    let serving = town.serve(false);
    let first = town.join(0);
    serving.shows_connected("c00");

    let other = Identity::make("other").unwrap();
    runtime().block_on(async {
        let mut connection = reach(&town.invitations[1], &other).await;
        let code = |result: Result<Vec<u8>, Status>| result.unwrap_err().code();
        // Unknown tokens, a revoked one, and one used with another key.
        for token in [&[0; 16][..], b"", &revoked.token, &town.invitations[0].token] {
            assert_eq!(code(enrol(&mut connection, token).await), Code::PermissionDenied);
        }
        // A session without an invitation.
        let (frames, outgoing) = mpsc::channel::<ClientFrame>(1);
        let session = connection.client.session(ReceiverStream::new(outgoing)).await;
        assert_eq!(session.unwrap_err().code(), Code::PermissionDenied);
        drop(frames);
    });
    serving.shows_refused(Refusal::WrongToken, 2);
    serving.shows_refused(Refusal::Revoked, 1);
    serving.shows_refused(Refusal::Replayed, 1);
    serving.shows_refused(Refusal::UnknownCertificate, 1);

    // No TLS, an old TLS.
    for hello in
        [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], OLD_TLS, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
    {
        let mut stream = TcpStream::connect(&town.address).unwrap();
        stream.write_all(hello).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    }
    serving.shows_refused(Refusal::Handshake, 3);

    serving.ends_as_simulated(vec![first, town.join(1)], &toys);
    let audit = std::fs::read_to_string(town.run_folder().join("audit.jsonl")).unwrap();
    assert!(audit.contains(&Refusal::WrongToken.to_string()), "{audit}");
}

/// Silence before and after the handshake.
#[test]
fn silent_connections_are_closed() {
    let mut town = Town::new(Toys::new(1, 2), 1);
    town.limits.handshake = Duration::from_millis(300);
    let serving = town.serve(false);
    let silent = TcpStream::connect(&town.address).unwrap();
    serving.shows_refused(Refusal::Silent, 1);
    drop(silent);
    assert!(serving.halt().is_err());

    town.limits = Limits { first_frame: Duration::from_millis(300), ..Limits::default() };
    let serving = town.serve(true);
    let other = Identity::make("other").unwrap();
    runtime().block_on(async {
        let _idle = reach(&town.invitations[0], &other).await;
        serving.shows_refused(Refusal::Silent, 1);
    });
    assert!(serving.halt().is_err());
}

/// A hello that offers TLS 1.1 at most.
const OLD_TLS: &[u8] = &[
    0x16, 0x03, 0x01, 0x00, 0x2f, 0x01, 0x00, 0x00, 0x2b, 0x03, 0x02, 1, 2, 3, 4, 5, 6, 7, 8, 9,
    10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
    0x00, 0x00, 0x04, 0x00, 0x2f, 0x00, 0xff, 0x01, 0x00,
];

#[test]
fn wrong_tokens_are_rate_limited() {
    let mut town = Town::new(Toys::new(1, 2), 1);
    town.limits.enrolments_per_minute = 3;
    let serving = town.serve(false);
    let other = Identity::make("other").unwrap();
    runtime().block_on(async {
        let mut connection = reach(&town.invitations[0], &other).await;
        let denied = Code::PermissionDenied;
        for code in [denied, denied, denied, Code::ResourceExhausted] {
            assert_eq!(enrol(&mut connection, &[1; 16]).await.unwrap_err().code(), code);
        }
    });
    assert!(serving.halt().is_err());
}

/// Tokens that wait for the list are not yet wrong, however many come from one host.
#[test]
fn a_burst_of_right_tokens_is_not_limited() {
    let mut town = Town::new(Toys::new(1, 2), 8);
    town.limits.enrolments_per_minute = 3;
    let serving = town.serve(false);
    let lock = std::fs::File::open(town.run_folder().join("federation.lock")).unwrap();
    lock.lock().unwrap();
    runtime().block_on(async {
        let mut calls = Vec::new();
        for invitation in &town.invitations {
            let identity = Identity::make("crowd").unwrap();
            let mut connection = reach(invitation, &identity).await;
            let token = invitation.token;
            calls.push(tokio::spawn(async move { enrol(&mut connection, &token).await }));
        }
        // Answered after the calls above have been read, and without the list's lock.
        let mut other = reach(&town.invitations[0], &Identity::make("other").unwrap()).await;
        let frames = ReceiverStream::new(mpsc::channel::<ClientFrame>(1).1);
        assert!(other.client.session(frames).await.is_err());
        lock.unlock().unwrap();
        for call in calls {
            call.await.unwrap().unwrap();
        }
    });
    assert!(serving.halt().is_err());
}

/// One certificate holds few connections: the oldest give way.
#[test]
fn connections_of_one_client_are_limited() {
    let mut town = Town::new(Toys::new(1, 2), 1);
    let serving = town.serve(false);
    let identity = Identity::make("hoarder").unwrap();
    runtime().block_on(async {
        let invitation = &town.invitations[0];
        enrol(&mut reach(invitation, &identity).await, &invitation.token).await.unwrap();
        let mut held = Vec::new();
        for _ in 0..20 {
            held.push(reach(invitation, &identity).await);
        }
        serving.shows_refused(Refusal::TooManyConnections, 12);
        assert!(enrol(held.last_mut().unwrap(), &invitation.token).await.is_ok());
    });
    assert!(serving.halt().is_err());
}

/// An enrolled client that violates the protocol in every way contributes nothing.
#[test]
fn a_client_that_breaks_the_protocol_never_reaches_the_fold() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 4) };
    let mut town = Town::new(toys.clone(), 3);
    town.limits.stall = Duration::from_secs(3);
    let serving = town.serve(false);
    let invitation = town.invitations[2].clone();
    let identity = Identity::make("hostile").unwrap();
    let mut clients = Vec::new();
    runtime().block_on(async {
        let mut session = RawSession::open(&invitation, &identity).await;
        let task = session.task().await;
        assert_eq!(task.kind(), Kind::Enrol);
        // An invalid summary is refused and requested again; a valid one is accepted once.
        assert!(!session.accepts(&task, b"?").await);
        let task = session.task().await;
        session.upload(&task, &4u32.to_le_bytes()).await;
        session.upload(&task, &4u32.to_le_bytes()).await;
        serving.shows_refused(Refusal::Duplicate, 1);
        // The enrolment ends with the other clients.
        clients.extend([town.join(0), town.join(1)]);
        assert!(session.ack().await.accepted);

        // Non-finite numbers, a wrong shape, a wrong round.
        let task = session.task().await;
        assert_eq!(task.kind(), Kind::Exchange);
        assert!(!session.accepts(&task, &f64::NAN.to_le_bytes()).await);
        let mut later = session.task().await;
        later.at = Some(proto::StepId { stage: 0, step: 99 });
        assert!(!session.accepts(&later, &1f64.to_le_bytes()).await);
        later.at = Some(proto::StepId { stage: 0, step: 0 });
        later.kind = Kind::Exchange.into();
        session.accepts(&later, &1f64.to_le_bytes()).await;
        later.at = task.at;
        assert!(!session.accepts(&later, &[0; 9]).await);
    });
    serving.shows_refused(Refusal::Invalid, 3);
    serving.shows_refused(Refusal::NotAsked, 1);

    // Disconnections: too many bytes announced, a chunk without an announcement, an upload that
    // stops.
    runtime().block_on(async {
        let huge = client_frame::Frame::Upload(proto::Upload {
            kind: Kind::Exchange.into(),
            at: Some(proto::StepId { stage: 0, step: 1 }),
            bytes: u64::MAX,
        });
        let chunk = client_frame::Frame::Chunk(proto::Chunk { data: vec![1].into() });
        let stopping = client_frame::Frame::Upload(proto::Upload {
            kind: Kind::Exchange.into(),
            at: Some(proto::StepId { stage: 0, step: 1 }),
            bytes: 100,
        });
        for (what, code) in [
            (huge, Code::InvalidArgument),
            (chunk, Code::InvalidArgument),
            (stopping, Code::DeadlineExceeded),
        ] {
            let mut session = RawSession::reopen(&invitation, &identity).await;
            session.send(what).await;
            assert_eq!(session.cut().await.code(), code);
        }
    });
    serving.shows_refused(Refusal::TooLarge, 1);
    serving.shows_refused(Refusal::Malformed, 1);
    serving.shows_refused(Refusal::Stalled, 1);
    town.registry().stand("c02", Standing::Revoked).unwrap();

    let (left, outcome) = serving.end_with(clients);
    assert_eq!(outcome.tallies[2].rounds, 0, "nothing of it was folded");
    assert_eq!(left.rounds[..2], [4, 4]);
}

/// Rounds wait once for a late joiner that does not answer. Its later summary is accepted; a flood
/// of unsolicited uploads closes the connection.
#[test]
fn a_silent_late_joiner_costs_one_wait() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 100_000) };
    let mut town = Town::new(toys, 1);
    town.limits.late_summary = Duration::from_millis(300);
    let serving = town.serve(false);
    let first = town.join(0);
    serving.shows("a round", |s| s.round >= 1);
    let (invitation, identity) = (town.invite("late"), Identity::make("late").unwrap());
    runtime().block_on(async {
        let mut session = RawSession::open(&invitation, &identity).await;
        let task = session.task().await;
        assert_eq!(task.kind(), Kind::Enrol);
        let before = serving.status().round;
        serving.shows("rounds without it", |s| s.round >= before + 20);
        session.upload(&task, &4u32.to_le_bytes()).await;
        // The next task is an exchange: it is enrolled without a second request.
        assert_eq!(session.task().await.kind(), Kind::Exchange);
        let at = Some(proto::StepId { stage: 7, step: 0 });
        let upload = proto::Upload { kind: task.kind, at, bytes: 1 };
        let chunk = proto::Chunk { data: vec![0].into() };
        let frames = session.frames.clone();
        let flood = tokio::spawn(async move {
            for _ in 0..400 {
                // The connection may close before all frames are sent.
                let _ = frames.send(frame(client_frame::Frame::Upload(upload))).await;
                let _ = frames.send(frame(client_frame::Frame::Chunk(chunk.clone()))).await;
            }
        });
        loop {
            match session.next().await {
                Ok(Some(server_frame::Frame::Bye(bye))) => {
                    assert!(bye.reason.contains("unsolicited uploads"), "{}", bye.reason);
                    break;
                }
                Ok(Some(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        flood.abort();
    });
    let audit = std::fs::read_to_string(town.run_folder().join("audit.jsonl")).unwrap();
    let lines = audit.matches(&Refusal::NotAsked.to_string()).count();
    assert!(lines <= 10, "{lines} lines for one flood");
    assert!(serving.halt().is_ok());
    first.halt();
}

/// Malformed frames of an enrolled client, among them an announced frame of 4 GiB.
#[test]
fn malformed_frames_are_refused_without_memory_for_them() {
    let toys = Toys::new(1, 3);
    let mut town = Town::new(toys.clone(), 2);
    let serving = town.serve(false);
    let first = town.join(0);
    let invitation = town.invitations[1].clone();
    // The hostile process holds the second client's key.
    let identity = Identity::keep(&town.folder.path().join(&invitation.name), "c01").unwrap();
    let mut key = Key::root(5).stream();
    let noise: Vec<u8> = (0..64).map(|_| key.below(256) as u8).collect();
    runtime().block_on(async {
        let mut connection = reach(&invitation, &identity).await;
        enrol(&mut connection, &invitation.token).await.unwrap();
        // Incomplete frames mean a broken connection, not a violation.
        let long: &[u8] = &[0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3];
        let frames: [(&str, &[u8], Refusal, u64); 9] = [
            ("Session", &[0, 0, 0, 0, 64], Refusal::Malformed, 0),
            ("Session", long, Refusal::TooLarge, 1),
            ("Session", &noise, Refusal::Malformed, 1),
            ("Session", &[1, 0, 0, 0, 0], Refusal::Malformed, 2),
            ("Session", b"\x01", Refusal::Malformed, 2),
            ("Session", &[0, 0, 0, 0, 2, 0xff, 0xff], Refusal::Malformed, 3),
            // Without a session: malformed enrolments and an unknown method.
            ("Enrol", long, Refusal::TooLarge, 2),
            ("Enrol", &[0, 0, 0, 0, 2, 0xff, 0xff], Refusal::Malformed, 4),
            ("Window", &[0, 0, 0, 0, 0], Refusal::Malformed, 5),
        ];
        for (method, bytes, why, times) in frames {
            let path = format!("https://whimbrel.invalid/whimbrel.v1.Federation/{method}");
            let request = Request::post(path)
                .header("content-type", "application/grpc")
                .body(Body::new(Once(Some(Bytes::copy_from_slice(bytes)))))
                .unwrap();
            poll_fn(|context| connection.sender.poll_ready(context)).await.unwrap();
            let call = connection.sender.call(request);
            drop(tokio::time::timeout(PATIENCE, call).await.unwrap());
            serving.shows_refused(why, times);
        }
    });
    assert_eq!(serving.status().refused[&Refusal::Malformed], 5);
    serving.ends_as_simulated(vec![first, town.join(1)], &toys);
}

/// A body of one frame.
struct Once(Option<Bytes>);

impl HttpBody for Once {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }
}
