//! A journal: a head as JSON, then a line for each thing that is done, durable before the next begins. A last line
//! without its end was not written whole, and does not count.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::names::sync_name;

#[derive(Debug)]
pub(crate) struct Journal {
    pub path: PathBuf,
    file: File,
}

impl Journal {
    /// A new one, whose name, too, outlasts a power cut.
    ///
    /// # Errors
    /// Something has its name, or it cannot be written.
    pub fn create(path: &Path, head: &impl Serialize) -> Result<Self> {
        let file = File::create_new(path).with_context(|| said(path))?;
        let mut journal = Self { file, path: path.to_owned() };
        journal.note(&serde_json::to_string(head)?)?;
        sync_name(path)?;
        Ok(journal)
    }
    /// One with these lines. What had its name before stays until this one is whole.
    pub fn replace(path: &Path, head: &impl Serialize, lines: &[String]) -> Result<Self> {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        let mut file = File::create(&new).with_context(|| said(&new))?;
        let text = [&[serde_json::to_string(head)?], lines].concat().join("\n") + "\n";
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.with_context(|| said(&new))?;
        std::fs::rename(&new, path).with_context(|| said(path))?;
        sync_name(path)?;
        Ok(Self { file, path: path.to_owned() })
    }
    /// One more line, durable on return.
    pub fn note(&mut self, line: &str) -> Result<()> {
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        written.and_then(|()| self.file.sync_data()).with_context(|| said(&self.path))
    }
    /// It is not needed any more.
    pub fn remove(self) {
        std::fs::remove_file(&self.path).ok();
    }
}

/// The head of a journal, if it is one of these, and its lines.
pub(crate) fn read<H: DeserializeOwned>(path: &Path) -> std::io::Result<(Option<H>, Vec<String>)> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').and_then(|end| text.get(..end)).unwrap_or_default();
    let mut lines = whole.lines();
    let head = lines.next().and_then(|line| serde_json::from_str(line).ok());
    Ok((head, lines.map(str::to_owned).collect()))
}

fn said(path: &Path) -> String {
    format!("journal {}", path.display())
}
