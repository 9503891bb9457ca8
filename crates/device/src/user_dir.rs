//! Where the processes of one user of this host keep what they tell one another: sockets, notes, liveness bytes.
//!
//! The root of a user namespace (`unshare -r`, a container without rights) is the user who made it: `/run` is not
//! theirs, and others are root in namespaces of theirs. So users go by their numbers outside.

use std::path::{Path, PathBuf};

/// Such directories, the usual one first: `/run/braid` of root, `braid` in `$XDG_RUNTIME_DIR` of others, else
/// `braid-UID` among the temporary files. The others are for what does not fit there. Whether they are there, and are
/// this user's alone, is not looked at.
pub fn user_dirs() -> Vec<PathBuf> {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let user = outside(&map, rustix::process::geteuid().as_raw());
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    candidates(user, own, &std::env::temp_dir())
}

fn candidates(user: u32, own: Option<PathBuf>, temporary: &Path) -> Vec<PathBuf> {
    let usual = if user == 0 { Some(PathBuf::from("/run")) } else { own };
    let named = format!("braid-{user}");
    let below = |dir: &Path| dir.join(&named);
    let usual = usual.map(|dir| dir.join("braid")).into_iter();
    usual.chain([below(temporary), below(Path::new("/tmp"))]).collect()
}

/// The number outside of a user namespace of one who is `user` in it, by the namespace's map: lines of the first number
/// inside, the first outside, and how many.
fn outside(map: &str, user: u32) -> u32 {
    let mut ranges = map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    let own = |(inside, outside, count): (u32, u32, u32)| {
        let at = user.checked_sub(inside).filter(|at| *at < count)?;
        outside.checked_add(at)
    };
    ranges.find_map(own).unwrap_or(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_go_by_their_numbers_outside() {
        assert_eq!(outside("         0          0 4294967295\n", 0), 0);
        assert_eq!(outside("         0       1000          1\n", 0), 1000);
        let two = "0 1000 1\n1 100000 65536\n";
        assert_eq!(
            [0, 1, 65536, 70000].map(|user| outside(two, user)),
            [1000, 100_000, 165_535, 70000]
        );
        // A system without /proc.
        assert_eq!(outside("", 7), 7);
    }

    #[test]
    fn only_root_uses_run() {
        let dirs = |user, own: Option<&str>| {
            let dirs = candidates(user, own.map(PathBuf::from), Path::new("/var/tmp"));
            dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        let of_root = "/run/braid /var/tmp/braid-0 /tmp/braid-0";
        assert_eq!(dirs(0, None), of_root);
        assert_eq!(dirs(0, Some("/run/user/0")), of_root);
        assert_eq!(dirs(7, None), "/var/tmp/braid-7 /tmp/braid-7");
        let of_user = "/run/user/7/braid /var/tmp/braid-7 /tmp/braid-7";
        assert_eq!(dirs(7, Some("/run/user/7")), of_user);
    }
}
