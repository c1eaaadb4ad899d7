//! Runs a whole job through bytes alone: clients are processes of their own, and everything that
//! passes between them and the server goes through two pipes.
//!
//! `cargo run --release --example drive -- JOB.toml OUT` starts one process per client (this program
//! again, with `--client`), runs every stage, and writes the folder that `whimbrel run` would write,
//! with the same model to the bit. A frame is its length (four bytes, little-endian) and its bytes:
//!
//! | to a client | back |
//! |---|---|
//! | `0`, then a [`Question`] | the answer's bytes |
//! | `1`, then a [`StepId`] and whether it was accepted | nothing |

use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use whimbrel::parts::core::{ClientId, Error, Wire};
use whimbrel::parts::engine::keeper::Folder;
use whimbrel::parts::engine::{
    ClientMachine, Consent, Participant, Question, Remote, StepId, Transport, run_with,
};
use whimbrel::parts::families::Job;
use whimbrel::parts::families::family::RunData;
use whimbrel::parts::families::load::{Loaded, load};
use whimbrel::parts::families::plan::Plan;
use whimbrel::parts::runs::RunDir;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [flag, at, job] if flag == "--client" => client(Path::new(job), at.parse()?),
        [job, out] => server(Path::new(job), Path::new(out)),
        _ => Err("usage: drive JOB.toml OUT".into()),
    }
}

/// Reads a job, its data and what it comes to.
fn read(path: &Path) -> Result<(Job, Loaded, Plan)> {
    let mut job = Job::parse(&std::fs::read_to_string(path)?, &path.display().to_string())?;
    let folder = path.parent().unwrap_or(Path::new("."));
    job.paths_mut().into_iter().for_each(|named| *named = folder.join(&*named));
    let loaded = load(&job)?;
    let plan = Plan::new(&job, &loaded)?;
    Ok((job, loaded, plan))
}

/// The server: a plan, a folder, and pipes.
fn server(path: &Path, out: &Path) -> Result<()> {
    let (job, loaded, plan) = read(path)?;
    let names: Vec<String> = loaded.clients.iter().map(|(name, _)| name.clone()).collect();
    let pipes = (0..names.len()).map(|at| Pipe::open(path, at)).collect::<Result<_>>()?;
    let mut carrier = Remote(Pipes { names, pipes });
    let mut keeper = Folder::create(out, Duration::from_secs(60))?;
    let calm = AtomicBool::new(false);
    let outcome = run_with(&plan, &mut carrier, &mut keeper, job.seed, &calm, &mut ())?;
    RunDir::adopt(out).finish(&job, &RunData::of(&loaded), &outcome, &plan)?;
    Ok(())
}

/// One client: a machine between standard input and standard output.
fn client(path: &Path, at: usize) -> Result<()> {
    let (job, mut loaded, plan) = read(path)?;
    let data = loaded.clients.swap_remove(at).1;
    let chain = Box::new(plan);
    let participant = Participant { chain, data, seed: job.seed, consent: Consent::default() };
    let mut machine = ClientMachine::new(participant);
    let (mut from, mut to) = (std::io::stdin().lock(), std::io::stdout().lock());
    while let Some(frame) = receive(&mut from)? {
        match frame.split_first() {
            Some((0, question)) => {
                let answer = machine.answer(&Question::from_bytes(question)?)?;
                send(&mut to, &answer)?;
            }
            Some((1, fate)) => {
                let (at, accepted) = <(StepId, bool)>::from_bytes(fate)?;
                machine.acknowledge(at, accepted);
            }
            _ => return Err("a frame of no kind".into()),
        }
    }
    Ok(())
}

struct Pipe {
    child: Child,
    to: Option<BufWriter<ChildStdin>>,
    from: BufReader<ChildStdout>,
}

impl Pipe {
    fn open(job: &Path, at: usize) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--client", &at.to_string()])
            .arg(job)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take().map(BufWriter::new);
        let from = BufReader::new(child.stdout.take().ok_or("no pipe from a client")?);
        Ok(Self { child, to, from })
    }

    fn send(&mut self, frame: &[u8]) -> whimbrel::parts::core::Result<()> {
        let to = self.to.as_mut().ok_or_else(|| Error::internal("the pipe is closed"))?;
        send(to, frame).map_err(|e| Error::peer(format!("a client is gone: {e}")))
    }
}

/// A client ends when nothing more can come.
impl Drop for Pipe {
    fn drop(&mut self) {
        self.to = None;
        let _ = self.child.wait();
    }
}

struct Pipes {
    names: Vec<String>,
    pipes: Vec<Pipe>,
}

impl Transport for Pipes {
    type Answer = Vec<u8>;

    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    fn ask(
        &mut self,
        questions: Vec<Question>,
    ) -> whimbrel::parts::core::Result<Vec<(ClientId, Vec<u8>)>> {
        // All questions first: clients compute at the same time.
        for question in &questions {
            let frame = [vec![0], question.to_bytes()].concat();
            self.pipes[question.client.0 as usize].send(&frame)?;
        }
        let answer = |question: &Question| {
            let id = question.client;
            let answer = receive(&mut self.pipes[id.0 as usize].from);
            match answer.map_err(|e| Error::peer(format!("client {id}: {e}")))? {
                Some(answer) => Ok((id, answer)),
                None => Err(Error::peer(format!("client {id} is gone"))),
            }
        };
        questions.iter().map(answer).collect()
    }

    fn acknowledge(
        &mut self,
        id: ClientId,
        at: StepId,
        accepted: bool,
    ) -> whimbrel::parts::core::Result<()> {
        let frame = [vec![1], (at, accepted).to_bytes()].concat();
        self.pipes[id.0 as usize].send(&frame)
    }
}

fn send(to: &mut impl Write, frame: &[u8]) -> std::io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(std::io::Error::other)?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(frame)?;
    to.flush()
}

/// The next frame; none where the other end closed the pipe between frames.
fn receive(from: &mut impl Read) -> std::io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if from.read(&mut length[..1])? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut length[1..])?;
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut frame)?;
    Ok(Some(frame))
}
