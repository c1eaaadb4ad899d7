//! Queries of PostgreSQL.

use super::password;
use super::tls::Tls;
use crate::calendar;
use crate::dataset::Kind;
use crate::number::parse_number;
use crate::typed::TypedRows;
use crate::{Dataset, Error, Result};
use ::postgres::config::{Host, SslMode};
use ::postgres::error::SqlState;
use ::postgres::fallible_iterator::FallibleIterator;
use ::postgres::types::{FromSql, Kind as TypeKind, Type};
use ::postgres::{Client, Config, IsolationLevel, NoTls};
use std::error::Error as Cause;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

/// Days from 1970-01-01 to 2000-01-01, from which PostgreSQL counts.
const EPOCH_DAYS: i64 = 10_957;
const MICROS_PER_DAY: i128 = 86_400_000_000;
/// Waiting for a connection, unless the URL has `connect_timeout`.
const CONNECT: Duration = Duration::from_secs(15);
/// A silent connection is probed after this time.
const PROBE: Duration = Duration::from_secs(20);

/// Reads the result of a query in a read-only transaction, row by row.
pub(super) fn read(url: &str, query: &str, name: &str) -> Result<Dataset> {
    let failed = |e: ::postgres::Error| Error::format(name, message(&e));
    let mut client = connect(url, name)?;
    let mut transaction = client
        .build_transaction()
        .read_only(true)
        .isolation_level(IsolationLevel::RepeatableRead)
        .start()
        .map_err(failed)?;
    let statement = transaction.prepare(query).map_err(failed)?;
    if statement.columns().is_empty() {
        return Err(Error::format(name, "the query returns no columns").hint("write one SELECT"));
    }
    if !statement.params().is_empty() {
        return Err(Error::format(name, "the query has parameters, which nothing fills"));
    }
    let mut forms = Vec::new();
    for column in statement.columns() {
        forms.push(Form::of(column.type_()).ok_or_else(|| {
            let (column, kind) = (column.name(), column.type_().name());
            let hint = format!("leave it out of the query, or cast it: {column}::text");
            Error::format(name, format!("column {column:?} has the type {kind}")).hint(hint)
        })?);
    }
    let columns = statement.columns().iter().zip(&forms);
    let columns = columns.map(|(column, form)| (column.name().to_owned(), form.kind())).collect();
    let mut rows = TypedRows::new(name, columns)?;
    let mut found = transaction.query_raw(&statement, [] as [&str; 0]).map_err(failed)?;
    while let Some(row) = found.next().map_err(failed)? {
        rows.extend(1)?;
        let at = rows.rows() - 1;
        for (column, form) in forms.iter().enumerate() {
            let cell: Option<Raw<'_>> = row.try_get(column).map_err(failed)?;
            let cell = cell.map(|cell| form.decode(cell.0)).transpose().map_err(|()| {
                let what = format!("row {}, column {}: the value is malformed", at + 1, column + 1);
                Error::format(name, what)
            })?;
            match (cell, form.kind()) {
                (Some(Cell::Number(x)), _) => rows.set(at, column, x),
                (Some(Cell::Integer(x)), _) => rows.set_integer(at, column, x),
                (Some(Cell::Text(text)), _) => rows.push(column, Some(&text)),
                (None, Kind::Text) => rows.push(column, None),
                (None, Kind::Number) => {}
            }
        }
    }
    rows.finish(Vec::new())
}

/// Connects by TLS, or in plain text to this machine or on request.
fn connect(url: &str, name: &str) -> Result<Client> {
    let Url { mut config, authorities, mode } = Url::parse(url, name)?;
    let storage =
        |what: String| Error::Storage { path: name.into(), what, missing: false, hint: None };
    let local = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(host) => ["localhost", "127.0.0.1", "::1"].contains(&host.as_str()),
    };
    if !config.get_hostaddrs().is_empty() {
        let what = format!("{name}: hostaddr would reach another machine than the named one");
        return Err(Error::config(what).hint("name the machine in the URL"));
    }
    let is_local = config.get_hosts().iter().all(local);
    if config.get_password().is_none() {
        let user = config.get_user().map_or_else(|| std::env::var("USER").ok(), |u| Some(u.into()));
        let user = user.unwrap_or_default();
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            _ => "localhost".into(),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
        let database = config.get_dbname().unwrap_or(&user).to_owned();
        if let Some(found) = password::find([&host, &port, &database, &user])? {
            config.password(found);
        }
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT);
    }
    config.keepalives_idle(PROBE).keepalives_interval(PROBE / 2).keepalives_retries(3);
    config.application_name("whimbrel");
    let plain = match mode.as_deref() {
        Some("disable") => true,
        Some("require" | "verify-ca" | "verify-full") => false,
        None | Some("prefer" | "allow") => is_local && authorities.is_none(),
        Some(other) => {
            let what = format!("sslmode={other} is not known");
            return Err(Error::config(what).hint("write disable or verify-full"));
        }
    };
    if plain {
        config.ssl_mode(SslMode::Disable);
        return config.connect(NoTls).map_err(|e| storage(message(&e)));
    }
    let Some(authorities) = authorities else {
        let what =
            format!("{name}: no certificate authority is given to check the server's certificate");
        return Err(Error::config(what).hint(
            "add ?sslrootcert=FILE (a PEM file) to the URL or set PGSSLROOTCERT; sslmode=disable \
             would send password and rows in plain text",
        ));
    };
    let tls = Tls::trusting(&authorities)
        .map_err(|why| storage(format!("{}: {why}", authorities.display())))?;
    config.ssl_mode(SslMode::Require);
    config.connect(tls).map_err(|e| storage(message(&e)))
}

/// A URL with the options of TLS set apart.
struct Url {
    config: Config,
    authorities: Option<PathBuf>,
    mode: Option<String>,
}

impl Url {
    fn parse(url: &str, name: &str) -> Result<Self> {
        let (place, options) = cut(url);
        let (mut authorities, mut mode, mut others) = (None, None, Vec::new());
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("sslrootcert", file)) => authorities = Some(PathBuf::from(file)),
                Some(("sslmode", word)) => mode = Some(word.to_owned()),
                _ => others.push(option),
            }
        }
        let variable = std::env::var_os("PGSSLROOTCERT").filter(|file| !file.is_empty());
        let authorities = authorities.or(variable.map(PathBuf::from));
        let config = format!("{}?{}", escaped(place), others.join("&")).parse::<Config>();
        let config = config.map_err(|e| {
            let hint = "the form is postgres://user@host:port/database?sslrootcert=FILE";
            Error::config(format!("{name}: {}", message(&e))).hint(hint)
        })?;
        Ok(Self { config, authorities, mode })
    }
}

/// The URL up to its options, and the options. The first `?` after the credentials starts them, because a
/// password can hold an unescaped one; the last `@` ends the credentials, except in the path of `sslrootcert`.
fn cut(url: &str) -> (&str, &str) {
    let head = url.split("sslrootcert=").next().unwrap_or_default();
    let start = head.rfind('@').unwrap_or(0);
    match url[start..].find('?') {
        Some(mark) => (&url[..start + mark], &url[start + mark + 1..]),
        None => (url, ""),
    }
}

/// The URL with every `@` in its credentials escaped: the parser takes the first one for their end.
fn escaped(place: &str) -> String {
    match place.rsplit_once('@') {
        Some((credentials, host)) => format!("{}@{host}", credentials.replace('@', "%40")),
        None => place.into(),
    }
}

/// The message of an error with its causes.
fn message(error: &::postgres::Error) -> String {
    if was_ended(error) {
        return "the server ended the connection".into();
    }
    if let Some(error) = error.as_db_error() {
        let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
        return format!("{}{hint}", error.message());
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

/// Whether the server ended the connection. Its last words are lost when the socket closes first.
fn was_ended(error: &::postgres::Error) -> bool {
    let cut = error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).is_some_and(|e| {
        let ends = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        ends.contains(&e.kind())
    });
    cut || error.is_closed() || error.code() == Some(&SqlState::ADMIN_SHUTDOWN)
}

/// The bytes of a value of any type.
struct Raw<'a>(&'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Cause + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

enum Cell {
    Number(f64),
    Integer(i64),
    Text(String),
}

/// The binary form of a type.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Boolean,
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    Numeric,
    Text,
    /// Text that is padded with blanks.
    Padded,
    Uuid,
    Date,
    Time,
    Timestamp {
        utc: bool,
    },
}

impl Form {
    fn of(data_type: &Type) -> Option<Self> {
        Some(match *data_type {
            Type::BOOL => Self::Boolean,
            Type::INT2 => Self::Int2,
            Type::INT4 => Self::Int4,
            Type::INT8 => Self::Int8,
            Type::FLOAT4 => Self::Float4,
            Type::FLOAT8 => Self::Float8,
            Type::NUMERIC => Self::Numeric,
            Type::TEXT | Type::VARCHAR | Type::NAME | Type::UNKNOWN => Self::Text,
            Type::BPCHAR => Self::Padded,
            Type::UUID => Self::Uuid,
            Type::DATE => Self::Date,
            Type::TIME => Self::Time,
            Type::TIMESTAMP => Self::Timestamp { utc: false },
            Type::TIMESTAMPTZ => Self::Timestamp { utc: true },
            _ => match data_type.kind() {
                TypeKind::Domain(base) => return Self::of(base),
                TypeKind::Enum(_) => Self::Text,
                _ => return None,
            },
        })
    }

    fn kind(self) -> Kind {
        match self {
            Self::Boolean | Self::Int2 | Self::Int4 | Self::Int8 => Kind::Number,
            Self::Float4 | Self::Float8 | Self::Numeric => Kind::Number,
            Self::Text | Self::Padded | Self::Uuid => Kind::Text,
            Self::Date | Self::Time | Self::Timestamp { .. } => Kind::Text,
        }
    }

    fn decode(self, raw: &[u8]) -> Result<Cell, ()> {
        let text = || std::str::from_utf8(raw).map_err(drop);
        Ok(match self {
            Self::Boolean => Cell::Number(f64::from(u8::from(raw == [1]))),
            Self::Int2 => Cell::Number(i16::from_be_bytes(exactly(raw)?).into()),
            Self::Int4 => Cell::Number(i32::from_be_bytes(exactly(raw)?).into()),
            Self::Int8 => Cell::Integer(i64::from_be_bytes(exactly(raw)?)),
            Self::Float4 => Cell::Number(f32::from_be_bytes(exactly(raw)?).into()),
            Self::Float8 => Cell::Number(f64::from_be_bytes(exactly(raw)?)),
            Self::Numeric => Cell::Number(numeric(raw)?),
            Self::Text => Cell::Text(text()?.into()),
            Self::Padded => Cell::Text(text()?.trim_end_matches(' ').into()),
            Self::Uuid => {
                let hex: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
                let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| hex.get(part));
                let parts: Option<Vec<&str>> = parts.into_iter().collect();
                Cell::Text(parts.ok_or(())?.join("-"))
            }
            Self::Date => Cell::Text(match i32::from_be_bytes(exactly(raw)?) {
                i32::MAX => "infinity".into(),
                i32::MIN => "-infinity".into(),
                days => calendar::date(i64::from(days) + EPOCH_DAYS),
            }),
            Self::Time => {
                let micros = i64::from_be_bytes(exactly(raw)?);
                Cell::Text(calendar::time(micros.checked_mul(1000).ok_or(())?))
            }
            Self::Timestamp { utc } => Cell::Text(match i64::from_be_bytes(exactly(raw)?) {
                i64::MAX => "infinity".into(),
                i64::MIN => "-infinity".into(),
                micros => {
                    let micros = i128::from(micros) + i128::from(EPOCH_DAYS) * MICROS_PER_DAY;
                    calendar::timestamp(1000 * micros, utc)
                }
            }),
        })
    }
}

fn exactly<const N: usize>(raw: &[u8]) -> Result<[u8; N], ()> {
    raw.try_into().map_err(drop)
}

/// The nearest `f64` to a decimal number: digits to the base 10,000 after their count, the exponent of
/// the first, a sign and the number of decimals.
fn numeric(raw: &[u8]) -> Result<f64, ()> {
    let word = |at: usize| -> Result<u16, ()> {
        Ok(u16::from_be_bytes(exactly(raw.get(2 * at..2 * at + 2).ok_or(())?)?))
    };
    let (count, first) = (usize::from(word(0)?), i32::from(word(1)? as i16));
    let sign = match word(2)? {
        0x0000 => "",
        0x4000 => "-",
        0xD000 => return Ok(f64::INFINITY),
        0xF000 => return Ok(f64::NEG_INFINITY),
        _ => return Ok(f64::NAN),
    };
    if count == 0 {
        return Ok(0.0);
    }
    let mut text = String::from(sign);
    for digit in 0..count {
        text += &format!("{:04}", word(4 + digit)?);
    }
    text += &format!("e{}", 4 * (first - count as i32 + 1));
    parse_number(text.as_bytes()).ok_or(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_may_have_unescaped_marks() {
        for password in ["s3cret", "s3?cret", "s3?a=b&c", "s3@c?r@et", "s3/c:ret?"] {
            let url = format!("postgres://ada:{password}@db.example:5433/wards");
            for (options, mode) in [("", None), ("?sslmode=disable", Some("disable"))] {
                let found = Url::parse(&format!("{url}{options}"), "rows").unwrap();
                assert_eq!(found.config.get_password(), Some(password.as_bytes()));
                assert_eq!(found.config.get_user(), Some("ada"));
                assert_eq!(found.config.get_hosts(), [Host::Tcp("db.example".into())]);
                assert_eq!(found.config.get_dbname(), Some("wards"));
                assert_eq!(found.mode.as_deref(), mode);
            }
        }
        let found = Url::parse("postgres://ada@db/wards?sslrootcert=/etc/a@b.pem", "rows").unwrap();
        assert_eq!(found.authorities, Some(PathBuf::from("/etc/a@b.pem")));
        assert_eq!(found.config.get_dbname(), Some("wards"));
        let error = Url::parse("postgres://ada:s3?cret@db/wards?color=red", "rows").err().unwrap();
        assert!(
            error.to_string().contains("color") && !error.to_string().contains("cret"),
            "{error}"
        );
    }

    #[test]
    fn decimals_are_rounded_once() {
        let of = |words: &[u16]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            numeric(&bytes).unwrap()
        };
        assert_eq!(of(&[2, 0, 0, 2, 12, 3400]), 12.34);
        assert_eq!(of(&[1, 0xFFFF, 0x4000, 3, 1000]), -0.1);
        assert_eq!(of(&[3, 2, 0, 0, 1, 0, 1]), 100_000_001.0);
        assert_eq!(of(&[0, 0, 0, 0]), 0.0);
        assert!(of(&[0, 0, 0xC000, 0]).is_nan());
        assert!(numeric(&[0, 2, 0, 0]).is_err());
    }
}
