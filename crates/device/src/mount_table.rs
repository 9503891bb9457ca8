//! The mount table of a process (`mountinfo`, proc(5)). This is the only place that reads it.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEntry {
    /// Tells the mounts of one host apart.
    pub id: u64,
    /// The number of the file system's device: major, minor.
    pub device: (u32, u32),
    /// Where it is mounted, as the process sees it.
    pub dir: PathBuf,
    /// The file system's type, `fuse.braid` for example.
    pub kind: String,
    /// What is mounted, as it was named: a pool's name, for example.
    pub source: String,
    /// How it is mounted here, words separated by commas: `rw,noatime`.
    pub flags: String,
    /// The options of the file system itself, in the same way.
    pub options: String,
    /// The user who mounted it, as this process counts users, if the file system says that. FUSE does.
    pub user: Option<u32>,
}

impl TableEntry {
    /// Whether another user than that of this process has mounted it.
    pub fn is_of_another_user(&self) -> bool {
        self.user.is_some_and(|user| user != rustix::process::geteuid().as_raw())
    }
}

/// The mounts that a process sees, the eldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable(Vec<TableEntry>);

impl MountTable {
    /// This process's.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn own() -> io::Result<Self> {
        Self::at(Path::new("/proc/self"))
    }
    /// That of the process with this directory in `/proc`.
    ///
    /// # Errors
    /// It has ended, or is somebody else's.
    pub fn at(process: &Path) -> io::Result<Self> {
        // Names of directories need not be UTF-8.
        Ok(Self::parse(&std::fs::read(process.join("mountinfo"))?))
    }
    /// Lines that make no sense are left out.
    pub fn parse(table: &[u8]) -> Self {
        Self(table.split(|b| *b == b'\n').filter_map(entry).collect())
    }
    /// All mounts.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &TableEntry> {
        self.0.iter()
    }
    /// What a program finds at `dir`, an absolute path without links: the last that was mounted there.
    pub fn on(&self, dir: &Path) -> Option<&TableEntry> {
        self.iter().rfind(|m| m.dir == dir)
    }
    /// Where the file system with this device number is mounted.
    pub fn of_device(&self, device: (u32, u32)) -> Option<&TableEntry> {
        self.iter().find(|m| m.device == device)
    }
}

/// `id parent major:minor root dir options [more ...] - type source options`
fn entry(line: &[u8]) -> Option<TableEntry> {
    let words: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let word = |n: usize| std::str::from_utf8(words.get(n)?).ok();
    let (major, minor) = word(2)?.split_once(':')?;
    let dash = words.iter().skip(6).position(|w| *w == b"-")? + 6;
    let mut options = word(dash + 3).unwrap_or_default().split(',');
    Some(TableEntry {
        id: word(0)?.parse().ok()?,
        device: (major.parse().ok()?, minor.parse().ok()?),
        dir: unescape(words.get(4)?),
        kind: word(dash + 1)?.to_owned(),
        source: unescape(words.get(dash + 2).unwrap_or(&&b""[..])).display().to_string(),
        flags: word(5).unwrap_or_default().to_owned(),
        options: word(dash + 3).unwrap_or_default().to_owned(),
        user: options.find_map(|o| o.strip_prefix("user_id=")?.parse().ok()),
    })
}

/// Undoes the kernel's octal escapes (`\040` is a space).
pub(crate) fn unescape(text: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let escape = tail.get(..3).filter(|_| first == b'\\');
        let code = escape
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        out.push(code.unwrap_or(first));
        rest = tail.get(if code.is_some() { 3 } else { 0 }..).unwrap_or_default();
    }
    std::ffi::OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
        21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
        22 21 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw,size=1k\n\
        30 22 0:24 / /proc rw - proc proc rw\n\
        41 21 8:17 / /media/my\\040disk rw - xfs /dev/sdb1 rw\n\
        42 21 8:18 /a\\040-\\040b /media/\xff rw shared:1 master:2 - ext4 /dev/sdc rw\n\
        43 21 0:51 / /media/my\\040disk rw - fuse.braid pool rw,user_id=7,group_id=8\n\
        1 2 0:5\n\
        1 2 0:5 / /x rw - \n";

    #[test]
    fn mounts_are_found_by_device_and_by_directory() {
        let table = MountTable::parse(TABLE);
        let dir = |device| table.of_device(device).map(|m| m.dir.clone());
        assert_eq!(dir((8, 1)), Some("/".into()));
        assert_eq!(dir((8, 17)), Some("/media/my disk".into()));
        assert_eq!(dir((8, 18)), Some(unescape(b"/media/\xff")));
        assert_eq!(dir((8, 19)), None);
        let on = table.on(Path::new("/media/my disk")).unwrap();
        assert_eq!((on.id, on.device, on.kind.as_str()), (43, (0, 51), "fuse.braid"));
        assert_eq!((on.flags.as_str(), on.options.as_str()), ("rw", "rw,user_id=7,group_id=8"));
        assert_eq!((on.user, table.of_device((8, 18)).unwrap().user), (Some(7), None));
        assert_eq!(table.on(Path::new("/media")), None);
        assert_eq!(table.of_device((8, 18)).unwrap().kind, "ext4");
        assert_eq!(unescape(b"a\\"), PathBuf::from("a\\"));
    }
    #[test]
    fn this_process_sees_a_root() {
        assert!(MountTable::own().unwrap().on(Path::new("/")).is_some());
    }
}
