//! What is set for each connection, so that one that is dead is found out.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

/// What is sent, or comes, and is not acknowledged for so long ends its connection: a dead link is
/// noticed, and the slower ways are used.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// Hints are short and urgent; a link that is dead is to be found out.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE_MAX)?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    let ms = u32::try_from(SILENCE_MAX.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, ms)?;
    Ok(())
}
