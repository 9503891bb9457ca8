//! `braid create`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use braid_format::lock_record::nodes_max;
use braid_format::redundancy::LogPlace;
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockSize, Bytes};
use braid_fs::make::{MakeOptions, make, may_make};
use braid_lock::EtcdAddress;
use braid_pool::device::{Device, UnitName};
use braid_pool::layout::Weights;
use braid_pool::{CreateOptions, Pool};

use crate::control::history;
use crate::pools::{shape, sources, subpools::Wish, topology};
use crate::terminal::{
    answer::{self, say},
    size, ui,
};

/// Make a pool of devices and a file system on it.
///
/// The data of one file is striped over all devices, unless another shape is asked for. Any host
/// that reaches all of them can then `braid mount` the pool. Everything that was on the devices is
/// lost. The root directory belongs to the user who runs this.
#[derive(Debug, clap::Args)]
#[command(after_help = shape::HELP)]
pub struct Args {
    /// Name of the pool: at most 63 bytes, no '/' and no control characters
    name: String,
    /// Block devices, files of a fixed size, or units of iSCSI targets
    /// (iscsi://[user[%secret]@]host[:port]/target/unit)
    #[arg(required_unless_present = "layout", value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    #[command(flatten)]
    shape: shape::ShapeArgs,
    /// Devices of their own for metadata and journals: 'auto' gives them those that answer small reads
    /// clearly sooner than the others, if there are such; 'none': all devices hold everything; or told, as in
    /// 'metadata=sdb,sdc' or 'metadata=sdb; journal=sdc' (the others hold data) [default: auto where
    /// all devices are disks]
    #[arg(long, value_name = "none|auto|SPEC", conflicts_with = "layout")]
    subpools: Option<String>,
    /// Block of the file system; a power of two from 4 KiB to 64 KiB
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = size::parse)]
    block_size: u64,
    /// Nodes that may mount at once, up to 674 (default: by the pool's size; with mirrors or parity
    /// 2 to 16, and each takes 2 MiB of every device). More than 77 need devices that compare and
    /// write 4096 bytes at once
    #[arg(long, value_name = "N")]
    nodes: Option<u16>,
    /// Bytes of one node's journal (default: by the pool's size)
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    journal_size: Option<u64>,
    /// Keep lock records and node slots in etcd, not on the devices: for devices that cannot compare
    /// and write, or not among hosts (etcd://HOST[:PORT][,HOST[:PORT]...]/PREFIX)
    #[arg(long, value_name = "ADDRESS")]
    locks: Option<EtcdAddress>,
    /// Use devices although they carry another file system or belonged to another pool, and keys in
    /// etcd although they are another file system's
    #[arg(long)]
    force: bool,
    /// Only show what would be made, or why it cannot be; write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let Some(block_size) = BlockSize::new(Bytes(args.block_size)) else {
        bail!(
            "a block size of {} is not possible: take 4K, 8K, 16K, 32K or 64K",
            size::show(args.block_size)
        );
    };
    let shape = args.shape.read(&args.devices)?;
    sources::refuse_silent(&shape.devices)?;
    for path in &shape.devices {
        if !braid_pool::device::exists(path) {
            bail!(
                "{}: no such device or file (`truncate -s 10G FILE` makes a file to try with)",
                path.display()
            );
        }
        if let Some(use_) = braid_pool::device::in_use(path)? {
            bail!("{}: in use: {use_}", path.display());
        }
    }
    let devices = sources::open_devices(&shape.devices, false)?;
    for device in &devices {
        refuse_live(device.as_ref())?;
    }
    let mut options = CreateOptions {
        force: args.force,
        log_slots: args.nodes.unwrap_or_else(|| log_slots(&devices)),
        lock_sector: args.nodes.and_then(lock_sector),
        ..CreateOptions::new(&args.name)
    };
    args.shape.apply(&shape, &devices, &mut options)?;
    let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let make_options = MakeOptions {
        block_size,
        nodes: args.nodes,
        journal_size: args.journal_size,
        owner,
        locks: args.locks.clone(),
        force: args.force,
    };
    planned(args, &devices, &mut options, &make_options)?;
    if args.dry_run {
        say!("pool '{}' could be made; nothing was written", args.name);
        return Ok(ExitCode::SUCCESS);
    }
    let pool = Pool::create(devices, &options)?;
    let bar = ui::bar("making");
    make(&pool, &make_options, &mut ui::progress(&bar)).context("cannot make the file system")?;
    bar.finish_and_clear();
    history::command(&pool, format!("create: {} members", pool.info().members.len()));
    say_made(args, &pool, &shape);
    Ok(ExitCode::SUCCESS)
}

/// The pool as it will be, shown. All that can be refused is refused before anything is written, or
/// takes time.
fn planned(
    args: &Args,
    devices: &[Arc<dyn Device>],
    options: &mut CreateOptions,
    make_options: &MakeOptions,
) -> Result<()> {
    let mut plan = match (Pool::plan(devices.to_vec(), options), args.nodes) {
        (Err(error), Some(nodes)) if options.lock_sector.is_some() => {
            let why = format!("{nodes} nodes need lock sectors of 4096 bytes, 1 to 77 do not");
            return Err(error).context(why);
        }
        (plan, _) => plan?,
    };
    let wish = Wish::of(args.subpools.as_deref(), options.layout.is_some(), devices);
    let chosen = wish.settle(devices, (options, &mut plan), make_options)?;
    if options.weights == Weights::Speed {
        shape::measure_all(devices, options)?;
        plan = Pool::plan(devices.to_vec(), options)?;
    }
    may_make(&plan.info, make_options).context("cannot make the file system")?;
    let paths: Vec<String> = devices.iter().map(|d| d.info().name.clone()).collect();
    if answer::is_json() {
        answer::add_all(topology::as_json(&plan.label, &paths));
        answer::add("subpools_chosen", chosen);
        return Ok(());
    }
    topology::print(&plan.label, &paths);
    if let Some(chosen) = chosen {
        say!("subpools: {chosen}");
    }
    Ok(())
}

fn say_made(args: &Args, pool: &Pool, shape: &shape::Shape) {
    let info = pool.info();
    say!(
        "created pool '{}': {} over {} {}, stripe unit {}, block size {}",
        info.name,
        size::show(info.size.get()),
        info.members.len(),
        if info.members.len() == 1 { "device" } else { "devices" },
        size::show(shape.unit.bytes().get()),
        size::show(args.block_size),
    );
    if let Some(locks) = &args.locks {
        say!("locks are in {locks}");
    }
    let hint = mount_hint(&args.name, &shape.devices);
    say!("mount it, on every host that reaches the devices: braid mount {hint} DIR");
}

/// The lock sector that so many nodes need, if that is larger than the smallest.
fn lock_sector(nodes: u16) -> Option<Bytes> {
    (usize::from(nodes) > nodes_max(512)).then_some(Bytes(4096))
}

/// Nodes that get a redundancy log if mirrors or parity are asked for: 2 MiB of each device, and no
/// more than a hundredth of it.
fn log_slots(devices: &[Arc<dyn Device>]) -> u16 {
    let least = devices.iter().map(|d| d.info().size.get()).min().unwrap_or(0);
    let logs = least / 100 / LogPlace::LEN.get();
    u16::try_from(logs.clamp(2, 16)).unwrap_or(2)
}

/// A device of a pool that some node of this host has mounted, whatever it is called here.
fn refuse_live(device: &dyn Device) -> Result<()> {
    for slot in 0..RawSuperblock::NODE_SLOTS_MAX {
        if device.abilities().locks.byte_locked(1 + u64::from(slot))? {
            bail!("{}: in use: node {slot} of a Braid pool has it mounted", device.info().name);
        }
    }
    Ok(())
}

/// Plain files and units of targets are not found by a scan: name them.
fn mount_hint(name: &str, devices: &[PathBuf]) -> String {
    let unit = |d: &Path| d.to_str().is_some_and(UnitName::is_meant);
    let hidden = |d: &PathBuf| unit(d) || d.metadata().is_ok_and(|m| m.is_file());
    if devices.iter().all(hidden) {
        let names: Vec<String> = devices.iter().map(|d| d.display().to_string()).collect();
        braid_pool::device::without_secrets(&names).0.join(" ")
    } else {
        name.to_owned()
    }
}
