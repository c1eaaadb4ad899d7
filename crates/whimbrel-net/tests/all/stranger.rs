//! Clients of a test's own making, which say what they like.

use crate::support::{PATIENCE, Serving};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use whimbrel_net::client::link::{Connection, Target, connect};
use whimbrel_net::proto::{self, ClientFrame, Kind, ServerFrame, client_frame, server_frame};
use whimbrel_net::status::Refusal;
use whimbrel_net::tls::Identity;
use whimbrel_net::{Invitation, PROTOCOL};

/// A client of the test's own making.
pub struct Stranger {
    pub connection: Connection,
    pub run: Vec<u8>,
}

/// Its session.
pub struct Talk {
    pub frames: mpsc::Sender<ClientFrame>,
    pub incoming: Streaming<ServerFrame>,
    pub _connection: Connection,
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

pub async fn reach(invitation: &Invitation, identity: &Identity) -> Connection {
    let target = Target { address: invitation.address.clone(), pins: vec![invitation.server] };
    match connect(&target, identity).await {
        Ok(connection) => connection,
        Err(_) => panic!("the coordinator cannot be reached"),
    }
}

pub async fn enrol(connection: &mut Connection, token: &[u8]) -> Result<Vec<u8>, Status> {
    let token = token.to_vec().into();
    let request = proto::EnrolRequest { version: PROTOCOL, token, name: String::new() };
    Ok(connection.client.enrol(request).await?.into_inner().run.into())
}

impl Stranger {
    /// Enrols with an invitation.
    pub async fn new(invitation: &Invitation, identity: &Identity) -> Self {
        let mut connection = reach(invitation, identity).await;
        let run = enrol(&mut connection, &invitation.token).await.unwrap();
        // As every client does: a connection from before is a stranger's, with a stranger's limits.
        Self { connection: reach(invitation, identity).await, run }
    }

    /// Says hello.
    pub async fn talk(mut self) -> Talk {
        let (frames, outgoing) = mpsc::channel(8);
        let run = self.run.clone().into();
        let hello = proto::Hello {
            version: PROTOCOL,
            run,
            committed: None,
            staged: None,
            ..Default::default()
        };
        frames.send(frame(client_frame::Frame::Hello(hello))).await.unwrap();
        let incoming = self.connection.client.session(ReceiverStream::new(outgoing)).await.unwrap();
        let mut talk =
            Talk { frames, incoming: incoming.into_inner(), _connection: self.connection };
        let Some(server_frame::Frame::Welcome(_)) = talk.next().await.unwrap() else {
            panic!("no welcome");
        };
        talk
    }
}

pub fn frame(frame: client_frame::Frame) -> ClientFrame {
    ClientFrame { frame: Some(frame) }
}

impl Talk {
    /// The next frame; signs of life are answered and passed over.
    pub async fn next(&mut self) -> Result<Option<server_frame::Frame>, Status> {
        loop {
            match self.any().await? {
                Some(server_frame::Frame::Heartbeat(beat)) => {
                    let _ = self.frames.try_send(frame(client_frame::Frame::Heartbeat(beat)));
                }
                other => return Ok(other),
            }
        }
    }

    /// The next frame of any kind.
    pub async fn any(&mut self) -> Result<Option<server_frame::Frame>, Status> {
        let next = tokio::time::timeout(PATIENCE, self.incoming.message()).await.unwrap()?;
        Ok(next.and_then(|f| f.frame))
    }

    /// Waits for a sign of life, past everything else; says nothing.
    pub async fn heartbeat(&mut self) {
        loop {
            match self.any().await {
                Ok(Some(server_frame::Frame::Heartbeat(_))) => return,
                Ok(Some(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next task, past everything else.
    pub async fn task(&mut self) -> proto::Task {
        loop {
            let next = self.next().await.unwrap().expect("the session goes on");
            if let server_frame::Frame::Task(task) = next {
                return task;
            }
        }
    }

    pub async fn ack(&mut self) -> proto::Ack {
        loop {
            let next = self.next().await.unwrap().expect("the session goes on");
            if let server_frame::Frame::Ack(ack) = next {
                return ack;
            }
        }
    }

    /// The status that the session ends with.
    pub async fn cut(&mut self) -> Status {
        loop {
            match self.next().await {
                Err(status) => return status,
                Ok(Some(_)) => {}
                Ok(None) => panic!("the session ended in peace"),
            }
        }
    }

    pub async fn send(&self, what: client_frame::Frame) {
        self.frames.send(frame(what)).await.unwrap();
    }

    pub async fn upload(&self, task: &proto::Task, bytes: &[u8]) {
        self.announce(task, bytes.len() as u64).await;
        if !bytes.is_empty() {
            let data = bytes.to_vec().into();
            self.send(client_frame::Frame::Chunk(proto::Chunk { data })).await;
        }
    }

    /// Some bytes of an upload that was announced.
    pub async fn chunk(&self, data: Vec<u8>) {
        self.send(client_frame::Frame::Chunk(proto::Chunk { data: data.into() })).await;
    }

    pub async fn announce(&self, task: &proto::Task, bytes: u64) {
        let upload = proto::Upload { kind: task.kind, at: task.at, bytes };
        self.send(client_frame::Frame::Upload(upload)).await;
    }
}

/// Enrols these as a stage's only clients that are waited for; their tasks of the first exchange.
pub async fn into_rounds(talks: &mut [Talk]) -> Vec<proto::Task> {
    for talk in talks.iter_mut() {
        let task = talk.task().await;
        assert_eq!(task.kind(), Kind::Enrol);
        talk.upload(&task, &4u32.to_le_bytes()).await;
    }
    let mut tasks = Vec::new();
    for talk in talks {
        tasks.push(talk.task().await);
    }
    assert!(tasks.iter().all(|task| task.kind() == Kind::Exchange));
    tasks
}

pub fn refused(serving: &Serving, why: Refusal, times: u64) {
    let text = format!("{why:?} {times} times");
    serving.shows(&text, |s| s.refused.get(&why).copied().unwrap_or(0) >= times);
}

/// The hostile client again, as it would come back: its enrolment was accepted.
pub async fn back(invitation: &Invitation, identity: &Identity, serving: &Serving) -> Talk {
    let mut connection = reach(invitation, identity).await;
    let run = enrol(&mut connection, &invitation.token).await.unwrap();
    let (frames, outgoing) = mpsc::channel(8);
    let committed = Some(proto::StepId { stage: 0, step: 0 });
    let hello = proto::Hello {
        version: PROTOCOL,
        run: run.into(),
        committed,
        staged: None,
        ..Default::default()
    };
    frames.send(frame(client_frame::Frame::Hello(hello))).await.unwrap();
    let incoming = connection.client.session(ReceiverStream::new(outgoing)).await.unwrap();
    let mut talk = Talk { frames, incoming: incoming.into_inner(), _connection: connection };
    match talk.next().await {
        Ok(Some(server_frame::Frame::Welcome(_))) => talk,
        other => panic!("{other:?}; {:?}", serving.board.watch().borrow().refused),
    }
}
