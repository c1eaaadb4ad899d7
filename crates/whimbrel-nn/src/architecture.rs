//! Learners by name.

use whimbrel_core::{Error, Result};

use crate::{Learner, Linear, LinearRepresentation, Logistic, Network, Softmax};

/// The description of a learner, as a job file gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Architecture {
    /// One of [`KINDS`].
    pub kind: String,
    /// The lengths of one input, as in [`whimbrel_core::Samples`].
    pub shape: Vec<usize>,
    /// Number of classes; ignored by `linear`.
    pub classes: usize,
    /// Whether `linear`, `logistic` and `softmax` have an intercept.
    pub intercept: bool,
    /// Widths of the hidden layers of `mlp` (default 200 and 200), or one width of both LSTM layers
    /// (default 256); empty for the default.
    pub hidden: Vec<usize>,
    /// The length of an embedding of `lstm`.
    pub embedding: usize,
    /// Latent features of `linear-representation`.
    pub latent: usize,
    /// Whether the gradients of `cnn` and `mobilenet-v2` draw dropout.
    pub dropout: bool,
    /// Size of the alphabet of `lstm`; `None` for the number of classes.
    pub symbols: Option<usize>,
}

/// The names of all learners.
pub const KINDS: [&str; 10] = [
    "linear",
    "linear-representation",
    "logistic",
    "softmax",
    "mlp",
    "cnn",
    "lenet",
    "mobilenet-v2",
    "resnet-18",
    "lstm",
];

impl Default for Architecture {
    /// No kind, inputs or classes yet.
    fn default() -> Self {
        Self::new("", &[], 0)
    }
}

impl Architecture {
    /// A learner of this kind with default settings.
    pub fn new(kind: impl Into<String>, shape: &[usize], classes: usize) -> Self {
        Self {
            kind: kind.into(),
            shape: shape.to_vec(),
            classes,
            intercept: true,
            hidden: Vec::new(),
            embedding: 8,
            latent: 2,
            dropout: true,
            symbols: None,
        }
    }

    /// Builds the learner.
    pub fn build(&self) -> Result<Box<dyn Learner>> {
        let features = self.shape.iter().product();
        let (classes, intercept) = (self.classes, self.intercept);
        if features == 0 {
            return Err(Error::config(format!("`{}` needs inputs", self.kind)));
        }
        let is_number = matches!(self.kind.as_str(), "linear" | "linear-representation");
        if !is_number && classes < 2 {
            let what = format!("`{}` needs at least 2 classes, found {classes}", self.kind);
            return Err(Error::config(what));
        }
        Ok(match self.kind.as_str() {
            "linear" => Box::new(Linear::new(features, intercept)),
            "linear-representation" => {
                if self.latent == 0 || self.latent > features {
                    let (latent, raw) = (self.latent, features);
                    let what = format!("`latent = {latent}` features of inputs of {raw} numbers");
                    return Err(Error::config(what).hint("at least 1, at most the inputs"));
                }
                Box::new(LinearRepresentation::new(features, self.latent))
            }
            "logistic" if classes > 2 => {
                let what = format!("`logistic` predicts 2 classes, the data have {classes}");
                return Err(Error::config(what).hint("use `softmax`"));
            }
            "logistic" => Box::new(Logistic::new(features, intercept)),
            "softmax" => Box::new(Softmax::new(features, classes, intercept)),
            "mlp" => Box::new(Network::mlp(features, &self.widths(&[200, 200], 4)?, classes)),
            "cnn" => Box::new(Network::cnn(self.image(6)?, classes).with_dropout(self.dropout)),
            "lenet" => Box::new(Network::lenet(self.image(12)?, classes)),
            "mobilenet-v2" => {
                Box::new(Network::mobilenet_v2(self.image(1)?, classes).with_dropout(self.dropout))
            }
            "resnet-18" => Box::new(Network::resnet_18(self.image(1)?, classes)),
            "lstm" => {
                let [steps] = self.shape[..] else {
                    let what = format!("`lstm` takes sequences, the data have {:?}", self.shape);
                    return Err(Error::config(what));
                };
                if self.embedding == 0 {
                    return Err(Error::config("`embedding` must be positive"));
                }
                let hidden = self.widths(&[256], 1)?[0];
                let symbols = self.symbols.unwrap_or(classes);
                Box::new(Network::lstm(steps, symbols, self.embedding, hidden, classes))
            }
            other => {
                let what = format!("no model `{other}`");
                return Err(Error::config(what).hint(format!("one of {}", KINDS.join(", "))));
            }
        })
    }

    /// The hidden widths, or their default.
    fn widths(&self, default: &[usize], most: usize) -> Result<Vec<usize>> {
        let widths = if self.hidden.is_empty() { default } else { &self.hidden };
        if widths.len() > most || widths.contains(&0) {
            let what = format!("`{}` takes at most {most} positive hidden widths", self.kind);
            return Err(Error::config(format!("{what}, found {:?}", self.hidden)));
        }
        Ok(widths.to_vec())
    }

    /// The shape of an image whose sides are at least `least`.
    fn image(&self, least: usize) -> Result<[usize; 3]> {
        match self.shape[..] {
            [channels, rows, columns] if rows.min(columns) >= least => {
                Ok([channels, rows, columns])
            }
            _ => {
                let what =
                    format!("`{}` takes images of at least {least} pixels a side", self.kind);
                Err(Error::config(format!("{what}, the data have {:?}", self.shape)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_built_and_counts_its_parameters() {
        // The networks' counts are PyTorch's for the same layers (the LSTM has one intercept per gate
        // where PyTorch has two).
        let parameters = |kind: &str, shape: &[usize], classes| {
            let learner = Architecture::new(kind, shape, classes).build().unwrap();
            assert_eq!(learner.name(), kind);
            let trained = |t: &&crate::Tensor| t.role != crate::Role::Statistic;
            learner.tensors().iter().filter(trained).map(crate::Tensor::len).sum::<usize>()
        };
        assert_eq!(parameters("linear", &[7], 0), 8);
        assert_eq!(parameters("linear-representation", &[7], 0), 16);
        assert_eq!(parameters("logistic", &[7], 2), 8);
        assert_eq!(parameters("softmax", &[1, 28, 28], 10), 7850);
        assert_eq!(parameters("mlp", &[1, 28, 28], 10), 199_210);
        assert_eq!(parameters("cnn", &[1, 28, 28], 62), 1_206_590);
        assert_eq!(parameters("lenet", &[1, 28, 28], 10), 61_706);
        assert_eq!(parameters("mobilenet-v2", &[3, 32, 32], 10), 2_236_682);
        assert_eq!(parameters("resnet-18", &[3, 32, 32], 10), 11_173_962);
        assert_eq!(parameters("lstm", &[80], 80), 819_920 - 2 * 1024);
    }

    #[test]
    fn descriptions_that_mean_nothing_are_refused() {
        let refused = |kind: &str, shape: &[usize], classes| {
            let built = Architecture::new(kind, shape, classes).build();
            built.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(refused("tree", &[3], 2).contains("one of linear"));
        assert!(refused("cnn", &[28, 28], 10).contains("takes images"));
        assert!(refused("cnn", &[1, 5, 28], 10).contains("at least 6 pixels"));
        assert!(refused("logistic", &[3], 3).contains("use `softmax`"));
        assert!(refused("softmax", &[3], 1).contains("at least 2 classes"));
        assert!(refused("lstm", &[1, 28, 28], 10).contains("takes sequences"));
        let many = Architecture { hidden: vec![1; 5], ..Architecture::new("mlp", &[3], 2) };
        assert!(many.build().is_err());
    }
}
