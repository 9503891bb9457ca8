//! Types of files and permission bits: `st_mode` as inode(7) has it.

/// File type bits of a mode.
pub const S_IFMT: u32 = 0o170_000;
/// Directory.
pub const S_IFDIR: u32 = 0o040_000;
/// Regular file.
pub const S_IFREG: u32 = 0o100_000;
/// Symbolic link.
pub const S_IFLNK: u32 = 0o120_000;
/// Named pipe.
pub const S_IFIFO: u32 = 0o010_000;
/// Character device.
pub const S_IFCHR: u32 = 0o020_000;
/// Block device.
pub const S_IFBLK: u32 = 0o060_000;
/// Socket.
pub const S_IFSOCK: u32 = 0o140_000;
/// Set-group-ID: on a directory, new inodes inherit its group.
pub const S_ISGID: u32 = 0o2_000;
/// Set-user-ID.
pub const S_ISUID: u32 = 0o4_000;
/// Sticky: of a directory's names, only the owners of file and directory remove one.
pub const S_ISVTX: u32 = 0o1_000;
/// Execute permission of the group.
pub const S_IXGRP: u32 = 0o010;

/// A mode without the set-user-ID bit, and without the set-group-ID bit if the group may execute.
/// Directories keep theirs, which mean something else.
pub fn unprivileged(mode: u32) -> u32 {
    match mode {
        dir if dir & S_IFMT == S_IFDIR => dir,
        group if group & S_IXGRP != 0 => group & !(S_ISUID | S_ISGID),
        other => other & !S_ISUID,
    }
}
