//! The protocol byte by byte, by an initiator of this file: what no well-behaved library sends, and
//! what libiscsi does not.

#![allow(clippy::cast_possible_truncation, reason = "tests")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use braid_device::scsi::{self, Data, ScsiError, Sense, Transport, Unit};
use braid_device::{Device, MemoryDevice, ReservationKind};
use braid_format::Bytes;
use braid_format::crc::crc32c;
use braid_iscsi_target::{Chap, LunOptions, Target, TargetOptions};

const NAME: &str = "iqn.2026-11.org.braid:wire";
const GOOD: u8 = 0;
const CHECK: u8 = 2;
const CONFLICT: u8 = 0x18;

fn serve(units: usize, reservations: Option<&PathBuf>) -> Target {
    let unit = |n: usize| {
        let device: Arc<dyn Device> =
            MemoryDevice::new(&format!("unit {n}"), Bytes(16 << 20), Bytes(512));
        LunOptions { device, identity: None, reservations: reservations.cloned() }
    };
    let luns = (0..units).map(unit).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Target::start(listener, TargetOptions { name: NAME.into(), luns, chap: Chap::default() })
        .unwrap()
}

#[derive(Debug, PartialEq)]
struct Answer {
    status: u8,
    data: Vec<u8>,
    /// Key, code, qualifier, information.
    sense: (u8, u8, u8, u32),
    /// Sense data as they came.
    raw: Vec<u8>,
}

struct Initiator {
    stream: TcpStream,
    cmd_sn: u32,
    tag: u32,
    digests: bool,
}

impl Initiator {
    fn connect(target: &Target) -> Self {
        let stream = TcpStream::connect(target.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        Self { stream, cmd_sn: 1, tag: 0, digests: false }
    }
    /// Logged in as port `isid` of initiator `name`, past the unit attentions of unit 0.
    fn login(target: &Target, name: &str, isid: u8, keys: &[&str]) -> Self {
        let mut this = Self::connect(target);
        let answer = this.try_login(name, isid, keys).unwrap();
        this.digests = answer.contains("HeaderDigest=CRC32C");
        assert_eq!(this.command(0, &[0; 6], &[], 0).sense.0, 6, "a new session is told");
        assert_eq!(this.command(0, &[0; 6], &[], 0).status, GOOD);
        this
    }
    fn try_login(&mut self, name: &str, isid: u8, keys: &[&str]) -> Result<String, (u8, u8)> {
        let mut text = format!("InitiatorName={name}\0SessionType=Normal\0TargetName={NAME}\0");
        keys.iter().for_each(|k| text.extend([*k, "\0"]));
        let mut h = [0; 48];
        // From the operational stage to the full feature phase at once.
        (h[0], h[1], h[8], h[13]) = (0x43, 0x87, 0x80, isid);
        h[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        self.send(h, text.as_bytes());
        let (h, data) = self.receive().expect("a login response");
        assert_eq!(h[0], 0x23);
        match (h[36], h[37]) {
            (0, 0) => Ok(String::from_utf8(data).unwrap()),
            why => Err(why),
        }
    }
    fn send(&mut self, mut h: [u8; 48], data: &[u8]) {
        h[5..8].copy_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes()[1..]);
        let mut all = h.to_vec();
        let digest = |bytes: &[u8]| crc32c(bytes).to_le_bytes();
        if self.digests {
            all.extend(digest(&h));
        }
        if !data.is_empty() {
            let mut padded = data.to_vec();
            padded.resize(data.len().next_multiple_of(4), 0);
            all.extend(&padded);
            if self.digests {
                all.extend(digest(&padded));
            }
        }
        // What has ended is found out by reading.
        let _ = self.stream.write_all(&all);
    }
    fn receive(&mut self) -> Option<([u8; 48], Vec<u8>)> {
        let mut h = [0; 48];
        self.stream.read_exact(&mut h).ok()?;
        let mut sum = [0; 4];
        if self.digests {
            self.stream.read_exact(&mut sum).ok()?;
            assert_eq!(u32::from_le_bytes(sum), crc32c(&h));
        }
        let len = usize::from(h[5]) << 16 | usize::from(h[6]) << 8 | usize::from(h[7]);
        let mut data = vec![0; len.next_multiple_of(4)];
        self.stream.read_exact(&mut data).ok()?;
        if self.digests && len != 0 {
            self.stream.read_exact(&mut sum).ok()?;
            assert_eq!(u32::from_le_bytes(sum), crc32c(&data));
        }
        data.truncate(len);
        Some((h, data))
    }
    /// Sends a command; `immediate` bytes of its data stand in it.
    fn begin(&mut self, lun: u8, cdb: &[u8], data: &[u8], immediate: usize, reads: usize) {
        self.tag += 1;
        let mut h = [0; 48];
        h[0] = 0x01;
        h[1] = 0x80 | if data.is_empty() { 0 } else { 0x20 } | if reads == 0 { 0 } else { 0x40 };
        h[9] = lun;
        h[16..20].copy_from_slice(&self.tag.to_be_bytes());
        let expected = u32::try_from(data.len().max(reads)).unwrap();
        h[20..24].copy_from_slice(&expected.to_be_bytes());
        h[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        h[32..32 + cdb.len()].copy_from_slice(cdb);
        self.cmd_sn += 1;
        self.send(h, &data[..immediate]);
    }
    fn command(&mut self, lun: u8, cdb: &[u8], data: &[u8], reads: usize) -> Answer {
        self.begin(lun, cdb, data, data.len().min(8192), reads);
        self.end(data)
    }
    /// Answers R2Ts with pieces of `data` until the response is there.
    fn end(&mut self, data: &[u8]) -> Answer {
        let mut got = Vec::new();
        let word =
            |h: &[u8], at: usize| u32::from_be_bytes(h[at..at + 4].try_into().unwrap()) as usize;
        loop {
            let (h, part) = self.receive().expect("an answer");
            match h[0] {
                0x31 => {
                    let (tag, at, len) = (&h[20..24], word(&h, 40), word(&h, 44));
                    let pieces = data[at..at + len].chunks(5000).enumerate();
                    for (n, piece) in pieces {
                        let mut out = [0; 48];
                        out[0] = 0x05;
                        out[1] = if (n + 1) * 5000 >= len { 0x80 } else { 0 };
                        out[8..24].copy_from_slice(&h[8..24]);
                        out[20..24].copy_from_slice(tag);
                        out[36..40].copy_from_slice(&u32::try_from(n).unwrap().to_be_bytes());
                        let here = u32::try_from(at + n * 5000).unwrap();
                        out[40..44].copy_from_slice(&here.to_be_bytes());
                        self.send(out, piece);
                    }
                }
                0x25 => {
                    assert_eq!(word(&h, 40), got.len(), "in order");
                    got.extend(part);
                    if h[1] & 1 != 0 {
                        let (sense, raw) = ((0, 0, 0, 0), Vec::new());
                        return Answer { status: h[3], data: got, sense, raw };
                    }
                }
                0x21 => {
                    let s = part.get(2..).unwrap_or_default();
                    let sense = if s.len() < 14 {
                        (0, 0, 0, 0)
                    } else {
                        (s[2] & 15, s[12], s[13], u32::from_be_bytes(s[3..7].try_into().unwrap()))
                    };
                    return Answer { status: h[3], data: got, sense, raw: s.to_vec() };
                }
                other => panic!("PDU {other:#x}"),
            }
        }
    }
}

fn cdb16(opcode: u8, lba: u64, blocks: u32) -> Vec<u8> {
    let mut cdb = vec![opcode, 0];
    cdb.extend(lba.to_be_bytes());
    cdb.extend(blocks.to_be_bytes());
    cdb.extend([0, 0]);
    cdb
}

/// COMPARE AND WRITE of `blocks`.
fn caw(i: &mut Initiator, lba: u64, old: &[u8], new: &[u8]) -> Answer {
    let mut cdb = cdb16(0x89, lba, 0);
    cdb[13] = u8::try_from(old.len() / 512).unwrap();
    i.command(0, &cdb, &[old, new].concat(), 0)
}

fn reserve_out(i: &mut Initiator, action: u8, kind: u8, keys: (u64, u64), flags: u8) -> Answer {
    let mut list = [keys.0.to_be_bytes(), keys.1.to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    i.command(0, &[0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0], &list, 0)
}

#[test]
fn data_of_any_size_by_every_way_with_digests_and_without() {
    let target = serve(1, None);
    let keys = ["InitialR2T=No", "MaxBurstLength=65536", "FirstBurstLength=16384"];
    let digests = ["HeaderDigest=CRC32C", "DataDigest=CRC32C"];
    for keys in [keys.to_vec(), [keys.as_slice(), &digests].concat()] {
        let mut i = Initiator::login(&target, "iqn.x:a", 1, &keys);
        for blocks in [1_u32, 3, 16, 17, 200, 1000] {
            let len = blocks as usize * 512;
            let data: Vec<u8> = (0..len).map(|n| (n * 7 % 253) as u8).collect();
            for immediate in [0, 512, len.min(8192)] {
                i.begin(0, &cdb16(0x8a, 5, blocks), &data, immediate, 0);
                assert_eq!(i.end(&data).status, GOOD, "{blocks} blocks, {immediate} immediate");
                let back = i.command(0, &cdb16(0x88, 5, blocks), &[], len);
                assert!(back.status == GOOD && back.data == data, "{blocks} blocks");
            }
        }
    }
    // A digest that does not match ends the session.
    let mut i = Initiator::login(&target, "iqn.x:a", 2, &digests);
    i.digests = false;
    i.begin(0, &[0; 6], &[], 0, 0);
    i.digests = true;
    i.begin(0, &[0; 6], &[], 0, 0);
    assert!(i.receive().is_none());
}

#[test]
fn units_and_targets_are_reported() {
    let target = serve(3, None);
    let mut i = Initiator::login(&target, "iqn.x:a", 1, &[]);
    let report = |i: &mut Initiator, limit: u8| {
        i.command(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, limit, 0, 0], &[], limit.into())
    };
    let told = report(&mut i, 255);
    assert_eq!(told.data[..8], [0, 0, 0, 24, 0, 0, 0, 0]);
    let units: Vec<u8> = told.data[8..].chunks(8).map(|l| l[1]).collect();
    assert_eq!(units, [0, 1, 2]);
    assert_eq!(report(&mut i, 16).data.len(), 16);
    assert_eq!(report(&mut i, 15).sense.0, 5);
    let told = i.command(9, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0], &[], 255);
    assert_eq!(told.data.len(), 32, "also on a unit that is not there");
    assert_eq!(i.command(9, &[0; 6], &[], 0).sense, (5, 0x25, 0, 0));
    let inquiry = i.command(9, &[0x12, 0, 0, 0, 96, 0], &[], 96);
    assert_eq!(inquiry.data[0], 0x7f);
    // SendTargets.
    let mut h = [0; 48];
    (h[0], h[1]) = (0x44, 0x80);
    h[20..24].fill(0xff);
    h[24..28].copy_from_slice(&i.cmd_sn.to_be_bytes());
    i.send(h, b"SendTargets=All\0");
    let (_, text) = i.receive().unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains(NAME) && text.contains(&target.address().to_string()), "{text}");
}

/// Four sessions count in records of three blocks, none of which is one sector or aligned.
#[test]
fn compare_and_write_of_many_blocks_is_one_step() {
    const ROUNDS: u64 = 50;
    let target = serve(1, None);
    std::thread::scope(|s| {
        for n in 0..4 {
            let target = &target;
            s.spawn(move || {
                let mut i = Initiator::login(target, "iqn.x:a", n, &[]);
                for _ in 0..ROUNDS {
                    loop {
                        let old = i.command(0, &cdb16(0x88, 7, 3), &[], 1536).data;
                        let count = u64::from_be_bytes(old[..8].try_into().unwrap()) + 1;
                        let new: Vec<u8> =
                            count.to_be_bytes().iter().copied().cycle().take(1536).collect();
                        let answer = caw(&mut i, 7, &old, &new);
                        if answer.status == GOOD {
                            break;
                        }
                        assert_eq!(answer.sense.0, 0x0e, "{answer:?}");
                    }
                }
            });
        }
    });
    let mut i = Initiator::login(&target, "iqn.x:a", 9, &[]);
    let last = i.command(0, &cdb16(0x88, 7, 3), &[], 1536).data;
    let expected = (4 * ROUNDS).to_be_bytes();
    assert!(last.chunks(8).all(|c| c == expected), "a block of another record stands in it");
    let mut wrong = last.clone();
    wrong[1000] ^= 1;
    let answer = caw(&mut i, 7, &wrong, &last);
    assert_eq!((answer.status, answer.sense), (CHECK, (0x0e, 0x1d, 0, 1000)));
}

#[test]
fn a_port_that_logs_in_again_ends_its_old_session_and_what_that_had_under_way() {
    let target = serve(1, None);
    let mut old = Initiator::login(&target, "iqn.x:a", 1, &[]);
    target.faults().add("write late=600000 times=1").unwrap();
    old.begin(0, &cdb16(0x8a, 0, 1), &[7; 512], 512, 0);
    while target.running() == 0 {
        std::thread::yield_now();
    }
    let mut new = Initiator::login(&target, "iqn.x:a", 1, &[]);
    // What is under way no more does not land.
    let patience = (0..6000).take_while(|_| target.commands() != 0);
    patience.for_each(|_| std::thread::sleep(Duration::from_millis(10)));
    assert_eq!(target.commands(), 0);
    assert!(old.receive().is_none());
    assert_eq!(new.command(0, &cdb16(0x88, 0, 1), &[], 512).data, [0; 512]);
    assert_eq!(target.sessions().len(), 1);
}

#[test]
fn reservations_outlive_the_target_if_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let file = Some(dir.path().join("reservations"));
    for kept in [true, false] {
        let flags = u8::from(kept);
        {
            let target = serve(1, file.as_ref());
            let mut i = Initiator::login(&target, "iqn.x:a", 1, &[]);
            // Registered and reserved: write exclusive, registrants only.
            let _ = reserve_out(&mut i, 6, 0, (0, 5), flags);
            assert_eq!(reserve_out(&mut i, 1, 5, (5, 0), 0).status, GOOD);
        }
        let target = serve(1, file.as_ref());
        let mut stranger = Initiator::login(&target, "iqn.x:b", 1, &[]);
        let keys = stranger.command(0, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0], &[], 64).data;
        let refused = stranger.command(0, &cdb16(0x8a, 0, 1), &[1; 512], 0).status;
        let mut holder = Initiator::login(&target, "iqn.x:a", 1, &[]);
        let allowed = holder.command(0, &cdb16(0x8a, 0, 1), &[1; 512], 0).status;
        assert_eq!(
            (keys.len(), refused, allowed),
            if kept { (16, CONFLICT, GOOD) } else { (8, GOOD, GOOD) }
        );
    }
    // Without a place to keep them the wish is refused.
    let target = serve(1, None);
    let mut i = Initiator::login(&target, "iqn.x:a", 1, &[]);
    assert_eq!(reserve_out(&mut i, 0, 0, (0, 5), 1).sense, (5, 0x26, 0, 0));
}

/// How many commands more the numbers of a response allow.
fn window(h: &[u8; 48]) -> u32 {
    let word = |at: usize| u32::from_be_bytes(h[at..at + 4].try_into().unwrap());
    word(32).wrapping_add(1).wrapping_sub(word(28))
}

/// WRITE of a block without any of its data: it waits for them.
fn waiting_write(tag: u32, cmd_sn: Option<u32>) -> [u8; 48] {
    let mut h = [0; 48];
    (h[0], h[1]) = (if cmd_sn.is_some() { 0x01 } else { 0x41 }, 0xa0);
    h[16..20].copy_from_slice(&tag.to_be_bytes());
    h[20..24].copy_from_slice(&512_u32.to_be_bytes());
    h[24..28].copy_from_slice(&cmd_sn.unwrap_or(0).to_be_bytes());
    h[32..48].copy_from_slice(&cdb16(0x8a, 0, 1));
    h
}

#[test]
fn what_takes_no_number_does_not_widen_the_window() {
    let target = serve(1, None);
    let mut i = Initiator::login(&target, "iqn.x:a", 1, &[]);
    let mut nop = [0; 48];
    (nop[0], nop[1]) = (0x40, 0x80);
    let mut snack = [0; 48];
    (snack[0], snack[1]) = (0x10, 0x80);
    for _ in 0..200 {
        i.send(snack, &[]);
        assert_eq!(i.receive().unwrap().0[0], 0x3f, "rejected");
    }
    i.send(nop, &[]);
    let (h, _) = i.receive().unwrap();
    assert!(h[0] == 0x20 && window(&h) <= 64, "{} commands", window(&h));
    // Immediate ones, ended while they wait for data.
    for tag in 0..3 {
        i.send(waiting_write(1000 + tag, None), &[]);
        assert_eq!(i.receive().unwrap().0[0], 0x31, "asked for its data");
    }
    let mut abort = [0; 48];
    (abort[0], abort[1]) = (0x42, 0x82);
    i.send(abort, &[]);
    let (h, _) = i.receive().unwrap();
    assert!(h[0] == 0x22 && window(&h) <= 64, "{} commands", window(&h));
    assert_eq!(i.command(0, &cdb16(0x8a, 0, 1), &[1; 512], 0).status, GOOD);
}

#[test]
fn immediate_commands_are_bounded_and_tags_are_not_used_twice() {
    let target = serve(1, None);
    let mut i = Initiator::login(&target, "iqn.x:a", 1, &[]);
    let most = u32::try_from(braid_iscsi_target::COMMANDS_MAX).unwrap();
    for tag in 0..most {
        i.send(waiting_write(1000 + tag, None), &[]);
        assert_eq!(i.receive().unwrap().0[0], 0x31, "asked for its data");
    }
    i.send(waiting_write(1000 + most, None), &[]);
    let (h, _) = i.receive().unwrap();
    assert_eq!((h[0], h[2]), (0x3f, 6), "too many immediate commands");
    // A tag of one that was ended may be used again.
    let mut abort = [0; 48];
    (abort[0], abort[1]) = (0x42, 0x82);
    i.send(abort, &[]);
    assert_eq!(i.receive().unwrap().0[0], 0x22);
    for expected in [Some(0x31), None] {
        i.send(waiting_write(1000, Some(i.cmd_sn)), &[]);
        i.cmd_sn += 1;
        assert_eq!(i.receive().map(|(h, _)| h[0]), expected);
    }
}

/// Every worker has an answer for an initiator that has stopped; it can be fenced all the same.
#[test]
fn an_initiator_that_takes_no_answers_is_preempted_at_once() {
    const REGISTRANTS: u8 = 5;
    let target = serve(1, None);
    let mut stopped = Initiator::login(&target, "iqn.x:stopped", 1, &[]);
    let mut fencer = Initiator::login(&target, "iqn.x:fencer", 1, &[]);
    for (i, key) in [(&mut stopped, 7), (&mut fencer, 8)] {
        assert_eq!(reserve_out(i, 0, 0, (0, key), 0).status, GOOD);
    }
    assert_eq!(reserve_out(&mut stopped, 1, REGISTRANTS, (7, 0), 0).status, GOOD);
    for _ in 0..64 {
        stopped.begin(0, &cdb16(0x88, 0, 2048), &[], 0, 1 << 20);
    }
    let patience = (0..1000).take_while(|_| target.running() != 0 || target.commands() < 34);
    patience.for_each(|_| std::thread::sleep(Duration::from_millis(10)));
    let keys = fencer.command(0, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0], &[], 64).data;
    assert_eq!(keys.len(), 24);
    assert_eq!(reserve_out(&mut fencer, 5, REGISTRANTS, (8, 7), 0).status, GOOD);
}

/// Names stand in lines, of the file that keeps reservations among others.
#[test]
fn names_are_of_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = Some(dir.path().join("reservations"));
    let target = serve(1, file.as_ref());
    let long = "iqn.".to_owned() + &"x".repeat(220);
    for bad in ["iqn.x:a\nregistered 7 0 iqn.x:b", "iqn.x:a\r", "iqn.x:\u{7f}", "", &long] {
        let refused = Initiator::connect(&target).try_login(bad, 1, &[]);
        assert_eq!(refused, Err((2, 0)), "{bad:?}");
    }
    let mut i = Initiator::login(&target, "iqn.x:a", 1, &[]);
    assert_eq!(reserve_out(&mut i, 0, 0, (0, 5), 1).status, GOOD);
    assert_eq!(reserve_out(&mut i, 1, 1, (5, 0), 0).status, GOOD);
    // REGISTER AND MOVE to a port of such a name.
    let to = |name: &str| {
        let mut id = format!("{name},i,0x000000000001\0").into_bytes();
        id.resize(id.len().next_multiple_of(4).max(20), 0);
        let len = u8::try_from(id.len()).unwrap();
        let mut list = [5_u64.to_be_bytes(), 6_u64.to_be_bytes(), [0; 8]].concat();
        (list[17], list[23]) = (1, len + 4);
        list.extend([0x45, 0, 0, len]);
        list.extend(id);
        list
    };
    let mut move_to = |name: &str| {
        let list = to(name);
        let len = u8::try_from(list.len()).unwrap();
        i.command(0, &[0x5f, 7, 1, 0, 0, 0, 0, 0, len, 0], &list, 0)
    };
    for bad in ["iqn.x:b\nregistered 7 0 iqn.x:c", ""] {
        assert_eq!(move_to(bad).sense.0, 5, "{bad:?}");
    }
    assert_eq!(move_to("iqn.x:b").status, GOOD);
    drop(target);
    let kept = std::fs::read_to_string(file.clone().unwrap()).unwrap();
    assert_eq!(kept.lines().count(), 3, "{kept}");
    serve(1, file.as_ref());
}

/// Numbers from a seed.
struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[3]
    }
}

#[test]
fn garbage_ends_its_own_connection_at_most() {
    let target = serve(1, None);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..400 {
        let logged_in = round % 2 == 0;
        let mut i = if logged_in {
            Initiator::login(&target, "iqn.x:fuzz", 1, &["InitialR2T=No"])
        } else {
            Initiator::connect(&target)
        };
        i.stream.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        for _ in 0..8 {
            let mut h = [0; 48];
            h.iter_mut().for_each(|b| *b = random.byte() & random.byte());
            if !random.byte().is_multiple_of(4) {
                // A known opcode, a number in order, few data: further into the code.
                h[0] = [0x01, 0x41, 0x02, 0x42, 0x03, 0x43, 0x04, 0x05, 0x40]
                    [random.next() as usize % 9];
                h[4] = 0;
                (h[8], h[9]) = (0, 0);
                h[24..28].copy_from_slice(&i.cmd_sn.to_be_bytes());
                i.cmd_sn += u32::from(h[0] & 0x40 == 0);
            }
            let len = random.next() as usize % 600;
            let data: Vec<u8> = (0..len).map(|_| random.byte()).collect();
            i.send(h, &data);
        }
        let _ = i.stream.read(&mut [0; 4096]);
    }
    let mut sane = Initiator::login(&target, "iqn.x:sane", 1, &[]);
    assert_eq!(sane.command(0, &cdb16(0x8a, 0, 1), &[1; 512], 0).status, GOOD);
    for text in ["", "InitiatorName=\0", "=\0", "InitiatorName=a\0TargetName=iqn.other\0"] {
        let mut i = Initiator::connect(&target);
        let mut h = [0; 48];
        (h[0], h[1]) = (0x43, 0x87);
        i.send(h, text.as_bytes());
        let (h, _) = i.receive().unwrap();
        assert_ne!(h[36], 0, "{text:?}");
    }
    assert_eq!(
        Initiator::connect(&target)
            .try_login("iqn.x:a", 1, &["X-unknown=1"])
            .map(|t| t.contains("NotUnderstood")),
        Ok(true)
    );
}

/// What crates/device builds for the kernel's disks, read by the target.
#[derive(Clone)]
struct Wire(Arc<Mutex<Initiator>>);

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wire")
    }
}

impl Transport for Wire {
    fn command(&self, cdb: &[u8], data: Data<'_>) -> std::io::Result<scsi::Answer> {
        let mut initiator = self.0.lock().unwrap();
        let (answer, missing) = match data {
            Data::None => (initiator.command(0, cdb, &[], 0), 0),
            Data::Out(bytes) => (initiator.command(0, cdb, bytes, 0), 0),
            Data::In(bytes) => {
                let answer = initiator.command(0, cdb, &[], bytes.len());
                bytes[..answer.data.len()].copy_from_slice(&answer.data);
                let missing = bytes.len() - answer.data.len();
                (answer, missing)
            }
        };
        Ok(scsi::Answer { status: answer.status, sense: Sense::decode(&answer.raw), missing })
    }
    fn reset(&self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

fn wires(target: &Target) -> [Wire; 2] {
    [1, 2].map(|n| {
        let initiator = Initiator::login(target, &format!("iqn.2026-11.org.braid:{n}"), n, &[]);
        Wire(Arc::new(Mutex::new(initiator)))
    })
}

#[test]
fn a_units_compare_and_write_is_what_the_target_understands() {
    let target = serve(1, None);
    let [a, b] = wires(&target).map(|wire| Unit::probe(wire).unwrap().unwrap());
    assert!(a.compare_max() >= 8);
    let sector = Bytes(512);
    for blocks in [1_usize, 8] {
        let block = 1000 + blocks as u64;
        let [zero, one, two] = [0, 1, 2].map(|n| vec![n; 512 * blocks]);
        assert!(a.compare_and_write(block, sector, &zero, &one).unwrap());
        assert!(!b.compare_and_write(block, sector, &zero, &two).unwrap(), "a miscompare");
        let mut nearly = one.clone();
        nearly[512 * blocks - 1] ^= 1;
        assert!(!b.compare_and_write(block, sector, &nearly, &two).unwrap());
        assert!(b.compare_and_write(block, sector, &one, &two).unwrap());
        assert!(a.compare_and_write(block, sector, &two, &zero).unwrap());
    }
    // Beyond the last block: refused, with a reason.
    let refused = a.compare_and_write(1 << 40, sector, &[0; 512], &[0; 512]).unwrap_err();
    let ScsiError::Refused(sense) = refused else { panic!("{refused}") };
    assert_eq!((sense.key, sense.code), (5, 0x2100), "{sense}");
}

#[test]
fn a_miscompare_names_the_byte() {
    let target = serve(1, None);
    let [wire, _] = wires(&target);
    let (mut expected, new) = ([0; 512], [1; 512]);
    expected[77] = 9;
    let both = [expected, new].concat();
    let cdb = scsi::cdb::compare_and_write(5, 1, false);
    let answer = wire.command(&cdb, Data::Out(&both)).unwrap();
    let sense = Sense { key: Sense::MISCOMPARE, code: 0x1d00, information: Some(77) };
    assert_eq!((answer.status, answer.sense), (CHECK, Some(sense)));
}

#[test]
fn a_unit_meets_the_reservations_of_others() {
    const REGISTRANTS: u8 = ReservationKind::WriteExclusiveRegistrants as u8;
    let target = serve(1, None);
    let [a, b] = wires(&target);
    let unit = Unit::probe(b.clone()).unwrap().unwrap();
    let out = |wire: &Wire, action: u8, keys: (u64, u64)| {
        let kind = if action == 0 { 0 } else { REGISTRANTS };
        let (cdb, list) = scsi::cdb::reserve_out(action, kind, keys, false);
        wire.command(&cdb, Data::Out(&list)).unwrap().status
    };
    assert_eq!((out(&a, 0, (0, 0xa)), out(&b, 0, (0, 0xb))), (GOOD, GOOD));
    assert_eq!(out(&a, 0, (0xbad, 1)), CONFLICT, "not the key");
    assert_eq!(out(&a, 1, (0xa, 0)), GOOD);
    let (zero, one) = ([0; 512], [1; 512]);
    assert!(unit.compare_and_write(0, Bytes(512), &zero, &one).unwrap(), "registered");
    // Preempt and abort: it is told so once, then kept out.
    assert_eq!(out(&a, 5, (0xa, 0xb)), GOOD);
    let fenced = unit.compare_and_write(0, Bytes(512), &one, &zero);
    assert!(matches!(fenced, Err(ScsiError::Conflict)), "{fenced:?}");
    assert_eq!(out(&a, 3, (0xa, 0)), GOOD);
    assert!(unit.compare_and_write(0, Bytes(512), &one, &zero).unwrap(), "free for all again");
}
