//! `braid mount`, and `mount.braid` for mount(8) and /etc/fstab.
//!
//! The daemon is this program started once more: the parent waits until the child says on a pipe
//! that the mount serves, or why not. So nothing is forked after threads exist.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use braid_format::{Bytes, NodeId};
use braid_fs::{Fs, MountOptions};
use braid_fuse::{FuseOptions, Session};

use crate::{runtime, size, sources};

/// Mount a pool's file system as one more node.
///
/// Goes into the background once the mount serves; -f stays. For /etc/fstab:
///
///     scratch  /scratch  braid  defaults,_netdev  0 0
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The pool's name (or all of its devices), then the directory
    #[arg(required = true, num_args = 2.., value_name = "NAME|DEVICE... DIR")]
    words: Vec<String>,
    /// Options, comma separated: ro, slot=N, cache=SIZE (metadata kept, 128M), dirty=SIZE (unwritten data
    /// kept, 128M), locks=N (inodes kept, 200000), commit=SECONDS (5), noatime, log=FILE,
    /// devices=A:B:..., nosuid, nodev, noexec, max_write=SIZE (largest request, 1M),
    /// raise_page_limit (allow 4M on this machine), read_ahead=SIZE (8M), workers_max=N (512),
    /// background_max=N (64), nocachenames (needed to mount something inside), noallow_other
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Ready signal on standard output (used by the background start)
    #[arg(long, hide = true)]
    ready: bool,
}

/// `mount.braid SOURCE DIR [-sfnvN] [-o OPTIONS]`, as mount(8) calls it.
pub fn from_mount_helper(args: &[OsString]) -> Option<Args> {
    let program = PathBuf::from(args.first()?);
    let name = program.file_name()?.to_str()?;
    if !matches!(name, "mount.braid" | "mount.fuse.braid") {
        return None;
    }
    let mut words = Vec::new();
    let mut options = Vec::new();
    let mut rest = args.iter().skip(1).map(|a| a.to_string_lossy().into_owned());
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-o" => options.extend(rest.next()),
            "-t" | "-N" => {
                rest.next();
            }
            flag if flag.starts_with('-') => {}
            _ => words.push(word),
        }
    }
    Some(Args { words, options, foreground: false, ready: false })
}

/// Everything the options say.
#[derive(Debug)]
struct Plan {
    devices: Vec<String>,
    fs: MountOptions,
    fuse: FuseOptions,
    log: Option<PathBuf>,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (dir, devices) = args.words.split_last().context("name a directory")?;
    let dir = std::path::absolute(dir)?;
    if !dir.is_dir() {
        bail!("{}: not a directory to mount on", dir.display());
    }
    let plan = parse(devices, dir, &args.options)?;
    if args.foreground { serve(plan, args.ready) } else { start_daemon(args) }
}

fn parse(devices: &[String], dir: PathBuf, options: &[String]) -> Result<Plan> {
    let mut plan = Plan {
        devices: devices.to_vec(),
        fs: MountOptions { mount_point: dir.clone(), ..MountOptions::default() },
        fuse: FuseOptions::new(dir),
        log: None,
    };
    for option in options.iter().flat_map(|o| o.split(',')).filter(|o| !o.is_empty()) {
        let (key, value) = option.split_once('=').map_or((option, None), |(k, v)| (k, Some(v)));
        apply(&mut plan, option, key, value)?;
    }
    Ok(plan)
}

fn apply(plan: &mut Plan, option: &str, key: &str, value: Option<&str>) -> Result<()> {
    let need = || value.with_context(|| format!("option {key} needs a value: {key}=..."));
    let bytes = || -> Result<u64> {
        size::parse(need()?).map_err(|e| anyhow::anyhow!("option {key}: {e}"))
    };
    let number = || -> Result<u64> {
        need()?.parse().with_context(|| format!("option {key}: not a number"))
    };
    match key {
        "ro" => {
            plan.fs.read_only = true;
            plan.fuse.read_only = true;
        }
        "slot" => {
            plan.fs.slot = Some(NodeId(number()?.try_into().context("option slot: 0 to 1023")?));
        }
        "cache" => plan.fs.metadata_cache = Bytes(bytes()?),
        "dirty" => plan.fs.dirty_max = Bytes(bytes()?),
        "locks" => plan.fs.locks_max = usize::try_from(number()?)?,
        "commit" => plan.fs.commit_interval = Duration::from_secs(number()?.clamp(1, 300)),
        "noatime" => plan.fs.relatime = false,
        "log" => plan.log = Some(PathBuf::from(need()?)),
        "devices" => plan.devices = need()?.split(':').map(str::to_owned).collect(),
        _ if plan.fuse.apply(option)? => {}
        _ => bail!("unknown mount option '{key}'; see `braid mount --help`"),
    }
    Ok(())
}

/// Mounts and serves until unmounted.
fn serve(plan: Plan, ready: bool) -> Result<ExitCode> {
    let pool = sources::open(&plan.devices, plan.fs.read_only)?;
    let name = pool.info().name.clone();
    let plan_dir = plan.fs.mount_point.clone();
    let session = Session::mount(&name, plan.fuse)?;
    let fs = match Fs::mount(pool, plan.fs, session.kernel_cache()) {
        Ok(fs) => fs,
        Err(e) => {
            session.abort();
            return Err(e.into());
        }
    };
    let note = runtime::Note::write(&plan_dir, &name, &plan.devices);
    if ready {
        detach(plan.log.as_deref())?;
    }
    let served = session.serve(fs.clone());
    let left = fs.unmount();
    drop(note);
    served?;
    left?;
    Ok(ExitCode::SUCCESS)
}

/// Says that the mount serves, and lets go of the terminal: own session, messages to the log file.
fn detach(log: Option<&Path>) -> Result<()> {
    println!("ready");
    std::io::stdout().flush()?;
    rustix::process::setsid().ok();
    rustix::process::chdir("/")?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    match log {
        Some(path) => {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            rustix::stdio::dup2_stderr(file)?;
        }
        None => rustix::stdio::dup2_stderr(&null)?,
    }
    Ok(())
}

/// Starts this program again in the background and waits for its word.
fn start_daemon(args: &Args) -> Result<ExitCode> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("mount").args(["--foreground", "--ready"]);
    for options in &args.options {
        command.arg("-o").arg(options);
    }
    command.arg("--").args(&args.words);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start the file system process")?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line)?;
    }
    if line.trim() == "ready" {
        return Ok(ExitCode::SUCCESS);
    }
    let mut why = String::new();
    if let Some(mut err) = child.stderr.take() {
        std::io::Read::read_to_string(&mut err, &mut why)?;
    }
    child.wait()?;
    bail!("{}", why.trim().trim_start_matches("braid: "))
}
