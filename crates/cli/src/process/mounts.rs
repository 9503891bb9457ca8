//! Which mounts this host has: one note each in the user's runtime directory (`/run/braid` for root), removed
//! when the mount ends.

use std::io;
use std::path::{Path, PathBuf};

use braid_pool::device::{MountTable, user_dir};
use serde::{Deserialize, Serialize};

use crate::process::notes::{self, Writer};

/// The kind of these notes.
const KIND: &str = "mount";
/// That of mounts from a server, which are no nodes of their pools.
const REMOTE: &str = "remote";
/// That of servers, which are nodes of their pools without a mount.
const SERVICE: &str = "service";

/// A mount of this host.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mount {
    /// Process that serves it, in its own PID namespace. For people: it may be another one here.
    pub pid: u32,
    /// Pool.
    pub pool: String,
    /// Directory; of a server, where clients find it.
    #[expect(clippy::struct_field_names, reason = "the term that mount(8) uses")]
    pub mount_point: PathBuf,
    /// Device number of the mounted file system. Directories of one name may be in many mount namespaces.
    pub device: Option<(u32, u32)>,
    /// What was named when it was mounted: devices, or the pool.
    pub sources: Vec<String>,
    /// Its mount options, the pool's own first, each perhaps several; without devices, which may have secrets.
    #[serde(default)]
    pub options: Vec<String>,
    /// Its process says how it has ended ([`MountEnd`]). Those of older versions do not.
    #[serde(default)]
    pub says_ending: bool,
    /// The process that serves it.
    #[serde(skip)]
    pub server: Writer,
    /// It is no mount but a server for other hosts (`braid serve`).
    #[serde(skip)]
    pub is_service: bool,
    /// It is a mount from a server, and no node of the pool.
    #[serde(skip)]
    pub is_remote: bool,
}

impl Mount {
    /// How the pool is in use by it, and what to do about it, in words.
    pub fn in_the_way(&self) -> String {
        let at = self.mount_point.display();
        if self.is_service {
            return format!("served at {at}: end process {} first", self.pid);
        }
        format!("mounted on {at}: `braid unmount` it on every node first")
    }
}

/// How a mount has ended: the last word of its process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct MountEnd {
    /// It did not end in order: why, what that means, and what to do.
    pub problem: Option<String>,
    /// It ended in order, but for this: sentences.
    pub left: Vec<String>,
}

/// What a mount waits for before it can end.
#[derive(Debug, Serialize, Deserialize)]
struct MountWait {
    /// A sentence.
    waits_for: String,
}

impl Mount {
    /// What it said last that it waits for before it can end.
    pub fn waits_for(&self) -> Option<String> {
        self.server.last_word::<MountWait>().map(|wait| wait.waits_for)
    }
    /// How it has ended, once its process has. `None`: it ended without a word, and should have said one.
    pub fn ending(&self) -> Option<MountEnd> {
        self.server.last_word().or_else(|| (!self.says_ending).then(MountEnd::default))
    }
}

/// Says how this process's mount has ended.
#[derive(Debug)]
pub struct LastWord(Option<notes::LastWord>);

impl LastWord {
    /// What it waits for before it can end, to whoever waits for that.
    pub fn say_wait(&self, waits_for: &str) {
        let wait = MountWait { waits_for: waits_for.to_owned() };
        let said = self.0.as_ref().map_or(Ok(()), |last| last.say_first(&wait));
        said.inspect_err(|error| tracing::warn!(%error, "what the mount waits for cannot be said"))
            .ok();
    }
    /// To whoever waits for the end of the process.
    pub fn say(self, ending: &MountEnd) {
        let said = self.0.map_or(Ok(()), |last| last.say(ending));
        said.inspect_err(|error| tracing::warn!(%error, "how the mount ended cannot be said")).ok();
    }
}

/// Symbolic links that are followed, one to the next.
const LINKS_MAX: usize = 40;

/// The directory that a path leads to, as the mount table names it. Nothing is asked of the directory itself: what
/// is mounted there may not answer.
///
/// # Errors
/// There is no such path.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    let mut path = std::path::absolute(path)?;
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return path.canonicalize();
        };
        let found = parent.canonicalize()?.join(name);
        let Ok(to) = std::fs::read_link(&found) else { return Ok(found) };
        path = found.parent().unwrap_or(parent).join(to);
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// The note of this process's mount. It removes itself.
#[derive(Debug)]
pub struct Note {
    begun: Option<notes::Note>,
}

impl Note {
    /// Begins it. Where no note can be written the mount works all the same.
    pub fn begin() -> Self {
        Self::begin_kind(KIND)
    }
    /// The same for a mount from a server.
    pub fn begin_remote() -> Self {
        Self::begin_kind(REMOTE)
    }
    /// The same for a server.
    pub fn begin_service() -> Self {
        Self::begin_kind(SERVICE)
    }
    fn begin_kind(kind: &str) -> Self {
        // Those of dead ones go.
        drop((mounts(), remotes(), services()));
        let begun = user_dir().and_then(|dir| notes::Note::begin(&dir, kind, std::process::id()));
        Self { begun: begun.inspect_err(warn).ok() }
    }

    /// Where this process takes orders.
    ///
    /// # Errors
    /// There is no note, or no directory.
    pub fn control_socket(&self) -> io::Result<PathBuf> {
        let Some(note) = &self.begun else { return Err(io::ErrorKind::NotFound.into()) };
        Ok(control_socket_in(&user_dir()?, note.id()))
    }

    /// For the end of this process.
    pub fn last_word(&self) -> LastWord {
        LastWord(self.begun.as_ref().map(notes::Note::last_word))
    }

    /// Says what is mounted where, with which options.
    pub fn write(
        &self,
        mount_point: &Path,
        pool: &str,
        (sources, options): (&[String], &[String]),
    ) {
        let Some(note) = &self.begun else { return };
        let table = MountTable::own().unwrap_or_default();
        let mut here = table.iter().filter(|m| m.kind == "fuse.braid" && m.dir == mount_point);
        let mount = Mount {
            pid: std::process::id(),
            pool: pool.to_owned(),
            mount_point: mount_point.to_owned(),
            device: here.next_back().map(|m| m.device),
            sources: sources
                .iter()
                .map(|s| match std::fs::canonicalize(s) {
                    Ok(path) => path.display().to_string(),
                    Err(_) => s.clone(),
                })
                .collect(),
            options: options.to_vec(),
            says_ending: true,
            server: Writer::default(),
            is_service: false,
            is_remote: false,
        };
        note.write(&mount).inspect_err(warn).ok();
    }
}

fn warn(e: &io::Error) {
    tracing::warn!("no note of this mount: {e}");
}

/// Mounts whose process lives. Notes, and sockets, of dead ones are removed.
pub fn mounts() -> Vec<Mount> {
    braid_lock::hints::sweep();
    user_dir().map(|dir| mounts_in(&dir, KIND)).unwrap_or_default()
}

/// Mounts from servers whose process lives. What was named is where the server has it.
pub fn remotes() -> Vec<Mount> {
    user_dir().map(|dir| mounts_in(&dir, REMOTE)).unwrap_or_default()
}

/// Servers whose process lives. Each is a node of its pool.
pub fn services() -> Vec<Mount> {
    user_dir().map(|dir| mounts_in(&dir, SERVICE)).unwrap_or_default()
}

fn mounts_in(dir: &Path, kind: &str) -> Vec<Mount> {
    let forget = |id: &str| drop(std::fs::remove_file(control_socket_in(dir, id)));
    let (is_service, is_remote) = (kind == SERVICE, kind == REMOTE);
    let of_note = |(mount, server)| Mount { server, is_service, is_remote, ..mount };
    let living = notes::living::<Mount>(dir, kind, forget).into_iter();
    let mut mounts: Vec<Mount> = living.map(of_note).collect();
    mounts.sort_by(|a, b| a.mount_point.cmp(&b.mount_point));
    mounts
}

/// Where the process that serves a mount takes orders.
///
/// # Errors
/// There is no directory for that.
pub fn control_socket(mount: &Mount) -> io::Result<PathBuf> {
    Ok(control_socket_in(&user_dir()?, mount.server.id()))
}

fn control_socket_in(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("control-{id}.sock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_of_a_namespace(mount_point: &str) -> Mount {
        // Everywhere some process has this number.
        let (pid, pool, sources) = (1, "pool".to_owned(), Vec::new());
        let mount_point = mount_point.into();
        let (device, server) = (None, Writer::default());
        let (says_ending, is_service, is_remote) = (true, false, false);
        Mount {
            pid,
            pool,
            mount_point,
            device,
            sources,
            options: Vec::new(),
            says_ending,
            server,
            is_service,
            is_remote,
        }
    }
    fn found(dir: &Path) -> Vec<PathBuf> {
        mounts_in(dir, KIND).into_iter().map(|m| m.mount_point).collect()
    }

    #[test]
    fn the_note_of_a_killed_mount_goes_though_its_number_is_that_of_another_process() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let dead = serde_json::to_vec(&first_of_a_namespace("/dead")).unwrap();
        std::fs::write(dir.join("mount-1.json"), &dead).unwrap();
        std::fs::write(dir.join("control-1.sock"), "").unwrap();
        assert_eq!(found(dir), Vec::<PathBuf>::new());
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
    }

    #[test]
    fn an_end_without_a_word_is_told_from_one_of_a_version_that_never_says_any() {
        let dir = tempfile::tempdir().unwrap();
        let note = notes::Note::begin(dir.path(), KIND, 1).unwrap();
        note.write(&first_of_a_namespace("/one")).unwrap();
        let [mount] = mounts_in(dir.path(), KIND).try_into().unwrap();
        assert!(mount.ending().is_none());
        let old = Mount { says_ending: false, ..mount.clone() };
        assert!(old.ending().is_some_and(|ending| ending.problem.is_none()));
        let problem = Some("why".to_owned());
        let last = LastWord(Some(note.last_word()));
        drop(note);
        last.say(&MountEnd { problem: problem.clone(), ..MountEnd::default() });
        assert_eq!(mount.ending().map(|ending| ending.problem), Some(problem));
    }

    #[test]
    fn mounts_of_two_namespaces_have_a_note_and_a_socket_each() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let notes = ["/one", "/two"].map(|at| {
            let note = notes::Note::begin(dir, KIND, 1).unwrap();
            note.write(&first_of_a_namespace(at)).unwrap();
            note
        });
        let all = mounts_in(dir, KIND);
        assert_eq!(found(dir), [PathBuf::from("/one"), "/two".into()]);
        let sockets: Vec<_> = all.iter().map(|m| control_socket_in(dir, m.server.id())).collect();
        assert_eq!(sockets, [dir.join("control-1.sock"), dir.join("control-1-1.sock")]);
        drop(notes);
        assert_eq!(found(dir), Vec::<PathBuf>::new());
    }
}
