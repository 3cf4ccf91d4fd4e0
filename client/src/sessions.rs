//! Worker sessions as they are listed.

use holdfast_machine::SessionId;

use crate::calls::{CallResult, name_segment, with_query};
use crate::client::Client;
use crate::error::ClientError;
use crate::send::Call;
use crate::wire::{PageCall, ReadMode, SessionFilter, SessionPage, SessionWithRows};

impl Client {
    /// Worker sessions, by name.
    ///
    /// # Errors
    /// A refusal, or what kept the call from being answered; so with all calls here.
    pub async fn sessions(&self, filter: &SessionFilter, page: &PageCall, mode: ReadMode) -> CallResult<SessionPage> {
        let SessionFilter { namespace, task_queue } = filter;
        let words = vec![
            ("namespace", namespace.as_ref().map(ToString::to_string)),
            ("task_queue", task_queue.as_ref().map(ToString::to_string)),
        ];
        self.list("/v1/sessions".to_owned(), words, page, mode).await
    }

    /// One session and the rows that it holds.
    pub async fn session(&self, session: &SessionId, mode: ReadMode) -> CallResult<SessionWithRows> {
        if session.as_str() == "stream" {
            return Err(ClientError::Invalid("`stream` is the path of the stream itself".to_owned()));
        }
        let path = format!("/v1/sessions/{}", name_segment("session id", session.as_str())?);
        self.send(Call::get(with_query(path, &[], mode))).await
    }
}
