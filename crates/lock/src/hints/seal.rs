//! What makes a hint over TCP one of a node of this file system: keyed BLAKE3.
//!
//! ```text
//!   who sends                              who hears
//!     opening: lives, nonce A, tag(K) ---->           K: of the hearer's slot
//!             <---- answer: lives, nonce B, tag(K, opening)
//!     S = tag(K, opening, answer)                     S: of this connection
//!     hint 0, tag(S, 0, hint) ------------>
//!     hint 1, tag(S, 1, hint) ------------>
//! ```
//!
//! K is made of the hearer's `node_uuid`: a random number of each life, which stands in its slot and
//! nowhere else, so who can read the devices (or the store of the slots) knows it. An opening that is
//! said again gets an answer and leads nowhere: B is another, and so is S. A hint that is said again,
//! or left out, has a wrong number, which ends the connection.

use braid_format::{Incarnation, NodeId};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::message::HINT;
use crate::Life;

const TAG: usize = blake3::OUT_LEN;
/// Bytes of a sealed hint.
pub(super) const SEALED: usize = HINT + TAG;
/// Bytes of an opening, and of its answer.
pub(super) const GREETING: usize = size_of::<RawGreeting>();

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawGreeting {
    magic: U32,
    version: U16,
    /// 1 opening, 2 answer.
    kind: U16,
    from_slot: U16,
    to_slot: U16,
    from_incarnation: U32,
    to_incarnation: U32,
    reserved: [u8; 12],
    nonce: [u8; 32],
    tag: [u8; TAG],
}
const _: () = assert!(size_of::<RawGreeting>() == 96);
const SIGNED: usize = GREETING - TAG;

const MAGIC: u32 = u32::from_le_bytes(*b"BRHC");
const OPENING: u16 = 1;
const ANSWER: u16 = 2;

pub(super) type Greeting = [u8; GREETING];

/// What only who can read a life's slot knows.
#[derive(Clone, Copy)]
pub(super) struct Secret([u8; blake3::KEY_LEN]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

fn nonce() -> [u8; 32] {
    let mut nonce = [0; 32];
    for half in nonce.chunks_exact_mut(16) {
        half.copy_from_slice(uuid::Uuid::new_v4().as_bytes());
    }
    nonce
}

impl Secret {
    pub fn of(fs: uuid::Uuid, life: Life, node_uuid: [u8; 16]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("Braid: hints to a node, version 1");
        hasher.update(fs.as_bytes());
        hasher.update(&life.slot.0.to_le_bytes());
        hasher.update(&life.incarnation.0.to_le_bytes());
        hasher.update(&node_uuid);
        Self(*hasher.finalize().as_bytes())
    }
    fn tag(&self, parts: &[&[u8]]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }
    fn greet(
        &self,
        kind: u16,
        (from, to): (Life, Life),
        nonce: [u8; 32],
        before: &[u8],
    ) -> Greeting {
        let mut raw = RawGreeting {
            magic: U32::new(MAGIC),
            version: U16::new(1),
            kind: U16::new(kind),
            from_slot: U16::new(from.slot.0),
            to_slot: U16::new(to.slot.0),
            from_incarnation: U32::new(from.incarnation.0),
            to_incarnation: U32::new(to.incarnation.0),
            reserved: [0; 12],
            nonce,
            tag: [0; TAG],
        };
        raw.tag = *self.tag(&[before, raw.as_bytes().get(..SIGNED).unwrap_or_default()]).as_bytes();
        let mut bytes = [0; GREETING];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
    /// Whose it is, and to whom, if it is sealed with this secret.
    fn verify(&self, kind: u16, greeting: &Greeting, before: &[u8]) -> Option<(Life, Life)> {
        let (signed, tag) = greeting.split_at_checked(SIGNED)?;
        let raw = RawGreeting::read_from_bytes(greeting).ok()?;
        let meant = raw.magic.get() == MAGIC && raw.version.get() == 1 && raw.kind.get() == kind;
        // In constant time.
        if !meant || self.tag(&[before, signed]) != *<&[u8; TAG]>::try_from(tag).ok()? {
            return None;
        }
        let life = |slot: U16, incarnation: U32| Life {
            slot: NodeId(slot.get()),
            incarnation: Incarnation(incarnation.get()),
        };
        let from = life(raw.from_slot, raw.from_incarnation);
        Some((from, life(raw.to_slot, raw.to_incarnation)))
    }
    /// Begins a connection of `from` to `to`, whose secret this is.
    pub fn opening(&self, from: Life, to: Life) -> Greeting {
        self.greet(OPENING, (from, to), nonce(), &[])
    }
    /// Answers an opening that came to `me`, whose secret this is: who it is, the answer, and what
    /// the hints that follow are sealed with.
    pub fn answer(&self, me: Life, opening: &Greeting) -> Option<(Life, Greeting, Seal)> {
        let (from, to) = self.verify(OPENING, opening, &[])?;
        let answer = (to == me).then(|| self.greet(ANSWER, (me, from), nonce(), opening))?;
        Some((from, answer, self.seal(opening, &answer)))
    }
    /// Takes the answer to this opening.
    pub fn accept(&self, opening: &Greeting, answer: &Greeting) -> Option<Seal> {
        self.verify(ANSWER, answer, opening)?;
        Some(self.seal(opening, answer))
    }
    fn seal(&self, opening: &Greeting, answer: &Greeting) -> Seal {
        let key = self.tag(&[b"hints of", opening, answer]);
        Seal { key: Self(*key.as_bytes()), next: 0 }
    }
}

/// One end of a connection's seal.
#[derive(Debug)]
pub(super) struct Seal {
    key: Secret,
    /// Number of the next hint.
    next: u64,
}

impl Seal {
    fn tag(&self, hint: &[u8]) -> blake3::Hash {
        self.key.tag(&[&self.next.to_le_bytes(), hint])
    }
    pub fn close(&mut self, hint: &[u8; HINT]) -> [u8; SEALED] {
        let mut sealed = [0; SEALED];
        let tag = self.tag(hint);
        for (place, byte) in sealed.iter_mut().zip(hint.iter().chain(tag.as_bytes())) {
            *place = *byte;
        }
        self.next += 1;
        sealed
    }
    pub fn open<'a>(&mut self, sealed: &'a [u8; SEALED]) -> Option<&'a [u8]> {
        let (hint, tag) = sealed.split_at_checked(SEALED - TAG)?;
        if self.tag(hint) != *<&[u8; TAG]>::try_from(tag).ok()? {
            return None;
        }
        self.next += 1;
        Some(hint)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use braid_format::lock_record::LockRecord;

    use super::*;

    fn me(slot: u16) -> Life {
        Life { slot: NodeId(slot), incarnation: Incarnation(3) }
    }
    fn secret(of: u16) -> Secret {
        Secret::of(uuid::Uuid::from_u128(1), me(of), [7; 16])
    }
    fn pair() -> (Seal, Seal, Greeting, Greeting) {
        let opening = secret(2).opening(me(1), me(2));
        let (from, answer, hears) = secret(2).answer(me(2), &opening).unwrap();
        assert_eq!(from, me(1));
        (secret(2).accept(&opening, &answer).unwrap(), hears, opening, answer)
    }

    /// What goes over the wire, byte by byte, as docs/LOCKING.md section 7 shows it.
    #[test]
    fn golden_bytes() {
        use zerocopy::IntoBytes as _;
        let life = |slot, n| Life { slot: NodeId(slot), incarnation: Incarnation(n) };
        let (from, to) = (life(0x0102, 0x0304_0506), life(0x0708, 0x090a_0b0c));
        let fs = uuid::Uuid::from_u128(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100);
        let secret = Secret::of(fs, to, [0x5a; 16]);
        let opening = secret.greet(OPENING, (from, to), [0x11; 32], &[]);
        let answer = secret.greet(ANSWER, (to, from), [0x22; 32], &opening);
        let mut seal = secret.accept(&opening, &answer).unwrap();
        let lock = braid_format::LockNo(0x1112_1314_1516_1718);
        let hint = |hint| {
            let raw = crate::hints::message::encode(from, to, lock, &hint);
            <[u8; HINT]>::try_from(raw.as_bytes()).unwrap()
        };
        let wanted = |mode| hint(crate::dlock::Hint::Wanted(mode));
        let mut record = LockRecord::unlocked(lock, 0x2122_2324_2526_2728);
        (record.mode, record.version) = (crate::Mode::Exclusive, 9);
        record.add_holder(life(0x0108, 0x090a_0b0c));
        let ticket = 0x3132_3334_3536_3738;
        let hints = [
            wanted(crate::Mode::Shared),
            hint(crate::dlock::Hint::Granted),
            hint(crate::dlock::Hint::Ask { mode: crate::Mode::Exclusive, ticket }),
            hint(crate::dlock::Hint::Give { ticket, record: Arc::new(record) }),
        ];
        let sealed = hints.map(|hint| seal.close(&hint));
        let hex = |bytes: &[u8]| {
            let line =
                |line: &[u8]| line.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().concat();
            bytes.chunks(32).map(line).collect::<Vec<_>>().join("\n")
        };
        let all = [&opening[..], &answer, &sealed[0], &sealed[1], &sealed[2], &sealed[3]];
        let all = all.map(hex).join("\n\n");
        let docs = include_str!("../../../../docs/LOCKING.md");
        assert!(docs.contains(&format!("```\n{all}\n```")), "\n{all}");
        // And whoever has these bytes understands them.
        let mut hears = secret.seal(&opening, &answer);
        assert_eq!(secret.verify(OPENING, &opening, &[]), Some((from, to)));
        for (sealed, hint) in sealed.iter().zip(&hints) {
            assert_eq!(hears.open(sealed), Some(&hint[..]));
        }
    }

    #[test]
    fn hints_pass_in_order_and_once() {
        let (mut says, mut hears, ..) = pair();
        let sealed: Vec<_> = (0..4).map(|n| says.close(&[n; HINT])).collect();
        assert_eq!(hears.open(&sealed[0]), Some(&[0; HINT][..]));
        assert_eq!(hears.open(&sealed[0]), None, "replayed");
        assert_eq!(hears.open(&sealed[2]), None, "one is missing");
        assert_eq!(hears.open(&sealed[1]), Some(&[1; HINT][..]));
    }

    #[test]
    fn what_was_said_in_another_connection_says_nothing() {
        let (mut says, _, opening, answer) = pair();
        let first = says.close(&[0; HINT]);
        // The same opening once more: another answer, another seal.
        let (_, other, mut hears) = secret(2).answer(me(2), &opening).unwrap();
        assert_ne!(other, answer);
        assert_eq!(hears.open(&first), None);
        let again = secret(2).opening(me(1), me(2));
        assert!(secret(2).accept(&again, &answer).is_none(), "an answer to another opening");
        assert!(secret(2).accept(&opening, &opening).is_none(), "an echo");
    }

    #[test]
    fn every_bit_counts_and_so_does_who_is_meant() {
        let (mut says, _, opening, answer) = pair();
        for at in 0..GREETING {
            let mut bad = opening;
            bad[at] ^= 1;
            assert!(secret(2).answer(me(2), &bad).is_none(), "byte {at}");
            let mut bad = answer;
            bad[at] ^= 1;
            assert!(secret(2).accept(&opening, &bad).is_none(), "byte {at}");
        }
        let sealed = says.close(&[9; HINT]);
        for at in 0..SEALED {
            let (mut bad, mut hears) = (sealed, secret(2).seal(&opening, &answer));
            bad[at] ^= 1;
            assert!(hears.open(&bad).is_none(), "byte {at}");
        }
        assert!(secret(3).answer(me(2), &opening).is_none(), "another's secret");
        assert!(secret(2).answer(me(3), &opening).is_none(), "for another");
        let other = Secret::of(uuid::Uuid::from_u128(2), me(2), [7; 16]);
        assert!(other.answer(me(2), &opening).is_none(), "of another file system");
    }
}
