//! Repairing what follows from the rest. Everything is rewritten in place: nobody has it mounted,
//! and a check that dies half-way is simply run again.

use std::collections::BTreeMap;
use std::time::SystemTime;

use braid_format::dinode::RawDinode;
use braid_format::lock_record::LockRecord;
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::node::{RawCounters, SlotRecord, SlotState};
use braid_format::rgrp::{BlockState, RawRgrp};
use braid_format::superblock::RawSuperblock;
use braid_format::{BlockNo, Incarnation, LockNo, NodeId};
use braid_lock::node::watch::freed;
use braid_lock::{CawOutcome, LockError};
use braid_pool::device::AlignedBuf;
use zerocopy::{FromBytes, IntoBytes};

use super::bodies::{change, items, put, write};
use super::checker::{BATCH, Checker};
use super::mendable::Mendable;
use super::name::Name;
use crate::alloc::bits;
use crate::dir::page::Packed;
use crate::error::Result;
use crate::groups::{PER_BYTE, blocks_per_bitmap, takes_slots};
use crate::journal::{Header, Ring};
use crate::make::random;

pub(super) fn repair(checker: &mut Checker, found: &mut Mendable) -> Result<()> {
    root(checker, found)?;
    super::cut_off::apply(checker, &found.cuts)?;
    entries(checker, found)?;
    counts(checker, found)?;
    fixed(checker, found)?;
    checker.windows_lost |= found.private.iter().any(|(_, kind)| *kind == MetaKind::Window);
    if found.space > 0 && !found.unsure && !found.root {
        groups(checker, checker.windows_lost)?;
        private(checker)?;
        counters(checker)?;
        checker.report.repaired += found.space;
    }
    free(checker, found)?;
    locks(checker, found)?;
    slot_copies(checker, found)?;
    checker.volume.pool.flush()?;
    superblocks(checker, found)?;
    checker.volume.pool.flush()?;
    Ok(())
}

/// Free blocks get a fresh body: there is nothing in them to lose.
fn free(checker: &mut Checker, found: &Mendable) -> Result<()> {
    for block in &found.free {
        let body = fresh(checker, *block, MetaKind::Free, LockNo::from(*block))?;
        write(checker, vec![(*block, body)])?;
        unlock(checker, *block)?;
        checker.report.repaired += 1;
    }
    Ok(())
}

/// A copy of a node's slot becomes what a sound one is.
fn slot_copies(checker: &mut Checker, found: &Mendable) -> Result<()> {
    let len = checker.volume.geo.lock_sector;
    for &(at, slot) in &found.slots {
        let good = |record: &[u8]| SlotRecord::decode(record, slot).is_ok();
        let healed = checker.volume.pool.heal(at, len, &good)?;
        let mut stands = AlignedBuf::zeroed(len.to_usize());
        checker.volume.pool.read(at, &mut stands)?;
        let lost = !good(&stands);
        if lost {
            free_slot(slot).encode(&mut stands);
            checker.volume.pool.write(at, &stands)?;
        }
        checker.report.repaired += u64::from(healed || lost);
    }
    Ok(())
}

/// For a slot whose record is lost: no node is alive, and all journals are replayed. Its next life
/// must have a name that no earlier one had; lives are counted from 1, so none has come as far as
/// the seconds.
fn free_slot(slot: NodeId) -> SlotRecord {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let mut record = SlotRecord::free(slot);
    let seconds = seconds.ok().and_then(|s| u32::try_from(s.as_secs()).ok());
    record.life.incarnation = Incarnation(seconds.unwrap_or(u32::MAX / 2));
    record
}

fn locks(checker: &mut Checker, found: &Mendable) -> Result<()> {
    for block in &found.locks {
        unlock(checker, *block)?;
        checker.report.repaired += 1;
    }
    Ok(())
}

/// No node is alive, so no lock is held.
fn unlock(checker: &Checker, block: BlockNo) -> Result<()> {
    let geo = checker.volume.geo;
    let mut sector = AlignedBuf::zeroed(geo.body_at().to_usize());
    LockRecord::unlocked(LockNo::from(block), random()).encode(&mut sector);
    checker.volume.pool.write(checker.volume.slot_at(block), &sector)?;
    if let Some(store) = &checker.volume.external_store {
        let record = LockRecord::unlocked(LockNo::from(block), random());
        store.etcd.replace(&record, geo.lock_sector)?;
    }
    Ok(())
}

/// A fresh body for a block, one generation above whatever sound body stands there.
fn fresh(checker: &Checker, block: BlockNo, kind: MetaKind, owner: LockNo) -> Result<AlignedBuf> {
    let mut body = AlignedBuf::zeroed(checker.volume.geo.body_len());
    let mut header = MetaHeader::new(kind, block, owner);
    // Beyond all that any journal may hold of a block whose body is lost.
    let generation = match checker.read(&[block])?.pop() {
        Some(Ok((_, h, _))) => h.generation.get().saturating_add(1),
        _ => crate::journal::GENERATION_AFTER_LOSS.0,
    };
    header.generation.set(generation);
    let _ = header.write_to_prefix(&mut body);
    Ok(body)
}

/// Drops entries that lead nowhere, and counts again.
fn entries(checker: &mut Checker, found: &mut Mendable) -> Result<()> {
    let mut by_block: BTreeMap<BlockNo, Vec<Name>> = BTreeMap::new();
    for entry in &found.entries {
        by_block.entry(entry.block).or_default().push(*entry);
    }
    for (block, bad) in by_block {
        let (mut dropped, mut lines) = (0, Vec::new());
        change(checker, block, |body| {
            for entry in &bad {
                let Some(name) = drop_entry(body, *entry) else { continue };
                dropped += 1;
                let (dir, to) = (entry.dir, entry.to);
                lines.push(format!("directory {dir}: removed the name {name:?} of inode {to}"));
            }
        })?;
        checker.report.repaired += dropped;
        for line in lines {
            checker.cut(line);
        }
        let dir = bad.first().map_or(0, |e| e.dir.get());
        change(checker, BlockNo(dir), |body| {
            if let Ok((raw, _)) = RawDinode::mut_from_prefix(body) {
                raw.entries.set(raw.entries.get().saturating_sub(dropped));
            }
        })?;
        for counts in found.counts.iter_mut().filter(|c| c.ino.get() == dir) {
            counts.entries = counts.entries.saturating_sub(dropped);
        }
    }
    Ok(())
}
/// Takes an entry out of a tail or a leaf; its name, if it was there.
fn drop_entry(body: &mut [u8], entry: Name) -> Option<String> {
    let stuffed = entry.block.get() == entry.dir.get();
    let (area, count) = items(body, stuffed)?;
    let mut packed = Packed::copy(area, count, 0..u64::MAX).ok()?;
    let name = packed.name_of(entry.cookie)?;
    packed.remove(entry.cookie);
    put(body, stuffed, (&packed.bytes, packed.count));
    Some(String::from_utf8_lossy(&name).into_owned())
}

/// Link, block and entry counts.
fn counts(checker: &mut Checker, found: &Mendable) -> Result<()> {
    for c in &found.counts {
        let done = change(checker, BlockNo::from(c.ino), |body| {
            if let Ok((raw, _)) = RawDinode::mut_from_prefix(body) {
                raw.nlink.set(c.nlink);
                raw.blocks.set(c.blocks);
                raw.entries.set(c.entries);
                raw.parent.set(c.parent);
            }
        })?;
        checker.report.repaired += u64::from(done);
    }
    Ok(())
}

/// Bitmaps from what the walk saw. A slot that is not in use stays metadata when its bit or its
/// body says that it is. `lost`: for some windows it is not known which blocks they had.
fn groups(checker: &mut Checker, lost: bool) -> Result<()> {
    let slot = checker.volume.geo.slot_blocks();
    for index in 0..checker.space.groups.len() {
        meta_free(checker, index, lost)?;
        let Some(group) = checker.space.groups.get(index) else { break };
        if group.shape.block_count == 0 {
            continue;
        }
        let (shape, raw) = (group.shape, group.shape.raw(index as u64));
        let now = group.seen.clone();
        let owner = LockNo::from(shape.start);
        let per = blocks_per_bitmap(checker.volume.geo);
        let per_bytes = usize::try_from(per / PER_BYTE).unwrap_or(0);
        let mut images = Vec::new();
        for (n, part) in (0_u64..).zip(now.chunks(per_bytes.max(1))) {
            let block = BlockNo(shape.start.get() + (1 + n) * slot);
            let mut body = fresh(checker, block, MetaKind::Bitmap, owner)?;
            if let Some(to) = body.get_mut(MetaHeader::LEN..) {
                for (to, from) in to.iter_mut().zip(part) {
                    *to = *from;
                }
                let end = (shape.block_count - n * per).min(per);
                bits::fill(to, end, per - end, BlockState::Data);
            }
            images.push((block, body));
        }
        let mut head = fresh(checker, shape.start, MetaKind::Rgrp, owner)?;
        let count = |state| bits::count(&now, 0, shape.block_count, state);
        if let Ok((to, _)) = RawRgrp::mut_from_prefix(&mut head) {
            let header = to.header;
            *to = raw;
            to.header = header;
            to.free_blocks.set(count(BlockState::Free));
            to.free_meta.set(count(BlockState::MetaFree));
        }
        images.push((shape.start, head));
        write(checker, images)?;
    }
    Ok(())
}
/// Turns what the walk saw of a group into what its bitmap must say: adds the free slots.
fn meta_free(checker: &mut Checker, index: usize, lost: bool) -> Result<()> {
    let slot = checker.volume.geo.slot_blocks();
    let Some(group) = checker.space.groups.get(index) else { return Ok(()) };
    if !takes_slots(group.shape.kind) {
        return Ok(());
    }
    let first = group.shape.first_block.next_multiple_of(slot) - group.shape.first_block;
    let step = usize::try_from(slot).unwrap_or(1);
    let unseen = |i: &u64| bits::get(&group.seen, *i) == BlockState::Free;
    let (mut meta, mut ask) = (Vec::new(), Vec::new());
    for i in (first..group.shape.block_count).step_by(step).filter(unseen) {
        match bits::get(&group.bits, i) {
            BlockState::MetaFree | BlockState::MetaUsed => meta.push(i),
            // What nothing refers to was free in a window that is lost.
            BlockState::Data if lost => ask.push(i),
            // Without a sound bitmap, the bodies tell.
            _ if !group.sound => ask.push(i),
            _ => {}
        }
    }
    let base = group.shape.first_block;
    for part in ask.chunks(BATCH) {
        let blocks: Vec<BlockNo> = part.iter().map(|i| BlockNo(base + i)).collect();
        for (i, body) in part.iter().zip(checker.read(&blocks)?) {
            if body.is_ok() {
                meta.push(*i);
            }
        }
    }
    let mut images = Vec::new();
    for &i in &meta {
        let block = BlockNo(base + i);
        if !matches!(checker.read(&[block])?.pop(), Some(Ok((_, _, MetaKind::Free)))) {
            images.push((block, fresh(checker, block, MetaKind::Free, LockNo::from(block))?));
            // It may have been no metadata block.
            unlock(checker, block)?;
        }
    }
    write(checker, images)?;
    if let Some(group) = checker.space.groups.get_mut(index) {
        for i in meta {
            bits::fill(&mut group.seen, i, slot, BlockState::MetaFree);
        }
    }
    Ok(())
}

/// A damaged root directory is replaced by an empty one. What was in it is found without a name.
fn root(checker: &mut Checker, found: &Mendable) -> Result<()> {
    if !found.root {
        return Ok(());
    }
    let block = BlockNo::from(checker.volume.root());
    let mut body = fresh(checker, block, MetaKind::Dinode, LockNo::from(block))?;
    // Only root may look into it until its owner is known again.
    let mut raw = crate::make::root_dinode(block, (0, 0));
    raw.mode.set(0o040_700);
    if let Ok((to, _)) = RawDinode::mut_from_prefix(&mut body) {
        raw.header = to.header;
        *to = raw;
    }
    write(checker, vec![(block, body)])?;
    unlock(checker, block)?;
    checker.cut("the root directory was damaged: it is empty now, owned by root, mode 0700".into());
    checker.report.repaired += 1;
    Ok(())
}

/// Damaged blocks of the fixed area are replaced by empty ones. What windows and free logs called
/// free is used by nobody until the bitmaps are rebuilt; what an orphan list named is found without
/// a name; and no node is alive that would hold a program's lock.
fn fixed(checker: &mut Checker, found: &Mendable) -> Result<()> {
    let mut images = Vec::new();
    for &(block, kind) in &found.private {
        if kind != MetaKind::JournalHeader {
            images.push((block, fresh(checker, block, kind, LockNo::from(block))?));
            checker.report.repaired += 1;
        }
    }
    write(checker, images)
}

/// Dead nodes that damage kept from being recovered, and does no longer, are recovered by this.
pub(super) fn slots(checker: &Checker) -> Result<()> {
    let volume = &checker.volume;
    let store = volume.node_store(volume.node_areas()?);
    let mut all_free = true;
    for slot in (0..volume.sb.node_slots.get()).map(NodeId) {
        let stands = store.read_slot(slot).map_err(LockError::NodeStore)?;
        let Ok(record) = SlotRecord::decode(&stands, slot) else { continue };
        let clean = || {
            let header = Header::read(volume, &Ring::of(volume, slot)?)?;
            crate::recovery::inspect(volume, slot).map(|()| header.clean)
        };
        if record.damage.is_some() && clean().unwrap_or(false) {
            let mut bytes = vec![0; store.sector_len()];
            freed(&record, record.nonce.wrapping_add(1)).encode(&mut bytes);
            let written = store.compare_and_write_slot(slot, &stands, &bytes);
            if let CawOutcome::Mismatch(_) = written.map_err(LockError::NodeStore)? {
                all_free = false;
            }
        } else {
            all_free &= record.state == SlotState::Free;
        }
    }
    if let Some(store) = &volume.external_store
        && all_free
    {
        // Whatever was lost of it, or came back from an older copy.
        store.etcd.renew(&volume.pool.info().name, volume.sb.node_slots.get())?;
    }
    Ok(volume.pool.flush()?)
}

/// Windows and free logs empty, changes of counters zero: the groups now hold all.
fn private(checker: &mut Checker) -> Result<()> {
    let sb = checker.volume.sb;
    let mut images = Vec::new();
    for node in 0..sb.node_slots.get() {
        for n in 0..u64::from(sb.node_area_slots.get()) {
            let kind = crate::make::area_kind(n);
            if matches!(kind, MetaKind::Window | MetaKind::FreeLog | MetaKind::NodeInfo) {
                let block = checker.volume.node_area(NodeId(node), n);
                images.push((block, fresh(checker, block, kind, LockNo::from(block))?));
            }
        }
    }
    write(checker, images)
}
fn counters(checker: &mut Checker) -> Result<()> {
    let block = BlockNo::from(checker.volume.named(RawSuperblock::NAMED_COUNTERS));
    let mut body = fresh(checker, block, MetaKind::Counters, LockNo::from(block))?;
    let (free, meta) = checker.space.free(|g| &g.seen);
    if let Ok((raw, _)) = RawCounters::mut_from_prefix(&mut body) {
        raw.free_blocks.set(free);
        raw.inodes.set(checker.report.inodes);
        raw.free_meta.set(meta);
    }
    write(checker, vec![(block, body)])
}

/// The copy in use over the one that is not like it.
fn superblocks(checker: &mut Checker, found: &Mendable) -> Result<()> {
    for &block in &found.superblocks {
        let mut body = fresh(checker, block, MetaKind::Superblock, LockNo(0))?;
        let from = super::fixed::superblock(&checker.volume);
        let own = from.get(MetaHeader::LEN..).unwrap_or(&[]);
        if let Some(to) = body.get_mut(MetaHeader::LEN..from.len()) {
            to.copy_from_slice(own);
        }
        write(checker, vec![(block, body)])?;
        checker.report.repaired += 1;
    }
    Ok(())
}
