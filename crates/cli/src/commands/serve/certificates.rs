//! `braid serve init`, `invite`, `install`, `revoke`, `clients`: who may be a server, and who a client.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Result, anyhow, bail};
use braid_bulk::client::PORT;
use braid_bulk::error::{CertificateError, moment};
use braid_bulk::tls::{self, Client, Folder, Role, Validity, write_secret};
use braid_pool::PoolInfo;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::commands::identity;
use crate::control::{self, session::NOTHING_CHANGED};
use crate::pools::sources;
use crate::terminal::{
    answer::{self, say, warning},
    ui,
};

/// Where the folders of all pools are.
#[derive(Debug, clap::Args)]
pub struct Place {
    /// Where certificates and keys are kept, in a folder for each pool
    #[arg(long, value_name = "DIR", default_value = "/etc/braid/bulk")]
    pub dir: PathBuf,
}

/// What is done about certificates.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    Init(Init),
    Invite(Invite),
    Install(Install),
    Revoke(Revoke),
    Clients(Clients),
}

/// Make a pool's certificate authority, and the certificate of this server.
///
/// Once for a pool, on one host. Everything is kept in a folder that only root can read; whoever reads its ca.key can
/// let himself in. Further servers get a certificate by `braid serve invite --server`.
#[derive(Debug, clap::Args)]
pub struct Init {
    /// The pool, its directory, or its devices, separated by colons
    #[arg(value_name = "POOL")]
    pool: String,
    /// Name of this server [default: this host's]
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// How clients reach a server, for people; may be given several times [default: this host's name]
    #[arg(long, value_name = "HOST[:PORT]")]
    address: Vec<String>,
    /// Make everything anew: all clients have to be invited again
    #[arg(long, conflicts_with = "renew")]
    force: bool,
    /// Make only this server's key and certificate anew; clients notice nothing
    #[arg(long)]
    renew: bool,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    place: Place,
}

/// Let a client in: prints one token, which is secret, for `braid cp --identity`.
#[derive(Debug, clap::Args)]
pub struct Invite {
    /// The pool's name, or its UUID
    #[arg(value_name = "POOL")]
    pool: String,
    /// Name of the client
    #[arg(value_name = "NAME")]
    name: String,
    /// Valid for so long
    #[arg(long, value_name = "N", default_value = "365", value_parser = clap::value_parser!(u32).range(1..=7300))]
    days: u32,
    /// It may read, and change nothing
    #[arg(long)]
    read_only: bool,
    /// For a further server of the pool: `braid serve install`
    #[arg(long, conflicts_with_all = ["read_only", "days"])]
    server: bool,
    /// Write it to a file that only its owner can read, instead of printing it
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    place: Place,
}

/// Take the certificate that the first server has made for this one.
#[derive(Debug, clap::Args)]
pub struct Install {
    /// What `braid serve invite --server` wrote; - is standard input
    #[arg(value_name = "FILE")]
    file: String,
    /// Replace what is there
    #[arg(long)]
    force: bool,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    place: Place,
}

/// No longer let a client in. A server that runs cuts its connections within seconds.
#[derive(Debug, clap::Args)]
pub struct Revoke {
    /// The pool's name, or its UUID
    #[arg(value_name = "POOL")]
    pool: String,
    /// Name of the client: all its certificates
    #[arg(value_name = "NAME", required_unless_present = "serial", conflicts_with = "serial")]
    name: Option<String>,
    /// One certificate, by its number; another host may have made it
    #[arg(long, value_name = "HEX")]
    serial: Option<String>,
    /// Only say what would be done, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    place: Place,
}

/// List who was invited, and who is revoked.
#[derive(Debug, clap::Args)]
pub struct Clients {
    /// The pool's name, or its UUID
    #[arg(value_name = "POOL")]
    pool: String,
    #[command(flatten)]
    place: Place,
}

/// Runs it.
pub fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Init(args) => init(args),
        Command::Invite(args) => invite(args),
        Command::Install(args) => install(args),
        Command::Revoke(args) => revoke(args),
        Command::Clients(args) => clients(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// This host's name.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The folder of the pool that a user has named: by its name or UUID, which needs no device of the pool, or else by its
/// directory or devices.
fn folder(place: &Place, pool: &str) -> Result<Folder> {
    let found = Folder::find(&place.dir, pool);
    if matches!(found, Err(CertificateError::NoFolder { .. }))
        && let Ok(info) = info_of(pool)
    {
        return Ok(Folder::of(&place.dir, info.uuid, pool)?);
    }
    Ok(found?)
}

/// The pool that a user has named by its name, its directory, or its devices.
fn info_of(pool: &str) -> Result<PoolInfo> {
    let sources = match control::look(pool)? {
        Some(mount) => mount.sources,
        None => vec![pool.to_owned()],
    };
    Ok((*sources::open_to_read(&sources, true)?.info()).clone())
}

fn init(args: &Init) -> Result<()> {
    let info = info_of(&args.pool)?;
    let (name, uuid) = (info.name.clone(), info.uuid);
    if args.dry_run {
        return plan_init(args, (&name, uuid));
    }
    if args.renew {
        let folder = Folder::of(&args.place.dir, uuid, &name)?;
        folder.renew()?;
        answer::add("folder", folder.path());
        say!(
            "the server's key and certificate are new; start `braid serve {name}` again to use them"
        );
        return Ok(());
    }
    let with_port = |address: &String| {
        let has_port = address.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
        if has_port { address.clone() } else { format!("{address}:{PORT}") }
    };
    let host = host();
    let server = args.server.clone().unwrap_or_else(|| host.clone());
    let mut servers: Vec<_> = args.address.iter().map(with_port).collect();
    if servers.is_empty() {
        servers.push(with_port(&host));
    }
    let folder = Folder::init(&args.place.dir, (&name, uuid), (&server, &servers), args.force)?;
    answer::add_all(
        json!({"pool": name, "uuid": uuid.to_string(), "folder": folder.path(), "servers": servers}),
    );
    say!("certificates of {name} are in {}: keep ca.key secret", folder.path().display());
    say!("let clients in by `braid serve invite {name} NAME`, and serve by `braid serve {name}`");
    Ok(())
}

fn plan_init(args: &Init, (name, uuid): (&str, Uuid)) -> Result<()> {
    let base = &args.place.dir;
    if args.renew {
        Folder::of(base, uuid, name)?.plan_issue(None)?;
        say!("the server's key and certificate of {name} would be made anew");
    } else {
        let server = args.server.clone().unwrap_or_else(host);
        let folder = Folder::plan_new(base, uuid, &server, args.force)?;
        say!("certificates of {name} would be made in {}", folder.display());
    }
    say!("{NOTHING_CHANGED}");
    Ok(())
}

fn invite(args: &Invite) -> Result<()> {
    // It would be replaced: a device, or a link such as /dev/stdout.
    let meta = args.output.as_ref().map(|path| path.symlink_metadata());
    if let (Some(path), Some(Ok(meta))) = (&args.output, meta)
        && !meta.is_file()
    {
        bail!("{}: not a regular file; without --output a token is printed", path.display());
    }
    let folder = folder(&args.place, &args.pool)?;
    if args.dry_run {
        folder.plan_issue(Some(&args.name))?;
        let what = if args.server { "as a further server" } else { "as a client" };
        say!("{} would be let in {what}", args.name);
        say!("{NOTHING_CHANGED}");
        return Ok(());
    }
    let made = if args.server {
        folder.invite_server(&args.name)?
    } else {
        folder.invite(&args.name, args.read_only, Validity::days(args.days))?
    };
    answer::add_all(json!({"pool": made.pool, "name": made.name, "servers": made.servers}));
    if let Some(path) = &args.output {
        write_secret(path, &made.to_text())?;
        answer::add("file", path);
        say!("{}: the identity of {}, secret", path.display(), made.name);
    } else {
        answer::add("token", made.to_token());
        if !answer::is_json() {
            say!("{}", made.to_token());
        }
    }
    if made.role == Role::Client && !answer::is_json() {
        let server = made.servers.first().map_or("HOST", String::as_str);
        let pool = &made.pool;
        warning!("on the client, keep it in ~/.config/braid/bulk/{pool} (mode 600); then");
        answer::note_line(format_args!("       braid cp FILE braid://{server}/{pool}/"));
    }
    Ok(())
}

fn install(args: &Install) -> Result<()> {
    let identity = identity::named(&args.file)?;
    if args.dry_run {
        let base = &args.place.dir;
        let folder = Folder::plan_install(base, &identity, args.force)?;
        say!("the certificate would be kept in {}", folder.display());
        say!("{NOTHING_CHANGED}");
        return Ok(());
    }
    let folder = Folder::install(&args.place.dir, &identity, args.force)?;
    answer::add_all(json!({"pool": identity.pool, "folder": folder.path()}));
    say!("{}: serve by `braid serve {}`", folder.path().display(), identity.pool);
    Ok(())
}

fn revoke(args: &Revoke) -> Result<()> {
    let folder = folder(&args.place, &args.pool)?;
    if args.dry_run {
        let revoked = match (&args.name, &args.serial) {
            (_, Some(serial)) => vec![Folder::plan_revoke_serial(serial)?],
            (Some(name), None) => {
                folder.plan_revoke(name)?.into_iter().map(|client| client.serial).collect()
            }
            (None, None) => Vec::new(),
        };
        revoked.iter().for_each(|serial| say!("{serial} would be revoked"));
        say!("{NOTHING_CHANGED}");
        return Ok(());
    }
    let revoked = match (&args.name, &args.serial) {
        (_, Some(serial)) => vec![folder.revoke_serial(serial)?],
        (Some(name), None) => folder.revoke(name)?,
        (None, None) => Vec::new(),
    };
    answer::add("revoked", revoked.iter().map(|c| &c.serial).collect::<Vec<_>>());
    if revoked.is_empty() {
        say!("{} was revoked before", args.name.as_deref().unwrap_or_default());
    }
    for client in &revoked {
        say!("{} is revoked: {}", client.name, client.serial);
    }
    if revoked.iter().any(|client| client.role == Role::Server) {
        say!(
            "clients do not ask whether a server is revoked: if its key was stolen, `braid serve init --force`"
        );
    }
    if !revoked.is_empty() {
        say!("on further servers: `braid serve revoke {} --serial NUMBER`", args.pool);
    }
    Ok(())
}

fn clients(args: &Clients) -> Result<()> {
    let folder = folder(&args.place, &args.pool)?;
    let seconds =
        |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let list = folder.clients()?;
    let seen = |client: &Client| folder.last_seen(client).map(|time| moment(seconds(time)));
    let known = |time: u64| (time > 0).then(|| moment(time));
    let one = |c: &Client| -> Value {
        json!({
            "name": c.name, "serial": c.serial, "role": c.role, "read_only": c.read_only, "from": known(c.from),
            "until": known(c.until), "revoked": c.revoked.map(moment), "last_seen": seen(c),
        })
    };
    answer::add("clients", list.iter().map(one).collect::<Vec<_>>());
    if answer::is_json() {
        return Ok(());
    }
    if list.is_empty() {
        say!("nobody was invited");
        return Ok(());
    }
    let mut table = ui::table(&["client", "may", "valid until", "last seen", "serial", ""]);
    let now = seconds(SystemTime::now());
    for client in &list {
        let may = match (client.role, client.read_only) {
            (Role::Server, _) => "serve",
            (_, true) => "read",
            (_, false) => "read, write",
        };
        let state = match client.revoked {
            Some(time) => format!("revoked {}", moment(time)),
            None if client.until < now => "expired".to_owned(),
            None => String::new(),
        };
        let until = known(client.until).unwrap_or_default();
        let (name, serial) = (client.name.clone(), client.serial.clone());
        table.add_row([
            name,
            may.to_owned(),
            until,
            seen(client).unwrap_or_default(),
            serial,
            state,
        ]);
    }
    say!("{table}");
    Ok(())
}

/// What a server needs of a pool's folder.
pub fn server(dir: &Path, pool: &braid_pool::PoolInfo) -> Result<tls::ServerTls> {
    let folder = Folder::of(dir, pool.uuid, &pool.name).map_err(|why| {
        anyhow!("{why}. Or serve whoever reaches the port, without encryption and authentication: --insecure")
    })?;
    Ok(tls::ServerTls::open(folder)?)
}
