//! Answers as plain values.
use super::annotate::Annotations;
use super::dataset::EventRow;
use super::{Branch, CallTreeAnswer, HeatMap, Tiles, Top, Waits};
use serde::Serialize;

/// Version of answers as JSON. It grows when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueryAnswer {
    /// What it is about.
    #[serde(flatten)]
    pub head: AnswerHead,
    /// The answer itself.
    #[serde(flatten)]
    pub body: Body,
}

/// What an answer is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AnswerHead {
    /// The event whose rows were counted.
    pub event: String,
    /// What its periods count.
    pub unit: String,
    /// Its rows are sums of samples, and how many those were is not known: of imported profiles.
    #[serde(skip)]
    pub is_of_sums: bool,
}

/// The answer of each verb.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Body {
    /// What took most.
    Top(Top),
    /// A tree of calls.
    Tree(CallTreeAnswer),
    /// What lies below a path of a tree.
    Branch(Branch),
    /// Sums by time.
    Timeline(Tiles),
    /// What each part of each second has.
    HeatMap(HeatMap),
    /// Functions with their code.
    Annotate(Annotations),
    /// Where threads wait.
    Waits(Waits),
    /// The events of the recording.
    Events(Vec<EventRow>),
}
