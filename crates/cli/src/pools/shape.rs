//! The shape of a pool, as the command line asks for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use braid_format::{Bytes, StripeUnit};
use braid_pool::device::Device;
use braid_pool::layout::bus::Sysfs;
use braid_pool::layout::{Layout, LayoutFile, Redundancy, Weights, measure, parse};
use braid_pool::{AddOptions, CreateOptions, Hint};

use serde::{Deserialize, Serialize};

use crate::terminal::{answer, size, ui};

/// Time in which one device is measured.
const MEASURE: Duration = Duration::from_millis(400);

/// What `braid create` knows about shapes.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct ShapeArgs {
    /// The shape, if it is not one stripe over all devices: an expression, or a file ending in
    /// .toml (see below)
    #[arg(long, value_name = "EXPR|FILE.toml", conflicts_with_all = ["mirror", "parity"])]
    layout: Option<String>,
    /// Keep N copies of every byte, on N devices (2 to 4)
    #[arg(long, value_name = "N", conflicts_with = "parity")]
    mirror: Option<u16>,
    /// Survive the loss of M devices (1 or 2) of each parity group; groups of a sensible width are
    /// made
    #[arg(long, value_name = "M")]
    parity: Option<u16>,
    /// Contiguous bytes on one device before the next; a multiple of 4 KiB [default: 256K]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    stripe_unit: Option<u64>,
    /// Shares of a row for devices of unequal speed: 'auto' reads from each device alone for a
    /// moment, 'none' gives all the same, or one number for each device, as in 2,2,1 [default:
    /// auto where all devices are disks, none where there are files or loop devices]
    #[arg(long, value_name = "auto|none|LIST")]
    weights: Option<String>,
    /// The bus or controller (a number from 1) of a device, if the system does not know it; may be
    /// repeated
    #[arg(long, value_name = "DEVICE=N")]
    bus: Vec<String>,
    /// Leave devices in the order given, instead of taking turns between buses
    #[arg(long)]
    keep_order: bool,
}

/// Explains the language of layouts, below the options.
pub const HELP: &str = "\
Layouts:
  stripe(all)                               all devices side by side: the default
  stripe(mirror(sdb,sdc), mirror(sdd,sde))  a stripe of mirrors, each of 2 to 4
  mirror+1(all)                             the same over any number, of any sizes
  parity+1(sdb,sdc,sdd,sde,sdf)             four data, one parity; parity+2: two
  concat(sdb, sdc)                          one after the other
  stripe/1M(sdb*2, sdc)                     its own unit; sdb has two in each row
  metadata = mirror(sdb[20G],sdc[20G]); data = stripe(rest)
                                            subpools; [SIZE]: part of a device
Devices are named by path, by its last part, or by place in the list (0, 0-3,
all, rest). docs/VOLUMES.md says which shape to take, and how to write it in a
file.

Example: braid create scratch /dev/sdb /dev/sdc /dev/sdd /dev/sde";

/// What was asked for, read but not yet built.
pub struct Shape {
    layout: Option<Layout>,
    redundancy: Redundancy,
    /// The unit.
    pub unit: StripeUnit,
    /// It was asked for.
    unit_given: bool,
    buses: Vec<(String, u16)>,
    /// The devices.
    pub devices: Vec<PathBuf>,
}

impl ShapeArgs {
    /// Reads the layout and finds the devices: those given, or those that the layout names.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn read(&self, given: &[PathBuf]) -> Result<Shape> {
        let mut buses = self.bus.iter().map(|b| bus(b)).collect::<Result<Vec<_>>>()?;
        let (mut layout, mut unit, mut listed) = (None, None, Vec::new());
        match &self.layout {
            Some(text) if Path::new(text).extension().is_some_and(|e| e == "toml") => {
                let file = std::fs::read_to_string(text).with_context(|| text.clone())?;
                let file = LayoutFile::parse(&file).with_context(|| text.clone())?;
                buses.extend(file.buses);
                (layout, unit, listed) = (Some(file.layout), file.unit, file.devices);
            }
            Some(text) => layout = Some(parse::layout(text, &BTreeMap::new())?),
            None => {}
        }
        if let Some(asked) = self.stripe_unit {
            let Some(asked) = StripeUnit::new(Bytes(asked)) else {
                bail!(
                    "a stripe unit of {} is not possible: take a multiple of 4 KiB, up to 1 GiB",
                    size::show(asked)
                );
            };
            unit = Some(asked);
        }
        let mut devices = given.to_vec();
        if devices.is_empty() {
            if listed.is_empty() {
                listed = layout.as_ref().map(Layout::names).unwrap_or_default();
            }
            for path in listed.iter().map(|name| node_of(name)) {
                // A layout may call one device by two names.
                if !devices.contains(&path) {
                    devices.push(path);
                }
            }
        }
        if devices.is_empty() {
            bail!("no device given: name them on the command line or in the layout");
        }
        Ok(Shape {
            layout,
            redundancy: match (self.mirror, self.parity) {
                (Some(n), _) => Redundancy::Mirror(n),
                (_, Some(n)) => Redundancy::Parity(n),
                _ => Redundancy::None,
            },
            unit_given: unit.is_some(),
            unit: unit.unwrap_or(StripeUnit::DEFAULT),
            buses,
            devices,
        })
    }

    /// Puts the shape into the options of a pool of these devices (those of [`Shape::devices`]).
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn apply(
        &self,
        shape: &Shape,
        devices: &[Arc<dyn Device>],
        options: &mut CreateOptions,
    ) -> Result<()> {
        options.stripe_unit = shape.unit;
        options.layout.clone_from(&shape.layout);
        options.redundancy = shape.redundancy;
        options.keep_order = self.keep_order;
        let sysfs = Sysfs::default();
        let names: Vec<_> =
            devices.iter().map(|d| sysfs.name_of(Path::new(&d.info().name))).collect();
        let mut told = vec![None; devices.len()];
        for (name, number) in &shape.buses {
            let same = |d: &Arc<dyn Device>| {
                d.info().name == *name || d.info().name.rsplit('/').next() == Some(name)
            };
            let Some(slot) = devices.iter().position(same).and_then(|i| told.get_mut(i)) else {
                bail!("bus of {name}: it is not among the devices");
            };
            *slot = Some(*number);
        }
        let known: Vec<_> = names.iter().cloned().zip(told).collect();
        let buses = sysfs.buses(&known);
        let serial = |name: &Option<String>| name.as_ref().and_then(|n| sysfs.serial(n));
        options.hints = names
            .iter()
            .zip(buses)
            .map(|(name, bus)| Hint {
                bus,
                serial: serial(name).unwrap_or_default(),
                bytes_per_second: Bytes(0),
            })
            .collect();
        options.weights = match self.weights.as_deref() {
            Some("auto") => Weights::Speed,
            None if devices.len() > 1 && all_disks(devices) => Weights::Speed,
            Some("none") | None => Weights::None,
            Some(list) => Weights::List(numbers(list)?),
        };
        Ok(())
    }
}

impl ShapeArgs {
    /// For a process that works in another directory.
    ///
    /// # Errors
    /// There is no such directory as this one.
    pub fn absolute(mut self) -> Result<Self> {
        if let Some(text) = &mut self.layout
            && Path::new(text).extension().is_some_and(|e| e == "toml")
        {
            *text = std::path::absolute(&*text)?.display().to_string();
        }
        Ok(self)
    }

    /// How new space is made of these devices (those of [`Shape::devices`]).
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn add_options(
        &self,
        shape: &Shape,
        devices: &[Arc<dyn Device>],
        force: bool,
    ) -> Result<AddOptions> {
        let mut made = CreateOptions::new("pool");
        self.apply(shape, devices, &mut made)?;
        measure_all(devices, &mut made)?;
        let asked = self.mirror.is_some() || self.parity.is_some();
        Ok(AddOptions {
            force,
            layout: made.layout,
            redundancy: asked.then_some(made.redundancy),
            unit: shape.unit_given.then_some(shape.unit),
            weights: made.weights,
            keep_order: made.keep_order,
            hints: made.hints,
        })
    }
}

/// Whether all devices are disks on controllers that the system names.
pub fn all_disks(devices: &[Arc<dyn Device>]) -> bool {
    let sysfs = Sysfs::default();
    let disk = |d: &Arc<dyn Device>| {
        let name = sysfs.name_of(Path::new(&d.info().name));
        name.is_some_and(|n| sysfs.controller(&n).is_some())
    };
    devices.iter().all(disk)
}

/// Measures the devices one after the other, if the weights depend on it.
///
/// # Errors
/// A device cannot be read.
pub fn measure_all(devices: &[Arc<dyn Device>], options: &mut CreateOptions) -> Result<()> {
    if options.weights != Weights::Speed {
        return Ok(());
    }
    let ms = MEASURE.as_millis();
    answer::note_line(format_args!("measuring each device alone, reading for {ms} ms"));
    let bar = ui::bar("measuring");
    bar.set_length(devices.len() as u64);
    for (device, hint) in devices.iter().zip(&mut options.hints) {
        hint.bytes_per_second = Bytes(measure(device.as_ref(), MEASURE)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// `DEVICE=N`.
fn bus(text: &str) -> Result<(String, u16)> {
    let split = text.rsplit_once('=');
    let parsed = split.and_then(|(d, n)| Some((d.to_owned(), n.parse().ok().filter(|n| *n > 0)?)));
    parsed.with_context(|| format!("--bus {text}: write DEVICE=N, N a number from 1"))
}

fn numbers(list: &str) -> Result<Vec<u16>> {
    let number = |n: &str| n.trim().parse::<u16>();
    let parsed: Result<Vec<u16>, _> = list.split(',').map(number).collect();
    parsed
        .ok()
        .with_context(|| format!("--weights {list}: write auto, none, or numbers as in 2,2,1"))
}

/// A device that a layout names: as it stands, else in `/dev`.
fn node_of(name: &str) -> PathBuf {
    let path = PathBuf::from(name);
    let in_dev = Path::new("/dev").join(name);
    if !path.exists() && !name.contains('/') && in_dev.exists() { in_dev } else { path }
}
