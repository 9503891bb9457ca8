//! A pool's topology as a drawing, and as JSON.

use std::fmt::Write;

use braid_format::label::{Child, Label, Member, MemberState, NodeKind, SubpoolKind};
use braid_pool::layout::{Facts, subpool_name};
use serde_json::{Value, json};

use crate::terminal::answer;
use crate::terminal::size::show;

/// Prints the drawing, the bandwidth to expect, and what else should be known. `paths`: where the
/// members are now.
pub fn print(label: &Label, paths: &[String]) {
    answer::say_lines(&text(label, paths));
}

/// What [`print`] prints.
pub fn text(label: &Label, paths: &[String]) -> String {
    let mut text = draw(label, paths);
    for line in remarks(label) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// The tree of each subpool, with lines, and above it what the whole gives.
fn draw(label: &Label, paths: &[String]) -> String {
    let facts = Facts::of(label);
    let mut out = format!(
        "{}: {} usable of {}; {}\n",
        label.name,
        show(facts.usable.get()),
        show(facts.raw.get()),
        survives(facts.tolerates)
    );
    for s in label.segments.iter().filter(|s| !s.is_hole()) {
        let name = match s.subpool {
            SubpoolKind::General => "everything",
            kind => subpool_name(kind),
        };
        let _ = writeln!(out, "{name}: {} from {}", show(s.len.get()), show(s.start.get()));
        let mut drawing = Drawing { label, paths, out: &mut out };
        drawing.node(Child { node: s.node, weight: 1 }, "", true);
    }
    out
}

/// What may be lost, in words.
pub fn survives(tolerates: u16) -> String {
    match tolerates {
        0 => "no member may be lost".to_owned(),
        1 => "any one member may be lost".to_owned(),
        n => format!("any {n} members may be lost"),
    }
}

/// The bandwidth to expect, and the notes: one line each.
fn remarks(label: &Label) -> Vec<String> {
    let facts = Facts::of(label);
    let mb = |b: braid_format::Bytes| b.get() / 1_000_000;
    let mut lines = Vec::new();
    if let (Some(read), Some(write)) = (facts.read, facts.write) {
        lines.push(format!(
            "expected for large files, from the members' speeds alone: read {} MB/s, write {} MB/s",
            mb(read),
            mb(write)
        ));
    }
    lines.extend(facts.notes.iter().map(|n| format!("note: {n}")));
    lines
}

/// The word for a member's state.
pub const fn state_name(state: MemberState) -> &'static str {
    match state {
        MemberState::Active => "active",
        MemberState::Failed => "failed",
        MemberState::Rebuilding => "rebuilding",
        MemberState::Spare => "spare",
        MemberState::Leaving => "leaving",
    }
}

/// The word for what a member is.
pub const fn member_state(member: &Member) -> &'static str {
    match member.state {
        MemberState::Failed if member.offline => OFFLINE,
        state => state_name(state),
    }
}

/// The word for a member that an operator has taken out for a while.
pub const OFFLINE: &str = "offline";

struct Drawing<'a> {
    label: &'a Label,
    paths: &'a [String],
    out: &'a mut String,
}

impl Drawing<'_> {
    fn node(&mut self, child: Child, before: &str, last: bool) {
        let Some(node) = self.label.nodes.get(usize::from(child.node)) else { return };
        let (branch, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let count = node.kind.children().len();
        let size = show(node.len.get());
        let mut text = match &node.kind {
            NodeKind::Slice { member, .. } => {
                let i = usize::from(member.get());
                let path = self.paths.get(i).map_or("?", String::as_str);
                let state = self.label.members.get(i).map_or_else(String::new, state);
                format!("{path}  member {member}, {size}, {state}")
            }
            NodeKind::Stripe { unit, .. } => {
                let (unit, width) = (show(unit.get()), show(width(&node.kind)));
                format!("stripe of {count}, {size}, unit {unit}, width {width}")
            }
            NodeKind::Mirror { .. } => format!("mirror of {count}, {size}"),
            NodeKind::Parity { unit, parity, .. } => {
                let data = count.saturating_sub((*parity).into());
                let (unit, width) = (show(unit.get()), show(width(&node.kind)));
                format!("parity {data}+{parity}, {size}, unit {unit}, width {width}")
            }
            NodeKind::Concat { .. } => format!("concat of {count}, {size}"),
        };
        if child.weight != 1 {
            let _ = write!(text, ", weight {}", child.weight);
        }
        let _ = writeln!(self.out, "{before}{branch}{text}");
        let below = format!("{before}{below}");
        // Children stand before their parents, so this ends.
        let children = node.kind.children();
        for (i, c) in children.iter().enumerate().filter(|(_, c)| c.node < child.node) {
            self.node(*c, &below, i + 1 == children.len());
        }
    }
}

fn state(member: &braid_format::label::Member) -> String {
    member_state(member).to_owned()
}

/// Bytes of data in a full row.
fn width(kind: &NodeKind) -> u64 {
    match kind {
        NodeKind::Stripe { unit, children } => {
            unit.get() * children.iter().map(|c| u64::from(c.weight)).sum::<u64>()
        }
        NodeKind::Parity { unit, parity, children, .. } => {
            unit.get() * (children.len() as u64).saturating_sub(u64::from(*parity))
        }
        _ => 0,
    }
}

/// The same, for programs.
pub fn as_json(label: &Label, paths: &[String]) -> Value {
    let facts = Facts::of(label);
    let segments = label.segments.iter().filter(|s| !s.is_hole()).map(|s| {
        json!({
            "subpool": subpool_name(s.subpool),
            "start": s.start.get(),
            "size": s.len.get(),
            "tree": node(label, paths, Child { node: s.node, weight: 1 }),
        })
    });
    let members = label.members.iter().enumerate().map(|(i, m)| {
        json!({
            "member": i,
            "path": paths.get(i).cloned().unwrap_or_else(|| m.path.clone()),
            "uuid": m.uuid.to_string(),
            "state": state(m),
            "size": m.device_size.get(),
        })
    });
    json!({
        "usable": facts.usable.get(),
        "expected_read": facts.read.map(braid_format::Bytes::get),
        "expected_write": facts.write.map(braid_format::Bytes::get),
        "raw": facts.raw.get(),
        "members_that_may_be_lost": facts.tolerates,
        "unused": facts.unused.iter().map(|u| u.get()).collect::<Vec<_>>(),
        "notes": facts.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "subpools": segments.collect::<Vec<_>>(),
        "members": members.collect::<Vec<_>>(),
    })
}

fn node(label: &Label, paths: &[String], child: Child) -> Value {
    let Some(found) = label.nodes.get(usize::from(child.node)) else { return Value::Null };
    let mut out = json!({
        "kind": found.kind.name(),
        "size": found.len.get(),
        "weight": child.weight,
    });
    match &found.kind {
        NodeKind::Slice { member, start } => {
            let i = usize::from(member.get());
            out["member"] = member.get().into();
            out["start"] = start.get().into();
            out["path"] = paths.get(i).cloned().into();
            if let Some(m) = label.members.get(i) {
                out["state"] = state(m).into();
                out["bus"] = m.bus.into();
                out["bytes_per_second"] = m.bytes_per_second.get().into();
            }
            return out;
        }
        NodeKind::Stripe { unit, .. } => {
            out["unit"] = unit.get().into();
            out["width"] = width(&found.kind).into();
        }
        NodeKind::Parity { unit, parity, .. } => {
            out["unit"] = unit.get().into();
            out["width"] = width(&found.kind).into();
            out["parity"] = (*parity).into();
        }
        NodeKind::Mirror { .. } | NodeKind::Concat { .. } => {}
    }
    let children = found.kind.children().iter().filter(|c| c.node < child.node);
    out["children"] = children.map(|c| node(label, paths, *c)).collect::<Vec<_>>().into();
    out
}
