//! What a portal offers: its targets (a discovery session with SendTargets), and the units of each (REPORT LUNS).
//! A talk with a portal uses libiscsi's context from one thread, and has a bound. (The look-up of a host's name has
//! none: a caller that must go on asks from a thread.)

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::alive;
use super::connection::{Ended, Fresh, ended, text};
use super::ffi::{self, Context, IoVec, Task};
use super::name::{Place, UnitName};
use super::session::Ending;

/// Bytes for the numbers of a target's units, eight for each and for the head, at first; then as many as the target
/// has, up to [`UNITS_MAX`].
const NUMBERS_LEN: usize = 8 << 10;
/// Most units of a target that are listed: so many have a number in flat space addressing.
const UNITS_MAX: usize = 1 << 14;
/// Most times that REPORT LUNS is issued: a target may have something to say of itself first, or get more units.
const TRIES: usize = 8;
/// REPORT LUNS, in a command of 16 bytes.
const REPORT_LUNS: u8 = 0xa0;
/// Sense key.
const UNIT_ATTENTION: u8 = 6;

/// A portal by its name: `iscsi://[user[%secret]@]host[:port]`. Shown without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portal(Place);

impl std::fmt::Display for Portal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.as_portal())
    }
}

impl Portal {
    /// Reads a name; `None` if it is none, as that of a unit is.
    pub fn parse(word: &str) -> Option<Self> {
        Place::of_portal(word).map(Self)
    }
    /// The names of its targets, sorted. The talk takes at most `within`.
    ///
    /// # Errors
    /// What the network, the portal, or the loading of libiscsi said.
    pub fn targets(&self, within: Duration) -> Result<Vec<String>, String> {
        let asked = || {
            let talk = Talk::begin(&self.unit("", 0), within)?;
            talk.targets()
        };
        asked().map_err(|Ended(why)| why.to_string())
    }
    /// The units of one of its targets. The talk takes at most `within`.
    ///
    /// # Errors
    /// As [`Portal::targets`].
    pub fn units(&self, target: &str, within: Duration) -> Result<UnitList, String> {
        let asked = || {
            let talk = Talk::begin(&self.unit(target, 0), within)?;
            talk.units()
        };
        asked().map_err(|Ended(why)| why.to_string())
    }
    /// The name of a unit, by which it can be opened: with the secret of the portal, which is known from then on.
    pub fn name_of(&self, target: &str, unit: u8) -> String {
        self.unit(target, unit).remembered().to_string()
    }
    fn unit(&self, target: &str, lun: u8) -> UnitName {
        let Place { user, secret, portal } = self.0.clone().with_login();
        UnitName { user, secret, portal, target: target.to_owned(), lun }
    }
}

/// What a target says of its units.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnitList {
    /// Sorted.
    pub numbers: Vec<UnitNumber>,
    /// So many it has besides, by its own word, which are not among them.
    pub unlisted: usize,
}

/// The number of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnitNumber {
    /// One that a name can have.
    Known(u8),
    /// Another form of number, or one above 255: its eight bytes.
    Beyond(u64),
}

impl UnitNumber {
    /// From its eight bytes (SAM-5, section 4.7): a number of one byte (peripheral device addressing), or of 14
    /// bits (flat space addressing).
    fn decode(bytes: [u8; 8]) -> Self {
        match bytes {
            [0 | 0x40, number, 0, 0, 0, 0, 0, 0] => Self::Known(number),
            _ => Self::Beyond(u64::from_be_bytes(bytes)),
        }
    }
}

/// What callbacks say; alive as long as the context.
#[derive(Debug, Default)]
struct Heard {
    /// The step has ended.
    called: AtomicBool,
    ending: Mutex<Option<Ending>>,
    targets: Mutex<Vec<String>>,
}

impl Heard {
    fn end(&self, ending: Ending) {
        *self.ending.lock() = Some(ending);
        self.called.store(true, Ordering::Relaxed);
    }
}

unsafe extern "C" fn on_step(_: *mut Context, status: c_int, _: *mut c_void, heard: *mut c_void) {
    // SAFETY: `Heard` of this talk, which outlives its context.
    let heard = unsafe { &*heard.cast::<Heard>() };
    heard.end(Ending { status, sense: (0, 0), missing: 0 });
}

/// `struct iscsi_discovery_address`, as far as it is read: what follows has changed between versions.
#[repr(C)]
struct DiscoveryAddress {
    next: *const Self,
    target_name: *const c_char,
}

unsafe extern "C" fn on_targets(
    _: *mut Context,
    status: c_int,
    list: *mut c_void,
    heard: *mut c_void,
) {
    // SAFETY: as above.
    let heard = unsafe { &*heard.cast::<Heard>() };
    let mut next: *const DiscoveryAddress =
        if status == ffi::STATUS_GOOD { list.cast() } else { std::ptr::null() };
    // SAFETY: a list of the library, with names that end, which stays until this returns.
    while let Some(address) = unsafe { next.as_ref() } {
        if !address.target_name.is_null() {
            // SAFETY: as above.
            let name = unsafe { CStr::from_ptr(address.target_name) };
            heard.targets.lock().push(name.to_string_lossy().into_owned());
        }
        next = address.next;
    }
    heard.end(Ending { status, sense: (0, 0), missing: 0 });
}

unsafe extern "C" fn on_command(
    _: *mut Context,
    status: c_int,
    task: *mut c_void,
    heard: *mut c_void,
) {
    // SAFETY: as above; the task of this command, in the layout of this version of the library. It is freed with
    // the context's, or by who issued it.
    let (heard, task) = unsafe { (&*heard.cast::<Heard>(), task.cast::<Task>().as_ref()) };
    let sense = task.map_or((0, 0), |task| {
        let key = u8::try_from(task.sense.key).unwrap_or(u8::MAX);
        (key, u16::try_from(task.sense.ascq).unwrap_or(u16::MAX))
    });
    let missing = task.filter(|t| t.residual_status == ffi::UNDERFLOW).map_or(0, |t| t.residual);
    heard.end(Ending { status, sense, missing });
}

/// A session with a portal, until it is dropped.
struct Talk {
    /// First: its callbacks use the others.
    fresh: Fresh,
    heard: Box<Heard>,
    numbers: Box<[u8]>,
    vector: Box<IoVec>,
    begun: Instant,
    within: Duration,
}

impl Talk {
    /// Connects and logs in; without a target it is a discovery session.
    fn begin(name: &UnitName, within: Duration) -> Result<Self, Ended> {
        let fresh = Fresh::new(name, &alive::new_port())?;
        let mut numbers = vec![0; NUMBERS_LEN].into_boxed_slice();
        let vector = Box::new(IoVec { base: numbers.as_mut_ptr().cast(), len: numbers.len() });
        let begun = Instant::now();
        let talk = Self { fresh, heard: Box::default(), numbers, vector, begun, within };
        let (library, context) = (talk.fresh.library, talk.fresh.context);
        let portal = text(&name.portal)?;
        let seconds = c_int::try_from(within.as_secs() + 1).unwrap_or(c_int::MAX);
        // SAFETY: the context is ours; what the callbacks use lives as long as it.
        unsafe {
            if name.target.is_empty() {
                (library.iscsi_set_session_type)(context, ffi::SESSION_DISCOVERY);
            }
            (library.iscsi_set_timeout)(context, seconds);
            let heard = talk.heard();
            if (library.iscsi_connect_async)(context, portal.as_ptr(), on_step, heard) != 0 {
                return Err(talk.fresh.not_begun());
            }
            talk.step("connection", 0)?;
            talk.step("login", (library.iscsi_login_async)(context, on_step, heard))?;
        }
        Ok(talk)
    }
    fn heard(&self) -> *mut c_void {
        (&raw const *self.heard).cast_mut().cast()
    }
    /// Waits for the end of what was begun, if it was.
    fn step(&self, what: &'static str, began: c_int) -> Result<(), Ended> {
        let ending = self.wait(what, began)?;
        if ending.status == ffi::STATUS_GOOD { Ok(()) } else { Err(self.failed(what)) }
    }
    fn failed(&self, what: &str) -> Ended {
        self.fresh.why(&format!("{what} failed"))
    }
    fn wait(&self, what: &'static str, began: c_int) -> Result<Ending, Ended> {
        const PAUSE: Duration = Duration::from_millis(100);
        if began != 0 {
            return Err(self.failed(what));
        }
        let has_ended = || self.heard.called.load(Ordering::Relaxed);
        let failed = format!("{what} failed");
        while !has_ended() {
            if self.begun.elapsed() > self.within {
                return Err(self.fresh.no_answer(what, self.within));
            }
            self.fresh.turn(&failed, PAUSE.min(self.within), &has_ended)?;
        }
        self.heard.called.store(false, Ordering::Relaxed);
        let ending = self.heard.ending.lock().take();
        ending.ok_or_else(|| ended(failed))
    }
    fn targets(self) -> Result<Vec<String>, Ended> {
        let (library, context) = (self.fresh.library, self.fresh.context);
        // SAFETY: the context is ours; what the callback uses lives as long as it.
        let began = unsafe { (library.iscsi_discovery_async)(context, on_targets, self.heard()) };
        self.step("question for its targets", began)?;
        let mut targets = std::mem::take(&mut *self.heard.targets.lock());
        targets.sort();
        targets.dedup();
        Ok(targets)
    }
    fn units(mut self) -> Result<UnitList, Ended> {
        const WHAT: &str = "the question for its units";
        for _ in 0..TRIES {
            let ending = self.report()?;
            if ending.status == ffi::STATUS_CHECK && ending.sense.0 == UNIT_ATTENTION {
                continue;
            }
            if ending.status != ffi::STATUS_GOOD {
                return Err(ended(format!("{WHAT}: {}", std::io::Error::from(ending))));
            }
            let got = self.numbers.len().saturating_sub(ending.missing);
            let data = self.numbers.get(..got).unwrap_or_default();
            let need = 8 + claimed(data).min(8 * UNITS_MAX);
            if need <= self.numbers.len() {
                return Ok(decode_units(data));
            }
            self.numbers = vec![0; need].into_boxed_slice();
            *self.vector = IoVec { base: self.numbers.as_mut_ptr().cast(), len: need };
        }
        Err(ended(format!("{WHAT}: the target has something else to say each time")))
    }
    /// One REPORT LUNS, which every target answers for unit 0, even if it has none.
    fn report(&mut self) -> Result<Ending, Ended> {
        let mut cdb = [0_u8; 12];
        let len = u32::try_from(self.numbers.len()).unwrap_or(0);
        cdb[0] = REPORT_LUNS;
        cdb[6..10].copy_from_slice(&len.to_be_bytes());
        let (library, context) = (self.fresh.library, self.fresh.context);
        let len = c_int::try_from(len).unwrap_or(0);
        // SAFETY: the context is ours; memory and vector live as long as it. A command that was not answered in time
        // keeps its task, which this process does without.
        unsafe {
            let task = (library.scsi_create_task)(12, cdb.as_ptr(), ffi::XFER_READ, len);
            if task.is_null() {
                return Err(ended("libiscsi has no memory"));
            }
            (library.scsi_task_set_iov_in)(task, &raw mut *self.vector, 1);
            let issue = library.iscsi_scsi_command_async;
            let began = issue(context, 0, task, on_command, std::ptr::null_mut(), self.heard());
            let ending = self.wait("question for its units", began)?;
            (library.scsi_free_scsi_task)(task);
            Ok(ending)
        }
    }
}

/// Bytes of numbers that there are, as the data of REPORT LUNS say at their head; they may be cut off.
fn claimed(data: &[u8]) -> usize {
    let len = data.first_chunk().map_or(0, |len| u32::from_be_bytes(*len));
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// The numbers in the data of REPORT LUNS.
fn decode_units(data: &[u8]) -> UnitList {
    let rest = data.get(8..).unwrap_or_default();
    let claimed = claimed(data);
    let (listed, _) = rest.get(..claimed.min(rest.len())).unwrap_or_default().as_chunks::<8>();
    let mut numbers: Vec<_> = listed.iter().map(|n| UnitNumber::decode(*n)).collect();
    let unlisted = claimed / 8 - numbers.len();
    numbers.sort();
    numbers.dedup();
    UnitList { numbers, unlisted }
}

#[cfg(test)]
mod tests {
    use super::{Portal, UnitList, UnitNumber, decode_units};

    #[test]
    fn a_portal_is_told_from_a_unit_and_from_what_is_neither() {
        for (word, shown) in [
            ("iscsi://10.0.0.1", "iscsi://10.0.0.1:3260"),
            ("iscsi://me%pass@[::1]:99/", "iscsi://me@[::1]:99"),
        ] {
            assert_eq!(Portal::parse(word).unwrap().to_string(), shown);
        }
        for none in ["iscsi://", "iscsi:///", "iscsi://h/t", "iscsi://h/t/0", "host", "iscsi://a b"]
        {
            assert_eq!(Portal::parse(none), None, "{none}");
        }
        let portal = Portal::parse("iscsi://me%pass@h").unwrap();
        let unit = portal.name_of("iqn.x", 3);
        assert_eq!(unit, "iscsi://me@h:3260/iqn.x/3");
        assert_eq!(super::UnitName::parse(&unit).unwrap().secret.as_deref(), Some("pass"));
    }

    #[test]
    fn units_are_read_from_what_a_target_says_of_them() {
        let mut data = vec![0, 0, 0, 32, 0, 0, 0, 0];
        for number in [[0, 9], [0, 0], [0x40, 7], [0x41, 7]] {
            data.extend(number);
            data.extend([0; 6]);
        }
        let (zero, seven, nine) =
            (UnitNumber::Known(0), UnitNumber::Known(7), UnitNumber::Known(9));
        let beyond = UnitNumber::Beyond(0x4107 << 48);
        let read = |len| {
            let UnitList { numbers, unlisted } = decode_units(&data[..len]);
            (numbers, unlisted)
        };
        assert_eq!(read(40), (vec![zero, seven, nine, beyond], 0));
        // It says more than it sends.
        assert_eq!(read(17), (vec![nine], 3));
        assert_eq!([read(8), read(7), read(0)], [(vec![], 4), (vec![], 4), (vec![], 0)]);
    }
}
