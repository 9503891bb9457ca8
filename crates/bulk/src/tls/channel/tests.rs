//! Two channels with memory between them.

use rustls::crypto::CipherSuiteCommon;
use rustls::{SupportedCipherSuite, Tls13CipherSuite};
use uuid::Uuid;

use super::super::certificates::Validity;
use super::super::folder::Folder;
use super::super::server::ServerTls;
use super::*;

/// Both sides of a connection.
struct Pair {
    client: Channel,
    server: Channel,
}

/// What one side has to say arrives at the other.
fn carry(from: &mut Channel, to: &mut Channel, change: &mut impl FnMut(&mut [u8])) {
    let mut bytes = from.outgoing().to_vec();
    from.sent();
    change(&mut bytes);
    let space = to.space();
    let n = bytes.len().min(space.len());
    space[..n].copy_from_slice(&bytes[..n]);
    assert_eq!(n, bytes.len(), "no room for what was sent");
    to.received(n);
}

/// How both sides connect.
struct Configs {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Configs {
    /// The suite's keys last for so many records.
    fn new(records: Option<u64>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::init(dir.path(), ("p", Uuid::new_v4()), ("one", &[]), false).unwrap();
        let identity = folder.invite("alice", false, Validity::days(1)).unwrap();
        let server = ServerTls::open(folder).unwrap().config();
        let (config, name) = identity.client().unwrap();
        let mut config = Arc::unwrap_or_clone(config);
        if let Some(limit) = records {
            let provider = config.crypto_provider();
            let SupportedCipherSuite::Tls13(suite) = provider.cipher_suites[0];
            let Tls13CipherSuite { common, hkdf_provider, aead_alg, quic } = suite;
            let CipherSuiteCommon { suite, hash_provider, .. } = common;
            let common = CipherSuiteCommon {
                suite: *suite,
                hash_provider: *hash_provider,
                confidentiality_limit: limit,
            };
            let suite = Tls13CipherSuite {
                common,
                hkdf_provider: *hkdf_provider,
                aead_alg: *aead_alg,
                quic: *quic,
            };
            let mut provider = (**provider).clone();
            provider.cipher_suites = vec![SupportedCipherSuite::Tls13(Box::leak(Box::new(suite)))];
            let roots = identity.roots().unwrap();
            config = ClientConfig::builder_with_provider(Arc::new(provider))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .unwrap()
                .with_root_certificates(roots)
                .with_client_auth_cert(
                    vec![identity.pair.certificate.clone()],
                    identity.pair.private(),
                )
                .unwrap();
        }
        Self { server, client: Arc::new(config), name }
    }
    /// Before the handshake.
    fn pair(&self) -> Pair {
        let client = Channel::client(Arc::clone(&self.client), self.name.clone()).unwrap();
        Pair { client, server: Channel::server(Arc::clone(&self.server)).unwrap() }
    }
}

impl Pair {
    /// Shakes hands; bytes may be changed on the way.
    fn shake(&mut self, mut change: impl FnMut(&mut [u8])) -> Result<(), Error> {
        for _ in 0..10 {
            let client = self.client.handshake();
            carry(&mut self.client, &mut self.server, &mut change);
            let server = self.server.handshake();
            carry(&mut self.server, &mut self.client, &mut change);
            if client? & server? {
                return Ok(());
            }
        }
        Err(Error::HandshakeNotComplete)
    }
    /// Sends from the client to the server, as the link does.
    fn send(&mut self, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let (mut rest, mut come) = (bytes, Vec::new());
        let mut memory = vec![0; 50_000];
        while !rest.is_empty() {
            let n = self.client.write(&rest[..rest.len().min(100_000)])?;
            rest = &rest[n..];
            carry(&mut self.client, &mut self.server, &mut |_| ());
            while let Got::Bytes(n) = self.server.read(&mut memory)? {
                come.extend_from_slice(&memory[..n]);
            }
            // New keys are answered, and so on.
            carry(&mut self.server, &mut self.client, &mut |_| ());
            assert_eq!(self.client.read(&mut memory)?, Got::Nothing);
        }
        Ok(come)
    }
}

fn noise(len: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        u8::try_from(seed >> 56).unwrap()
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn keys_are_changed_before_they_are_worn_out() {
    let mut pair = Configs::new(Some(100)).pair();
    pair.shake(|_| ()).unwrap();
    // Several hundred records.
    let bytes = noise(10 << 20, 1);
    assert!(pair.send(&bytes).unwrap() == bytes);
    assert_eq!(pair.server.alpn(), None);
}

#[test]
fn bytes_that_were_changed_on_the_way_are_noticed_and_harm_nothing() {
    let configs = Configs::new(None);
    assert_eq!(configs.pair().shake(|_| ()), Ok(()));
    for seed in 0..600_usize {
        let mut pair = configs.pair();
        // One byte of the handshake, anywhere.
        let mut at = seed * 5;
        let shaken = pair.shake(|bytes| match bytes.get_mut(at) {
            Some(byte) => *byte ^= 1 << (seed % 8),
            None => at = at.saturating_sub(bytes.len()),
        });
        // What has failed fails again; nothing panics.
        if shaken.is_err() {
            for channel in [&mut pair.client, &mut pair.server] {
                let failed = channel.failed.clone();
                if let Some(error) = failed {
                    assert_eq!(channel.handshake(), Err(error.clone()));
                    assert_eq!(channel.read(&mut [0; 10]), Err(error.clone()));
                    assert_eq!(channel.write(b"x"), Err(error));
                }
            }
        }
    }
}

#[test]
fn records_that_were_changed_or_made_up_are_refused() {
    let configs = Configs::new(None);
    for seed in 0..300_u64 {
        let mut pair = configs.pair();
        pair.shake(|_| ()).unwrap();
        let sent = noise(1000, seed);
        pair.client.write(&sent).unwrap();
        let kind = u8::try_from(20 + seed % 5).unwrap();
        carry(&mut pair.client, &mut pair.server, &mut |bytes| {
            let len = bytes.len();
            let at = usize::try_from(seed * 7).unwrap() % len;
            match seed % 3 {
                0 => bytes[at] ^= 1,
                1 => bytes[0] = kind,
                _ => bytes[3..].copy_from_slice(&noise(len - 3, seed)),
            }
        });
        let (mut memory, mut come) = ([0; 100], Vec::new());
        let end = loop {
            match pair.server.read(&mut memory) {
                Ok(Got::Bytes(n)) => come.extend_from_slice(&memory[..n]),
                end => break end,
            }
        };
        // It is refused, or more was promised than has come; the kind of a record that is encrypted means nothing.
        assert!(come.is_empty() || come == sent, "{seed}");
        let is_whole = come == sent || pair.server.is_inside_record() || seed % 3 == 1;
        assert!(end.is_err() || is_whole, "{seed}: {end:?}");
    }
}
