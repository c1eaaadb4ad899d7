//! The scatter plot of a mixture of two columns.

use crate::files::figure;
use whimbrel_core::declare::{Ellipse, Exhibit, Rows, Scatter, Section};
use whimbrel_core::method::{Artifact, Tensor};

/// The components and the course of their weights; `None` if the mixture is not two-dimensional.
/// Components are numbered by the coordinates of their means, so that runs can be compared.
pub fn section(model: &Artifact, columns: &[String], points: &[[f64; 2]]) -> Option<Section> {
    let axes: [String; 2] = columns.to_vec().try_into().ok()?;
    let weights = &model.tensor("weights")?.values;
    let means: Vec<[f64; 2]> = pairs(&model.tensor("means")?.values);
    let covariances = covariances(model, weights.len())?;
    if means.len() != weights.len() || covariances.len() != weights.len() {
        return None;
    }
    let mut order: Vec<usize> = (0..means.len()).collect();
    order.sort_by(|&a, &b| {
        let ([x, y], [u, v]) = (means[a], means[b]);
        x.total_cmp(&u).then(y.total_cmp(&v))
    });
    let ellipses = order.iter().enumerate().map(|(place, &k)| Ellipse {
        label: format!("component {}, weight {}", place + 1, figure(weights[k], 3)),
        mean: means[k],
        covariance: covariances[k],
    });
    let scatter = Scatter {
        title: "Fitted mixture".into(),
        caption: "Means, and ellipses of one and two standard deviations".into(),
        axes,
        points: points.to_vec(),
        ellipses: ellipses.collect(),
    };
    let row = |(place, &k): (usize, &usize)| {
        let ([x, y], [[a, b], [_, d]]) = (means[k], covariances[k]);
        let (sd_x, sd_y) = (a.max(0.0).sqrt(), d.max(0.0).sqrt());
        vec![
            (place + 1).to_string(),
            format!("{:.3}", weights[k]),
            format!("{}\n{}", figure(x, 3), figure(y, 3)),
            format!("{}\n{}", figure(sd_x, 3), figure(sd_y, 3)),
            figure(b / (sd_x * sd_y), 3),
        ]
    };
    let table = Rows {
        heads: ["component", "weight", "mean", "deviation", "corr."].map(String::from).to_vec(),
        rows: order.iter().enumerate().map(row).collect(),
        swatches: true,
        ..Rows::default()
    };
    let entries = Exhibit::Entries { key: "weights".into(), order };
    Some(Section {
        title: "Mixture".into(),
        exhibits: vec![Exhibit::Scatter(scatter), entries, Exhibit::Table(table)],
    })
}

/// One covariance matrix per component, for all forms of covariances.
fn covariances(model: &Artifact, components: usize) -> Option<Vec<[[f64; 2]; 2]>> {
    let squares = |tensor: &Tensor| -> Vec<[[f64; 2]; 2]> {
        pairs(&tensor.values).chunks_exact(2).map(|rows| [rows[0], rows[1]]).collect()
    };
    if let Some(tied) = model.tensor("covariance") {
        return Some(vec![*squares(tied).first()?; components]);
    }
    let own = model.tensor("covariances")?;
    Some(match own.shape.len() {
        2 => pairs(&own.values).iter().map(|[a, b]| [[*a, 0.0], [0.0, *b]]).collect(),
        _ => squares(own),
    })
}

fn pairs(values: &[f64]) -> Vec<[f64; 2]> {
    values.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_numbered_by_their_means() {
        let model = Artifact::default()
            .with("weights", &[3], vec![0.5, 0.2, 0.3])
            .with("means", &[3, 2], vec![2.0, 0.0, -1.0, 7.0, -1.0, 4.0])
            .with("covariances", &[3, 2], vec![5.0, 1.0, 2.0, 1.0, 3.0, 1.0]);
        let columns = ["a".to_string(), "b".to_string()];
        let section = section(&model, &columns, &[]).unwrap();
        let Exhibit::Scatter(scatter) = &section.exhibits[0] else { panic!("{section:?}") };
        let means: Vec<[f64; 2]> = scatter.ellipses.iter().map(|e| e.mean).collect();
        assert_eq!(means, [[-1.0, 4.0], [-1.0, 7.0], [2.0, 0.0]]);
        assert_eq!(scatter.ellipses[2].covariance, [[5.0, 0.0], [0.0, 1.0]]);
        assert_eq!(
            section.exhibits[1],
            Exhibit::Entries { key: "weights".into(), order: vec![2, 1, 0] }
        );
        assert_eq!(super::section(&model, &columns[..1], &[]), None);
    }
}
