//! From a [`Layout`] and the members to the topology of a label: its tree nodes and segments.
//!
//! Each device's space is given to the places that the layout string names it in, in their order,
//! metadata first. A place with a size gets that much; the one without gets what the others leave.
//! Then, from the leaves of the tree up, space is cut to whole units and put together.

use braid_format::label::{Label, Member, NodeKind, Segment, SubpoolKind, TreeNode};
use braid_format::{ByteOffset, Bytes, StripeUnit};

use super::bus::interleave;
use super::groups::{mirrors, parity_zones};
use super::shape::{Extent, Shape, Space, gcd};
use super::weights::Weights;
use super::{
    Layout, LayoutError, LayoutFault, Part, Place, Tree, Which, groups, metadata, resolve, weights,
};

/// What a layout became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The topology, children before parents.
    pub nodes: Vec<TreeNode>,
    /// The logical address space: metadata first.
    pub segments: Vec<Segment>,
    /// Of each member, the bytes of its data area that are in no slice.
    pub unused: Vec<Bytes>,
}

/// How [`build`] decides what a layout leaves open.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// Unit of stripes and groups that do not say their own.
    pub unit: StripeUnit,
    /// Leave the order of stripes as written, whatever bus the members are on.
    pub keep_order: bool,
    /// Weights of stripes that do not say them.
    pub weights: Weights,
}

/// Builds the topology.
///
/// # Errors
/// [`LayoutError`]: why it cannot be, where in the text.
pub fn build(
    layout: &Layout,
    members: &[Member],
    options: &BuildOptions,
) -> Result<Built, LayoutError> {
    if let Weights::List(list) = &options.weights {
        if list.len() != members.len() {
            let (count, devices) = (list.len(), members.len());
            return Err(LayoutFault::WeightCount { count, devices }.into());
        }
        if let Some(bad) = list.iter().find(|w| !(1..=weights::MAX).contains(*w)) {
            return Err(LayoutFault::BadWeight { text: bad.to_string() }.into());
        }
    }
    let mut layout = metadata::split(resolve::resolve(layout, members)?, members)?;
    let rank = |kind| match kind {
        SubpoolKind::Metadata => 0,
        SubpoolKind::Journal => 1,
        SubpoolKind::Data | SubpoolKind::General | SubpoolKind::Hole => 2,
    };
    layout.subpools.sort_by_key(|s| rank(s.kind));
    // Members of many different sizes make many zones: the shortest go if a label cannot hold all.
    let mut least = 0;
    loop {
        let built = attempt(&layout, members, options, least)?;
        let striped = || built.nodes.iter().any(|n| matches!(n.kind, NodeKind::Stripe { .. }));
        if matches!(options.weights, Weights::List(_)) && members.len() > 1 && !striped() {
            return Err(LayoutFault::WeightsOfGroups.into());
        }
        let nodes = built.nodes.len();
        if nodes <= Label::NODES_MAX {
            return Ok(built);
        }
        least = (least * 2).max(Label::ALIGN.0);
        if members.iter().all(|m| m.data_len.0 < least) {
            return Err(LayoutFault::TooManyNodes { nodes, max: Label::NODES_MAX }.into());
        }
    }
}

fn attempt(
    layout: &Layout,
    members: &[Member],
    options: &BuildOptions,
    least: u64,
) -> Result<Built, LayoutError> {
    let mut builder = Builder::new(layout, members, options, least)?;
    let mut built = Built { nodes: Vec::new(), segments: Vec::new(), unused: Vec::new() };
    let mut start = 0;
    for s in &layout.subpools {
        let shape = builder.top(&s.tree)?;
        let len = shape.len();
        if len == 0 {
            return Err(LayoutError::at(&s.tree.place, LayoutFault::NothingUsable));
        }
        let node = shape.emit(&mut built.nodes);
        let (start_at, node_start) = (ByteOffset(start), ByteOffset(0));
        let subpool = s.kind;
        built.segments.push(Segment {
            start: start_at,
            len: Bytes(len),
            node,
            node_start,
            subpool,
        });
        start += len;
    }
    built.unused = unused(&built.nodes, members);
    Ok(built)
}

/// Of each member, what is in no slice.
pub(super) fn unused(nodes: &[TreeNode], members: &[Member]) -> Vec<Bytes> {
    let mut unused: Vec<Bytes> = members.iter().map(|m| m.data_len).collect();
    for node in nodes {
        if let NodeKind::Slice { member, .. } = node.kind
            && let Some(rest) = unused.get_mut(usize::from(member.0))
        {
            rest.0 = rest.0.saturating_sub(node.len.0);
        }
    }
    unused
}

/// A child of a node under construction.
struct Item {
    shape: Shape,
    weight: Option<u16>,
    place: Place,
}

fn one_or_concat(mut shapes: Vec<Shape>) -> Shape {
    if shapes.len() == 1 { shapes.swap_remove(0) } else { Shape::Concat(shapes) }
}

struct Builder<'a> {
    members: &'a [Member],
    options: &'a BuildOptions,
    unit: u64,
    least: u64,
    /// Of each device: the next free byte, and what its places with a size take together.
    cursor: Vec<u64>,
    sized: Vec<u64>,
}

impl<'a> Builder<'a> {
    /// Sees what each device must give.
    fn new(
        layout: &Layout,
        members: &'a [Member],
        options: &'a BuildOptions,
        least: u64,
    ) -> Result<Self, LayoutError> {
        let unit = options.unit.bytes().0;
        let n = members.len();
        let mut builder =
            Self { members, options, unit, least, cursor: vec![0; n], sized: vec![0; n] };
        let mut whole = vec![false; n];
        for s in &layout.subpools {
            builder.demand(&s.tree, &mut whole)?;
        }
        Ok(builder)
    }

    fn demand(&mut self, tree: &Tree, whole: &mut [bool]) -> Result<(), LayoutError> {
        if let Part::Devices { which: Which::One(place), size } = tree.part {
            let i = usize::from(place);
            let (Some(m), Some(sized), Some(whole)) =
                (self.members.get(i), self.sized.get_mut(i), whole.get_mut(i))
            else {
                return Ok(());
            };
            let path = || m.path.clone();
            match size {
                None if core::mem::replace(whole, true) => {
                    let fault = LayoutFault::TwiceWhole { path: path() };
                    return Err(LayoutError::at(&tree.place, fault));
                }
                None => {}
                Some(asked) => {
                    let left = m.data_len.0 - *sized;
                    let room = asked.checked_next_multiple_of(StripeUnit::GRAIN.0);
                    let Some(room) = room.filter(|r| *r <= left) else {
                        let fault = LayoutFault::NoRoom { path: path(), asked, left };
                        return Err(LayoutError::at(&tree.place, fault));
                    };
                    *sized += room;
                }
            }
        }
        tree.children().iter().try_for_each(|child| self.demand(child, whole))
    }

    fn extent(&mut self, place: u16, size: Option<u64>, at: &Place) -> Result<Extent, LayoutError> {
        let i = usize::from(place);
        let member = self.members.get(i);
        let (data, path) = member.map_or((0, ""), |m| (m.data_len.0, m.path.as_str()));
        let sized = self.sized.get(i).copied().unwrap_or(0);
        let len = match size {
            Some(size) => size.next_multiple_of(StripeUnit::GRAIN.0),
            None => data - sized,
        };
        if len == 0 {
            let fault = LayoutFault::NoneLeft { path: path.to_owned() };
            return Err(LayoutError::at(at, fault));
        }
        let mut start = 0;
        if let Some(cursor) = self.cursor.get_mut(i) {
            start = *cursor;
            *cursor += len;
        }
        Ok(Extent { member: place, start, len })
    }

    fn top(&mut self, tree: &Tree) -> Result<Shape, LayoutError> {
        if tree.weight.is_some() {
            return Err(LayoutError::at(&tree.place, LayoutFault::WeightNotHere));
        }
        let mut shape = self.shape(tree)?;
        shape.trim(self.unit);
        Ok(shape)
    }

    fn shape(&mut self, tree: &Tree) -> Result<Shape, LayoutError> {
        let unit_of =
            |unit: Option<StripeUnit>, default: u64| unit.map_or(default, |u| u.bytes().0);
        match &tree.part {
            Part::Devices { which: Which::One(place), size } => {
                Ok(Shape::Space(vec![self.extent(*place, *size, &tree.place)?]))
            }
            Part::Devices { .. } => Err(LayoutError::at(&tree.place, LayoutFault::Several)),
            Part::Stripe { unit, .. } => {
                let items = self.items(tree, true)?;
                self.stripe(unit.map(|u| u.bytes().0), items, &tree.place)
            }
            Part::Concat { .. } => {
                let items = self.items(tree, false)?;
                Ok(self.concat(items))
            }
            Part::Mirror { .. } => {
                let spaces = self.spaces(tree, "mirror")?;
                let count = spaces.len();
                if !(2..=4).contains(&count) {
                    return Err(LayoutError::at(&tree.place, LayoutFault::MirrorWays { count }));
                }
                Ok(one_or_concat(groups::mirror_zones(spaces)))
            }
            Part::Mirrors { unit, copies, .. } => {
                let spaces = self.spaces(tree, "mirror")?;
                let (count, copies) = (spaces.len(), *copies);
                if count < usize::from(copies) {
                    let fault = LayoutFault::MirrorsWays { copies, count };
                    return Err(LayoutError::at(&tree.place, fault));
                }
                let unit = unit_of(*unit, self.unit);
                // Cuts are at whole MiB where the unit allows.
                let grain = if Label::ALIGN.0.is_multiple_of(unit) { Label::ALIGN.0 } else { unit };
                let bus = |space: Space| groups::Part { bus: self.bus(&space), space };
                let parts = spaces.into_iter().map(bus).collect();
                let mut all = mirrors(parts, copies, grain, self.least);
                if all.len() == 1 {
                    return Ok(all.swap_remove(0));
                }
                let item = |shape| Item { shape, weight: None, place: tree.place.clone() };
                self.stripe(Some(unit), all.into_iter().map(item).collect(), &tree.place)
            }
            Part::Parity { unit, parity, .. } => {
                let spaces = self.spaces(tree, "parity")?;
                let (count, least) = (spaces.len(), usize::from(*parity) + 1);
                if count < least {
                    let fault = LayoutFault::ParityWidth { parity: *parity, count, least };
                    return Err(LayoutError::at(&tree.place, fault));
                }
                let spaces = self.in_order(spaces, |s| self.bus(s));
                let unit = unit_of(*unit, self.unit);
                Ok(one_or_concat(parity_zones(spaces, *parity, unit, self.least)))
            }
        }
    }

    /// The children of a node; mirrors within a stripe become its own children.
    fn items(&mut self, tree: &Tree, weighable: bool) -> Result<Vec<Item>, LayoutError> {
        let mut items = Vec::new();
        for child in tree.children() {
            if child.weight.is_some() && !weighable {
                return Err(LayoutError::at(&child.place, LayoutFault::WeightNotHere));
            }
            let shape = self.shape(child)?;
            let place = child.place.clone();
            match (shape, &child.part) {
                (Shape::Stripe { children, .. }, Part::Mirrors { .. }) if weighable => {
                    let weight = child.weight;
                    let one = |(shape, _)| Item { shape, weight, place: place.clone() };
                    items.extend(children.into_iter().map(one));
                }
                (shape, _) => items.push(Item { shape, weight: child.weight, place }),
            }
        }
        Ok(items)
    }

    /// The children of a group: space, no member in two of them.
    fn spaces(&mut self, tree: &Tree, kind: &'static str) -> Result<Vec<Space>, LayoutError> {
        let mut spaces = Vec::new();
        for item in self.items(tree, false)? {
            match item.shape {
                Shape::Space(mut space) => {
                    // Seams within a column are at whole units, or a unit would have two places.
                    let last = space.pop();
                    for e in &mut space {
                        e.len = e.len / self.unit * self.unit;
                    }
                    space.extend(last);
                    spaces.push(space);
                }
                other => {
                    let (outer, inner) = (kind.to_owned(), other.name());
                    let fault = if other.has_stripe() {
                        LayoutFault::WrongWayRound { outer, inner }
                    } else {
                        LayoutFault::GroupOfGroups { outer, inner }
                    };
                    return Err(LayoutError::at(&item.place, fault));
                }
            }
        }
        let all: Vec<&Space> = spaces.iter().collect();
        if let Some(m) = groups::shared(&all) {
            let path =
                self.members.get(usize::from(m)).map_or_else(String::new, |m| m.path.clone());
            return Err(LayoutError::at(&tree.place, LayoutFault::Shared { path, kind }));
        }
        Ok(spaces)
    }

    fn bus(&self, space: &[Extent]) -> u16 {
        let first = space.first().and_then(|e| self.members.get(usize::from(e.member)));
        first.map_or(0, |m| m.bus)
    }

    /// Interleaved over the buses, unless the order is to be kept.
    fn in_order<T>(&self, things: Vec<T>, bus: impl Fn(&T) -> u16) -> Vec<T> {
        if self.options.keep_order {
            return things;
        }
        let buses: Vec<u16> = things.iter().map(bus).collect();
        let mut things: Vec<Option<T>> = things.into_iter().map(Some).collect();
        let order = interleave(&buses);
        order.into_iter().filter_map(|i| things.get_mut(i).and_then(Option::take)).collect()
    }

    fn concat(&self, items: Vec<Item>) -> Shape {
        let mut parts = Vec::new();
        for mut item in items {
            item.shape.trim(self.unit);
            match (item.shape, parts.last_mut()) {
                (Shape::Concat(of), _) => parts.extend(of),
                (Shape::Space(next), Some(Shape::Space(space))) => space.extend(next),
                (shape, _) => parts.push(shape),
            }
        }
        parts.retain(|p| p.len() > 0);
        match parts.as_slice() {
            [Shape::Space(_)] => parts.swap_remove(0),
            _ => Shape::Concat(parts),
        }
    }

    /// A stripe. Without a unit of its own, a parity group takes a whole row of its own at a time:
    /// a full row of the stripe is then one of each group.
    fn stripe(
        &self,
        unit: Option<u64>,
        items: Vec<Item>,
        place: &Place,
    ) -> Result<Shape, LayoutError> {
        if let Some(item) = items.iter().find(|i| i.shape.has_stripe()) {
            return Err(LayoutError::at(&item.place, LayoutFault::StripeOfStripes));
        }
        let items = self.in_order(items, |i| {
            let m = i.shape.member().and_then(|m| self.members.get(usize::from(m)));
            m.map_or(0, |m| m.bus)
        });
        let bytes: Vec<u64> = items
            .iter()
            .map(|i| match (unit, i.shape.parity()) {
                (Some(unit), _) => unit,
                (None, Some((unit, data))) => unit * data,
                (None, None) => self.unit,
            })
            .collect();
        let weights = self.weights(&items, &bytes)?;
        let step = bytes.iter().copied().fold(0, gcd);
        let step = if step <= StripeUnit::MAX.0 { step } else { self.unit };
        let units = |(bytes, weight): (&u64, &u16)| (bytes / step).max(1) * u64::from(*weight);
        let units: Vec<u64> = bytes.iter().zip(&weights).map(units).collect();
        let row: u64 = units.iter().sum();
        if row > Label::ROW_MAX {
            let fault = LayoutFault::LongRow { units: row, max: Label::ROW_MAX };
            return Err(LayoutError::at(place, fault));
        }
        let mut children = Vec::with_capacity(items.len());
        for (mut item, units) in items.into_iter().zip(units) {
            item.shape.trim(step * units);
            if item.shape.len() > 0 {
                // A row is at most `ROW_MAX` units.
                children.push((item.shape, u16::try_from(units).unwrap_or(u16::MAX)));
            }
        }
        if children.is_empty() {
            return Err(LayoutError::at(place, LayoutFault::NothingUsable));
        }
        Ok(Shape::Stripe { unit: step, children })
    }

    /// Weights of the children of a stripe, in rows of `bytes`.
    fn weights(&self, items: &[Item], bytes: &[u64]) -> Result<Vec<u16>, LayoutError> {
        if items.iter().any(|i| i.weight.is_some()) {
            return Ok(items.iter().map(|i| i.weight.unwrap_or(1)).collect());
        }
        match &self.options.weights {
            Weights::None => Ok(vec![1; items.len()]),
            Weights::Speed => {
                let least = bytes.iter().copied().min().unwrap_or(1).max(1);
                let speed = |(i, bytes): (&Item, &u64)| {
                    i.shape.speed(self.members) / (bytes / least).max(1)
                };
                let speeds: Vec<u64> = items.iter().zip(bytes).map(speed).collect();
                Ok(weights::by_speed(&speeds))
            }
            Weights::List(list) => items
                .iter()
                .map(|i| match &i.shape {
                    Shape::Space(space) => {
                        let first = space.first().map_or(0, |e| usize::from(e.member));
                        Ok(list.get(first).copied().unwrap_or(1))
                    }
                    _ => Err(LayoutError::at(&i.place, LayoutFault::WeightsOfGroups)),
                })
                .collect(),
        }
    }
}
