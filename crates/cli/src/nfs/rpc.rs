//! Whether an NFS server answers: ONC RPC's null call (RFC 5531).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// For the connection and for the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number and version of the program.
const NFS: [u32; 2] = [100_003, 4];
/// Any.
const CALL_ID: u32 = 0x6272_6169;

/// Asks for nothing, and waits for the answer.
///
/// # Errors
/// Nobody listens there, or it is no NFS server.
pub fn ping(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // A call, version 2 of RPC, the null procedure; neither credentials nor a verifier.
    let call = [CALL_ID, 0, 2, NFS[0], NFS[1], 0, 0, 0, 0, 0];
    let bytes = 4 * u32::try_from(call.len()).unwrap_or_default();
    let last_fragment = 0x8000_0000 | bytes;
    let words = [last_fragment].into_iter().chain(call);
    let bytes: Vec<u8> = words.flat_map(u32::to_be_bytes).collect();
    stream.write_all(&bytes)?;
    let mut answer = [0; 28];
    stream.read_exact(&mut answer)?;
    let mut words = answer.chunks_exact(4).map(|w| w.iter().fold(0, |v, b| v << 8 | u32::from(*b)));
    // Length, the call's number, "answer", "accepted", an empty verifier, "success".
    let is_ours = words.nth(1) == Some(CALL_ID) && words.eq([1, 0, 0, 0, 0]);
    if is_ours { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
}
