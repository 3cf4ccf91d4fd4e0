//! What the node serves besides answers: the page of each error code, from `docs/errors`, and the two files of Swagger
//! UI that show the API's document. Both go into the binary, so that a node shows them without reaching anything.

use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Of the distribution's eleven megabytes, the files that a page needs.
const SWAGGER_UI: [&str; 2] = ["swagger-ui.css", "swagger-ui-bundle.js"];

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    error_pages(&Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../docs/errors"), &out)?;
    swagger_ui(&out)
}

/// Writes a table of code and page, in order of code, for `errors.rs` to include.
fn error_pages(folder: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort();
    let mut table = String::from("&[\n");
    for path in paths {
        let code = path.file_stem().unwrap_or_default().to_string_lossy();
        writeln!(table, "({code:?}, include_str!({:?})),", fs::canonicalize(&path)?)?;
    }
    table.push(']');
    Ok(fs::write(out.join("error_pages.rs"), table)?)
}

fn swagger_ui(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let mut archive = zip::ZipArchive::new(io::Cursor::new(utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED))?;
    for name in SWAGGER_UI {
        let ending = format!("/dist/{name}");
        let found = archive.file_names().find(|path| path.ends_with(&ending)).map(str::to_owned);
        let mut file = archive.by_name(&found.ok_or(format!("no {name} in Swagger UI"))?)?;
        io::copy(&mut file, &mut File::create(out.join(name))?)?;
    }
    Ok(())
}
