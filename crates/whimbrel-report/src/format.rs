//! Formatted numbers, bits and durations, and escaped text for HTML and SVG.

use whimbrel_core::Measure;
use whimbrel_core::declare::{Role, Unit};

/// The text for a missing number.
pub const MISSING: &str = "–";

/// `value` with about `digits` significant digits: plain if short, otherwise `4.2e-16`.
pub fn number(value: f64, digits: usize) -> String {
    if value.is_nan() {
        return MISSING.into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞".into() } else { "-∞".into() };
    }
    if value == 0.0 {
        return "0".into();
    }
    let digits = digits.max(1);
    // The exponent after rounding to `digits`, so that 9.9996 with four digits is 10.
    let scientific = format!("{value:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-3..6).contains(&exponent) {
        let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
        trim_zeros(&format!("{value:.decimals$}")).to_string()
    } else {
        format!("{}e{exponent}", trim_zeros(mantissa))
    }
}

/// `value` with `digits` significant digits and an exponent: `4.47e-3`.
pub fn scientific(value: f64, digits: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return number(value, digits);
    }
    let text = format!("{value:.*e}", digits.max(1) - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{}e{exponent}", trim_zeros(mantissa))
}

/// A whole number with thousands separated: `12,345`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The text with a capital first letter.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Bits as bytes in a suitable unit: `812 bytes`, `1.3 MB`.
pub fn bytes(bits: f64) -> String {
    let bytes = bits / 8.0;
    let (divisor, unit) = byte_unit(bytes);
    format!("{} {unit}", number(bytes / divisor, 3))
}

/// The divisor and the name of the unit for `value` bytes.
pub fn byte_unit(value: f64) -> (f64, &'static str) {
    match value {
        b if b < 1e3 => (1.0, "bytes"),
        b if b < 1e6 => (1e3, "kB"),
        b if b < 1e9 => (1e6, "MB"),
        _ => (1e9, "GB"),
    }
}

/// Bits in a suitable unit: `812 bit`, `1.3 Mbit`.
pub fn bits(value: f64) -> String {
    let (divisor, unit) = bit_unit(value);
    format!("{} {unit}", number(value / divisor, 3))
}

/// The divisor and the name of the unit for `value` bits.
pub fn bit_unit(value: f64) -> (f64, &'static str) {
    match value.abs() {
        v if v >= 1e12 => (1e12, "Tbit"),
        v if v >= 1e9 => (1e9, "Gbit"),
        v if v >= 1e6 => (1e6, "Mbit"),
        v if v >= 1e3 => (1e3, "kbit"),
        _ => (1.0, "bit"),
    }
}

/// Seconds as a duration: `40 ms`, `12 s`, `3 min 20 s`, `2 h 5 min`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return MISSING.into();
    }
    if seconds < 1.0 {
        return format!("{} ms", number(seconds * 1e3, 2));
    }
    if seconds < 59.95 {
        return format!("{} s", number(seconds, if seconds < 10.0 { 2 } else { 3 }));
    }
    let whole = seconds.round() as u64;
    if whole < 3600 {
        format!("{} min {} s", whole / 60, whole % 60)
    } else {
        format!("{} h {} min", count(whole / 3600), whole % 3600 / 60)
    }
}

/// Text escaped for an element or a quoted attribute of HTML or XML.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(c),
            // Control characters are not allowed in XML even when escaped.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

/// At most `limit` characters; a shortened text ends with an ellipsis.
pub fn shorten(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_string();
    }
    let mut short: String = text.chars().take(limit.saturating_sub(1)).collect();
    short.truncate(short.trim_end().len());
    short.push('…');
    short
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// A value of a declared figure in a table of results.
pub fn measure_text(measure: &Measure, value: f64) -> String {
    measured(measure, value, usize::from(measure.digits))
}

/// A value of a declared figure with this number of digits.
pub(crate) fn measured(measure: &Measure, value: f64, digits: usize) -> String {
    match (measure.unit, measure.role) {
        (Unit::Bits, _) => bits(value),
        (Unit::Count, _) => number(value, 9),
        (_, Role::Excess) => scientific(value, digits),
        _ => number(value, digits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (9.9996, "10"),
            (0.00123456, "0.001235"),
            (4.2e-16, "4.2e-16"),
            (-123456.7, "-123457"),
            (1.5e9, "1.5e9"),
            (f64::NAN, "–"),
            (f64::NEG_INFINITY, "-∞"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value, 4), text);
        }
    }

    #[test]
    fn exponents_are_always_shown() {
        let cases = [(4.467e-3, "4.47e-3"), (0.1, "1e-1"), (-37.0, "-3.7e1"), (0.0, "0")];
        for (value, text) in cases {
            assert_eq!(scientific(value, 3), text);
        }
        assert_eq!(scientific(f64::NAN, 3), MISSING);
    }

    #[test]
    fn units_follow_size() {
        assert_eq!(bits(0.0), "0 bit");
        assert_eq!(bits(999.0), "999 bit");
        assert_eq!(bits(1_312_345.0), "1.31 Mbit");
        assert_eq!(bits(2e10), "20 Gbit");
        assert_eq!(duration(0.04), "40 ms");
        assert_eq!(duration(12.0), "12 s");
        assert_eq!(duration(200.0), "3 min 20 s");
        assert_eq!(duration(7500.0), "2 h 5 min");
        assert_eq!(duration(f64::NAN), "–");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(123), "123");
    }

    #[test]
    fn text_is_made_safe() {
        assert_eq!(escape("<b a='1'>&\"\u{1b}"), "&lt;b a=&#39;1&#39;&gt;&amp;&quot;\u{fffd}");
        assert_eq!(shorten("déjà vu encore", 8), "déjà vu…");
        assert_eq!(shorten("short", 5), "short");
    }
}
