//! docs/FORMAT.md says what the compiler does: every structure has its table there, with the
//! offsets and sizes that `offset_of!` gives.

use std::collections::BTreeMap;
use std::path::Path;

use braid_format::{
    dinode, dirent, history, journal, label, lock_record, meta, node, plock, redundancy, rgrp,
};
use braid_format::{superblock, tree, xattr};

/// Offset, size and name of each field.
type Fields = Vec<(usize, usize, &'static str)>;

/// The layout of a structure, from the compiler. A field that is not named here makes the one
/// before it look too large.
macro_rules! layouts {
    ($($module:ident :: $name:ident { $($field:ident),* $(,)? })*) => {
        vec![$({
            let mut starts: Fields =
                vec![$((core::mem::offset_of!($module::$name, $field), 0, stringify!($field))),*];
            let ends = starts.iter().skip(1).map(|f| f.0).chain([size_of::<$module::$name>()]);
            let ends: Vec<usize> = ends.collect();
            for (field, end) in starts.iter_mut().zip(ends) {
                field.1 = end - field.0;
            }
            (stringify!($name), size_of::<$module::$name>(), starts)
        }),*]
    };
}

fn compiled() -> Vec<(&'static str, usize, Fields)> {
    layouts! {
        meta::MetaHeader { magic, kind, revision, block, owner, generation, crc, reserved }
        label::RawLabel { magic, crc, len, revision, copy, at, epoch, features_compat, features_ro_compat, features_incompat, pool_uuid, name, member_uuid, member_index, member_count, node_count, edge_count, segment_count, properties_len, lock_sector, block_size, flags, stripe_unit, created, changed, change_id, reserved }
        label::RawMember { uuid, data_start, data_len, device_size, state_epoch, bytes_per_second, state, class, flags, bus, successor, path, serial }
        label::RawTreeNode { kind, flags, member, first_edge, child_count, parity, code, reserved0, start, len, unit, reserved }
        label::RawEdge { node, weight }
        label::RawSegment { start, len, node_start, node, subpool, flags }
        redundancy::RawIntents { magic, crc, pool_uuid, sector, slot, region_shift, sequence, reserved, bits }
        redundancy::RawRedoHeader { magic, crc, pool_uuid, generation, tail_sequence, tail_offset, slot, reserved }
        redundancy::RawRedoRecord { magic, crc, pool_uuid, sequence, len, parts, slot, reserved }
        redundancy::RawRedoPart { group, column, len, offset }
        redundancy::RawClaim { magic, crc, pool_uuid, epoch, nonce, incarnation, slot, state, reserved }
        redundancy::RawEventCount { magic, crc, pool_uuid, member_uuid, state_epoch, count, incarnation, slot, reserved }
        history::RawHistoryPage { magic, crc, pool_uuid, sequence, used, reserved }
        history::RawEvent { time, id, kind, slot, user, host_len, text_len, reserved }
        lock_record::RawLockRecord { magic, revision, mode, lock, version, nonce, written, lives, waiters, crc }
        lock_record::RawLockLife { roles, incarnation }
        superblock::RawSuperblock { header, fs_magic, version, block_shift, lock_sector_shift, pool_uuid, fs_uuid, features_compat, features_ro_compat, features_incompat, total_blocks, node_slots, named_count, plock_count, node_area_slots, named_start, plock_start, slot_area, heartbeat_area, node_area, journal_area, journal_blocks, rgrp_start, rgrp_blocks, rgrp_count, root_inode, hash_seed, stripe_unit, stripe_width, name, meta_blocks, data_start, data_blocks, data_count, data_end, data_heads, data_head_slots }
        superblock::RawRegions { base_blocks, count, regions }
        superblock::RawLockStore { kind, len, reserved, address }
        superblock::RawLeaving { closed, gone }
        superblock::RawRegion { rgrp_start, rgrp_blocks, rgrp_count, rgrp_end, data_start, data_blocks, data_count, data_end, data_heads, data_head_slots, end }
        rgrp::RawRgrp { header, index, bitmap_slots, subpool, first_block, block_count, free_blocks, free_meta, dinodes }
        rgrp::RawWindow { header, rgrp, start, blocks, incarnation, reserved }
        rgrp::RawFreeLog { header, count }
        rgrp::RawFreed { start, len, state }
        node::RawLockPlace { kernel, device, inode }
        node::RawSlot { magic, revision, state, slot, recoverer, incarnation, recoverer_incarnation, pid, nonce, since, node_uuid, boot_id, host, address, mount_point, machine_id, damaged_block, damaged_part, flags, io_timeout, fence_key, named, lock_places, reserved, crc }
        node::RawWish { lock, mode }
        node::RawHeartbeat { magic, revision, slot, incarnation, pool_epoch, sequence, free_delta, inode_delta, wishes, meta_delta, pool_change, stuck, freeze, freeze_id, freeze_seconds, followed_slot, followed_stage, followed_id, label_features, superblock_features, reserved, crc }
        node::RawCounters { header, free_blocks, inodes, free_meta }
        node::RawOrphans { header, count }
        dinode::RawTime { sec, nsec }
        dinode::RawDinode { header, mode, uid, gid, nlink, size, blocks, atime, mtime, ctime, btime, rdev, layout, tree_height, tail_count, xattr_len, xattr_block, inode_generation, parent, entries, flags, project, reserved }
        tree::RawNode { header, level, count, used }
        tree::RawIndexEntry { key, child }
        tree::RawExtent { logical, physical, len, flags }
        dirent::RawDirent { cookie, inode, record_len, name_len, file_type }
        xattr::RawXattr { record_len, name_len, flags, value_len }
        xattr::RawXattrBlock { header, used, reserved, next }
        xattr::RawXattrValue { header, part, len }
        plock::RawPlockBucket { header, count, next }
        plock::RawPlock { inode, start, end, owner, pid, incarnation, slot, mode, flags, order }
        journal::RawJournalHeader { header, tail_sequence, tail_offset, incarnation, clean }
        journal::RawTxHeader { magic, crc, sequence, len, incarnation, count, slot, reserved }
        journal::RawTxBlock { block, generation }
    }
}

/// Size of a structure, and its rows.
type Table<'a> = (usize, Vec<(usize, usize, &'a str)>);

/// The tables of the document.
fn documented(text: &str) -> BTreeMap<&str, Table<'_>> {
    let mut tables = BTreeMap::new();
    let mut current: Option<&str> = None;
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let Some((name, rest)) = line.strip_prefix('`').and_then(|l| l.split_once("`, ")) {
            let size = rest.split(' ').next().and_then(|n| n.parse().ok());
            if let Some(size) = size {
                tables.insert(name, (size, Vec::new()));
                current = Some(name);
            }
        } else if !line.is_empty() && !line.starts_with('|') {
            current = None;
        } else if let (Some(name), ["", offset, bytes, field, _, ""]) = (current, &cells[..])
            && let (Ok(offset), Ok(bytes)) = (offset.parse(), bytes.parse())
            && let Some((_, rows)) = tables.get_mut(name)
        {
            rows.push((offset, bytes, field.trim_matches('`')));
        }
    }
    tables
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_table_is_what_the_compiler_lays_out() {
    let text = std::fs::read_to_string(root().join("../../docs/FORMAT.md")).expect("FORMAT.md");
    let tables = documented(&text);
    for (name, size, fields) in compiled() {
        let (said, rows) = tables.get(name).unwrap_or_else(|| panic!("FORMAT.md lacks {name}"));
        assert_eq!((*said, rows), (size, &fields), "FORMAT.md's table of {name} is not the code");
    }
}

#[test]
fn every_structure_is_compared() {
    let compared: Vec<&str> = compiled().iter().map(|c| c.0).collect();
    let folders = [root().join("src"), root().join("src/label")];
    let sources = folders.iter().flat_map(|f| std::fs::read_dir(f).expect("sources"));
    let mut seen = 0;
    for file in sources.flatten().map(|e| e.path()).filter(|p| p.is_file()) {
        let text = std::fs::read_to_string(&file).expect("a source");
        let mut after_repr = false;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("pub struct ").filter(|_| after_repr) {
                let name = name.split([' ', '(']).next().unwrap_or(name);
                assert!(compared.contains(&name), "{name} of {} is not compared", file.display());
                seen += 1;
            }
            after_repr = line == "#[repr(C)]";
        }
    }
    assert_eq!(seen, compared.len());
}
