//! The names by which mount(8), umount(8), fsck(8) and mkfs(8) call this program: `mount.braid` and
//! `mount.fuse.braid`, `umount.braid` and `umount.fuse.braid`, `fsck.braid`, `mkfs.braid` (`make install` links
//! them into /sbin).
//!
//! ```text
//! mount.TYPE  SPEC DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]
//! umount.TYPE DIR [-flnrv] [-N NAMESPACE] [-t TYPE]
//! fsck.TYPE   [-afnpryvV] SPEC
//! mkfs.TYPE   -L POOL [-fnqvV] [OPTIONS OF braid create] DEVICE...
//! ```

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::commands::{check, mount, unmount};

/// What one of the helper names asks for.
#[derive(Debug)]
pub enum Helper {
    /// `mount.braid`
    Mount(mount::Args),
    /// `umount.braid`
    Unmount(unmount::Args),
    /// `fsck.braid`
    Check(check::Args),
    /// `fsck.braid -a`, as at boot: there is nothing to do.
    NothingToCheck,
    /// `mkfs.braid`: the words of `braid create`.
    Create(Vec<OsString>),
    /// `fsck.braid -V`, `mkfs.braid -V`.
    Version,
}

/// Whether the program was called as `fsck.braid`, whose exit status has meanings of its own.
pub fn is_check(args: &[OsString]) -> bool {
    called_as(args) == Some("fsck.braid")
}

/// The name that the program was called by, without its folder.
fn called_as(args: &[OsString]) -> Option<&str> {
    args.first().map(Path::new).and_then(Path::file_name).and_then(|n| n.to_str())
}

/// Reads the command line if the program was called by a helper's name.
///
/// # Errors
/// It was, and the words make no sense.
pub fn from_name(args: &[OsString]) -> Result<Option<Helper>> {
    let rest = args.get(1..).unwrap_or_default();
    let words = Words::read(rest);
    match called_as(args) {
        Some("mount.braid" | "mount.fuse.braid") => Ok(Some(Helper::Mount(words.mount()?))),
        Some("umount.braid" | "umount.fuse.braid") => Ok(Some(Helper::Unmount(words.unmount()?))),
        Some("fsck.braid") => Ok(Some(words.check()?)),
        Some("mkfs.braid") => Ok(Some(create(rest)?)),
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
            dry_run: false,
            free_slot: None,
            sloppy: self.has('s'),
            options: self.options,
            identity: None,
            insecure: false,
        })
    }
    fn unmount(self) -> Result<unmount::Args> {
        let [dir] = self.plain.as_slice() else {
            bail!("usage: umount.braid DIR [-l] [-f]");
        };
        Ok(unmount::Args {
            dir: dir.into(),
            lazy: self.has('l'),
            force: self.has('f'),
            dry_run: false,
        })
    }
    fn check(self) -> Result<Helper> {
        if self.has('V') {
            return Ok(Helper::Version);
        }
        if let Some(letter) = self.letters.chars().find(|letter| !"afnpryvV".contains(*letter)) {
            bail!("fsck.braid has no option -{letter}; see fsck.braid(8)");
        }
        let automatic = self.has('a') || self.has('p');
        let [spec] = self.plain.as_slice() else {
            bail!("usage: fsck.braid [-afnpryvV] NAME|DEVICE[:DEVICE...]");
        };
        if automatic && !self.has('f') {
            return Ok(Helper::NothingToCheck);
        }
        let repair = (automatic || self.has('y')) && !self.has('n');
        Ok(Helper::Check(check::Args::of(spec.clone(), repair)))
    }
}

/// The words of `braid create` for those of `mkfs.braid`.
fn create(args: &[OsString]) -> Result<Helper> {
    let (mut name, mut words) = (None, Vec::new());
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        match word.to_str() {
            Some("-L") => name = rest.next().cloned(),
            Some("-f") => words.push("--force".into()),
            Some("-n") => words.push("--dry-run".into()),
            Some("-V") => return Ok(Helper::Version),
            Some("-q" | "-v") => {}
            Some("--help" | "-h") => return Ok(Helper::Create(vec!["--help".into()])),
            _ => words.push(word.clone()),
        }
    }
    let name = name.context(
        "name the pool: mkfs.braid -L POOL [-f] [OPTIONS OF braid create] DEVICE...; see mkfs.braid(8)",
    )?;
    words.insert(0, name);
    Ok(Helper::Create(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(line: &str) -> Result<Helper> {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        from_name(&words).map(|helper| helper.expect("a helper's name"))
    }

    #[test]
    fn a_file_system_is_made_by_the_words_of_mkfs() {
        let Helper::Create(words) =
            called("/sbin/mkfs.braid -q -f -L safe --mirror 2 a b").unwrap()
        else {
            panic!("not a pool to be made")
        };
        assert_eq!(words, ["safe", "--force", "--mirror", "2", "a", "b"]);
        assert!(matches!(called("mkfs.braid -V"), Ok(Helper::Version)));
        let said = called("mkfs.braid a b").unwrap_err().to_string();
        assert!(said.contains("-L POOL"), "{said}");
    }

    #[test]
    fn a_check_at_boot_does_nothing_and_only_a_yes_repairs() {
        for words in ["-a", "-p", "-ap", "-a -v"] {
            let helper = called(&format!("fsck.braid {words} scratch")).unwrap();
            assert!(matches!(helper, Helper::NothingToCheck), "{words}");
        }
        for (words, repairs) in [
            ("-n", false),
            ("-f", false),
            ("-r", false),
            ("-y", true),
            ("-af", true),
            ("-fn", false),
        ] {
            let helper = called(&format!("fsck.braid {words} scratch")).unwrap();
            let Helper::Check(args) = helper else { panic!("{words}: nothing is checked") };
            assert_eq!(args.repair, repairs, "{words}");
        }
        for words in ["-x scratch", "-n", "-n a b"] {
            assert!(called(&format!("fsck.braid {words}")).is_err(), "{words}");
        }
    }
}
