//! Runs one golden script: paragraphs in, the same paragraphs with their outcome out.

use crate::play::Player;

/// The script with what follows from its commands.
pub fn run(script: &str) -> String {
    let mut player = Player::default();
    let mut out = Vec::new();
    for paragraph in script.split("\n\n") {
        let said = paragraph.trim_end().split_once("\n---").map_or(paragraph.trim_end(), |(said, _)| said);
        let commands: Vec<&str> = said.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
        if commands.is_empty() {
            out.push(said.to_owned());
            continue;
        }
        let outcome = player.paragraph(&commands);
        out.push(format!("{said}\n---\n{}", outcome.join("\n")).trim_end().to_owned());
    }
    format!("{}\n", out.join("\n\n").trim_end())
}
