//! Links in Markdown: targets of relative links exist, and the book lists every page.

use std::collections::BTreeMap;

use super::{File, Finding, Tree};

const RULE: &str = "links";
const SUMMARY: &str = "docs/SUMMARY.md";

/// Checks the relative links of all Markdown files, with their anchors, and the book's table of
/// contents. Links to other hosts are skipped.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let pages: BTreeMap<&str, &File> =
        tree.files.iter().filter(|f| f.is_markdown()).map(|f| (f.path.as_str(), f)).collect();
    let mut findings = Vec::new();
    for page in pages.values() {
        for (number, target) in links(&page.text) {
            if let Some(what) = fault(tree, &pages, page, &target)
                && !page.allows(RULE, number)
            {
                findings.push(Finding::at(RULE, page, number, what));
            }
        }
    }
    findings.extend(unlisted(&pages));
    findings
}

fn fault(tree: &Tree, pages: &BTreeMap<&str, &File>, page: &File, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let Some(path) = resolve(&page.path, path) else {
        return Some(format!("`{target}` leads out of the repository"));
    };
    if !tree.holds(&path) {
        return Some(format!("`{target}`: {path} does not exist"));
    }
    let missing = !anchor.is_empty()
        && pages
            .get(path.as_str())
            .is_some_and(|page| !anchors(&page.text).iter().any(|a| a == anchor));
    missing.then(|| format!("`{target}`: {path} has no heading with that anchor"))
}

/// Pages below `docs/` that the table of contents lacks.
fn unlisted(pages: &BTreeMap<&str, &File>) -> Vec<Finding> {
    let listed: Vec<String> = pages
        .get(SUMMARY)
        .map(|summary| links(&summary.text))
        .unwrap_or_default()
        .iter()
        .filter_map(|(_, target)| resolve(SUMMARY, target))
        .collect();
    pages
        .values()
        .filter(|page| page.path.starts_with("docs/") && page.path != SUMMARY)
        .filter(|page| !listed.contains(&page.path))
        .map(|page| Finding::new(RULE, page.path.clone(), format!("is not listed in {SUMMARY}")))
        .collect()
}

/// The path from the root of a `target` in the file `from`; the empty target is the file itself.
/// `None` above the root.
fn resolve(from: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(from.to_owned());
    }
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    (!target.starts_with('/')).then(|| parts.join("/"))
}

/// (line from 1, target) of inline links, images, reference definitions and `src`/`href`
/// attributes.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in prose(text).iter().enumerate() {
        let inline = line.match_indices("](").map(|(at, mark)| inside(&line[at + mark.len()..]));
        let attributes = ["src=\"", "href=\""]
            .into_iter()
            .flat_map(|mark| line.match_indices(mark).map(move |(at, _)| &line[at + mark.len()..]));
        let attributes = attributes.map(|rest| rest.split('"').next().unwrap_or_default());
        let targets = inline.chain(attributes).chain(definition(line)).map(bare);
        found.extend(targets.filter(|t| !t.is_empty()).map(|t| (index + 1, t.to_owned())));
    }
    found
}

/// The text up to the parenthesis that closes the link.
fn inside(rest: &str) -> &str {
    let mut depth = 0;
    for (at, c) in rest.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return &rest[..at],
            ')' => depth -= 1,
            _ => {}
        }
    }
    rest
}

/// The target of `[label]: target`; footnotes have none.
fn definition(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('[').filter(|rest| !rest.starts_with('^'))?;
    rest.split_once("]: ").filter(|(label, _)| !label.contains(']')).map(|(_, target)| target)
}

/// The target without angle brackets and title.
fn bare(target: &str) -> &str {
    let target = target.trim();
    match target.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        Some((inner, _)) => inner,
        None => target.split_whitespace().next().unwrap_or_default(),
    }
}

/// The anchors of a page: its headings, as spelled by mdBook and repository browsers, and explicit
/// ids.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= is_fence(line);
        let title = line.trim_start_matches('#');
        let hashes = line.len() - title.len();
        if !fenced && (1..=6).contains(&hashes) && title.starts_with(' ') {
            let slug = slug(title.trim());
            let repeats = seen.entry(slug.clone()).and_modify(|n| *n += 1).or_insert(0);
            found.push(if *repeats == 0 { slug } else { format!("{slug}-{repeats}") });
        }
        let ids = line.match_indices("id=\"").map(|(at, mark)| &line[at + mark.len()..]);
        found.extend(ids.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
    }
    found
}

fn slug(title: &str) -> String {
    title
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        })
        .collect()
}

/// The lines with code blocks and code spans emptied.
fn prose(text: &str) -> Vec<String> {
    let mut fenced = false;
    text.lines()
        .map(|line| {
            let fence = is_fence(line);
            fenced ^= fence;
            if fence || fenced { String::new() } else { without_spans(line) }
        })
        .collect()
}

fn is_fence(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("```") || line.starts_with("~~~")
}

/// The line without its code spans; an unclosed backtick opens none.
fn without_spans(line: &str) -> String {
    let pieces: Vec<&str> = line.split('`').collect();
    let closed = pieces.len() - 1 + pieces.len() % 2;
    let keep = |(i, piece): (usize, &&'_ str)| {
        if i % 2 == 1 && i < closed { String::new() } else { (*piece).to_owned() }
    };
    pieces.iter().enumerate().map(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<String> {
        links(text).into_iter().map(|(_, target)| target).collect()
    }

    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).into_iter().map(|f| f.place).collect()
    }

    #[test]
    fn every_form_of_link_is_read() {
        assert_eq!(
            targets("[a](b.md) ![c](d.svg \"title\") [e](<f g.md>)"),
            ["b.md", "d.svg", "f g.md"]
        );
        assert_eq!(targets("[a]: b.md\n[^1]: note\n<img src=\"c.svg\">"), ["b.md", "c.svg"]);
        assert_eq!(targets("[a](b_(c).md)"), ["b_(c).md"]);
        assert_eq!(links("\n[a](b)"), [(2, "b".to_owned())]);
    }

    #[test]
    fn code_is_not_prose() {
        assert_eq!(targets("```\n[a](b)\n```\n[c](d)"), ["d"]);
        assert_eq!(targets("`[a](b)` [c](d) ` [e](f)"), ["d", "f"]);
    }

    #[test]
    fn links_resolve_against_their_file() {
        assert_eq!(resolve("docs/guide/a.md", "../b.md").as_deref(), Some("docs/b.md"));
        assert_eq!(resolve("docs/a.md", "").as_deref(), Some("docs/a.md"));
        assert_eq!(resolve("a.md", "../b.md"), None);
        assert_eq!(resolve("a.md", "/b.md"), None);
    }

    #[test]
    fn missing_files_and_anchors_are_found() {
        let page = "[a](b.md)\n[b](c.md)\n[c](b.md#one-two)\n[d](b.md#three)\n[e](#x)\n[f](https://a.example/x)\n";
        let found = faults(&[("a.md", page), ("b.md", "# One, `two`\n")]);
        assert_eq!(found, ["a.md:2", "a.md:4", "a.md:5"]);
    }

    #[test]
    fn repeated_headings_are_numbered() {
        assert_eq!(anchors("# A\n## A\n```\n# no\n```\n<a id=\"b\"></a>"), ["a", "a-1", "b"]);
    }

    #[test]
    fn the_summary_lists_every_page_of_the_book() {
        let summary = ("docs/SUMMARY.md", "- [A](a.md)\n");
        assert_eq!(faults(&[summary, ("docs/a.md", ""), ("README.md", "")]), [""; 0]);
        assert_eq!(faults(&[summary, ("docs/a.md", ""), ("docs/b.md", "")]), ["docs/b.md"]);
    }
}
