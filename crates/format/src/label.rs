//! Member labels: who belongs to which pool, and the whole topology, on every member.
//! docs/FORMAT.md section 1.
//!
//! ```text
//!  0      64 KiB      192 KiB     1 MiB                    end - 1 MiB        end
//!  | free | copy 0 ... | reserved  | data area ............. | copy 1 ... | free |
//!         one write each; the bytes before copy 0 belong to nobody; the reserved ones begin with
//!         the claim of a change ([`crate::redundancy::RawClaim`])
//! ```
//! A label is [`RawLabel`], then `member_count` [`RawMember`]s, `node_count` [`RawTreeNode`]s,
//! `edge_count` [`RawEdge`]s, `segment_count` [`RawSegment`]s, `properties_len` bytes of [`properties`], zeros to a
//! multiple of 4 KiB. One CRC covers all of it. The labels of a pool differ only in `copy`, `at`, `member_index` and
//! `member_uuid`, so any one of them can restore all the others.
//!
//! The topology is a forest: a node's children stand before it in the table and have no other
//! parent. The pool's logical address space is a list of segments, each showing a range of one
//! node. A change of shape under way is then two segments and a moving boundary, and subpools are
//! segments of another kind: neither needs a new format.
//!
//! Invariants (checked by `decode`, and by `encode` before it writes):
//! * every index is inside its table, every slice inside its member's data area;
//! * segments follow each other without gap from logical byte 0, show only nodes without a
//!   parent, and no byte of a node twice;
//! * only a leaving member has a successor: a spare with the same data area, and no other's;
//! * no two slices of one member overlap, unless a change of shape is under way.
//!
//! Together: no byte of a member has two logical addresses.

use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::FormatError;
use crate::crc::crc32c_with_hole;
use crate::units::{ByteOffset, Bytes, Epoch, MemberIndex};

mod contents;
pub mod properties;
mod raw;

use contents::WHAT;
pub use contents::{
    Child, DeviceClass, Label, Member, MemberState, NodeKind, Segment, SubpoolKind, TreeNode,
};
pub use raw::{RawEdge, RawLabel, RawMember, RawSegment, RawTreeNode, features};

impl RawLabel {
    /// Identifies a member to a person with a hex editor.
    pub const MAGIC: [u8; 8] = *b"BRAIDPL\0";
    /// Revision.
    pub const REVISION: u32 = 1;
}

impl Label {
    /// Bytes this label takes on disk, a multiple of [`Label::GRAIN`].
    pub fn encoded_len(&self) -> usize {
        let edges: usize = self.nodes.iter().map(|n| n.kind.children().len()).sum();
        (size_of::<RawLabel>()
            + self.members.len() * size_of::<RawMember>()
            + self.nodes.len() * size_of::<RawTreeNode>()
            + edges * size_of::<RawEdge>()
            + self.segments.len() * size_of::<RawSegment>()
            + properties::len(&self.properties))
        .next_multiple_of(Self::GRAIN)
    }

    /// Writes copy `copy`, which will stand at `at`, to the start of `buf` and returns its length.
    ///
    /// # Errors
    /// [`FormatError::BadField`] when the label breaks an invariant of the format,
    /// [`FormatError::TooShort`] when it does not fit in `buf` ([`Label::LEN_MAX`] always does).
    pub fn encode(&self, copy: u32, at: ByteOffset, buf: &mut [u8]) -> Result<usize, FormatError> {
        let mut raw = self.raw_head(copy, at)?;
        check::check(self, at.0)?;
        let len = self.encoded_len();
        let short = FormatError::TooShort { what: WHAT, len: buf.len() };
        let buf = buf.get_mut(..len).filter(|_| len <= Self::LEN_MAX).ok_or(short)?;
        buf.fill(0);
        let mut first_edge = 0_u16;
        let mut out = Writer { rest: buf };
        raw.len = U32::new(as_u32(len));
        out.put(&raw);
        for member in &self.members {
            out.put(&member.raw());
        }
        for node in &self.nodes {
            out.put(&node.raw(first_edge));
            first_edge += as_u16(node.kind.children().len());
        }
        for child in self.nodes.iter().flat_map(|n| n.kind.children()) {
            out.put(&RawEdge { node: child.node.into(), weight: child.weight.into() });
        }
        for s in &self.segments {
            out.put(&RawSegment {
                start: s.start.0.into(),
                len: s.len.0.into(),
                node_start: s.node_start.0.into(),
                node: s.node.into(),
                subpool: (s.subpool as u16).into(),
                flags: U32::ZERO,
            });
        }
        out.put_bytes(&properties::encode(&self.properties));
        raw.crc = crc32c_with_hole(buf, core::mem::offset_of!(RawLabel, crc)).into();
        Writer { rest: buf }.put(&raw);
        Ok(len)
    }

    fn raw_head(&self, copy: u32, at: ByteOffset) -> Result<RawLabel, FormatError> {
        let bad = |field, value: usize| FormatError::BadField {
            what: WHAT,
            at: at.0,
            field,
            value: value as u64,
        };
        if self.name.is_empty() || self.name.len() > Self::NAME_MAX {
            return Err(bad("name length", self.name.len()));
        }
        let own = self
            .members
            .get(usize::from(self.member.0))
            .ok_or_else(|| bad("own member index", usize::from(self.member.0)))?;
        let edges: usize = self.nodes.iter().map(|n| n.kind.children().len()).sum();
        check::limits(self, edges, at.0)?;
        Ok(RawLabel {
            magic: RawLabel::MAGIC,
            crc: U32::ZERO,
            len: U32::ZERO,
            revision: RawLabel::REVISION.into(),
            copy: copy.into(),
            at: at.0.into(),
            epoch: self.epoch.0.into(),
            features_compat: self.features_compat.into(),
            features_ro_compat: self.features_ro_compat.into(),
            features_incompat: self.features_incompat().into(),
            pool_uuid: self.pool.into_bytes(),
            name: padded(&self.name),
            member_uuid: own.uuid.into_bytes(),
            member_index: self.member.0.into(),
            member_count: as_u16(self.members.len()).into(),
            node_count: as_u16(self.nodes.len()).into(),
            edge_count: as_u16(edges).into(),
            segment_count: as_u16(self.segments.len()).into(),
            properties_len: as_u16(properties::len(&self.properties)).into(),
            lock_sector: u32::try_from(self.lock_sector.0)
                .map_err(|_| bad("lock sector", self.lock_sector.to_usize()))?
                .into(),
            block_size: u32::try_from(self.block_size.0)
                .map_err(|_| bad("block size", self.block_size.to_usize()))?
                .into(),
            flags: U32::ZERO,
            stripe_unit: self.stripe_unit.0.into(),
            created: self.created.into(),
            changed: self.changed.into(),
            change_id: self.change_id.into_bytes(),
            reserved: [0; 288],
        })
    }

    /// Verifies and decodes the label that was read from `at`. `buf` may be longer than the label
    /// ([`Label::LEN_MAX`] is always enough). Never panics. Returns which copy it says it is.
    ///
    /// # Errors
    /// [`FormatError`]: which fact about the bytes is wrong.
    pub fn decode(buf: &[u8], at: ByteOffset) -> Result<(Self, u32), FormatError> {
        let raw = Self::verified_head(buf, at)?;
        let len = usize::try_from(raw.len.get()).unwrap_or(0);
        let mut rest = buf.get(size_of::<RawLabel>()..len).unwrap_or(&[]);
        let members: &[RawMember] = take(&mut rest, raw.member_count.get())?;
        let nodes: &[RawTreeNode] = take(&mut rest, raw.node_count.get())?;
        let edges: &[RawEdge] = take(&mut rest, raw.edge_count.get())?;
        let segments: &[RawSegment] = take(&mut rest, raw.segment_count.get())?;
        let bad = |field, value: u64| FormatError::BadField { what: WHAT, at: at.0, field, value };
        let properties = rest.get(..usize::from(raw.properties_len.get()));
        let properties = properties.and_then(properties::decode);
        let label = Self {
            pool: Uuid::from_bytes(raw.pool_uuid),
            name: unpadded(&raw.name).ok_or_else(|| bad("name (not UTF-8)", 0))?,
            epoch: Epoch(raw.epoch.get()),
            change_id: Uuid::from_bytes(raw.change_id),
            member: MemberIndex(raw.member_index.get()),
            features_compat: raw.features_compat.get(),
            features_ro_compat: raw.features_ro_compat.get(),
            lock_sector: Bytes(raw.lock_sector.get().into()),
            block_size: Bytes(raw.block_size.get().into()),
            reshaping: raw.features_incompat.get() & features::RESHAPE != 0,
            ended: raw.features_incompat.get() & features::ENDED != 0,
            stripe_unit: Bytes(raw.stripe_unit.get()),
            created: raw.created.get(),
            changed: raw.changed.get(),
            members: members.iter().map(|m| m.decode(at)).collect::<Result<_, _>>()?,
            nodes: nodes.iter().map(|n| n.decode(edges, at)).collect::<Result<_, _>>()?,
            segments: segments.iter().map(|s| s.decode(at)).collect::<Result<_, _>>()?,
            properties: properties.ok_or_else(|| bad("properties", 0))?,
        };
        check::limits(&label, edges.len(), at.0)?;
        check::check(&label, at.0)?;
        let own = label.members.get(usize::from(label.member.0));
        if own.is_none_or(|m| m.uuid.as_bytes() != &raw.member_uuid) {
            return Err(bad("own member index", label.member.0.into()));
        }
        Ok((label, raw.copy.get()))
    }

    /// The head, after magic, length, checksum, address, revision and features have been verified.
    fn verified_head(buf: &[u8], at: ByteOffset) -> Result<RawLabel, FormatError> {
        let short = FormatError::TooShort { what: WHAT, len: buf.len() };
        let (raw, _) = RawLabel::read_from_prefix(buf).map_err(|_| short.clone())?;
        if raw.magic != RawLabel::MAGIC {
            let found = u64::from_be_bytes(raw.magic);
            return Err(FormatError::BadMagic { what: WHAT, at: at.0, found });
        }
        let bad = |field, value: u64| FormatError::BadField { what: WHAT, at: at.0, field, value };
        let len = usize::try_from(raw.len.get()).unwrap_or(usize::MAX);
        if len == 0 || len > Self::LEN_MAX || !len.is_multiple_of(Self::GRAIN) {
            return Err(bad("length", raw.len.get().into()));
        }
        let bytes = buf.get(..len).ok_or(short)?;
        let expected = crc32c_with_hole(bytes, core::mem::offset_of!(RawLabel, crc));
        let found = raw.crc.get();
        if expected != found {
            return Err(FormatError::ChecksumMismatch { what: WHAT, at: at.0, expected, found });
        }
        if raw.at.get() != at.0 {
            return Err(FormatError::WrongAddress { what: WHAT, at: at.0, found: raw.at.get() });
        }
        if raw.revision.get() != RawLabel::REVISION {
            let (found, known) = (raw.revision.get(), RawLabel::REVISION);
            return Err(FormatError::OtherRevision { what: WHAT, at: at.0, found, known });
        }
        if raw.copy.get() > 1 {
            return Err(bad("copy", raw.copy.get().into()));
        }
        let unknown = raw.features_incompat.get() & !features::KNOWN;
        if unknown != 0 {
            return Err(FormatError::UnknownFeature { what: WHAT, bits: unknown });
        }
        let unknown = raw.features_ro_compat.get() & !features::KNOWN_RO;
        if unknown != 0 {
            return Err(FormatError::UnknownChange { what: WHAT, bits: unknown });
        }
        Ok(raw)
    }
}

impl Member {
    fn raw(&self) -> RawMember {
        RawMember {
            uuid: self.uuid.into_bytes(),
            data_start: self.data_start.0.into(),
            data_len: self.data_len.0.into(),
            device_size: self.device_size.0.into(),
            state_epoch: self.state_epoch.0.into(),
            bytes_per_second: self.bytes_per_second.0.into(),
            state: (self.state as u16).into(),
            class: self.class as u8,
            flags: if self.suspected { RawMember::SUSPECTED } else { 0 }
                | if self.offline { RawMember::OFFLINE } else { 0 },
            bus: self.bus.into(),
            successor: self.successor.map_or(0, |s| s.0.saturating_add(1)).into(),
            path: padded(&self.path),
            serial: padded(&self.serial),
        }
    }
}

impl RawMember {
    fn decode(&self, at: ByteOffset) -> Result<Member, FormatError> {
        let bad = |field, value: u16| FormatError::BadField {
            what: WHAT,
            at: at.0,
            field,
            value: value.into(),
        };
        if self.flags & !(Self::SUSPECTED | Self::OFFLINE) != 0 {
            return Err(bad("member flags", self.flags.into()));
        }
        Ok(Member {
            uuid: Uuid::from_bytes(self.uuid),
            data_start: ByteOffset(self.data_start.get()),
            data_len: Bytes(self.data_len.get()),
            device_size: Bytes(self.device_size.get()),
            state: MemberState::from_u16(self.state.get())
                .ok_or_else(|| bad("member state", self.state.get()))?,
            state_epoch: Epoch(self.state_epoch.get()),
            suspected: self.flags & Self::SUSPECTED != 0,
            offline: self.flags & Self::OFFLINE != 0,
            class: DeviceClass::from_u8(self.class)
                .ok_or_else(|| bad("device class", self.class.into()))?,
            bytes_per_second: Bytes(self.bytes_per_second.get()),
            bus: self.bus.get(),
            successor: self.successor.get().checked_sub(1).map(MemberIndex),
            path: hint(&self.path),
            serial: hint(&self.serial),
        })
    }
}

impl TreeNode {
    fn raw(&self, first_edge: u16) -> RawTreeNode {
        let children = as_u16(self.kind.children().len());
        let mut raw = RawTreeNode {
            kind: U16::ZERO,
            flags: U16::ZERO,
            member: U16::ZERO,
            first_edge: if children == 0 { 0 } else { first_edge }.into(),
            child_count: children.into(),
            parity: U16::ZERO,
            code: U16::ZERO,
            reserved0: U16::ZERO,
            start: U64::ZERO,
            len: self.len.0.into(),
            unit: U64::ZERO,
            reserved: U64::ZERO,
        };
        raw.kind = U16::new(match &self.kind {
            NodeKind::Slice { member, start } => {
                raw.member = member.0.into();
                raw.start = start.0.into();
                1
            }
            NodeKind::Stripe { unit, .. } => {
                raw.unit = unit.0.into();
                2
            }
            NodeKind::Mirror { .. } => 3,
            NodeKind::Parity { unit, parity, code, .. } => {
                raw.unit = unit.0.into();
                raw.parity = (*parity).into();
                raw.code = (*code).into();
                4
            }
            NodeKind::Concat { .. } => 5,
        });
        raw
    }
}

impl RawTreeNode {
    fn decode(&self, edges: &[RawEdge], at: ByteOffset) -> Result<TreeNode, FormatError> {
        let bad = |field, v: U16| FormatError::BadField {
            what: WHAT,
            at: at.0,
            field,
            value: v.get().into(),
        };
        let first = usize::from(self.first_edge.get());
        let children = edges
            .get(first..first + usize::from(self.child_count.get()))
            .ok_or_else(|| bad("first edge", self.first_edge))?
            .iter()
            .map(|e| Child { node: e.node.get(), weight: e.weight.get() })
            .collect();
        let unit = Bytes(self.unit.get());
        let kind = match self.kind.get() {
            1 => NodeKind::Slice {
                member: MemberIndex(self.member.get()),
                start: ByteOffset(self.start.get()),
            },
            2 => NodeKind::Stripe { unit, children },
            3 => NodeKind::Mirror { children },
            4 => NodeKind::Parity {
                unit,
                parity: self.parity.get(),
                code: self.code.get(),
                children,
            },
            5 => NodeKind::Concat { children },
            _ => return Err(bad("node kind", self.kind)),
        };
        Ok(TreeNode { len: Bytes(self.len.get()), kind })
    }
}

impl RawSegment {
    fn decode(&self, at: ByteOffset) -> Result<Segment, FormatError> {
        let subpool =
            SubpoolKind::from_u16(self.subpool.get()).ok_or_else(|| FormatError::BadField {
                what: WHAT,
                at: at.0,
                field: "subpool kind",
                value: self.subpool.get().into(),
            })?;
        Ok(Segment {
            start: ByteOffset(self.start.get()),
            len: Bytes(self.len.get()),
            node: self.node.get(),
            node_start: ByteOffset(self.node_start.get()),
            subpool,
        })
    }
}

/// Puts structures one after the other.
struct Writer<'a> {
    rest: &'a mut [u8],
}
impl Writer<'_> {
    fn put<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.put_bytes(value.as_bytes());
    }
    fn put_bytes(&mut self, bytes: &[u8]) {
        let rest = core::mem::take(&mut self.rest);
        let (head, tail) = rest.split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        self.rest = tail;
    }
}

/// Takes `count` structures from the front of `rest`.
fn take<'a, T>(rest: &mut &'a [u8], count: u16) -> Result<&'a [T], FormatError>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let (head, tail) = <[T]>::ref_from_prefix_with_elems(rest, usize::from(count))
        .map_err(|_| FormatError::TooShort { what: WHAT, len: rest.len() })?;
    *rest = tail;
    Ok(head)
}

/// `text` cut at a character boundary to leave at least one zero byte.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [0; N];
    let mut end = text.len().min(N - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in out.iter_mut().zip(text.as_bytes().iter().take(end)) {
        *to = *from;
    }
    out
}

fn unpadded(bytes: &[u8]) -> Option<String> {
    let text = bytes.split(|b| *b == 0).next()?;
    core::str::from_utf8(text).ok().map(str::to_owned)
}

fn hint(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap_or(&[])).into_owned()
}

/// Table sizes are checked against limits far below these before they are narrowed.
fn as_u16(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}
fn as_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

mod boot;
mod check;
mod dump;
#[cfg(test)]
mod tests;
