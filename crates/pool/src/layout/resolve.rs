//! From devices as written to places in the list.

use braid_format::label::Member;

use super::{Layout, LayoutError, LayoutFault, Part, Place, Subpool, Tree, Which};

/// The devices, and which of them a layout names.
struct Names<'a> {
    members: &'a [Member],
    named: Vec<bool>,
}

/// The layout with each device as a node of its own, by its place. Every device is used.
pub(super) fn resolve(layout: &Layout, members: &[Member]) -> Result<Layout, LayoutError> {
    let mut names = Names { members, named: vec![false; members.len()] };
    for s in &layout.subpools {
        names.note(&s.tree)?;
    }
    let one = |s: &Subpool| {
        let mut trees = names.trees(&s.tree)?;
        let tree = trees.pop().filter(|_| trees.is_empty());
        let tree = tree.ok_or_else(|| LayoutError::at(&s.tree.place, LayoutFault::Several))?;
        Ok(Subpool { kind: s.kind, tree })
    };
    let subpools = layout.subpools.iter().map(one).collect::<Result<Vec<_>, LayoutError>>()?;
    let mut used = vec![false; members.len()];
    for s in &subpools {
        s.tree.each_device(&mut |place, _| {
            if let Some(used) = used.get_mut(usize::from(place)) {
                *used = true;
            }
        });
    }
    match members.iter().zip(used).find(|(_, used)| !used) {
        Some((m, _)) => Err(LayoutFault::NotUsed { path: m.path.clone() }.into()),
        None => Ok(Layout { subpools }),
    }
}

/// The word for a node as it is written.
fn kind_of(tree: &Tree) -> &'static str {
    match &tree.part {
        Part::Devices { .. } => "device",
        Part::Stripe { .. } => "stripe",
        Part::Mirror { .. } => "mirror",
        Part::Mirrors { copies: 2, .. } => "mirror+1",
        Part::Mirrors { copies: 3, .. } => "mirror+2",
        Part::Mirrors { .. } => "mirror+3",
        Part::Parity { parity: 1, .. } => "parity+1",
        Part::Parity { .. } => "parity+2",
        Part::Concat { .. } => "concat",
    }
}

impl Names<'_> {
    fn note(&mut self, tree: &Tree) -> Result<(), LayoutError> {
        if let Part::Devices { which, .. } = &tree.part
            && !matches!(which, Which::All | Which::Rest)
        {
            for place in self.places(which, &tree.place)? {
                if let Some(named) = self.named.get_mut(usize::from(place)) {
                    *named = true;
                }
            }
        }
        tree.children().iter().try_for_each(|child| self.note(child))
    }

    fn trees(&self, tree: &Tree) -> Result<Vec<Tree>, LayoutError> {
        let mut out = tree.clone();
        match &mut out.part {
            Part::Devices { which, size } => {
                let (places, size) = (self.places(which, &tree.place)?, *size);
                let one = |place| Tree {
                    part: Part::Devices { which: Which::One(place), size },
                    ..tree.clone()
                };
                return Ok(places.into_iter().map(one).collect());
            }
            Part::Stripe { of, .. }
            | Part::Mirror { of }
            | Part::Mirrors { of, .. }
            | Part::Parity { of, .. }
            | Part::Concat { of } => {
                if of.is_empty() {
                    let kind = kind_of(tree);
                    return Err(LayoutError::at(&tree.place, LayoutFault::Empty { kind }));
                }
                let each = of.iter().map(|t| self.trees(t)).collect::<Result<Vec<_>, _>>()?;
                *of = each.into_iter().flatten().collect();
            }
        }
        Ok(vec![out])
    }

    fn places(&self, which: &Which, at: &Place) -> Result<Vec<u16>, LayoutError> {
        let count = self.members.len();
        let within = |place: u16| {
            let fault = LayoutFault::NoSuchPlace { place, count };
            if usize::from(place) < count { Ok(()) } else { Err(LayoutError::at(at, fault)) }
        };
        let all = (0_u16..).zip(self.members);
        match which {
            Which::All => Ok(all.map(|(i, _)| i).collect()),
            Which::Rest => {
                let free = all.zip(&self.named).filter(|(_, named)| !**named);
                let free: Vec<u16> = free.map(|((i, _), _)| i).collect();
                let fault = LayoutFault::NothingLeft;
                if free.is_empty() { Err(LayoutError::at(at, fault)) } else { Ok(free) }
            }
            Which::One(place) => within(*place).map(|()| vec![*place]),
            Which::Range(from, to) => {
                if from > to {
                    let fault = LayoutFault::Backwards { from: *from, to: *to };
                    return Err(LayoutError::at(at, fault));
                }
                within(*to)?;
                Ok((*from..=*to).collect())
            }
            Which::Named(name) => self.find(name, at).map(|i| vec![i]),
        }
    }

    /// By the whole path, else by its last part.
    fn find(&self, name: &str, at: &Place) -> Result<u16, LayoutError> {
        let all = || (0_u16..).zip(self.members);
        if let Some((i, _)) = all().find(|(_, m)| m.path == name) {
            return Ok(i);
        }
        let last = |path: &str| path.rsplit('/').next() == Some(name);
        let mut found = all().filter(|(_, m)| last(&m.path));
        match (found.next(), found.next()) {
            (Some((i, _)), None) => Ok(i),
            (Some((_, a)), Some((_, b))) => {
                let (first, second) = (a.path.clone(), b.path.clone());
                let fault = LayoutFault::Ambiguous { name: name.to_owned(), first, second };
                Err(LayoutError::at(at, fault))
            }
            (None, _) => {
                let mut given: Vec<&str> =
                    self.members.iter().take(8).map(|m| m.path.as_str()).collect();
                if self.members.len() > given.len() {
                    given.push("...");
                }
                let given = given.join(", ");
                let fault = LayoutFault::NoSuchDevice { name: name.to_owned(), given };
                Err(LayoutError::at(at, fault))
            }
        }
    }
}
