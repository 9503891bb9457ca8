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
        let fits = |s: &str| !s.is_empty() && s.len() < 256 && !s.contains(['\0', '/', ' ']);
        let from_environment = |name: &str| std::env::var(name).ok();
        let mut name = Self {
            user: user.map(str::to_owned).or_else(|| from_environment("LIBISCSI_CHAP_USERNAME")),
            secret: secret.map(str::to_owned),
            portal,
            target: target.to_owned(),
            lun: lun.parse().ok()?,
        };
        if !fits(&name.target) || !fits(&name.portal) || host.is_empty() {
            return None;
        }
        let shown = name.to_string();
        let mut known = SECRETS.lock();
        let known = known.get_or_insert_default();
        match &name.secret {
            Some(secret) => drop(known.insert(shown, secret.clone())),
            None if name.user.is_some() => {
                let said = known.get(&shown).cloned();
                let said = said.or_else(|| handed_over(&shown));
                name.secret = said.or_else(|| from_environment("LIBISCSI_CHAP_PASSWORD"));
            }
            None => {}
        }
        Some(name)
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
    let mut plain = |word: &String| {
        let unit = UnitName::is_meant(word).then(|| UnitName::parse(word)).flatten();
        let Some((unit, secret)) = unit.and_then(|u| u.secret.clone().map(|s| (u, s))) else {
            return word.clone();
        };
        let shown = unit.to_string();
        let _ = writeln!(secrets, "{shown} {secret}");
        shown
    };
    let words = words.iter().map(&mut plain).collect();
    let variable = (!secrets.is_empty()).then_some((SECRETS_VARIABLE, secrets));
    (words, variable)
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
