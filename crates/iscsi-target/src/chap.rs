//! CHAP (RFC 1994, as RFC 7143 section 12.1.3 uses it): who knows the secret, without saying it.

use md5::{Digest, Md5};

use crate::text;

/// Names and secrets that a login must prove, and that the target proves in turn.
#[derive(Clone, Default)]
pub struct Chap {
    /// What initiators must prove; nobody need prove anything when it is absent.
    pub initiator: Option<Secret>,
    /// What the target proves to those that ask.
    pub target: Option<Secret>,
}

impl std::fmt::Debug for Chap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (i, t) = (self.initiator.is_some(), self.target.is_some());
        write!(f, "Chap(initiator {i}, target {t})")
    }
}

/// A name and its secret.
#[derive(Clone)]
pub struct Secret {
    /// Name.
    pub name: String,
    /// Secret.
    pub secret: String,
}

/// MD5, the one algorithm that everybody has.
pub const ALGORITHM: &str = "5";

/// The answer to a challenge.
pub fn answer(id: u8, secret: &str, challenge: &[u8]) -> [u8; 16] {
    let mut hash = Md5::new();
    hash.update([id]);
    hash.update(secret.as_bytes());
    hash.update(challenge);
    hash.finalize().into()
}

/// A challenge that was sent and waits for its answer.
#[derive(Debug, Clone)]
pub struct Challenge {
    id: u8,
    bytes: [u8; 16],
}

impl Challenge {
    /// A fresh one.
    pub fn new() -> Self {
        let random = uuid::Uuid::new_v4();
        let [id, ..] = *uuid::Uuid::new_v4().as_bytes();
        Self { id, bytes: *random.as_bytes() }
    }
    /// As it is sent.
    pub fn pairs(&self) -> [(String, String); 3] {
        let pair = |k: &str, v: String| (k.to_owned(), v);
        [
            pair("CHAP_A", ALGORITHM.to_owned()),
            pair("CHAP_I", self.id.to_string()),
            pair("CHAP_C", text::hex(&self.bytes)),
        ]
    }
    /// Whether `response` shows that its sender knows `secret`. Takes as long for a wrong answer as
    /// for a right one.
    pub fn proven(&self, secret: &str, response: &[u8]) -> bool {
        let right = answer(self.id, secret, &self.bytes);
        let differ = right.iter().zip(response).fold(0, |d, (a, b)| d | (a ^ b));
        response.len() == right.len() && differ == 0
    }
    /// Whether somebody sends our own challenge back, to have us answer it.
    pub fn is(&self, bytes: &[u8]) -> bool {
        self.bytes == bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_answers() {
        // By md5sum of the bytes 1, "secret", "challenge".
        let expected = text::binary("0x46e47770030e2b4e26a0db72a7efec00").unwrap();
        assert_eq!(answer(1, "secret", b"challenge").to_vec(), expected);
        let c = Challenge::new();
        let good = answer(c.id, "secret", &c.bytes);
        assert!(c.proven("secret", &good));
        assert!(!c.proven("Secret", &good));
        assert!(!c.proven("secret", &good[..15]));
        assert!(!c.proven("secret", &[]));
    }
}
