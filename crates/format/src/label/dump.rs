//! A label as text, for people: `braid dump-label`.

use core::fmt;

use super::contents::{Child, Label, Member, NodeKind};

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pool         {} ({})", self.name, self.pool)?;
        writeln!(f, "epoch        {} (change {})", self.epoch, self.change_id)?;
        writeln!(f, "this member  {}", self.member)?;
        writeln!(f, "size         {}", self.size())?;
        writeln!(f, "stripe unit  {}", self.stripe_unit)?;
        writeln!(f, "lock sector  {}", self.lock_sector)?;
        writeln!(f, "block size   {}", self.block_size)?;
        writeln!(f, "created      {} (Unix seconds)", self.created)?;
        writeln!(f, "changed      {} (Unix seconds)", self.changed)?;
        writeln!(
            f,
            "features     compat {:#x}, ro-compat {:#x}, incompat {:#x}",
            self.features_compat,
            self.features_ro_compat,
            self.features_incompat()
        )?;
        for (key, value) in &self.properties {
            writeln!(f, "property     {key}={value}")?;
        }
        writeln!(f, "members")?;
        for (i, member) in self.members.iter().enumerate() {
            line(f, i, member)?;
        }
        writeln!(f, "topology")?;
        for s in &self.segments {
            let end = s.start.0.saturating_add(s.len.0);
            if s.is_hole() {
                writeln!(f, "  {}..{end} hole, of {} groups", s.start, s.node)?;
                continue;
            }
            writeln!(f, "  {}..{end} {:?}, from byte {} of", s.start, s.subpool, s.node_start)?;
            tree(f, self, Child { node: s.node, weight: 1 }, 2)?;
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, i: usize, m: &Member) -> fmt::Result {
    write!(f, "  {i:>3} {} {:?} {:?}", m.uuid, m.state, m.class)?;
    write!(f, ", data {} at {}, device {}", m.data_len, m.data_start, m.device_size)?;
    if let Some(successor) = m.successor {
        write!(f, ", succeeded by {successor}")?;
    }
    writeln!(f, ", last at {}", m.path)
}

fn tree(f: &mut fmt::Formatter<'_>, label: &Label, child: Child, depth: usize) -> fmt::Result {
    let Some(node) = label.nodes.get(usize::from(child.node)) else { return Ok(()) };
    write!(
        f,
        "{:indent$}{} {}, {} bytes",
        "",
        node.kind.name(),
        child.node,
        node.len,
        indent = depth * 2
    )?;
    match &node.kind {
        NodeKind::Slice { member, start } => write!(f, ", member {member} from {start}")?,
        NodeKind::Stripe { unit, .. } => write!(f, ", unit {unit}")?,
        NodeKind::Parity { unit, parity, code, .. } => {
            write!(f, ", unit {unit}, parity {parity}, code {code}")?;
        }
        NodeKind::Mirror { .. } | NodeKind::Concat { .. } => {}
    }
    if child.weight != 1 {
        write!(f, ", weight {}", child.weight)?;
    }
    writeln!(f)?;
    // Children stand before their parents; what does not (an unverified label) is left out, so
    // this ends.
    let below = node.kind.children().iter().filter(|c| c.node < child.node);
    below.copied().try_for_each(|c| tree(f, label, c, depth + 1))
}
