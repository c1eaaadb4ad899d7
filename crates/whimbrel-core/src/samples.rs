//! Samples for learners: inputs in their stored width, and targets.

use crate::{Error, HeldOut, Result};

/// Inputs with one target each.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// The shape of one input: `[features]`, `[channels, rows, columns]` of an image, `[steps]` of
    /// a sequence.
    pub shape: Vec<usize>,
    pub inputs: Inputs,
    pub targets: Targets,
    pub held_out: HeldOut<Samples>,
}

/// The numbers of all inputs.
#[derive(Clone, Debug, PartialEq)]
pub enum Inputs {
    Real(Vec<f32>),
    /// Bytes of pixels: learners read `x / 255`.
    Bytes(Vec<u8>),
    /// Symbols of sequences, counted from 0.
    Symbols(Vec<u16>),
}

/// Targets of prediction.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// One of `count` classes, counted from 0.
    Classes {
        /// The class of each input.
        of: Vec<u16>,
        /// Number of classes over all clients.
        count: usize,
    },
    /// A number for each input.
    Values(Vec<f32>),
}

impl Samples {
    /// Checks that inputs and targets match, that numbers are finite and classes known.
    pub fn new(shape: Vec<usize>, inputs: Inputs, targets: Targets) -> Result<Self> {
        let (n, width) = (targets.len(), shape.iter().product::<usize>());
        if shape.is_empty() || width == 0 || inputs.len() != n * width {
            let what = format!("{} numbers do not fill {n} inputs of {shape:?}", inputs.len());
            return Err(Error::data(what));
        }
        if let Inputs::Real(values) = &inputs
            && let Some(at) = values.iter().position(|x| !x.is_finite())
        {
            let what = format!("sample {}: {} is not finite", at / width + 1, values[at]);
            return Err(Error::data(what));
        }
        match &targets {
            Targets::Classes { of, count } => {
                if let Some(at) = of.iter().position(|class| usize::from(*class) >= *count) {
                    let what = format!("sample {}: class {} of {count}", at + 1, of[at]);
                    return Err(Error::data(what).hint("classes count from 0"));
                }
            }
            Targets::Values(values) => {
                if let Some(at) = values.iter().position(|y| !y.is_finite()) {
                    let what = format!("sample {}: target {} is not finite", at + 1, values[at]);
                    return Err(Error::data(what));
                }
            }
        }
        Ok(Self { shape, inputs, targets, held_out: HeldOut::default() })
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Numbers in one input.
    pub fn width(&self) -> usize {
        self.shape.iter().product()
    }

    /// The samples at these places, in this order.
    #[must_use]
    pub fn at(&self, places: &[usize]) -> Self {
        let width = self.width();
        fn inputs<T: Copy>(values: &[T], width: usize, places: &[usize]) -> Vec<T> {
            places.iter().flat_map(|i| &values[i * width..][..width]).copied().collect()
        }
        fn targets<T: Copy>(values: &[T], places: &[usize]) -> Vec<T> {
            places.iter().map(|i| values[*i]).collect()
        }
        Self {
            shape: self.shape.clone(),
            inputs: match &self.inputs {
                Inputs::Real(values) => Inputs::Real(inputs(values, width, places)),
                Inputs::Bytes(values) => Inputs::Bytes(inputs(values, width, places)),
                Inputs::Symbols(values) => Inputs::Symbols(inputs(values, width, places)),
            },
            targets: match &self.targets {
                Targets::Classes { of, count } => {
                    Targets::Classes { of: targets(of, places), count: *count }
                }
                Targets::Values(values) => Targets::Values(targets(values, places)),
            },
            held_out: HeldOut::default(),
        }
    }
}

impl Inputs {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Real(values) => values.len(),
            Self::Bytes(values) => values.len(),
            Self::Symbols(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Targets {
    pub fn len(&self) -> usize {
        match self {
            Self::Classes { of, .. } => of.len(),
            Self::Values(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_that_do_not_fit_are_refused_by_place() {
        let classes = |of: &[u16]| Targets::Classes { of: of.to_vec(), count: 3 };
        let real = |values: &[f32]| Inputs::Real(values.to_vec());
        let refused = |shape: &[usize], inputs, targets| {
            Samples::new(shape.to_vec(), inputs, targets).unwrap_err().to_string()
        };
        assert!(refused(&[2], real(&[1.0; 3]), classes(&[0, 1])).contains("do not fill"));
        assert!(refused(&[], real(&[]), classes(&[])).contains("do not fill"));
        assert!(refused(&[1], real(&[1.0, f32::NAN]), classes(&[0, 1])).contains("sample 2"));
        assert!(refused(&[1], real(&[1.0, 2.0]), classes(&[0, 3])).contains("class 3 of 3"));
        let values = Targets::Values(vec![f32::INFINITY]);
        assert!(refused(&[1], real(&[1.0]), values).contains("target inf"));
    }

    #[test]
    fn places_are_taken_in_order() {
        let inputs = Inputs::Bytes((0..6).collect());
        let targets = Targets::Classes { of: vec![0, 1, 2], count: 3 };
        let samples = Samples::new(vec![1, 1, 2], inputs, targets).unwrap();
        let taken = samples.at(&[2, 0]);
        assert_eq!((taken.len(), taken.width()), (2, 2));
        assert_eq!(taken.inputs, Inputs::Bytes(vec![4, 5, 0, 1]));
        assert_eq!(taken.targets, Targets::Classes { of: vec![2, 0], count: 3 });
    }
}
