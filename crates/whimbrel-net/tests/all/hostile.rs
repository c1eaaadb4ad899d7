//! Strangers and clients that do not keep to the protocol: refused, counted, and the job goes on.

use crate::stranger::{Stranger, back, enrol, frame, reach, refused, runtime};
use crate::support::{Joined, PATIENCE, Town, Toys, simulate};
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
use whimbrel_net::proto::{self, ClientFrame, Kind, client_frame, server_frame};
use whimbrel_net::registry::Standing;
use whimbrel_net::status::Refusal;
use whimbrel_net::tls::Identity;
use whimbrel_net::{Invitation, Limits};

#[test]
fn strangers_are_refused_and_the_job_ends_in_the_same_bits() {
    let toys = Toys::new(1, 5);
    let mut town = Town::new(toys.clone(), 2);
    let registry = town.registry();
    registry.invite("revoked", 1).unwrap();
    let revoked_token = registry.invite("revoked", 1).unwrap();
    registry.stand("revoked", Standing::Revoked).unwrap();
    let serving = town.serve(false);
    let first = town.join(0);
    serving.shows("the first client", |s| s.clients.get("c00").is_some_and(|c| c.connected));

    let stranger = Identity::make("stranger").unwrap();
    runtime().block_on(async {
        let mut connection = reach(&town.invitations[1], &stranger).await;
        let code = |result: Result<Vec<u8>, Status>| result.unwrap_err().code();
        // A token of nobody, a revoked one, one that was used with another key.
        for token in [&[0; 16][..], b"", &revoked_token, &town.invitations[0].token] {
            assert_eq!(code(enrol(&mut connection, token).await), Code::PermissionDenied);
        }
        // A session without an invitation, whatever it claims.
        let (frames, outgoing) = mpsc::channel::<ClientFrame>(1);
        let session = connection.client.session(ReceiverStream::new(outgoing)).await;
        assert_eq!(session.unwrap_err().code(), Code::PermissionDenied);
        drop(frames);
    });
    refused(&serving, Refusal::WrongToken, 2);
    refused(&serving, Refusal::Revoked, 1);
    refused(&serving, Refusal::Replayed, 1);
    refused(&serving, Refusal::UnknownCertificate, 1);

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
    refused(&serving, Refusal::Handshake, 3);

    let second = town.join(1);
    let (left, _) = serving.end();
    first.model();
    second.model();
    assert_eq!(left, simulate(&toys, 2).0);
    let audit = std::fs::read_to_string(town.run_folder().join("audit.jsonl")).unwrap();
    assert!(audit.contains(&Refusal::WrongToken.to_string()), "{audit}");
}

/// Silence before and after the handshake.
#[test]
fn whoever_says_nothing_is_cut() {
    let mut town = Town::new(Toys::new(1, 2), 1);
    town.limits.handshake = Duration::from_millis(300);
    let serving = town.serve(false);
    let silent = TcpStream::connect(&town.address).unwrap();
    refused(&serving, Refusal::Silent, 1);
    drop(silent);
    assert!(serving.halt().is_err());

    town.limits = Limits { first_frame: Duration::from_millis(300), ..Limits::default() };
    let serving = town.serve(true);
    let stranger = Identity::make("stranger").unwrap();
    runtime().block_on(async {
        let _idle = reach(&town.invitations[0], &stranger).await;
        tokio::task::block_in_place(|| refused(&serving, Refusal::Silent, 1));
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
fn too_many_wrong_tokens_close_the_door_for_a_while() {
    let mut town = Town::new(Toys::new(1, 2), 1);
    town.limits.enrolments_per_minute = 3;
    let serving = town.serve(false);
    let stranger = Identity::make("stranger").unwrap();
    runtime().block_on(async {
        let mut connection = reach(&town.invitations[0], &stranger).await;
        for _ in 0..3 {
            let refused = enrol(&mut connection, &[1; 16]).await.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied);
        }
        let refused = enrol(&mut connection, &[1; 16]).await.unwrap_err();
        assert_eq!(refused.code(), Code::ResourceExhausted);
    });
    assert!(serving.halt().is_err());
}

/// An enrolled client that goes wrong in every way there is; the others and the rounds without it
/// end as a simulation does in which its uploads are lost.
#[test]
fn a_client_that_breaks_the_protocol_never_reaches_the_fold() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 4) };
    let mut town = Town::new(toys.clone(), 3);
    town.limits.stall = Duration::from_secs(3);
    let serving = town.serve(false);
    let invitation = town.invitations[2].clone();
    let identity = Identity::make("hostile").unwrap();
    let mut clients: Vec<Joined> = Vec::new();
    runtime().block_on(async {
        let mut talk = Stranger::new(&invitation, &identity).await.talk().await;
        let task = talk.task().await;
        assert_eq!(task.kind(), Kind::Enrol);
        // A summary that is none is refused and asked for again; an honest one is taken.
        talk.upload(&task, b"?").await;
        assert!(!talk.ack().await.accepted);
        let task = talk.task().await;
        talk.upload(&task, &4u32.to_le_bytes()).await;
        // Twice: the second is not counted.
        talk.upload(&task, &4u32.to_le_bytes()).await;
        tokio::task::block_in_place(|| refused(&serving, Refusal::Duplicate, 1));
        // The others come now: with them the enrolment is over.
        clients.extend((0..2).map(|i| town.join(i)));
        assert!(talk.ack().await.accepted);

        // Numbers that are not finite, a wrong shape, a wrong round.
        let task = talk.task().await;
        assert_eq!(task.kind(), Kind::Exchange);
        talk.upload(&task, &f64::NAN.to_le_bytes()).await;
        assert!(!talk.ack().await.accepted);
        let mut later = talk.task().await;
        later.at = Some(proto::StepId { stage: 0, step: 99 });
        talk.upload(&later, &1f64.to_le_bytes()).await;
        assert!(!talk.ack().await.accepted);
        later.at = Some(proto::StepId { stage: 0, step: 0 });
        later.kind = Kind::Exchange.into();
        talk.upload(&later, &1f64.to_le_bytes()).await;
        talk.ack().await;
        later.at = task.at;
        talk.upload(&later, &[0; 9]).await;
        assert!(!talk.ack().await.accepted);
    });
    refused(&serving, Refusal::Invalid, 3);
    refused(&serving, Refusal::NotAsked, 1);

    // Connections that are cut: too many bytes announced, more than announced, none at all, a
    // chunk of nothing, an upload that stops.
    runtime().block_on(async {
        let huge = client_frame::Frame::Upload(proto::Upload {
            kind: Kind::Exchange.into(),
            at: Some(proto::StepId { stage: 0, step: 1 }),
            bytes: u64::MAX,
        });
        let chunk = client_frame::Frame::Chunk(proto::Chunk { data: vec![1].into() });
        for (what, code) in [(huge, Code::InvalidArgument), (chunk, Code::InvalidArgument)] {
            let mut talk = back(&invitation, &identity, &serving).await;
            talk.send(what).await;
            assert_eq!(talk.cut().await.code(), code);
        }
        let mut talk = back(&invitation, &identity, &serving).await;
        let task = proto::Task {
            kind: Kind::Exchange.into(),
            at: Some(proto::StepId { stage: 0, step: 1 }),
            client: 2,
            bytes: 0,
        };
        talk.announce(&task, 100).await;
        assert_eq!(talk.cut().await.code(), Code::DeadlineExceeded);
    });
    refused(&serving, Refusal::TooLarge, 1);
    refused(&serving, Refusal::Malformed, 1);
    refused(&serving, Refusal::Stalled, 1);
    town.registry().stand("c02", Standing::Revoked).unwrap();

    let (left, outcome) = serving.end();
    clients.into_iter().for_each(Joined::model);
    assert_eq!(outcome.tallies[2].rounds, 0, "nothing of it was folded");
    assert_eq!(left.rounds[..2], [4, 4]);
}

/// A client that joins late and does not answer is waited for once. What it says afterwards is
/// still heard; a flood of it closes the connection.
#[test]
fn a_silent_late_joiner_costs_one_wait() {
    let toys = Toys { evaluate: None, ..Toys::new(1, 100_000) };
    let mut town = Town::new(toys, 1);
    town.limits.late_summary = Duration::from_millis(300);
    let serving = town.serve(false);
    let first = town.join(0);
    serving.shows("a round", |s| s.round >= 1);
    let token = town.registry().invite("late", 1).unwrap();
    let invitation = Invitation { name: "late".into(), token, ..town.invitations[0].clone() };
    let identity = Identity::make("late").unwrap();
    runtime().block_on(async {
        let mut talk = Stranger::new(&invitation, &identity).await.talk().await;
        let task = talk.task().await;
        assert_eq!(task.kind(), Kind::Enrol);
        let before = serving.board.watch().borrow().round;
        tokio::task::block_in_place(|| {
            serving.shows("rounds without it", |s| s.round >= before + 20);
        });
        talk.upload(&task, &4u32.to_le_bytes()).await;
        // The next task is an exchange: it was not asked again, and is enrolled.
        assert_eq!(talk.task().await.kind(), Kind::Exchange);
        let stray = proto::Task { at: Some(proto::StepId { stage: 7, step: 0 }), ..task };
        let upload = proto::Upload { kind: stray.kind, at: stray.at, bytes: 1 };
        let chunk = proto::Chunk { data: vec![0].into() };
        let frames = talk.frames.clone();
        let flood = tokio::spawn(async move {
            for _ in 0..400 {
                // It may be closed before all of it is out.
                let _ = frames.send(frame(client_frame::Frame::Upload(upload))).await;
                let _ = frames.send(frame(client_frame::Frame::Chunk(chunk.clone()))).await;
            }
        });
        loop {
            match talk.next().await {
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

/// Bytes that are no frames, from a client that may speak: among them a frame of 4 GiB, announced.
#[test]
fn frames_that_are_none_are_refused_without_memory_for_them() {
    let toys = Toys::new(1, 3);
    let mut town = Town::new(toys.clone(), 2);
    let serving = town.serve(false);
    let first = town.join(0);
    let invitation = town.invitations[1].clone();
    // The hostile process has the second client's key.
    let identity = Identity::keep(&town.folder.path().join(&invitation.name), "c01").unwrap();
    let mut key = Key::root(5).stream();
    let noise: Vec<u8> = (0..64).map(|_| key.below(256) as u8).collect();
    runtime().block_on(async {
        let mut connection = reach(&invitation, &identity).await;
        enrol(&mut connection, &invitation.token).await.unwrap();
        // Frames that end half-way are a broken connection, and nobody's fault.
        let long: &[u8] = &[0, 0xff, 0xff, 0xff, 0xff, 1, 2, 3];
        let frames: [(&str, &[u8], Refusal, u64); 9] = [
            ("Session", &[0, 0, 0, 0, 64], Refusal::Malformed, 0),
            ("Session", long, Refusal::TooLarge, 1),
            ("Session", &noise, Refusal::Malformed, 1),
            ("Session", &[1, 0, 0, 0, 0], Refusal::Malformed, 2),
            ("Session", b"\x01", Refusal::Malformed, 2),
            ("Session", &[0, 0, 0, 0, 2, 0xff, 0xff], Refusal::Malformed, 3),
            // And without a session: a first word that is none, and a door that is none.
            ("Enrol", long, Refusal::TooLarge, 2),
            ("Enrol", &[0, 0, 0, 0, 2, 0xff, 0xff], Refusal::Malformed, 4),
            ("Window", &[0, 0, 0, 0, 0], Refusal::Malformed, 5),
        ];
        for (door, bytes, why, times) in frames {
            let path = format!("https://whimbrel.invalid/whimbrel.v1.Federation/{door}");
            let request = Request::post(path)
                .header("content-type", "application/grpc")
                .body(Body::new(Once(Some(Bytes::copy_from_slice(bytes)))))
                .unwrap();
            poll_fn(|context| connection.sender.poll_ready(context)).await.unwrap();
            let answer = tokio::time::timeout(PATIENCE, connection.sender.call(request)).await;
            let answer = answer.unwrap();
            drop(answer);
            tokio::task::block_in_place(|| refused(&serving, why, times));
        }
    });
    assert_eq!(serving.board.watch().borrow().refused[&Refusal::Malformed], 5);
    let second = town.join(1);
    let (left, _) = serving.end();
    first.model();
    second.model();
    assert_eq!(left, simulate(&toys, 2).0);
}

/// A body of one piece.
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
