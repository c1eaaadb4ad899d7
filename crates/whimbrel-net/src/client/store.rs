//! The store of a client: the engine's [`ClientMachine`] and its folder.

use super::slots::Slots;
use crate::coordinator::files_from_bytes;
use crate::invitation::Fingerprint;
use crate::proto::{Kind, Verdict};
use std::path::{Path, PathBuf};
use whimbrel_core::wire::hex;
use whimbrel_core::{ClientId, Error, Result, Wire};
use whimbrel_engine::Ledger;
use whimbrel_engine::client::{
    ClientMachine, Participant, Purpose, Question, Record, StepId, sha256,
};
use whimbrel_engine::versioned;

/// File of the delivered model.
const DELIVERED: &str = "delivered";
/// File of the ledger, which is also part of the slots.
const LEDGER: &str = "ledger";
/// File of the certificates that the coordinator announced.
const PINS: &str = "pins";
const PINS_MAX: usize = 4;

/// A participant and its durable state.
pub struct ClientStore {
    machine: ClientMachine,
    folder: PathBuf,
    slots: Slots,
    /// Maximal bytes of a message, from the offer.
    message_bytes: u64,
    /// The model's files, once delivered.
    files: Option<Vec<(String, Vec<u8>)>>,
}

impl ClientStore {
    /// Opens a folder. Messages longer than `message_bytes` will be refused.
    pub fn open(participant: Participant, message_bytes: u64, folder: &Path) -> Result<Self> {
        let (slots, records) = Slots::open(folder)?;
        let files = versioned::read(&folder.join(DELIVERED))?;
        let files = files.map(|bytes| files_from_bytes(&bytes)).transpose()?;
        let stage = records.iter().map(|record| record.at.stage).max();
        let delivered = stage.map(|stage| match versioned::read(&stage_path(folder, stage))? {
            Some(bytes) => Ok((stage, bytes)),
            None => Err(Error::data(format!(
                "{}: it is missing in this client's folder",
                stage_path(folder, stage).display()
            ))),
        });
        let ledger = read_ledger_file(folder)?;
        let machine = ClientMachine::restore(participant, records, delivered.transpose()?, ledger);
        Ok(Self { machine, folder: folder.to_path_buf(), slots, message_bytes, files })
    }

    pub fn message_bytes(&self) -> u64 {
        self.message_bytes
    }

    /// The last accepted step, and the staged step.
    pub fn standing(&self) -> (Option<StepId>, Option<StepId>) {
        let at = |record: &Record| record.at;
        (self.machine.committed().map(at), self.machine.staged().map(at))
    }

    /// The stage under way, its answered rounds, and their maximum if the job has one.
    pub(super) fn progress(&self) -> Option<(&'static str, u32, Option<u32>)> {
        self.machine.progress()
    }

    /// Bytes of all answers so far.
    pub(super) fn sent(&self) -> u64 {
        self.machine.ledger().bytes()
    }

    /// Parts withheld from all answers so far.
    pub(super) fn withheld(&self) -> u64 {
        self.machine.ledger().withheld()
    }

    /// Applies the outcome of the staged step.
    pub fn learn(&mut self, verdict: Verdict) -> Result<()> {
        match verdict {
            Verdict::Accepted => self.machine.accept(),
            Verdict::Dropped => self.machine.drop_staged(),
            Verdict::Forgotten => self.machine.forget()?,
            Verdict::Open => {}
        }
        Ok(())
    }

    /// Applies the outcome of an upload. An evaluation shares its step with the next exchange, so its
    /// outcome is ignored.
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

    /// Carries out a task and returns the answer; `None` for a delivery.
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
                return Err(Error::peer("the coordinator sent a task of an unknown kind"));
            }
        };
        let question = Question { purpose, at, client: ClientId(client), message: message.into() };
        if purpose == Purpose::Evaluate {
            let before = self.machine.ledger().entries();
            let answer = self.machine.answer(&question)?;
            // The slot of an exchange contains the ledger; an evaluation has no slot.
            if self.machine.ledger().entries() != before {
                self.keep_ledger()?;
            }
            return Ok(Some(answer));
        }
        if let Some(record) = self.machine.answered(&question, &sha256(message)) {
            return Ok(Some(record.upload.clone()));
        }
        if purpose == Purpose::Enrol {
            // Written first, so that the stage can be rebuilt after a crash.
            versioned::write(&stage_path(&self.folder, at.stage), message)?;
        }
        let answer = match self.machine.answer(&question) {
            Ok(answer) => answer,
            Err(error) => {
                self.keep_ledger()?;
                return Err(error);
            }
        };
        let accepted = self.machine.committed().map(|record| record.at);
        if let Some(record) = self.machine.staged()
            && let Err(error) = self.slots.write(record, accepted)
        {
            // A step that is not durable does not count; the task is answered again.
            self.machine.drop_staged();
            return Err(error);
        }
        Ok(Some(answer))
    }

    /// Records the user's renewed consent.
    pub fn renew(&mut self) -> Result<()> {
        self.machine.renew();
        self.keep_ledger()
    }

    /// Stores a future certificate that the authenticated coordinator announced.
    pub fn pin(&mut self, next: &[u8]) -> Result<()> {
        let Ok(next) = Fingerprint::try_from(next) else { return Ok(()) };
        let mut pins = read_pins(&self.folder)?;
        if pins.contains(&next) {
            return Ok(());
        }
        tracing::warn!("the coordinator announces the certificate {}", hex(&next));
        // A client that was away for more changes needs a new invitation.
        pins.push(next);
        let first = pins.len().saturating_sub(PINS_MAX);
        versioned::write(&self.folder.join(PINS), &pins[first..].concat())
    }

    fn keep_ledger(&self) -> Result<()> {
        versioned::write(&self.folder.join(LEDGER), &self.machine.ledger().to_bytes())
    }

    /// Stores the model and the personal artifact before the delivery is confirmed.
    fn deliver(&mut self, message: &[u8]) -> Result<()> {
        let files = files_from_bytes(message)?;
        if let Some(own) = self.machine.artifact()? {
            versioned::write(&self.folder.join(versioned::OWN), &own.to_bytes())?;
        }
        versioned::write(&self.folder.join(DELIVERED), message)?;
        self.files = Some(files);
        Ok(())
    }
}

/// Certificates that the coordinator announced.
pub(super) fn read_pins(folder: &Path) -> Result<Vec<Fingerprint>> {
    let bytes = versioned::read(&folder.join(PINS))?.unwrap_or_default();
    Ok(bytes.as_chunks::<32>().0.to_vec())
}

/// The ledger of a folder's client: the latest of those in its slots and its file.
pub fn read_ledger(folder: &Path) -> Result<Ledger> {
    let records = Slots::read_all(folder)?.into_iter().map(|record| record.ledger);
    let ledgers = records.chain([read_ledger_file(folder)?]);
    Ok(ledgers.max_by_key(Ledger::entries).unwrap_or_default())
}

/// The last accepted and the staged step of a folder's client, as [`ClientMachine::restore`] takes
/// them.
pub(super) fn standing(folder: &Path) -> Result<(Option<StepId>, Option<StepId>)> {
    let mut records = Slots::read_all(folder)?;
    records.sort_by_key(|record| record.ledger.entries());
    let Some(staged) = records.pop() else { return Ok((None, None)) };
    let committed = records.pop().map(|record| record.at).filter(|at| Some(*at) == staged.base);
    Ok((committed, Some(staged.at)))
}

fn read_ledger_file(folder: &Path) -> Result<Ledger> {
    versioned::read(&folder.join(LEDGER))?
        .map_or_else(|| Ok(Ledger::default()), |bytes| Ledger::from_bytes(&bytes))
}

fn stage_path(folder: &Path, stage: u32) -> PathBuf {
    folder.join(format!("stage-{stage}"))
}
