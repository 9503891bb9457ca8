//! The one ioctl(2) that there is: FITRIM, which gives free space back to the devices (fstrim(8)).

use braid_fs::{Cred, FileSystem, TrimRange};
use rustix::io::Errno;

use super::{Call, Outcome};
use crate::abi::{self, IoctlIn, IoctlOut, TrimOut, TrimWanted};
use braid_format::{ByteOffset, Bytes};

impl<F: FileSystem> Call<'_, F> {
    /// Others are none of this file system's: as if it had none.
    pub(super) fn ioctl(&mut self) -> Outcome<()> {
        let what: IoctlIn = self.body.take()?;
        let len = size_of::<TrimWanted>();
        let fits = usize::try_from(what.in_size) == Ok(len) && what.in_size == what.out_size;
        if what.cmd != abi::FITRIM || !fits {
            return Err(Errno::NOTTY.into());
        }
        let wanted: TrimWanted = self.body.take()?;
        if !is_administrator(self.cred) {
            return Err(Errno::PERM.into());
        }
        let range = TrimRange {
            start: ByteOffset(wanted.start),
            len: Bytes(wanted.len),
            least: Bytes(wanted.least),
        };
        let wait = self.server.interrupts.enter(self.reply.unique);
        let given = self.files().trim(range, &wait.canceller);
        drop(wait);
        let range = TrimWanted { len: given?, ..wanted };
        self.value(&TrimOut { head: IoctlOut::default(), range })
    }
}

/// Whether the kernel would let the caller do this on a file system of its own: root, with the
/// right to. The kernel does not say what privileges a caller has. Nothing is known of a caller in
/// another PID namespace.
fn is_administrator(cred: Cred) -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    if cred.uid != 0 || cred.pid == 0 {
        return false;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", cred.pid)).unwrap_or_default();
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_some_and(|caps| caps & SYS_ADMIN != 0)
}
