//! The directory for what a user's mounts keep on this host while they run: hint sockets, notes.

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// `/run/braid` for root, `braid` in `$XDG_RUNTIME_DIR` for others, else `braid-UID` among the
/// temporary files. Made if missing; nobody else may enter it.
///
/// # Errors
/// The system's; `PermissionDenied` for one that stands there and belongs to somebody else, is open
/// to others, or is no directory: in a place where everybody may write, whoever made it could lead
/// this user's files elsewhere.
pub fn private_dir() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid();
    let usual = if user.is_root() {
        Some(PathBuf::from("/run"))
    } else {
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
    };
    if let Some(usual) = usual
        && let Ok(dir) = make(&usual.join("braid"), user.as_raw())
    {
        return Ok(dir);
    }
    make(&std::env::temp_dir().join(format!("braid-{}", user.as_raw())), user.as_raw())
}

fn make(dir: &Path, user: u32) -> io::Result<PathBuf> {
    match std::fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let found = std::fs::symlink_metadata(dir)?;
    // Others may look at root's (`braid status`), but not write there.
    let closed = if user == 0 { 0o022 } else { 0o077 };
    if !found.is_dir() || found.uid() != user || found.mode() & closed != 0 {
        let why = format!("{}: not a directory that only this user may enter", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(dir.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_a_directory_of_ones_own_will_do() {
        let user = rustix::process::geteuid().as_raw();
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("braid");
        make(&dir, user).unwrap();
        make(&dir, user).unwrap();
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
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
