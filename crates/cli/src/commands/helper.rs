//! The names by which mount(8) and umount(8) call this program: `mount.braid` and
//! `mount.fuse.braid`, `umount.braid` and `umount.fuse.braid` (`make install` links them into /sbin).
//!
//! ```text
//! mount.TYPE  SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]
//! umount.TYPE DIR [-flnrv] [-N NAMESPACE] [-t TYPE]
//! ```

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, bail};

use crate::commands::{mount, unmount};

/// What one of the helper names asks for.
#[derive(Debug)]
pub enum Helper {
    /// `mount.braid`
    Mount(mount::Args),
    /// `umount.braid`
    Unmount(unmount::Args),
}

/// Reads the command line if the program was called by a helper's name.
///
/// # Errors
/// It was, and the words make no sense.
pub fn from_name(args: &[OsString]) -> Result<Option<Helper>> {
    let name = args.first().map(Path::new).and_then(Path::file_name).and_then(|n| n.to_str());
    let words = Words::read(args.get(1..).unwrap_or_default());
    match name {
        Some("mount.braid" | "mount.fuse.braid") => Ok(Some(Helper::Mount(words.mount()?))),
        Some("umount.braid" | "umount.fuse.braid") => Ok(Some(Helper::Unmount(words.unmount()?))),
        _ => Ok(None),
    }
}

/// Words and single letters, in whatever order.
#[derive(Debug, Default)]
struct Words {
    plain: Vec<String>,
    options: Vec<String>,
    letters: String,
}
impl Words {
    fn read(args: &[OsString]) -> Self {
        let mut words = Self::default();
        let mut rest = args.iter().map(|a| a.to_string_lossy().into_owned());
        while let Some(word) = rest.next() {
            match word.strip_prefix('-') {
                Some("o") => words.options.extend(rest.next()),
                Some("t" | "N") => drop(rest.next()),
                Some(letters) if !letters.is_empty() => words.letters.push_str(letters),
                _ => words.plain.push(word),
            }
        }
        words
    }
    fn has(&self, letter: char) -> bool {
        self.letters.contains(letter)
    }
    fn mount(self) -> Result<mount::Args> {
        let [spec, dir] = self.plain.as_slice() else {
            bail!("usage: mount.braid NAME|DEVICE[:DEVICE...] DIR [-o OPTIONS]");
        };
        Ok(mount::Args {
            words: vec![spec.clone(), dir.clone()],
            foreground: false,
            ready: false,
            // `mount -a` knows by this that the line of fstab is mounted already.
            shown_as: Some(spec.clone()),
            fake: self.has('f'),
            free_slot: None,
            sloppy: self.has('s'),
            options: self.options,
        })
    }
    fn unmount(self) -> Result<unmount::Args> {
        let [dir] = self.plain.as_slice() else {
            bail!("usage: umount.braid DIR [-l] [-f]");
        };
        Ok(unmount::Args { dir: dir.into(), lazy: self.has('l'), force: self.has('f') })
    }
}
