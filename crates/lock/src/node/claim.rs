//! Slot records: reading them, changing them, and claiming a slot for a new life.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use braid_device::Moment;
use braid_format::node::{Heartbeat, LockPlace, RawSlot, SlotDamage, SlotRecord, SlotState};
use braid_format::{FormatError, Incarnation, NodeId};
use braid_pool::Reservable;
use parking_lot::Mutex;

use super::fence::{FenceMethod, key_of};
use super::host::shares_lock;
use super::lookout::Lookout;
use super::watch::Watch;
use super::{HostIdentity, JoinOptions, NodeStore, NotRecovered, Recover, Timing};
use crate::Me;
use crate::error::LockError;
use crate::hints::Hints;
use crate::store::{CawOutcome, Sector, torn_pauses};

/// A slot that cannot be decoded: it is of a life that nobody knows.
#[derive(Debug, Clone)]
pub(super) struct Unreadable {
    pub slot: NodeId,
    pub why: FormatError,
    bytes: Sector,
}

impl Unreadable {
    fn say(&self) {
        tracing::error!(
            "the slot of node {} cannot be read ({}): nobody joins by it, and what a node of it held locked stays so; run `braid check --repair` after unmounting all nodes",
            self.slot,
            self.why
        );
    }
}

/// Logs the slots that cannot be read, but for those that were `known` before.
pub(super) fn say_new(unreadable: &[Unreadable], known: &[Unreadable]) {
    let new = |u: &&Unreadable| known.iter().all(|k| k.slot != u.slot);
    unreadable.iter().filter(new).for_each(Unreadable::say);
}

/// All slots at one look.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pub records: Vec<SlotRecord>,
    pub unreadable: Vec<Unreadable>,
}

/// Reads all slots. Damage of one is no error of the others; `known` has been found before, and is not
/// waited for to be a write under way.
pub(super) fn read_slots(store: &dyn NodeStore, known: &[Unreadable]) -> Result<Slots, LockError> {
    let bytes = store.read_slots().map_err(LockError::NodeStore)?;
    let mut all = Slots::default();
    for (slot, sector) in (0..store.slots()).map(NodeId).zip(bytes.chunks_exact(store.sector_len()))
    {
        if let Some(known) = known.iter().find(|u| u.slot == slot && u.bytes == sector) {
            all.unreadable.push(known.clone());
            continue;
        }
        match decode_slot(store, slot, sector) {
            Ok(record) => all.records.push(record),
            Err(LockError::Slot { slot, source: why }) => {
                all.unreadable.push(Unreadable { slot, why, bytes: sector.to_vec() });
            }
            Err(e) => return Err(e),
        }
    }
    Ok(all)
}

/// A record read in one piece with others may be torn; alone it is not for long.
pub(super) fn decode_slot(
    store: &dyn NodeStore,
    slot: NodeId,
    bytes: &[u8],
) -> Result<SlotRecord, LockError> {
    let mut decoded = SlotRecord::decode(bytes, slot);
    for pause in torn_pauses() {
        if !matches!(decoded, Err(FormatError::ChecksumMismatch { .. })) {
            break;
        }
        std::thread::sleep(pause);
        let again = store.read_slot(slot).map_err(LockError::NodeStore)?;
        decoded = SlotRecord::decode(&again, slot);
    }
    decoded.map_err(|source| LockError::Slot { slot, source })
}

pub(super) fn write_slot(
    store: &dyn NodeStore,
    expected: &SlotRecord,
    new: &SlotRecord,
) -> Result<bool, LockError> {
    let slot = new.life.slot;
    let mut bytes = vec![0; 2 * store.sector_len()];
    let (old_bytes, new_bytes) = bytes.split_at_mut(store.sector_len());
    expected.encode(old_bytes);
    new.encode(new_bytes);
    match store.compare_and_write_slot(slot, old_bytes, new_bytes) {
        Ok(CawOutcome::Written) => Ok(true),
        // Our own earlier attempt, whose answer was lost, may be what stands.
        Ok(CawOutcome::Mismatch(stands)) => Ok(stands == new_bytes),
        Err(e) => {
            let stands = store.read_slot(slot).map_err(LockError::NodeStore)?;
            // What was there is still there: nobody was faster, the device failed.
            if stands == old_bytes { Err(LockError::NodeStore(e)) } else { Ok(stands == new_bytes) }
        }
    }
}

pub(super) fn describe(damage: SlotDamage) -> String {
    format!("its {} is damaged (block {})", damage.part.name(), damage.block)
}

/// Once for each damage, by the node that met it.
pub(super) fn say_damage(record: &SlotRecord) {
    let Some(damage) = record.damage else { return };
    let locks = if record.is_replayed() { "" } else { "; what it held locked gives EIO" };
    tracing::error!(
        node = ?record.life,
        "a dead node cannot be recovered: {}{locks}; run `braid check --repair` after unmounting all nodes",
        describe(damage),
    );
}

/// Beats for which a node is looked at that could not live beside this one.
const STRANGER_BEATS: u32 = 8;

/// Beats after which a node whose heartbeats stand still in all copies counts as one that does not beat.
const SILENT_BEATS: u32 = 4;

/// Looks, a beat apart, after which a node's lock that only some members bear tells of a copy.
const PARTLY_LOOKS: u32 = 4;

/// As many as a slot has room for.
pub(super) fn first_places(mut places: Vec<LockPlace>) -> Vec<LockPlace> {
    places.truncate(RawSlot::PLACES);
    places
}

/// Whether the slot's node compares and writes under locks that are not seen at `places`, if it does so
/// under locks at all.
pub(super) fn is_stranger(record: &SlotRecord, places: &[LockPlace], by_lock: bool) -> bool {
    by_lock && record.state != SlotState::Free && !shares_lock(record, places)
}

/// Whether a node that has a slot of its own recovers the slot's dead node, and will free the slot.
fn is_recovered_by_other(record: &SlotRecord) -> bool {
    record.recoverer.is_some_and(|by| by.slot != record.life.slot)
}

/// Whether a slot that could not be had just now, when it stood so as in `before`, will be free soon, or
/// is by now.
fn comes_free(now: &SlotRecord, before: &[SlotRecord]) -> bool {
    let was_free = |r: &SlotRecord| r.life.slot == now.life.slot && r.state == SlotState::Free;
    match now.state {
        SlotState::Free => !before.iter().any(was_free),
        _ => is_recovered_by_other(now) && now.damage.is_none(),
    }
}

/// What is needed to claim a slot.
pub(super) struct Claim<'a> {
    pub store: &'a dyn NodeStore,
    pub options: &'a JoinOptions,
    pub identity: &'a HostIdentity,
    /// When the write that made the slot this node's was issued: until then nobody can have found it
    /// silent.
    pub begun: Mutex<Moment>,
}

/// Takes away the keys of lives that are over, and those of others who have no business here.
pub(super) fn sweep(store: &dyn NodeStore, own: u64) {
    if own == 0 {
        return;
    }
    // Whose key a slot names that cannot be read nobody knows.
    let named = |slots: &Slots, key| {
        !slots.unreadable.is_empty() || slots.records.iter().any(|r| is_named(store, r, key))
    };
    let swept = read_slots(store, &[]).and_then(|slots| {
        // The slots may have changed hands since they were read; in doubt a key stays.
        let keep = |key| {
            named(&slots, key) || read_slots(store, &[]).map_or(true, |slots| named(&slots, key))
        };
        store.pool().sweep(&keep).map_err(LockError::NodeStore)
    });
    if let Err(e) = swept {
        tracing::warn!("old registrations stay: {e}");
    }
}

/// Whether `key` is of who acts by a slot, or of who may be joining there: that one registers before
/// the slot says so.
fn is_named(store: &dyn NodeStore, record: &SlotRecord, key: u64) -> bool {
    let (slot, last) = (record.life.slot, record.last_named());
    let next = |n| Me { slot, incarnation: Incarnation(last.0.wrapping_add(n)) };
    let joins = (1..=2).any(|n| key_of(store.fs_uuid(), next(n)) == key);
    joins || (record.state != SlotState::Free && record.fence_key == key)
}

pub(super) type Claimed = (SlotRecord, Hints, Box<dyn Send + Sync>);

impl Claim<'_> {
    /// Claims the slot that was asked for, or any. If all are taken, but another node is recovering the
    /// dead node of one, waits until that slot is free, for [`Timing::fenced`] at most.
    ///
    /// # Errors
    /// `SlotTaken` or `NoFreeSlot` if no slot comes free; else what the store or a recovery says.
    pub fn any(&self, recover: &dyn Recover) -> Result<Claimed, LockError> {
        let (begun, mut said, mut known) = (Instant::now(), false, Vec::new());
        loop {
            let before = self.choice(&mut known)?;
            if let Some(claimed) = self.one_of(&before, recover)? {
                return Ok(claimed);
            }
            let now = self.choice(&mut known)?;
            let coming = now.iter().find(|r| comes_free(r, &before));
            let Some(coming) = coming.filter(|_| begun.elapsed() < self.options.timing.fenced())
            else {
                return Err(match (self.options.slot, before.into_iter().next()) {
                    (Some(slot), Some(r)) => {
                        LockError::SlotTaken { slot, holder: r.life, host: r.host.as_str().into() }
                    }
                    _ => LockError::NoFreeSlot { slots: self.store.slots() },
                });
            };
            if let Some(by) = coming.recoverer.filter(|_| !said) {
                said = true;
                self.say_waits(coming.life.slot, by);
            }
            std::thread::sleep(self.options.timing.beat());
        }
    }

    /// For who mounts: `braid mount` shows warnings.
    fn say_waits(&self, slot: NodeId, by: Me) {
        let taken = match self.options.slot {
            Some(_) => format!("node slot {slot} is taken"),
            None => format!("all {} node slots are taken", self.store.slots()),
        };
        tracing::warn!(
            "{taken}; waiting for slot {slot}: it is free when node {} has recovered the dead node that had it; the mount gives up after {:?}",
            by.slot,
            self.options.timing.fenced()
        );
    }

    /// The slots that this node may take, as they are now. `known`: those that could not be read at the
    /// last look; each is logged once.
    fn choice(&self, known: &mut Vec<Unreadable>) -> Result<Vec<SlotRecord>, LockError> {
        let slots = self.store.slots();
        match self.options.slot {
            Some(slot) if slot.0 >= slots => Err(LockError::NoSuchSlot { slot, slots }),
            Some(slot) => {
                let bytes = self.store.read_slot(slot).map_err(LockError::NodeStore)?;
                Ok(vec![decode_slot(self.store, slot, &bytes)?])
            }
            None => {
                let Slots { records, unreadable } = read_slots(self.store, known)?;
                say_new(&unreadable, known);
                *known = unreadable;
                Ok(records)
            }
        }
    }

    /// Takes one of these slots: a free one, or that of a dead node.
    fn one_of(
        &self,
        records: &[SlotRecord],
        recover: &dyn Recover,
    ) -> Result<Option<Claimed>, LockError> {
        self.refuse_strangers()?;
        self.refuse_copies()?;
        for record in records.iter().filter(|r| r.state == SlotState::Free) {
            if let Some(claimed) = self.free(record, recover)? {
                return Ok(Some(claimed));
            }
        }
        self.any_dead(records, recover)
    }

    /// Takes the slot of a dead node: first of those whose lock this kernel shows, then of those that
    /// silence must speak for.
    fn any_dead(
        &self,
        records: &[SlotRecord],
        recover: &dyn Recover,
    ) -> Result<Option<Claimed>, LockError> {
        let places = self.store.lock_places();
        let taken = || records.iter().filter(|r| r.state != SlotState::Free);
        let mut unlocked = Vec::new();
        for record in taken().filter(|r| self.identity.sees_lock_of(r, &places)) {
            let slot = record.life.slot;
            if !self.store.life_locked(slot).map_err(LockError::NodeStore)? {
                unlocked.push(record);
            }
        }
        let quiet = self.quiet(&unlocked, |t| t.beat() * (Watch::LOOKS + 1))?;
        let mut damaged = None;
        let mut try_all = |records: &[&SlotRecord], quiet: &[NodeId]| {
            for record in records {
                match self.dead(record, quiet, recover) {
                    Ok(Some(claimed)) => return Ok(Some(claimed)),
                    Ok(None) => {}
                    // Another slot will do.
                    Err(e @ LockError::Damaged { .. }) => damaged = damaged.take().or(Some(e)),
                    Err(e) => return Err(e),
                }
            }
            Ok(None)
        };
        let (first, others): (Vec<_>, Vec<_>) =
            taken().partition(|r| r.vouched || quiet.contains(&r.life.slot));
        if let Some(claimed) = try_all(&first, &quiet)? {
            return Ok(Some(claimed));
        }
        let earlier: Vec<_> =
            others.iter().copied().filter(|r| self.identity.is_earlier_boot_of(r)).collect();
        let quiet = self.quiet(&earlier, Timing::fenced)?;
        let claimed = try_all(&others, &quiet)?;
        match damaged {
            Some(e) if claimed.is_none() => Err(e),
            _ => Ok(claimed),
        }
    }

    /// Where records are compared and written under kernel locks, a living node that locks another place
    /// (another host, or another device node of the same disk) would change them at the same time.
    fn refuse_strangers(&self) -> Result<(), LockError> {
        if !self.store.compares_by_lock() {
            return Ok(());
        }
        let (records, places) = (read_slots(self.store, &[])?.records, self.store.lock_places());
        let strangers: Vec<_> = records.iter().filter(|r| is_stranger(r, &places, true)).collect();
        let quiet = self.quiet(&strangers, |t| t.beat() * STRANGER_BEATS)?;
        if strangers.len() == quiet.len() {
            return Ok(());
        }
        // A node whose members have just changed has said meanwhile where its locks are now.
        let records = read_slots(self.store, &[])?.records;
        let of_same = |r: &SlotRecord| strangers.iter().any(|s| s.life == r.life);
        let beats = |r: &&SlotRecord| of_same(r) && !quiet.contains(&r.life.slot);
        match records.iter().filter(beats).find(|r| is_stranger(r, &places, true)) {
            None => Ok(()),
            Some(r) => Err(LockError::Stranger {
                node: r.life,
                host: r.host.as_str().into(),
                here: self.identity.is_boot_of(r),
            }),
        }
    }

    /// Refuses a device that is a copy of a member (`cp`, a snapshot, a clone) while a node lives on the
    /// original: what the two nodes write would stand on different devices. A living node's liveness lock
    /// is on each member that it uses, and its heartbeats are in each copy of them.
    fn refuse_copies(&self) -> Result<(), LockError> {
        let places = self.store.lock_places();
        let records = read_slots(self.store, &[])?.records;
        let mut others = Vec::new();
        for record in records.into_iter().filter(|r| r.state == SlotState::Active) {
            let slot = record.life.slot;
            let here = self.identity.sees_lock_of(&record, &places);
            if !here || self.store.life_locked(slot).map_err(LockError::NodeStore)? {
                others.push(record);
            }
        }
        let copied = match self.partly_locked(&others)? {
            None => self.silent_copy(&others)?,
            found => found,
        };
        copied.map_or(Ok(()), |r| {
            Err(LockError::CopiedMember { node: r.life, host: r.host.as_str().into() })
        })
    }

    /// A node whose lock is on some members and not on others, in several looks: one look alone may meet
    /// a member that joins or leaves.
    fn partly_locked<'a>(
        &self,
        others: &'a [SlotRecord],
    ) -> Result<Option<&'a SlotRecord>, LockError> {
        for record in others {
            let mut looks = 0;
            while self.store.life_partly_locked(record.life.slot).map_err(LockError::NodeStore)? {
                looks += 1;
                if looks == PARTLY_LOOKS {
                    return Ok(Some(record));
                }
                std::thread::sleep(self.options.timing.beat());
            }
        }
        Ok(None)
    }

    /// A node whose heartbeats go on in one copy of them and in another do not.
    fn silent_copy<'a>(
        &self,
        others: &'a [SlotRecord],
    ) -> Result<Option<&'a SlotRecord>, LockError> {
        if others.is_empty() {
            return Ok(None);
        }
        let read = || self.store.heartbeat_copies().map_err(LockError::NodeStore);
        let before = read()?;
        if before.len() < 2 {
            return Ok(None);
        }
        let sector = |copy: &[u8], slot: NodeId| {
            copy.chunks(self.store.sector_len()).nth(usize::from(slot.0)).map(<[u8]>::to_vec)
        };
        let mut beating = None;
        for beat in 1..=STRANGER_BEATS {
            std::thread::sleep(self.options.timing.beat());
            let now = read()?;
            let copies_with_beat = |record: &&SlotRecord| {
                let slot = record.life.slot;
                let pairs = before.iter().zip(&now);
                pairs.filter(|(old, new)| sector(old, slot) != sector(new, slot)).count()
            };
            // One node that beats in all copies shows that they are of one pool.
            let Some(most) = others.iter().max_by_key(copies_with_beat) else { return Ok(None) };
            match copies_with_beat(&most) {
                0 if beat >= SILENT_BEATS => return Ok(None),
                0 => {}
                copies if copies >= before.len().min(now.len()) => return Ok(None),
                _ => beating = Some(most),
            }
        }
        Ok(beating)
    }

    /// Takes a free slot, unless another is faster.
    fn free(
        &self,
        record: &SlotRecord,
        recover: &dyn Recover,
    ) -> Result<Option<Claimed>, LockError> {
        let slot = record.life.slot;
        let Some(life) = self.store.lock_life(slot).map_err(LockError::NodeStore)? else {
            return Ok(None);
        };
        recover.confirm().map_err(|e| LockError::Replaced { source: e.into() })?;
        let (mut mine, hints) = self.active(record)?;
        self.register(&mut mine)?;
        *self.begun.lock() = Moment::now();
        let written = write_slot(self.store, record, &mine);
        if !matches!(written, Ok(true)) {
            self.store.pool().unregister();
        }
        Ok(written?.then_some((mine, hints, life)))
    }

    /// Registers the key of a life with every member, before any slot names it.
    fn register(&self, mine: &mut SlotRecord) -> Result<(), LockError> {
        match self.store.pool().reservable() {
            Reservable::None => return Ok(()),
            Reservable::Some(others) => {
                let others = others.join(", ");
                tracing::warn!(
                    "this node cannot be fenced by reservation, and fences nobody so: {others} has no reservations"
                );
                return Ok(());
            }
            Reservable::All => {}
        }
        let key = key_of(self.store.fs_uuid(), mine.life);
        mine.fence_key = self.store.pool().register(key).map_err(LockError::NodeStore)?;
        Ok(())
    }

    /// Takes over the slot of a node of this host that is provably dead, after recovering it.
    fn dead(
        &self,
        record: &SlotRecord,
        quiet: &[NodeId],
        recover: &dyn Recover,
    ) -> Result<Option<Claimed>, LockError> {
        let proven = record.vouched || quiet.contains(&record.life.slot);
        // While another node recovers it, it will be free soon, unless that node is dead too.
        let over = proven && !is_recovered_by_other(record);
        if !over {
            // Found by a node that may live yet, or has left since.
            return record.damage.map_or(Ok(None), |d| {
                let source: Box<dyn std::error::Error + Send + Sync> = describe(d).into();
                Err(LockError::Damaged { node: record.life, source: source.into() })
            });
        }
        let slot = record.life.slot;
        let Some(life) = self.store.lock_life(slot).map_err(LockError::NodeStore)? else {
            return Ok(None);
        };
        recover.confirm().map_err(|e| LockError::Replaced { source: e.into() })?;
        let (mut mine, hints) = self.active(record)?;
        self.register(&mut mine)?;
        let taken = if self.is_fenced(record, mine.fence_key) {
            self.take_over(record, &mut mine, recover)
        } else {
            Ok(false)
        };
        if !matches!(taken, Ok(true)) {
            self.store.pool().unregister();
        }
        Ok(taken?.then_some((mine, hints, life)))
    }

    /// Whether a node that is silent can do nothing any more: its lock is gone, a person has said that its
    /// host is off, or it is shut out from the members, if that can be. `key`: this node's own.
    fn is_fenced(&self, record: &SlotRecord, key: u64) -> bool {
        let fencer = self.options.fencer(self.store, key, &self.identity.host);
        let seen = self.identity.sees_lock_of(record, &self.store.lock_places());
        if seen || record.vouched || fencer.methods()(record) != FenceMethod::Reservation {
            return true;
        }
        match fencer.fence(record, &|| true) {
            Ok(method) => {
                self.options.proofs.add(record, method);
                true
            }
            Err(e) => {
                tracing::error!(node = ?record.life, "cannot take its slot, it is not fenced: {e}");
                false
            }
        }
    }

    /// Recovers a dead node and takes its slot; false if another was faster.
    fn take_over(
        &self,
        record: &SlotRecord,
        mine: &mut SlotRecord,
        recover: &dyn Recover,
    ) -> Result<bool, LockError> {
        let mut taking = mine.clone();
        taking.state = SlotState::Recovering;
        taking.recoverer = Some(mine.life);
        taking.life = record.life;
        taking.named = Some(mine.life.incarnation).filter(|n| *n > record.life.incarnation);
        (taking.replayed, taking.damage) = (record.replayed, record.damage);
        if !write_slot(self.store, record, &taking)? {
            return Ok(false);
        }
        let host = &self.identity.host;
        self.options.fencer(self.store, mine.fence_key, host).forget(record);
        tracing::info!(dead = ?record.life, "recovering a dead node in order to take its slot");
        self.store.pool().follow().map_err(LockError::NodeStore)?;
        let (dead, by) = (record.life, mine.life);
        let all = || recover.recover(dead, by).and_then(|()| recover.finish(dead, by));
        match self.while_beating(mine, recover, all) {
            Ok(()) => {}
            Err(NotRecovered::Damaged { damage, source }) => {
                mine.nonce = mine.nonce.wrapping_add(1);
                let noted =
                    SlotRecord { damage: Some(damage), nonce: mine.nonce, ..taking.clone() };
                write_slot(self.store, &taking, &noted)?;
                say_damage(&noted);
                return Err(LockError::Damaged { node: record.life, source: source.into() });
            }
            Err(NotRecovered::Failed(e)) => {
                return Err(LockError::Recovery { node: record.life, source: e.into() });
            }
        }
        mine.nonce = mine.nonce.wrapping_add(1);
        *self.begun.lock() = Moment::now();
        write_slot(self.store, &taking, mine)
    }

    /// Runs `work` of a life that is not in its slot yet: it says so in heartbeats all the same, and
    /// which epoch of the pool it uses, or nobody could change the pool meanwhile. Who is silent
    /// meanwhile is fenced: the work may wait for that.
    fn while_beating<T>(
        &self,
        mine: &SlotRecord,
        recover: &dyn Recover,
        work: impl FnOnce() -> T,
    ) -> T {
        let done = AtomicBool::new(false);
        let said = Mutex::new(Moment::now());
        let Self { store, options, identity, .. } = *self;
        let lookout = Lookout { store, options, identity, mine, said: &said };
        std::thread::scope(|s| {
            let looking = s.spawn(|| lookout.run(&done));
            let beating = s.spawn(|| {
                let mut sector = vec![0; self.store.sector_len()];
                for sequence in 1.. {
                    if done.load(Ordering::Acquire) {
                        return;
                    }
                    if let Err(e) = self.store.pool().follow() {
                        tracing::error!("the pool was changed: {e}");
                        return;
                    }
                    let tag = self.store.pool().epoch();
                    let beat = Heartbeat {
                        life: mine.life,
                        pool_epoch: tag.epoch,
                        pool_change: tag.change,
                        sequence,
                        free_delta: 0,
                        inode_delta: 0,
                        meta_delta: 0,
                        stuck: None,
                        wishes: recover.wishes(),
                    };
                    beat.encode(&mut sector);
                    let issued = Moment::now();
                    match self.store.write_heartbeat(mine.life.slot, &sector) {
                        Ok(()) => *said.lock() = issued,
                        Err(e) => tracing::warn!("heartbeat: {e}"),
                    }
                    std::thread::park_timeout(self.options.timing.beat());
                }
            });
            let result = work();
            done.store(true, Ordering::Release);
            beating.thread().unpark();
            looking.thread().unpark();
            result
        })
    }

    /// Those slots whose heartbeats stand still for a time that depends on their nodes' timers. Ends
    /// early when none is left.
    fn quiet(
        &self,
        records: &[&SlotRecord],
        time: impl Fn(Timing) -> Duration,
    ) -> Result<Vec<NodeId>, LockError> {
        let timings = || records.iter().map(|r| Timing::of_slot(r.io_timeout));
        let mut slots: Vec<NodeId> = records.iter().map(|r| r.life.slot).collect();
        let (Some(time), Some(beat)) =
            (timings().map(time).max(), timings().map(Timing::beat).min())
        else {
            return Ok(slots);
        };
        let read = || self.store.read_heartbeats().map_err(LockError::NodeStore);
        let before = read()?;
        let until = Instant::now() + time;
        while !slots.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(beat * 4));
            let after = read()?;
            let len = self.store.sector_len();
            slots.retain(|slot| {
                let range = usize::from(slot.0) * len..(usize::from(slot.0) + 1) * len;
                before.get(range.clone()) == after.get(range)
            });
        }
        Ok(slots)
    }

    /// The record of the next life of a slot, and where it hears hints.
    fn active(&self, record: &SlotRecord) -> Result<(SlotRecord, Hints), LockError> {
        let slot = record.life.slot;
        // Nodes that died while they took the slot over had named their own lives already.
        let last = record.last_named();
        let life = Me { slot, incarnation: Incarnation(last.0.wrapping_add(1)) };
        let uuid = uuid::Uuid::new_v4();
        let (fs, boot) = (self.store.fs_uuid(), self.identity.boot_id);
        let hints = Hints::bind(fs, life, uuid.into_bytes(), boot, self.options.hints)
            .map_err(|(what, e)| LockError::Os { what, source: Arc::new(e) })?;
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mine = SlotRecord {
            life,
            state: SlotState::Active,
            recoverer: None,
            pid: std::process::id(),
            nonce: uuid::Uuid::new_v4().as_u64_pair().0,
            since: since.map_or(0, |d| d.as_secs()),
            node_uuid: uuid.into_bytes(),
            boot_id: self.identity.boot_id,
            machine_id: self.identity.machine_id,
            host: self.identity.host.clone(),
            address: hints.address(),
            mount_point: self.options.mount_point.display().to_string(),
            replayed: false,
            damage: None,
            vouched: false,
            io_timeout: self.options.timing.milliseconds(),
            fence_key: 0,
            named: None,
            lock_places: first_places(self.store.held_places(slot)),
        };
        Ok((mine, hints))
    }
}
