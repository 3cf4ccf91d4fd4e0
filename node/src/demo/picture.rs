//! What the demo shows of the cluster at one moment: a line a node with the shards that it owns, and
//! where the rows stand.

use std::fmt::Write as _;

use holdfast_machine::NodeName;

/// How many characters the bar of rows is wide.
const BAR_WIDTH: u64 = 28;
/// One colour for each node: cyan, yellow, magenta.
const COLOURS: [&str; 3] = ["36", "33", "35"];

/// The cluster at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Picture {
    pub nodes: Vec<NodePicture>,
    /// The position in `nodes` of each shard's owner.
    pub owners: Vec<Option<usize>>,
    pub rows: RowsPicture,
}

/// One node.
#[derive(Debug, Clone)]
pub(crate) struct NodePicture {
    pub name: NodeName,
    pub standing: Standing,
    /// The last log index that it applied; none while it does not answer.
    pub applied: Option<u64>,
}

/// How a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It does not answer.
    Gone,
    /// It answers, and is not committed as up yet.
    Starting,
    /// It follows.
    Follower,
    /// It leads.
    Leader,
}

/// The rows of all workflows that were started.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowsPicture {
    /// All that there will be; a workflow's second wave is not there at first.
    pub all: u64,
    pub pending: u64,
    pub claimed: u64,
    pub done: u64,
}

impl Picture {
    /// The picture as lines for a terminal, with or without colours.
    pub fn draw(&self, colours: bool) -> String {
        let mut text = String::new();
        for (position, node) in self.nodes.iter().enumerate() {
            self.draw_node(&mut text, position, node, colours);
        }
        self.draw_rows(&mut text);
        text
    }

    fn draw_node(&self, text: &mut String, position: usize, node: &NodePicture, colours: bool) {
        let owns = |owner: &Option<usize>| *owner == Some(position);
        let strip: String = self.owners.iter().map(|owner| if owns(owner) { '■' } else { '·' }).collect();
        let count = self.owners.iter().filter(|owner| owns(owner)).count();
        let standing = match node.standing {
            Standing::Gone => "gone",
            Standing::Starting => "starting",
            Standing::Follower => "follower",
            Standing::Leader => "leader",
        };
        let applied = node.applied.map_or_else(|| "-".to_owned(), |index| index.to_string());
        let strip = paint(&strip, COLOURS[position % COLOURS.len()], colours);
        // Writing to a String cannot fail.
        let _ =
            writeln!(text, "  {:<7} {standing:<9} {strip} {count:>3} shards  applied {applied}", node.name.as_str());
    }

    fn draw_rows(&self, text: &mut String) {
        let RowsPicture { all, pending, claimed, done } = self.rows;
        let share = |part: u64| usize::try_from(part * BAR_WIDTH / all.max(1)).unwrap_or(0);
        let (full, half) = (share(done), share(claimed));
        let empty = usize::try_from(BAR_WIDTH).unwrap_or(0).saturating_sub(full + half);
        let bar = format!("{}{}{}", "█".repeat(full), "▒".repeat(half), "░".repeat(empty));
        let _ = write!(text, "  rows    {bar} pending {pending}, claimed {claimed}, done {done} of {all}");
    }
}

fn paint(text: &str, colour: &str, colours: bool) -> String {
    if colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn each_node_shows_its_own_shards() {
        let node = |name: &str, standing| NodePicture {
            name: NodeName::new(name).unwrap(),
            standing,
            applied: (standing != Standing::Gone).then_some(42),
        };
        let picture = Picture {
            nodes: vec![node("node-a", Standing::Leader), node("node-b", Standing::Gone)],
            owners: vec![Some(0), Some(1), None, Some(0)],
            rows: RowsPicture { all: 10, pending: 2, claimed: 3, done: 4 },
        };
        let drawn = picture.draw(false);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines[0], "  node-a  leader    ■··■   2 shards  applied 42");
        assert_eq!(lines[1], "  node-b  gone      ·■··   1 shards  applied -");
        assert!(lines[2].ends_with("pending 2, claimed 3, done 4 of 10"), "{}", lines[2]);
    }
}
