//! Traffic beyond the words themselves, beside the figures that the design predicts.

use crate::federation::{clients, id, roster, task, words};
use whimbrel_core::Wire;
use whimbrel_privacy::masks::{Shares, Survivors, Vouch, Vouches};
use whimbrel_privacy::shamir::Element;

/// Bytes up and down of one client, with 5 % of the cohort lost before the upload.
fn traffic(n: usize) -> (f64, f64) {
    let mut clients = clients(n);
    let roster = roster(&clients);
    clients[0].agree(roster).unwrap();
    let upload = clients[0].upload(&task(n, 0), &words(0, 0)).unwrap();
    let (degree, lost) = (upload.boxes.len(), n / 20);
    let lost_near = (degree * lost).div_ceil(n);
    let (exchange, told, alive) = (0, [0; 32], n - lost);
    let boxes = upload.boxes[..degree - lost_near].to_vec();
    let survivors = (0..alive).map(id).collect();
    let down = Survivors { exchange, task: told, survivors, boxes }.to_bytes().len();
    let vouch = Vouch { exchange, signature: [0; 64] };
    let signatures = (0..(2 * n).div_ceil(3)).map(|i| (id(i), [0; 64])).collect();
    let down = down + Vouches { exchange, signatures }.to_bytes().len();
    let shares = (degree + 1 - lost_near) * (1 + lost_near);
    let shares = vec![Element::from_uniform([1; 16]); shares];
    let shares = Shares { exchange, told, shares, unopened: Vec::new() };
    let dealt = upload.to_bytes().len() - upload.body.len();
    let up = dealt + vouch.to_bytes().len() + shares.to_bytes().len();
    (up as f64, down as f64)
}

#[test]
fn traffic_is_as_predicted() {
    for (n, up, down) in [(10, 2e3, 2.4e3), (100, 15e3, 21e3), (1000, 87e3, 150e3)] {
        let (measured_up, measured_down) = traffic(n);
        println!("{n} clients: {measured_up} bytes up, {measured_down} down");
        let ratios = [measured_up / up, measured_down / down];
        assert!((ratios[0] - 1.0).abs() < 0.1, "{n} clients: {measured_up} bytes up");
        // The prediction has the signatures of all survivors, of which two thirds are sent.
        assert!(ratios[1] > 0.8 && ratios[1] < 1.1, "{n} clients: {measured_down} bytes down");
    }
}
