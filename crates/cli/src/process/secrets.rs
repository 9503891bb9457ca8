//! Secrets do not stay on the command line, where every user of the host can read them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use braid_bulk::tls::Identity;
use braid_pool::device::without_secrets;

/// Variables that hand over the secret of `--chap` and of `--chap-mutual`.
const CHAP: [(&str, &str); 2] =
    [("--chap", "BRAID_TARGET_CHAP"), ("--chap-mutual", "BRAID_TARGET_CHAP_MUTUAL")];

/// Begins this program again in the same process, with the secrets of its command line in its
/// environment, which only its user can read. Does nothing if there are none. They can be read
/// until then. If that is too long, name a file (`--chap @FILE`), or set the variables.
pub fn hide() {
    let words: Result<Vec<String>, _> = std::env::args_os().map(OsString::into_string).collect();
    let Some((name, rest)) = words.as_deref().ok().and_then(<[String]>::split_first) else {
        return;
    };
    let (plain, units) = without_secrets(rest);
    let (plain, chap) = without_chap(plain);
    let (plain, token) = without_token(plain);
    // The second time there is nothing more to be taken away.
    if plain == rest {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    // This returns only with an error; then the program goes on as it is.
    let error =
        Command::new(program).arg0(name).args(plain).envs(units).envs(chap).envs(token).exec();
    eprintln!("braid: cannot take secrets off the command line: {error}");
}

/// The words without the secrets of `braid target`, and the variables that hand them over.
fn without_chap(words: Vec<String>) -> (Vec<String>, Vec<(&'static str, String)>) {
    let mut handed = Vec::new();
    if words.first().is_none_or(|word| word != "target") {
        return (words, handed);
    }
    let mut out: Vec<String> = Vec::with_capacity(words.len());
    let mut pending: Option<&'static str> = None;
    for word in words {
        let said = |value: &str| value.contains('%') && !value.starts_with('@');
        if let Some(variable) = pending.take().filter(|_| said(&word)) {
            handed.push((variable, word));
            out.push(format!("${variable}"));
            continue;
        }
        let inline = CHAP.iter().find_map(|(option, variable)| {
            let value = word.strip_prefix(option)?.strip_prefix('=')?;
            said(value).then(|| (*option, *variable, value.to_owned()))
        });
        if let Some((option, variable, value)) = inline {
            handed.push((variable, value));
            out.push(format!("{option}=${variable}"));
            continue;
        }
        pending = CHAP.iter().find(|(option, _)| *option == word).map(|(_, variable)| *variable);
        out.push(word);
    }
    (out, handed)
}

/// Option and variable of `braid cp` and `braid mount` that take an identity's token.
const IDENTITY: (&str, &str) = ("--identity", "BRAID_IDENTITY");

/// The words without the token of `braid cp` or `braid mount`, and the variable that hands it over.
fn without_token(words: Vec<String>) -> (Vec<String>, Option<(&'static str, String)>) {
    let (option, variable) = IDENTITY;
    if words.first().is_none_or(|word| word != "cp" && word != "mount") {
        return (words, None);
    }
    let (mut out, mut token): (Vec<String>, _) = (Vec::with_capacity(words.len()), None);
    for word in words {
        let value = match out.last() {
            Some(former) if former == option => Some(word.as_str()),
            _ => word.strip_prefix(option).and_then(|rest| rest.strip_prefix('=')),
        };
        let Some(value) = value.filter(|value| Identity::is_token(value)) else {
            out.push(word);
            continue;
        };
        let kept = word.len() - value.len();
        token = Some((variable, value.to_owned()));
        out.push(format!("{}${variable}", word.get(..kept).unwrap_or_default()));
    }
    (out, token)
}

#[cfg(test)]
mod tests {
    use super::{without_chap, without_token};

    #[test]
    fn an_identity_leaves_the_command_line_of_a_copy() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let token = "aB3-_".repeat(200);
        for option in ["--identity ", "--identity="] {
            let (plain, handed) = without_token(words(&format!("cp a b {option}{token} -p")));
            assert_eq!(plain, words(&format!("cp a b {option}$BRAID_IDENTITY -p")));
            assert_eq!(handed, Some(("BRAID_IDENTITY", token.clone())));
            assert_eq!(without_token(plain.clone()), (plain, None));
        }
        for plain in ["cp a b --identity file", "cp a b --identity -", "scan --identity x"] {
            assert_eq!(without_token(words(plain)), (words(plain), None));
        }
    }

    #[test]
    fn the_secrets_of_a_target_leave_its_command_line() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (plain, handed) =
            without_chap(words("target memory:1G --chap me%x --chap-mutual=it%y --name n"));
        let expected = "target memory:1G --chap $BRAID_TARGET_CHAP \
                        --chap-mutual=$BRAID_TARGET_CHAP_MUTUAL --name n";
        assert_eq!(plain, words(expected));
        assert_eq!(
            handed,
            [
                ("BRAID_TARGET_CHAP", "me%x".to_owned()),
                ("BRAID_TARGET_CHAP_MUTUAL", "it%y".to_owned())
            ]
        );
        for plain in ["target --chap @file", "create p --chap a%b", "target --chap $X --name a"] {
            assert_eq!(without_chap(words(plain)), (words(plain), Vec::new()));
        }
    }
}
