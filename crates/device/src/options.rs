//! How a device is opened.

/// Past the page cache?
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Direct {
    /// Where the file system has it.
    #[default]
    Auto,
    /// Or fail.
    Yes,
    /// Never.
    No,
}

/// How to open.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent options, each named")]
pub struct OpenOptions {
    /// No writes.
    pub read_only: bool,
    /// Past the page cache?
    pub direct: Direct,
    /// Refuse a device that is in use, and keep others from opening it so.
    pub exclusive: bool,
    /// A file's size is no limit: it may be empty, writes make it longer, and a read beyond its end
    /// fails. Without direct I/O any byte will do, not only whole sectors.
    pub growing: bool,
    /// A file that every user can open stays so although its locks count: it is only looked at, for a moment.
    pub leaves_mode: bool,
}
