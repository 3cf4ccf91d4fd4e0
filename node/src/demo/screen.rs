//! The terminal: steps that stay, and below them a picture of the cluster that is drawn over and over.
//!
//! Where the output is no terminal there is no picture, only the steps as plain lines. With `--json`
//! standard output belongs to the result, so everything here goes to standard error.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::picture::Picture;

/// Where the demo shows its progress.
#[derive(Debug)]
pub(crate) struct Screen {
    live: Option<ProgressBar>,
    colours: bool,
    to_stderr: bool,
}

impl Screen {
    /// A screen on standard output, or on standard error if the result is printed as JSON.
    pub fn new(json: bool) -> Self {
        let is_terminal = if json { std::io::stderr().is_terminal() } else { std::io::stdout().is_terminal() };
        let live = is_terminal.then(|| {
            let target = if json { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::stdout() };
            let bar = ProgressBar::with_draw_target(None, target);
            bar.with_style(ProgressStyle::default_spinner().template("{msg}").unwrap_or_else(|_| plain()))
        });
        let colours = is_terminal && std::env::var_os("NO_COLOR").is_none();
        Self { live, colours, to_stderr: json }
    }

    /// True if there is a terminal to draw pictures on.
    pub fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// A line that stays.
    pub fn step(&self, line: impl AsRef<str>) {
        let line = line.as_ref();
        match &self.live {
            Some(bar) => bar.suspend(|| self.write(line)),
            None => self.write(line),
        }
    }

    /// A line for a part of the demo that begins.
    pub fn chapter(&self, title: &str) {
        let title = if self.colours { format!("\n\x1b[1m{title}\x1b[0m") } else { format!("\n{title}") };
        self.step(title);
    }

    /// Draws the picture in place of the last one.
    pub fn show(&self, picture: &Picture) {
        if let Some(bar) = &self.live {
            bar.set_message(picture.draw(self.colours));
            bar.tick();
        }
    }

    /// Takes the picture away; the steps stay.
    pub fn clear(&self) {
        if let Some(bar) = &self.live {
            bar.finish_and_clear();
        }
    }

    fn write(&self, line: &str) {
        // A closed pipe must not end the demo: its exit code is the result.
        let _ =
            if self.to_stderr { writeln!(std::io::stderr(), "{line}") } else { writeln!(std::io::stdout(), "{line}") };
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.clear();
    }
}

fn plain() -> ProgressStyle {
    ProgressStyle::default_spinner()
}
