//! A sector of one copy rots, and then something else happens: power is cut, another member is filled from
//! what is left, or one is moved. What a checksum knows must be right after that.

use braid_format::label::Label;
use braid_format::redundancy::LogPlace;
use braid_format::{ByteOffset, MemberIndex};
use braid_pool::{Destination, Verification};

use super::acts::Node;
use super::shape::SLOTS;
use super::verify::{Seals, heal, scrub, verify};
use crate::contents::SECTOR;

const SECTOR_BYTES: u64 = SECTOR as u64;

/// Where rot is: the member, and all that have the same.
struct Rotten {
    member: MemberIndex,
    copies: Vec<MemberIndex>,
}

impl Node {
    pub(super) fn rot_and_more(&self) {
        if !self.may_rot() || self.pool.moving().is_some() {
            return;
        }
        if self.below(2) == 0 {
            // What is not flushed is compared after a power cut.
            self.write();
        }
        if self.below(4) == 0 {
            return self.rot_of_own();
        }
        let Some(rotten) = self.rot_of_a_copy() else { return };
        self.world.state().rotten = true;
        match self.below(4) {
            0 | 1 => self.cut(0),
            2 if rotten.copies.len() > 2 => self.fill_concurrent(&rotten),
            _ => self.move_concurrent(&rotten),
        }
        if self.world.state().has_ended(self.me) {
            return;
        }
        heal(&self.world, self.me, &self.pool);
        verify(&self.world, self.me, &self.pool, false);
        scrub(&self.world, self.me, &self.pool, false);
        self.world.state().report.rot += 1;
    }

    /// One sector of a copy of a mirror, where something was written.
    fn rot_of_a_copy(&self) -> Option<Rotten> {
        let nth = self.below(1 << 20);
        let sector = self.world.state().model.nth(nth)?;
        let at = sector * SECTOR_BYTES;
        let placements = self.pool.placements(ByteOffset(at));
        let map = self.pool.map();
        let copies: Vec<MemberIndex> = placements.iter().map(|h| h.0).collect();
        let is_mirror = |g: &&braid_pool::layout::group::Group| {
            g.row_len().is_none() && g.members().eq(copies.iter().copied())
        };
        map.groups().iter().find(is_mirror)?;
        let which = usize::try_from(self.below(placements.len() as u64)).ok()?;
        let (member, place) = *placements.get(which)?;
        let disk = self.members().get(usize::from(member.0)).copied().flatten()?;
        if !self.flip(disk, place) {
            return None;
        }
        self.tell(format!("d{disk} rots at {place}, sector {sector}"));
        Some(Rotten { member, copies })
    }

    /// A sector of one copy of a log or of a label rots, and power is cut.
    fn rot_of_own(&self) {
        let label = self.pool.label();
        let which = usize::try_from(self.below(label.members.len() as u64)).unwrap_or(0);
        let Some(member) = label.members.get(which) else { return };
        let slot = u16::try_from(self.below(SLOTS as u64)).unwrap_or(0);
        let Some(log) = LogPlace::of_slot(slot, member.data_start) else { return };
        let at = match self.below(6) {
            0 => Some(Label::COPY0_AT),
            1 => Label::copy1_at(member.device_size),
            2 => Some(log.redo_header(self.below(2))),
            3 => Some(log.ring(self.below(16) * LogPlace::SECTOR as u64)),
            _ => Some(log.intents(0)),
        };
        let disk = self.members().get(which).copied().flatten();
        let (Some(at), Some(disk)) = (at, disk) else { return };
        if self.flip(disk, at) {
            self.tell(format!("d{disk} rots at {at}, which is the pool's own"));
            self.cut(0);
        }
    }

    /// Power is cut after so many changes.
    fn cut(&self, after: u64) {
        let mut state = self.world.state();
        state.report.rot_survived[0] += 1;
        state.power = Some(after);
        state.off = after == 0;
    }

    /// Another member that has the same is filled with it.
    fn fill_concurrent(&self, rotten: &Rotten) {
        let others: Vec<MemberIndex> =
            rotten.copies.iter().copied().filter(|m| *m != rotten.member).collect();
        let which = usize::try_from(self.below(others.len() as u64)).unwrap_or(0);
        let (Some(member), Some((disk, wire))) = (others.get(which), self.new_disk()) else {
            return;
        };
        if self.below(3) == 0 {
            self.cut(self.below(60));
        }
        let replaced = self.pool.replace(*member, wire, false);
        self.changed(&format!("replace {member} by d{disk} beside rot"), replaced);
        let verification = Verification::by(&Seals);
        let mut filled = false;
        while let Some(member) = self.pool.rebuilding() {
            let done = self.filling(|| self.pool.rebuild_with(member, &verification, &|_| true));
            if self.changed(&format!("fill {member} beside rot"), done) != Some(true) {
                break;
            }
            filled = true;
        }
        let mut state = self.world.state();
        if state.has_ended(self.me) || !filled {
            return;
        }
        let found = verification.found();
        if found.healed.0 == 0 || found.undecided.0 != 0 {
            state.fail(format!("rot was not healed by who filled a member: {found:?}"));
        }
        state.report.rot_survived[1] += 1;
    }

    /// A member that has it, rotten or not, is moved.
    fn move_concurrent(&self, rotten: &Rotten) {
        let which = usize::try_from(self.below(rotten.copies.len() as u64)).unwrap_or(0);
        let (Some(member), Some((disk, device))) = (rotten.copies.get(which), self.new_disk())
        else {
            return;
        };
        if self.below(3) == 0 {
            self.cut(self.below(60));
        }
        let to = Destination::Device { device, force: false };
        let begun = self.pool.begin_evacuation(*member, to);
        self.changed(&format!("begin to move {member} to d{disk} beside rot"), begun);
        let done = self.filling(|| self.pool.evacuate(&|_| true));
        if self.changed("move beside rot", done) == Some(true) {
            self.world.state().report.rot_survived[2] += 1;
        }
    }
}
