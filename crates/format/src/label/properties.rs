//! Properties: settings of a pool that stay with it, by name. docs/FORMAT.md section 1.1.
//!
//! They stand behind the last table as `KEY=VALUE` and a zero byte each, in the order of their keys. What a key
//! means, and which values make sense, is for the programs that use it: keys that nobody knows are kept.

use std::collections::BTreeMap;

/// Properties by key.
pub type Properties = BTreeMap<String, String>;

/// Most bytes of all of them.
pub const ALL_MAX: usize = 4096;
/// Most bytes of a key.
pub const KEY_MAX: usize = 63;
/// Most bytes of a value.
pub const VALUE_MAX: usize = 1024;

/// Whether properties can stand in a label.
pub fn fit(all: &Properties) -> bool {
    let of_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-".contains(c);
    let fits = |(key, value): (&String, &String)| {
        (1..=KEY_MAX).contains(&key.len())
            && key.chars().all(of_key)
            && (1..=VALUE_MAX).contains(&value.len())
            && !value.contains(char::is_control)
    };
    len(all) <= ALL_MAX && all.iter().all(fits)
}

/// Bytes they take.
pub(super) fn len(all: &Properties) -> usize {
    all.iter().map(|(key, value)| key.len() + value.len() + 2).sum()
}

pub(super) fn encode(all: &Properties) -> Vec<u8> {
    let each = all.iter().flat_map(|(key, value)| [key.as_str(), "=", value, "\0"]);
    each.collect::<String>().into_bytes()
}

/// `None`: they are not as [`encode`] writes them.
pub(super) fn decode(bytes: &[u8]) -> Option<Properties> {
    let mut all = Properties::new();
    let mut rest = std::str::from_utf8(bytes).ok()?;
    while !rest.is_empty() {
        let (one, after) = rest.split_once('\0')?;
        let (key, value) = one.split_once('=')?;
        if all.last_key_value().is_some_and(|(last, _)| last.as_str() >= key) {
            return None;
        }
        all.insert(key.to_owned(), value.to_owned());
        rest = after;
    }
    fit(&all).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Properties {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let all = of(&[("comment", "of the laboratory = ours"), ("scrub.every", "14"), ("x", "ä")]);
        let bytes = encode(&all);
        assert_eq!((bytes.len(), decode(&bytes)), (len(&all), Some(all)));
        assert_eq!(decode(b""), Some(Properties::new()));
        for bad in [
            &b"a=1"[..],
            b"a\0",
            b"=1\0",
            b"a=\0",
            b"A=1\0",
            b"a=1\0a=2\0",
            b"b=1\0a=2\0",
            b"a=1\0\0",
            b"a=1\n\0",
            b"a=\xff\0",
        ] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn there_is_room_for_so_many() {
        let long = "v".repeat(VALUE_MAX);
        assert!(fit(&of(&[("k", &long)])));
        assert!(!fit(&of(&[("k", &format!("{long}v"))])));
        assert!(!fit(&of(&[(&"k".repeat(KEY_MAX + 1), "v")])));
        assert!(!fit(&of(&[("a", &long), ("b", &long), ("c", &long), ("d", &long)])));
    }
}
