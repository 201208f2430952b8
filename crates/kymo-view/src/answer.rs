//! What requests get: the page and its profile, sums, samples over time, heat maps, code, answers
//! of queries.
use crate::guard::Question;
use crate::shown::ShownRecording;
use hyper::StatusCode;
use kymo_profile::query::{self, QueryError};
use kymo_profile::view::{NodeSums, PageSelection, write_served_page};
use serde::Serialize;
use std::io;
use std::sync::atomic::AtomicBool;

/// An answer, whole.
#[derive(Debug)]
pub(crate) struct HttpReply {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) body: Vec<u8>,
    /// The word that the page's scripts have.
    pub(crate) nonce: Option<String>,
}

impl HttpReply {
    /// A sentence.
    pub(crate) fn says(status: StatusCode, sentence: &str) -> HttpReply {
        let body = format!("{sentence}\n").into_bytes();
        HttpReply { status, kind: "text/plain; charset=utf-8", body, nonce: None }
    }

    /// A document.
    pub(crate) fn json(body: Vec<u8>) -> HttpReply {
        HttpReply { status: StatusCode::OK, kind: "application/json", body, nonce: None }
    }
}

/// The columns of [`NodeSums`].
#[derive(Serialize)]
struct Sums {
    samples: u64,
    period: u64,
    node: Vec<u32>,
    own_samples: Vec<u64>,
    own_period: Vec<u64>,
}

impl From<NodeSums> for Sums {
    fn from(sums: NodeSums) -> Sums {
        Sums {
            samples: sums.samples,
            period: sums.period,
            node: sums.nodes.iter().map(|(node, _, _)| *node).collect(),
            own_samples: sums.nodes.iter().map(|(_, samples, _)| *samples).collect(),
            own_period: sums.nodes.iter().map(|(_, _, period)| *period).collect(),
        }
    }
}

/// Answers a question about a recording.
pub(crate) fn answer(shown: &ShownRecording, asked: &Question, cancel: &AtomicBool) -> HttpReply {
    let answered = match asked {
        Question::Page | Question::Profile(_) => Err(wrong_words("no question about a recording")),
        Question::Select(words) => select(shown, words, cancel),
        Question::Entries(words) => entries(shown, words, cancel),
        Question::HeatMap(words) => heat_map(shown, words, cancel),
        Question::Code(words) => code(shown, words.clone(), cancel),
        Question::Query(words) => ask(shown, words, cancel),
    };
    answered.unwrap_or_else(|refusal| refusal)
}

/// The page, without what it shows. `nonce`: a new word, for its scripts.
pub(crate) fn page(title: &str, nonce: String) -> HttpReply {
    let mut body = Vec::new();
    match write_served_page(title, &nonce, &mut body) {
        Ok(()) => {
            HttpReply { status: StatusCode::OK, kind: "text/html; charset=utf-8", body, nonce: Some(nonce) }
        }
        Err(error) => failed(&error),
    }
}

/// What the page shows.
pub(crate) fn profile(shown: &ShownRecording, version: u64, is_last: bool) -> HttpReply {
    let mut body = Vec::new();
    match shown.view.write_profile(version, is_last, &mut body) {
        Ok(()) => HttpReply::json(body),
        Err(error) => failed(&error),
    }
}

/// How far a reading is that takes its time.
pub(crate) fn progress([pass, done, all]: [u64; 3]) -> HttpReply {
    let body = serde_json::json!({ "pass": pass, "done": done, "all": all });
    HttpReply { status: StatusCode::ACCEPTED, ..HttpReply::json(body.to_string().into_bytes()) }
}

/// An error of a query.
fn refused(error: &QueryError) -> HttpReply {
    HttpReply::says(StatusCode::BAD_REQUEST, &error.to_string())
}

fn failed(error: &io::Error) -> HttpReply {
    HttpReply::says(StatusCode::INTERNAL_SERVER_ERROR, &format!("the answer cannot be written: {error}"))
}

fn json_of(answer: &impl Serialize) -> Result<HttpReply, HttpReply> {
    serde_json::to_vec(answer).map(HttpReply::json).map_err(|error| failed(&error.into()))
}

/// Words of an address that a question does not have.
fn wrong_words(sentence: &str) -> HttpReply {
    HttpReply::says(StatusCode::BAD_REQUEST, sentence)
}

fn select(
    shown: &ShownRecording,
    words: &[(String, String)],
    cancel: &AtomicBool,
) -> Result<HttpReply, HttpReply> {
    let selection = selection(words).map_err(|sentence| wrong_words(&sentence))?;
    json_of(&Sums::from(shown.view.select(selection, cancel).map_err(|error| refused(&error))?))
}

fn entries(
    shown: &ShownRecording,
    words: &[(String, String)],
    cancel: &AtomicBool,
) -> Result<HttpReply, HttpReply> {
    let selection = selection(words).map_err(|sentence| wrong_words(&sentence))?;
    let mut body = Vec::new();
    shown.view.write_entries(selection, cancel, &mut body).map_err(|error| refused(&error))?;
    Ok(HttpReply::json(body))
}

fn heat_map(
    shown: &ShownRecording,
    words: &[(String, String)],
    cancel: &AtomicBool,
) -> Result<HttpReply, HttpReply> {
    let selection = selection(words).map_err(|sentence| wrong_words(&sentence))?;
    json_of(&shown.view.heat_map(selection, cancel).map_err(|error| refused(&error))?)
}

fn code(
    shown: &ShownRecording,
    mut words: Vec<(String, String)>,
    cancel: &AtomicBool,
) -> Result<HttpReply, HttpReply> {
    let at = words.iter().position(|(name, _)| name == "function");
    let number = at.and_then(|at| words.remove(at).1.parse().ok());
    let function = number.ok_or_else(|| wrong_words("the number of a function is missing: function=7"))?;
    let selection = selection(&words).map_err(|sentence| wrong_words(&sentence))?;
    let code = shown.view.code(selection, function, &shown.store, cancel);
    json_of(&code.map_err(|error| refused(&error))?)
}

/// What the words of an address select.
fn selection(words: &[(String, String)]) -> Result<PageSelection, String> {
    let (mut selection, mut from, mut until) = (PageSelection::default(), None, None);
    for (name, value) in words {
        let wrong = |_| format!("{name} must be a number");
        match name.as_str() {
            "event" => selection.event = value.parse().map_err(wrong)?,
            "from" => from = Some(value.parse().map_err(wrong)?),
            "until" => until = Some(value.parse().map_err(wrong)?),
            "thread" => selection.thread = Some(value.parse().map_err(wrong)?),
            "process" => selection.process = Some(value.parse().map_err(wrong)?),
            _ => return Err("a selection has event, from, until, thread and process".into()),
        }
    }
    if from.is_some() || until.is_some() {
        selection.range = Some((from.unwrap_or(0), until.unwrap_or(u64::MAX)));
    }
    Ok(selection)
}

fn ask(
    shown: &ShownRecording,
    words: &[(String, String)],
    cancel: &AtomicBool,
) -> Result<HttpReply, HttpReply> {
    let [(_, text)] = words.iter().filter(|(name, _)| name == "q").collect::<Vec<_>>()[..] else {
        return Err(HttpReply::says(StatusCode::BAD_REQUEST, "a query is one word q: /query?q=top+10"));
    };
    let query = query::parse(text, &shown.recording).map_err(|error| refused(&error))?;
    let answer = shown.view.ask(&query, &shown.store, cancel).map_err(|error| refused(&error))?;
    let mut body = Vec::new();
    query::write_json(&mut body, text, &answer).map_err(|error| failed(&error))?;
    Ok(HttpReply::json(body))
}
