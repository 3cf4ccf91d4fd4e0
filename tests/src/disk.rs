//! Data directories as bytes: to see that nothing was written, and to damage them.

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

/// The newest segment of a node's log, and the middle of what is written to it.
///
/// # Errors
/// When there is none, or nothing is written to it.
pub fn middle_of_the_log(data: &Path) -> Result<(PathBuf, usize)> {
    let is_segment = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "log");
    let newest = files(data)?.into_iter().filter(is_segment).max();
    let newest = newest.with_context(|| format!("no segment in {}", data.display()))?;
    let end = fs::read(&newest)?.iter().rposition(|byte| *byte != 0).context("an empty segment")?;
    Ok((newest, end / 2))
}

/// Flips one bit of a file, or puts it back.
///
/// # Errors
/// When the file cannot be changed.
pub fn flip(file: &Path, place: usize) -> Result<()> {
    let mut bytes = fs::read(file)?;
    *bytes.get_mut(place).context("the file is shorter")? ^= 0x40;
    Ok(fs::write(file, &bytes)?)
}
