//! `braid export`

use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use uuid::Uuid;

use crate::control::{self, Order as NodeOrder, session::NOTHING_CHANGED};
use crate::nfs::{self, Export, Order, Security, Server, Squash, State, View, list};
use crate::process::background;
use crate::process::mounts::Mount;
use crate::terminal::{
    answer::{self, say},
    ui,
};

/// Export a mounted pool, or a directory of it, to NFS clients (NFSv3, 4.1, 4.2).
///
/// NFS-Ganesha serves it (Debian packages nfs-ganesha and nfs-ganesha-vfs); a process in the background starts
/// it again if it ends. Exports end with the mount. A further directory of the same pool goes to the same server.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
pub struct Args {
    /// The pool's name or its directory, and a directory in it
    #[arg(value_name = "NAME[:/SUBTREE]", required_unless_present = "list")]
    name: Option<String>,
    /// Export it by NFS
    #[arg(long, required_unless_present_any = ["list", "stop"])]
    nfs: bool,
    /// Hosts and networks that may mount it; without this all may
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    clients: Vec<String>,
    /// Clients may change nothing
    #[arg(long)]
    ro: bool,
    /// Users of clients that count as nobody
    #[arg(long, value_enum, default_value_t)]
    squash: Squash,
    /// How clients show who they are; krb5p needs a keytab with nfs/HOST in /etc/krb5.keytab
    #[arg(long, value_enum, default_value_t)]
    sec: Security,
    /// Port of the server [default: 2049]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Address on which the server listens [default: all]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<IpAddr>,
    /// Name under which the pool keeps which clients have locks [default: this host's]
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Wait until the node that serves under this name has ended, then go on for its clients
    #[arg(long, requires = "nfs")]
    takeover: bool,
    /// Show what this host exports
    #[arg(long, conflicts_with_all = ["nfs", "stop"])]
    list: bool,
    /// No longer export it; without a directory, nothing of the pool
    #[arg(long, visible_alias = "cancel", conflicts_with = "nfs")]
    stop: bool,
    /// Stay in the foreground
    #[arg(short, long, requires = "nfs")]
    foreground: bool,
    /// Only say what would be exported, or no longer be, or why it cannot be; change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Ready signal on standard output (used by the background start)
    #[arg(long, hide = true)]
    ready: bool,
}

/// Port of NFS, and the usual one of the mount protocol.
const PORTS: (u16, u16) = (2049, 20048);

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.list {
        return show_list(args);
    }
    let name = args.name.as_deref().context("name the pool")?;
    let (mount, subtree) = find(name)?;
    if args.stop && args.dry_run {
        return plan_stop(&mount, subtree.as_deref());
    }
    if args.stop {
        return stop(&mount, subtree.as_deref());
    }
    if !rustix::process::geteuid().is_root() {
        bail!(
            "an NFS server opens files by their handles, which only root may do: run this as root"
        );
    }
    let export = export(args, &mount, subtree.as_deref().unwrap_or("/"))?;
    if args.dry_run {
        return plan_export(args, &mount, &export);
    }
    if args.ready || args.foreground {
        let server = server(args, &mount)?;
        let begin = nfs::Begin { background: args.ready, takeover: args.takeover };
        return nfs::run(server, export, begin, &mount.server);
    }
    // Before anything is started: a mistake is said by this process.
    if let Exporter::Running(noted, _) = exporter(args, &mount)? {
        say(&noted.order(&Order::Put(export.clone()))?, &export);
        return Ok(ExitCode::SUCCESS);
    }
    background::start(again()?)?;
    let noted = list::of_node(&mount.server).context("the server has ended already")?;
    say(&noted.order(&Order::Look)?, &export);
    Ok(ExitCode::SUCCESS)
}

/// Who exports a mount.
enum Exporter {
    /// A server that is there, and how it is.
    Running(list::Noted, View),
    /// One that would be started.
    New(Server),
}

/// The server that is there or, if there is none, the one that would be started.
///
/// # Errors
/// It is another one than was asked for, or cannot be started.
fn exporter(args: &Args, mount: &Mount) -> Result<Exporter> {
    let Some(noted) = list::of_node(&mount.server) else {
        return Ok(Exporter::New(server(args, mount)?));
    };
    let view = noted.order(&Order::Look)?;
    refuse_another_server(args, &view)?;
    Ok(Exporter::Running(noted, view))
}

/// The mount, and the directory in it that a user names: `NAME`, `NAME:/SUBTREE`.
fn find(name: &str) -> Result<(Mount, Option<String>)> {
    if let Some(mount) = control::look(name)? {
        return mounted(mount).map(|mount| (mount, None));
    }
    match name.rsplit_once(":/") {
        Some((pool, rest)) if !pool.is_empty() => {
            let mut parts = Vec::new();
            for part in Path::new(rest).components() {
                match part {
                    Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
                    Component::CurDir => {}
                    _ => bail!("/{rest}: name the directory by its path in the pool, without .."),
                }
            }
            Ok((mounted(control::find(pool)?)?, Some(format!("/{}", parts.join("/")))))
        }
        _ => Ok((mounted(control::find(name)?)?, None)),
    }
}

/// What is served only has no directory.
fn mounted(mount: Mount) -> Result<Mount> {
    if mount.is_service {
        bail!(
            "{} is served at {} and not mounted on this host: mount it to export it by NFS",
            mount.pool,
            mount.mount_point.display()
        );
    }
    Ok(mount)
}

/// The mount's directory, by the name that the mount table has.
fn top(mount: &Mount) -> Result<PathBuf> {
    let dir = &mount.mount_point;
    std::fs::canonicalize(dir).with_context(|| dir.display().to_string())
}

/// What is to be exported, after a look at it.
fn export(args: &Args, mount: &Mount, subtree: &str) -> Result<Export> {
    args.clients.iter().try_for_each(|word| nfs::check_client(word))?;
    let dir = top(mount)?.join(subtree.trim_start_matches('/'));
    let found = std::fs::canonicalize(&dir).with_context(|| dir.display().to_string())?;
    if !found.is_dir() {
        bail!("{}: not a directory", dir.display());
    }
    if found != dir {
        bail!("{} leads to {}: name that", dir.display(), found.display());
    }
    if !nfs::is_plain(&dir.display().to_string()) || dir.to_str().is_none() {
        bail!(
            "{}: NFS-Ganesha takes no quotes, backslashes or control characters in a path",
            dir.display()
        );
    }
    if args.sec == Security::Krb5p && !Path::new("/etc/krb5.keytab").exists() {
        bail!(
            "--sec krb5p: there is no /etc/krb5.keytab; it needs the key of nfs/HOST (`ktutil`, `kadmin ktadd`)"
        );
    }
    Ok(Export {
        subtree: subtree.to_owned(),
        clients: args.clients.clone(),
        read_only: args.ro,
        squash: args.squash,
        security: args.sec,
    })
}

/// The server that is to be started.
fn server(args: &Args, mount: &Mount) -> Result<Server> {
    nfs::find()?;
    let port = args.port.unwrap_or(PORTS.0);
    if !args.takeover {
        nfs::check_free(args.listen, port)?;
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = args.server.clone().unwrap_or(host);
    if name.is_empty()
        || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        || name.starts_with('.')
    {
        bail!("--server {name}: letters, digits, -, _ and . only");
    }
    let wanted = if port == PORTS.0 { Some(PORTS.1) } else { port.checked_add(1) };
    let mount_port = match wanted {
        // It is waited for.
        Some(port) if args.takeover => port,
        _ => nfs::free_port(args.listen, wanted)?,
    };
    Ok(Server {
        name,
        pool: mount.pool.clone(),
        uuid: Uuid::parse_str(&control::order(mount, &NodeOrder::Members)?.uuid)?,
        mount_point: top(mount)?,
        listen: args.listen,
        port,
        mount_port,
    })
}

fn refuse_another_server(args: &Args, view: &View) -> Result<()> {
    let server = &view.server;
    let differs = args.port.is_some_and(|port| port != server.port)
        || args.listen.is_some_and(|listen| Some(listen) != server.listen)
        || args.server.as_ref().is_some_and(|name| *name != server.name);
    if differs {
        bail!(
            "the server {} already exports {} on port {}{}, and a mount has one server: stop that first (`braid \
             export {} --stop`), or leave --port, --listen and --server out",
            server.name,
            server.mount_point.display(),
            server.port,
            server.listen.map(|a| format!(" of {a}")).unwrap_or_default(),
            server.pool
        );
    }
    Ok(())
}

/// This command once more, for the background.
fn again() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // Whatever the file is called: this is no helper's call.
    command.arg0("braid").args(["export", "--ready"]).args(std::env::args_os().skip(2));
    Ok(command)
}

/// Says how clients mount what was exported.
fn say(view: &View, export: &Export) {
    let View { server, .. } = view;
    let path = export.path(&server.pool);
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host =
        server.listen.map_or(host, |a| if a.is_ipv6() { format!("[{a}]") } else { a.to_string() });
    let port =
        if server.port == PORTS.0 { String::new() } else { format!(",port={}", server.port) };
    say!("{path} is exported. On a client:");
    say!("  mount -t nfs -o vers=4.2{port} {host}:{path} DIR");
    say!(
        "  mount -t nfs -o vers=3,nolock,proto=tcp,port={},mountport={} {host}:{path} DIR",
        server.port,
        server.mount_port
    );
    if export.clients.is_empty() && export.security == Security::Sys {
        say!("Every host that reaches this one may mount it: --clients limits that.");
    }
}

/// What would be exported.
fn plan_export(args: &Args, mount: &Mount, export: &Export) -> Result<ExitCode> {
    let port = match exporter(args, mount)? {
        Exporter::Running(_, view) => view.server.port,
        Exporter::New(server) => server.port,
    };
    say!("{} would be exported on port {port}", export.path(&mount.pool));
    say!("{NOTHING_CHANGED}");
    Ok(ExitCode::SUCCESS)
}

/// What would no longer be exported.
fn plan_stop(mount: &Mount, subtree: Option<&str>) -> Result<ExitCode> {
    let Some(noted) = list::of_node(&mount.server) else {
        bail!("{}: nothing of it is exported by NFS", mount.mount_point.display());
    };
    let view = noted.order(&Order::Look)?;
    let ends = |export: &&Export| subtree.is_none_or(|subtree| export.subtree == subtree);
    for export in view.exports.iter().filter(ends) {
        say!("{} would no longer be exported", export.path(&mount.pool));
    }
    say!("{NOTHING_CHANGED}");
    Ok(ExitCode::SUCCESS)
}

fn stop(mount: &Mount, subtree: Option<&str>) -> Result<ExitCode> {
    let Some(noted) = list::of_node(&mount.server) else {
        bail!("{}: nothing of it is exported by NFS", mount.mount_point.display());
    };
    noted.stop(subtree.map(str::to_owned))?;
    Ok(ExitCode::SUCCESS)
}

fn show_list(args: &Args) -> Result<ExitCode> {
    let only = args.name.as_deref().map(find).transpose()?.map(|(mount, _)| mount.server);
    let is_wanted = |n: &list::Noted| only.as_ref().is_none_or(|node| n.node == node.id());
    let noted = list::all().into_iter().filter(is_wanted);
    let views: Vec<View> = noted.filter_map(|n| n.order(&Order::Look).ok()).collect();
    if answer::is_json() {
        answer::add("exports", &views);
        return Ok(ExitCode::SUCCESS);
    }
    if views.is_empty() {
        say!("this host exports nothing by NFS");
        return Ok(ExitCode::SUCCESS);
    }
    let head = [
        "export",
        "directory",
        "clients",
        "access",
        "squash",
        "security",
        "port",
        "mountport",
        "state",
    ];
    let mut table = ui::table(&head);
    for view in &views {
        for export in &view.exports {
            table.add_row(row(view, export));
        }
    }
    say!("{table}");
    for view in &views {
        if let State::Restarting(why) | State::Failed(why) = &view.state {
            say!("{}: {why}", view.server.pool);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn row(view: &View, export: &Export) -> [String; 9] {
    let View { server, .. } = view;
    let clients = if export.clients.is_empty() { "all".into() } else { export.clients.join(",") };
    let state = match &view.state {
        State::Serving if view.restarts == 0 => "serving".to_owned(),
        State::Serving => format!("serving, restarted {} times", view.restarts),
        State::Restarting(_) => "restarting".to_owned(),
        State::Failed(_) => "failed".to_owned(),
    };
    [
        export.path(&server.pool),
        server.directory(export).display().to_string(),
        clients,
        if export.read_only { "read-only" } else { "read-write" }.to_owned(),
        word(&export.squash),
        word(&export.security),
        server.port.to_string(),
        server.mount_port.to_string(),
        state,
    ]
}

/// A value's word on the command line.
fn word(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}
