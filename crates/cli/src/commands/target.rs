//! `braid target`

use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use braid_format::Bytes;
use braid_iscsi_target::{Chap, LunOptions, Secret, Target, TargetOptions};
use braid_pool::device::{ByteLockGuard, Device, FileDevice, MemoryDevice, OpenOptions};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::json;

use crate::terminal::{
    answer::{self, say},
    size,
};

/// Serve devices as the logical units of an iSCSI target.
///
/// Each device becomes a unit: 0, 1, ... A device is a block device, a file of a fixed size, or
/// memory:SIZE (memory:SIZE:4096 with sectors of 4096 bytes, memory:SIZE:512e with such physical
/// ones). Everybody who can reach the portal can log in, unless --chap sets a secret. Runs until it
/// is ended.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Devices to serve
    #[arg(required_unless_present = "tell", value_name = "DEVICE")]
    devices: Vec<String>,
    /// The target's name
    #[arg(long, value_name = "IQN", default_value = "iqn.2026-11.org.braid:target")]
    name: String,
    /// Where to listen; port 0 takes any, and says which
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:3260")]
    listen: String,
    /// What initiators must prove to know: USER%SECRET, @FILE or $VARIABLE (of the environment)
    /// that holds this. Every user can read the command line for a moment
    #[arg(long, value_name = "USER%SECRET")]
    chap: Option<String>,
    /// What the target proves to initiators that ask
    #[arg(long, value_name = "USER%SECRET", requires = "chap")]
    chap_mutual: Option<String>,
    /// Directory that keeps persistent reservations (APTPL) over a restart
    #[arg(long, value_name = "DIR")]
    reservations: Option<PathBuf>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// A fault on purpose: "WHAT ACTION [lun=N] [from=NAME] [times=N] [every=N]"; WHAT is any, read,
    /// write, caw, flush, reserve or ready; ACTION is delay=MS, drop, mute (runs, is not answered),
    /// fail, late=MS (is not answered, lands later), late-fail=MS, refuse-fua, cut or cut-after
    #[arg(long = "fault", value_name = "FAULT")]
    faults: Vec<String>,
    /// Socket that takes orders while it runs: add FAULT[;FAULT...] (at once), clear, list, sessions, cut [NAME],
    /// power (the units say that they were switched off and on, in sessions that stay)
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Only give the target at this control socket an order
    #[arg(long, num_args = 2.., value_names = ["SOCKET", "ORDER"], conflicts_with = "devices")]
    tell: Vec<String>,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some((socket, words)) = args.tell.split_first() {
        answer::say_lines(&braid_iscsi_target::tell(socket.as_ref(), &words.join(" "))?);
        return Ok(ExitCode::SUCCESS);
    }
    let _kept = args.reservations.as_deref().map(keep_reservations).transpose()?;
    let lun = |(n, word): (usize, &String)| -> Result<LunOptions> {
        let reservations = args.reservations.as_ref().map(|dir| dir.join(format!("lun{n}")));
        // What was in memory is gone with its target: the next one's is another unit.
        let path = (!word.starts_with(MEMORY)).then(|| std::fs::canonicalize(word)).transpose();
        let path = path.with_context(|| word.clone())?;
        let identity = path.map(|path| path.display().to_string());
        Ok(LunOptions { device: open(word, args.read_only)?, identity, reservations })
    };
    let luns = args.devices.iter().enumerate().map(lun).collect::<Result<Vec<_>>>()?;
    let count = luns.len();
    let chap = Chap {
        initiator: args.chap.as_deref().map(secret).transpose()?,
        target: args.chap_mutual.as_deref().map(secret).transpose()?,
    };
    let listener =
        TcpListener::bind(&args.listen).with_context(|| format!("--listen {}", args.listen))?;
    let devices = luns.iter().map(|l| l.device.clone()).collect::<Vec<_>>();
    let _alone = await_former(&devices, &args.name);
    let options = TargetOptions { name: args.name.clone(), luns, chap };
    let target = Target::start(listener, options)?;
    for fault in &args.faults {
        target.faults().add(fault)?;
    }
    if let Some(path) = &args.control {
        target.control(path)?;
    }
    let unit = |n| format!("iscsi://{}/{}/{n}", target.address(), args.name);
    let units: Vec<String> = (0..count).map(unit).collect();
    answer::line(json!({"units": units}));
    for unit in units {
        say!("{unit}");
    }
    std::io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}

/// Makes the directory of reservations this target's alone, as long as the answer lives. A target that has just been
/// ended is waited for.
fn keep_reservations(dir: &Path) -> Result<File> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let shown = || dir.display().to_string();
    std::fs::create_dir_all(dir).with_context(shown)?;
    let held = File::open(dir).with_context(shown)?;
    let begun = Instant::now();
    loop {
        match flock(&held, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(held),
            Err(Errno::AGAIN) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(Errno::AGAIN) => bail!(
                "{}: another target keeps its reservations there; give each target a directory of its own",
                dir.display()
            ),
            Err(error) => return Err(error).with_context(shown),
        }
    }
}

/// Waits until nothing can land any more of an earlier target of this name, at whatever portal: what its
/// process had given to the kernel may outlive it by a moment, and initiators that log in here issue
/// it again. Each target holds a liveness byte of its own of its devices, which the kernel lets go
/// when all that was under way by the same descriptor has ended.
fn await_former(devices: &[Arc<dyn Device>], name: &str) -> Vec<ByteLockGuard> {
    const PATIENCE: u32 = 3000;
    const LOOK: Duration = Duration::from_millis(10);
    let step = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
    let mut held = Vec::new();
    for (n, device) in devices.iter().enumerate().filter(|(_, d)| !d.info().read_only) {
        let own = format!("{n} {name}");
        let byte = 1 << 61 | own.bytes().fold(0xcbf2_9ce4_8422_2325, step) >> 4;
        for look in 1..=PATIENCE {
            match device.abilities().locks.lock_byte(byte) {
                Ok(Some(guard)) => held.push(guard),
                Ok(None) if look < PATIENCE => {
                    std::thread::sleep(LOOK);
                    continue;
                }
                Ok(None) => {
                    tracing::warn!(device = device.info().name, "an earlier target still uses it");
                }
                Err(error) => tracing::warn!(%error, "an earlier target cannot be waited for"),
            }
            break;
        }
    }
    held
}

/// Devices in memory begin with this.
const MEMORY: &str = "memory:";

/// `memory:SIZE[:512|:4096|:512e]`, or a path.
fn open(word: &str, read_only: bool) -> Result<Arc<dyn Device>> {
    if let Some(rest) = word.strip_prefix(MEMORY) {
        let (len, sector) = rest.split_once(':').unwrap_or((rest, "512"));
        let len = size::parse(len).map_err(|e| anyhow::anyhow!("{word}: {e}"))?;
        let (sector, physical) = match sector {
            "512" => (512, 512),
            "512e" => (512, 4096),
            "4096" => (4096, 4096),
            _ => bail!("{word}: sectors are 512, 512e or 4096"),
        };
        if len == 0 || !len.is_multiple_of(sector) {
            bail!("{word}: not whole sectors of {sector} bytes");
        }
        return Ok(MemoryDevice::emulating(word, Bytes(len), Bytes(sector), Bytes(physical)));
    }
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    Ok(FileDevice::open(word.as_ref(), options)?)
}

/// `USER%SECRET`, or a file or an environment variable that holds it.
fn secret(word: &str) -> Result<Secret> {
    let text = match (word.strip_prefix('@'), word.strip_prefix('$')) {
        (Some(path), _) => std::fs::read_to_string(path).with_context(|| path.to_owned())?,
        (None, Some(name)) => {
            std::env::var(name).with_context(|| format!("the environment variable {name}"))?
        }
        (None, None) => word.to_owned(),
    };
    let (name, secret) = text.trim_end().split_once('%').context("a secret is USER%SECRET")?;
    Ok(Secret { name: name.to_owned(), secret: secret.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_reservations_is_one_targets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        let first = keep_reservations(&path).unwrap();
        let refused = keep_reservations(&path).unwrap_err().to_string();
        assert!(refused.contains("another target"), "{refused}");
        // One that ends is waited for.
        let second = std::thread::spawn(move || keep_reservations(&path));
        std::thread::sleep(Duration::from_millis(100));
        drop(first);
        second.join().unwrap().unwrap();
    }
}
