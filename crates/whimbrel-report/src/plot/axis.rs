//! Axes: ranges, readable ticks, and positions of values.

/// The map from values to lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    /// Zero and negative values cannot be drawn.
    Log,
}

impl Scale {
    /// Whether `value` can be drawn.
    pub fn draws(self, value: f64) -> bool {
        match self {
            Self::Linear => value.abs() <= LARGEST,
            Self::Log => (SMALLEST..=LARGEST).contains(&value),
        }
    }
}

/// The specification of an axis.
#[derive(Clone, Debug)]
pub struct AxisSpec {
    /// The name and unit shown.
    pub label: String,
    pub scale: Scale,
    /// A fixed range; `None`: fitted to the values.
    pub bounds: Option<[f64; 2]>,
}

impl AxisSpec {
    /// An axis fitted to its values.
    pub fn new(label: impl Into<String>, scale: Scale) -> Self {
        Self { label: label.into(), scale, bounds: None }
    }
}

/// A range with its ticks.
#[derive(Clone, Debug)]
pub struct Axis {
    pub scale: Scale,
    /// The value at the start of the axis.
    pub low: f64,
    /// The value at the end of the axis.
    pub high: f64,
    /// Labelled ticks, ascending.
    pub ticks: Vec<Tick>,
    /// Labels are multiplied by ten to this power.
    pub exponent: i32,
}

/// A labelled tick.
#[derive(Clone, Debug)]
pub struct Tick {
    pub value: f64,
    pub label: Label,
}

/// The text of a tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Label {
    /// Plain text.
    Text(String),
    /// Ten to this power.
    Power(i32),
}

/// Larger or smaller magnitudes are not drawn: their differences and ratios overflow.
const LARGEST: f64 = 1e300;
const SMALLEST: f64 = 1e-300;

impl Axis {
    /// The axis of all drawable `values`, with about `want` ticks. `padding` widens a linear range by
    /// that fraction on either side.
    pub fn fit(
        spec: &AxisSpec,
        values: impl Iterator<Item = f64>,
        want: usize,
        padding: f64,
    ) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        let bounds = spec.bounds.into_iter().flatten();
        let fixed = spec.bounds.is_some_and(|b| b.iter().all(|&v| spec.scale.draws(v)));
        for value in bounds.chain(values.filter(|_| !fixed)) {
            if spec.scale.draws(value) {
                (low, high) = (low.min(value), high.max(value));
            }
        }
        if low > high {
            (low, high) = if spec.scale == Scale::Log { (0.1, 1.0) } else { (0.0, 1.0) };
        }
        match spec.scale {
            Scale::Linear => Self::linear(low, high, want, if fixed { 0.0 } else { padding }),
            Scale::Log => Self::log(low, high, want),
        }
    }

    /// A linear axis with fixed ends.
    pub fn between(ends: [f64; 2], want: usize) -> Self {
        let spec = AxisSpec { bounds: Some(ends), ..AxisSpec::new("", Scale::Linear) };
        Self::fit(&spec, std::iter::empty(), want, 0.0)
    }

    /// The place of `value` as a fraction of the axis's length; `None` if it cannot be drawn.
    pub fn position(&self, value: f64) -> Option<f64> {
        if !self.scale.draws(value) {
            return None;
        }
        let along = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => {
                (value.log10() - self.low.log10()) / (self.high.log10() - self.low.log10())
            }
        };
        along.is_finite().then_some(along.clamp(0.0, 1.0))
    }

    /// The width in characters of the widest tick label.
    pub fn label_width(&self) -> f64 {
        self.ticks.iter().map(|tick| tick.label.width()).fold(0.0, f64::max)
    }

    fn linear(low: f64, high: f64, want: usize, padding: f64) -> Self {
        // Values equal to six digits are drawn as equal: labels would not fit otherwise.
        let size = low.abs().max(high.abs());
        let (mut low, mut high) = (low, high);
        if size < SMALLEST {
            (low, high) = (0.0, 1.0);
        } else if high - low < 1e-6 * size {
            let half = if high == low { 0.05 * size } else { 1e-6 * size };
            (low, high) = (low - half, high + half);
        }
        let widen = padding * (high - low);
        let keep_zero = |edge: f64, wide: f64| if edge == 0.0 { 0.0 } else { wide };
        (low, high) = (keep_zero(low, low - widen), keep_zero(high, high + widen));

        let step = round_step((high - low) / want.max(1) as f64);
        let first = (low / step - 1e-9).ceil();
        let places: Vec<f64> = (0..64)
            .map(|place| (first + place as f64) * step)
            .take_while(|value| *value <= high + 1e-9 * step)
            .collect();
        let largest = places.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
        let (exponent, suffix) = unit(largest);
        let decimals = (exponent as f64 - step.log10() - 1e-9).ceil().clamp(0.0, 9.0) as usize;
        let text = |value: f64| match scaled(value, exponent) + 0.0 {
            0.0 if !suffix.is_empty() => "0".into(),
            value => minus(format!("{value:.decimals$}{suffix}")),
        };
        let ticks = places.into_iter().map(|value| Tick { value, label: Label::Text(text(value)) });
        let exponent = if suffix.is_empty() { exponent } else { 0 };
        Self { scale: Scale::Linear, low, high, ticks: ticks.collect(), exponent }
    }

    fn log(low: f64, high: f64, want: usize) -> Self {
        let (mut first, mut last) = (low.log10(), high.log10());
        if last - first < 1e-6 {
            (first, last) = (first - 0.3, last + 0.3);
        }
        let decades = last - first >= 1.5;
        let places: Vec<(f64, i32)> = if !decades {
            // Less than about a decade: 1, 2, 3 and 5 in each; the range ends on such values.
            let all: Vec<(f64, i32)> = (first.floor() as i32 - 1..=last.ceil() as i32)
                .flat_map(|k| [1.0, 2.0, 3.0, 5.0].map(|m: f64| (m.log10() + k as f64, k)))
                .collect();
            let start = all.iter().rposition(|place| place.0 <= first + 1e-9).unwrap_or(0);
            let end = all.iter().position(|p| p.0 >= last - 1e-9).unwrap_or(all.len() - 1);
            all[start..=end].to_vec()
        } else {
            // More: whole decades at equal distances; the range ends on decades.
            (first, last) = ((first + 1e-9).floor(), (last - 1e-9).ceil());
            let rough = (last - first) / want.max(1) as f64;
            let stride = [1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 200];
            let stride = stride.into_iter().find(|&k| f64::from(k) >= rough).unwrap_or(300);
            let (start, end) = (first as i32, last as i32);
            (start..=end).filter(|k| k % stride == 0).map(|k| (f64::from(k), k)).collect()
        };
        first = first.min(places.first().map_or(first, |place| place.0));
        last = last.max(places.last().map_or(last, |place| place.0));
        let plain = places.iter().all(|&(place, _)| (-2.01..4.0).contains(&place));
        let ticks = places
            .iter()
            .map(|&(place, k)| {
                let leading = (10f64.powf(place - k as f64)).round() as i32;
                let value = leading as f64 * 10f64.powi(k);
                let label = match (plain, leading) {
                    (true, _) => Label::Text(crate::format::number(value, 1)),
                    (false, 1) if decades => Label::Power(k),
                    (false, _) => Label::Text(minus(format!("{leading}e{k}"))),
                };
                Tick { value, label }
            })
            .collect();
        Self {
            scale: Scale::Log,
            low: 10f64.powf(first),
            high: 10f64.powf(last),
            ticks,
            exponent: 0,
        }
    }
}

impl Label {
    /// The label as the content of an SVG `text` element.
    pub fn svg(&self) -> String {
        match self {
            Self::Text(text) => crate::format::escape(text),
            Self::Power(power) => {
                format!("10<tspan dy=\"-.45em\" class=\"sup\">{}</tspan>", minus(power.to_string()))
            }
        }
    }

    /// The width in characters of normal size.
    fn width(&self) -> f64 {
        match self {
            Self::Text(text) => text.chars().count() as f64,
            Self::Power(power) => 2.0 + 0.75 * power.to_string().len() as f64,
        }
    }
}

/// The smallest of 1, 2, 5 times a power of ten that is at least `rough`.
fn round_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.log10().floor());
    let times = [1.0, 2.0, 5.0].into_iter().find(|m| m * power >= rough * (1.0 - 1e-9));
    times.unwrap_or(10.0) * power
}

/// The power of ten for values up to `largest`, and its letter if any.
fn unit(largest: f64) -> (i32, &'static str) {
    match largest {
        0.0 | 1e-2..1e4 => (0, ""),
        1e4..1e6 => (3, "k"),
        1e6..1e9 => (6, "M"),
        1e9..1e12 => (9, "G"),
        _ => (largest.log10().floor() as i32, ""),
    }
}

/// `value / 10^exponent`, without rounding a negative power of ten.
fn scaled(value: f64, exponent: i32) -> f64 {
    if exponent >= 0 { value / 10f64.powi(exponent) } else { value * 10f64.powi(-exponent) }
}

/// Replaces hyphens by minus signs.
fn minus(text: String) -> String {
    text.replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(scale: Scale, low: f64, high: f64) -> String {
        let axis = Axis::fit(&AxisSpec::new("", scale), [low, high].into_iter(), 5, 0.0);
        let labels: Vec<String> = axis
            .ticks
            .iter()
            .map(|tick| match &tick.label {
                Label::Text(text) => text.clone(),
                Label::Power(power) => format!("10^{power}"),
            })
            .collect();
        let power = if axis.exponent == 0 { String::new() } else { format!(" e{}", axis.exponent) };
        format!("{low:e} to {high:e}: {}{power}", labels.join(", "))
    }

    #[test]
    fn ticks_are_round() {
        let linear = [
            (0.0, 600.0),
            (0.0, 1.0),
            (-3.7, 4.1),
            (2.941_234, 2.941_29),
            (0.0, 1.3e7),
            (-2e-5, 8e-5),
            (3.0, 3.0),
            (0.0, 0.0),
            (-1e300, 1e300),
            (1e-320, 2e-320),
        ];
        let log = [
            (4.2e-16, 0.3),
            (0.02, 60.0),
            (2.0, 5.0),
            (3e-7, 4e-7),
            (1e-5, 1e-5),
            (1e-300, 1e300),
            (0.0, -1.0),
        ];
        let lines: Vec<String> = linear
            .map(|(low, high)| ticks(Scale::Linear, low, high))
            .into_iter()
            .chain(log.map(|(low, high)| ticks(Scale::Log, low, high)))
            .collect();
        insta::assert_snapshot!(lines.join("\n"), @r"
        0e0 to 6e2: 0, 200, 400, 600
        0e0 to 1e0: 0.0, 0.2, 0.4, 0.6, 0.8, 1.0
        -3.7e0 to 4.1e0: −2, 0, 2, 4
        2.941234e0 to 2.94129e0: 2.94124, 2.94126, 2.94128
        0e0 to 1.3e7: 0, 5M, 10M
        -2e-5 to 8e-5: −2, 0, 2, 4, 6, 8 e-5
        3e0 to 3e0: 2.9, 3.0, 3.1
        0e0 to 0e0: 0.0, 0.2, 0.4, 0.6, 0.8, 1.0
        -1e300 to 1e300: −1.0, −0.5, 0.0, 0.5, 1.0 e300
        1e-320 to 2e-320: 0.0, 0.2, 0.4, 0.6, 0.8, 1.0
        4.2e-16 to 3e-1: 10^-16, 10^-12, 10^-8, 10^-4, 10^0
        2e-2 to 6e1: 0.01, 0.1, 1, 10, 100
        2e0 to 5e0: 2, 3, 5
        3e-7 to 4e-7: 3e−7, 5e−7
        1e-5 to 1e-5: 5e−6, 1e−5, 2e−5
        1e-300 to 1e300: 10^-200, 10^0, 10^200
        0e0 to -1e0: 0.1, 0.2, 0.3, 0.5, 1
        ");
    }

    #[test]
    fn every_value_that_was_fitted_has_a_place() {
        for exponent in (-290..=290).step_by(5) {
            let size = 10f64.powi(exponent);
            for scale in [Scale::Linear, Scale::Log] {
                let values = [size, size * 1.0000001, size * 3.0, size * 1e4];
                for used in 1..=values.len() {
                    let spec = AxisSpec::new("", scale);
                    let axis = Axis::fit(&spec, values[..used].iter().copied(), 5, 0.05);
                    assert!(axis.low < axis.high && axis.ticks.len() < 16);
                    for value in &values[..used] {
                        let at = axis.position(*value).expect("a drawable value");
                        assert!((0.0..=1.0).contains(&at));
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_drawn_has_no_place() {
        let log = Axis::fit(&AxisSpec::new("", Scale::Log), [1e-3, 1.0].into_iter(), 5, 0.0);
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-310] {
            assert_eq!(log.position(value), None);
        }
    }
}
