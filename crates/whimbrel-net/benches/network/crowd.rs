//! Many clients in one process. They speak the protocol and keep nothing: what is measured is the
//! coordinator, and not a thousand clients that share one disk.

use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use whimbrel_net::client::link::{Connection, Target, connect};
use whimbrel_net::frames::{Assembly, Parcel, chunks, to_server};
use whimbrel_net::proto::{self, Kind, client_frame, server_frame};
use whimbrel_net::tls::Identity;
use whimbrel_net::{Invitation, PROTOCOL};

/// Handshakes at the same time.
const SHAKING_MAX: usize = 32;

/// Takes part with everyone until the coordinator has nothing more to ask.
pub async fn take_part(invitations: Vec<Invitation>) {
    let shaking = Arc::new(Semaphore::new(SHAKING_MAX));
    let tasks: Vec<_> = invitations
        .into_iter()
        .map(|invitation| tokio::spawn(client(invitation, shaking.clone())))
        .collect();
    for task in tasks {
        task.await.expect("a client ends in order");
    }
}

async fn client(invitation: Invitation, shaking: Arc<Semaphore>) {
    let place = shaking.acquire().await.expect("it is never closed");
    let identity = Identity::make(&invitation.name).expect("an identity");
    let run = enrol(&invitation, &identity).await;
    // As every client does: a connection from before is a stranger's, with a stranger's limits.
    let mut connection = reach(&invitation, &identity).await;
    drop(place);
    echo(&mut connection, run).await;
}

/// Enrols clients that take no part, this many at a time.
pub async fn enrol_all(invitations: Vec<Invitation>, at_once: usize) {
    let places = Arc::new(Semaphore::new(at_once));
    let mut tasks = Vec::new();
    for invitation in invitations {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        tasks.push(tokio::spawn(async move {
            let identity = Identity::make(&invitation.name).expect("an identity");
            enrol(&invitation, &identity).await;
            drop(place);
        }));
    }
    for task in tasks {
        task.await.expect("a client enrols");
    }
}

async fn enrol(invitation: &Invitation, identity: &Identity) -> tonic::codegen::Bytes {
    let mut connection = reach(invitation, identity).await;
    let (token, name) = (invitation.token.to_vec().into(), String::new());
    let request = proto::EnrolRequest { version: PROTOCOL, token, name, relay: false };
    connection.client.enrol(request).await.expect("an invitation").into_inner().run
}

async fn reach(invitation: &Invitation, identity: &Identity) -> Connection {
    let (address, pins) = (invitation.address.clone(), vec![invitation.server]);
    let target = Target { address, pins, proxy: None };
    match connect(&target, identity).await {
        Ok(connection) => connection,
        Err(_) => panic!("the coordinator cannot be reached"),
    }
}

async fn echo(connection: &mut Connection, run: tonic::codegen::Bytes) {
    use server_frame::Frame;
    let (frames, outgoing) = mpsc::channel(4);
    let hello = proto::Hello { version: PROTOCOL, run, ..Default::default() };
    frames.send(to_server(client_frame::Frame::Hello(hello))).await.expect("a hello");
    let session = connection.client.session(ReceiverStream::new(outgoing)).await;
    let mut incoming = session.expect("a session").into_inner();
    let mut assembly: Option<Assembly> = None;
    while let Ok(Some(frame)) = incoming.message().await {
        match frame.frame {
            Some(Frame::Task(task)) => {
                let at = task.at.expect("a step").into();
                assembly = Some(Assembly::new(task.kind(), at, task.bytes));
            }
            Some(Frame::Chunk(chunk)) => {
                assembly.as_mut().expect("a task").add(&chunk.data).expect("a whole message");
            }
            Some(Frame::Heartbeat(beat)) => {
                let beat = to_server(client_frame::Frame::Heartbeat(beat));
                let _ = frames.send(beat).await;
            }
            Some(Frame::Bye(_)) => return,
            Some(Frame::Ack(_) | Frame::Welcome(_)) | None => {}
        }
        let Some(task) = assembly.take_if(|assembly| assembly.is_whole()) else { continue };
        if task.kind == Kind::Deliver {
            let bye = proto::Bye { reason: String::new(), over: true };
            let _ = frames.send(to_server(client_frame::Frame::Bye(bye))).await;
            continue;
        }
        let (kind, at) = (task.kind, task.at);
        // Exchanges are echoed; summaries are empty.
        let bytes = if kind == Kind::Exchange { task.into_bytes() } else { Vec::new() };
        let message = Parcel::from(tonic::codegen::Bytes::from(bytes));
        let bytes = message.len() as u64;
        let upload = proto::Upload { kind: kind.into(), at: Some(at.into()), bytes };
        let _ = frames.send(to_server(client_frame::Frame::Upload(upload))).await;
        for chunk in chunks(&message) {
            let _ = frames.send(to_server(client_frame::Frame::Chunk(chunk))).await;
        }
    }
}
