//! A limit for the memory of this process and its page cache: a control group for as long as a phase lasts. A
//! file larger than the limit is read as files larger than memory are: each page goes into recently used
//! memory, not into idle memory.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// This process in a control group of limited memory; back where it was when dropped.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    group: PathBuf,
    before: PathBuf,
}

/// A hierarchy of control groups that has the memory controller: where it is, this process's group
/// in it, and the name of the limit.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    root: PathBuf,
    own: PathBuf,
    limit: &'static str,
}

impl MemoryLimit {
    /// So many bytes at most, for all threads of this process and the children that it starts.
    ///
    /// # Errors
    /// There is no memory controller, or no right to use it.
    pub fn new(bytes: u64) -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let groups = std::fs::read_to_string("/proc/self/cgroup")?;
        let found = hierarchy(&mounts, &groups);
        let found = found.context("there is no memory controller of control groups")?;
        if found.limit == "memory.max" {
            // As root's groups have it on most machines already.
            std::fs::write(found.root.join("cgroup.subtree_control"), "+memory").ok();
        }
        let group = found.root.join(format!("braid-bench-{}", std::process::id()));
        let named = || format!("cannot use the control group {}", group.display());
        std::fs::create_dir(&group).with_context(named)?;
        let held = Self { before: found.own, group: group.clone() };
        std::fs::write(group.join(found.limit), bytes.to_string()).with_context(named)?;
        move_to(&group).with_context(named)?;
        Ok(held)
    }
}
impl Drop for MemoryLimit {
    fn drop(&mut self) {
        if let Err(e) = move_to(&self.before).and_then(|()| std::fs::remove_dir(&self.group)) {
            eprintln!("braid bench: {} stays: {e}", self.group.display());
        }
    }
}

fn move_to(group: &Path) -> std::io::Result<()> {
    std::fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

/// Finds it in `/proc/self/mounts` and `/proc/self/cgroup`: version 1 where it has memory, else 2.
fn hierarchy(mounts: &str, groups: &str) -> Option<Hierarchy> {
    let mounted = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (root, found, options) = (fields.next()?, fields.next()?, fields.next()?);
            let has = option.is_empty() || options.split(',').any(|o| o == option);
            (found == kind && has).then(|| PathBuf::from(root))
        })
    };
    let group_of = |controller: &str| {
        groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let found = controllers.split(',').any(|c| c == controller);
            found.then(|| path.trim_start_matches('/').to_owned())
        })
    };
    let (root, own, limit) = match mounted("cgroup", "memory") {
        Some(root) => (root, group_of("memory")?, "memory.limit_in_bytes"),
        None => (mounted("cgroup2", "")?, group_of("")?, "memory.max"),
    };
    Some(Hierarchy { own: root.join(own), root, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found() {
        let one = "cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0\n\
                   cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                   cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let groups = "7:blkio:/\n4:memory:/a/b\n0::/c\n";
        let found = hierarchy(one, groups).unwrap();
        assert_eq!(found.own, Path::new("/sys/fs/cgroup/memory/a/b"));
        assert_eq!(found.limit, "memory.limit_in_bytes");
        let two = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let found = hierarchy(two, "0::/user.slice\n").unwrap();
        let (root, own) = (Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/user.slice"));
        assert_eq!((found.root.as_path(), found.own.as_path()), (root, own));
        assert_eq!(found.limit, "memory.max");
        assert_eq!(hierarchy("proc /proc proc rw 0 0\n", groups), None);
    }
    #[test]
    fn held_and_let_go() {
        let own = || std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let before = own();
        match MemoryLimit::new(256 << 20) {
            Ok(held) => {
                assert!(own().contains("/braid-bench-"), "{}", own());
                drop(held);
            }
            Err(e) => braid_testkit::skip(&format!("{e:#}")),
        }
        assert_eq!(own(), before);
    }
}
