//! A node's journal: two headers and the ring of sealed records. Written by [`crate::meta`], read
//! by [`crate::replay`]. The layout is in [`braid_format::journal`].
//!
//! Positions count bytes ever appended and only grow; `position % ring length` is the place in the
//! ring.
//!
//! Invariants:
//! * the bytes from tail to head are never written over; the tail moves only by a header that is
//!   durable before the space behind it is used again;
//! * a header is written to the copy that is older, so one good copy always stands; the older
//!   copy's tail may be used instead, because a space is reused only after the newer is durable;
//! * a sequence number is used once in the life of a file system, unless the node died before
//!   what carried it was acknowledged: then the next writer has another incarnation.

use braid_format::crc::crc32c_with_hole;
use braid_format::journal::{RawJournalHeader, RawTxBlock, RawTxHeader};
use braid_format::meta::{MetaHeader, MetaKind};
use braid_format::superblock::RawSuperblock;
use braid_format::{
    BlockNo, ByteOffset, Bytes, FormatError, Generation, Incarnation, LockNo, NodeId,
};
use braid_pool::PoolRequest;
use braid_pool::device::{AlignedBuf, HugeBuf};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{Error, Result};
use crate::volume::Body;
use crate::volume::Volume;

/// Header copies of a journal.
pub(crate) const HEADER_COPIES: u64 = 2;
/// A ring holds at least this many images: below it, the credits of one transaction do not fit.
pub(crate) const RING_IMAGES_MIN: u64 = 128;
/// A record buffer up to this size is kept for the next commit.
const SCRATCH_KEPT: usize = 16 << 20;

/// A ring's place and measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ring {
    /// First byte in the pool.
    pub at: ByteOffset,
    /// Bytes, a multiple of the sector.
    pub len: u64,
    /// Grain of records: the lock sector.
    pub sector: u64,
    /// Bytes of an image: a body.
    pub image: u64,
    /// Whose it is.
    pub node: NodeId,
}

impl Ring {
    /// The ring of `node`.
    ///
    /// # Errors
    /// [`Error::Superblock`] when the superblock gives it no usable place.
    pub fn of(volume: &Volume, node: NodeId) -> Result<Self> {
        let bad = |field, value| {
            Err(Error::Superblock(FormatError::BadField { what: "journal", at: 0, field, value }))
        };
        let sb = &volume.sb;
        if node.get() >= sb.node_slots.get() {
            return bad("node", u64::from(node.get()));
        }
        let blocks = sb.journal_blocks.get();
        let end = u64::from(node.get())
            .checked_add(1)
            .and_then(|n| n.checked_mul(blocks))
            .and_then(|n| n.checked_add(sb.journal_area.get()));
        if end.is_none_or(|end| end > sb.total_blocks.get()) {
            return bad("journal_blocks", blocks);
        }
        let (at, len) = volume.journal(node);
        let ring = Self {
            at,
            len: len.get(),
            sector: volume.geo.lock_sector.get(),
            image: volume.geo.body_len() as u64,
            node,
        };
        if ring.len < RING_IMAGES_MIN * ring.image || !ring.len.is_multiple_of(ring.sector) {
            return bad("journal_blocks", blocks);
        }
        Ok(ring)
    }
    /// Bytes before the first image of a record of `count` images.
    pub fn head_len(&self, count: u64) -> u64 {
        let plain = RawTxHeader::LEN as u64 + count * size_of::<RawTxBlock>() as u64;
        plain.next_multiple_of(self.sector)
    }
    /// Bytes of a record of `count` images.
    pub fn record_len(&self, count: u64) -> u64 {
        self.head_len(count) + count * self.image
    }
    /// Place of a position in the pool.
    fn place(&self, position: u64) -> ByteOffset {
        self.at + Bytes(position % self.len)
    }
}

/// Generation of a block that replaces one whose own cannot be read: above all that any journal may
/// hold of it ([`crate::alloc::image::Birth`] begins at the time in microseconds).
pub(crate) const GENERATION_AFTER_LOSS: Generation = Generation(1 << 60);

/// What a journal header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Counts header writes; tells which copy is newer.
    pub generation: u64,
    /// The copy it stands in.
    pub copy: u64,
    /// Oldest record to replay.
    pub tail_sequence: u64,
    /// Its place in the ring.
    pub tail_offset: u64,
    /// The life that writes, or wrote, the journal.
    pub incarnation: Incarnation,
    /// Nothing to replay.
    pub clean: bool,
    /// The other copy is damaged: a newer header may have stood there.
    pub alone: bool,
}

impl Header {
    /// Sequence numbers at or above this are refused: they were never written by us, and below it
    /// none can overflow.
    pub const SEQUENCE_MAX: u64 = 1 << 62;

    /// The header of an empty journal whose headers are lost: newer than any that was written.
    pub fn anew(tail_sequence: u64) -> Self {
        Self {
            generation: GENERATION_AFTER_LOSS.get(),
            copy: 1,
            tail_sequence,
            tail_offset: 0,
            incarnation: Incarnation(0),
            clean: true,
            alone: false,
        }
    }
    /// Reads the newer valid copy. It may be the older of the two all the same: `proof` in
    /// [`crate::replay`] says whether one that is clean is to be believed.
    ///
    /// # Errors
    /// When no copy is valid, or a device fails (then the other copy is not trusted either: it may
    /// be the older).
    pub fn read(volume: &Volume, ring: &Ring) -> Result<Self> {
        let mut best: Option<Self> = None;
        let mut damage = None;
        for copy in 0..HEADER_COPIES {
            match Self::read_copy(volume, ring, copy) {
                Ok(h) if best.is_none_or(|b| b.generation < h.generation) => best = Some(h),
                Ok(_) => {}
                Err(e @ (Error::Damaged { .. } | Error::Inconsistent { .. })) => damage = Some(e),
                Err(e) => return Err(e),
            }
        }
        match (best, damage) {
            (Some(h), None) => Ok(h),
            (Some(h), Some(e)) => {
                tracing::warn!(of_node = %ring.node, "one journal header unusable: {e}");
                Ok(Self { alone: true, ..h })
            }
            (None, Some(e)) => Err(e),
            (None, None) => unreachable!("every copy is valid or damaged"),
        }
    }
    /// How a copy is damaged, if the other one is sound: [`Header::read`] goes on with that.
    ///
    /// # Errors
    /// A device failed.
    pub fn damaged_copy(volume: &Volume, ring: &Ring) -> Result<Option<Error>> {
        let (mut damaged, mut sound) = (None, false);
        for copy in 0..HEADER_COPIES {
            match Self::read_copy(volume, ring, copy) {
                Ok(_) => sound = true,
                Err(e) if e.is_damage() => damaged = Some(e),
                Err(e) => return Err(e),
            }
        }
        Ok(damaged.filter(|_| sound))
    }
    fn block(volume: &Volume, node: NodeId, copy: u64) -> BlockNo {
        volume.node_area(node, RawSuperblock::AREA_JOURNAL_HEADERS + copy)
    }
    fn read_copy(volume: &Volume, ring: &Ring, copy: u64) -> Result<Self> {
        let block = Self::block(volume, ring.node, copy);
        let (body, header, kind) = volume.read_body(block)?;
        Self::of_body(ring, copy, block, (&body, &header, kind))
    }
    /// As [`Header::read`], from whatever copies a mirror has. It does not wait for changes of the
    /// pool, and repairs nothing.
    pub fn look(volume: &Volume, ring: &Ring) -> Option<Self> {
        let mut body = AlignedBuf::zeroed(volume.geo.body_len());
        let mut found = Vec::new();
        for copy in 0..HEADER_COPIES {
            let block = Self::block(volume, ring.node, copy);
            for nth in 0..volume.pool.copies() {
                if volume.pool.look(volume.body_at(block), &mut body, nth).is_ok()
                    && let Ok((header, kind)) = MetaHeader::decode(&body, block)
                {
                    found.extend(Self::of_body(ring, copy, block, (&body, &header, kind)));
                }
            }
        }
        found.into_iter().max_by_key(|h: &Self| h.generation)
    }
    /// From a body whose checksum is right.
    fn of_body(
        ring: &Ring,
        copy: u64,
        block: BlockNo,
        (body, header, kind): (&[u8], &MetaHeader, MetaKind),
    ) -> Result<Self> {
        if kind != MetaKind::JournalHeader {
            let source = FormatError::WrongKind {
                expected: MetaKind::JournalHeader.name(),
                at: block.get(),
                found: kind as u16,
            };
            return Err(Error::Damaged { block, source });
        }
        let (raw, _) = RawJournalHeader::read_from_prefix(body)
            .map_err(|_| Error::Inconsistent { block, what: "journal header too short" })?;
        let tail_offset = raw.tail_offset.get();
        if tail_offset >= ring.len || !tail_offset.is_multiple_of(ring.sector) {
            return Err(Error::Inconsistent { block, what: "journal tail outside the ring" });
        }
        if raw.tail_sequence.get() >= Self::SEQUENCE_MAX
            || header.generation.get() >= Self::SEQUENCE_MAX
        {
            return Err(Error::Inconsistent { block, what: "journal sequence" });
        }
        Ok(Self {
            generation: header.generation.get(),
            copy,
            tail_sequence: raw.tail_sequence.get(),
            tail_offset,
            incarnation: Incarnation(raw.incarnation.get()),
            clean: raw.clean.get() == 1,
            alone: false,
        })
    }
    /// Writes it to the other copy, counted up. Complete, not durable: the caller flushes.
    pub fn write(&mut self, volume: &Volume, node: NodeId) -> Result<()> {
        self.copy = (self.copy + 1) % HEADER_COPIES;
        self.generation += 1;
        self.alone = false;
        let block = Self::block(volume, node, self.copy);
        let mut body = AlignedBuf::zeroed(volume.geo.body_len());
        self.encode(block, &mut body);
        volume.write_bodies(&[(block, &body)])
    }
    fn encode(&self, block: BlockNo, body: &mut [u8]) {
        let mut header = MetaHeader::new(MetaKind::JournalHeader, block, LockNo::from(block));
        header.generation.set(self.generation);
        let raw = RawJournalHeader {
            header,
            tail_sequence: self.tail_sequence.into(),
            tail_offset: self.tail_offset.into(),
            incarnation: self.incarnation.get().into(),
            clean: u32::from(self.clean).into(),
        };
        raw.write_to_prefix(body).expect("a body holds a journal header");
        MetaHeader::seal(body);
    }
}

/// Writes the headers of an empty journal, as mkfs does. Complete, not durable.
#[cfg(test)]
pub(crate) fn format(volume: &Volume, node: NodeId, first_sequence: u64) -> Result<()> {
    let mut header = Header {
        generation: 0,
        copy: 1,
        tail_sequence: first_sequence,
        tail_offset: 0,
        incarnation: Incarnation(0),
        clean: true,
        alone: false,
    };
    for _ in 0..HEADER_COPIES {
        header.write(volume, node)?;
    }
    Ok(())
}

/// An image on its way into a record.
#[derive(Debug)]
pub(crate) struct Image {
    /// Slot.
    pub block: BlockNo,
    /// Body, not sealed.
    pub body: Body,
}

/// Generation in a body's header.
pub(crate) fn generation_of(body: &[u8]) -> Generation {
    MetaHeader::read_from_prefix(body).map_or(Generation(0), |(h, _)| h.generation())
}

/// The writing end of a journal.
#[derive(Debug)]
pub(crate) struct Journal {
    ring: Ring,
    incarnation: Incarnation,
    header: Header,
    /// Position where the next record goes.
    head: u64,
    /// Position of the durable tail.
    tail: u64,
    next_sequence: u64,
    scratch: Option<HugeBuf>,
}

/// A place where replay may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Number of the record there.
    pub sequence: u64,
    /// Its position.
    pub position: u64,
}

/// A record that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Appended {
    /// Its number.
    pub sequence: u64,
    /// Where replay must start to reach it: itself, or the skip record before it.
    pub from: Placed,
}

impl Journal {
    /// Takes over a clean journal. Writes nothing yet.
    ///
    /// # Errors
    /// When the journal still has to be replayed, or its headers are damaged.
    pub fn open(volume: &Volume, node: NodeId, incarnation: Incarnation) -> Result<Self> {
        let ring = Ring::of(volume, node)?;
        let header = Header::read(volume, &ring)?;
        if !header.clean {
            let block = Header::block(volume, node, header.copy);
            return Err(Error::Inconsistent { block, what: "journal must be replayed first" });
        }
        Ok(Self {
            ring,
            incarnation,
            header,
            head: header.tail_offset,
            tail: header.tail_offset,
            next_sequence: header.tail_sequence,
            scratch: None,
        })
    }
    /// Its measures.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }
    /// Bytes that the next record of `len` bytes takes from here, with what it must skip.
    fn needed(&self, len: u64) -> u64 {
        let to_end = self.ring.len - self.head % self.ring.len;
        if len <= to_end { len } else { to_end + len }
    }
    /// Bytes between tail and head.
    pub fn used(&self) -> u64 {
        self.head - self.tail
    }
    /// Whether a record of `count` images fits before the tail.
    pub fn fits(&self, count: u64) -> bool {
        self.needed(self.ring.record_len(count)) <= self.ring.len - self.used()
    }
    /// Bytes in use if the tail were at `tail`.
    pub fn used_from(&self, tail: Placed) -> u64 {
        self.head.saturating_sub(tail.position)
    }
    /// Where the tail would be if nothing were left to replay.
    pub fn end(&self) -> Placed {
        Placed { sequence: self.next_sequence, position: self.head }
    }
    /// Makes `tail` the tail, durably. Everything before it is in place and stable.
    pub fn move_tail(&mut self, volume: &Volume, tail: Placed) -> Result<()> {
        assert!(tail.position >= self.tail && tail.position <= self.head, "tail outside the ring");
        if tail.position == self.tail {
            return Ok(());
        }
        self.write_header(volume, tail, false)?;
        volume.pool.flush()?;
        self.tail = tail.position;
        Ok(())
    }
    /// With an empty journal: goes on at the start of the ring, so that the largest record fits.
    /// Durable on return.
    pub fn rewind(&mut self, volume: &Volume) -> Result<()> {
        assert_eq!(self.head, self.tail, "rewound a journal in use");
        self.head = self.head.next_multiple_of(self.ring.len);
        self.write_header(volume, self.end(), false)?;
        volume.pool.flush()?;
        self.tail = self.head;
        Ok(())
    }
    /// Marks the empty journal clean. Durable on return.
    pub fn mark_clean(&mut self, volume: &Volume) -> Result<()> {
        assert_eq!(self.head, self.tail, "a journal in use is not clean");
        if self.header.clean {
            return Ok(());
        }
        self.write_header(volume, self.end(), true)?;
        Ok(volume.pool.flush()?)
    }
    fn write_header(&mut self, volume: &Volume, tail: Placed, clean: bool) -> Result<()> {
        self.header.tail_sequence = tail.sequence;
        self.header.tail_offset = tail.position % self.ring.len;
        self.header.incarnation = self.incarnation;
        self.header.clean = clean;
        self.header.write(volume, self.ring.node)
    }
    /// Writes `images` as one record. Complete, not durable: the caller flushes.
    ///
    /// # Panics
    /// If it does not fit.
    pub fn append(&mut self, volume: &Volume, images: &[Image]) -> Result<Appended> {
        assert!(self.fits(images.len() as u64), "record beyond the journal's free space");
        if self.header.clean {
            // Before the first record of this life can be replayed, the header must name its writer.
            self.write_header(volume, self.end(), false)?;
            volume.pool.flush()?;
        }
        let from = self.end();
        let len = self.ring.record_len(images.len() as u64);
        let to_end = self.ring.len - self.head % self.ring.len;
        let skip = (len > to_end).then(|| self.skip_record(to_end));
        if skip.is_some() {
            self.head += to_end;
            self.next_sequence += 1;
        }
        let len = Bytes(len).to_usize();
        let kept = self.scratch.take().filter(|kept| kept.len() >= len);
        let mut record = kept.unwrap_or_else(|| HugeBuf::new(len));
        self.encode(images, &mut record[..len]);
        let at = self.ring.place(self.head);
        match &skip {
            None => volume.pool.write(at, &record[..len])?,
            Some(skip) => volume.run(&mut [
                PoolRequest::write(self.ring.place(from.position), skip),
                PoolRequest::write(at, &record[..len]),
            ])?,
        }
        let sequence = self.next_sequence;
        self.head += len as u64;
        self.next_sequence += 1;
        if record.len() <= SCRATCH_KEPT {
            self.scratch = Some(record);
        }
        Ok(Appended { sequence, from })
    }
    fn raw_head(&self, len: u64, count: u64) -> RawTxHeader {
        RawTxHeader {
            magic: RawTxHeader::MAGIC.into(),
            crc: 0.into(),
            sequence: self.next_sequence.into(),
            len: len.into(),
            incarnation: self.incarnation.get().into(),
            count: u32::try_from(count).expect("a ring holds fewer images").into(),
            slot: u32::from(self.ring.node.get()).into(),
            reserved: 0.into(),
        }
    }
    fn skip_record(&self, len: u64) -> AlignedBuf {
        let mut sector = AlignedBuf::zeroed(Bytes(self.ring.sector).to_usize());
        self.raw_head(len, 0).write_to_prefix(&mut sector).expect("a sector holds a record's head");
        seal_record(&mut sector);
        sector
    }
    /// Fills `record`, every byte of it.
    fn encode(&self, images: &[Image], record: &mut [u8]) {
        let count = images.len() as u64;
        let raw = self.raw_head(record.len() as u64, count);
        let (head, bodies) = record.split_at_mut(Bytes(self.ring.head_len(count)).to_usize());
        head.fill(0);
        raw.write_to_prefix(head).expect("a record holds its head");
        let names = head[RawTxHeader::LEN..].chunks_exact_mut(size_of::<RawTxBlock>());
        let bodies = bodies.chunks_exact_mut(Bytes(self.ring.image).to_usize());
        for ((image, name), to) in images.iter().zip(names).zip(bodies) {
            to.copy_from_slice(&image.body);
            MetaHeader::seal(to);
            let generation = generation_of(to).get().into();
            let raw = RawTxBlock { block: image.block.get().into(), generation };
            raw.write_to(name).expect("sizes are equal");
        }
        seal_record(record);
    }
}

fn seal_record(record: &mut [u8]) {
    let crc = crc32c_with_hole(record, RawTxHeader::CRC_AT);
    record[RawTxHeader::CRC_AT..RawTxHeader::CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// A record's head, its fields within bounds; the checksum is not yet verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHead {
    /// Number.
    pub sequence: u64,
    /// Bytes to the next record.
    pub len: u64,
    /// Images.
    pub count: u64,
    /// Writer.
    pub incarnation: Incarnation,
}

impl RecordHead {
    /// From a record's first sector, `room` bytes before the end of the ring. `None`: no record.
    pub fn decode(ring: &Ring, sector: &[u8], room: u64) -> Option<Self> {
        let (raw, _) = RawTxHeader::read_from_prefix(sector).ok()?;
        let head = Self {
            sequence: raw.sequence.get(),
            len: raw.len.get(),
            count: u64::from(raw.count.get()),
            incarnation: Incarnation(raw.incarnation.get()),
        };
        let fits = if head.count == 0 {
            head.len == room
        } else {
            head.len <= room && head.len == ring.record_len(head.count)
        };
        let ours = raw.magic.get() == RawTxHeader::MAGIC
            && raw.slot.get() == u32::from(ring.node.get())
            && raw.reserved.get() == 0;
        (ours && fits).then_some(head)
    }
    /// Bytes on disk that the checksum covers.
    pub fn stored_len(&self, ring: &Ring) -> u64 {
        if self.count == 0 { ring.sector } else { self.len }
    }
}

/// Whether the checksum of a whole record is right.
pub(crate) fn record_is_sealed(record: &[u8]) -> bool {
    let Some(stored) = record.get(RawTxHeader::CRC_AT..RawTxHeader::CRC_AT + 4) else {
        return false;
    };
    crc32c_with_hole(record, RawTxHeader::CRC_AT).to_le_bytes() == stored
}
