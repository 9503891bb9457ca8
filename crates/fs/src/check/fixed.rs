//! The fixed area: superblocks, named locks, lock buckets, nodes' private blocks.

use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::node::{RawCounters, SlotRecord};
use braid_format::rgrp::RawWindow;
use braid_format::superblock::{RawLeaving, RawRegions, RawSuperblock};
use braid_format::{BlockNo, Bytes, InodeNo, NodeId};
use zerocopy::{FromBytes, IntoBytes};

use super::checker::{BATCH, Checker};
use super::mendable::Mendable;
use super::space::Private;
use crate::alloc::{free_log_entries, window_head};
use crate::error::Result;
use crate::make::area_kind;
use crate::volume::Volume;

/// A slot of the fixed area: where, what, and whose.
type Want = (BlockNo, MetaKind, Option<(NodeId, u64)>);

impl Checker {
    /// Both copies, against the one in use.
    pub(super) fn superblocks(&mut self, found: &mut Mendable) -> Result<()> {
        for block in [BlockNo(0), self.volume.copy()] {
            let body = self.read(&[block])?.pop();
            let problem = match body {
                Some(Ok((body, _, MetaKind::Superblock))) => {
                    let mine = superblock(&self.volume);
                    let same = body.get(MetaHeader::LEN..mine.len()) == mine.get(MetaHeader::LEN..);
                    // A growth writes the copy last; the next mount writes it if that failed.
                    let behind = block != BlockNo(0)
                        && (is_behind(&self.volume, &body)
                            || differs_in_leaving(&self.volume, &body));
                    (!same && !behind).then(|| "superblock copies differ".to_owned())
                }
                Some(Ok((_, _, kind))) => Some(format!("{} instead of superblock", kind.name())),
                Some(Err(e)) => Some(format!("superblock: {e}")),
                None => None,
            };
            if let Some(text) = problem {
                self.problem(block, text);
                found.superblocks.push(block);
            }
        }
        Ok(())
    }
    /// Nodes' slots, each copy of them.
    pub(super) fn slots(&mut self, found: &mut Mendable) -> Result<()> {
        let volume = self.volume.clone();
        if volume.external_store.is_some() {
            return Ok(());
        }
        let sector = volume.geo.lock_sector;
        let area = volume.geo.block_size.offset_of(BlockNo(volume.sb.slot_area.get()));
        let mut record = vec![0; sector.to_usize()];
        for slot in (0..volume.sb.node_slots.get()).map(NodeId) {
            let at = area + Bytes(u64::from(slot.get()) * sector.get());
            let mut damage = None;
            for copy in 0..volume.pool.current_copies() {
                volume.pool.look(at, &mut record, copy)?;
                damage = damage.or(SlotRecord::decode(&record, slot).err());
            }
            if let Some(error) = damage {
                let block = volume.geo.block_size.block_of(at);
                self.problem(block, format!("a copy of the slot of node {slot}: {error}"));
                found.slots.push((at, slot));
            }
        }
        Ok(())
    }
    /// Everything between the superblock and the groups. Gives the inodes on orphan lists, and buckets
    /// of program locks whose first block is sound.
    pub(super) fn fixed_area(
        &mut self,
        found: &mut Mendable,
    ) -> Result<(Vec<InodeNo>, Vec<BlockNo>)> {
        let sb = self.volume.sb;
        let slot = self.volume.geo.slot_blocks();
        let run = |start: u64, n: u16| (0..u64::from(n)).map(move |i| BlockNo(start + i * slot));
        let (mut roots, mut buckets) = (Vec::new(), Vec::new());
        let named = run(sb.named_start.get(), sb.named_count.get()).zip(0_u64..);
        let mut want: Vec<Want> = named
            .map(|(block, n)| match n {
                RawSuperblock::NAMED_COUNTERS => (block, MetaKind::Counters, None),
                _ => (block, MetaKind::Named, None),
            })
            .collect();
        want.extend(
            run(sb.plock_start.get(), sb.plock_count.get()).map(|b| (b, MetaKind::Plock, None)),
        );
        for node in 0..sb.node_slots.get() {
            for n in 0..u64::from(sb.node_area_slots.get()) {
                let block = self.volume.node_area(NodeId(node), n);
                want.push((block, area_kind(n), Some((NodeId(node), n))));
            }
        }
        for part in want.chunks(BATCH) {
            let blocks: Vec<BlockNo> = part.iter().map(|w| w.0).collect();
            for (&(block, kind, place), body) in part.iter().zip(self.read(&blocks)?) {
                let problem = match body {
                    Ok((_, h, k))
                        if k == kind && place.is_some() && h.owner.get() != block.get() =>
                    {
                        Some(format!("{}: belongs to {}", kind.name(), h.owner))
                    }
                    Ok((body, _, k)) if k == kind => {
                        self.fixed(block, kind, place, &body, &mut roots)
                    }
                    Ok((_, _, k)) => Some(format!("{} instead of {}", k.name(), kind.name())),
                    // One of the two copies may be torn; replay needed the other, and found it.
                    Err(_) if kind == MetaKind::JournalHeader => None,
                    Err(e) => Some(format!("{}: {e}", kind.name())),
                };
                let Some(text) = problem else {
                    buckets.extend((kind == MetaKind::Plock).then_some(block));
                    continue;
                };
                self.problem(block, text);
                found.private.push((block, kind));
            }
        }
        Ok((roots, buckets))
    }
    /// Notes what a block says; gives what is wrong with it.
    fn fixed(
        &mut self,
        block: BlockNo,
        kind: MetaKind,
        place: Option<(NodeId, u64)>,
        body: &[u8],
        roots: &mut Vec<InodeNo>,
    ) -> Option<String> {
        match (kind, place) {
            (MetaKind::Counters | MetaKind::NodeInfo, _) => {
                if let Ok((raw, _)) = RawCounters::read_from_prefix(body) {
                    let sums = &mut self.space.counted;
                    sums.free = sums.free.wrapping_add(raw.free_blocks.get());
                    sums.inodes = sums.inodes.wrapping_add(raw.inodes.get());
                    sums.meta = sums.meta.wrapping_add(raw.free_meta.get());
                    if kind == MetaKind::Counters {
                        self.total = raw.inodes.get();
                    }
                }
            }
            (MetaKind::Window, Some(_)) => {
                let head = match window_head(&self.volume, block, body) {
                    Ok(head) => head,
                    Err(e) => return Some(e.to_string()),
                };
                if let Some((_, start, len)) = head
                    && let Ok((_, bits)) = RawWindow::read_from_prefix(body)
                {
                    self.space.private.push(Private::Window {
                        block,
                        start,
                        len,
                        bits: bits.into(),
                    });
                }
            }
            (MetaKind::FreeLog, Some(_)) => match free_log_entries(body, block) {
                Ok(entries) => self.space.private.extend(
                    entries.into_iter().map(|(start, len, state)| Private::Freed {
                        block,
                        start,
                        len,
                        state,
                    }),
                ),
                Err(e) => return Some(e.to_string()),
            },
            (MetaKind::Orphans, Some(_)) => match crate::orphan_list::decode(body, block) {
                Ok(inos) => roots.extend(inos),
                Err(e) => return Some(e.to_string()),
            },
            _ => {}
        }
        None
    }
}

/// Whether `body` is the superblock in use as it was before the last of what was added.
fn is_behind(volume: &Volume, body: &[u8]) -> bool {
    let Ok((sb, rest)) = RawSuperblock::read_from_prefix(body) else { return false };
    let Ok((regions, _)) = RawRegions::read_from_prefix(rest) else { return false };
    let (now, count) = (&volume.regions, volume.regions.count.get());
    if count == 0 || regions.count.get() + 1 != count {
        return false;
    }
    let last = usize::try_from(count - 1).unwrap_or(0);
    let mut expected = volume.sb;
    let before = last.checked_sub(1).and_then(|n| now.regions.get(n));
    expected.total_blocks = before.map_or(now.base_blocks, |r| r.end);
    if before.is_none() {
        let features = expected.features_incompat.get() & !RawSuperblock::REGIONS;
        expected.features_incompat.set(features);
    }
    let known = |r: &RawRegions| r.regions.get(..last).map(|all| all.as_bytes().to_vec());
    fields(&sb) == fields(&expected) && known(&regions) == known(now)
}

/// All of a superblock but its header.
fn fields(sb: &RawSuperblock) -> Option<Vec<u8>> {
    sb.as_bytes().get(MetaHeader::LEN..).map(<[u8]>::to_vec)
}

/// Whether `body` is the superblock in use, apart from which regions leave.
fn differs_in_leaving(volume: &Volume, body: &[u8]) -> bool {
    let Ok((mut sb, rest)) = RawSuperblock::read_from_prefix(body) else { return false };
    let Ok((regions, _)) = RawRegions::read_from_prefix(rest) else { return false };
    let bit = RawSuperblock::LEAVING;
    let own = volume.sb.features_incompat.get() & bit;
    sb.features_incompat.set(sb.features_incompat.get() & !bit | own);
    fields(&sb) == fields(&volume.sb) && regions.as_bytes() == volume.regions.as_bytes()
}

/// The superblock in use, with what was added, and what leaves.
pub(super) fn superblock(volume: &Volume) -> Vec<u8> {
    let external_store =
        volume.external_store.as_ref().map_or(&[][..], |store| store.raw.as_bytes());
    let mut all = [volume.sb.as_bytes(), volume.regions.as_bytes(), external_store].concat();
    if volume.sb.features_incompat.get() & RawSuperblock::LEAVING != 0 {
        all.resize(RawLeaving::AT, 0);
        all.extend(volume.groups.leaving().as_bytes());
    }
    all
}
