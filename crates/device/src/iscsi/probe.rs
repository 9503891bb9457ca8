//! What a unit says of itself at login.

use std::io;
use std::sync::Arc;

use braid_format::{ByteOffset, Bytes};

use super::ffi;
use super::limits::{Limits, PIECE_MAX, TRIES_MAX};
use super::name::UnitName;
use super::session::{Direction, Ending, Session};
use crate::scsi::cdb;
use crate::{CAW_MAX, Capabilities, DeviceError, DeviceInfo};

/// Of our own target (docs/TARGET.md, section 4): asked of those alone that name it.
const CACHE_PAGE: u8 = 0xc0;
const CACHE_PAGE_NAME: &[u8] = b"BRAIDCSH";

pub(super) fn failed(name: &UnitName, operation: &'static str, e: io::Error) -> DeviceError {
    let (device, source) = (name.to_string().into(), Arc::new(e));
    DeviceError::Io { device, operation, at: ByteOffset(0), source }
}

/// What asks a unit by its session.
pub(super) struct Probe<'a> {
    pub session: &'a Session,
    pub name: &'a UnitName,
}

/// Which unit of which port of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// The unit's world-wide name.
    pub unit: [u8; 16],
    /// Name of the target's port: of the target and of its portal group. A login in another group ends
    /// no session of this one. Empty where the unit does not say it, as where there is one group.
    pub target_port: Vec<u8>,
}

/// What a unit is.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub info: DeviceInfo,
    pub limits: Limits,
    /// The unit said whether it has a write cache. It does not say that to whom a reservation of others keeps
    /// out: a node that has not joined yet.
    says_cache: bool,
    /// As it was to be opened.
    pub opened_read_only: bool,
    serial: Vec<u8>,
    /// Name of its target's port.
    target_port: Vec<u8>,
    /// Its target's word for what keeps completed writes: as long as it stays the same, those are not
    /// lost. A page of this target's own; empty if there is none.
    pub cache: Vec<u8>,
}

impl Found {
    /// Which unit it is, of which port of its target.
    pub fn identity(&self) -> Identity {
        Identity { unit: self.limits.id, target_port: self.target_port.clone() }
    }
    /// What is found later under the name, if it is not this unit as it was. `cache`: its word for its cache in
    /// the session before, which may be another than at first; `durable`: all that was written had been flushed.
    pub fn differs(&self, later: &Self, cache: &[u8], durable: bool) -> Option<&'static str> {
        if (self.limits.id, &self.serial) != (later.limits.id, &later.serial) {
            return Some("another unit answers by its name now");
        }
        let both_say = self.says_cache && later.says_cache;
        let write_cache = if both_say { later.limits.write_cache } else { self.limits.write_cache };
        if self.info != later.info || self.limits != (Limits { write_cache, ..later.limits }) {
            return Some("the unit has another size, or other abilities, than before");
        }
        let kept = !cache.is_empty() && cache == later.cache;
        let cached = self.limits.write_cache && (self.says_cache || later.limits.write_cache);
        if cached && !durable && !kept {
            return Some("its write cache, and in it what was not flushed, may be lost");
        }
        None
    }
}

/// Asks which unit it is.
pub(super) fn identity(session: &Session, name: &UnitName) -> Result<Identity, DeviceError> {
    Probe { session, name }.identity()
}

/// Asks what the unit is.
pub(super) fn probe(
    session: &Session,
    name: &UnitName,
    read_only: bool,
) -> Result<Found, DeviceError> {
    let probe = Probe { session, name };
    let capacity = probe.must("read capacity", &capacity_cdb(), 32)?;
    let sector = Bytes(u64::from(word(&capacity, 8)));
    if !matches!(sector.get(), 512 | 4096) {
        let what = format!("sectors of {sector} bytes; 512 and 4096 are known");
        return Err(failed(name, "read capacity", io::Error::other(what)));
    }
    let size = size(&capacity, sector)
        .ok_or_else(|| failed(name, "read capacity", io::ErrorKind::InvalidData.into()))?;
    let physical = Bytes(sector.get() << (byte(&capacity, 13) & 0x0f));
    let limits = probe.limits(sector)?;
    let thin = probe.page(0xb2, 8)?;
    let provisioned = byte(&capacity, 14) & 0x80 != 0;
    let unmaps = |bit: u8| provisioned && byte(&thin, 5) & bit != 0;
    // LBPRZ: in SBC-4 the page has three bits for it, of which the lowest says zeros.
    let reads_zeros = byte(&capacity, 14) & 0x40 != 0 && byte(&thin, 5) & 0x04 != 0;
    let mode = probe.ask(&[0x1a, 0x08, 0x08, 0, 64, 0], 64)?.unwrap_or_default();
    let reserves = probe.ask(&cdb::reserve_in(2, 8), 8)?;
    let rotation = probe.page(0xb1, 64)?;
    let Identity { unit: id, target_port } = probe.identity()?;
    let write_cache = write_cache(&mode);
    let limits = Limits {
        write_cache: write_cache.unwrap_or(true),
        same_unmaps: unmaps(0x40),
        reads_zeros,
        unmap: if unmaps(0x80) { limits.unmap } else { 0 },
        reserves: reserves.is_some(),
        keeps_keys: reserves.as_ref().is_some_and(|r| byte(r, 2) & 1 != 0),
        id,
        ..limits
    };
    let compares = Bytes(if read_only { 0 } else { limits.compare * sector.get() });
    let info = DeviceInfo {
        name: name.to_string(),
        size,
        sector,
        physical_sector: if physical.get() <= 1 << 20 { physical } else { sector },
        is_block: true,
        is_path: false,
        read_only: read_only || byte(&mode, 2) & 0x80 != 0,
        rotational: match (byte(&rotation, 4), byte(&rotation, 5)) {
            (0, 0) => None,
            (0, 1) => Some(false),
            _ => Some(true),
        },
        caps: Capabilities {
            compare_and_write: compares.min(CAW_MAX),
            write_zeroes: limits.same != 0,
            discard: limits.unmap != 0,
            deallocate: limits.same != 0 && limits.same_unmaps && limits.reads_zeros && !read_only,
            atomic_write: sector,
        },
        engine: "iscsi",
        lock_place: None,
        emulates_compare_and_write: false,
    };
    let serial = probe.page(0x80, 255)?;
    let cache = probe.cache()?;
    if limits.write_cache {
        session.watch_power();
    }
    let says_cache = write_cache.is_some();
    Ok(Found { info, limits, says_cache, opened_read_only: read_only, serial, target_port, cache })
}

fn capacity_cdb() -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, 32);
    cdb
}

/// The size in the data of READ CAPACITY, which name the last block; `None` if there is no such size.
fn size(capacity: &[u8], sector: Bytes) -> Option<Bytes> {
    let last = u64::from(word(capacity, 0)) << 32 | u64::from(word(capacity, 4));
    last.checked_add(1)?.checked_mul(sector.get()).map(Bytes)
}

/// Whether writes that completed may be lost without a flush, by the data of MODE SENSE. `None` if these
/// are not the caching page and nothing before it, as was asked for: then they may.
fn write_cache(mode: &[u8]) -> Option<bool> {
    match mode {
        [_, _, _, 0, page, _, flags, ..] if page & 0x3f == 0x08 => Some(flags & 0x04 != 0),
        _ => None,
    }
}

fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}
fn word(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    found.map_or(0, u32::from_be_bytes)
}

impl Probe<'_> {
    /// The answer to a command; `None` if the unit does not know it. That a unit is not ready, or
    /// the like, is no answer: what it can do is not asked again.
    pub fn ask(&self, cdb: &[u8], len: usize) -> Result<Option<Vec<u8>>, DeviceError> {
        const ILLEGAL_REQUEST: u8 = 5;
        let mut bytes = vec![0; len];
        for _ in 0..TRIES_MAX {
            let memory = &[(bytes.as_mut_ptr(), len)];
            // SAFETY: `bytes` outlives the ticket, and is not touched meanwhile.
            let ticket = unsafe { self.session.start(cdb, Direction::Read, memory, true) };
            let ending = match ticket {
                Ok(ticket) => ticket.wait(),
                Err(e) => {
                    return Err(failed(self.name, "inquiry", io::Error::other(e.0.to_string())));
                }
            };
            match ending {
                Ending { status: ffi::STATUS_GOOD, missing, .. } => {
                    bytes.truncate(len.saturating_sub(missing));
                    return Ok(Some(bytes));
                }
                Ending { status: ffi::STATUS_CHECK, sense: (6, _), .. } => {}
                // Some targets refuse what they do not know without a reason.
                Ending { status: ffi::STATUS_CHECK, sense: (0 | ILLEGAL_REQUEST, _), .. }
                | Ending { status: ffi::STATUS_CONFLICT, .. } => return Ok(None),
                other => return Err(failed(self.name, "inquiry", other.into())),
            }
        }
        Err(failed(self.name, "inquiry", io::ErrorKind::ResourceBusy.into()))
    }
    fn must(&self, what: &'static str, cdb: &[u8], len: usize) -> Result<Vec<u8>, DeviceError> {
        let missing = || failed(self.name, what, io::Error::other("the unit does not know it"));
        self.ask(cdb, len)?.ok_or_else(missing)
    }
    /// What keeps completed writes, by our own target's word.
    fn cache(&self) -> Result<Vec<u8>, DeviceError> {
        let pages = self.page(0x00, 64)?;
        if !pages.get(4..).unwrap_or_default().contains(&CACHE_PAGE) {
            return Ok(Vec::new());
        }
        let page = self.page(CACHE_PAGE, 64)?;
        let word = page.get(4..).and_then(|p| p.strip_prefix(CACHE_PAGE_NAME));
        Ok(word.unwrap_or_default().to_vec())
    }
    /// A page of vital product data; empty if there is none.
    fn page(&self, page: u8, len: u8) -> Result<Vec<u8>, DeviceError> {
        Ok(self.ask(&cdb::inquiry(Some(page), len), len.into())?.unwrap_or_default())
    }
    fn limits(&self, sector: Bytes) -> Result<Limits, DeviceError> {
        let page = self.page(0xb0, 64)?;
        let transfer = u64::from(word(&page, 8)).saturating_mul(sector.get());
        let transfer = if transfer == 0 { PIECE_MAX as u64 } else { transfer };
        let same = u64::from(word(&page, 36)) << 32 | u64::from(word(&page, 40));
        let knows_same = self.knows(0x93)? == Some(true);
        Ok(Limits {
            transfer: Bytes(transfer).to_usize().min(PIECE_MAX),
            compare: u64::from(byte(&page, 5)),
            same: match (knows_same, same) {
                (false, _) => 0,
                (true, 0) => u64::MAX,
                (true, n) => n,
            },
            unmap: word(&page, 20).into(),
            ..Limits::default()
        })
    }
    /// Whether the unit says that it knows a command; `None` if it does not say.
    fn knows(&self, opcode: u8) -> Result<Option<bool>, DeviceError> {
        let told = self.ask(&cdb::supported(opcode), 32)?.map(|b| byte(&b, 1) & 7);
        Ok(told.filter(|support| matches!(support, 1 | 3)).map(|support| support == 3))
    }
    /// Its world-wide name, by its portal, target and number where it has none; and its target's port.
    fn identity(&self) -> Result<Identity, DeviceError> {
        let page = self.page(0x83, 255)?;
        let (mut id, target_port) = names(page.get(4..).unwrap_or_default());
        let unit = *id.get_or_insert_with(|| {
            let shown = format!("{}/{}/{}", self.name.portal, self.name.target, self.name.lun);
            let mut id = [0_u8; 16];
            for (n, b) in shown.bytes().enumerate() {
                id[n % 16] = id[n % 16].wrapping_mul(31).wrapping_add(b);
            }
            id
        });
        Ok(Identity { unit, target_port })
    }
}

/// In a list of designators: the unit's world-wide name, if it has one; the name of the target's port,
/// empty if there is none.
fn names(mut designators: &[u8]) -> (Option<[u8; 16]>, Vec<u8>) {
    let (mut unit, mut target_port) = (None, Vec::new());
    while let [codes, kind, _, len, tail @ ..] = designators {
        let name = tail.get(..usize::from(*len)).unwrap_or_default();
        // Of the unit, binary, NAA or EUI-64.
        if unit.is_none() && codes & 0x0f == 1 && kind & 0x30 == 0 && matches!(kind & 0x0f, 2 | 3) {
            let mut id = [0; 16];
            id.iter_mut().zip(name).for_each(|(i, n)| *i = *n);
            unit = Some(id);
        }
        // Of the port, text, a SCSI name.
        if codes & 0x0f == 3 && kind & 0x3f == 0x18 {
            let end = name.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
            target_port = name.split_at(end).0.to_vec();
        }
        designators = tail.get(usize::from(*len)..).unwrap_or_default();
    }
    (unit, target_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_may_have_lost_what_it_said_was_written_is_another() {
        let found = |write_cache, cache: &str| Found {
            info: DeviceInfo {
                name: "unit".to_owned(),
                size: Bytes(1 << 20),
                sector: Bytes(512),
                physical_sector: Bytes(512),
                is_block: true,
                is_path: false,
                read_only: false,
                rotational: None,
                caps: Capabilities::default(),
                engine: "iscsi",
                lock_place: None,
                emulates_compare_and_write: false,
            },
            limits: Limits { write_cache, ..Limits::default() },
            says_cache: true,
            opened_read_only: false,
            serial: b"7".to_vec(),
            target_port: Vec::new(),
            cache: cache.into(),
        };
        let lost = |before: (bool, &str), after: (bool, &str), durable| {
            found(before.0, before.1)
                .differs(&found(after.0, after.1), before.1.as_bytes(), durable)
                .is_some()
        };
        assert!(!lost((true, "a"), (true, "a"), false) && !lost((true, "a"), (true, "b"), true));
        assert!(lost((true, "a"), (true, "b"), false));
        // It does not say what keeps them.
        assert!(lost((true, ""), (true, ""), false) && !lost((true, ""), (true, ""), true));
        assert!(!lost((false, ""), (false, ""), false));
        let mut other = found(false, "");
        other.serial = b"8".to_vec();
        assert!(found(false, "").differs(&other, b"", true).is_some());
        let mut grown = found(false, "");
        grown.info.size = Bytes(2 << 20);
        assert!(found(false, "").differs(&grown, b"", true).is_some());
        // A node that has not joined is told nothing of the cache, later it is.
        let mut unsaid = found(true, "");
        unsaid.says_cache = false;
        assert!(unsaid.differs(&found(false, ""), b"", false).is_none());
        assert!(unsaid.differs(&found(true, ""), b"", true).is_none());
        assert!(unsaid.differs(&found(true, ""), b"", false).is_some());
        assert!(unsaid.differs(&unsaid, b"", false).is_some());
        assert!(found(false, "").differs(&unsaid, b"", false).is_none());
    }

    #[test]
    fn a_unit_and_its_targets_port_are_told_by_their_names() {
        let naa = [1, 3, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7];
        let vendor = [2, 1, 0, 4, b'V', b'E', b'N', b' '];
        let port = [&[0x53, 0x98, 0, 16][..], b"iqn.x,t,0x0001\0\0"].concat();
        let target = [&[0x53, 0xa8, 0, 8][..], b"iqn.x\0\0\0"].concat();
        let id = [0x60, 1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0];
        let all = [&naa[..], &vendor, &port, &target].concat();
        assert_eq!(names(&all), (Some(id), b"iqn.x,t,0x0001".to_vec()));
        assert_eq!(names(&[&vendor[..], &target].concat()), (None, Vec::new()));
        // Cut off.
        for len in 0..all.len() {
            names(&all[..len]);
        }
    }

    #[test]
    fn the_last_block_there_can_be_is_no_size() {
        let capacity = |last: u64| [&last.to_be_bytes()[..], &[0; 24]].concat();
        assert_eq!(size(&capacity(0x1_0000_0001), Bytes(512)), Some(Bytes(0x1_0000_0002 * 512)));
        assert_eq!(size(&capacity(u64::MAX), Bytes(512)), None);
        assert_eq!(size(&capacity(u64::MAX / 512), Bytes(512)), None);
    }

    #[test]
    fn what_is_not_the_caching_page_says_nothing_of_caches() {
        let page = |flags: u8| [19, 0, 0, 0, 0x88, 18, flags, 0, 0, 0];
        assert_eq!(
            [0x04, 0xff, 0, 0x01].map(|flags| write_cache(&page(flags))),
            [Some(true), Some(true), Some(false), Some(false)]
        );
        // Nothing, a page that is cut off, another page, a block descriptor before it.
        let descriptor = [&[27, 0, 0, 8][..], &[0; 8], &[0x08, 18, 0]].concat();
        for mode in [&[][..], &page(0)[..6], &[19, 0, 0, 0, 0x0a, 10, 0, 0], &descriptor] {
            assert_eq!(write_cache(mode), None, "{mode:?}");
        }
    }
}
