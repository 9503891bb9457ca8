//! Where the processes of one user of this host keep what they tell one another: sockets, notes, liveness bytes.
//!
//! The environment has no say in it: a command that a timer starts, or `sudo`, has another one than the user's shell,
//! and both must find the same mounts. The root of a user namespace (`unshare -r`, a container without rights) is the
//! user who made it: `/run` is not theirs, and others are root in namespaces of theirs. So users go by their numbers
//! outside.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where `braid-UID` may stand, if there is no better place. Another user may have made a directory of that name in one
/// of them: that one is passed over.
const SHARED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// The directory of this user's processes: `/run/braid` of root; `braid` in `/run/user/UID` of others, where that is
/// there and theirs, else `/tmp/braid-UID`. Made if missing, so that nobody else may enter it; one that is there may at
/// most be looked at by others, and only root's. One that is there already comes first: `/run/user/UID` may come with
/// a login, after processes that run without one.
///
/// # Errors
/// The system's; `PermissionDenied` if all of them belong to somebody else, are open to others, or are no directories:
/// in a place where everybody may write, whoever made it could lead this user's files elsewhere.
pub fn user_dir() -> io::Result<PathBuf> {
    in_user_dir(Ok)
}

/// What `f` makes of the first such directory that it succeeds in: [`user_dir`], else those with shorter names.
///
/// # Errors
/// As there; the last one's of `f`.
pub fn in_user_dir<T>(f: impl Fn(PathBuf) -> io::Result<T>) -> io::Result<T> {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let user = rustix::process::geteuid().as_raw();
    let shared = SHARED.map(Path::new);
    first_of(candidates(outside(&map, user), user, Path::new("/run"), &shared), user, f)
}

fn first_of<T>(
    dirs: Vec<PathBuf>,
    user: u32,
    f: impl Fn(PathBuf) -> io::Result<T>,
) -> io::Result<T> {
    let (mut refused, mut last) = (Vec::new(), None);
    for dir in dirs {
        match make(&dir, user) {
            Ok(()) => match f(dir) {
                Ok(made) => return Ok(made),
                Err(e) => last = Some(e),
            },
            Err(e) => refused.push(e.to_string()),
        }
    }
    Err(last.unwrap_or_else(|| {
        let why = format!(
            "there is no directory for what the processes of this user tell one another: {}; remove one of these, or \
             have root remove it",
            refused.join("; ")
        );
        io::Error::new(io::ErrorKind::PermissionDenied, why)
    }))
}

/// Such directories of a user, `outside` of whose user namespace they have another number; the one to take first.
fn candidates(outside: u32, user: u32, run: &Path, shared: &[&Path]) -> Vec<PathBuf> {
    let named = format!("braid-{outside}");
    let shared = shared.iter().map(|dir| dir.join(&named));
    if outside == 0 {
        return std::iter::once(run.join("braid")).chain(shared).collect();
    }
    let own = run.join("user").join(outside.to_string());
    let own = may_be_used(&own, user).is_ok().then(|| own.join("braid"));
    let mut all: Vec<PathBuf> = own.into_iter().chain(shared).collect();
    all.sort_by_key(|dir| may_be_used(dir, user).is_err());
    all
}

/// Makes the directory, unless it is there; refuses one that others may have put there.
fn make(dir: &Path, user: u32) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(io::Error::new(e.kind(), format!("{}: {e}", dir.display())));
        }
        _ => {}
    }
    may_be_used(dir, user)
}

/// Whether it is a directory of this user alone.
fn may_be_used(dir: &Path, user: u32) -> io::Result<()> {
    let found = std::fs::symlink_metadata(dir)?;
    // Others may look at root's (`braid status`), but not write there.
    let closed = if user == 0 { 0o022 } else { 0o077 };
    let why = if !found.is_dir() {
        "is no directory".to_owned()
    } else if found.uid() != user {
        format!("belongs to user {}", found.uid())
    } else if found.mode() & closed != 0 {
        format!("is open to other users (mode {:o})", found.mode() & 0o7777)
    } else {
        return Ok(());
    };
    let why = format!("{} {why}", dir.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
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
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn made(dir: &Path, mode: u32) {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).unwrap();
    }

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
    fn all_processes_of_a_user_take_the_same_place() {
        let temp = tempfile::tempdir().unwrap();
        let (run, tmp) = (temp.path().join("run"), temp.path().join("tmp"));
        let user = rustix::process::geteuid().as_raw();
        std::fs::create_dir(&tmp).unwrap();
        let of = |outside| candidates(outside, user, &run, &[&tmp]);
        assert_eq!(of(0), [run.join("braid"), tmp.join("braid-0")]);
        assert_eq!(of(7), [tmp.join("braid-7")], "nobody has logged in");
        let own = run.join("user/7");
        made(&own, 0o777);
        assert_eq!(of(7), [tmp.join("braid-7")], "everybody may write there");
        made(&own, 0o700);
        assert_eq!(of(7), [own.join("braid"), tmp.join("braid-7")]);
        // A process that ran before the login has made this one.
        made(&tmp.join("braid-7"), 0o700);
        assert_eq!(of(7), [tmp.join("braid-7"), own.join("braid")]);
        made(&own.join("braid"), 0o700);
        assert_eq!(of(7), [own.join("braid"), tmp.join("braid-7")]);
    }

    #[test]
    fn what_another_user_has_put_there_is_passed_over() {
        let user = rustix::process::geteuid().as_raw();
        let temp = tempfile::tempdir().unwrap();
        let [open, next] = ["open", "next"].map(|name| temp.path().join(name));
        made(&open, 0o777);
        let first = |dirs: &[&PathBuf], user| {
            first_of(dirs.iter().map(|d| (*d).clone()).collect(), user, Ok)
        };
        assert_eq!(first(&[&open, &next], user).unwrap(), next);
        let refused = first(&[&open, &next], user + 1).unwrap_err().to_string();
        let owner = format!("next belongs to user {user}");
        assert!(refused.contains(&owner) && refused.contains("remove"), "{refused}");
    }

    #[test]
    fn only_a_directory_of_ones_own_will_do() {
        let user = rustix::process::geteuid().as_raw();
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("braid");
        make(&dir, user).unwrap();
        make(&dir, user).unwrap();
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        made(&dir, 0o777);
        assert!(make(&dir, user).is_err(), "open to all");
        assert!(make(&dir, user + 1).is_err(), "another's");
        let link = temp.path().join("link");
        symlink(temp.path(), &link).unwrap();
        assert!(make(&link, user).is_err(), "leads elsewhere");
        let file = temp.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(make(&file, user).is_err());
    }
}
