//! Parsing of one cell: a number, a missing value, or text.

/// The content of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cell {
    /// A finite number.
    Number(f64),
    /// Empty, `NA` or `NaN`.
    Missing,
    /// A number outside the finite range: `inf`, `1e999`.
    NotFinite,
    /// Anything else.
    Text,
}

/// Classifies a trimmed cell.
#[inline]
pub(crate) fn classify(text: &[u8]) -> Cell {
    match plain_decimal(text) {
        Some(x) => Cell::Number(x),
        None => classify_slowly(text),
    }
}

/// The correctly rounded value of a decimal number, equal to that of `str::parse::<f64>`; `None` if the
/// text is not a number. Plain decimals of up to 15 digits are fast.
pub fn parse_number(text: &[u8]) -> Option<f64> {
    plain_decimal(text).or_else(|| std::str::from_utf8(text).ok()?.parse().ok())
}

fn classify_slowly(text: &[u8]) -> Cell {
    if is_missing(text) {
        return Cell::Missing;
    }
    match std::str::from_utf8(text).ok().and_then(|s| s.parse::<f64>().ok()) {
        Some(x) if x.is_finite() => Cell::Number(x),
        Some(x) if x.is_nan() => Cell::Missing,
        Some(_) => Cell::NotFinite,
        None => Cell::Text,
    }
}

fn is_missing(text: &[u8]) -> bool {
    text.is_empty() || text == b"NA" || text.eq_ignore_ascii_case(b"nan")
}

/// Powers of ten that are exact in f64.
const POWERS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// `[-+]digits[.digits]` whose digits, as one integer, are at most 2^53: the integer and the power of
/// ten are both exact, so their quotient is correctly rounded. The general parser handles everything
/// else, including exponents.
#[inline]
fn plain_decimal(text: &[u8]) -> Option<f64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    // 18 digits cannot overflow the accumulator.
    if digits.len() > 19 {
        return None;
    }
    let mut mantissa = 0u64;
    let mut point = None;
    for (i, &byte) in digits.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
        } else if byte == b'.' && point.is_none() {
            point = Some(i);
        } else {
            return None;
        }
    }
    let decimals = point.map_or(0, |p| digits.len() - p - 1);
    let count = digits.len() - usize::from(point.is_some());
    if count == 0 || count > 18 || mantissa > 1 << 53 {
        return None;
    }
    let magnitude = mantissa as f64 / POWERS[decimals];
    Some(if negative { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_core::Key;

    #[test]
    fn numbers_equal_the_standard_parser_bit_for_bit() {
        let mut stream = Key::root(11).stream();
        for i in 0..200_000u32 {
            let x = f64::from_bits(stream.next_u64());
            let small = (stream.uniform() - 0.5) * 2000.0;
            let digits = stream.below(20) as usize;
            let text = match i % 5 {
                0 if x.is_finite() => format!("{x:e}"),
                1 => format!("{small}"),
                2 => format!("{small:.digits$}"),
                3 => format!("{}", stream.next_u64() as i64),
                _ => format!("{}.{:0digits$}", stream.below(1000), stream.below(100_000)),
            };
            let expected: f64 = text.parse().unwrap();
            let got = parse_number(text.as_bytes()).unwrap();
            assert_eq!(got.to_bits(), expected.to_bits(), "{text}");
        }
    }

    #[test]
    fn odd_forms_are_accepted_or_refused_as_the_standard_parser_does() {
        let odd = [
            "",
            "-",
            "+",
            ".",
            "-.",
            "1.",
            ".5",
            "+.5",
            "-0",
            "00012",
            "1e5",
            "1e",
            "e5",
            "1.2.3",
            "1_000",
            "0x10",
            "1,5",
            " 1",
            "9007199254740993",
            "999999999999999999",
            "9999999999999999999",
            "18446744073709551617",
            "0.0000000000000000001",
            "--1",
            "+-1",
            "\u{0663}",
        ];
        for text in odd {
            let expected = text.parse::<f64>().ok().map(f64::to_bits);
            assert_eq!(parse_number(text.as_bytes()).map(f64::to_bits), expected, "{text:?}");
        }
    }

    #[test]
    fn cells_are_classified() {
        for missing in ["", "NA", "NaN", "nan", "NAN", "-nan"] {
            assert_eq!(classify(missing.as_bytes()), Cell::Missing, "{missing:?}");
        }
        for infinite in ["inf", "-Infinity", "1e999"] {
            assert_eq!(classify(infinite.as_bytes()), Cell::NotFinite, "{infinite:?}");
        }
        for text in ["na", "abc", "1,5", "12 kg", "\u{fffd}"] {
            assert_eq!(classify(text.as_bytes()), Cell::Text, "{text:?}");
        }
        assert_eq!(classify(b"-1.5e3"), Cell::Number(-1500.0));
    }
}
