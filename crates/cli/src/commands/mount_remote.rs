//! `braid mount braid://HOST[:PORT][,HOST[:PORT]...]/POOL[/DIRECTORY] DIR`: a mount from a server, or from one of
//! several.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use braid_bulk::client::ClientOptions;
use braid_bulk::remote::RemoteFs;
use braid_bulk::tls::Identity;
use braid_fuse::{CacheNames, FuseOptions, Session};

use super::mount_start::{
    Args, ONLY_REMOUNT, begin_in_background, begin_log, changes_by, each, noted, started_again,
};
use super::{identity, remote::Remote};
use crate::control::{remote as control, session::NOTHING_CHANGED};
use crate::process::{
    asker, guard::Guard, log, log::LineFormat, mounts, mounts::MountEnd, service,
    unmount_on_signal::UnmountOnSignal,
};
use crate::terminal::answer::say;

/// Connections besides the one for signs of life: one for each request under way, and one for events.
const CONNECTIONS: u16 = 16;
/// Most that a server gives a client, less that one.
const CONNECTIONS_MAX: u16 = 31;
/// A server that does not answer when it is mounted is tried for so long.
const RETRY: Duration = Duration::from_mins(1);
/// Options by which the daemon is not asked once more: the parent has done what they say.
const OF_PARENT: [&str; 2] = ["identity=", "retry="];

/// Where a server has what is to be mounted.
#[derive(Debug)]
pub struct Place {
    url: String,
    remote: Remote,
}

/// The place that the words name. `None`: they name a pool, or devices.
///
/// # Errors
/// They name a place among others, or one that makes no sense.
pub fn place(words: &[String]) -> Result<Option<Place>> {
    let mut places = Vec::new();
    for word in words {
        places.extend(
            Remote::parse(word.as_ref())?.map(|remote| Place { url: word.clone(), remote }),
        );
    }
    match (places.pop(), words) {
        (place, [_]) => Ok(place),
        (None, _) => Ok(None),
        (Some(place), _) => {
            bail!("{}: name one place on one server, and then the directory", place.url)
        }
    }
}

/// Everything the options say.
#[derive(Debug)]
struct Plan {
    fuse: FuseOptions,
    log: Option<PathBuf>,
    log_format: LineFormat,
    identity: Option<String>,
    insecure: bool,
    connections: u16,
    retry: Duration,
}

/// What the options ask for, and the options that nobody knows.
fn parse(dir: PathBuf, options: &[String]) -> Result<(Plan, Vec<String>)> {
    let mut plan = Plan {
        fuse: FuseOptions::new(dir),
        log: None,
        log_format: LineFormat::of_environment(),
        identity: None,
        insecure: false,
        connections: CONNECTIONS,
        retry: RETRY,
    };
    let mut unknown = Vec::new();
    for option in each(options) {
        if !apply(&mut plan, option)? {
            unknown.push(option.to_owned());
        }
    }
    // The kernel keeps attributes for as long as leases stand. Names and contents are kept by this process, which needs
    // nobody's answer to drop them.
    plan.fuse.cache_names = CacheNames::Never;
    plan.fuse.cache_data = false;
    plan.fuse.keep_pages = false;
    Ok((plan, unknown))
}

/// Takes one option in; false if nobody knows it.
fn apply(plan: &mut Plan, option: &str) -> Result<bool> {
    let (key, value) = option.split_once('=').map_or((option, None), |(k, v)| (k, Some(v)));
    let need = || value.with_context(|| format!("option {key} needs a value: {key}=..."));
    match key {
        "insecure" if value.is_none() => plan.insecure = true,
        "remount" => bail!("{ONLY_REMOUNT}"),
        "identity" => plan.identity = Some(need()?.to_owned()),
        "connections" => {
            let most = CONNECTIONS_MAX;
            let number = need()?.parse().ok().filter(|n| (2..=most).contains(n));
            plan.connections = number.with_context(|| format!("option {option}: 2 to {most}"))?;
        }
        "retry" => {
            let time = asker::seconds(need()?).map_err(|e| anyhow::anyhow!("option {option}: {e}"));
            plan.retry = time?;
        }
        "log" => plan.log = Some(std::path::absolute(need()?)?),
        "log_format" => {
            let format = LineFormat::parse(need()?);
            plan.log_format =
                format.with_context(|| format!("option {option}: not text or json"))?;
        }
        _ => return Ok(plan.fuse.apply(option)?),
    }
    Ok(true)
}

/// Whether an option would change what a mount has with the options `noted`; `None`: nobody knows it.
pub fn changes(noted: &[String], option: &str) -> Result<Option<bool>> {
    changes_by(|options| parse(PathBuf::from("/"), options), noted, option)
}

/// Whether an option is one of a mount from a server.
#[cfg(test)]
pub fn is_known(option: &str) -> bool {
    parse(PathBuf::from("/mnt"), &[option.to_owned()]).is_ok_and(|(_, unknown)| unknown.is_empty())
}

/// Runs it.
///
/// # Errors
/// It cannot be mounted.
pub fn run(args: &Args, place: &Place, dir: PathBuf) -> Result<ExitCode> {
    let (plan, unknown) = parse(dir.clone(), &args.options)?;
    if let Some(log) = &plan.log
        && mounts::resolved(log).is_ok_and(|log| log.starts_with(&dir))
    {
        bail!(
            "option log: {} is inside of the mount, which this process would keep in use itself",
            log.display()
        );
    }
    if let (Some(option), false) = (unknown.first(), args.sloppy) {
        bail!("option '{option}' is none of a mount from a server; see `braid mount --help`");
    }
    if args.fake {
        return Ok(ExitCode::SUCCESS);
    }
    let insecure = args.insecure || plan.insecure;
    let named = args.identity.as_deref().or(plan.identity.as_deref());
    let identity =
        if insecure { None } else { Some(identity::for_pool(named, &place.remote.pool)?) };
    if args.dry_run {
        // Nothing is asked of the server.
        say!("{} would be mounted on {}", place.url, dir.display());
        say!("{NOTHING_CHANGED}");
        return Ok(ExitCode::SUCCESS);
    }
    if args.foreground {
        return serve(plan, args, (place, &dir), identity);
    }
    let left_out = each(&args.options).filter(|o| OF_PARENT.iter().any(|own| o.starts_with(own)));
    let left_out: Vec<String> = left_out.map(str::to_owned).chain(unknown).collect();
    let mut command = started_again(args, &left_out)?;
    command.args(["--foreground", "--ready"]);
    if let Some(text) = &args.shown_as {
        command.arg("--shown-as").arg(text);
    }
    match identity {
        // Only its user can read the environment of a process.
        Some(identity) => command.env(identity::VARIABLE, identity.to_token()),
        None => command.arg("--insecure"),
    };
    let retry = format!("retry={}", plan.retry.as_secs_f64());
    command.args(["-o", &retry, "--", &place.url]).arg(dir);
    begin_in_background(args, command)
}

/// Mounts and serves until unmounted.
fn serve(
    plan: Plan,
    args: &Args,
    (place, dir): (&Place, &Path),
    identity: Option<Identity>,
) -> Result<ExitCode> {
    let append = |path: &PathBuf| {
        let opened = File::options().create(true).append(true).open(path);
        opened.with_context(|| format!("option log: {}", path.display()))
    };
    let log = plan.log.as_ref().map(append).transpose()?;
    let Remote { servers, pool, path, .. } = &place.remote;
    log::of_pool(pool);
    let options = ClientOptions {
        identity: identity.map(Arc::new),
        name: Remote::client_name(),
        connections: plan.connections,
        patience: plan.retry,
        servers: servers.clone(),
        ..ClientOptions::new("", pool)
    };
    let keeps = plan.fuse.cache_attributes;
    let on_signal = UnmountOnSignal::watch(dir, args.ready, plan.log.clone())?;
    let session = Session::mount(args.shown_as.as_ref().unwrap_or(&place.url), plan.fuse)?;
    on_signal.mounted();
    let fs = match RemoteFs::connect(options, path, session.kernel_cache(), keeps) {
        Ok(fs) => fs,
        Err(error) => {
            session.abort();
            return Err(error).with_context(|| place.url.clone());
        }
    };
    let guard = Guard::start(dir);
    let note = mounts::Note::begin_remote();
    let control = control::serve(&fs, &session.counters(), &note);
    note.write(dir, pool, (std::slice::from_ref(&place.url), &noted(&args.options)));
    begin_log(log, plan.log_format, args.ready)?;
    on_signal.serves();
    tracing::info!(url = place.url, dir = %dir.display(), "mounted from a server");
    if !args.ready {
        service::ready(pool, dir);
    }
    let served = session.serve(fs.clone());
    on_signal.over();
    if !args.ready {
        service::leaving();
    }
    let finished = fs.finish();
    let last_word = note.last_word();
    drop((control, note, guard));
    let problem = finished.err().map(|(bytes, errno)| {
        format!("the server did not take what was written last ({errno}): {bytes} bytes may be lost; look at the files that were changed last")
    });
    let failed = problem.is_some();
    last_word.say(&MountEnd { problem, ..MountEnd::default() });
    served?;
    if failed {
        return Ok(ExitCode::FAILURE);
    }
    tracing::info!(url = place.url, dir = %dir.display(), "unmounted");
    Ok(ExitCode::SUCCESS)
}
