//! Identities of the bulk service: from a file, standard input, or a token.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use braid_bulk::tls::Identity;

/// Hands an identity over: a file's name, or a token.
pub const VARIABLE: &str = "BRAID_IDENTITY";
/// Longest identity that is read.
const MOST: u64 = 64 << 10;

/// An identity from what a user has named: a file, `-` for standard input, or a token.
///
/// # Errors
/// It cannot be read, or others can; it is none.
pub fn named(word: &str) -> Result<Identity> {
    if Identity::is_token(word) {
        return Ok(Identity::parse(word)?);
    }
    let mut text = String::new();
    if word == "-" {
        std::io::stdin().take(MOST).read_to_string(&mut text).context("standard input")?;
        return Identity::parse(&text).context("standard input");
    }
    let file = File::open(word).with_context(|| word.to_owned())?;
    let meta = file.metadata()?;
    if meta.is_file() && meta.mode() & 0o077 != 0 {
        bail!("{word}: others than its owner may read this identity: `chmod 600 {word}`");
    }
    file.take(MOST).read_to_string(&mut text).with_context(|| word.to_owned())?;
    Identity::parse(&text).with_context(|| word.to_owned())
}

/// Where the identity for a pool is if nothing is said.
fn usual(pool: &str) -> Option<PathBuf> {
    let config = std::env::var_os("XDG_CONFIG_HOME").filter(|dir| Path::new(dir).is_absolute());
    let config = config
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")))?;
    Some(config.join("braid/bulk").join(pool))
}

/// The identity with which a client uses a pool.
///
/// # Errors
/// There is none, or it is of no use.
pub fn for_pool(option: Option<&str>, pool: &str) -> Result<Identity> {
    let variable = std::env::var(VARIABLE).ok().filter(|word| !word.is_empty());
    // Taken off the command line.
    let option = option.filter(|word| *word != format!("${VARIABLE}"));
    let identity = match (option.map(str::to_owned).or(variable), usual(pool)) {
        (Some(word), _) => named(&word)?,
        (None, Some(path)) if path.exists() => named(&path.to_string_lossy())?,
        (None, path) => {
            let path = path.map_or_else(String::new, |path| format!(" in {}", path.display()));
            bail!(
                "no identity for the pool {pool}{path}: ask for one (`braid serve invite {pool} NAME` on the server) \
                 and keep it there, or name it by --identity. For a server without TLS: --insecure"
            );
        }
    };
    if identity.pool != pool {
        bail!(
            "the identity of {} is for the pool {}, not for {pool}",
            identity.name,
            identity.pool
        );
    }
    Ok(identity)
}
