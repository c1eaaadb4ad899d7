//! Random federations with random faults, each from a printed seed: the invariants hold after every
//! exchange, and neither threads nor saves and loads nor a replay of the journal change a bit.

use crate::toy::{SOUND, Toy, erased, federation, invariants};
use std::collections::BTreeMap;
use whimbrel_core::{ClientId, Key, Probability, Stream, Wire};
use whimbrel_engine::journal::Line;
use whimbrel_engine::keys::StageKeys;
use whimbrel_engine::runner::SavedStage;
use whimbrel_engine::{Faults, Journal, Participation, Protocol, Simulator};

/// What a seed stands for.
#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    clients: u32,
    rounds: u32,
    opening: bool,
    participation: Participation,
    faults: Faults,
}

impl Case {
    fn draw(seed: u64) -> Self {
        let mut random = Key::root(seed).child(1).stream();
        let clients = 1 + random.below(12) as u32;
        let rounds = 1 + random.below(15) as u32;
        let p = |random: &mut Stream| Probability::new([0.05, 0.5, 1.0][random.below(3) as usize]);
        let participation = match random.below(4) {
            0 => Participation::Everyone,
            1 => Participation::Bernoulli(p(&mut random).unwrap()),
            2 => Participation::PerClient {
                each: (0..clients).map(|_| p(&mut random).unwrap()).collect(),
                others: Probability::new(1.0).unwrap(),
            },
            _ => Participation::Fixed(random.below(u64::from(clients) + 2) as u32),
        };
        let mut faults =
            Faults { lost: [0.0, 0.2, 0.7][random.below(3) as usize], ..Faults::default() };
        for _ in 0..random.below(6) {
            let round = 1 + random.below(u64::from(rounds)) as u32;
            let id = ClientId(random.below(u64::from(clients)) as u32);
            faults.drops.entry(round).or_default().insert(id);
        }
        // Client 0 is always there; some join after the run is over.
        for id in (1..clients).map(ClientId) {
            if random.below(4) == 0 {
                faults.late.insert(id, 1 + random.below(u64::from(rounds) + 2) as u32);
            }
        }
        let opening = random.below(2) == 0;
        Self { seed, clients, rounds, opening, participation, faults }
    }

    fn toy(&self) -> Toy {
        Toy { rounds: self.rounds, opening: self.opening, ..SOUND }
    }

    /// Runs to the end, on the thread counts and with the saves that `chaos` draws.
    fn run(&self, faults: Faults, mut chaos: Option<Stream>, pools: &Pools) -> Result<End, String> {
        let method = erased(self.toy());
        let federation = federation(&*method, self.clients);
        let keys = StageKeys::new(self.seed, 0);
        let start = Simulator::start(
            method.clone(),
            federation.clone(),
            keys,
            self.participation.clone(),
            faults.clone(),
        );
        let mut simulator = start.map_err(|e| e.to_string())?;
        let mut journal = Line::stage_begin(0, &simulator.machine().enrolled()).to_text();
        loop {
            let threads = chaos.as_mut().map_or(0, |c| c.below(pools.0.len() as u64) as usize);
            let done = pools.0[threads].install(|| simulator.step()).map_err(|e| e.to_string())?;
            invariants(&simulator)?;
            let Some(done) = done else { break };
            if let Participation::Everyone = self.participation {
                assert_eq!(done.cohort, simulator.machine().enrolled());
            }
            journal.push_str(&Line::exchange(0, &done).to_text());
            if chaos.as_mut().is_some_and(|c| c.below(3) == 0) {
                let bytes = simulator.save().map_err(|e| e.to_string())?.to_bytes();
                let saved = SavedStage::from_bytes(&bytes).map_err(|e| e.to_string())?;
                let participation = self.participation.clone();
                simulator = Simulator::load(
                    method.clone(),
                    federation.clone(),
                    keys,
                    participation,
                    faults.clone(),
                    &saved,
                )
                .map_err(|e| e.to_string())?;
            }
        }
        if simulator.machine().round() != self.rounds {
            return Err(format!("{} rounds were run", simulator.machine().round()));
        }
        let bytes = simulator.save().map_err(|e| e.to_string())?.to_bytes();
        Ok(End { bytes, journal })
    }
}

#[derive(PartialEq)]
struct End {
    bytes: Vec<u8>,
    journal: String,
}

struct Pools(Vec<rayon::ThreadPool>);

#[test]
fn faults_threads_and_reloads_change_nothing() {
    let pool = |n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap();
    let pools = Pools([1, 2, 3, 7].map(pool).into());
    let mut seen = BTreeMap::<&str, u32>::new();
    for seed in 0..300 {
        let case = Case::draw(seed);
        let check = || -> Result<End, String> {
            let straight = case.run(case.faults.clone(), None, &pools)?;
            let chaos = Key::root(seed).child(2).stream();
            if case.run(case.faults.clone(), Some(chaos), &pools)? != straight {
                return Err("threads and reloads changed the result".into());
            }
            let journal = Journal::parse(&straight.journal, 0).map_err(|e| e.to_string())?;
            let replay = Faults { replay: Some(journal), ..Faults::default() };
            if case.run(replay, None, &pools)? != straight {
                return Err("the replay of the journal differs".into());
            }
            Ok(straight)
        };
        let end = check().unwrap_or_else(|what| panic!("seed {seed}: {what}\n{case:#?}"));
        let mut note = |what, happened: bool| *seen.entry(what).or_default() += u32::from(happened);
        note("an empty cohort", end.journal.contains("\"cohort\":\"\""));
        note("a late joiner", end.journal.contains("\"joined\""));
        note("a round that lost everyone", end.journal.contains("\"accepted\":\"\""));
    }
    // The cases are not all tame.
    assert!(seen.values().all(|times| *times >= 20), "{seen:?}");
}
