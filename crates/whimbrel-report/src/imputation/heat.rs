//! Heat maps as small embedded pictures: a cell is a pixel, and what is not there is transparent.

use super::view::HeatView;
use crate::format::{escape, number};

/// Dark to light in even steps of lightness, readable without telling red from green.
const RAMP: [[u8; 3]; 9] = [
    [35, 23, 75],
    [45, 55, 125],
    [38, 90, 145],
    [30, 121, 150],
    [38, 152, 145],
    [75, 182, 125],
    [133, 207, 95],
    [198, 222, 75],
    [250, 231, 85],
];

/// Two maps of one table side by side, on one scale.
pub fn heat_maps(heat: &HeatView) -> String {
    let cells = heat.rows * heat.columns;
    if cells == 0 || [&heat.observed, &heat.completed].iter().any(|part| part.len() != cells) {
        return String::new();
    }
    let scale = Scale::of(heat);
    let figure = |title: &str, caption: &str, values: &[Option<f64>]| {
        let (rows, columns) = (heat.shape[0], heat.shape[1]);
        format!(
            "<figure class=\"heat\"><figcaption><h3>{title}</h3><p>{caption}</p></figcaption>\
             <img alt=\"{title} table of {rows} rows and {columns} columns\" src=\"{}\"></figure>\n",
            picture(heat, values, &scale),
        )
    };
    let blocks = if (heat.rows, heat.columns) == (heat.shape[0], heat.shape[1]) {
        String::new()
    } else {
        format!(
            "; each of {} × {} blocks is the mean of its cells",
            escape(&heat.rows.to_string()),
            heat.columns
        )
    };
    format!(
        "{}{}{}",
        figure(
            "Observed",
            &format!("Rows downwards, columns across{blocks}; empty where nobody looked"),
            &heat.observed
        ),
        figure("Completed", "The same cells, the missing ones estimated", &heat.completed),
        scale.key(),
    )
}

/// From values to colours: by logarithm where nothing is negative, since counts crowd at zero.
struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

impl Scale {
    fn of(heat: &HeatView) -> Self {
        let all = || heat.observed.iter().chain(&heat.completed).flatten().copied();
        let mut finite: Vec<f64> = all().filter(|v| v.is_finite()).collect();
        finite.sort_by(f64::total_cmp);
        let (Some(low), Some(high)) = (finite.first(), finite.last()) else {
            return Self { low: 0.0, high: 1.0, log: false };
        };
        Self { low: *low, high: *high, log: *low >= 0.0 }
    }

    fn colour(&self, value: f64) -> [u8; 3] {
        let map = |v: f64| if self.log { v.max(0.0).ln_1p() } else { v };
        let (low, high) = (map(self.low), map(self.high));
        let along = if high > low { (map(value) - low) / (high - low) } else { 0.0 };
        let at = along.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
        let (first, rest) = (at as usize, at.fract());
        let next = RAMP[(first + 1).min(RAMP.len() - 1)];
        let mix = |i: usize| {
            let (a, b) = (f64::from(RAMP[first][i]), f64::from(next[i]));
            (a + rest * (b - a)).round() as u8
        };
        [mix(0), mix(1), mix(2)]
    }

    /// What the colours mean.
    fn key(&self) -> String {
        let steps: String = (0..RAMP.len())
            .map(|i| {
                let [r, g, b] = RAMP[i];
                format!("<i style=\"background:rgb({r} {g} {b})\"></i>")
            })
            .collect();
        format!(
            "<p class=\"heat-key\"><span>{}</span>{steps}<span>{}</span>{}</p>\n",
            number(self.low, 3),
            number(self.high, 3),
            if self.log { "<span class=\"quiet\">by logarithm of one more</span>" } else { "" },
        )
    }
}

fn picture(heat: &HeatView, values: &[Option<f64>], scale: &Scale) -> String {
    let mut pixels = Vec::with_capacity(4 * values.len());
    for value in values {
        match value.filter(|v| v.is_finite()) {
            Some(value) => {
                pixels.extend(scale.colour(value));
                pixels.push(255);
            }
            None => pixels.extend([0; 4]),
        }
    }
    format!("data:image/png;base64,{}", base64(&png(heat.columns, heat.rows, &pixels)))
}

/// A PNG file of red, green, blue and opacity, its data stored as they are.
fn png(width: usize, height: usize, pixels: &[u8]) -> Vec<u8> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut header = Vec::new();
    header.extend((width as u32).to_be_bytes());
    header.extend((height as u32).to_be_bytes());
    header.extend([8, 6, 0, 0, 0]);
    chunk(&mut file, b"IHDR", &header);
    let mut lines = Vec::with_capacity(pixels.len() + height);
    for line in pixels.chunks(4 * width) {
        lines.push(0);
        lines.extend(line);
    }
    let mut stored = vec![0x78, 0x01];
    let blocks = lines.chunks(65_535);
    let last = blocks.len() - 1;
    for (at, block) in blocks.enumerate() {
        let length = block.len() as u16;
        stored.push(u8::from(at == last));
        stored.extend(length.to_le_bytes());
        stored.extend((!length).to_le_bytes());
        stored.extend(block);
    }
    stored.extend(adler(&lines).to_be_bytes());
    chunk(&mut file, b"IDAT", &stored);
    chunk(&mut file, b"IEND", &[]);
    file
}

fn chunk(file: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    file.extend((data.len() as u32).to_be_bytes());
    let start = file.len();
    file.extend(kind);
    file.extend(data);
    let check = crc(&file[start..]);
    file.extend(check.to_be_bytes());
}

/// The cyclic redundancy check of PNG.
fn crc(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { 0xEDB8_8320 ^ (crc >> 1) } else { crc >> 1 }
        })
    })
}

/// The checksum at the end of a zlib stream.
fn adler(data: &[u8]) -> u32 {
    let (a, b) = data.iter().fold((1, 0), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    b << 16 | a
}

fn base64(data: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(data.len().div_ceil(3) * 4);
    for three in data.chunks(3) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= three.len() { digit as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_and_digits_are_the_known_ones() {
        assert_eq!(crc(b"123456789"), 0xCBF4_3926);
        assert_eq!(adler(b"Wikipedia"), 0x11E6_0398);
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn a_picture_holds_its_pixels() {
        let pixels: Vec<u8> = (0..4 * 6).collect();
        let file = png(3, 2, &pixels);
        let at = |name: &[u8]| file.windows(4).position(|w| w == name).unwrap();
        assert_eq!(file[at(b"IHDR") + 4..][..8], [0, 0, 0, 3, 0, 0, 0, 2]);
        // After the two bytes of zlib and the five of the stored block, a filter byte per line.
        let data = &file[at(b"IDAT") + 4 + 7..];
        assert_eq!((data[0], &data[1..13]), (0, &pixels[..12]));
        assert_eq!((data[13], &data[14..26]), (0, &pixels[12..]));
    }

    #[test]
    fn tables_that_do_not_fit_are_not_drawn() {
        let heat = HeatView { rows: 2, columns: 2, observed: vec![None; 4], ..HeatView::default() };
        assert_eq!(heat_maps(&heat), "");
        let heat = HeatView { completed: vec![Some(1.0), None, Some(f64::NAN), None], ..heat };
        assert!(heat_maps(&heat).contains("data:image/png;base64,"));
    }
}
