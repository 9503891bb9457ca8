//! `braid serve`

mod certificates;

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use braid_bulk::client::PORT;
use braid_bulk::server::{IdMap, IdRule, NOBODY, References, Server, ServerOptions, Squash};
use braid_fs::{Fs, Holds, MountOptions};
use serde_json::json;

use crate::control::{self, Control, Node, history};
use crate::metrics::{self, Address};
use crate::pools::{properties, sources};
use crate::process::{left_behind, log, mounts, signals};
use crate::terminal::answer;

/// Serve a pool to hosts that do not reach its disks: `braid mount` mounts it there, `braid cp` copies files.
///
/// Joins the pool as a node of its own: it need not be mounted here, and a slot must be free (`braid create --nodes`).
/// Clients are who was invited (`init`, then `invite`), by TLS 1.3; what they may do, they do as root of the pool. Runs
/// until it is ended.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<certificates::Command>,
    /// The pool, its directory, or its devices, separated by colons
    #[arg(value_name = "NAME", required = true)]
    name: Option<String>,
    /// Where to listen; port 0 takes any, and says which [default: all addresses; with --insecure this host alone]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Serve without encryption and authentication: whoever reaches the port may do everything in the pool
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    place: certificates::Place,
    /// User and group that own what is copied, and as whom those act that --squash names [default: 0:0, or 65534:65534
    /// with --squash]
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    owner: Option<(u32, u32)>,
    /// Whose word of a client does not count: root's (copies are made by root, too), all users', or nobody's. He acts as
    /// --owner
    #[arg(long, value_enum, default_value = "none")]
    squash: SquashWord,
    /// Users and groups that have other numbers at clients than in the pool: 1000:5000 (client, pool), 1000-1999:5000,
    /// u1000:5000 for users alone, g1000:5000 for groups alone. A number that is taken on the other side is nobody there
    #[arg(long, value_name = "CLIENT:POOL,...", value_delimiter = ',')]
    map: Vec<IdRule>,
    /// Serve metrics of this node and of its clients for Prometheus, at ADDRESS:PORT or unix:/PATH
    #[arg(long, value_name = "ADDRESS", value_parser = Address::parse)]
    metrics: Option<Address>,
}

/// A word for [`Squash`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum SquashWord {
    None,
    Root,
    All,
}

/// Between two looks at whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

fn owner(word: &str) -> Result<(u32, u32), String> {
    let numbers = word.split_once(':').and_then(|(u, g)| Some((u.parse().ok()?, g.parse().ok()?)));
    numbers.ok_or_else(|| "not two numbers with a colon between them".to_owned())
}

/// Listens where it is to, or at the usual place.
fn listen(args: &Args) -> Result<TcpListener> {
    let bind =
        |address: &str| TcpListener::bind(address).with_context(|| format!("--listen {address}"));
    match (&args.listen, args.insecure) {
        (Some(address), _) => bind(address),
        (None, true) => bind(&format!("127.0.0.1:{PORT}")),
        // A host may be without IPv6.
        (None, false) => {
            bind(&format!("[::]:{PORT}")).or_else(|_| bind(&format!("0.0.0.0:{PORT}")))
        }
    }
}

/// Runs it.
pub fn run(args: &Args) -> Result<ExitCode> {
    match (&args.command, &args.name) {
        (Some(command), _) => certificates::run(command),
        (None, Some(name)) => serve(args, name),
        (None, None) => bail!("name the pool"),
    }
}

fn serve(args: &Args, name: &str) -> Result<ExitCode> {
    let ids = IdMap::new(&args.map).context("--map")?;
    let listener = listen(args)?;
    let address = listener.local_addr()?;
    let address = if address.ip().is_unspecified() {
        format!("{}:{}", certificates::host(), address.port())
    } else {
        address.to_string()
    };
    let sources = match control::look(name)? {
        Some(mount) => mount.sources,
        None => vec![name.to_owned()],
    };
    let metrics = args.metrics.as_ref().map(metrics::Server::bind).transpose()?;
    // A node that ends in the middle has to be recovered.
    signals::catch()?;
    let pool = sources::open(&sources, false)?;
    history::keep(&pool);
    let name = pool.info().name.clone();
    log::of_pool(&name);
    let devices: Vec<_> = pool.info().members.iter().map(|member| member.path.clone()).collect();
    let tls = if args.insecure {
        None
    } else {
        Some(Arc::new(certificates::server(&args.place.dir, &pool.info())?))
    };
    let references = Arc::<References>::default();
    let mount_point = PathBuf::from(format!("braid://{address}/{name}"));
    let timing = properties::timing(&pool.label().properties).unwrap_or_default();
    let options = MountOptions { mount_point, serves: true, timing, ..MountOptions::default() };
    let fs = Fs::mount(pool, options, references.clone())
        .with_context(|| format!("`braid serve` joins {name} as a node of its own, and cannot"))?;
    log::of_node(fs.life().slot);
    let holds = Holds::of(&fs);
    let neighbours = fs.clone();
    let neighbours = left_behind::LeftBehindWatch::start(move || neighbours.has_silent_neighbour());
    let (squash, usual) = match args.squash {
        SquashWord::None => (Squash::None, (0, 0)),
        SquashWord::Root => (Squash::Root, (NOBODY, NOBODY)),
        SquashWord::All => (Squash::All, (NOBODY, NOBODY)),
    };
    let owner = args.owner.unwrap_or(usual);
    let options = ServerOptions { owner, squash, ids, tls, ..ServerOptions::new(&name) };
    let mut server = Server::start(listener, fs.clone(), references, options)?;
    let (requests, begun) = (Arc::default(), Instant::now());
    let node = Node { fs: fs.clone(), requests, begun, service: Some(server.observer()) };
    let note = mounts::Note::begin_service();
    let control = Control::serve(&node, &note);
    let mut stdout = std::io::stdout();
    let url = format!("braid://{address}/{name}");
    note.write(Path::new(&url), &name, (&devices, &[]));
    let metrics = metrics.map(|server| server.serve(&node)).transpose()?;
    drop(node);
    answer::line(json!({"url": url}));
    let told = if answer::is_json() { Ok(()) } else { writeln!(stdout, "{url}") };
    let told = told.and_then(|()| stdout.flush());
    while told.is_ok() && !signals::asked_to_end() && fs.withdrawn().is_none() {
        std::thread::sleep(LOOK);
    }
    drop((control, metrics));
    server.stop();
    let why = fs.withdrawn();
    let left = fs.unmount();
    drop((note, neighbours, holds));
    if let Some(why) = why {
        bail!("{name}: this node has withdrawn: {why}; it is recovered by the next one that joins");
    }
    left?;
    told.context("where it serves cannot be said")?;
    Ok(ExitCode::SUCCESS)
}
