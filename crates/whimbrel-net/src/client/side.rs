//! A client's half of the method: what it computes when it is asked.

use super::slots::{Slot, Slots};
use crate::coordinator::files_from_bytes;
use crate::point::Point;
use crate::proto::{Kind, Verdict};
use crate::tls::sha256;
use std::path::{Path, PathBuf};
use whimbrel_core::method::Artifact;
use whimbrel_core::{ClientData, ClientId, Error, Opaque, Part, Result, Wire};
use whimbrel_engine::Chain;
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::run::Stage;

/// The model as it came.
const DELIVERED: &str = "delivered";

/// What takes part: the job's stages, built from the offer, and the rows.
pub struct Participant {
    /// The stages.
    pub chain: Box<dyn Chain + Send>,
    /// The rows.
    pub data: ClientData,
    /// The seed of every draw.
    pub seed: u64,
    /// Whether it was agreed to answer evaluations.
    pub evaluates: bool,
    /// The longest message that is taken from the coordinator, as the offer says.
    pub message_bytes: u64,
}

/// A participant and what it remembers.
pub struct ClientSide {
    participant: Participant,
    folder: PathBuf,
    slots: Slots,
    stage: Option<Open>,
    /// The model's files, once delivered.
    files: Option<Vec<(String, Vec<u8>)>>,
}

/// The stage under way.
struct Open {
    index: u32,
    stage: Stage,
    data: Opaque,
}

impl ClientSide {
    /// Goes on with what the folder holds.
    pub fn open(participant: Participant, folder: &Path) -> Result<Self> {
        let slots = Slots::open(folder)?;
        let files = match std::fs::read(folder.join(DELIVERED)) {
            Ok(bytes) => Some(files_from_bytes(&bytes)?),
            Err(_) => None,
        };
        let folder = folder.to_path_buf();
        Ok(Self { participant, folder, slots, stage: None, files })
    }

    /// The longest message that it takes.
    pub fn message_bytes(&self) -> u64 {
        self.participant.message_bytes
    }

    /// Where this client stands: the accepted step, and the one whose fate it does not know.
    pub fn standing(&self) -> (Option<Point>, Option<Point>) {
        let point = |slot: &Slot| slot.point;
        (self.slots.committed().map(point), self.slots.staged().map(point))
    }

    /// Learns the fate of the staged step.
    pub fn learn(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Accepted => self.slots.accept(),
            Verdict::Dropped => self.slots.drop_staged(),
            Verdict::Forgotten => self.slots.forget(),
            Verdict::Open => {}
        }
    }

    /// Learns the fate of an upload. An evaluation shares its point with the exchange after it, and
    /// what became of its answer says nothing about that exchange.
    pub fn acknowledged(&mut self, kind: Kind, point: Point, accepted: bool) {
        let commits = matches!(kind, Kind::Enrol | Kind::Exchange);
        if commits && self.slots.staged().is_some_and(|slot| slot.point == point) {
            self.learn(if accepted { Verdict::Accepted } else { Verdict::Dropped });
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
        point: Point,
        client: u32,
        message: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        match kind {
            Kind::Enrol => self.enrol(point, client, message).map(Some),
            Kind::Exchange => self.exchange(point, client, message).map(Some),
            Kind::Evaluate => self.evaluate(point, message).map(Some),
            Kind::Deliver => {
                self.files = Some(files_from_bytes(message)?);
                // Kept before the coordinator hears that it may go.
                write_atomically(&self.folder.join(DELIVERED), message)?;
                Ok(None)
            }
            Kind::Unspecified => Err(Error::peer("the coordinator asks for something unknown")),
        }
    }

    fn enrol(&mut self, point: Point, client: u32, message: &[u8]) -> Result<Vec<u8>> {
        let asked = sha256(message);
        if let Some(upload) = self.staged(point, client, &asked) {
            return Ok(upload);
        }
        // Kept first: after a crash the stage is built again without being told again.
        write_atomically(&self.delivered_path(point.stage), message)?;
        self.enter(point.stage, Vec::from_bytes(message)?)?;
        let open = self.stage.as_ref().ok_or_else(no_stage)?;
        let key = StageKeys::new(self.participant.seed, point.stage).enrol(ClientId(client));
        let (state, summary) = open.stage.method.enroll(&open.data, key)?;
        let state = open.stage.method.save(Part::Client, &state)?;
        self.keep(point, client, asked, state, summary)
    }

    fn exchange(&mut self, point: Point, client: u32, message: &[u8]) -> Result<Vec<u8>> {
        let asked = sha256(message);
        if let Some(upload) = self.staged(point, client, &asked) {
            return Ok(upload);
        }
        // To be asked is to be enrolled: a late joiner is told of both together.
        if self.slots.staged().is_some_and(|slot| slot.point == Point::enrolment(point.stage)) {
            self.slots.accept();
        }
        let number = point.number().ok_or_else(|| Error::peer("an exchange without a number"))?;
        let keys = StageKeys::new(self.participant.seed, point.stage);
        let (open, state) = self.current(point.stage)?;
        let key = keys.exchange(number).local(ClientId(client));
        let (state, upload) =
            open.stage.method.local_step(&state, &message.to_vec().into(), &open.data, key)?;
        let state = open.stage.method.save(Part::Client, &state)?;
        self.keep(point, client, asked, state, upload)
    }

    fn evaluate(&mut self, point: Point, ask: &[u8]) -> Result<Vec<u8>> {
        if !self.participant.evaluates {
            return Err(Error::peer(
                "the coordinator asks for an evaluation, which was not agreed to",
            ));
        }
        let (open, state) = self.current(point.stage)?;
        open.stage.method.answer(&state, &ask.to_vec().into(), &open.data)
    }

    /// What was computed for this step before, if it was for the same message: a coordinator that
    /// came back may let other clients join before the step, and then its message is another one.
    fn staged(&self, point: Point, client: u32, asked: &[u8; 32]) -> Option<Vec<u8>> {
        let slot = self.slots.staged()?;
        let same = slot.point == point && slot.client == client && slot.asked == asked;
        same.then(|| slot.upload.clone())
    }

    fn keep(
        &mut self,
        point: Point,
        client: u32,
        asked: [u8; 32],
        state: Vec<u8>,
        upload: Vec<u8>,
    ) -> Result<Vec<u8>> {
        let base = self.slots.committed().map(|slot| slot.point);
        let asked = asked.to_vec();
        let slot = Slot { point, base, client, asked, state, upload: upload.clone() };
        self.slots.stage(slot)?;
        Ok(upload)
    }

    /// The stage and the accepted state in it.
    fn current(&mut self, stage: u32) -> Result<(&Open, Opaque)> {
        if self.stage.as_ref().is_none_or(|open| open.index != stage) {
            let path = self.delivered_path(stage);
            let bytes = std::fs::read(&path).map_err(|e| {
                Error::data(format!(
                    "{}: this client's folder is not complete: {e}",
                    path.display()
                ))
            })?;
            self.enter(stage, Vec::from_bytes(&bytes)?)?;
        }
        let slot = self.slots.committed().filter(|slot| slot.point.stage == stage);
        let slot = slot.ok_or_else(|| {
            Error::peer(format!("the coordinator asks for stage {stage} before its enrolment"))
        })?;
        let open = self.stage.as_ref().ok_or_else(no_stage)?;
        let state = open.stage.method.load(Part::Client, &slot.state)?;
        Ok((open, state))
    }

    /// Builds a stage and binds the rows to it.
    fn enter(&mut self, index: u32, delivered: Vec<Artifact>) -> Result<()> {
        if index as usize >= self.participant.chain.len() {
            return Err(Error::peer(format!(
                "the coordinator asks for stage {index}, and there is none"
            )));
        }
        // The stage before is over: its rows go before the next one's come.
        self.stage = None;
        let stage = self.participant.chain.build(index as usize, &delivered)?;
        let data = stage.method.bind(&self.participant.data)?;
        self.stage = Some(Open { index, stage, data });
        Ok(())
    }

    fn delivered_path(&self, stage: u32) -> PathBuf {
        self.folder.join(format!("stage-{stage}"))
    }
}

fn no_stage() -> Error {
    Error::internal("a stage was entered and is not there")
}
