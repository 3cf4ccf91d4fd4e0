//! Where the programs under test are: next to the test itself, built by cargo when they are missing or old.
//! `HOLDFAST_TEST_PROGRAMS` names another folder that has them; nothing is built then.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

/// What a process of a story runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// The `holdfast` binary, as users start it.
    Holdfast,
    /// A node with an engine inside that does as the test says; see `bin/engine-node.rs`.
    EngineNode,
    /// A worker that does as the test says; see `bin/worker.rs`.
    Worker,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Holdfast => "holdfast",
            Self::EngineNode => "engine-node",
            Self::Worker => "worker",
        }
    }

    /// What it is started with; all else is in the environment.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Holdfast => &["serve"],
            Self::EngineNode | Self::Worker => &[],
        }
    }

    /// The path of the executable.
    ///
    /// # Errors
    /// When cargo cannot build it.
    pub fn path(self) -> Result<PathBuf> {
        let folder = build()?;
        let path = folder.join(self.name());
        ensure!(path.exists(), "{} is missing after its build", path.display());
        Ok(path)
    }
}

/// Builds the programs once in this process and gives their folder. With nothing to do it costs a moment.
fn build() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build_now().map_err(|error| format!("{error:#}")));
    built.clone().map_err(anyhow::Error::msg)
}

fn build_now() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("HOLDFAST_TEST_PROGRAMS") {
        return Ok(folder.into());
    }
    let test = std::env::current_exe().context("where this test is")?;
    // target/<profile>/deps/<test>
    let folder = test.ancestors().nth(2).context("the build folder")?.to_path_buf();
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let programs = [Program::Holdfast, Program::EngineNode, Program::Worker];
    let output = Command::new(cargo)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        // All packages, so that their features are those of the build that made this test.
        .args(["build", "--quiet", "--workspace", "--profile", profile])
        .args(programs.iter().flat_map(|program| ["--bin", program.name()]))
        .output()
        .context("cargo does not start")?;
    ensure!(output.status.success(), "the build failed:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(folder)
}
