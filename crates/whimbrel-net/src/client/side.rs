//! The store of a client: the engine's [`ClientMachine`] and the folder that it survives in.

use super::slots::Slots;
use crate::coordinator::files_from_bytes;
use crate::proto::{Kind, Verdict};
use std::path::{Path, PathBuf};
use whimbrel_core::{ClientId, Error, Result, Wire};
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_engine::client::{
    ClientMachine, Participant, Purpose, Question, Record, StepId, sha256,
};

/// The model as it came.
const DELIVERED: &str = "delivered";
/// What the client has of its own beside it.
pub const OWN: &str = "own";

/// A participant and what its folder holds.
pub struct ClientSide {
    machine: ClientMachine,
    folder: PathBuf,
    slots: Slots,
    /// The longest message that is taken from the coordinator, as the offer says.
    message_bytes: u64,
    /// The model's files, once delivered.
    files: Option<Vec<(String, Vec<u8>)>>,
}

impl ClientSide {
    /// Goes on with what the folder holds. No message longer than `message_bytes` will be taken.
    pub fn open(participant: Participant, message_bytes: u64, folder: &Path) -> Result<Self> {
        let (slots, records) = Slots::open(folder)?;
        let files = match std::fs::read(folder.join(DELIVERED)) {
            Ok(bytes) => Some(files_from_bytes(&bytes)?),
            Err(_) => None,
        };
        let stage = records.iter().map(|record| record.at.stage).max();
        let delivered = stage.map(|stage| match std::fs::read(stage_path(folder, stage)) {
            Ok(bytes) => Ok((stage, bytes)),
            Err(e) => Err(Error::data(format!(
                "{}: this client's folder is not complete: {e}",
                stage_path(folder, stage).display()
            ))),
        });
        let machine = ClientMachine::restore(participant, records, delivered.transpose()?);
        Ok(Self { machine, folder: folder.to_path_buf(), slots, message_bytes, files })
    }

    /// The longest message that it takes.
    pub fn message_bytes(&self) -> u64 {
        self.message_bytes
    }

    /// Where this client stands: the accepted step, and the one whose fate it does not know.
    pub fn standing(&self) -> (Option<StepId>, Option<StepId>) {
        let at = |record: &Record| record.at;
        (self.machine.committed().map(at), self.machine.staged().map(at))
    }

    /// Learns the fate of the staged step.
    pub fn learn(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Accepted => self.machine.accept(),
            Verdict::Dropped => self.machine.drop_staged(),
            Verdict::Forgotten => self.machine.forget(),
            Verdict::Open => {}
        }
    }

    /// Learns the fate of an upload. An evaluation shares its step with the exchange after it, and
    /// what became of its answer says nothing about that exchange.
    pub fn acknowledged(&mut self, kind: Kind, at: StepId, accepted: bool) {
        if matches!(kind, Kind::Enrol | Kind::Exchange) {
            self.machine.acknowledge(at, accepted);
        }
    }

    /// Whether the model was delivered.
    pub fn is_done(&self) -> bool {
        self.files.is_some()
    }

    /// The model's files, once delivered.
    pub fn into_files(self) -> Option<Vec<(String, Vec<u8>)>> {
        self.files
    }

    /// Does what is asked; the bytes are the answer, none where there is nothing to say.
    pub fn work(
        &mut self,
        kind: Kind,
        at: StepId,
        client: u32,
        message: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let purpose = match kind {
            Kind::Enrol => Purpose::Enrol,
            Kind::Exchange => Purpose::Exchange,
            Kind::Evaluate => Purpose::Evaluate,
            Kind::Deliver => return self.deliver(message).map(|()| None),
            Kind::Unspecified => {
                return Err(Error::peer("the coordinator asks for something unknown"));
            }
        };
        let question = Question { purpose, at, client: ClientId(client), message: message.into() };
        if purpose == Purpose::Evaluate {
            return self.machine.answer(&question).map(Some);
        }
        if let Some(record) = self.machine.answered(&question, &sha256(message)) {
            return Ok(Some(record.upload.clone()));
        }
        if purpose == Purpose::Enrol {
            // Kept first: after a crash the stage is built again without being told again.
            write_atomically(&stage_path(&self.folder, at.stage), message)?;
        }
        let answer = self.machine.answer(&question)?;
        let accepted = self.machine.committed().map(|record| record.at);
        if let Some(record) = self.machine.staged()
            && let Err(error) = self.slots.write(record, accepted)
        {
            // What is not durable does not count: the question is answered anew.
            self.machine.drop_staged();
            return Err(error);
        }
        Ok(Some(answer))
    }

    /// Keeps the model, and what the client has of its own, before the coordinator hears that it may
    /// go.
    fn deliver(&mut self, message: &[u8]) -> Result<()> {
        let files = files_from_bytes(message)?;
        if let Some(own) = self.machine.artifact()? {
            write_atomically(&self.folder.join(OWN), &own.to_bytes())?;
        }
        write_atomically(&self.folder.join(DELIVERED), message)?;
        self.files = Some(files);
        Ok(())
    }
}

fn stage_path(folder: &Path, stage: u32) -> PathBuf {
    folder.join(format!("stage-{stage}"))
}
