//! One line of `metrics.jsonl`.

use crate::runner::Traffic;
use serde_json::{Map, Number, Value};
use whimbrel_core::method::{Metric, MetricValue};
use whimbrel_core::{Error, Result, Wire, wire};

/// The figures of one evaluated round.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The round, from one; zero for the start.
    pub round: u32,
    pub figures: Vec<Figure>,
    /// Bytes so far.
    pub traffic: Traffic,
    /// Clients whose upload the round accepted.
    pub clients: u32,
    /// Seconds since the run began.
    pub seconds: f64,
}

/// A metric that owns its name, so that it can be stored.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    pub name: String,
    pub value: MetricValue,
}

impl From<Metric> for Figure {
    fn from(metric: Metric) -> Self {
        Self { name: metric.name.into(), value: metric.value }
    }
}

/// The last evaluation. A checkpoint stores it, because clients would not answer it again in the
/// same way.
#[derive(Clone, PartialEq, Debug)]
pub struct Latest {
    pub row: Row,
    /// Each client's own figures, by id; empty for those without an answer.
    pub own: Vec<Vec<Figure>>,
}

wire!(Latest { row, own });

/// Without seconds: stored states do not depend on the clock.
impl Wire for Row {
    fn put(&self, out: &mut Vec<u8>) {
        self.round.put(out);
        self.figures.put(out);
        self.traffic.put(out);
        self.clients.put(out);
    }

    fn take(from: &mut &[u8]) -> Result<Self> {
        Ok(Self {
            round: u32::take(from)?,
            figures: Vec::take(from)?,
            traffic: Traffic::take(from)?,
            clients: u32::take(from)?,
            seconds: 0.0,
        })
    }
}

impl Wire for Figure {
    fn put(&self, out: &mut Vec<u8>) {
        self.name.put(out);
        match &self.value {
            MetricValue::Missing => 0u8.put(out),
            MetricValue::Number(value) => {
                1u8.put(out);
                value.put(out);
            }
            MetricValue::List(values) => {
                2u8.put(out);
                values.put(out);
            }
        }
    }

    fn take(from: &mut &[u8]) -> Result<Self> {
        let name = String::take(from)?;
        let value = match u8::take(from)? {
            0 => MetricValue::Missing,
            1 => MetricValue::Number(f64::take(from)?),
            2 => MetricValue::List(Vec::take(from)?),
            other => return Err(Error::peer(format!("{other} is not a kind of figure"))),
        };
        Ok(Self { name, value })
    }
}

impl Row {
    pub fn figure(&self, name: &str) -> Option<&MetricValue> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| &figure.value)
    }

    /// The figure of this name, if it is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        match self.figure(name)? {
            MetricValue::Number(value) => Some(*value),
            _ => None,
        }
    }

    /// The JSON object of the line; missing values are null.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("round".into(), self.round.into());
        for figure in &self.figures {
            object.insert(figure.name.clone(), json(&figure.value));
        }
        object.insert("bits_up".into(), (8 * self.traffic.up).into());
        object.insert("bits_down".into(), (8 * self.traffic.down).into());
        object.insert("bits_eval".into(), (8 * self.traffic.eval).into());
        object.insert("clients".into(), self.clients.into());
        object.insert("seconds".into(), number(self.seconds));
        object
    }
}

/// A checksum of a line without its seconds: equal runs have equal sums.
pub(crate) fn sum_line(line: &[u8], sum: &mut crc32fast::Hasher) {
    const KEY: &[u8] = b"\"seconds\":";
    let Some(at) = line.windows(KEY.len()).position(|w| w == KEY) else { return sum.update(line) };
    let (before, value) = line.split_at(at + KEY.len());
    let end = value.iter().position(|b| matches!(b, b',' | b'}')).unwrap_or(value.len());
    sum.update(before);
    sum.update(&value[end..]);
}

fn json(value: &MetricValue) -> Value {
    match value {
        MetricValue::Number(x) => number(*x),
        MetricValue::List(xs) => xs.iter().map(|x| number(*x)).collect(),
        MetricValue::Missing => Value::Null,
    }
}

/// A JSON number; null if it is not finite.
pub fn number(x: f64) -> Value {
    Number::from_f64(x).map_or(Value::Null, Value::Number)
}
