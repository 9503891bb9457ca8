//! `braid probe`, which udev runs (`61-braid.rules`): says what a member of a pool is, in the words of blkid.

use braid_format::text;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use braid_pool::labels::Found;

use crate::pools::sources;

/// Say for udev which pool a device is a member of; exit status 1 if it is of none
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The device
    device: PathBuf,
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    let devices = sources::open_devices(std::slice::from_ref(&args.device), true)?;
    let found: Vec<Found> = devices.into_iter().map(Found::read).collect();
    let Some(label) = found.iter().find_map(Found::newest) else { return Ok(ExitCode::FAILURE) };
    println!("ID_FS_USAGE=raid\nID_FS_TYPE=braid_member");
    let member = label.members.get(usize::from(label.member.get()));
    let told = [
        ("UUID", Some(label.pool.to_string())),
        ("LABEL", Some(label.name.clone())),
        ("UUID_SUB", member.map(|m| m.uuid.to_string())),
    ];
    for (key, value) in told {
        let Some(value) = value else { continue };
        println!("ID_FS_{key}={}\nID_FS_{key}_ENC={}", plain(&value), encoded(&value));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether udev takes the character as it is, in values and in names of links.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) || !c.is_ascii() && text::shows(c)
}

/// For people: what is not plain is an underscore.
fn plain(text: &str) -> String {
    text.chars().map(|c| if is_plain(c) { c } else { '_' }).collect()
}

/// For names of links: what is not plain is written in hexadecimal, as udev does it.
fn encoded(text: &str) -> String {
    let one =
        |c: char| if is_plain(c) { c.to_string() } else { format!("\\x{:02x}", u32::from(c)) };
    text.chars().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_as_udev_writes_them() {
        for (name, shown, link) in [
            ("safe-2.x", "safe-2.x", "safe-2.x"),
            ("two words", "two_words", "two\\x20words"),
            ("gr\u{fc}n\\\"$", "gr\u{fc}n___", "gr\u{fc}n\\x5c\\x22\\x24"),
        ] {
            assert_eq!((plain(name).as_str(), encoded(name).as_str()), (shown, link));
        }
    }
}
