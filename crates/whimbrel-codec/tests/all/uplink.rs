//! The rules of an uplink over many rounds.

use whimbrel_codec::channel::{UpClient, UpFold, UpRule, UpServer, Uplink, Upload, em_alpha};
use whimbrel_codec::{Codec, Norm, Packet, Scalar};
use whimbrel_core::{Key, vector};
use whimbrel_testkit::pairs;

const D: usize = 12;
const WEIGHTS: [f64; 3] = [3.0, 1.0, 5.0];

fn dither() -> Codec {
    Codec::dithering(1, Norm::P(2), None).unwrap()
}

fn gradient(client: u64, round: u64) -> Vec<f64> {
    let mut stream = Key::root(9).child(client).child(round).stream();
    (0..D).map(|j| stream.uniform() - 0.5 + client as f64 + j as f64 / 10.0).collect()
}

/// The server's estimate from one packet of a client with weight and inclusion probability 1.
fn received(uplink: &Uplink, packet: &Packet) -> Vec<f64> {
    let mut fold = uplink.fold();
    uplink.absorb::<f64>(&mut fold, &Upload::whole(packet, 1.0), 1.0).unwrap();
    uplink.collect(&mut uplink.server(), &[(&fold, None)], 1.0)
}

fn close(a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len());
    for (x, y) in pairs(a, b) {
        assert!((x - y).abs() <= tolerance * (1.0 + y.abs()), "{x} is not {y}");
    }
}

/// `sum_k C_k + e_K = sum_k g_k`: compression errors are sent later.
#[test]
fn fed_back_errors_telescope() {
    for codec in [Codec::top_k(2).unwrap(), Codec::Sign, dither()] {
        let uplink = Uplink::new(codec.clone(), UpRule::Feedback, D).unwrap();
        let (mut end, mut sent, mut wanted) = (uplink.client(), vec![0.0; D], vec![0.0; D]);
        for round in 0..40 {
            let g = gradient(0, round);
            let (next, packet) = uplink.send(&end, &g, None, Key::root(1).child(round)).unwrap();
            vector::axpy(&mut sent, 1.0, &received(&uplink, &packet));
            vector::axpy(&mut wanted, 1.0, &g);
            end = next;
        }
        assert!(vector::norm2_squared(&end.kept) > 0.0, "{}: nothing is left out", codec.name());
        vector::axpy(&mut sent, 1.0, &end.kept);
        close(&sent, &wanted, 1e-12);
    }
}

/// Scaled by `1/(1 + omega)` an unbiased codec contracts, so its errors stay bounded.
#[test]
fn feedback_scales_an_unbiased_codec_to_a_contraction() {
    let uplink = Uplink::new(dither(), UpRule::Feedback, D).unwrap();
    let g = gradient(0, 0);
    let (_, packet) = uplink.send(&uplink.client(), &g, None, Key::root(2)).unwrap();
    let mut plain = vec![0.0; D];
    dither().decode(&packet, &mut plain).unwrap();
    vector::scale(&mut plain, 1.0 / (1.0 + uplink.omega().unwrap()));
    close(&received(&uplink, &packet), &plain, 1e-15);
}

/// The server's sum is `sum n_i h_i` of the clients' memories for any set of accepted uploads, and the
/// estimate is the sum before the round plus the accepted uploads.
#[test]
fn memory_sums_are_the_sums_of_the_memories() {
    let alpha = em_alpha(dither().omega(D).unwrap());
    let uplink = Uplink::new(dither(), UpRule::Memory { alpha }, D).unwrap();
    let mut ends = WEIGHTS.map(|_| uplink.client());
    let mut server = uplink.server();
    let total: f64 = WEIGHTS.iter().sum();
    for round in 0..30 {
        let mut fold = uplink.fold();
        let mut wanted = server.memory_sum.clone();
        for (i, end) in ends.iter_mut().enumerate() {
            // One client in turn is not asked, and one upload in seven is lost.
            if round as usize % 3 == i || (round as usize + i).is_multiple_of(7) {
                continue;
            }
            let key = Key::root(3).child(round).child(i as u64);
            let (next, packet) = uplink.send(end, &gradient(i as u64, round), None, key).unwrap();
            uplink.absorb::<f64>(&mut fold, &Upload::whole(&packet, WEIGHTS[i]), 0.5).unwrap();
            vector::axpy(&mut wanted, WEIGHTS[i] / 0.5, &received(&uplink, &packet));
            *end = next;
        }
        vector::scale(&mut wanted, 1.0 / total);
        close(&uplink.collect(&mut server, &[(&fold, None)], total), &wanted, 1e-12);
        let mut sum = vec![0.0; D];
        for (end, weight) in ends.iter().zip(WEIGHTS) {
            if !end.kept.is_empty() {
                vector::axpy(&mut sum, weight, &end.kept);
            }
        }
        close(&server.memory_sum, &sum, 1e-12);
    }
}

/// A narrow memory is rounded where the server's sum is not: by half a unit in the last place of
/// `f32` for each client and accepted upload, at most.
#[test]
fn narrow_memories_stay_within_their_rounding_of_the_sum() {
    let alpha = em_alpha(dither().omega(D).unwrap());
    let uplink = Uplink::new(dither(), UpRule::Memory { alpha }, D).unwrap();
    let mut ends: [UpClient<f32>; 3] = WEIGHTS.map(|_| uplink.client());
    let (mut server, mut largest) = (uplink.server(), 0.0f64);
    for round in 0..200u32 {
        let mut fold = uplink.fold();
        for (i, end) in ends.iter_mut().enumerate() {
            let key = Key::root(8).child(u64::from(round)).child(i as u64);
            let g = gradient(i as u64, u64::from(round));
            let g: Vec<f32> = g.into_iter().map(|g| g as f32).collect();
            let (next, packet) = uplink.send(end, &g, None, key).unwrap();
            uplink.absorb::<f32>(&mut fold, &Upload::whole(&packet, WEIGHTS[i]), 1.0).unwrap();
            *end = next;
            largest = largest.max(f32::norm_inf(&end.kept));
        }
        uplink.collect(&mut server, &[(&fold, None)], WEIGHTS.iter().sum());
        let units = f64::from(round + 1) * 2f64.powi(-24) * largest;
        for (j, sum) in server.memory_sum.iter().enumerate() {
            let held = ends.iter().zip(WEIGHTS).map(|(end, n)| n * f64::from(end.kept[j]));
            let gap = (sum - held.sum::<f64>()).abs();
            assert!(gap <= units * WEIGHTS.iter().sum::<f64>(), "round {round}: {gap:e}");
        }
    }
}

/// Memories converge to constant values: the differences to send vanish.
#[test]
fn memories_settle_at_constant_values() {
    let alpha = em_alpha(dither().omega(D).unwrap());
    let uplink = Uplink::new(dither(), UpRule::Memory { alpha }, D).unwrap();
    let (mut end, g) = (uplink.client(), gradient(2, 0));
    for round in 0..600 {
        end = uplink.send(&end, &g, None, Key::root(4).child(round)).unwrap().0;
    }
    close(&end.kept, &g, 1e-9);
}

#[test]
fn openings_are_exact_and_kept_where_there_is_a_memory() {
    for rule in [UpRule::Plain, UpRule::Memory { alpha: 0.25 }, UpRule::Feedback] {
        let uplink = Uplink::new(dither(), rule, D).unwrap();
        let mut fold = uplink.fold();
        assert_eq!(uplink.mean_opening(&fold), None, "no client was heard");
        let mut wanted = vec![0.0; D];
        // The upload of the last client is lost.
        for (i, weight) in WEIGHTS.iter().enumerate().take(2) {
            let g = gradient(i as u64, 0);
            let (end, packet) = uplink.open(&g).unwrap();
            assert_eq!(end.kept, if uplink.has_memory() { g.clone() } else { vec![] });
            uplink.absorb_opening::<f64>(&mut fold, &Upload::whole(&packet, *weight)).unwrap();
            vector::axpy(&mut wanted, *weight, &g);
        }
        let mut server = uplink.server();
        uplink.collect_opening(&mut server, &fold);
        if uplink.has_memory() {
            close(&server.memory_sum, &wanted, 1e-15);
        } else {
            assert!(server.memory_sum.is_empty());
        }
        vector::scale(&mut wanted, 1.0 / (WEIGHTS[0] + WEIGHTS[1]));
        close(&uplink.mean_opening(&fold).unwrap(), &wanted, 1e-15);
    }
}

/// Two clients with five and four coordinates of six, who send three and two of theirs a round:
/// the server's sum is that of their memories, which converge to constant values.
#[test]
fn uploads_of_some_coordinates_move_those_alone() {
    let places: [&[u32]; 2] = [&[0, 1, 2, 4, 4], &[5, 4, 3, 1]];
    let sent = [3, 2];
    let uplink = |i: usize| {
        let codec = Codec::dithering(2, Norm::P(2), None).unwrap();
        let alpha = em_alpha(codec.omega(sent[i]).unwrap());
        Uplink::new(codec, UpRule::Memory { alpha }, sent[i]).unwrap()
    };
    let value = |i: usize, at: usize| 1.0 + i as f64 - 0.3 * at as f64;
    let mut ends = [UpClient::default(), UpClient::default()];
    let mut server = UpServer { memory_sum: vec![0.0; 6], grid: None };
    for round in 0..400 {
        let mut fold = UpFold::new(6, true);
        for (i, end) in ends.iter_mut().enumerate() {
            let (uplink, key) = (uplink(i), Key::root(6).child(round).child(i as u64));
            let own = key.child(1).stream().choose(places[i].len(), sent[i]);
            let g: Vec<f64> = own.iter().map(|at| value(i, *at)).collect();
            let length = places[i].len();
            let (next, packet) = uplink.send_at(end, &own, length, &g, key).unwrap();
            let untouched = (0..length).filter(|at| !own.contains(at));
            let kept = |end: &UpClient, at| end.kept.get(at).copied().unwrap_or(0.0);
            untouched.for_each(|at| assert_eq!(kept(&next, at), kept(end, at)));
            let at: Vec<u32> = own.iter().map(|own| places[i][*own]).collect();
            let inclusion = sent[i] as f64 / length as f64;
            let upload = Upload { coordinates: Some(&at), ..Upload::whole(&packet, 1.0) };
            uplink.absorb::<f64>(&mut fold, &upload, inclusion).unwrap();
            *end = next;
        }
        uplink(0).collect(&mut server, &[(&fold, None)], 1.0);
        let mut sum = vec![0.0; 6];
        for (end, places) in ends.iter().zip(places) {
            end.kept.iter().zip(places).for_each(|(kept, at)| sum[*at as usize] += kept);
        }
        close(&server.memory_sum, &sum, 1e-13);
    }
    for (i, end) in ends.iter().enumerate() {
        let wanted: Vec<f64> = (0..places[i].len()).map(|at| value(i, at)).collect();
        close(&end.kept, &wanted, 1e-9);
    }
    assert!(uplink(0).send_at(&ends[0], &[0, 1, 5], 5, &[0.0; 3], Key::root(1)).is_err());
    assert!(uplink(0).send_at(&ends[0], &[0, 1, 2], 4, &[0.0; 3], Key::root(1)).is_err());
}

#[test]
fn biased_codecs_need_feedback() {
    for codec in [Codec::top_k(2).unwrap(), Codec::Sign] {
        assert!(Uplink::new(codec.clone(), UpRule::Feedback, D).is_ok());
        for rule in [UpRule::Plain, UpRule::Memory { alpha: 0.5 }] {
            let error = Uplink::new(codec.clone(), rule, D).unwrap_err().to_string();
            let wanted = format!("{} is biased, so without error feedback", codec.name());
            assert!(error.contains(&wanted), "{error}");
        }
    }
}

#[test]
fn memory_steps_are_in_the_unit_interval() {
    let at = |alpha| Uplink::new(dither(), UpRule::Memory { alpha }, D);
    assert!(at(1.0).is_ok() && at(1e-3).is_ok());
    for alpha in [0.0, -0.1, 1.1, f64::NAN, f64::INFINITY] {
        let error = at(alpha).unwrap_err().to_string();
        assert!(error.contains("is not in (0, 1]"), "{error}");
    }
}

#[test]
fn other_lengths_are_refused() {
    let uplink = Uplink::new(dither(), UpRule::Memory { alpha: 0.5 }, D).unwrap();
    assert!(uplink.send(&uplink.client(), &[0.0; D + 1], None, Key::root(5)).is_err());
    assert!(uplink.open(&[0.0; D - 1]).is_err());
    let end = UpClient { kept: vec![0.0; D - 1] };
    assert!(uplink.send(&end, &[0.0; D], None, Key::root(5)).is_err());
}

#[test]
fn blocks_of_an_uplink_share_no_norm() {
    let codec = Codec::dithering(1, Norm::P(2), None).unwrap();
    let whole = Uplink::new(codec.clone(), UpRule::Plain, 12).unwrap();
    let parts = whole.clone().with_blocks(&[4, 8]).unwrap();
    assert!(whole.clone().with_blocks(&[4, 4]).is_err());
    assert_eq!(parts.omega(), codec.omega(8));
    // A large block does not drown a small one: its coordinates stay within its own norm.
    let g: Vec<f64> = (0..12).map(|i| if i < 4 { 1e6 } else { 1.0 }).collect();
    let (_, packet) = parts.send(&parts.client(), &g, None, Key::root(1)).unwrap();
    let mut fold = parts.fold();
    parts.absorb::<f64>(&mut fold, &Upload::whole(&packet, 1.0), 1.0).unwrap();
    let value = parts.collect(&mut parts.server(), &[(&fold, None)], 1.0);
    assert!(value[4..].iter().all(|x| x.abs() < 3.0), "{value:?}");
    // One block is written as if there were none, and a packet of other blocks is refused.
    let one = whole.clone().with_blocks(&[12]).unwrap();
    let (_, plain) = whole.send(&whole.client(), &g, None, Key::root(1)).unwrap();
    assert_eq!(one.send(&one.client(), &g, None, Key::root(1)).unwrap().1.bytes(), plain.bytes());
    assert!(parts.absorb::<f64>(&mut parts.fold(), &Upload::whole(&plain, 1.0), 1.0).is_err());
}
