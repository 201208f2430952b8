//! Limits on what an agent may make us store.
use super::ProtocolError;
use super::patience::Patience;

/// How much the agent may still make of one question.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) patience: Patience,
    pub(super) holds: usize,
    pub(super) answers: usize,
    pub(super) most_answers: usize,
}

impl Limits {
    /// Puts more entries to those that are there.
    pub(super) fn extend<T>(
        &mut self,
        all: &mut Vec<T>,
        more: impl IntoIterator<Item = T>,
    ) -> Result<(), ProtocolError> {
        for entry in more {
            self.answers = self.answers.checked_sub(1).ok_or_else(|| too_many(self.most_answers))?;
            all.push(entry);
        }
        Ok(())
    }
}

fn too_many(most: usize) -> ProtocolError {
    ProtocolError::Failed(format!("it answers with more than {most} entries"))
}
