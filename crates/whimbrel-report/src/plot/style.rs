//! Series styles: colour, dash pattern and marker, each distinct on its own.

use super::px;

/// Colours of the series classes `s0` ... `s7` on light and on dark pages. Hues follow the
/// colour-blind-safe set of Okabe and Ito, with lightness adjusted to a contrast of at least 3 to 1.
const COLOURS: [(&str, &str); 8] = [
    ("#0b65a8", "#5cb3ee"),
    ("#c74e00", "#ff9355"),
    ("#00805f", "#3ecfa3"),
    ("#a3488b", "#e79acb"),
    ("#846600", "#ecc844"),
    ("#3a8fc4", "#9fd4ff"),
    ("#5b5f66", "#c3c8d0"),
    ("#8a2f2f", "#ff8f8f"),
];

const DASHES: [&str; 8] = ["", "7 3", "2 3", "9 3 2 3", "13 4", "5 2", "1 4", "9 3 2 3 2 3"];

/// The number of distinct styles; further series repeat them.
pub const STYLES: usize = COLOURS.len();

/// The class of series `index`.
pub fn class(index: usize) -> String {
    format!("s{}", index % STYLES)
}

/// The `stroke-dasharray` attribute of series `index`, with a leading space, or empty.
pub fn dash(index: usize) -> String {
    match DASHES[index % STYLES] {
        "" => String::new(),
        pattern => format!(" stroke-dasharray=\"{pattern}\""),
    }
}

/// The outline of series `index`'s marker around a point.
pub fn marker(index: usize, x: f64, y: f64) -> String {
    let at = format!("M{} {}", px(x), px(y));
    match index % STYLES {
        0 => format!("{at}m-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z"),
        1 => format!("{at}m-2.8 -2.8h5.6v5.6h-5.6z"),
        2 => format!("{at}m0 -3.8l3.6 6.4h-7.2z"),
        3 => format!("{at}m0 -4.1l4.1 4.1l-4.1 4.1l-4.1 -4.1z"),
        4 => format!("{at}m0 3.8l3.6 -6.4h-7.2z"),
        5 => format!("{at}m-1.2 -3.8h2.4v2.6h2.6v2.4h-2.6v2.6h-2.4v-2.6h-2.6v-2.4h2.6z"),
        6 => format!("{at}m-4 -1.4h8v2.8h-8z"),
        _ => format!("{at}m-1.4 -4h2.8v8h-2.8z"),
    }
}

/// A short piece of line with its marker, for a legend.
pub fn swatch(index: usize) -> String {
    format!(
        "<svg class=\"swatch\" viewBox=\"0 0 34 12\" aria-hidden=\"true\"><g class=\"{}\">\
         <path class=\"line\" d=\"M1 6H33\"{}/><path class=\"mark\" d=\"{}\"/></g></svg>",
        class(index),
        dash(index),
        marker(index, 17.0, 6.0),
    )
}

/// The series colours as custom properties for a page that may be light or dark.
pub fn palette_css() -> String {
    let set = |colour: fn(&(&'static str, &'static str)) -> &'static str| -> String {
        COLOURS.iter().enumerate().map(|(i, pair)| format!("--s{i}:{};", colour(pair))).collect()
    };
    let classes: String = (0..STYLES).map(|i| format!(".s{i}{{--c:var(--s{i})}}")).collect();
    format!(
        ":root{{{}}}@media screen and (prefers-color-scheme:dark){{:root{{{}}}}}{classes}\n",
        set(|pair| pair.0),
        set(|pair| pair.1),
    )
}

/// The style of a standalone picture with a light background: literal colours, since some SVG renderers
/// lack custom properties.
pub fn standalone_css() -> String {
    let classes: String = COLOURS
        .iter()
        .enumerate()
        .map(|(i, (colour, _))| {
            format!(
                ".s{i} .line{{stroke:{colour}}}.s{i} .mark,.s{i} .end,.s{i} .band{{fill:{colour}}}"
            )
        })
        .collect();
    format!(
        "text{{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,\
         sans-serif;fill:#59606b}}.grid path{{stroke:#e4e6ea;fill:none}}.grid .base{{stroke:#9aa1ab}}\
         .tick .sup{{font-size:10px}}.line{{fill:none;stroke-width:2.2;stroke-linejoin:round}}\
         .mark{{stroke:#fff;stroke-width:1}}.band{{opacity:.16}}.end{{font-weight:600}}\
         .h1{{font-size:17px;font-weight:600;fill:#1b1f24}}.note{{font-size:12px}}{classes}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance as the web's accessibility guidelines define it.
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let value = u8::from_str_radix(&colour[at..at + 2], 16).unwrap() as f64 / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    #[test]
    fn colours_stand_out_from_their_page() {
        let contrast = |a: &str, b: &str| {
            let (a, b) = (luminance(a), luminance(b));
            (a.max(b) + 0.05) / (a.min(b) + 0.05)
        };
        for (light, dark) in COLOURS {
            assert!(contrast(light, "#ffffff") >= 3.0, "{light} on a light page");
            assert!(contrast(dark, "#14171b") >= 3.0, "{dark} on a dark page");
        }
    }

    #[test]
    fn styles_differ_without_colour() {
        let looks: std::collections::BTreeSet<(String, String)> =
            (0..STYLES).map(|i| (dash(i), marker(i, 0.0, 0.0))).collect();
        assert_eq!(looks.len(), STYLES);
    }
}
