//! Properties of a pool: the keys that are known, their values, and what they are good for.

use anyhow::{Context, Result, bail};
use braid_format::label::properties::Properties;
use braid_format::text;

use super::mount;
use crate::control::{self, Order};
use crate::pools::properties::{COMMENT, IO_TIMEOUT, MOUNT_OPTIONS, SCRUB_EVERY, scrub_every};
use crate::pools::sources;

/// A key that this version knows.
#[derive(Debug)]
pub struct Known {
    pub key: &'static str,
    /// What holds while it is not set.
    pub default: &'static str,
    /// What it is good for.
    pub meaning: &'static str,
    check: fn(&str) -> Result<()>,
}

/// All of them.
pub const KNOWN: [Known; 4] = [
    Known {
        key: COMMENT,
        default: "",
        meaning: "shown by `braid status`",
        check: |value| {
            if let Some(c) = value.chars().find(|c| !text::shows(*c)) {
                bail!(
                    "it has control characters, such as the end of a line, or format characters, which are not seen: {}",
                    c.escape_unicode()
                );
            }
            Ok(())
        },
    },
    Known {
        key: IO_TIMEOUT,
        default: "",
        meaning: "seconds from which the timers of every node follow, as for `mount -o io_timeout=`",
        check: |seconds| mount::io_timeout(seconds).map(drop),
    },
    Known {
        key: MOUNT_OPTIONS,
        default: "",
        meaning: "options of every mount of the pool, before those that are given",
        check: mount::check_pool_options,
    },
    Known {
        key: SCRUB_EVERY,
        default: "30",
        meaning: "days from one scrub to the next (`braid scrub --due`, the package's timer), or never",
        check: |text| scrub_every(text).map(drop),
    },
];

/// The key of that name.
///
/// # Errors
/// There is none; the others are named.
pub fn known(key: &str) -> Result<&'static Known> {
    KNOWN.iter().find(|known| known.key == key).with_context(|| {
        let keys: Vec<&str> = KNOWN.iter().map(|known| known.key).collect();
        format!("no property is called '{key}': there are {}", keys.join(", "))
    })
}

/// What `KEY=VALUE` means; without a value the property is taken away.
///
/// # Errors
/// Names the key, and why the value makes no sense.
pub fn parse(word: &str) -> Result<(String, Option<String>)> {
    let (key, value) = word.split_once('=').with_context(|| format!("{word}: not KEY=VALUE"))?;
    let known = known(key)?;
    if !value.is_empty() {
        (known.check)(value).with_context(|| format!("{key}={value}"))?;
    }
    Ok((key.to_owned(), Some(value.to_owned()).filter(|value| !value.is_empty())))
}

/// Properties of a pool, mounted or not, and its name.
///
/// # Errors
/// There is no such pool, or it cannot be read.
pub fn of_pool(name: &str) -> Result<Properties> {
    if let Some(mount) = control::look(name)? {
        return Ok(control::order(&mount, &Order::Members)?.properties);
    }
    Ok(sources::open_to_read(&[name.to_owned()], true)?.label().properties)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_by_name() {
        for (word, said) in [
            ("comment", "not KEY=VALUE"),
            ("coment=x", "there are comment, io_timeout, mount.options, scrub.every"),
            ("io_timeout=0", "io_timeout"),
            ("io_timeout=long", "seconds"),
            ("scrub.every=0", "scrub.every=0"),
            ("scrub.every=3651", "1 to 3650"),
            ("scrub.every=weekly", "never"),
            ("mount.options=noatime,rubbish", "rubbish"),
            ("mount.options=commit=0", "commit"),
            ("mount.options=cache=1", "cache"),
            ("mount.options=fence_command=/bin/sh", "fence_command"),
            ("mount.options=devices=/dev/sdb", "devices"),
            ("mount.options=ro", "ro"),
            ("mount.options=slot=1", "slot"),
            ("mount.options=io_timeout=5", "io_timeout"),
            ("comment=a\nb", "control characters"),
            ("comment=evil\u{202e}txt", "\\u{202e}"),
            ("comment=zero\u{200b}width", "format characters"),
        ] {
            let refused = format!("{:#}", parse(word).unwrap_err());
            assert!(refused.contains(said), "{word}: {refused}");
        }
        let some = |value: &str| Some(value.to_owned());
        for (word, value) in [
            ("comment=a = b", some("a = b")),
            ("comment=", None),
            ("io_timeout=30", some("30")),
            ("scrub.every=14", some("14")),
            ("scrub.every=never", some("never")),
            ("mount.options=commit=30,discard,nosuid", some("commit=30,discard,nosuid")),
        ] {
            assert_eq!(parse(word).unwrap().1, value, "{word}");
        }
    }

    #[test]
    fn what_holds_by_default_makes_sense() {
        for known in &KNOWN {
            assert!(known.default.is_empty() || (known.check)(known.default).is_ok());
        }
    }
}
