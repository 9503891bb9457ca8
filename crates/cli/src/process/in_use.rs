//! Programs that use a mounted file system: they have files open there, or it is their working directory.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use braid_pool::device::TableEntry;

/// Of one process so many bytes of its list of mappings are read: what it has beyond is not looked at.
const MAPS_MAX: u64 = 16 << 20;
/// All processes are looked at within this time: what the kernel says of a process may wait for that process.
const PATIENCE: Duration = Duration::from_secs(3);

/// As [`user_of`], as far as that can be seen within [`PATIENCE`]. `Err`: not all processes could be looked at.
pub fn user_soon(mount: &TableEntry) -> Result<Option<(u32, String)>, Duration> {
    let (tell, told) = channel();
    let mount = mount.clone();
    let look = move || drop(tell.send(user_of(&mount)));
    let looks = std::thread::Builder::new().name("users".into()).spawn(look);
    looks.ok().and_then(|_| told.recv_timeout(PATIENCE).ok()).ok_or(PATIENCE)
}

/// Some process that uses a mount, and its command. Nothing is asked of the file system, whose node may not answer.
fn user_of(mount: &TableEntry) -> Option<(u32, String)> {
    let own = std::process::id();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if pid != own && uses(&entry.path(), mount) {
            let command = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some((pid, command.trim().to_owned()));
        }
    }
    None
}

fn uses(process: &Path, mount: &TableEntry) -> bool {
    has_open(process, mount.id) || works_in(process, &mount.dir) || has_mapped(process, mount)
}

/// What is mapped is in use though it may be closed.
fn has_mapped(process: &Path, mount: &TableEntry) -> bool {
    let Ok(maps) = File::open(process.join("maps")) else { return false };
    let lines = BufReader::new(maps.take(MAPS_MAX)).split(b'\n').map_while(Result::ok);
    lines.into_iter().any(|line| is_of(&String::from_utf8_lossy(&line), mount))
}

/// Whether a line of `maps` is of a file of that mount: by its device, and beneath its directory.
fn is_of(line: &str, mount: &TableEntry) -> bool {
    // `7f00-7f01 r--s 00000000 00:33 12          /dir/file`
    let mut words = line.splitn(6, ' ');
    let number = |text: &str| u32::from_str_radix(text, 16).ok();
    let device = words.nth(3).and_then(|device| device.split_once(':'));
    let device = device.and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
    let path = words.nth(1).map(str::trim_start).unwrap_or_default();
    device == Some(mount.device) && Path::new(path).starts_with(&mount.dir)
}

fn has_open(process: &Path, mount: u64) -> bool {
    let about = std::fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
    let mut about = about.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    about.any(|text| id_in(&text) == Some(mount))
}

/// The mount of an open file, by its `fdinfo`.
fn id_in(about: &str) -> Option<u64> {
    about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

fn works_in(process: &Path, dir: &Path) -> bool {
    let mut links =
        ["cwd", "root"].into_iter().filter_map(|link| process.join(link).read_link().ok());
    links.any(|path| path.starts_with(dir))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn whoever_has_a_file_open_is_found_by_its_mount() {
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()));
        let mount = id_in(&about.unwrap()).unwrap();
        let this = Path::new("/proc/self");
        assert!(has_open(this, mount) && !has_open(this, u64::MAX));
        let here = std::env::current_dir().unwrap();
        assert!(works_in(this, &here) && !works_in(this, Path::new("/nowhere")));
    }

    fn safe() -> TableEntry {
        TableEntry {
            flags: String::new(),
            options: String::new(),
            id: 7,
            device: (0, 51),
            dir: "/mnt/safe".into(),
            kind: "fuse.braid".into(),
            source: "safe".into(),
            user: None,
        }
    }

    #[test]
    fn of_a_list_of_mappings_without_an_end_only_a_part_is_read() {
        let dir = tempfile::tempdir().unwrap();
        File::create(dir.path().join("maps")).unwrap().set_len(1 << 40).unwrap();
        let mount = safe();
        let begun = std::time::Instant::now();
        assert!(!has_mapped(dir.path(), &mount));
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }

    #[test]
    fn what_is_mapped_is_told_by_its_device_and_its_directory() {
        let mount = safe();
        let line = |device: &str, path: &str| {
            format!("7f00-7f01 r--s 00000000 {device} 12                         {path}")
        };
        assert!(is_of(&line("00:33", "/mnt/safe/a file"), &mount));
        assert!(is_of(&line("00:33", "/mnt/safe/gone (deleted)"), &mount));
        // Of another mount of the same pool, of another file system, of none.
        assert!(!is_of(&line("00:33", "/mnt/other/a"), &mount));
        assert!(!is_of(&line("00:34", "/mnt/safe/a"), &mount));
        assert!(!is_of("7f00-7f01 rw-p 00000000 00:00 0 ", &mount));
    }
}
