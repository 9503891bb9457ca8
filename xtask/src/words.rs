//! Names that were given up for the field's terms do not come back: `retired_words.txt` lists them.
//!
//! A name counts as a whole word. What is retired in all crates is refused in comments and strings, too;
//! what is retired in one crate may be a plain word there, so it is refused as an identifier only. Both
//! are refused as the name of a source file or folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};

/// The list: where, the name, what to say instead.
const RETIRED: &str = include_str!("retired_words.txt");

/// Reports retired names in `crates/`, each once a file.
pub fn check(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    let retired = parse(RETIRED)?;
    let crates = root.join("crates");
    let mut files = Vec::new();
    super::tidy::walk(&crates, &mut files)?;
    files.sort();
    for file in files {
        let inside = file.strip_prefix(&crates)?;
        let krate = inside.iter().next().unwrap_or_default().to_string_lossy().into_owned();
        let of = |place: &str, name: &str| retired.get(&(place, name)).copied();
        let report = |name: &str, say: &str, line: usize| {
            let line = if line > 0 { format!(":{line}") } else { String::new() };
            format!("crates/{}{line}: {name} is retired: say {say}", inside.display())
        };
        for part in inside.iter().map(|part| part.to_string_lossy()) {
            let stem = part.trim_end_matches(".rs");
            let places = [("all", &*part), ("all", stem), (&*krate, &*part), (&*krate, stem)];
            if let Some(say) = places.into_iter().find_map(|(place, name)| of(place, name)) {
                problems.push(report(&part, say, 0));
            }
        }
        let text = super::tidy::read(&file)?;
        let here = words(&text).map(|(line, name)| (line, name, of("all", name)));
        let found = identifiers(&text);
        let own = found.iter().map(|(line, name)| (*line, name.as_str(), of(&krate, name)));
        let mut named = BTreeSet::new();
        for (line, name, say) in here.chain(own) {
            if let Some(say) = say.filter(|_| named.insert(name.to_owned())) {
                problems.push(report(name, say, line));
            }
        }
    }
    Ok(())
}

/// The list's entries: (where, name) and what to say.
fn parse(list: &str) -> Result<BTreeMap<(&str, &str), &str>> {
    let lines = list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines.map(|line| entry(line).with_context(|| format!("retired_words.txt: {line}"))).collect()
}

/// One of them.
fn entry(line: &str) -> Option<((&str, &str), &str)> {
    let (place, rest) = line.split_once(' ')?;
    let (name, say) = rest.trim_start().split_once(' ')?;
    Some(((place, name), say.trim()))
}

/// All words of a text, each with its line.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_end = |c: char| !c.is_alphanumeric() && c != '_';
    (1..).zip(text.lines()).flat_map(move |(n, line)| line.split(is_end).map(move |w| (n, w)))
}

/// The identifiers of Rust source, each with its line; not those in comments and strings.
fn identifiers(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut line) = (Vec::new(), 1);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let len = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => string_len(rest),
            '\'' => char_len(rest),
            c if c == '_' || c.is_alphabetic() => {
                let is_part = |c: char| c == '_' || c.is_alphanumeric();
                let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                let raw = raw_string_len(rest);
                if raw.is_none() {
                    found.push((line, rest[..end].to_owned()));
                }
                raw.unwrap_or(end)
            }
            c => c.len_utf8(),
        };
        line += rest[..len].matches('\n').count();
        rest = &rest[len..];
    }
    found
}

/// Bytes of the string literal that `text` begins with.
fn string_len(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Bytes of the raw string literal that `text` begins with, if it does.
fn raw_string_len(text: &str) -> Option<usize> {
    let body = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let inner = body[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = inner.find(&close)? + close.len();
    Some(text.len() - inner.len() + end)
}

/// Bytes of the character literal that `text` begins with; of a lifetime only its quote.
fn char_len(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, _))) => {
            text[at + 1..].find('\'').map_or(text.len(), |end| at + 1 + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        identifiers(text).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn code_is_told_from_comments_strings_and_lifetimes() {
        assert_eq!(names("use a::Twin; // Twin\n/* Twin */"), ["use", "a", "Twin"]);
        assert_eq!(names(r#"f("Twin \" Twin", g)"#), ["f", "g"]);
        assert_eq!(names("f(r#\"a \" Twin\"#, b\"x\", b)"), ["f", "b", "b"]);
        assert_eq!(names(r"let c = '\''; let d = 'x'; fn e<'a>() {}"), {
            ["let", "c", "let", "d", "fn", "e", "a"]
        });
        assert_eq!(identifiers("a\n\"\n\"\nb"), [(1, "a".to_owned()), (4, "b".to_owned())]);
    }

    #[test]
    fn a_name_counts_as_a_whole_and_where_it_is_retired() {
        let retired = parse("# list\nall   Twin  Migration\npool  gate  write_gate\n").unwrap();
        assert_eq!(retired.get(&("all", "Twin")), Some(&"Migration"));
        assert_eq!(retired.get(&("pool", "gate")), Some(&"write_gate"));
        assert!(!retired.contains_key(&("all", "gate")));
        assert!(names("Twins").iter().all(|name| name != "Twin"));
        assert!(parse("all").is_err());
    }

    #[test]
    fn the_list_can_be_read() {
        assert!(parse(RETIRED).unwrap().len() > 20);
    }
}
