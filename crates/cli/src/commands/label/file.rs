//! A label in a file: JSON that a person can read, with the label's own bytes and a checksum.
//!
//! ```text
//! { "braid": "label dump", "version": 1, "crc32c": "0x1234abcd",
//!   "dump": { "taken": ..., "pool": {...}, "members": [...], "topology": {...}, "label": ["42524149...", ...] } }
//! ```
//! The checksum is over `dump` in its shortest form with sorted keys, so a file that was only laid out
//! anew is still good. What is restored comes from `label`, which has a checksum of its own; the
//! rest is for people.

use std::fmt::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use braid_format::crc::crc32c;
use braid_format::label::Label;
use serde_json::{Value, json};

use crate::pools::topology;

const KIND: &str = "label dump";
const VERSION: u64 = 1;
/// A label of 256 members with the widest topology takes a tenth of this.
const FILE_MAX: u64 = 8 << 20;
/// Bytes of the label in one line.
const LINE: usize = 32;

/// The file of a label.
///
/// # Errors
/// A label that cannot be encoded.
pub fn text(label: &Label, taken: SystemTime) -> Result<String> {
    let mut bytes = vec![0; label.encoded_len()];
    label.encode(0, Label::COPY0_AT, &mut bytes)?;
    let hex = |line: &[u8]| {
        line.iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    };
    let paths: Vec<String> = label.members.iter().map(|m| m.path.clone()).collect();
    let dump = json!({
        "taken": taken.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()),
        "pool": {
            "name": label.name,
            "uuid": label.pool.to_string(),
            "epoch": label.epoch.get(),
            "change": label.change_id.to_string(),
            "size": label.size().get(),
            "stripe_unit": label.stripe_unit.get(),
            "lock_sector": label.lock_sector.get(),
            "created": label.created,
            "changed": label.changed,
        },
        "members": (0_u16..).zip(&label.members).map(|(index, m)| json!({
            "index": index,
            "uuid": m.uuid.to_string(),
            "state": format!("{:?}", m.state).to_lowercase(),
            "last_path": m.path,
            "serial": m.serial,
            "device_size": m.device_size.get(),
            "data_start": m.data_start.get(),
            "data_len": m.data_len.get(),
            "labels_at": [Label::COPY0_AT.0, Label::copy1_at(m.device_size).map_or(0, |at| at.0)],
        })).collect::<Vec<_>>(),
        "topology": topology::as_json(label, &paths),
        "label": bytes.chunks(LINE).map(hex).collect::<Vec<_>>(),
    });
    let crc = format!("{:#010x}", crc32c(dump.to_string().as_bytes()));
    let file = json!({"braid": KIND, "version": VERSION, "crc32c": crc, "dump": dump});
    Ok(serde_json::to_string_pretty(&file)? + "\n")
}

/// A label from its file, and when it was written there.
///
/// # Errors
/// No such file; another kind of file; a byte that is not as it was.
pub fn read(path: &Path) -> Result<(Label, u64)> {
    let shown = || path.display().to_string();
    let len = std::fs::metadata(path).with_context(shown)?.len();
    if len > FILE_MAX {
        bail!("{}: {len} bytes are too many for a label dump", shown());
    }
    let bytes = std::fs::read(path).with_context(shown)?;
    parse(&bytes).with_context(shown)
}

fn parse(bytes: &[u8]) -> Result<(Label, u64)> {
    let file: Value = serde_json::from_slice(bytes)
        .map_err(|e| anyhow::anyhow!("not a label dump, or a damaged one: {e}"))?;
    if file["braid"] != KIND {
        bail!("not a label dump: `braid label dump -o FILE` makes one");
    }
    if file["version"] != VERSION {
        bail!("a label dump of version {}: this braid knows version {VERSION}", file["version"]);
    }
    let dump = &file["dump"];
    let crc = format!("{:#010x}", crc32c(dump.to_string().as_bytes()));
    if file["crc32c"] != crc {
        bail!("the label dump is damaged or was changed: its checksum is not {crc}");
    }
    let lines = dump["label"].as_array().context("the label dump has no label")?;
    let mut label = Vec::new();
    for line in lines {
        label.extend(unhex(line.as_str().unwrap_or_default()).context("not hexadecimal")?);
    }
    let (label, _) = Label::decode(&label, Label::COPY0_AT)?;
    Ok((label, dump["taken"].as_u64().unwrap_or(0)))
}

fn unhex(line: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let byte = |pair: &[u8]| match *pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    line.as_bytes().chunks(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use braid_format::Bytes;
    use braid_pool::Pool;

    use super::*;

    #[test]
    fn a_dump_gives_its_label_back_and_no_byte_of_it_may_change() {
        let label = Pool::for_tests(3, Bytes(4 << 20)).label();
        let text = text(&label, UNIX_EPOCH).unwrap();
        assert_eq!(parse(text.as_bytes()).unwrap().0, label);
        // Laid out anew.
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parse(value.to_string().as_bytes()).unwrap().0, label);
        // Every character, changed in its lowest bit, is noticed, or means the same.
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            if let Ok((other, taken)) = parse(&bytes) {
                assert_eq!((&other, taken), (&label, 0), "byte {at}");
                let spaces = text.as_bytes()[at].is_ascii_whitespace();
                assert!(spaces, "byte {at}: {:?}", char::from(text.as_bytes()[at]));
            }
        }
        for len in [0, 1, text.len() / 2, text.len() - 3] {
            assert!(parse(&text.as_bytes()[..len]).is_err());
        }
    }
}
