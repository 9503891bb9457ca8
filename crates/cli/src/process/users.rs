//! Names of this host's users. Only `/etc/passwd` is read: a name service may not answer.

/// Where they are.
const PASSWD: &str = "/etc/passwd";

/// All of them, as [`named`] takes them.
pub fn all() -> String {
    std::fs::read_to_string(PASSWD).unwrap_or_default()
}

/// A user's name, or the number.
pub fn name_of(user: u32) -> String {
    named(user, &all())
}

/// A user's name by `users` (passwd(5)), or the number.
pub fn named(user: u32, users: &str) -> String {
    let named = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then(|| name.to_owned())
    });
    named.unwrap_or_else(|| user.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_without_a_name_go_by_their_numbers() {
        let users = "root:x:0:0:root:/root:/bin/bash\n";
        assert_eq!(named(0, users), "root");
        assert_eq!(named(4_000_000_123, users), "4000000123");
    }
}
