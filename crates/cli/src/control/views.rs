//! What a node says of its pool: the answer to most orders.

use braid_format::label::properties::Properties;
use braid_format::{ByteOffset, MemberIndex};
use braid_fs::lock::NodeView;
use braid_fs::{FileAt, Fs, JobProgress, WorkBegan};
use braid_pool::{Pool, Scrubbed};
use serde::{Deserialize, Serialize};

use crate::control::health::{self, Health};
use crate::control::member::MemberId;
use crate::pools::topology::member_state;
use crate::terminal::{answer::say, size, ui};

/// Places that a scrub could not decide, told one by one.
pub const SHOWN_MAX: usize = 20;
/// Damaged blocks that are told one by one.
const DAMAGED_MAX: usize = 20;

/// A member, as told.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct MemberView {
    /// Its place.
    pub index: u16,
    /// Its identity.
    #[serde(default)]
    pub uuid: String,
    /// Its device.
    pub path: String,
    /// What it is.
    pub state: String,
    /// Bytes of the pool's topology that are on it.
    #[serde(default)]
    pub used: u64,
}

/// What a scrub found, as told.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ScrubView {
    /// All was read.
    pub finished: bool,
    /// Bytes read.
    pub checked: u64,
    /// Bytes healed.
    pub healed: u64,
    /// Bytes that disagree, and nothing says which is right.
    pub undecided: u64,
    /// Where: the first places, in the pool's bytes.
    pub places: Vec<u64>,
    /// The devices that hold the first of these, and where on them: the copies, or the row of
    /// parity.
    #[serde(default, rename = "homes")]
    pub placements: Vec<Vec<(String, u64)>>,
    /// Files that have these bytes.
    #[serde(default)]
    pub files: Vec<FileView>,
    /// No other file has.
    #[serde(default)]
    pub files_complete: bool,
}

/// A file with bytes that disagree, as told.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FileView {
    /// From the root of the file system.
    pub path: String,
    /// Its number.
    pub inode: u64,
    /// Where in the file.
    pub offsets: Vec<u64>,
}

impl FileView {
    fn of(file: &FileAt) -> Self {
        let path = file.path.to_string_lossy().into_owned();
        Self { path, inode: file.ino.get(), offsets: file.offsets.clone() }
    }
}

/// What a node says of its pool.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct View {
    /// Whether members may be lost at all.
    pub redundant: bool,
    /// The pool's identity.
    #[serde(default)]
    pub uuid: String,
    /// It is this node that fills members.
    #[serde(default)]
    pub keeper: bool,
    /// The pool's epoch.
    pub epoch: u64,
    /// Settings that stay with the pool.
    #[serde(default)]
    pub properties: Properties,
    /// The members.
    pub members: Vec<MemberView>,
    /// The member that is being filled: place, bytes done, bytes in all.
    pub rebuilding: Option<(u16, u64, u64)>,
    /// The member that is being moved, to which, bytes copied (none yet: not known), bytes in all.
    #[serde(default)]
    pub moving: Option<(u16, u16, u64, u64)>,
    /// What is moved so that the pool becomes smaller: bytes done, bytes in all.
    #[serde(default)]
    pub leaving: Option<(u64, u64)>,
    /// For how many seconds the member is being filled, and bytes done before.
    #[serde(default)]
    pub rebuild_ran: Option<(f64, u64)>,
    /// The same of the move.
    #[serde(default)]
    pub move_ran: Option<(f64, u64)>,
    /// The same of the scrub.
    #[serde(default)]
    pub scrub_ran: Option<(f64, u64)>,
    /// For how many seconds the pool is being made smaller.
    #[serde(default)]
    pub leaving_s: Option<f64>,
    /// File data that moves to make all parts equally full: bytes moved, bytes in all, for how many seconds.
    #[serde(default)]
    pub rebalancing: Option<(u64, u64, f64)>,
    /// The trim under way: bytes looked at, bytes in all, for how many seconds.
    #[serde(default)]
    pub trimming: Option<(u64, u64, f64)>,
    /// The scrub under way: bytes done, bytes in all.
    pub scrubbing: Option<(u64, u64)>,
    /// Scrubs that have ended since the pool was mounted.
    pub scrubs: u64,
    /// What the last scrub found, or the one under way has so far.
    pub scrubbed: Option<ScrubView>,
    /// What the last scrub found that has ended. Another may be under way.
    #[serde(default)]
    pub last_scrub: Option<ScrubView>,
    /// What went wrong last.
    pub error: Option<String>,
    /// What nobody could decide when a member was filled last.
    #[serde(default)]
    pub differed: Option<String>,
    /// The member that other nodes could not fill or move, and for people, who.
    #[serde(default)]
    pub stuck: Vec<(u16, String)>,
    /// Nodes that have kept programs here waiting for long, each for people.
    #[serde(default)]
    pub waits: Vec<String>,
    /// Members that are suspected to return garbage: number, damaged places.
    #[serde(default)]
    pub suspects: Vec<(u16, usize)>,
    /// Members that answer nothing: number, for how many seconds, whether the node has given it up.
    #[serde(default)]
    pub silent: Vec<(u16, u64, bool)>,
    /// Damaged metadata that the node has met: one line each.
    #[serde(default)]
    pub damaged: Vec<String>,
    /// The slot of the node.
    #[serde(default)]
    pub node: Option<u16>,
    /// The node that has frozen the pool.
    #[serde(default)]
    pub frozen_by: Option<u16>,
    /// Why it has withdrawn, if it has.
    #[serde(default)]
    pub withdrawn: Option<String>,
    /// How the pool is, as far as the node knows.
    #[serde(default)]
    pub health: Option<Health>,
    /// Bytes of the pool.
    #[serde(default)]
    pub size: u64,
    /// How full the file system is.
    #[serde(default)]
    pub space: Option<Space>,
    /// What else there is to say of what was asked for.
    #[serde(default)]
    pub said: Option<String>,
    /// The member that can take the place of one that was to leave, and cannot leave without that.
    #[serde(default)]
    pub successor: Option<MemberId>,
}

/// How full a file system is, as told.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Space {
    /// Bytes for file data.
    pub size: u64,
    /// Of those, free.
    pub free: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// The devices that hold a byte of the pool, and where on them.
fn placements(pool: &Pool, at: ByteOffset) -> Vec<(String, u64)> {
    let devices = pool.devices();
    let name = |member: MemberIndex| devices.get(usize::from(member.0)).map(|d| &d.info().name);
    let placements = pool.placements(at).into_iter();
    placements.filter_map(|(member, at)| Some((name(member)?.clone(), at.get()))).collect()
}

/// What a node says of its pool.
pub fn view(fs: &Fs) -> View {
    let (pool, maintenance) = (fs.pool(), fs.maintenance());
    let label = pool.label();
    let devices = pool.devices();
    let members = (0_u16..).zip(label.members.iter().zip(&devices)).map(|(index, (m, d))| {
        let path = d.info().name.clone();
        let used = label.bytes_on(MemberIndex(index)).get();
        let uuid = m.uuid.to_string();
        MemberView { index, uuid, path, state: member_state(m).to_owned(), used }
    });
    let ran = |began: Option<WorkBegan>| {
        began.map(|began| (began.at.elapsed().as_secs_f64(), began.from.get()))
    };
    let far = |job: JobProgress| (job.done.get(), job.total.get(), job.ran.as_secs_f64());
    let scrub = |f: &Scrubbed| ScrubView {
        finished: f.finished,
        checked: f.checked.get(),
        healed: f.healed.get(),
        undecided: f.undecided.get(),
        placements: f.places.iter().take(SHOWN_MAX).map(|p| placements(pool, *p)).collect(),
        places: f.places.iter().map(|p| p.get()).collect(),
        files: maintenance.files.files.iter().map(FileView::of).collect(),
        files_complete: maintenance.files.complete,
    };
    let last_scrub = maintenance.scrubbed.as_ref().map(scrub);
    let under_way = maintenance.scrubbing.as_ref().map(|(_, found)| scrub(found));
    View {
        redundant: pool.info().redundant,
        uuid: pool.info().uuid.to_string(),
        keeper: maintenance.turn,
        frozen_by: fs.frozen_by().map(|node| node.0),
        epoch: label.epoch.get(),
        properties: label.properties.clone(),
        members: members.collect(),
        rebuilding: maintenance.rebuilding.map(|(m, p)| (m.0, p.done.get(), p.total.get())),
        moving: pool.moving().map(|m| {
            let how_far = maintenance.moving.filter(|(now, _)| *now == m).map(|(_, p)| p);
            let (done, total) = how_far.map_or((0, 0), |p| (p.done.get(), p.total.get()));
            (m.leaving.0, m.successor.0, done, total)
        }),
        leaving: fs.leaving(),
        rebalancing: fs.rebalancing().map(far),
        trimming: fs.trimming().map(far),
        rebuild_ran: ran(maintenance.rebuild_began),
        move_ran: ran(maintenance.move_began),
        scrub_ran: ran(maintenance.scrub_began),
        leaving_s: fs.leaving_since().map(|begun| begun.elapsed().as_secs_f64()),
        scrubbing: maintenance.scrubbing.as_ref().map(|(p, _)| (p.done.get(), p.total.get())),
        scrubs: maintenance.scrubs,
        scrubbed: under_way.or_else(|| last_scrub.clone()),
        last_scrub,
        error: maintenance.error,
        differed: maintenance.differed,
        stuck: fs.stuck().into_iter().filter_map(stuck).collect(),
        waits: fs.waits().iter().map(ToString::to_string).collect(),
        suspects: pool.suspects().into_iter().map(|(m, n)| (m.0, n)).collect(),
        silent: silent(pool),
        damaged: damaged_lines(fs),
        node: Some(fs.life().slot.get()),
        withdrawn: fs.withdrawn(),
        health: Some(Health::of(&health::facts(fs))),
        size: pool.info().size.get() - pool.info().holes.get(),
        space: Some(space(fs)),
        said: None,
        successor: None,
    }
}

fn silent(pool: &Pool) -> Vec<(u16, u64, bool)> {
    let silent = pool.silent().into_iter();
    silent.map(|s| (s.member.0, s.time.as_secs(), s.given_up)).collect()
}

fn space(fs: &Fs) -> Space {
    let s = fs.space();
    let block = u64::from(s.block_size);
    let inodes = s.files.saturating_sub(s.files_free);
    Space { size: s.blocks * block, free: s.free * block, inodes }
}

fn stuck(node: NodeView) -> Option<(u16, String)> {
    let member = node.stuck?.get();
    let (slot, host, at) = (node.life.slot, node.host, node.mount_point);
    let who = format!("node {slot}, on {host} at {at}, could not fill or move member {member}");
    Some((member, format!("{who}: its log says why")))
}

/// What a mounted node says of damaged metadata that it has met.
fn damaged_lines(fs: &braid_fs::Fs) -> Vec<String> {
    let all = fs.status().damaged;
    let line = |d: &braid_fs::DamagedBlock| match d.inode {
        Some(inode) => format!("inode {inode}: {}", d.what),
        None => d.what.clone(),
    };
    let mut lines: Vec<String> = all.iter().take(DAMAGED_MAX).map(line).collect();
    if all.len() > DAMAGED_MAX {
        lines.push(format!("and {} blocks more", all.len() - DAMAGED_MAX));
    }
    lines
}

/// Says how much larger a pool is than it was `before`, and what to do with it; then as [`show`].
pub fn show_growth(before: &View, now: &View, advice: &str) {
    say!(
        "the pool has {} now, {} more{advice}",
        size::show(now.size),
        size::show(now.size.saturating_sub(before.size)),
    );
    show(now);
}

impl View {
    /// Work on the pool as a whole that is under way on the node, a line each.
    pub fn work(&self) -> Vec<String> {
        let scrub = self.scrubbing.map(|(done, total)| {
            format!("scrubbing: {}", ui::how_far(done, total, self.scrub_ran))
        });
        let leaving = self.leaving.map(|(done, total)| {
            format!(
                "a part of the pool is emptied: {}",
                ui::how_far(done, total, self.leaving_s.map(|s| (s, 0)))
            )
        });
        let job = |name: &str, job: Option<(u64, u64, f64)>| {
            let (done, total, ran) = job?;
            Some(format!("{name}: {}", ui::how_far(done, total, Some((ran, 0)))))
        };
        let rebalance = job("rebalancing", self.rebalancing);
        let trim = job("giving free space back", self.trimming);
        scrub.into_iter().chain(leaving).chain(rebalance).chain(trim).collect()
    }
    /// What a member is, and what is done for it.
    pub fn state_of(&self, m: &MemberView) -> String {
        let doing = match self.rebuilding {
            Some((member, done, total)) if member == m.index => {
                format!(", filled: {}", ui::how_far(done, total, self.rebuild_ran))
            }
            _ => match self.moving {
                Some((leaving, to, done, total)) if leaving == m.index => {
                    let far = ui::how_far(done, total, self.move_ran);
                    format!(", moved to member {to}: {far}")
                }
                _ if m.used == 0 => ", holds nothing".to_owned(),
                _ => String::new(),
            },
        };
        format!("{}{doing}", m.state)
    }
}

/// Prints the members, and what is done for them.
pub fn show(view: &View) {
    for m in &view.members {
        say!("  member {}  {}  {}", m.index, m.path, view.state_of(m));
    }
    view.work().iter().for_each(|line| say!("  {line}"));
    for (_, who) in &view.stuck {
        say!("  {who}");
    }
    if let Some(error) = &view.error {
        say!("  last error: {error}");
    }
    if let Some(what) = &view.differed {
        say!("  {what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_the_background_is_told_with_its_rate_and_what_is_left() {
        let member =
            |index| MemberView { index, state: "active".into(), used: 1, ..MemberView::default() };
        let (mib, gib) = (1 << 20, 1 << 30);
        let view = View {
            rebuilding: Some((0, gib, 4 * gib)),
            moving: Some((1, 5, 512 * mib, gib)),
            scrubbing: Some((gib, 2 * gib)),
            leaving: Some((mib, 3 * mib)),
            rebalancing: Some((gib, 4 * gib, 8.0)),
            trimming: Some((gib, 2 * gib, 0.5)),
            rebuild_ran: Some((8.0, 0)),
            move_ran: Some((4.0, 256 * mib)),
            scrub_ran: Some((16.0, 0)),
            ..View::default()
        };
        let filled = "active, filled: 25 %, 128 MiB/s, 24 s left";
        assert_eq!(view.state_of(&member(0)), filled);
        assert_eq!(
            view.state_of(&member(1)),
            "active, moved to member 5: 50 %, 64 MiB/s, 8 s left"
        );
        assert_eq!(
            view.work(),
            [
                "scrubbing: 50 %, 64 MiB/s, 16 s left",
                "a part of the pool is emptied: 33 %",
                "rebalancing: 25 %, 128 MiB/s, 24 s left",
                "giving free space back: 50 %",
            ]
        );
    }
}
