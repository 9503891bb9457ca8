//! The checks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// What each crate may use of the workspace (STYLE.md section 2). `None`: anything.
const MAY_USE: &[(&str, Option<&[&str]>)] = &[
    ("braid-format", Some(&[])),
    ("braid-device", Some(&["braid-format"])),
    ("braid-pool", Some(&["braid-device", "braid-format"])),
    ("braid-lock", Some(&["braid-pool", "braid-device", "braid-format"])),
    ("braid-fs", Some(&["braid-lock", "braid-pool", "braid-device", "braid-format"])),
    ("braid-fuse", Some(&["braid-fs", "braid-device", "braid-format"])),
    ("braid-bulk", Some(&["braid-fs", "braid-device", "braid-format"])),
    ("braid-bench", Some(&["braid-fs", "braid-pool", "braid-device", "braid-format"])),
    ("braid-python", Some(&["braid-fs", "braid-device", "braid-format"])),
    ("braid-iscsi-target", Some(&["braid-device", "braid-format"])),
    ("braid-testkit", Some(&[])),
    ("braid-sim", None),
    ("braid-cli", None),
    ("xtask", Some(&["braid-testkit"])),
];

/// Documents that describe a module, which is a folder, a file, or both (`dlock.rs` beside
/// `dlock/`): a change there wants a look at the document.
const DESCRIBES: &[(&str, &str)] =
    &[("docs/FORMAT.md", "crates/format/src"), ("docs/LOCKING.md", "crates/lock/src/dlock")];

/// Longest file, tests not counted.
const LINES_MAX: usize = 800;

/// Longest line of a document; tables and examples are as long as they are.
const COLUMNS_MAX: usize = 120;

/// All problems found.
pub fn check() -> Result<Vec<String>> {
    let root = root()?;
    let mut problems = Vec::new();
    layers(&root, &mut problems)?;
    let sources = sources(&root)?;
    for file in &sources {
        source(&root, file, &mut problems)?;
    }
    super::modules::check(&root, &mut problems)?;
    super::words::check(&root, &mut problems)?;
    architecture(&root, &mut problems)?;
    decisions(&root, &mut problems)?;
    for file in documents(&root)? {
        long_lines(&root, &file, &mut problems)?;
        named_files(&root, &file, &sources, &mut problems)?;
    }
    for (document, folder) in DESCRIBES {
        let text = read(&root.join(document))?;
        let line = stamp_line(folder, fingerprint(&root, folder)?);
        if !text.contains(&line) {
            problems.push(format!(
                "{folder} changed: read {document}, mend it, then `cargo run -p xtask -- stamp`"
            ));
        }
    }
    Ok(problems)
}

/// Writes the present fingerprints into the documents.
pub fn stamp() -> Result<Vec<String>> {
    let root = root()?;
    for (document, folder) in DESCRIBES {
        let path = root.join(document);
        let mark = format!("<!-- matches {folder} ");
        let mut text: String = read(&path)?
            .lines()
            .filter(|l| !l.starts_with(&mark))
            .fold(String::new(), |t, l| t + l + "\n");
        text.push_str(&stamp_line(folder, fingerprint(&root, folder)?));
        text.push('\n');
        std::fs::write(&path, text)?;
    }
    Ok(Vec::new())
}

fn stamp_line(folder: &str, print: u64) -> String {
    format!("<!-- matches {folder} {print:016x} -->")
}

/// FNV-1a over names and contents, in order.
fn fingerprint(root: &Path, folder: &str) -> Result<u64> {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut files = Vec::new();
    let start = root.join(folder);
    if start.is_dir() {
        walk(&start, &mut files)?;
    }
    let file = start.with_extension("rs");
    if file.is_file() {
        files.push(file);
    }
    if files.is_empty() {
        bail!("{folder}: no source there");
    }
    files.sort();
    for file in files {
        let name = file.strip_prefix(root)?.to_string_lossy().into_owned();
        for byte in name.bytes().chain(read(&file)?.bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    Ok(hash)
}

/// Dependencies point down only.
fn layers(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let rules: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    for package in metadata["packages"].as_array().context("packages")? {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(allowed) = rules.get(name) else {
            problems.push(format!("crate {name} has no row in xtask/src/tidy.rs"));
            continue;
        };
        let Some(allowed) = allowed else { continue };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let used = dependency["name"].as_str().unwrap_or_default();
            let normal = dependency["kind"].is_null();
            if normal && used.starts_with("braid-") && !allowed.contains(&used) {
                problems.push(format!("crate {name} may not use {used}"));
            }
        }
    }
    Ok(())
}

/// One source file: documented, not too long, safe.
fn source(root: &Path, file: &Path, problems: &mut Vec<String>) -> Result<()> {
    let text = read(file)?;
    let name = file.strip_prefix(root)?.display();
    let is_test = file.components().any(|c| c.as_os_str() == "tests")
        || file.file_stem().is_some_and(|s| s.to_string_lossy().contains("test"));
    if !is_test && !text.trim_start().starts_with("//!") {
        problems.push(format!("{name}: does not begin with //! and its purpose"));
    }
    let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or(&text).lines().count();
    if code > LINES_MAX && !is_test {
        problems.push(format!("{name}: {code} lines, {LINES_MAX} are the limit"));
    }
    let crate_root = file.ends_with("src/lib.rs") || file.ends_with("src/main.rs");
    let may_be_unsafe =
        ["device", "python"].iter().any(|name| file.starts_with(root.join("crates").join(name)));
    if crate_root
        && !may_be_unsafe
        && !text.contains("forbid(unsafe_code)")
        && !file.starts_with(root.join("xtask"))
    {
        problems.push(format!("{name}: lacks #![forbid(unsafe_code)]"));
    }
    Ok(())
}

/// Documents: those beside the workspace, and all below docs.
fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = vec![root.join("docs")];
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root)? {
        files.push(entry?.path());
    }
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.retain(|path| path.extension().is_some_and(|e| e == "md"));
    files.sort();
    Ok(files)
}

/// Lines of prose that are too long to be read beside code.
fn long_lines(root: &Path, file: &Path, problems: &mut Vec<String>) -> Result<()> {
    let (text, name) = (read(file)?, file.strip_prefix(root)?.display());
    let mut example = false;
    for (number, line) in (1..).zip(text.lines()) {
        example ^= line.trim_start().starts_with("```");
        let prose = !example && !line.starts_with('|') && !line.starts_with("<!--");
        if prose && line.chars().count() > COLUMNS_MAX {
            problems.push(format!("{name}:{number}: longer than {COLUMNS_MAX} columns"));
        }
    }
    Ok(())
}

/// The source files that a document names, as a whole path or by its end, are there. (What the
/// changelog names may have gone since.)
fn named_files(
    root: &Path,
    file: &Path,
    sources: &[PathBuf],
    problems: &mut Vec<String>,
) -> Result<()> {
    if file.ends_with("CHANGELOG.md") {
        return Ok(());
    }
    let (text, name) = (read(file)?, file.strip_prefix(root)?.display());
    let missing = missing_files(&text, sources).into_iter();
    problems.extend(missing.map(|named| format!("{name} names {named}, which is not there")));
    Ok(())
}

/// The words in backquotes, outside of examples, that end in `.rs` and are the end of no source's path.
fn missing_files<'t>(text: &'t str, sources: &[PathBuf]) -> Vec<&'t str> {
    let mut example = false;
    let prose = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        example ^= fence;
        !example && !fence
    });
    let words = prose.flat_map(|line| line.split('`').skip(1).step_by(2));
    words
        .filter(|word| {
            Path::new(word).extension().is_some_and(|e| e == "rs") && !word.contains(' ')
        })
        .filter(|word| !sources.iter().any(|source| source.ends_with(word)))
        .collect()
}

/// Every crate has its place on the map, and the places on the map exist.
fn architecture(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    let map = read(&root.join("ARCHITECTURE.md"))?;
    for entry in std::fs::read_dir(root.join("crates"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !map.contains(&format!("crates/{name}")) {
            problems.push(format!("ARCHITECTURE.md does not mention crates/{name}"));
        }
    }
    for place in map.split('`').skip(1).step_by(2).filter(|word| word.starts_with("crates/")) {
        if !root.join(place).exists() {
            problems.push(format!("ARCHITECTURE.md mentions {place}, which is not there"));
        }
    }
    Ok(())
}

/// Each decision has a number of its own, and its heading says it.
fn decisions(root: &Path, problems: &mut Vec<String>) -> Result<()> {
    let mut pages = BTreeMap::new();
    for entry in std::fs::read_dir(root.join("docs/decisions"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        pages.insert(name, read(&path)?);
    }
    problems.extend(numbers(&pages));
    Ok(())
}

/// What is wrong with the numbers of these pages.
fn numbers(pages: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    for (expected, (name, text)) in (1_u32..).zip(pages) {
        let number = name.split('-').next().and_then(|number| number.parse().ok());
        if number != Some(expected) || !text.starts_with(&format!("# {expected}. ")) {
            found.push(format!("docs/decisions/{name}: is number {expected}, in name and heading"));
            break;
        }
    }
    found
}

fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    walk(&root.join("crates"), &mut files)?;
    walk(&root.join("xtask"), &mut files)?;
    files.sort();
    Ok(files)
}

pub(crate) fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

pub(crate) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("workspace root")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_numbered_without_gap_or_double() {
        let check = |pages: &[(&str, &str)]| {
            numbers(&pages.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect())
        };
        let first = ("0001-a.md", "# 1. A\n");
        assert!(check(&[first, ("0002-b.md", "# 2. B\n")]).is_empty());
        let double = check(&[first, ("0001-b.md", "# 1. B\n")]);
        assert_eq!(double, ["docs/decisions/0001-b.md: is number 2, in name and heading"]);
        assert_eq!(check(&[first, ("0003-b.md", "# 3. B\n")]).len(), 1);
        assert_eq!(check(&[("0001-a.md", "# 2. A\n")]).len(), 1);
    }

    #[test]
    fn files_that_a_document_names_are_there() {
        let sources =
            ["/r/crates/lock/src/node/watch.rs", "/r/xtask/src/tidy.rs"].map(PathBuf::from);
        let missing = |text| missing_files(text, &sources);
        let there = "`crates/lock/src/node/watch.rs`, `node/watch.rs` and `watch.rs`; `tidy.rs`";
        assert!(missing(there).is_empty());
        let gone = "`watch.rs` | `member/watch.rs`, `atch.rs`, `mail.rs`";
        assert_eq!(missing(gone), ["member/watch.rs", "atch.rs", "mail.rs"]);
        assert!(missing("a.rs `vi a.rs` `a`\n```\n`a.rs`\n```\n").is_empty());
        assert_eq!(missing("```\n```\n`a.rs`"), ["a.rs"]);
    }
}
