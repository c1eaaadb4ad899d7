//! Drafts of job files for a data file.

use super::execute::in_text;
use super::inspect::targets;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use whimbrel_core::Error;
use whimbrel_data::{
    ColumnType, CsvOptions, Dataset, Entries, GapMark, Identifier, Kind, Spelling, TableGuess,
    guess_table, parse_number, read_csv, read_idx_images, read_libsvm,
};
use whimbrel_families::failure::Result;
use whimbrel_families::family::refuse;
use whimbrel_families::load::{FileKind, read_any};
use whimbrel_families::{DataFacts, TableFacts, template};
use whimbrel_models::glm::inference::Factored;

/// Usual names of the column of clients.
const CLIENT_NAMES: [&str; 40] = [
    "client",
    "site",
    "ward",
    "hospital",
    "clinic",
    "center",
    "centre",
    "group",
    "observer",
    "user",
    "device",
    "institution",
    "lab",
    "subject",
    "region",
    "branch",
    "store",
    "shop",
    "station",
    "school",
    "practice",
    "facility",
    "department",
    "factory",
    "farm",
    "meter",
    "klinik",
    "krankenhaus",
    "zentrum",
    "praxis",
    "filiale",
    "schule",
    "standort",
    "beobachter",
    "gruppe",
    "hopital",
    "hôpital",
    "ville",
    "magasin",
    "groupe",
];

/// Usual names of the target column.
const TARGET_NAMES: [&str; 5] = ["label", "class", "target", "outcome", "y"];

/// Of these, names of classes that may be numbers.
const CLASS_NAMES: [&str; 2] = ["label", "class"];

/// Largest number of values of a column of classes.
const CLASSES_MAX: usize = 20;

/// Names of columns that identify things, beside those that end in `id`.
const IDENTIFIERS: [&str; 16] = [
    "id",
    "patient",
    "zip",
    "zipcode",
    "postcode",
    "plz",
    "code_postal",
    "phone",
    "email",
    "name",
    "index",
    "ssn",
    "account",
    "customer",
    "invoice",
    "policy",
];

/// Fewest digits of numbers that identify things, if all are distinct and of one length.
const DIGITS_MIN: usize = 5;

/// The share of rows with one value from which a component of a mixture may have no other.
const SPIKE_MIN: f64 = 0.1;

/// Readings of a file whose cells show marks of gaps.
const READINGS_MAX: usize = 3;

/// The ratio of the columns' standard deviations from which they have different units.
const UNITS_MIN: f64 = 10.0;

/// Usual names of the column of events.
const EVENT_NAMES: [&str; 8] =
    ["event", "status", "death", "dead", "died", "failure", "tod", "deces"];

/// Usual words in the name of a column of times.
const TIME_NAMES: [&str; 10] = [
    "time", "days", "weeks", "months", "years", "survival", "followup", "duration", "zeit", "tage",
];

/// Models by `newton`, which read factors and leave rows with gaps out.
const INFERENCE: [&str; 2] = ["glm", "cox"];

/// Models and methods without a target.
const WITHOUT_TARGET: [&str; 5] = ["gmm", "mixture", "low-rank", "summary", "describe"];

/// Most coefficients of a multinomial regression.
const PARAMETERS_MAX: usize = 1000;

/// Most columns whose correlations are examined.
const RANKED_MAX: usize = 200;

/// Rounding of a linear function in a text file, relative to its terms.
const LINEAR_MAX: f64 = 1e-12;

const CONSTANT: &str = "it is constant";
const LINEAR: &str = "it is a linear function of an earlier column";
const DEPENDENT: &str = "it is a linear function of several other columns";

/// The wishes of a user for a draft.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes<'a> {
    /// The column to predict.
    pub target: Option<&'a str>,
    /// The kind of the model.
    pub model: Option<&'a str>,
    /// The column of events beside a target of times.
    pub event: Option<&'a str>,
}

/// A draft of a job.
pub struct Draft {
    /// The commented job.
    pub text: String,
    /// Sentences on cells that may mark gaps; they are comments of the job, too.
    pub doubts: Vec<String>,
}

/// A commented job for a data file, or for the generator; `job` is the file it will be in.
pub fn draft(data: Option<&Path>, job: Option<&Path>, wishes: Wishes<'_>) -> Result<Draft> {
    let facts = data.map(|file| look(file, job, wishes)).transpose()?;
    let text = template(facts.as_ref(), wishes.model)?;
    Ok(Draft { text, doubts: facts.map(|facts| facts.doubts).unwrap_or_default() })
}

fn look(file: &Path, job: Option<&Path>, wishes: Wishes<'_>) -> Result<DataFacts> {
    let kind = FileKind::of(file);
    let path = in_text(&seen_from(job, file))?.into();
    let known = DataFacts { path, kind, ..DataFacts::default() };
    let numbered = |n: usize| (1..=n).map(|i| format!("c{i}")).collect();
    match kind {
        FileKind::Libsvm => {
            let rows = read_libsvm(file, None)?;
            let classes = targets(&rows.targets).len();
            return Ok(DataFacts { rows: rows.len(), classes, ..known });
        }
        FileKind::Idx => {
            let images = read_idx_images(file)?;
            let columns = numbered(images.width());
            return Ok(DataFacts { rows: images.rows(), columns, ..known });
        }
        FileKind::Csv | FileKind::Parquet | FileKind::Npy => {}
    }
    let (data, spelling) = read(file, kind)?;
    let guess = match (wishes.target, wishes.model) {
        (None, Some("low-rank")) => guess_table(&data),
        (None, None) => guess_table(&data).filter(|table| !has_units(&data, table)),
        _ => None,
    };
    let (target, regression, classes) = target_of(&data, wishes, guess.is_some())?;
    let time = target.as_deref().filter(|_| wishes.model == Some("cox"));
    let event = time.map(|time| event_column(&data, time, wishes.event)).transpose()?;
    let client = match &guess {
        Some(table) => table.client.clone(),
        None => client_column(&data, target.as_deref()),
    };
    let table = guess.map(|table| TableFacts {
        row: table.row,
        column: table.column,
        value: table.value,
        entries: table.entries,
    });
    let roles = [&client, &target, &event].into_iter().flatten();
    let except: Vec<&str> = roles.map(String::as_str).collect();
    let others = (0..data.columns().len())
        .filter(|at| data.columns()[*at].named && !except.contains(&&*data.columns()[*at].name));
    let others: Vec<usize> = others.collect();
    let is_table = !kind.is_table() || table.is_some();
    let left_out = if is_table { Vec::new() } else { left_out(&data, &others) };
    let is_used = |at: &usize| {
        let column = &data.columns()[*at];
        let factor = regression.is_some() && column.kind == Kind::Text;
        (column.kind == Kind::Number || factor)
            && left_out.iter().all(|(out, _)| *out != column.name)
    };
    let columns = others.into_iter().filter(is_used);
    let columns: Vec<String> = columns.map(|at| data.columns()[at].name.clone()).collect();
    let rows = data.rows();
    let mut doubts = doubts(file, kind, &data, &spelling, client.as_deref())?;
    if event.is_none() && regression.is_some() {
        doubts.extend(target.as_deref().and_then(|target| doubt_of_time(&data, target)));
    }
    let facts = DataFacts { columns, client, rows, table, left_out, regression, ..known };
    let facts = DataFacts { event, spelling, doubts, ..facts };
    let named: Vec<&str> = facts.columns.iter().map(String::as_str).collect();
    if wishes.target.is_some() && named.is_empty() {
        return nothing_left("no column is left to predict the target from", &facts);
    }
    // A regression leaves rows with gaps out.
    if let (Some(name), false) = (&target, named.is_empty())
        && (regression.is_some() || !data.has_gaps(&named))
    {
        let types = types_of_target(&data, name, regression)?;
        return Ok(DataFacts { types, target, classes, ..facts });
    }
    let (mixed, mut facts) = (wishes.model != Some("gmm"), facts);
    if facts.kind.is_table() && facts.table.is_none() && mixed {
        mixed_columns(&data, &mut facts);
    }
    if facts.columns.is_empty() && !facts.left_out.is_empty() {
        return nothing_left("no column is left to fit a model to", &facts);
    }
    facts.has_spikes = has_spikes(&data, &facts);
    Ok(facts)
}

/// Whether one value fills a large share of a column of numbers.
fn has_spikes(data: &Dataset, facts: &DataFacts) -> bool {
    let typed = |name: &String| facts.types.iter().flatten().any(|(known, _)| known == name);
    let share = |name: &String| data.column(name).map_or(0.0, |at| data.largest_share(at));
    facts.columns.iter().any(|name| !typed(name) && share(name) >= SPIKE_MIN)
}

/// The error about a file whose columns are all left out, with the reasons.
fn nothing_left<T>(what: &str, facts: &DataFacts) -> Result<T> {
    let why = facts.left_out.iter().map(|(name, why)| format!("{name:?}: {why}"));
    refuse(what, why.collect::<Vec<_>>().join("; "))
}

/// Reads a file with the marks of gaps and of thousands that its cells show.
fn read(file: &Path, kind: FileKind) -> Result<(Arc<Dataset>, Spelling)> {
    let mut spelling = Spelling::default();
    let mut data = read_any(&file.into(), &CsvOptions::default())?;
    // Cells beyond the first unreadable ones show after these have a meaning.
    for _ in 0..READINGS_MAX {
        let more = data.guess_spelling();
        if kind != FileKind::Csv || more == Spelling::default() {
            break;
        }
        spelling.na.extend(more.na);
        spelling.thousands = spelling.thousands.or(more.thousands);
        let options = CsvOptions { spelling: spelling.clone(), ..CsvOptions::default() };
        data = Arc::new(read_csv(file, &options)?);
    }
    Ok((data, spelling))
}

/// Sentences on numbers that may mark gaps, with the line of the job that declares them.
fn doubts(
    file: &Path,
    kind: FileKind,
    data: &Dataset,
    spelling: &Spelling,
    client: Option<&str>,
) -> Result<Vec<String>> {
    let name = |at: usize| data.columns()[at].name.as_str();
    let columns = (0..data.columns().len())
        .filter(|at| client != Some(name(*at)) && data.identifier(*at).is_none());
    let marks: Vec<_> =
        columns.flat_map(|at| data.gap_marks(at).into_iter().map(move |mark| (at, mark))).collect();
    if marks.is_empty() || kind != FileKind::Csv {
        return Ok(Vec::new());
    }
    // Marks are compared as text: 999 and 999.0 are two.
    let text = marks.iter().map(|(at, _)| name(*at).to_owned()).collect();
    let options = CsvOptions { text, spelling: spelling.clone(), ..CsvOptions::default() };
    let texts = read_csv(file, &options)?;
    let doubt = |(at, GapMark { value, rows, rest: [low, high] }): &(usize, GapMark)| {
        let cells = texts.class_names(name(*at))?.into_iter();
        let own = cells.filter(|cell| parse_number(cell.as_bytes()) == Some(*value));
        let na: Vec<String> =
            spelling.na.iter().cloned().chain(own).map(|cell| format!("{cell:?}")).collect();
        Ok(format!(
            "column {:?} holds {value} in {rows} of {} rows, far outside its other values ({low} to \
             {high}); if it marks a gap, write na = [{}] in [data], for all columns",
            name(*at),
            data.rows(),
            na.join(", ")
        ))
    };
    marks.iter().map(doubt).collect()
}

/// Whether the lines of a wide file are rows of numbers in different units, not one table.
fn has_units(data: &Dataset, table: &TableGuess) -> bool {
    let other = |name: &str| name == table.row || table.client.as_deref() == Some(name);
    let sd = |at: usize| {
        let values: Vec<f64> = (0..data.rows()).filter_map(|row| data.number(row, at)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        (squares / values.len() as f64).sqrt()
    };
    let numbers = (0..data.columns().len()).filter(|at| data.columns()[*at].kind == Kind::Number);
    let each = numbers.filter(|at| !other(&data.columns()[*at].name)).map(sd);
    let (low, high) = each.fold((f64::MAX, 0f64), |(low, high), sd| (low.min(sd), high.max(sd)));
    table.value.is_empty() && table.entries == Entries::Numbers && high > UNITS_MIN * low
}

/// Columns that are not features, with the reasons.
fn left_out(data: &Dataset, columns: &[usize]) -> Vec<(String, &'static str)> {
    let (mut kept, mut out): (Vec<usize>, _) = (Vec::new(), Vec::new());
    for &at in columns {
        let repeats = || kept.iter().any(|&x| is_linear(data, x, at)).then_some(LINEAR);
        match useless(data, at).or_else(repeats) {
            Some(why) => out.push((data.columns()[at].name.clone(), why)),
            None => kept.push(at),
        }
    }
    kept.retain(|at| data.columns()[*at].kind == Kind::Number);
    while let Some(place) = dependent(data, &kept) {
        out.push((data.columns()[kept.remove(place)].name.clone(), DEPENDENT));
    }
    out
}

/// The place of a column of numbers that is a linear function of others, by their correlations in the rows
/// without gaps.
fn dependent(data: &Dataset, columns: &[usize]) -> Option<usize> {
    let p = columns.len();
    let complete = |row| columns.iter().map(|at| data.number(row, *at)).collect::<Option<Vec<_>>>();
    let mut rows: Vec<Vec<f64>> = (0..data.rows()).filter_map(complete).collect();
    if p > RANKED_MAX || rows.len() <= p + 1 {
        return None;
    }
    for column in 0..p {
        let mean = rows.iter().map(|row| row[column]).sum::<f64>() / rows.len() as f64;
        rows.iter_mut().for_each(|row| row[column] -= mean);
    }
    let pairs = (0..p).flat_map(|i| (0..=i).map(move |j| (i, j)));
    let products: Vec<f64> =
        pairs.map(|(i, j)| rows.iter().map(|row| row[i] * row[j]).sum()).collect();
    let found = Factored::new(&products, p).err().filter(|found| !found.on.is_empty());
    found.map(|found| found.column)
}

/// The family of a regression for a target (classes, counts or numbers), and the number of classes. The
/// information of very many coefficients is too large for a message.
fn regression(data: &Dataset, target: &str) -> Result<(Option<&'static str>, usize)> {
    let at = data.column(target)?;
    let (count, is_text) = (data.distinct(at), data.columns()[at].kind == Kind::Text);
    let is_count = || {
        let types = data.guess_types(&[]);
        let is_count = types.contains(&(target.to_owned(), ColumnType::Count));
        is_count && (0..data.rows()).any(|row| data.number(row, at) == Some(0.0))
    };
    let is_class = || CLASS_NAMES.contains(&target.to_lowercase().as_str());
    let why = match count {
        _ if unusable(data, at).is_some() => unusable(data, at).unwrap_or_default(),
        1 => CONSTANT,
        2 => return Ok((Some("binomial"), 2)),
        3..=CLASSES_MAX if is_text || is_class() => {
            let is_small = count * data.columns().len() <= PARAMETERS_MAX;
            return Ok((is_small.then_some("multinomial"), count));
        }
        _ if is_text => "it has too many different texts for classes",
        _ if is_count() => return Ok((Some("poisson"), 0)),
        _ => return Ok((Some("gaussian"), 0)),
    };
    let what = format!("column {target:?} cannot be predicted: {why}");
    Err(Error::config(what).hint("name another target, or correct the file").into())
}

/// The type of a target of two numbers beside 0 and 1.
fn types_of_target(
    data: &Dataset,
    target: &str,
    regression: Option<&str>,
) -> Result<Option<Vec<(String, ColumnType)>>> {
    let is_number = data.columns()[data.column(target)?].kind == Kind::Number;
    let is_coded = regression == Some("binomial") && is_number && !holds_0_and_1(data, target);
    Ok(is_coded.then(|| vec![(target.to_owned(), ColumnType::YesNo)]))
}

/// The reason why the cells of a column have no meaning.
fn unusable(data: &Dataset, at: usize) -> Option<&'static str> {
    match data.written(at) {
        Some(written) => Some(written.remedy()),
        None if data.distinct(at) == 0 => Some("it has no values"),
        None if data.has_unreadable(at) => {
            Some("some of its cells are not numbers: mend them, or list them as `na` in [data]")
        }
        None => None,
    }
}

/// Whether column `y` is a linear function of column `x`, where it is observed.
fn is_linear(data: &Dataset, x: usize, y: usize) -> bool {
    let number = |at: usize| data.columns()[at].kind == Kind::Number;
    if !number(x) || !number(y) {
        return false;
    }
    let pairs = || {
        let both = |row| data.number(row, y).map(|b| data.number(row, x).map(|a| (a, b)));
        (0..data.rows()).filter_map(both)
    };
    let Some(first) = pairs().next().flatten() else { return false };
    let Some(other) = pairs().flatten().find(|pair| pair.0 != first.0) else { return false };
    let slope = (other.1 - first.1) / (other.0 - first.0);
    let fits = |(a, b): (f64, f64)| {
        let found = slope * (a - first.0);
        (b - first.1 - found).abs() <= LINEAR_MAX * (b.abs() + first.1.abs() + found.abs())
    };
    slope != 0.0 && pairs().all(|pair| pair.is_some_and(fits))
}

/// The reason why a column is not a feature: it has no meaning, identifies things, is constant, or is text
/// that is not a category.
fn useless(data: &Dataset, at: usize) -> Option<&'static str> {
    if let Some(why) = unusable(data, at) {
        return Some(why);
    }
    let name = data.columns()[at].name.to_lowercase();
    if data.columns()[at].kind == Kind::Text {
        let is_category =
            data.guess_types(&[]).iter().any(|(known, _)| known.to_lowercase() == name);
        return match data.distinct(at) {
            1 => Some(CONSTANT),
            _ if is_category => None,
            _ => Some("it has too many different texts for a category"),
        };
    }
    let whole =
        || (0..data.rows()).all(|row| data.number(row, at).is_none_or(|x| x.fract() == 0.0));
    let numbered = || {
        let values = (0..data.rows()).filter_map(|row| data.number(row, at));
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), x| (l.min(x), h.max(x)));
        data.distinct(at) == data.rows() && high - low == (data.rows() - 1) as f64
    };
    if data.identifier(at) == Some(Identifier::OfRows) || whole() && numbered() {
        return Some("it identifies rows");
    }
    let is_named = IDENTIFIERS.contains(&name.as_str()) || name.ends_with("_id");
    let digits = |row| data.number(row, at).map_or(0, |x| x.to_string().len());
    let of_one_length = || {
        let length = digits(0);
        let is_same = (0..data.rows()).all(|row| digits(row) == length);
        length >= DIGITS_MIN && data.distinct(at) == data.rows() && is_same
    };
    if whole() && (is_named || of_one_length()) {
        return Some("it looks like an identifier");
    }
    let mut values = (0..data.rows()).filter_map(|row| data.number(row, at));
    let first = values.next()?;
    values.all(|x| x == first).then_some(CONSTANT)
}

/// Treats a file with gaps, with 0/1 columns or with text columns of few values as a mixed table.
fn mixed_columns(data: &Dataset, facts: &mut DataFacts) {
    let out = facts.left_out.iter().map(|(name, _)| name.as_str());
    let except: Vec<&str> = facts.client.as_deref().into_iter().chain(out).collect();
    let types = data.guess_types(&except);
    let is_text =
        |name: &str| data.column(name).is_ok_and(|at| data.columns()[at].kind == Kind::Text);
    let named = |name: &&str| {
        facts.columns.iter().any(|known| known == name)
            || types.iter().any(|(known, _)| known == name)
    };
    let used: Vec<&str> =
        data.columns().iter().map(|column| column.name.as_str()).filter(named).collect();
    let odd = |(name, of): &(String, ColumnType)| is_text(name) || *of == ColumnType::YesNo;
    if data.has_gaps(&used) || types.iter().any(odd) {
        facts.columns = used.into_iter().map(String::from).collect();
        facts.types = Some(types);
    }
}

/// The path of a data file as the job file writes it, relative to its folder if possible.
fn seen_from(job: Option<&Path>, file: &Path) -> PathBuf {
    let folder = job.and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    let Some(folder) = folder else { return file.into() };
    match (folder.canonicalize(), file.canonicalize()) {
        (Ok(folder), Ok(file)) => {
            file.strip_prefix(&folder).map_or(file.clone(), Path::to_path_buf)
        }
        _ => file.into(),
    }
}

/// A target, the family of a regression on it and its number of classes.
type Target = (Option<String>, Option<&'static str>, usize);

/// The user's target, or one with a usual name if the model may have one.
fn target_of(data: &Dataset, wishes: Wishes<'_>, is_table: bool) -> Result<Target> {
    let has_target = wishes.model.is_none_or(|kind| !WITHOUT_TARGET.contains(&kind));
    let (target, family, classes) = match wishes.target {
        Some(name) => {
            let (family, classes) = regression(data, name)?;
            (Some(name.to_owned()), family, classes)
        }
        None if has_target && !is_table => target_column(data).unwrap_or_default(),
        None => Target::default(),
    };
    let inference = wishes.model.is_none_or(|kind| INFERENCE.contains(&kind));
    Ok((target, family.filter(|_| inference), classes))
}

/// A target with a usual name.
fn target_column(data: &Dataset) -> Option<Target> {
    let is_usual = |name: &str| TARGET_NAMES.contains(&name.to_lowercase().as_str());
    let mut usual = data.columns().iter().filter(|c| c.named && is_usual(&c.name));
    let (column, None) = (usual.next()?, usual.next()) else { return None };
    let (family, classes) = regression(data, &column.name).ok()?;
    Some((Some(column.name.clone()), family, classes))
}

/// The column of events: the user's, one of 0 and 1 with a usual name, or the only one of 0 and 1.
fn event_column(data: &Dataset, time: &str, asked: Option<&str>) -> Result<String> {
    if let Some(name) = asked {
        data.column(name)?;
        return Ok(name.into());
    }
    let types = data.guess_types(&[time]).into_iter();
    let is_event = |name: &str| holds_0_and_1(data, name);
    let events = types.filter(|(name, _)| is_event(name));
    let mut events: Vec<String> = events.map(|(name, _)| name).collect();
    let usual = events.iter().position(|name| EVENT_NAMES.contains(&name.to_lowercase().as_str()));
    match usual.or((events.len() == 1).then_some(0)) {
        Some(at) => Ok(events.swap_remove(at)),
        None => refuse(
            "no column is known to mark the events",
            "name it with --event COLUMN: it holds 1 for an event and 0 for a censored time",
        ),
    }
}

/// Whether a column holds the numbers 0 and 1.
fn holds_0_and_1(data: &Dataset, name: &str) -> bool {
    data.column(name).is_ok_and(|at| {
        let mut cells = (0..data.rows()).filter_map(|row| data.number(row, at));
        data.distinct(at) == 2 && cells.all(|x| x == 0.0 || x == 1.0)
    })
}

/// A sentence on a target that looks like a time, beside a column of events.
fn doubt_of_time(data: &Dataset, target: &str) -> Option<String> {
    let name = target.to_lowercase();
    let mut words = name.split(|c: char| !c.is_alphanumeric());
    let at = data.column(target).ok()?;
    let is_time = words.any(|word| TIME_NAMES.contains(&word))
        && (0..data.rows()).all(|row| data.number(row, at).is_none_or(|x| x >= 0.0));
    let is_event = |name: &str| {
        EVENT_NAMES.contains(&name.to_lowercase().as_str()) && holds_0_and_1(data, name)
    };
    let event = data.columns().iter().find(|column| is_event(&column.name)).filter(|_| is_time)?;
    Some(format!(
        "{:?} holds 0 and 1: if it marks the times in {target:?} that end with an event, write \
         `whimbrel new --model cox` for a regression of censored times",
        event.name
    ))
}

/// A column with a usual name that is not distinct in every row, else the only text column beside the
/// target if its values repeat.
fn client_column(data: &Dataset, target: Option<&str>) -> Option<String> {
    let is_target = |name: &str| target == Some(name);
    let names = || data.columns().iter().filter(|c| c.named && !is_target(&c.name));
    let distinct = |name: &str| data.column(name).map_or(0, |at| data.distinct(at));
    let is_usual = |name: &str| CLIENT_NAMES.contains(&name.to_lowercase().as_str());
    let usual = names().find(|c| is_usual(&c.name) && distinct(&c.name) < data.rows());
    let is_plain = |name: &str| data.column(name).is_ok_and(|at| data.written(at).is_none());
    let mut texts = names().filter(|c| c.kind == Kind::Text && is_plain(&c.name));
    let only = texts.next().filter(|_| texts.next().is_none());
    let only = only.filter(|column| 2 * distinct(&column.name) <= data.rows());
    usual.or(only).map(|c| c.name.clone())
}
