//! `braid scan` of portals of iSCSI targets that have much to say, or take their time.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::{braid, fails};

const LOGIN: u8 = 0x03;
const TEXT: u8 = 0x04;
const COMMAND: u8 = 0x01;
const REPORT_LUNS: u8 = 0xa0;

/// A portal that lists targets, each with units, and does nothing else.
#[derive(Clone, Copy)]
struct FakePortal {
    targets: usize,
    /// Of each target, numbered from 256 on.
    units: u32,
    /// How many each says that it has.
    claimed: u32,
    /// It takes so long to let somebody in to a target.
    slow: Duration,
}

impl FakePortal {
    /// Serves until the test ends; its name.
    fn serve(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let portal = format!("iscsi://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || self.talk(stream));
            }
        });
        portal
    }
    /// Until the initiator has gone.
    fn talk(self, mut stream: TcpStream) -> Option<()> {
        let (mut said, mut begun) = (0, false);
        loop {
            let mut head = [0; 48];
            stream.read_exact(&mut head).ok()?;
            let len = u32::from_be_bytes([0, head[5], head[6], head[7]]);
            let mut data = vec![0; len.next_multiple_of(4).try_into().unwrap()];
            stream.read_exact(&mut data).ok()?;
            let mut answer = [0; 48];
            answer[16..20].copy_from_slice(&head[16..20]);
            let serial = u32::from_be_bytes(head[24..28].try_into().unwrap());
            let mut body = Vec::new();
            match head[0] & 0x3f {
                LOGIN => {
                    if !begun && !data.windows(9).any(|word| word == b"Discovery") {
                        std::thread::sleep(self.slow);
                    }
                    begun = true;
                    (answer[0], answer[1]) = (0x23, head[1]);
                    answer[8..14].copy_from_slice(&head[8..14]);
                    answer[15] = 1;
                    if head[1] & 0x0c == 0 {
                        body.extend(b"TargetPortalGroupTag=1\0AuthMethod=None\0");
                    }
                }
                TEXT => {
                    (answer[0], answer[1]) = (0x24, 0x80);
                    answer[20..24].fill(0xff);
                    let at = stream.local_addr().unwrap();
                    for n in 0..self.targets {
                        let target = format!("TargetName=iqn.fake:{n:04}\0TargetAddress={at},1\0");
                        body.extend(target.bytes());
                    }
                }
                COMMAND if head[32] == REPORT_LUNS => {
                    (answer[0], answer[1]) = (0x25, 0x81);
                    answer[20..24].fill(0xff);
                    let most = u32::from_be_bytes(head[38..42].try_into().unwrap());
                    body = self.luns(most.try_into().unwrap());
                    let missing = most - u32::try_from(body.len()).unwrap();
                    if missing > 0 {
                        answer[1] |= 2;
                        answer[44..48].copy_from_slice(&missing.to_be_bytes());
                    }
                }
                COMMAND => (answer[0], answer[1]) = (0x21, 0x80),
                _ => return None,
            }
            answer[5..8].copy_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes()[1..]);
            answer[24..28].copy_from_slice(&u32::to_be_bytes(said));
            // What is immediate takes no number.
            let next = serial + u32::from(head[0] & 0x40 == 0);
            answer[28..32].copy_from_slice(&next.to_be_bytes());
            answer[32..36].copy_from_slice(&(serial + 16).to_be_bytes());
            said += 1;
            body.resize(body.len().next_multiple_of(4), 0);
            stream.write_all(&[&answer, &body[..]].concat()).ok()?;
        }
    }
    fn luns(self, most: usize) -> Vec<u8> {
        let mut data = (self.claimed * 8).to_be_bytes().to_vec();
        data.extend([0; 4]);
        for n in 256..256 + self.units {
            data.extend([
                0x40 | u8::try_from(n >> 8).unwrap(),
                n.to_le_bytes()[0],
                0,
                0,
                0,
                0,
                0,
                0,
            ]);
        }
        data.truncate(most);
        data
    }
}

#[test]
fn a_target_with_many_units_is_asked_for_all_of_them() {
    let fake = FakePortal { targets: 1, units: 3000, claimed: 3000, slow: Duration::ZERO };
    let portal = fake.serve();
    let out = braid(&["scan", &portal]);
    let said = String::from_utf8(out.stdout).unwrap();
    let heads: Vec<_> = said.lines().take(4).collect();
    assert!(out.status.success() && said.contains("1 target, 3000 units"), "{heads:?}");
    assert!(said.contains("0x4cb7000000000000"), "the last one");
}

#[test]
fn a_target_that_does_not_list_all_that_it_says_to_have_is_named_with_that() {
    let fake = FakePortal { targets: 2, units: 5, claimed: 1_000_000, slow: Duration::ZERO };
    let portal = fake.serve();
    let out = braid(&["scan", &portal]);
    let said = String::from_utf8(out.stdout).unwrap();
    assert!(said.contains("2 targets, 10 units"), "{said}");
    assert!(said.contains("it says that it has 999995 units more"), "{said}");
}

/// Each answer comes in time, and all of them together do not.
#[test]
fn a_portal_that_answers_again_and_again_does_not_keep_a_scan_going() {
    let slow = Duration::from_millis(700);
    let fake = FakePortal { targets: 200, units: 1, claimed: 1, slow };
    let portal = fake.serve();
    let begun = Instant::now();
    let said = fails(&["scan", &portal, "--timeout", "2"]);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(said.contains("did not say all within 2s (--timeout)"), "{said}");
    assert!(said.contains("iqn.fake:0000"), "what came in time is shown: {said}");
}

/// By the system's word, whichever command asks.
#[test]
fn a_target_that_cannot_be_reached_is_named_with_the_reason_and_what_to_do() {
    let unit = "iscsi://127.0.0.1:1/iqn.2026-11.org.braid:none/0";
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    for words in [
        &["mount", unit, dir][..],
        &["create", "pool", unit],
        &["scan", "iscsi://127.0.0.1:1"],
        &["scan", unit],
    ] {
        let out = braid(words);
        let said = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
        assert!(!said.contains("reconnect") && !said.contains(" at 0"), "{words:?}: {said}");
        for part in ["no connection to 127.0.0.1:1: Connection refused", "start the target"] {
            assert!(said.contains(part), "{words:?}: {said}");
        }
    }
    let said = fails(&["create", "pool", "iscsi://nowhere.invalid/iqn.x/0"]);
    assert!(said.contains("nowhere.invalid") && said.contains("correct its name"), "{said}");
}
