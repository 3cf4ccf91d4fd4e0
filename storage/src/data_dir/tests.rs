#![allow(clippy::unwrap_used)]
//! Whose directory it is, and who is refused.

use super::*;
use crate::disk::RealDisk;
use std::collections::BTreeMap;
use std::fs;

fn open(path: &Path, expected: &Expected) -> Result<DataDir, StorageError> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    DataDir::open(&disk, path, expected)
}

fn expected(cluster: &str, node: u64) -> Expected {
    Expected { cluster: cluster.into(), name: format!("node-{node}") }
}

/// All files below `dir` with their contents.
pub(crate) fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => all.extend(contents(&path)),
            false => drop(all.insert(path.clone(), fs::read(&path).unwrap())),
        }
    }
    all
}

#[test]
fn a_directory_is_fresh_once_and_keeps_its_incarnation() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("data");
    let first = open(&path, &expected("prod", 1)).unwrap();
    assert!(first.is_fresh());
    let incarnation = first.identity().incarnation;
    drop(first);
    let second = open(&path, &expected("prod", 1)).unwrap();
    assert!(!second.is_fresh());
    assert_eq!(second.identity().incarnation, incarnation);
}

#[test]
fn a_raft_id_is_given_once_and_stays() {
    let root = tempfile::tempdir().unwrap();
    let dir = open(root.path(), &expected("prod", 1)).unwrap();
    assert_eq!(dir.identity().node, None);
    let incarnation = dir.identity().incarnation;
    dir.assign(7).unwrap();
    dir.assign(7).unwrap();
    let other = dir.assign(8).unwrap_err();
    assert!(matches!(other, StorageError::OtherId { known: 7, found: 8, .. }), "{other}");
    drop(dir);
    let identity = open(root.path(), &expected("prod", 1)).unwrap().identity();
    assert_eq!((identity.node, identity.incarnation), (Some(7), incarnation));
}

#[test]
fn strangers_are_refused_and_nothing_is_changed() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("data");
    drop(open(&path, &expected("prod", 1)).unwrap());
    let before = contents(&path);
    let other = open(&path, &expected("test", 1)).unwrap_err();
    assert!(matches!(other, StorageError::OtherCluster { .. }), "{other}");
    let other = open(&path, &expected("prod", 2)).unwrap_err();
    assert!(matches!(other, StorageError::OtherNode { .. }), "{other}");
    assert_eq!(contents(&path), before);
}

#[test]
fn a_directory_of_an_older_format_is_of_this_one_once_it_has_been_opened() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let made = open(&dir, &expected("prod", 1)).unwrap().identity();
    let format = || Identity::read_with_format(&RealDisk, &dir).unwrap().unwrap().1;
    let Identity { cluster, name, node, incarnation, base } = made.clone();
    let stored = Stored { format: 1, cluster, name, node, incarnation: incarnation.as_u128(), base };
    fs::write(dir.join(IDENTITY_FILE), frame::encode_value(FrameKind::Identity, &stored)).unwrap();
    assert_eq!(format(), 1);
    assert_eq!(open(&dir, &expected("prod", 1)).unwrap().identity(), made);
    assert_eq!(format(), FORMAT_VERSION);
}

#[test]
fn a_newer_format_is_refused_with_both_versions() {
    let root = tempfile::tempdir().unwrap();
    let (cluster, name) = ("prod".into(), "node-1".into());
    let stored = Stored { format: FORMAT_VERSION + 1, cluster, name, node: Some(1), incarnation: 7, base: None };
    let bytes = frame::encode_value(FrameKind::Identity, &stored);
    fs::write(root.path().join(IDENTITY_FILE), bytes).unwrap();
    let error = open(root.path(), &expected("prod", 1)).unwrap_err();
    assert!(matches!(error, StorageError::NewerFormat { found: 3, supported: 2, .. }), "{error}");
    assert_eq!(contents(root.path()).len(), 1, "not even a lock file was made");
}

#[test]
fn two_processes_cannot_share_it() {
    let root = tempfile::tempdir().unwrap();
    let _first = open(root.path(), &expected("prod", 1)).unwrap();
    let second = open(root.path(), &expected("prod", 1)).unwrap_err();
    assert!(matches!(second, StorageError::InUse { .. }), "{second}");
}

#[test]
fn files_of_something_else_are_left_alone() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("thesis.tex"), "draft").unwrap();
    let error = open(root.path(), &expected("prod", 1)).unwrap_err();
    assert!(matches!(error, StorageError::NotADataDirectory { .. }), "{error}");
    assert_eq!(contents(root.path()).len(), 1);
}

#[test]
fn a_lost_identity_is_not_replaced_by_a_new_one() {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path(), &expected("prod", 1)).unwrap());
    fs::write(root.path().join("log/00000000000000000000.log"), "entries").unwrap();
    fs::remove_file(root.path().join(IDENTITY_FILE)).unwrap();
    let error = open(root.path(), &expected("prod", 1)).unwrap_err();
    assert!(matches!(error, StorageError::NotADataDirectory { .. }), "{error}");
}

#[test]
fn an_interrupted_making_is_finished() {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path(), &expected("prod", 1)).unwrap());
    fs::remove_file(root.path().join(IDENTITY_FILE)).unwrap();
    assert!(open(root.path(), &expected("prod", 1)).unwrap().is_fresh());
}
