//! A reader of server-sent events, as far as Holdfast's stream goes: `event`, `id` and `data` lines,
//! comments, and an empty line at the end of each message.

/// Longest line that is taken, in bytes. A topology of a few thousand shards is well below.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// One message.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub name: String,
    pub data: String,
}

/// Takes bytes as they come and gives messages.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    line: Vec<u8>,
    message: Message,
}

/// The stream is not one of Holdfast's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotEvents(pub &'static str);

impl Reader {
    /// The messages that these bytes complete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Message>, NotEvents> {
        let mut messages = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + piece.len() > LINE_BYTES_MAX {
                return Err(NotEvents("a line of the event stream is too long"));
            }
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                messages.extend(self.take_line(&line)?);
            }
        }
        Ok(messages)
    }

    fn take_line(&mut self, line: &[u8]) -> Result<Option<Message>, NotEvents> {
        let line = std::str::from_utf8(line).map_err(|_| NotEvents("the event stream is no UTF-8"))?;
        let line = line.trim_end_matches(['\n', '\r']);
        if line.is_empty() {
            let message = std::mem::take(&mut self.message);
            return Ok((!message.name.is_empty()).then_some(message));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.message.name = value.to_owned(),
            "data" => {
                if !self.message.data.is_empty() {
                    self.message.data.push('\n');
                }
                self.message.data.push_str(value);
            }
            // Comments have no name; ids are in the data too.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn messages_come_out_however_the_bytes_are_cut() {
        let text = ": hello\n\nevent: a\nid: 1-0\ndata: one é\ndata:two\r\n\nevent: b\ndata: x: y\n\n";
        let message = |name: &str, data: &str| Message { name: name.into(), data: data.into() };
        for size in [1, 2, 3, 7, text.len()] {
            let mut reader = Reader::default();
            let mut messages = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                messages.extend(reader.push(piece).unwrap());
            }
            assert_eq!(messages, [message("a", "one é\ntwo"), message("b", "x: y")]);
        }
        assert!(Reader::default().push(b"\xff\n").is_err());
    }
}
