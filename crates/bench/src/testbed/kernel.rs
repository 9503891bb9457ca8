//! File systems of the kernel for comparison: which can be made here, and how.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use itertools::Itertools as _;

use super::commands::SYSTEM_PATH;
use super::loop_device::Loop;
use crate::arguments::Common;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kernel {
    Xfs,
    Ext4,
    Btrfs,
}

/// How one is made. Nothing is discarded: the backing would lose its memory, and the first writes pay
/// for getting it back. Nothing is left to be made while something is measured.
struct Recipe {
    name: &'static str,
    /// Of Debian.
    package: &'static str,
    make: &'static [&'static str],
    /// What else, on several devices; `None`: it stands on one.
    striped: Option<&'static [&'static str]>,
    mount: &'static str,
}

const XFS: Recipe = Recipe {
    name: "xfs",
    package: "xfsprogs",
    make: &["-q", "-f", "-K"],
    striped: None,
    mount: "",
};
const EXT4: Recipe = Recipe {
    name: "ext4",
    package: "e2fsprogs",
    make: &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"],
    striped: None,
    mount: "",
};
const BTRFS: Recipe = Recipe {
    name: "btrfs",
    package: "btrfs-progs",
    make: &["-q", "-f", "-K"],
    striped: Some(&["-d", "raid0"]),
    // Otherwise the kernel discards what is freed, after a while.
    mount: "nodiscard",
};

impl Kernel {
    fn recipe(self) -> &'static Recipe {
        match self {
            Self::Xfs => &XFS,
            Self::Ext4 => &EXT4,
            Self::Btrfs => &BTRFS,
        }
    }
    /// As `mount -t` has it.
    pub fn name(self) -> &'static str {
        self.recipe().name
    }
    /// Whether it stripes files over several devices by itself.
    pub fn stripes(self) -> bool {
        self.recipe().striped.is_some()
    }
    /// Bytes of metadata beside so many bytes of data, above what every file system gets: inode tables
    /// of ext4 (256 bytes for each 16 KiB) and its journal; chunks of btrfs, of which there are two each.
    pub fn room(self, data: u64) -> u64 {
        match self {
            Self::Xfs => 0,
            Self::Ext4 => data / 32,
            Self::Btrfs => (512 << 20) + data / 32,
        }
    }
    /// Whether its making can be tried: the right, the program, loop devices.
    ///
    /// # Errors
    /// What is missing, by Debian package.
    pub fn possible(self) -> Result<()> {
        let Recipe { name, package, .. } = self.recipe();
        let program = format!("mkfs.{name}");
        ensure!(on_path(&program), "no {program} here (package {package})");
        loops()
    }
    /// The words of its `mkfs` on these devices.
    pub(super) fn make<'d>(self, devices: &[&'d str]) -> Result<(String, Vec<&'d str>)> {
        let recipe = self.recipe();
        let mut words = recipe.make.to_vec();
        match (devices, recipe.striped) {
            ([], _) => bail!("no devices"),
            ([_], _) => {}
            (_, Some(striped)) => words.extend(striped),
            (_, None) => bail!("{} stands on one device", recipe.name),
        }
        words.extend(devices);
        Ok((format!("mkfs.{}", recipe.name), words))
    }
    /// The `-o` options of its mount on these devices. All are named: nobody else may have told the
    /// kernel which belong together.
    pub(super) fn options(self, devices: &[&str]) -> String {
        let several = devices.iter().filter(|_| devices.len() > 1);
        let own = [self.recipe().mount.to_owned()].into_iter().filter(|o| !o.is_empty());
        own.chain(several.map(|d| format!("device={d}"))).join(",")
    }
}

/// Whether loop devices can be made.
///
/// # Errors
/// What is missing.
pub(crate) fn loops() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "loop devices need root");
    ensure!(Path::new("/dev/loop-control").exists(), "no loop devices here (/dev/loop-control)");
    ensure!(on_path("losetup"), "no losetup here (package mount)");
    Ok(())
}

/// Whether devices of this job can be made where it says.
///
/// # Errors
/// What is missing.
pub(crate) fn devices(common: &Common) -> Result<()> {
    let dir = &common.dir;
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK)
        .with_context(|| dir.display().to_string())?;
    if common.throttle.is_some() {
        loops().context("--throttle")?;
        let control = Path::new(Loop::THROTTLES).join("blkio.throttle.read_bps_device");
        let there = control.exists();
        ensure!(there, "--throttle: no {} (control groups of version 1)", control.display());
    } else if common.loop_devices {
        loops().context("--loop")?;
    }
    Ok(())
}

/// Whether a pool can be mounted here: by the system call as root, through the helper otherwise.
///
/// # Errors
/// What is missing.
pub(crate) fn mountable() -> Result<()> {
    let fuse = Path::new("/dev/fuse");
    ensure!(fuse.exists(), "no /dev/fuse here (the kernel's module fuse)");
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    ensure!(on_path("fusermount3"), "no fusermount3 here (package fuse3); root needs none");
    let rights = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    rustix::fs::access(fuse, rights).context("/dev/fuse")
}

/// Whether there is such a program where administrators' programs are.
pub(crate) fn on_path(program: &str) -> bool {
    SYSTEM_PATH.split(':').any(|dir| Path::new(dir).join(program).exists())
}

/// What file systems of the kernel stand beside those that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Beside {
    Xfs,
    Ext4,
    Btrfs,
    // That alone: without a line of its own in the help, so that it stays short.
    None,
}

/// Those that `--beside` names.
///
/// # Errors
/// One is named twice, or `none` with others.
pub(crate) fn beside(named: &[Beside]) -> Result<Vec<Kernel>> {
    once("--beside", named)?;
    let kernel = |beside: &Beside| match beside {
        Beside::Xfs => Some(Kernel::Xfs),
        Beside::Ext4 => Some(Kernel::Ext4),
        Beside::Btrfs => Some(Kernel::Btrfs),
        Beside::None => None,
    };
    let systems: Vec<_> = named.iter().filter_map(kernel).collect();
    let alone = systems.len() == named.len() || named.len() == 1;
    ensure!(alone, "--beside: 'none' stands alone");
    Ok(systems)
}

/// Whether each word of a list is there once.
pub(crate) fn once<T: clap::ValueEnum>(option: &str, named: &[T]) -> Result<()> {
    let words = named.iter().filter_map(T::to_possible_value);
    let words = words.map(|value| value.get_name().to_owned());
    words.duplicates().next().map_or(Ok(()), |word| bail!("{option}: '{word}' is named twice"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_btrfs_is_made_on_several_devices_and_all_are_told_to_the_mount() {
        let two = ["/dev/a", "/dev/b"];
        assert!(Kernel::Xfs.make(&two).is_err() && Kernel::Ext4.make(&two).is_err());
        assert!(Kernel::Btrfs.make(&[]).is_err());
        let (program, words) = Kernel::Btrfs.make(&two).unwrap();
        let line = format!("{program} {}", words.join(" "));
        assert_eq!(line, "mkfs.btrfs -q -f -K -d raid0 /dev/a /dev/b");
        assert_eq!(Kernel::Btrfs.options(&two), "nodiscard,device=/dev/a,device=/dev/b");
        let (program, words) = Kernel::Xfs.make(&two[..1]).unwrap();
        assert_eq!(format!("{program} {}", words.join(" ")), "mkfs.xfs -q -f -K /dev/a");
        assert_eq!(Kernel::Xfs.options(&two[..1]), "");
    }
    #[test]
    fn what_stands_beside_is_named_once_and_none_stands_alone() {
        use Beside::{Btrfs, Ext4, None, Xfs};
        assert_eq!(beside(&[Btrfs, Xfs]).unwrap(), [Kernel::Btrfs, Kernel::Xfs]);
        assert_eq!(beside(&[None]).unwrap(), []);
        let why = |named: &[Beside]| beside(named).unwrap_err().to_string();
        assert_eq!(why(&[Ext4, Xfs, Ext4]), "--beside: 'ext4' is named twice");
        assert_eq!(why(&[None, None]), "--beside: 'none' is named twice");
        assert_eq!(why(&[Xfs, None]), "--beside: 'none' stands alone");
    }
}
