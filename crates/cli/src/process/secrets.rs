//! Secrets do not stay on the command line, where every user of the host can read them.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

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
    // The second time there is nothing more to be taken away.
    if plain == rest {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    // This returns only with an error; then the program goes on as it is.
    let error = Command::new(program).arg0(name).args(plain).envs(units).envs(chap).exec();
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

#[cfg(test)]
mod tests {
    use super::without_chap;

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
