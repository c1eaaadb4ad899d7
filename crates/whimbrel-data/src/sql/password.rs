//! Passwords from the environment: `PGPASSWORD`, or a line of the password file.

use crate::input::check_private;
use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// The password of a user of a database; `place` is host, port, database and user.
pub(super) fn find(place: [&str; 4]) -> Result<Option<String>> {
    if let Some(password) = std::env::var("PGPASSWORD").ok().filter(|p| !p.is_empty()) {
        return Ok(Some(password));
    }
    let (file, is_named) = match std::env::var_os("PGPASSFILE") {
        Some(file) => (PathBuf::from(file), true),
        None => match std::env::var_os("HOME") {
            Some(home) => (Path::new(&home).join(".pgpass"), false),
            None => return Ok(None),
        },
    };
    if !is_named && !file.exists() {
        return Ok(None);
    }
    let name = file.display().to_string();
    let text = std::fs::read_to_string(&file).map_err(|e| Error::storage(&name, &e))?;
    check_private(&file, &name)?;
    Ok(text.lines().find_map(|line| of_line(line, place)))
}

/// The password of `host:port:database:user:password`, if the line is for this place. `*` matches
/// anything; `\:` and `\\` are a colon and a backslash.
fn of_line(line: &str, place: [&str; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        let last = fields.last_mut()?;
        match c {
            '\\' => last.extend(characters.next()),
            ':' => fields.push(String::new()),
            c => last.push(c),
        }
    }
    let [host, port, database, user, password] = &fields[..] else { return None };
    let is_here = [host, port, database, user]
        .iter()
        .zip(place)
        .all(|(field, own)| *field == "*" || *field == own);
    is_here.then(|| password.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_match_by_field() {
        let place = ["db", "5432", "wards", "ada"];
        assert_eq!(of_line("db:5432:wards:ada:s3cret", place).as_deref(), Some("s3cret"));
        assert_eq!(of_line(r"*:*:*:ada:a\:b\\c", place).as_deref(), Some(r"a:b\c"));
        for line in ["db:5432:other:ada:x", "# db:5432:wards:ada:x", "db:5432", "", "a:b:c:d:e:f"] {
            assert_eq!(of_line(line, place), None, "{line}");
        }
    }
}
