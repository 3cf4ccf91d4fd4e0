//! The marked section of a document, written anew from figures.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::args::DocumentArgs;
use crate::report::Report;

const BEGIN: &str = "<!-- bench-peers: what is between these two lines is written by `just bench-peers` -->";
const END: &str = "<!-- bench-peers: end -->";

/// Writes it.
pub fn write(args: &DocumentArgs) -> Result<()> {
    let figures = fs::read(&args.figures).with_context(|| format!("reading {}", args.figures.display()))?;
    let report: Report = serde_json::from_slice(&figures)?;
    let name = args.document.display();
    let document = fs::read_to_string(&args.document).with_context(|| format!("reading {name}"))?;
    let document = with_section(&document, &report.text()).with_context(|| name.to_string())?;
    fs::write(&args.document, document).with_context(|| format!("writing {name}"))
}

fn with_section(document: &str, section: &str) -> Result<String> {
    let (before, rest) = document.split_once(BEGIN).context("it has no line where the section begins")?;
    let (_, after) = rest.split_once(END).context("it has no line where the section ends")?;
    ensure!(!after.contains(BEGIN), "the section begins twice");
    Ok(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", section.trim()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_replaced() {
        let document = format!("# A\n\n{BEGIN}\nold\n{END}\n\nB\n");
        let written = with_section(&document, "new\n").unwrap();
        assert_eq!(written, format!("# A\n\n{BEGIN}\n\nnew\n\n{END}\n\nB\n"));
        assert_eq!(with_section(&written, "new\n").unwrap(), written);
        assert!(with_section("# A\n", "new").is_err() && with_section(BEGIN, "new").is_err());
    }
}
