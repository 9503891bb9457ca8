//! Names of units: `iscsi://[user[%secret]@]host[:port]/target/unit`.

use std::collections::HashMap;
use std::fmt::{self, Write as _};

use parking_lot::Mutex;

const PORT: u16 = 3260;

/// A unit by its name. Shown without its secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct UnitName {
    /// Who logs in.
    pub user: Option<String>,
    /// With what.
    pub secret: Option<String>,
    /// Host and port.
    pub portal: String,
    /// The target's name.
    pub target: String,
    /// The unit's number.
    pub lun: u8,
}

/// Secrets that were said once: a device is opened again by the name it shows.
static SECRETS: Mutex<Option<HashMap<String, String>>> = Mutex::new(None);

impl UnitName {
    /// What such names begin with.
    pub const SCHEME: &str = "iscsi://";

    /// Whether a word is meant as one.
    pub fn is_meant(word: &str) -> bool {
        word.starts_with(Self::SCHEME)
    }
    /// Reads a name. User and secret may also come from the environment
    /// (`LIBISCSI_CHAP_USERNAME`, `LIBISCSI_CHAP_PASSWORD`): a command line can be read by everybody.
    pub fn parse(word: &str) -> Option<Self> {
        let rest = word.strip_prefix(Self::SCHEME)?;
        let (place, unit) = rest.split_once('/')?;
        let (target, lun) = unit.rsplit_once('/')?;
        let Place { user, secret, portal } = Place::parse(place)?;
        let user = user.or_else(|| from_environment("LIBISCSI_CHAP_USERNAME"));
        let (target, lun) = (target.to_owned(), lun.parse().ok()?);
        let mut name = Self { user, secret, portal, target, lun };
        if !fits(&name.target) {
            return None;
        }
        if name.secret.is_some() {
            return Some(name.remembered());
        }
        if name.user.is_some() {
            let shown = name.to_string();
            let said = SECRETS.lock().as_ref().and_then(|known| known.get(&shown).cloned());
            let said = said.or_else(|| handed_over(&shown));
            name.secret = said.or_else(|| from_environment("LIBISCSI_CHAP_PASSWORD"));
        }
        Some(name)
    }
    /// The same. From now on this process knows its secret by the name that it shows.
    pub(super) fn remembered(self) -> Self {
        if let Some(secret) = &self.secret {
            let mut known = SECRETS.lock();
            known.get_or_insert_default().insert(self.to_string(), secret.clone());
        }
        self
    }
}

fn fits(word: &str) -> bool {
    !word.is_empty() && word.len() < 256 && !word.contains(['\0', '/', ' '])
}

fn from_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Where a target is, and who logs in there: `[user[%secret]@]host[:port]`. Shown without its secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Who logs in.
    pub user: Option<String>,
    /// With what.
    pub secret: Option<String>,
    /// Host and port.
    pub portal: String,
}

impl Place {
    /// Reads it.
    pub fn parse(place: &str) -> Option<Self> {
        let (login, host) = match place.rsplit_once('@') {
            Some((login, host)) => (Some(login), host),
            None => (None, place),
        };
        let (user, secret) = match login.map(|l| l.split_once('%').unwrap_or((l, ""))) {
            Some((user, secret)) => (Some(user), Some(secret).filter(|s| !s.is_empty())),
            None => (None, None),
        };
        let numbered = host.rsplit_once(':').is_some_and(|(h, port)| {
            port.parse::<u16>().is_ok() && (!h.contains(':') || h.ends_with(']'))
        });
        let portal = if numbered { host.to_owned() } else { format!("{host}:{PORT}") };
        if host.is_empty() || !fits(&portal) {
            return None;
        }
        Some(Self { user: user.map(str::to_owned), secret: secret.map(str::to_owned), portal })
    }
    /// Reads the name of a portal: the scheme and a place.
    pub fn of_portal(word: &str) -> Option<Self> {
        let rest = word.strip_prefix(UnitName::SCHEME)?;
        Self::parse(rest.strip_suffix('/').unwrap_or(rest))
    }
    /// The name of the portal.
    pub fn as_portal(&self) -> String {
        format!("{}{self}", UnitName::SCHEME)
    }
    /// With user and secret from the process that started this one, or from the environment, where the name has none.
    pub fn with_login(mut self) -> Self {
        self.user = self.user.or_else(|| from_environment("LIBISCSI_CHAP_USERNAME"));
        if self.secret.is_none() && self.user.is_some() {
            let handed = handed_over(&self.as_portal());
            self.secret = handed.or_else(|| from_environment("LIBISCSI_CHAP_PASSWORD"));
        }
        self
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        f.write_str(&self.portal)
    }
}
impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({self})")
    }
}

/// Secrets from the process that started this one.
const SECRETS_VARIABLE: &str = "BRAID_ISCSI_SECRETS";

fn handed_over(shown: &str) -> Option<String> {
    let all = std::env::var(SECRETS_VARIABLE).ok()?;
    let mut pairs = all.lines().filter_map(|l| l.split_once(' '));
    pairs.find(|(name, _)| *name == shown).map(|(_, secret)| secret.to_owned())
}

/// Words of a command line without the secrets in them, and the environment variable (name and
/// value) that hands those to the process that gets these words.
pub fn without_secrets(words: &[String]) -> (Vec<String>, Option<(&'static str, String)>) {
    let mut secrets = String::new();
    let mut plain = |word: &str| {
        let unit = || UnitName::parse(word).and_then(|u| Some((u.to_string(), u.secret?)));
        let portal = || Place::of_portal(word).and_then(|p| Some((p.as_portal(), p.secret?)));
        let Some((shown, secret)) = unit().or_else(portal) else {
            return word.to_owned();
        };
        let _ = writeln!(secrets, "{shown} {secret}");
        shown
    };
    // One word may be a list of names, separated by colons.
    let separator = format!(":{}", UnitName::SCHEME);
    let mut all = |word: &String| {
        let mut parts = word.split(&separator);
        let mut out = plain(parts.next().unwrap_or_default());
        for part in parts {
            let _ = write!(out, ":{}", plain(&format!("{}{part}", UnitName::SCHEME)));
        }
        out
    };
    let words = words.iter().map(&mut all).collect();
    let variable = (!secrets.is_empty()).then_some((SECRETS_VARIABLE, secrets));
    (words, variable)
}

/// `text` without the secrets of what is meant as units' names in it, however malformed they are: what
/// stands between the `%` behind a user and the last `@` before the next name, or the end.
pub fn redacted(text: &str) -> String {
    const MEANT: &str = "iscsi:";
    // The same length, byte by byte.
    let lower = text.to_ascii_lowercase();
    let starts: Vec<usize> = lower.match_indices(MEANT).map(|(at, _)| at).collect();
    let mut out =
        text.get(..starts.first().copied().unwrap_or(text.len())).unwrap_or("").to_owned();
    for (n, &start) in starts.iter().enumerate() {
        let end = starts.get(n + 1).copied().unwrap_or(text.len());
        let name = text.get(start..end).unwrap_or("");
        let slashes = name.get(MEANT.len()..).unwrap_or("");
        let user_at = name.len() - slashes.trim_start_matches('/').len();
        let stop = name.get(user_at..).and_then(|rest| rest.find(['%', '/', '@', ' ', '\n']));
        let secret_at = stop.map(|at| user_at + at).filter(|at| name[*at..].starts_with('%'));
        match secret_at {
            Some(at) => {
                out.push_str(name.get(..=at).unwrap_or(""));
                out.push_str("***");
                out.push_str(
                    name.rfind('@').filter(|end| *end > at).map_or("", |end| &name[end..]),
                );
            }
            None => out.push_str(name),
        }
    }
    out
}

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::SCHEME)?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        write!(f, "{}/{}/{}", self.portal, self.target, self.lun)
    }
}
impl fmt::Debug for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnitName({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::UnitName;

    #[test]
    fn no_secret_is_shown_however_malformed_the_name() {
        for (text, shown) in [
            ("iscsi://me%pass@h/t/x", "iscsi://me%***@h/t/x"),
            ("'ISCSI://me%pa/ss w@rd@h' is none", "'ISCSI://me%***@h' is none"),
            ("iscsi:me%pass", "iscsi:me%***"),
            ("iscsi:/me%pass@h: no", "iscsi:/me%***@h: no"),
            ("iscsi://me%a@h/t/0:iscsi://me%b@h/t/1", "iscsi://me%***@h/t/0:iscsi://me%***@h/t/1"),
            ("iscsi://h/t/0: 50% done", "iscsi://h/t/0: 50% done"),
            ("iscsi://me@h/t/0 50%", "iscsi://me@h/t/0 50%"),
            ("no unit", "no unit"),
        ] {
            assert_eq!(super::redacted(text), shown);
        }
    }

    #[test]
    fn names_are_read_and_shown_without_secrets() {
        let plain = UnitName::parse("iscsi://10.0.0.1/iqn.2026-11.org:a:b/7").unwrap();
        assert_eq!(plain.to_string(), "iscsi://10.0.0.1:3260/iqn.2026-11.org:a:b/7");
        let full = UnitName::parse("iscsi://me%pass%word@[::1]:99/iqn.x/0").unwrap();
        assert_eq!((full.portal.as_str(), full.lun), ("[::1]:99", 0));
        assert_eq!(full.secret.as_deref(), Some("pass%word"));
        assert_eq!(full.to_string(), "iscsi://me@[::1]:99/iqn.x/0");
        assert!(!format!("{full:?}").contains("pass"));
        let (words, handed) = super::without_secrets(&["a".into(), "iscsi://me%x y@h/t/0".into()]);
        assert_eq!(words, ["a", "iscsi://me@h:3260/t/0"]);
        assert_eq!(handed.unwrap().1, "iscsi://me@h:3260/t/0 x y\n");
        let (words, handed) = super::without_secrets(&["scan".into(), "iscsi://me%x@h/".into()]);
        assert_eq!(words, ["scan", "iscsi://me@h:3260"]);
        assert_eq!(handed.unwrap().1, "iscsi://me@h:3260 x\n");
        let list = "iscsi://me%a@g:1/t/0:iscsi://me%b@g:1/t/1".to_owned();
        let (words, handed) = super::without_secrets(&[list]);
        assert_eq!(words, ["iscsi://me@g:1/t/0:iscsi://me@g:1/t/1"]);
        assert_eq!(handed.unwrap().1, "iscsi://me@g:1/t/0 a\niscsi://me@g:1/t/1 b\n");
        // Said once in this process.
        let again = UnitName::parse(&full.to_string()).unwrap();
        assert_eq!(again, full);
        for bad in [
            "iscsi://",
            "iscsi://h/t",
            "iscsi://h/t/x",
            "iscsi:///t/0",
            "iscsi://h//0",
            "iscsi://h/a/b/0",
            "iscsi://h/t/256",
            "http://h/t/0",
        ] {
            assert_eq!(UnitName::parse(bad), None, "{bad}");
        }
    }
}
