//! A method over `f32`: four bytes a number in every state and message, over every channel.

use crate::federation::{dither, equal_terms, unequal};
use std::borrow::Cow;
use std::sync::Arc;
use whimbrel_codec::Codec;
use whimbrel_codec::channel::{DownRule, Downlink, Feedback, Memories, Reset, UpRule, Uplink};
use whimbrel_core::declare::Measure;
use whimbrel_core::method::{
    Artifact, Bind, Declaration, Disclosure, Done, Exposure, Method, Metric,
};
use whimbrel_core::{ClientData, ClientId, Erased, Error, Key, Result, Wire, vector};
use whimbrel_methods::federated::{
    Answered, BindRows, Computed, Context, ExchangeKind, Federated, Figures, Judge, Member, Oracle,
    Publish, Received, Split, Terms,
};
use whimbrel_testkit::method::{MethodUnderTest, laws};
use whimbrel_testkit::runners::runners_agree;

const D: usize = 40;
const GAMMA: f64 = 0.2;

/// `min Σ n_i ||w − m_i||²/2`, with `m_i` a client's target.
struct Middle;

impl Oracle for Middle {
    type Number = f32;
    type Data = Vec<f32>;
    type Own = ();
    type Global = Vec<f32>;
    type Summary = ();
    type Record = ();
    type Note = ();
    type Private = ();

    fn declare(&self, _: &Terms) -> Declaration {
        let exposure = Exposure::Aggregate;
        let all = |message| Disclosure { message, meaning: "all".into(), bytes_max: 600, exposure };
        let measures = vec![Measure::objective("half the squared distances")];
        let disclosures = ["summary", "up", "answer"].map(all).into();
        Declaration { disclosures, measures, ..Declaration::default() }
    }
    fn bind(&self, data: &ClientData) -> Result<(Vec<f32>, u64)> {
        let ClientData::Table(table) = data else { return Err(Error::data("no table")) };
        let first = table.row(0);
        let target = |j: usize| (first[j % first.len()] * (1.0 + j as f64 / 10.0)) as f32;
        Ok(((0..D).map(target).collect(), 1))
    }
    fn enroll(&self, _: &Vec<f32>, _: Key) -> Result<((), ())> {
        Ok(((), ()))
    }
    fn start(
        &self,
        roster: &mut dyn Iterator<Item = Result<Member<()>>>,
        _: &Terms,
        _: Key,
    ) -> Result<Vec<f32>> {
        match roster.map(|member| member.map(|_| 1)).sum::<Result<u32>>()? {
            0 => Err(Error::data("there is no client")),
            _ => Ok(vec![0.0; D]),
        }
    }
    fn published<'a>(&self, w: &'a Vec<f32>, _: ExchangeKind) -> Cow<'a, [f32]> {
        w.into()
    }
    fn local(
        &self,
        received: &Received<'_, Self>,
        (): &(),
        target: &Vec<f32>,
        _: Key,
    ) -> Result<Computed<Self>> {
        let value = received.state.iter().zip(target).map(|(w, m)| w - m).collect();
        Ok(Computed::new((), value))
    }
    fn step(
        &self,
        w: &mut Vec<f32>,
        gradient: Vec<f64>,
        _: &Context,
        publish: Publish<'_, f32>,
    ) -> Result<f64> {
        w.iter_mut().zip(&gradient).for_each(|(w, g)| *w = (f64::from(*w) - GAMMA * g) as f32);
        *w = publish(std::mem::take(w))?;
        Ok(vector::norm2_squared(&gradient))
    }
    fn magnitude(&self, w: &Vec<f32>, _: f64) -> f64 {
        1.0 + w.iter().map(|w| f64::from(w * w)).sum::<f64>()
    }
    fn artifact(&self, _: &Vec<f32>) -> Result<Artifact> {
        Ok(Artifact::default())
    }
}

impl Judge for Middle {
    type Ask = Vec<f32>;
    type Answer = f64;

    fn ask(&self, w: &Vec<f32>, _: &Terms) -> Result<Vec<f32>> {
        Ok(w.clone())
    }
    fn answer(
        &self,
        w: &Vec<f32>,
        (): &(),
        data: &Split<Vec<f32>>,
        _: &Terms,
    ) -> Result<Answered<Self>> {
        let limit: Vec<f32> = w.iter().zip(&data.train).map(|(w, m)| w - m).collect();
        let answer = limit.iter().map(|x| f64::from(x * x)).sum();
        Ok(Answered { answer, memory_limit: Some(limit), parts: Vec::new() })
    }
    fn figures(&self, loss: &f64, weight: f64) -> Figures {
        Figures::of_loss(*loss, weight)
    }
    fn conclude(&self, _: &Vec<f32>, sums: &[f64], _: f64, _: &Context) -> Result<Vec<Metric>> {
        Ok(vec![Metric::number("objective", sums[0])])
    }
}

fn method(up: (Codec, UpRule), down: (Codec, DownRule), rounds: u32) -> Federated<Middle> {
    Federated {
        oracle: Middle,
        terms: equal_terms(
            Uplink::new(up.0, up.1, D).unwrap(),
            Downlink::new(down.0, down.1, D, false).unwrap(),
            rounds,
        ),
    }
}

fn data() -> Vec<ClientData> {
    unequal(7).into_iter().map(ClientData::Table).collect()
}

#[test]
fn the_laws_of_methods_and_every_runner() {
    let preserved = |memories| DownRule::Preserved { alpha: 0.1, memories };
    let ups = [
        (Codec::Exact, UpRule::Plain),
        (dither(), UpRule::Memory { alpha: 0.1 }),
        (dither(), UpRule::Feedback),
    ];
    let downs = [
        DownRule::Exact,
        DownRule::Degraded { feedback: Feedback::Contractive },
        DownRule::Detached,
        DownRule::Ghost,
        preserved(Memories::Groups(2)),
        preserved(Memories::PerClient),
        preserved(Memories::Single { reset: Reset::Every(3) }),
    ];
    let data = data();
    for up in ups {
        for rule in &downs {
            let name = format!("f32, {:?}, {rule:?}", up.1);
            let method = Arc::new(Erased(method(up.clone(), (dither(), *rule), 6), BindRows));
            laws(&MethodUnderTest { name: &name, method: &*method, data: &data, exchanges: 5 });
            runners_agree(&name, method, &data);
        }
    }
}

/// In the exact channel's limit the model is the mean of the targets, to rounding of `f32`; states
/// and messages take four bytes a number.
#[test]
fn numbers_take_four_bytes_everywhere() {
    let up = (Codec::Exact, UpRule::Memory { alpha: 1.0 });
    let per_client = DownRule::Preserved { alpha: 0.3, memories: Memories::PerClient };
    let fine = Codec::dithering(64, whimbrel_codec::Norm::Infinity, None).unwrap();
    let method = method(up, (fine, per_client), 100);
    let targets: Vec<_> = data().iter().map(|d| BindRows.bind(&method, d).unwrap()).collect();
    let ids: Vec<ClientId> = (0..targets.len() as u32).map(ClientId).collect();
    let (mut clients, summaries): (Vec<_>, Vec<_>) =
        targets.iter().map(|m| method.enroll(m, Key::root(1)).unwrap()).unzip();
    let mut roster = ids.iter().copied().zip(summaries.iter().cloned());
    let mut server = method.start(&mut roster, Key::root(2)).unwrap();
    let admit = |id: &ClientId| method.admit(&mut server, *id, &summaries[0]).unwrap();
    let mut peers: Vec<_> = ids.iter().map(admit).collect();
    for round in 0..100u64 {
        let (broadcast, mut fold) = method.open(&server, &[]).unwrap();
        for (i, id) in ids.iter().enumerate() {
            let key = Key::root(3).child(round).child(i as u64);
            let (peer, down) = method.downlink(&server, &broadcast, &peers[i], key).unwrap();
            let Done { client, up, .. } =
                method.local_step(&clients[i], &down, &targets[i], key).unwrap();
            if round == 0 {
                // The first message is the whole model; the memory is opened exactly.
                assert!(down.to_bytes().len() < 4 * D + 10, "{}", down.to_bytes().len());
                assert!(up.to_bytes().len() < 4 * D + 10, "{}", up.to_bytes().len());
                assert!(client.to_bytes().len() < 2 * 4 * D + 10);
                assert!(peer.to_bytes().len() < 4 * D + 60, "{}", peer.to_bytes().len());
            }
            let from = whimbrel_core::method::Sender { id: *id, inclusion: 1.0, peer: &peer };
            method.absorb(&mut fold, from, up).unwrap();
            (peers[i], clients[i]) = (peer, client);
        }
        server = method.server_step(server, fold, Key::root(4).child(round)).unwrap();
    }
    for (j, w) in server.global.iter().enumerate() {
        let mean =
            targets.iter().map(|m| f64::from(m.train[j])).sum::<f64>() / targets.len() as f64;
        let scale = targets.iter().map(|m| f64::from(m.train[j].abs())).fold(1.0, f64::max);
        // (1 − γ)^100 of the start is 2e-10; rounding of w, g and h_i about four units of 2^-24,
        // divided by γ.
        let gap = (f64::from(*w) - mean).abs();
        assert!(gap < 20.0 * 2f64.powi(-24) * scale, "coordinate {j}: {gap:e} of {scale}");
    }
}
