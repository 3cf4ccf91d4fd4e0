//! Timers that are wrong in one way each.

use super::*;

fault!(RetiresByName {
    async fn retire_timer(&self, workflow: &WorkflowId, arming: Arming, write: Write) -> Called<Retirement> {
        let standing = self.0.timers(workflow, &PageCall::first(100), ReadMode::Linearizable).await?.value.timers;
        let arming = standing.into_iter().find(|other| other.timer == arming.timer).unwrap_or(arming);
        self.0.retire_timer(workflow, arming, write).await
    }
});

fault!(FiresEarly {
    async fn expired_timers(&self, call: ExpiredCall, mode: ReadMode) -> Called<DueTimers> {
        self.0.expired_timers(ExpiredCall { as_of: Some(Millis(u64::MAX)), ..call }, mode).await
    }
});

fault!(LosesATimer {
    async fn expired_timers(&self, call: ExpiredCall, mode: ReadMode) -> Called<DueTimers> {
        let mut answer = self.0.expired_timers(call, mode).await?;
        answer.value.timers.pop();
        Ok(answer)
    }
});
