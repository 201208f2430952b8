//! What the ledger and its model have in common, so that tests drive both alike and benches race
//! them.
#[cfg(any(test, feature = "model"))]
use super::model;
use super::{Error, Kind, Target, TaskId};
use super::{Ledger, Reservation, Task};

/// An account of slots: [`Ledger`] or `model::OneList`. The methods are those of [`Ledger`] and
/// [`Reservation`], which document them.
#[expect(missing_docs, reason = "the same methods as the ledger's, documented there")]
pub trait Accounts: Sync {
    type Task: Clone + Send + Sync;
    type Reservation: Send;
    fn task(&self, id: TaskId) -> Self::Task;
    fn reserve(&self, target: Target<'_, Self::Task>, kind: Kind) -> Result<Self::Reservation, Error>;
    fn is_unused(&self) -> bool;
}

macro_rules! accounts {
    ($ledger:ty, $task:ty, $reservation:ty) => {
        impl Accounts for $ledger {
            type Task = $task;
            type Reservation = $reservation;
            fn task(&self, id: TaskId) -> Self::Task {
                self.task(id)
            }
            fn reserve(
                &self,
                target: Target<'_, Self::Task>,
                kind: Kind,
            ) -> Result<Self::Reservation, Error> {
                self.reserve(target, kind)
            }
            fn is_unused(&self) -> bool {
                self.is_unused()
            }
        }
    };
}

accounts!(Ledger, Task, Reservation);
#[cfg(any(test, feature = "model"))]
accounts!(model::OneList, model::Task, model::Reservation);
