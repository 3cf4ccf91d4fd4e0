//! What readers see of a disk, what is on its medium, and what lies between them.
//!
//! Names and bytes each are twice here: as the calls have left them, and as they are durable, with the changes in between.
//! Sectors are written whole or not at all; a name is there or not; renames are atomic. Nothing else is promised of
//! changes that were not synced, not even their order: half of the losses keep a beginning of the names' changes, as
//! a journal does, and the other half any of them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::random::Random;

/// Written whole or not at all.
const SECTOR: usize = 512;

type Names = BTreeMap<PathBuf, Node>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    File(u64),
    Directory,
}

/// What is at a path. The root is always a directory.
pub(super) enum Place {
    File,
    Directory,
    Missing,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Media {
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    names: Names,
    durable_names: Names,
    /// Changes of names since the last sync of their directory, in order.
    pending_names: Vec<NameChange>,
}

#[derive(Debug, Clone)]
struct NameChange {
    dir: PathBuf,
    remove: Option<PathBuf>,
    add: Option<(PathBuf, Node)>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Inode {
    pub now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Pending>,
}

#[derive(Debug, Clone)]
enum Pending {
    Write { offset: usize, bytes: Vec<u8> },
    Length(usize),
}

impl Media {
    pub(super) fn node(&self, path: &Path) -> Option<Node> {
        self.names.get(path).copied()
    }

    pub(super) fn place(&self, path: &Path) -> Place {
        let is_root = path.parent().is_none() || path == Path::new(".");
        match self.node(path) {
            Some(Node::File(_)) => Place::File,
            Some(Node::Directory) => Place::Directory,
            None if is_root => Place::Directory,
            None => Place::Missing,
        }
    }

    pub(super) fn files(&self) -> impl Iterator<Item = (&PathBuf, &Inode)> {
        self.names.iter().filter_map(|(path, node)| match node {
            Node::File(inode) => Some((path, self.inodes.get(inode)?)),
            Node::Directory => None,
        })
    }

    pub(super) fn file(&self, path: &Path) -> Option<&Inode> {
        match self.node(path)? {
            Node::File(inode) => self.inodes.get(&inode),
            Node::Directory => None,
        }
    }

    /// The file behind an open handle, which may have no name any more.
    pub(super) fn inode(&mut self, inode: u64) -> &mut Inode {
        self.inodes.entry(inode).or_default()
    }

    pub(super) fn used(&self) -> u64 {
        self.files().map(|(_, file)| file.now.len() as u64).sum()
    }

    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        match self.place(dir) {
            Place::Missing => return Err(io::ErrorKind::NotFound.into()),
            Place::File => return Err(io::ErrorKind::NotADirectory.into()),
            Place::Directory => {}
        }
        let inside = self.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned()).collect())
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<u64> {
        let dir = parent(path);
        if !matches!(self.place(&dir), Place::Directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inode = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(inode, Inode::default());
        self.name(NameChange { dir, remove: None, add: Some((path.to_path_buf(), Node::File(inode))) });
        Ok(inode)
    }

    pub(super) fn create_dir(&mut self, path: &Path) {
        self.name(NameChange { dir: parent(path), remove: None, add: Some((path.to_path_buf(), Node::Directory)) });
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let node = self.node(from).ok_or(io::ErrorKind::NotFound)?;
        let (remove, add) = (Some(from.to_path_buf()), Some((to.to_path_buf(), node)));
        self.name(NameChange { dir: parent(to), remove, add });
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        if self.file(path).is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.name(NameChange { dir: parent(path), remove: Some(path.to_path_buf()), add: None });
        Ok(())
    }

    pub(super) fn write(&mut self, inode: u64, offset: usize, bytes: &[u8]) {
        self.inode(inode).change(Pending::Write { offset, bytes: bytes.to_vec() });
    }

    pub(super) fn set_len(&mut self, inode: u64, length: usize) {
        self.inode(inode).change(Pending::Length(length));
    }

    pub(super) fn damage(&mut self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        let Some(Node::File(inode)) = self.node(path) else { return };
        let file = self.inode(inode);
        change(&mut file.now);
        file.durable.clone_from(&file.now);
        file.pending.clear();
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) {
        for change in self.pending_names.extract_if(.., |change| change.dir == dir) {
            change.apply(&mut self.durable_names);
        }
    }

    pub(super) fn lose_power(&mut self, random: &mut Random) {
        for change in survivors(std::mem::take(&mut self.pending_names), random) {
            change.apply(&mut self.durable_names);
        }
        // Nothing is reached through a directory that is not there.
        let durable = &self.durable_names;
        let is_there = |path: &&Path| durable.get(*path) == Some(&Node::Directory) || path.parent().is_none();
        let reached = |path: &PathBuf| path.ancestors().skip(1).all(|dir| is_there(&dir));
        self.names =
            durable.iter().filter(|(path, _)| reached(path)).map(|(path, node)| (path.clone(), *node)).collect();
        self.durable_names = self.names.clone();
        for inode in self.inodes.values_mut() {
            inode.lose_unsynced(random);
            inode.now.clone_from(&inode.durable);
        }
    }

    fn name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push(change);
    }
}

/// The changes of names that were not synced and are there all the same.
fn survivors(changes: Vec<NameChange>, random: &mut Random) -> Vec<NameChange> {
    match random.below(2) {
        0 => {
            let count = random.below(changes.len() as u64 + 1) as usize;
            changes.into_iter().take(count).collect()
        }
        _ => changes.into_iter().filter(|_| random.below(2) == 0).collect(),
    }
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        if let Some(path) = &self.remove {
            names.remove(path);
        }
        if let Some((path, node)) = &self.add {
            names.insert(path.clone(), *node);
        }
    }
}

impl Inode {
    fn change(&mut self, change: Pending) {
        change.apply(&mut self.now);
        self.pending.push(change);
    }

    pub(super) fn sync(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            change.apply(&mut self.durable);
        }
    }

    /// Any part of what was not synced becomes durable, and the rest never does, though readers may see it still.
    pub(super) fn lose_unsynced(&mut self, random: &mut Random) {
        for change in std::mem::take(&mut self.pending) {
            match change {
                Pending::Length(length) if random.below(2) == 0 => self.durable.resize(length, 0),
                Pending::Length(_) => {}
                Pending::Write { offset, bytes } => tear(&mut self.durable, offset, &bytes, random),
            }
        }
    }
}

impl Pending {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Pending::Length(length) => file.resize(*length, 0),
            Pending::Write { offset, bytes } => put(file, *offset, bytes),
        }
    }
}

/// Writes all, none, or some sectors of `bytes`.
fn tear(file: &mut Vec<u8>, offset: usize, bytes: &[u8], random: &mut Random) {
    let fate = random.below(4);
    let mut at = 0;
    while at < bytes.len() {
        let end = ((offset + at) / SECTOR + 1) * SECTOR - offset;
        let end = end.min(bytes.len());
        let arrives = match fate {
            0 => false,
            1 => true,
            _ => random.below(2) == 0,
        };
        if arrives {
            put(file, offset + at, &bytes[at..end]);
        }
        at = end;
    }
}

fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
}

fn parent(path: &Path) -> PathBuf {
    path.parent().map(Path::to_path_buf).unwrap_or_default()
}
