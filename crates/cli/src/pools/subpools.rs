//! Devices of their own for metadata and journals: as the user says, or by measurement.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use braid_fs::make::{MakeOptions, may_make};
use braid_pool::advise::DeviceBench;
use braid_pool::advise::classes::{Choice, answers, choose};
use braid_pool::device::Device;
use braid_pool::layout::Classes;
use braid_pool::layout::bus::Sysfs;
use braid_pool::{CreateOptions, Plan, Pool};

use crate::pools::shape;
use crate::terminal::{answer, ui};

/// Time in which one device is asked for small reads.
const MEASURE: Duration = Duration::from_millis(200);

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish<'a> {
    /// One subpool for everything, or what the layout says.
    Whole,
    /// By measurement.
    Measured,
    /// These.
    Told(&'a str),
}

impl<'a> Wish<'a> {
    /// What `--subpools` says. If the option was left out, devices are measured if all are disks,
    /// and no layout says what they are for.
    pub fn of(said: Option<&'a str>, layout: bool, devices: &[Arc<dyn Device>]) -> Self {
        match said {
            Some("none") => Self::Whole,
            Some("auto") => Self::Measured,
            Some(told) => Self::Told(told),
            None if layout || devices.len() < 2 || !shape::all_disks(devices) => Self::Whole,
            None => Self::Measured,
        }
    }

    /// Puts the layout that follows from it into `options`, whose plan without it is `plan`; what was
    /// chosen and why, if anything was to be chosen.
    ///
    /// # Errors
    /// What the user asked for is impossible; a device cannot be read.
    pub fn settle(
        self,
        devices: &[Arc<dyn Device>],
        (options, plan): (&mut CreateOptions, &mut Plan),
        file_system: &MakeOptions,
    ) -> Result<Option<String>> {
        let members = plan.label.members.clone();
        let with = |options: &CreateOptions, classes: &Classes| -> Result<CreateOptions> {
            let layout = classes.layout(&members, options.redundancy, options.keep_order)?;
            Ok(CreateOptions { layout: Some(layout), ..options.clone() })
        };
        let told = match self {
            Self::Whole => return Ok(None),
            Self::Told(text) => {
                *options = with(options, &Classes::told(text, &members)?)?;
                *plan = Pool::plan(devices.to_vec(), options)?;
                return Ok(None);
            }
            Self::Measured => measured(devices)?,
        };
        let choice = choose(&told, &members, options.redundancy);
        if let Choice::Split { classes, .. } = &choice {
            let tried = with(options, classes).and_then(|split| {
                let planned = Pool::plan(devices.to_vec(), &split)?;
                may_make(&planned.info, file_system)?;
                Ok((split, planned))
            });
            match tried {
                Ok(done) => (*options, *plan) = done,
                Err(why) => return Ok(Some(format!("one for everything: {choice}, but {why}"))),
            }
        }
        Ok(Some(choice.to_string()))
    }
}

/// How soon each device answers, reading only.
fn measured(devices: &[Arc<dyn Device>]) -> Result<Vec<braid_pool::advise::classes::Answers>> {
    let sysfs = Sysfs::default();
    let rotates = |d: &Arc<dyn Device>| {
        sysfs.name_of(Path::new(&d.info().name)).and_then(|name| sysfs.rotates(&name))
    };
    let rotates: Vec<Option<bool>> = devices.iter().map(rotates).collect();
    let ms = MEASURE.as_millis();
    answer::note_line(format_args!("measuring how soon each device answers, reading for {ms} ms"));
    let bar = ui::bar("measuring");
    let mut bench = DeviceBench::new(devices.to_vec(), MEASURE);
    let found = answers(&mut bench, &rotates, &mut ui::progress(&bar))?;
    bar.finish_and_clear();
    Ok(found)
}
