//! Licences: all dependencies have accepted terms.

use serde_json::Value;

use super::Finding;

const RULE: &str = "licences";

/// Permissive terms only. File-level copyleft such as MPL-2.0 is left out: no dependency needs it, and
/// static linking of Whimbrel should raise no questions. `deny.toml` has the same list.
const ACCEPTED: [&str; 11] = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "0BSD",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "CC0-1.0",
    "Unlicense",
];

/// Checks every package built on this machine's platform.
pub fn check(metadata: &Value) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    packages.iter().filter_map(fault).collect()
}

fn fault(package: &Value) -> Option<Finding> {
    let name = package["name"].as_str().unwrap_or_default();
    let version = package["version"].as_str().unwrap_or_default();
    let what = match package["license"].as_str() {
        None => "names no licence".to_owned(),
        Some(expression) => match accepts(expression) {
            Some(true) => return None,
            Some(false) => format!("its licence `{expression}` is not among those accepted"),
            None => format!("its licence `{expression}` is not an SPDX expression"),
        },
    };
    Some(Finding::new(RULE, format!("{name} {version}"), what))
}

/// Whether the accepted terms satisfy an SPDX expression; `None` if it is malformed. The old form
/// `MIT/Apache-2.0` is a choice.
fn accepts(expression: &str) -> Option<bool> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader { words: &words };
    let verdict = reader.choice()?;
    reader.words.is_empty().then_some(verdict)
}

/// Recursive descent: choice = all (OR all)*; all = term (AND term)*.
struct Reader<'a> {
    words: &'a [&'a str],
}

impl<'a> Reader<'a> {
    fn choice(&mut self) -> Option<bool> {
        let mut verdict = self.all()?;
        while self.take("OR") {
            verdict |= self.all()?;
        }
        Some(verdict)
    }

    fn all(&mut self) -> Option<bool> {
        let mut verdict = self.term()?;
        while self.take("AND") {
            verdict &= self.term()?;
        }
        Some(verdict)
    }

    fn term(&mut self) -> Option<bool> {
        if self.take("(") {
            let inner = self.choice()?;
            return self.take(")").then_some(inner);
        }
        let licence = self.next()?;
        if self.take("WITH") {
            let exception = self.next()?;
            return Some(ACCEPTED.contains(&format!("{licence} WITH {exception}").as_str()));
        }
        Some(ACCEPTED.contains(&licence))
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.words.first() == Some(&word);
        if found {
            self.words = &self.words[1..];
        }
        found
    }

    /// The next word, which must not be an operator.
    fn next(&mut self) -> Option<&'a str> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        (!["OR", "AND", "WITH", "(", ")"].contains(first)).then_some(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_choice_needs_one_and_a_sum_needs_all() {
        assert_eq!(accepts("MIT OR GPL-3.0"), Some(true));
        assert_eq!(accepts("MIT AND GPL-3.0"), Some(false));
        assert_eq!(accepts("(MIT OR GPL-3.0) AND Unicode-3.0"), Some(true));
        assert_eq!(accepts("GPL-3.0 OR MIT AND GPL-2.0"), Some(false));
        assert_eq!(accepts("MIT/Apache-2.0"), Some(true));
    }

    #[test]
    fn an_exception_belongs_to_its_licence() {
        assert_eq!(accepts("Apache-2.0 WITH LLVM-exception"), Some(true));
        assert_eq!(accepts("GPL-2.0 WITH Classpath-exception-2.0"), Some(false));
    }

    #[test]
    fn nonsense_is_not_an_expression() {
        for text in ["", "MIT OR", "(MIT", "MIT)", "AND MIT", "MIT Apache-2.0"] {
            assert_eq!(accepts(text), None, "{text}");
        }
    }

    #[test]
    fn a_package_without_licence_is_named() {
        let package = json!({ "name": "a", "version": "1.0.0", "license": null });
        assert_eq!(fault(&package).unwrap().place, "a 1.0.0");
    }

    #[test]
    fn deny_toml_accepts_the_same_licences() {
        let deny = include_str!("../../../deny.toml");
        let (_, list) = deny.split_once("\nallow = [").expect("a list of licences");
        let (list, _) = list.split_once(']').expect("its end");
        let listed: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
        assert_eq!(listed, ACCEPTED);
    }
}
