//! Heat maps as embedded PNG images: transparent if missing, with a dot if the first map lacks the cell.

use crate::format::{escape, number, shorten};
use base64::prelude::{BASE64_STANDARD, Engine};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::Write;
use whimbrel_core::declare::{Heat, HeatMap};

/// From dark to light in even steps of lightness, readable with red-green blindness.
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

/// Pixels along the side of a cell that can have a dot in its middle, and the most such cells along a
/// side of the map: in smaller cells a dot could not be seen.
const DOTTED: usize = 5;
const DOTTED_MAX: usize = 80;

/// The most names on a side of a map.
const NAMES_MAX: usize = 24;

/// Maps of one matrix side by side with a common scale.
pub fn figures(heat: &Heat) -> String {
    let cells = heat.rows * heat.columns;
    if cells == 0 || heat.maps.iter().any(|map| map.values.len() != cells) {
        return String::new();
    }
    let scale = Scale::of(heat);
    let [rows, columns] = heat.shape;
    let blocks = if [heat.rows, heat.columns] == heat.shape {
        String::new()
    } else {
        format!("; each of {} × {} blocks is the mean of its cells", heat.rows, heat.columns)
    };
    let figure = |(place, map): (usize, &HeatMap)| {
        let title = escape(&map.title);
        format!(
            "<figure class=\"heat\"><figcaption><h3>{title}</h3><p>{}{}</p></figcaption>\
             <div class=\"map\">{}<img alt=\"{title} table of {rows} rows and {columns} columns\" \
             src=\"{}\">{}</div></figure>\n",
            escape(&map.caption),
            if place == 0 { &blocks } else { "" },
            names(&heat.names[0], heat.rows, "down"),
            picture(heat, map, &scale),
            names(&heat.names[1], heat.columns, "across"),
        )
    };
    let figures: String = heat.maps.iter().enumerate().map(figure).collect();
    let dotted = heat.maps.iter().any(|map| (0..cells).any(|cell| has_dot(heat, map, cell)));
    figures + &scale.key(dotted)
}

/// Whether a cell is missing in the first map, and filled in this one.
fn has_dot(heat: &Heat, map: &HeatMap, cell: usize) -> bool {
    heat.rows.max(heat.columns) <= DOTTED_MAX
        && heat.maps[0].values[cell].is_none()
        && map.values[cell].is_some()
}

/// Names beside the map, if each cell has one and they are few enough to read.
fn names(all: &[String], cells: usize, class: &str) -> String {
    if all.len() != cells || cells > NAMES_MAX {
        return String::new();
    }
    let name = |name: &String| format!("<li>{}</li>", escape(&shorten(name, 14)));
    format!("<ol class=\"{class}\">{}</ol>", all.iter().map(name).collect::<String>())
}

/// The map from values to colours: log(1 + x) for counts.
struct Scale {
    low: f64,
    high: f64,
    log: bool,
    /// Whether some cells are missing.
    gaps: bool,
}

impl Scale {
    fn of(heat: &Heat) -> Self {
        let all = || heat.maps.iter().flat_map(|map| &map.values).flatten().copied();
        let mut finite: Vec<f64> = all().filter(|v| v.is_finite()).collect();
        finite.sort_by(f64::total_cmp);
        let gaps = finite.len() < heat.maps.iter().map(|map| map.values.len()).sum();
        let (Some(low), Some(high)) = (finite.first(), finite.last()) else {
            return Self { low: 0.0, high: 1.0, log: false, gaps };
        };
        // Shares are not counts.
        Self { low: *low, high: *high, log: *low >= 0.0 && *high > 1.0, gaps }
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

    /// The colour key.
    fn key(&self, dotted: bool) -> String {
        let steps: String = (0..RAMP.len())
            .map(|i| {
                let [r, g, b] = RAMP[i];
                format!("<i style=\"background:rgb({r} {g} {b})\"></i>")
            })
            .collect();
        // Values too small for a colour are zero.
        let low = if self.low.abs() < 1e-6 * self.high { 0.0 } else { self.low };
        format!(
            "<p class=\"heat-key\"><span>{}</span>{steps}<span>{}</span>{}{}{}</p>\n",
            number(low, 3),
            number(self.high, 3),
            if self.log { "<span class=\"quiet\">log(1 + x) scale</span>" } else { "" },
            if self.gaps { "<i class=\"gap\"></i><span>no value</span>" } else { "" },
            if dotted { "<i class=\"dotted\"></i><span>estimated</span>" } else { "" },
        )
    }
}

fn picture(heat: &Heat, map: &HeatMap, scale: &Scale) -> String {
    let dots: Vec<bool> = (0..map.values.len()).map(|cell| has_dot(heat, map, cell)).collect();
    let side = if dots.contains(&true) { DOTTED } else { 1 };
    let (width, height) = (side * heat.columns, side * heat.rows);
    let mut pixels = Vec::with_capacity(4 * width * height);
    for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
        let cell = y / side * heat.columns + x / side;
        match map.values[cell].filter(|v| v.is_finite()) {
            Some(value) => {
                let in_middle = [y, x].iter().all(|at| at % side == side / 2);
                let colour = scale.colour(value);
                // Dark on light colours, light on dark ones.
                let dot = if colour[1] > 128 { [0; 3] } else { [255; 3] };
                pixels.extend(if dots[cell] && in_middle { dot } else { colour });
                pixels.push(255);
            }
            None => pixels.extend([0; 4]),
        }
    }
    let file = png(width, height, &pixels);
    format!("data:image/png;base64,{}", BASE64_STANDARD.encode(file))
}

/// A PNG file of RGBA pixels.
fn png(width: usize, height: usize, pixels: &[u8]) -> Vec<u8> {
    let size = [width, height].map(|n| (n as u32).to_be_bytes()).concat();
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
    let done = pixels.chunks(4 * width).try_for_each(|line| {
        packed.write_all(&[0])?; // no filter
        packed.write_all(line)
    });
    let packed = done.and_then(|()| packed.finish()).expect("a vector takes every byte");
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let header = [&size[..], &[8, 6, 0, 0, 0]].concat();
    for (kind, data) in [(b"IHDR", &header[..]), (b"IDAT", &packed), (b"IEND", &[])] {
        file.extend((data.len() as u32).to_be_bytes());
        let start = file.len();
        file.extend(kind);
        file.extend(data);
        let sum = crc32fast::hash(&file[start..]);
        file.extend(sum.to_be_bytes());
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_picture_holds_its_pixels() {
        let pixels: Vec<u8> = (0..4 * 6).collect();
        let file = png(3, 2, &pixels);
        let at = |name: &[u8]| file.windows(4).position(|w| w == name).unwrap();
        assert_eq!(file[at(b"IHDR") + 4..][..8], [0, 0, 0, 3, 0, 0, 0, 2]);
        // A chunk ends in the CRC-32 of its name and data: of IEND, by the standard, AE 42 60 82.
        assert_eq!(file[at(b"IEND") + 4..], [0xAE, 0x42, 0x60, 0x82]);
        let mut lines = Vec::new();
        flate2::read::ZlibDecoder::new(&file[at(b"IDAT") + 4..]).read_to_end(&mut lines).unwrap();
        // A filter byte precedes each line.
        assert_eq!(lines, [&[0], &pixels[..12], &[0], &pixels[12..]].concat());
    }

    #[test]
    fn tables_that_do_not_fit_are_not_drawn() {
        let map = |values| HeatMap { values, ..HeatMap::default() };
        let maps = vec![map(vec![None; 4]), map(vec![])];
        let heat = Heat { rows: 2, columns: 2, shape: [2, 2], maps, ..Heat::default() };
        assert_eq!(figures(&heat), "");
        let maps = vec![map(vec![Some(1.0), None, Some(f64::NAN), None])];
        let html = figures(&Heat { maps, ..heat });
        assert!(html.contains("data:image/png;base64,") && !html.contains("dotted"));
    }

    #[test]
    fn estimated_cells_have_a_dot() {
        let map =
            |values: [Option<f64>; 2]| HeatMap { values: values.into(), ..HeatMap::default() };
        let maps = vec![map([Some(1.0), None]), map([Some(1.0), Some(2.0)])];
        let heat = Heat { rows: 1, columns: 2, shape: [1, 2], maps, ..Heat::default() };
        assert_eq!([0, 1].map(|cell| has_dot(&heat, &heat.maps[1], cell)), [false, true]);
        assert!(figures(&heat).contains("<i class=\"dotted\"></i><span>estimated</span>"));
        let wide = Heat { columns: DOTTED_MAX + 1, ..heat.clone() };
        assert!(!has_dot(&wide, &heat.maps[1], 1));
    }
}
