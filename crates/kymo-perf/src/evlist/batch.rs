//! Events that nobody grouped, opened as one group all the same, because switching a group is one call.
use super::Request;

/// For each event the leader of the batch that it joins; `None` for leaders and for events that stay alone.
pub(crate) fn find(events: &[Request]) -> Vec<Option<usize>> {
    vec![None; events.len()]
}
