//! Who carries out a change of a pool: the node of this host that has it mounted, or, if there is
//! none, this process, which joins as a node while it works.

use std::sync::Arc;

use anyhow::{Context, Result};
use braid_fs::{Fs, MountOptions, NoKernelCache};

use crate::control::{self, Order, View};
use crate::runtime::Mount;
use crate::{sources, unread};

/// A node that takes orders.
pub enum Session {
    /// Of another process.
    Mounted(Mount),
    /// Of this one.
    Own(Fs),
}

impl Session {
    /// The node for what a user names: a pool, the directory where it is mounted, its devices
    /// (separated by colons), or one of them if it is mounted.
    ///
    /// # Errors
    /// Nothing of that name, or it cannot be used.
    fn find(name: &str) -> Result<Self> {
        if let Some(mount) = control::look(name)? {
            return Ok(Self::Mounted(mount));
        }
        let pool = sources::open(&[name.to_owned()], false).with_context(|| {
            format!("{name} is not mounted on this host, and its devices cannot be used directly")
        })?;
        let fs = Fs::mount(pool, MountOptions::default(), Arc::new(NoKernelCache))?;
        Ok(Self::Own(fs))
    }

    /// Lets `work` give orders to the node for what a user names; then a node of this process leaves.
    ///
    /// # Errors
    /// As [`Session::find`]; those of `work`; a device failed.
    pub fn with<T>(name: &str, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let session = Self::find(name)?;
        let (done, ended) = unread::and_then(|| work(&session), || session.end());
        // What went wrong first is said.
        let done = done?;
        ended.map(|()| done)
    }

    /// Gives an order.
    ///
    /// # Errors
    /// It is refused.
    pub fn order(&self, order: &Order) -> Result<View> {
        match self {
            Self::Mounted(mount) => control::order(mount, order),
            Self::Own(fs) => control::obey(fs, order.clone()),
        }
    }

    /// What the pool's members are.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn view(&self) -> Result<View> {
        self.order(&Order::Members)
    }

    /// Whether the node goes on when this command has ended.
    pub const fn stays(&self) -> bool {
        matches!(self, Self::Mounted(_))
    }

    /// Leaves the pool, if this process joined it.
    ///
    /// # Errors
    /// A device failed.
    fn end(&self) -> Result<()> {
        if let Self::Own(fs) = self {
            fs.unmount()?;
        }
        Ok(())
    }
}
