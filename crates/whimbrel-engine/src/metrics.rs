//! One line of `metrics.jsonl`.

use crate::runner::Traffic;
use serde_json::{Map, Number, Value};
use whimbrel_core::method::{Metric, MetricValue};

/// The figures of one evaluated round.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The round, from one; zero is the state before the first.
    pub round: u32,
    /// What the method reports.
    pub metrics: Vec<Metric>,
    /// Bytes so far.
    pub traffic: Traffic,
    /// Clients whose upload the round accepted.
    pub clients: u32,
    /// Seconds since the run began.
    pub seconds: f64,
}

impl Row {
    /// The metric of that name, where it is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|m| m.name == name).and_then(|m| match m.value {
            MetricValue::Number(value) => Some(value),
            _ => None,
        })
    }

    /// The line's object. Bits are what was encoded; a value that does not exist is null.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("round".into(), self.round.into());
        for metric in &self.metrics {
            object.insert(metric.name.into(), json(&metric.value));
        }
        object.insert("bits_up".into(), (8 * self.traffic.up).into());
        object.insert("bits_down".into(), (8 * self.traffic.down).into());
        object.insert("bits_eval".into(), (8 * self.traffic.eval).into());
        object.insert("clients".into(), self.clients.into());
        object.insert("seconds".into(), number(self.seconds));
        object
    }
}

fn json(value: &MetricValue) -> Value {
    match value {
        MetricValue::Number(x) => number(*x),
        MetricValue::List(xs) => xs.iter().map(|x| number(*x)).collect(),
        MetricValue::Missing => Value::Null,
    }
}

/// A number JSON can hold; what is not finite becomes null.
pub fn number(x: f64) -> Value {
    Number::from_f64(x).map_or(Value::Null, Value::Number)
}
