//! New identities: of pools, members, changes of epoch, and nonces.
//!
//! They are random. In a simulation they come from a [`Source`], so that a run from a seed is the same
//! each time.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use uuid::{Builder, Uuid};

/// What gives bits in place of chance.
pub type Source = Box<dyn Fn() -> u128>;

thread_local! {
    static SOURCE: RefCell<Option<Source>> = const { RefCell::new(None) };
    static SMALL_REGIONS: Cell<bool> = const { Cell::new(false) };
}

/// The bits of an identity, a change or a nonce. If two changes have one epoch, these bits decide
/// which of them counts.
pub(crate) fn fresh() -> Uuid {
    let drawn = SOURCE.try_with(|s| s.borrow().as_ref().map(|source| source())).ok().flatten();
    let of = |bits: u128| Builder::from_random_bytes(bits.to_le_bytes()).into_uuid();
    drawn.map_or_else(Uuid::new_v4, of)
}

/// Whether this thread's identities come from a [`Source`]: then it is part of a simulation.
pub(crate) fn is_simulated() -> bool {
    SOURCE.try_with(|s| s.borrow().is_some()).unwrap_or(false)
}

/// Whether regions are small here: simulated pools are.
pub(crate) fn has_small_regions() -> bool {
    SMALL_REGIONS.try_with(Cell::get).unwrap_or(false)
}

/// While it is held, this thread's identities come from a [`Source`].
#[derive(Debug)]
#[must_use]
pub struct SourceScope(PhantomData<*const ()>);

impl SourceScope {
    /// From `source`.
    pub fn from(source: Source) -> Self {
        SOURCE.with(|s| *s.borrow_mut() = Some(source));
        Self(PhantomData)
    }

    /// What is noted in logs goes by small regions, too, so that they are many in a small pool, and nothing is
    /// written without a note.
    pub fn with_small_regions(self, small: bool) -> Self {
        SMALL_REGIONS.with(|s| s.set(small));
        self
    }
}

impl Drop for SourceScope {
    fn drop(&mut self) {
        SOURCE.try_with(|s| s.borrow_mut().take()).ok();
        SMALL_REGIONS.try_with(|s| s.set(false)).ok();
    }
}
