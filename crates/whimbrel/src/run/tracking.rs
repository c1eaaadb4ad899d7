//! A run's figures in the formats of experiment trackers: TensorBoard's event files, and MLflow's
//! folder of runs. Both are written without their packages.

use super::view::metrics;
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use whimbrel_core::Error;
use whimbrel_core::wire::put_varint;
use whimbrel_data::Sha256;
use whimbrel_engine::checkpoint::write_atomically;
use whimbrel_families::failure::Result;
use whimbrel_runs::RunDir;

/// Writes `DIR/events.out.tfevents.*` with a scalar per figure and round, and returns its path. The
/// file of a run has one name, so that a second export replaces the first.
pub fn tensorboard(run: &RunDir, folder: &Path) -> Result<PathBuf> {
    let found = Figures::read(run)?;
    let mut out = Vec::new();
    let version = [double(1, found.begin), text(3, "brain.Event:2")].concat();
    record(&version, &mut out);
    for row in &found.rows {
        let mut values = Vec::new();
        for (name, value) in &row.figures {
            let value = [text(1, name), single(2, *value as f32)].concat();
            values.extend(bytes(1, &value));
        }
        let event = [double(1, found.begin + row.seconds), integer(2, row.round)].concat();
        record(&[event, bytes(5, &values)].concat(), &mut out);
    }
    let name = format!("events.out.tfevents.{:010}.{}", found.begin as u64, found.name());
    write(&folder.join(name), &out)
}

/// Adds the run to a folder that `mlflow ui --backend-store-uri DIR` reads, in the experiment
/// `whimbrel`, and returns the run's folder there. A run has one identifier, so that a second export
/// replaces the first.
pub fn mlflow(run: &RunDir, folder: &Path) -> Result<PathBuf> {
    let found = Figures::read(run)?;
    fs::create_dir_all(folder).map_err(|e| Error::storage(folder.display(), e))?;
    let root = folder.canonicalize().map_err(|e| Error::read(folder.display(), &e))?;
    let experiment = root.join("0");
    let id = &found.id;
    let place = experiment.join(id);
    let [begin, end] = [0.0, found.rows.last().map_or(0.0, |row| row.seconds)]
        .map(|seconds| milliseconds(found.begin + seconds));
    let of_experiment = experiment.join("meta.yaml");
    if !of_experiment.is_file() {
        let text = format!(
            "artifact_location: {}\ncreation_time: {begin}\nexperiment_id: '0'\n\
             last_update_time: {begin}\nlifecycle_stage: active\nname: whimbrel\n",
            quoted(&format!("file://{}", experiment.display()))
        );
        write(&of_experiment, text.as_bytes())?;
    }
    let _ = fs::remove_dir_all(&place);
    for name in found.rows.iter().flat_map(|row| row.figures.iter().map(|(name, _)| name)) {
        let file = place.join("metrics").join(name);
        if file.is_file() {
            continue;
        }
        let mut lines = String::new();
        for row in &found.rows {
            for (_, value) in row.figures.iter().filter(|(other, _)| other == name) {
                let at = milliseconds(found.begin + row.seconds);
                lines.push_str(&format!("{at} {value} {}\n", row.round));
            }
        }
        write(&file, lines.as_bytes())?;
    }
    for (key, value) in &found.params {
        write(&place.join("params").join(key), value.as_bytes())?;
    }
    write(&place.join("tags/mlflow.runName"), found.title.as_bytes())?;
    for name in ["job.toml", "summary.json", "report.html"] {
        if let Ok(content) = fs::read(run.path().join(name)) {
            write(&place.join("artifacts").join(name), &content)?;
        }
    }
    let artifacts = quoted(&format!("file://{}", place.join("artifacts").display()));
    let meta = format!(
        "artifact_uri: {artifacts}\nend_time: {end}\nentry_point_name: ''\nexperiment_id: '0'\n\
         lifecycle_stage: active\nrun_id: {id}\nrun_name: {title}\nrun_uuid: {id}\n\
         source_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: {begin}\nstatus: 3\n\
         tags: []\nuser_id: whimbrel\n",
        title = quoted(&found.title)
    );
    write(&place.join("meta.yaml"), meta.as_bytes())?;
    Ok(place)
}

/// The figures of a run.
struct Figures {
    title: String,
    /// 32 hexadecimal digits from the job and the run's folder.
    id: String,
    params: Vec<(&'static str, String)>,
    /// Seconds since 1970.
    begin: f64,
    rows: Vec<Row>,
}

struct Row {
    round: u64,
    seconds: f64,
    figures: Vec<(String, f64)>,
}

impl Figures {
    fn read(run: &RunDir) -> Result<Self> {
        let path = run.path();
        let file = path.join("metrics.jsonl");
        if !file.is_file() {
            let seeds = run.seeds();
            let error = Error::config(format!("{} does not exist", file.display()));
            return Err(match seeds.first() {
                Some(first) => {
                    error.hint(format!("a run of several seeds: export {}", first.path().display()))
                }
                None => error.hint("the run was not evaluated yet"),
            }
            .into());
        }
        let job = path.join("job.toml");
        let text = fs::read(&job).map_err(|e| Error::read(job.display(), &e))?;
        let written = fs::metadata(&job).and_then(|data| data.modified());
        let since = written.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let mut hash = Sha256::new();
        hash.update(&text);
        let place = path.canonicalize().map_err(|e| Error::read(path.display(), &e))?;
        hash.update(place.display().to_string().as_bytes());
        let shown = run.shown();
        let seed = shown.seed.to_string();
        Ok(Self {
            title: shown.name,
            id: hash.hex()[..32].to_owned(),
            params: [("method", shown.method), ("model", shown.model), ("seed", seed)].into(),
            begin: since.map_or(0.0, |since| since.as_secs_f64()),
            rows: metrics(&file)?.iter().map(Row::new).collect(),
        })
    }

    /// The title in letters that every file system has.
    fn name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        self.title.chars().map(plain).collect()
    }
}

impl Row {
    fn new(row: &Map<String, Value>) -> Self {
        let number = |key: &str| row.get(key).and_then(Value::as_f64).unwrap_or(0.0);
        let mut figures = Vec::new();
        // Names become those of files, and a coordinator may have chosen them.
        let is_plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let named = row.iter().filter(|(name, _)| *name != "round" && is_plain(name));
        for (name, value) in named {
            match value {
                Value::Array(parts) => {
                    figures.extend(parts.iter().enumerate().filter_map(|(i, part)| {
                        Some((format!("{name}_{}", i + 1), part.as_f64()?))
                    }))
                }
                value => figures.extend(value.as_f64().map(|value| (name.clone(), value))),
            }
        }
        Self { round: number("round") as u64, seconds: number("seconds"), figures }
    }
}

fn write(path: &Path, content: &[u8]) -> Result<PathBuf> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|e| Error::storage(folder.display(), e))?;
    }
    write_atomically(path, content)?;
    Ok(path.into())
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1e3) as u64
}

/// A string of YAML.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A record of TensorFlow's files: its length and its content, each with a masked checksum.
fn record(content: &[u8], out: &mut Vec<u8>) {
    let length = (content.len() as u64).to_le_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked(&length).to_le_bytes());
    out.extend_from_slice(content);
    out.extend_from_slice(&masked(content).to_le_bytes());
}

fn masked(content: &[u8]) -> u32 {
    crc32c(content).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// The checksum of Castagnoli's polynomial.
fn crc32c(content: &[u8]) -> u32 {
    let step = |crc: u32, _: u32| if crc & 1 == 1 { (crc >> 1) ^ 0x82F6_3B78 } else { crc >> 1 };
    !content.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// Fields of a protocol buffer: a number and its kind, then the content.
fn integer(field: u8, value: u64) -> Vec<u8> {
    let mut out = vec![field << 3];
    put_varint(value, &mut out);
    out
}

fn double(field: u8, value: f64) -> Vec<u8> {
    [&[field << 3 | 1][..], &value.to_le_bytes()].concat()
}

fn single(field: u8, value: f32) -> Vec<u8> {
    [&[field << 3 | 5][..], &value.to_le_bytes()].concat()
}

fn bytes(field: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![field << 3 | 2];
    put_varint(content.len() as u64, &mut out);
    out.extend_from_slice(content);
    out
}

fn text(field: u8, content: &str) -> Vec<u8> {
    bytes(field, content.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_castagnolis() {
        // RFC 3720, B.4: 32 bytes of zeros, of ones, and ascending.
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(&std::array::from_fn::<u8, 32, _>(|i| i as u8)), 0x46DD_794E);
    }
}
