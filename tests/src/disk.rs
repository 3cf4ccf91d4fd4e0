//! Data directories as bytes, to see that nothing was written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// All files below a folder, sorted.
///
/// # Errors
/// When it cannot be read.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    Ok(found)
}

/// Every file below a folder with all its bytes; of a folder that is not there, nothing.
///
/// # Errors
/// When a file cannot be read.
pub fn picture(folder: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    if !folder.exists() {
        return Ok(BTreeMap::new());
    }
    files(folder)?.into_iter().map(|path| Ok((path.clone(), fs::read(&path)?))).collect()
}
