//! Programs that use a mounted file system: they have files open there, or it is their working directory.

use std::path::Path;

/// Some process that uses the mount with the number `mount`, on `dir`, and its command. Nothing is asked of the file
/// system, whose node may not answer.
pub fn user_of(mount: u64, dir: &Path) -> Option<(u32, String)> {
    let own = std::process::id();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if pid != own && (has_open(&entry.path(), mount) || works_in(&entry.path(), dir)) {
            let command = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            return Some((pid, command.trim().to_owned()));
        }
    }
    None
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
}
