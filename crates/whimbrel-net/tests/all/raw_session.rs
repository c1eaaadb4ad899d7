//! Sessions without the client program, which may send anything.

use crate::support::PATIENCE;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use whimbrel_net::client::link::{Connection, Target, connect};
use whimbrel_net::proto::{self, ClientFrame, Kind, ServerFrame, client_frame, server_frame};
use whimbrel_net::tls::Identity;
use whimbrel_net::{Invitation, PROTOCOL};

pub struct RawSession {
    pub frames: mpsc::Sender<ClientFrame>,
    pub incoming: Streaming<ServerFrame>,
    pub _connection: Connection,
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

pub async fn reach(invitation: &Invitation, identity: &Identity) -> Connection {
    let (address, pins) = (invitation.address.clone(), vec![invitation.server]);
    let target = Target { address, pins, proxy: None };
    match connect(&target, identity).await {
        Ok(connection) => connection,
        Err(_) => panic!("the coordinator cannot be reached"),
    }
}

pub async fn enrol(connection: &mut Connection, token: &[u8]) -> Result<Vec<u8>, Status> {
    let token = token.to_vec().into();
    let (name, relay) = (String::new(), false);
    let request = proto::EnrolRequest { version: PROTOCOL, token, name, relay };
    Ok(connection.client.enrol(request).await?.into_inner().run.into())
}

pub fn frame(frame: client_frame::Frame) -> ClientFrame {
    ClientFrame { frame: Some(frame) }
}

impl RawSession {
    /// Enrols, and opens a session without state.
    pub async fn open(invitation: &Invitation, identity: &Identity) -> Self {
        // As every client does: the connection of an enrolment keeps its narrow limits.
        enrol(&mut reach(invitation, identity).await, &invitation.token).await.unwrap();
        Self::open_at(invitation, identity, None).await
    }

    /// Opens the session of a client whose enrolment was accepted.
    pub async fn reopen(invitation: &Invitation, identity: &Identity) -> Self {
        let committed = Some(proto::StepId { stage: 0, step: 0 });
        Self::open_at(invitation, identity, committed).await
    }

    async fn open_at(
        invitation: &Invitation,
        identity: &Identity,
        committed: Option<proto::StepId>,
    ) -> Self {
        let mut connection = reach(invitation, identity).await;
        let run = enrol(&mut connection, &invitation.token).await.unwrap().into();
        let (frames, outgoing) = mpsc::channel(8);
        let hello = proto::Hello { version: PROTOCOL, run, committed, ..Default::default() };
        frames.send(frame(client_frame::Frame::Hello(hello))).await.unwrap();
        let incoming = connection.client.session(ReceiverStream::new(outgoing)).await.unwrap();
        let incoming = incoming.into_inner();
        let mut session = Self { frames, incoming, _connection: connection };
        match session.next().await {
            Ok(Some(server_frame::Frame::Welcome(_))) => session,
            other => panic!("{other:?}"),
        }
    }

    /// The next frame other than heartbeats, which are answered.
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

    /// Waits for a heartbeat without answering it; other frames are skipped.
    pub async fn heartbeat(&mut self) {
        let frame = async |session: &mut Self| session.any().await.unwrap().unwrap();
        while !matches!(frame(self).await, server_frame::Frame::Heartbeat(_)) {}
    }

    /// The next task; other frames are skipped.
    pub async fn task(&mut self) -> proto::Task {
        loop {
            if let server_frame::Frame::Task(task) = self.next().await.unwrap().unwrap() {
                return task;
            }
        }
    }

    pub async fn ack(&mut self) -> proto::Ack {
        loop {
            if let server_frame::Frame::Ack(ack) = self.next().await.unwrap().unwrap() {
                return ack;
            }
        }
    }

    /// The status that ends the session.
    pub async fn cut(&mut self) -> Status {
        loop {
            if let Err(status) = self.next().await.map(|frame| frame.expect("an error")) {
                return status;
            }
        }
    }

    pub async fn send(&self, what: client_frame::Frame) {
        self.frames.send(frame(what)).await.unwrap();
    }

    pub async fn upload(&self, task: &proto::Task, bytes: &[u8]) {
        self.announce(task, bytes.len() as u64).await;
        self.chunk(bytes.to_vec()).await;
    }

    /// Uploads, and returns whether it was accepted.
    pub async fn accepts(&mut self, task: &proto::Task, bytes: &[u8]) -> bool {
        self.upload(task, bytes).await;
        self.ack().await.accepted
    }

    /// Some bytes of an announced upload.
    pub async fn chunk(&self, data: Vec<u8>) {
        self.send(client_frame::Frame::Chunk(proto::Chunk { data: data.into() })).await;
    }

    pub async fn announce(&self, task: &proto::Task, bytes: u64) {
        let upload = proto::Upload { kind: task.kind, at: task.at, bytes };
        self.send(client_frame::Frame::Upload(upload)).await;
    }
}

/// Enrols all clients of a stage; returns their tasks of the first exchange.
pub async fn into_rounds(sessions: &mut [RawSession]) -> Vec<proto::Task> {
    for session in sessions.iter_mut() {
        let task = session.task().await;
        assert_eq!(task.kind(), Kind::Enrol);
        session.upload(&task, &4u32.to_le_bytes()).await;
    }
    let mut tasks = Vec::new();
    for session in sessions {
        tasks.push(session.task().await);
    }
    assert!(tasks.iter().all(|task| task.kind() == Kind::Exchange));
    tasks
}
