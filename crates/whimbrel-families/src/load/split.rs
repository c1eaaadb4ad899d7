//! Splits the rows of a file among clients.

use super::POOLED;
use crate::failure::{AtKey, Failure, Result};
use crate::job::Partition;
use whimbrel_core::Key;
use whimbrel_data::{
    Classes, ClientRows, Clustered, Clustering, LabelSplit, clusters, iid_rows, read_embedding,
};

/// The rows of a file before they are split.
pub(super) trait Unsplit {
    fn rows(&self) -> usize;
    /// One client for each value of a column.
    fn by_column(&self, column: &str) -> Result<Vec<ClientRows>>;
    /// The classes of a column; without one, those of the targets, or `coarse` ones.
    fn classes(&self, column: Option<&str>, coarse: bool) -> Result<Classes>;
    /// The features to cluster, row after row, and their number per row.
    fn features(&self) -> Result<(Vec<f64>, usize)>;
}

/// The rows of each client, and a note on clusters.
pub(super) fn split(
    partition: &Partition,
    data: &dyn Unsplit,
    key: Key,
) -> Result<(Vec<ClientRows>, Option<String>)> {
    let clients = match partition {
        Partition::Pooled => {
            vec![ClientRows { name: POOLED.into(), rows: (0..data.rows()).collect() }]
        }
        Partition::Column(column) => data.by_column(column)?,
        Partition::Iid { clients } | Partition::Rows { clients } => {
            iid_rows(data.rows(), *clients, key).at("data.split")?
        }
        Partition::Natural => return Err(Failure::config("the file does not name clients")),
        Partition::Labels { clients, split, column, coarse } => {
            let coarse = match split {
                LabelSplit::Pachinko { .. } => Some(data.classes(coarse.as_deref(), true)?),
                _ => None,
            };
            let classes = data.classes(column.as_deref(), false)?;
            split.deal(classes, coarse.as_ref(), *clients, key).at("data.split")?
        }
        Partition::Clusters { clients, embedding, using } => {
            let (points, width) = match embedding {
                Some(path) => read_embedding(path, data.rows())?,
                None => data.features()?,
            };
            let clustering = Clustering { rule: *using, ..Clustering::default() };
            let found = clusters(&points, width, *clients, &clustering, key).at("data.split")?;
            let note = note(&found);
            return Ok((found.clients, Some(note)));
        }
    };
    Ok((clients, None))
}

fn note(Clustered { clients, found, moves }: &Clustered) -> String {
    let extremes = |sizes: &mut dyn Iterator<Item = usize>| {
        sizes.fold((usize::MAX, 0), |(low, high), n| (low.min(n), high.max(n)))
    };
    let (low, high) = extremes(&mut found.iter().copied());
    let (least, most) = extremes(&mut clients.iter().map(|c| c.rows.len()));
    format!(
        "clusters of {low} to {high} rows; after {moves} moves of half a cluster, clients hold \
         {least} to {most} rows"
    )
}
