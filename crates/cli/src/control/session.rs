//! The node that carries out a change of a pool: the node of this host that has it mounted or, if
//! there is none, this process, which joins as a node while it works.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use braid_fs::{Fs, Holds, MountOptions, NoKernelCache};
use braid_pool::PoolError;
use braid_pool::device::{self, MountTable, TableEntry};

use crate::control::{self, NodeEnded, Order, View, views::show_growth};
use crate::pools::{properties, sources};
use crate::process::{
    mounts::{self, Mount},
    others, signals,
};
use crate::terminal::{
    answer::{self, say},
    lost_output,
};

/// The last line of every `--dry-run`.
pub const NOTHING_CHANGED: &str = "nothing was changed";
/// The same of one that had to join the pool.
const ONLY_JOINED: &str = "nothing was changed, but that this command had joined the pool: it had a node slot and is \
                           in the history, and a dead node was recovered if there was one";
/// How often a long order is looked after.
const LOOK: Duration = Duration::from_millis(200);

/// A node that takes orders.
pub enum Session {
    /// Of another process.
    Mounted {
        /// Its mount.
        mount: Box<Mount>,
        /// The last order that changes something, which is followed then.
        given: Mutex<Option<Box<Order>>>,
    },
    /// Of this one.
    Own {
        /// The node.
        fs: Fs,
        /// Other programs are kept from the members meanwhile.
        _holds: Holds,
    },
}

/// What becomes of missing members if this process joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The pool is not joined.
    Refused,
    /// As before; the user may say otherwise.
    MayBeSpared,
    /// They are lost, says the user.
    Spared,
}

impl Missing {
    /// By `--degraded`.
    pub const fn by(degraded: bool) -> Self {
        if degraded { Self::Spared } else { Self::MayBeSpared }
    }
}

/// A long task of a pool's node, which a command starts or ends.
#[derive(Debug, clap::Args)]
pub struct TaskArgs {
    /// The pool, its directory, or its devices, separated by colons
    pool: String,
    /// Do not wait for its end (if the pool is mounted): `braid status` shows how far it is, and `braid history` how it
    /// ended
    #[arg(long)]
    background: bool,
    /// End the one that is under way
    #[arg(long, visible_alias = "cancel", conflicts_with = "background")]
    stop: bool,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
}

impl TaskArgs {
    /// Gives the order that runs the task or ends it, and prints what came of it.
    ///
    /// # Errors
    /// As [`Session::with`] and [`Session::order`].
    pub fn run(&self, order: impl Fn(bool) -> Order) -> Result<ExitCode> {
        let (run, stop) = (order(true), order(false));
        if self.dry_run {
            let order = if self.stop { stop } else { run };
            return Session::with(&self.pool, Missing::Refused, |session| session.plan(order));
        }
        let view = Session::with(&self.pool, Missing::Refused, |session| {
            if self.stop {
                session.order(&stop)
            } else if self.background && session.stays() {
                session.begin(run, false)
            } else {
                session.long_order(&run, &stop, || ())
            }
        })?;
        answer::say_lines(view.said.as_deref().unwrap_or_default());
        Ok(ExitCode::SUCCESS)
    }
}

/// A node that ends while an order is followed may have done it or not, also if only a look at it was not answered.
fn told_of(error: anyhow::Error, given: Option<&Order>) -> anyhow::Error {
    match (error.downcast::<NodeEnded>(), given) {
        (Ok(ended), Some(order)) => ended.while_following(order).into(),
        (Ok(ended), None) => ended.into(),
        (Err(error), _) => error,
    }
}

impl Session {
    /// The node of a mount.
    pub fn of(mount: Mount) -> Self {
        Self::Mounted { mount: Box::new(mount), given: Mutex::new(None) }
    }

    /// The node for what a user names: a pool, the directory where it is mounted, its devices
    /// (separated by colons), or one of them if it is mounted.
    ///
    /// # Errors
    /// Nothing of that name, or it cannot be used.
    fn find(name: &str, missing: Missing) -> Result<Self> {
        if let Some(mount) = control::look(name)? {
            return Ok(Self::of(mount));
        }
        let open = match missing {
            Missing::Spared => sources::open_degraded,
            Missing::Refused | Missing::MayBeSpared => sources::open,
        };
        // A node that ends in the middle has to be recovered.
        signals::catch()?;
        let pool = open(&[name.to_owned()], false).map_err(|e| {
            let lacks = matches!(e.downcast_ref(), Some(PoolError::Missing { .. }));
            let hint = if lacks && missing == Missing::MayBeSpared {
                " (`--degraded` does without members that are missing)"
            } else {
                ""
            };
            let why = match others::of_pool(name) {
                Some(other) => format!("pool {name}: {other}; its devices cannot be used directly"),
                None => format!(
                    "{name} is not mounted on this host, and its devices cannot be used directly{hint}"
                ),
            };
            e.context(why)
        })?;
        control::history::keep(&pool);
        let timing = properties::timing(&pool.label().properties).unwrap_or_default();
        let only_plans = answer::is_dry_run();
        let options = MountOptions { timing, only_plans, ..MountOptions::default() };
        let fs = Fs::mount(pool, options, Arc::new(NoKernelCache))?;
        let holds = Holds::of(&fs);
        Ok(Self::Own { fs, _holds: holds })
    }

    /// Lets `work` give orders to the node for what a user names; then a node of this process leaves, also
    /// when it is asked to end by a signal: work that may take long looks at [`Session::interrupted`]. Members that
    /// are missing and spared count as failed from then on.
    ///
    /// # Errors
    /// Nothing of that name, or it cannot be used; those of `work`; a device failed.
    pub fn with<T>(
        name: &str,
        missing: Missing,
        work: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let session = Self::find(name, missing)?;
        let work = || -> Result<T> {
            let done = work(&session);
            if answer::is_dry_run() && !session.stays() {
                say!("{ONLY_JOINED}");
            }
            let done = done?;
            if answer::is_json() {
                answer::add("pool", session.view().ok());
            }
            Ok(done)
        };
        let (done, ended) = lost_output::and_then(work, || session.end());
        // The first error is reported.
        let done = done?;
        ended.map(|()| done)
    }

    /// Gives an order.
    ///
    /// # Errors
    /// It is refused.
    pub fn order(&self, order: &Order) -> Result<View> {
        match self {
            Self::Mounted { mount, given } => {
                let mut given = given.lock().unwrap_or_else(PoisonError::into_inner);
                if order.is_change() {
                    *given = Some(Box::new(order.clone()));
                }
                let last = given.clone();
                drop(given);
                control::order(mount, order).map_err(|e| told_of(e, last.as_deref()))
            }
            Self::Own { fs, .. } => {
                let user = rustix::process::getuid().as_raw();
                control::obey_of(fs, order.clone(), user)
            }
        }
    }

    /// Says what an order would do, or is refused for; nothing is changed.
    ///
    /// # Errors
    /// It would be refused.
    pub fn plan(&self, order: Order) -> Result<ExitCode> {
        self.plan_all(vec![order])
    }

    /// As [`Session::plan`], of several orders together.
    ///
    /// # Errors
    /// As there.
    pub fn plan_all(&self, orders: Vec<Order>) -> Result<ExitCode> {
        orders.into_iter().try_for_each(|order| self.say_planned(order))?;
        if self.stays() {
            say!("{NOTHING_CHANGED}");
        }
        Ok(ExitCode::SUCCESS)
    }

    fn say_planned(&self, order: Order) -> Result<()> {
        let view = self.order(&Order::Plan { of: Box::new(order) })?;
        answer::say_lines(view.said.as_deref().unwrap_or_default());
        Ok(())
    }

    /// Gives an order whose work takes long; `stop` is given when this process is asked to end, and
    /// `meanwhile` is called now and then.
    ///
    /// # Errors
    /// As [`Session::order`].
    pub fn long_order(
        &self,
        order: &Order,
        stop: &Order,
        mut meanwhile: impl FnMut(),
    ) -> Result<View> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new();
            let work = thread
                .spawn_scoped(scope, || self.order(order))
                .context("no thread that waits for the node; nothing was begun")?;
            while !work.is_finished() {
                if self.interrupted() {
                    drop(self.order(stop));
                }
                meanwhile();
                std::thread::sleep(LOOK);
            }
            work.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the node ended unexpectedly")))
        })
    }

    /// Gives an order whose work takes long, and does not wait for its end. With `remove`, what it empties leaves the
    /// pool then.
    ///
    /// # Errors
    /// It is refused, or fails at once.
    pub fn begin(&self, order: Order, remove: bool) -> Result<View> {
        let view = self.order(&Order::Background { of: Box::new(order), remove })?;
        if view.said.is_none() {
            control::show(&view);
        }
        Ok(view)
    }

    /// Adds space to the pool, or with `dry_run` prints `possible`; `advice` follows what it has now.
    ///
    /// # Errors
    /// As [`Session::order`].
    pub fn grow(
        &self,
        order: &Order,
        dry_run: bool,
        (possible, advice): (&str, &str),
    ) -> Result<ExitCode> {
        let before = self.view()?;
        let view = self.order(order)?;
        answer::say_lines(view.said.as_deref().unwrap_or_default());
        if dry_run {
            say!("{possible}; nothing was written");
        } else {
            show_growth(&before, &view, advice);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// A device that is to become a member, as the node must name it ([`sources::absolute`]).
    ///
    /// # Errors
    /// It is a file of this very pool, or of another one, or a device that is made of one by loop devices and
    /// device mapper: the node would wait for itself.
    pub fn new_device(&self, device: &Path) -> Result<PathBuf> {
        if let Self::Mounted { mount, .. } = self {
            let under = device::file_systems_under(device);
            // Other nodes of this host have it mounted, too.
            let is_own =
                |m: &&Mount| m.pool == mount.pool && m.device.is_some_and(|d| under.contains(&d));
            let device = device.display();
            if let Some(own) = mounts::mounts().iter().find(is_own) {
                let dir = own.mount_point.display();
                bail!("{device} is kept in a file of {dir}: a pool cannot be its own member");
            }
            let table = MountTable::own().unwrap_or_default();
            let is_other = |m: &&TableEntry| m.kind == "fuse.braid" && under.contains(&m.device);
            if let Some(other) = table.iter().find(is_other) {
                let dir = other.dir.display();
                bail!(
                    "{device} is kept in a file of {dir}, a Braid file system: that one may have this pool among its \
                     own devices, and both would wait for each other"
                );
            }
        }
        sources::absolute(device)
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
        matches!(self, Self::Mounted { .. })
    }

    /// Whether this process was asked to end, and should leave the pool before.
    pub fn interrupted(&self) -> bool {
        !self.stays() && signals::asked_to_end()
    }

    /// Leaves the pool, if this process joined it.
    ///
    /// # Errors
    /// A device failed.
    fn end(&self) -> Result<()> {
        if let Self::Own { fs, .. } = self {
            fs.unmount()?;
        }
        Ok(())
    }
}
