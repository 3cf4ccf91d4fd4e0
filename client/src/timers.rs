//! The calls about timers, under the names of the embedded `Store`.

use std::time::Duration;

use holdfast_machine::{Arming, Retirement, WorkflowId};

use crate::calls::{CallResult, with_words, workflow_path};
use crate::client::Client;
use crate::send::Call;
use crate::wire::{Answer, DueTimers, ExpiredCall, PageCall, ReadMode, RetiredTimer, Scheduled, TimerPage, Write};

impl Client {
    /// Arms a timer; an arming that stands under the same name is overwritten.
    ///
    /// # Errors
    /// A refusal, or what kept the call from being answered; so with all calls here.
    pub async fn schedule_timer(&self, workflow: &WorkflowId, arming: Arming, write: Write) -> CallResult<()> {
        let path = workflow_path(workflow, "/timers/schedule")?;
        let answer: Answer<Scheduled> = self.post(path, &arming, write).await?;
        Ok(answer.map(|Scheduled {}| ()))
    }

    /// Removes this very arming; another one of the same name is left alone.
    pub async fn retire_timer(&self, workflow: &WorkflowId, arming: Arming, write: Write) -> CallResult<Retirement> {
        let path = workflow_path(workflow, "/timers/retire")?;
        let answer: Answer<RetiredTimer> = self.post(path, &arming, write).await?;
        Ok(answer.map(|retired| retired.retirement))
    }

    /// A page of a workflow's armed timers, by name.
    pub async fn timers(&self, workflow: &WorkflowId, page: &PageCall, mode: ReadMode) -> CallResult<TimerPage> {
        self.list(workflow_path(workflow, "/timers")?, Vec::new(), page, mode).await
    }

    /// Timers that are due; waits for some up to `call.wait_ms`. A timer is returned until it is retired.
    pub async fn expired_timers(&self, call: ExpiredCall, mode: ReadMode) -> CallResult<DueTimers> {
        let ExpiredCall { owner, namespace, as_of, limit, wait_ms } = call;
        let words = [
            ("owner", owner.map(|owner| owner.to_string())),
            ("namespace", namespace.map(|namespace| namespace.to_string())),
            ("as_of", as_of.map(|as_of| as_of.to_string())),
            ("limit", Some(limit.to_string())),
            ("wait_ms", Some(wait_ms.to_string())),
        ];
        let path = with_words("/v1/timers/expired".to_owned(), &words, mode);
        self.send(Call::get(path).waiting(Duration::from_millis(wait_ms))).await
    }
}
