//! What each key makes of the browser. Nothing here reads, writes or waits: what is to be done goes
//! out as an [`Effect`], and what came of it comes in as an [`Input`].
use kymo_cli::keys::Key;
use kymo_profile::query::{Filter, FilterField, FunctionKey, Query, QueryAnswer, QueryError, Weight};
use kymo_profile::text::shown;

use super::list::StepOut;
use super::state::{Browser, LiveState, Mode, NOTHING, Newer, Page, Place, Prompt, Purpose, Start};
use super::subject::{Item, RowList, Subject, Zoom, code_of, condition, filter_of};
use super::{keys, layout};

/// What happened.
#[derive(Debug)]
pub(super) enum Input {
    /// A key was pressed.
    Key(Key),
    /// The screen has so many columns and lines.
    Size(u16, u16),
    /// The answer to the question of this number.
    Answer(u64, Result<QueryAnswer, QueryError>),
    /// Conditions as they were typed, and what they mean.
    Conditions(String, Result<Filter, String>),
    /// The list was written to a file, or what failed.
    Printed(Result<String, String>),
    /// There are newer samples.
    Newer(Newer),
    /// The answers to the questions of this number, for newer numbers.
    Refreshed(u64, Result<Vec<QueryAnswer>, QueryError>),
    /// The recording has ended, in words.
    Ended(String),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    /// A question; one before it that has no answer is cancelled.
    Ask(u64, Query),
    /// Conditions, to be understood.
    Understand(String),
    /// A list, to be written to a file.
    Print(String),
    /// Questions for newer numbers; the rows of the first one, and what is below some of them.
    Refresh(u64, Vec<Query>),
    /// Newer samples are wanted from now on, or not any more.
    Follow(bool),
    /// The end.
    Quit,
}

const NO_FUNCTION: &str = "no function is selected: 1 lists them";

impl Browser {
    /// A browser and the first question.
    pub(super) fn new(start: Start, size: (u16, u16)) -> (Browser, Vec<Effect>) {
        let place = Place {
            subject: start.subject.clone(),
            event: 0,
            by: start.by,
            zooms: Vec::new(),
            conditions: Default::default(),
            part: start.part.clone(),
            list: RowList::default(),
            whole: (0, 0),
            problem: None,
        };
        let message = match start.notes.len() {
            0 => None,
            1 => Some("1 note about the recording: i shows it".to_owned()),
            count => Some(format!("{count} notes about the recording: i shows them")),
        };
        let mut browser = Browser {
            start,
            place,
            before: Vec::new(),
            mode: Mode::List,
            code: Vec::new(),
            has_head: true,
            message,
            size,
            pending: None,
            asked: 0,
            levels: 1,
            live: LiveState::default(),
        };
        let first = browser.load();
        (browser, first)
    }

    /// Takes what happened.
    pub(super) fn update(&mut self, input: Input) -> Vec<Effect> {
        let effects = match input {
            Input::Size(width, height) => {
                self.size = (width, height);
                Vec::new()
            }
            Input::Answer(number, answer) => {
                self.take(number, answer);
                self.refresh_if_stale()
            }
            Input::Newer(newer) => self.take_newer(newer),
            Input::Refreshed(number, answers) => self.take_refresh(number, answers),
            Input::Ended(words) => {
                self.live.has_ended = true;
                self.message = Some(words);
                Vec::new()
            }
            Input::Conditions(text, understood) => self.take_conditions(text, understood),
            Input::Printed(done) => {
                self.message = Some(match done {
                    Ok(file) => format!("written to {file}"),
                    Err(error) => error,
                });
                Vec::new()
            }
            Input::Key(key) => self.key(key),
        };
        self.place.list.scroll(layout::body(self).height);
        effects
    }

    fn key(&mut self, key: Key) -> Vec<Effect> {
        self.message = None;
        if key == Key::Ctrl('c') {
            return vec![Effect::Quit];
        }
        match self.mode.clone() {
            Mode::List => self.list_key(key),
            Mode::Page(page, from) => {
                self.page_key(page, from, key);
                Vec::new()
            }
            Mode::Prompt(prompt, text, before) => self.prompt_key(prompt, text, before, key),
        }
    }

    fn list_key(&mut self, key: Key) -> Vec<Effect> {
        if self.start.live && matches!(key, Key::Char('p' | ' ')) {
            return self.freeze();
        }
        let height = layout::body(self).height;
        if keys::move_in_list(&mut self.place.list, key, height) {
            return Vec::new();
        }
        match key {
            Key::Enter => return self.enter(),
            Key::Right => return self.open(1),
            Key::Char('+') => return self.toggle(1),
            Key::Char('e') => return self.toggle(usize::MAX),
            Key::Char('E') => return self.open_all(),
            Key::Char('C') => {
                self.place.list.close_all();
                self.rows_moved();
            }
            Key::Left => return self.left(),
            Key::Esc => return self.back(),
            Key::Char('a') => return self.annotate(),
            Key::Char('c' | 'o') => return self.around(key == Key::Char('c')),
            Key::Char('d') => return self.zoom_module(),
            Key::Char('t') => return self.zoom_thread(),
            Key::Char(digit @ '1'..='7') => {
                let number = digit as usize - '1' as usize;
                return self.go_to(Subject::BY_NUMBER[number].clone(), self.place.zooms.clone());
            }
            Key::Char('s') => return self.sort(),
            Key::Tab | Key::BackTab => return self.next_event(key == Key::Tab),
            Key::Char('F') => self.start.relative = !self.start.relative,
            Key::Char('H') => self.has_head = !self.has_head,
            Key::Char('/') => self.prompt(Prompt::Part, self.place.part.clone()),
            Key::Char('f') => self.prompt(Prompt::Conditions, self.place.conditions.0.clone()),
            Key::Char('L') => self.prompt(Prompt::Limit, self.start.least_percent.to_string()),
            Key::Char('P') => return vec![Effect::Print(layout::printed(self))],
            Key::Char('i') => self.mode = Mode::Page(Page::Details, 0),
            Key::Char('?' | 'h') | Key::F1 => self.mode = Mode::Page(Page::Help, 0),
            Key::Char('q') => return vec![Effect::Quit],
            _ => {}
        }
        Vec::new()
    }

    fn page_key(&mut self, page: Page, from: usize, key: Key) {
        let lines = layout::page(self, page).len();
        self.mode = match keys::turn_page(key, from, lines, self.size.1) {
            Some(from) => Mode::Page(page, from),
            None => Mode::List,
        };
    }

    // Questions and answers.

    pub(super) fn filter(&self) -> Filter {
        let place = &self.place;
        let name = self.event().map_or_else(String::new, |event| event.name.clone());
        let named = self.start.names.iter().filter(|(_, names)| !names.is_empty()).map(|(field, names)| {
            let mut any = condition(*field, String::new());
            any.values = names.iter().flat_map(|name| condition(*field, name.clone()).values).collect();
            any
        });
        let part = (place.subject.is_tree() && !place.part.is_empty())
            .then(|| condition(FilterField::Function, format!("*{}*", place.part)));
        let event = condition(FilterField::Event, name);
        let own = std::iter::once(event).chain(named).chain(place.zooms.iter().map(Zoom::condition));
        filter_of(own.chain(place.conditions.1.conditions.iter().cloned()).chain(part))
    }

    /// Asks for the rows of where one is.
    fn load(&mut self) -> Vec<Effect> {
        let verb = self.place.subject.verb(self.place.by, self.levels, self.start.least_percent);
        self.ask(Purpose::Rows, Query { verb, filter: self.filter() })
    }

    fn ask(&mut self, purpose: Purpose, query: Query) -> Vec<Effect> {
        self.asked += 1;
        self.overtake_refresh();
        self.pending = Some((self.asked, purpose));
        vec![Effect::Ask(self.asked, query)]
    }

    fn take(&mut self, number: u64, answer: Result<QueryAnswer, QueryError>) {
        let Some((_, purpose)) = self.pending.filter(|(pending, _)| *pending == number) else { return };
        self.pending = None;
        if purpose == Purpose::Code {
            self.take_code(answer);
            return;
        }
        let least_percent = self.start.least_percent;
        let place = &mut self.place;
        let (rows, whole) = match answer {
            Ok(answer) => place.subject.rows(answer.body, place.by, least_percent, self.start.chains),
            Err(error) if purpose == Purpose::Rows => {
                let is_unknown = matches!(error, QueryError::Unknown(_)) && !place.part.is_empty();
                let words = error.to_string();
                place.problem = Some(if is_unknown { NOTHING.to_owned() } else { words });
                place.list = RowList::default();
                place.whole = (0, 0);
                return;
            }
            Err(error) => {
                self.message = Some(error.to_string());
                return;
            }
        };
        match purpose {
            Purpose::Rows => {
                // The part of names of a tree is in the question.
                let part = if place.subject.is_tree() { "" } else { &place.part };
                place.list = RowList::new(rows, part);
                place.whole = whole;
                place.problem = None;
            }
            // Taken above.
            Purpose::Code => {}
            Purpose::Below(row) => {
                if rows.is_empty() {
                    self.message = Some("nothing is below it".to_owned());
                }
                place.list.open(row, rows);
            }
        }
    }

    /// Asks for the code of the selected function.
    fn annotate(&mut self) -> Vec<Effect> {
        if self.pending.is_some_and(|(_, purpose)| purpose == Purpose::Rows) {
            return Vec::new();
        }
        let selected = self.place.list.selected().filter(|row| row.item.function().is_some());
        let Some(row) = selected else {
            self.message = Some(NO_FUNCTION.to_owned());
            return Vec::new();
        };
        let query = Query { verb: code_of(row.name.clone()), filter: self.filter() };
        self.ask(Purpose::Code, query)
    }

    fn take_code(&mut self, answer: Result<QueryAnswer, QueryError>) {
        match answer {
            Ok(answer) => {
                let (lines, hottest) = layout::code(&answer);
                let height = usize::from(self.size.1).saturating_sub(2);
                let from = hottest.saturating_sub(height / 2).min(lines.len().saturating_sub(height));
                self.code = lines;
                // Who writes a line meanwhile goes on with it.
                if self.mode == Mode::List {
                    self.mode = Mode::Page(Page::Code, from);
                }
            }
            Err(QueryError::Unknown(_)) => {
                let words = "no sample was taken in it itself, or it was inlined: c shows what calls it";
                self.message = Some(words.to_owned());
            }
            Err(error) => self.message = Some(error.to_string()),
        }
    }

    // Ways to other lists, and back.

    fn go_to(&mut self, subject: Subject, zooms: Vec<Zoom>) -> Vec<Effect> {
        if (&subject, &zooms) == (&self.place.subject, &self.place.zooms) {
            return Vec::new();
        }
        let next =
            Place { subject, zooms, list: RowList::default(), part: String::new(), ..self.place.clone() };
        self.leave_for(next)
    }

    fn leave_for(&mut self, next: Place) -> Vec<Effect> {
        self.before.push(std::mem::replace(&mut self.place, next));
        self.levels = 1;
        self.load()
    }

    fn back(&mut self) -> Vec<Effect> {
        if !self.place.part.is_empty() {
            return self.set_part(String::new());
        }
        match self.before.pop() {
            Some(place) => {
                self.place = place;
                self.levels = 1;
                // An answer that is on its way is for the place that was left.
                self.pending = None;
                // Its numbers may be old.
                self.live.is_stale |= self.start.live;
                if self.place.list.counts().1 == 0 { self.load() } else { self.refresh_if_stale() }
            }
            None => {
                self.message = Some("this is where you began: q ends".to_owned());
                Vec::new()
            }
        }
    }

    fn left(&mut self) -> Vec<Effect> {
        match self.place.list.step_out() {
            StepOut::Closed => {
                self.rows_moved();
                Vec::new()
            }
            StepOut::ToParent => Vec::new(),
            StepOut::AtRoot => self.back(),
        }
    }

    fn enter(&mut self) -> Vec<Effect> {
        let zoom = self.place.list.selected().and_then(|row| Zoom::of(&row.item, &row.name));
        match zoom {
            Some(zoom) => self.go_to(Subject::Functions, self.with_zoom(zoom)),
            None => self.toggle(1),
        }
    }

    fn with_zoom(&self, zoom: Zoom) -> Vec<Zoom> {
        let others = self.place.zooms.iter().filter(|other| !other.is_like(&zoom));
        others.cloned().chain([zoom.clone()]).collect()
    }

    /// Without zooms like this one, if there is any.
    fn without_zoom(&self, like: &Zoom) -> Option<Vec<Zoom>> {
        let others: Vec<Zoom> =
            self.place.zooms.iter().filter(|other| !other.is_like(like)).cloned().collect();
        (others.len() < self.place.zooms.len()).then_some(others)
    }

    fn zoom_module(&mut self) -> Vec<Effect> {
        let none = Zoom::of(&Item::Module(String::new()), "");
        if let Some(others) = none.and_then(|none| self.without_zoom(&none)) {
            return self.go_to(self.place.subject.clone(), others);
        }
        let Some(row) = self.place.list.selected() else { return Vec::new() };
        let (name, is_module) = match (&row.item, &row.module) {
            (Item::Module(name), _) => (name.clone(), true),
            (_, Some(module)) => (module.clone(), false),
            (_, None) => return self.go_to(Subject::Modules, self.place.zooms.clone()),
        };
        let zoom = Zoom::of(&Item::Module(name.clone()), &shown(&name));
        let subject = if is_module { Subject::Functions } else { self.place.subject.clone() };
        zoom.map_or_else(Vec::new, |zoom| self.go_to(subject, self.with_zoom(zoom)))
    }

    fn zoom_thread(&mut self) -> Vec<Effect> {
        let none = Zoom::of(&Item::Thread(0), "");
        match none.and_then(|none| self.without_zoom(&none)) {
            Some(others) => self.go_to(self.place.subject.clone(), others),
            None if self.place.subject == Subject::Threads => self.enter(),
            None => self.go_to(Subject::Threads, self.place.zooms.clone()),
        }
    }

    fn around(&mut self, callers: bool) -> Vec<Effect> {
        let row = self.place.list.selected().map(|row| (row.item.clone(), row.name.clone()));
        let Some((Item::Function(key), name)) = row else {
            self.message = Some(NO_FUNCTION.to_owned());
            return Vec::new();
        };
        let subject = if callers { Subject::Callers(key, name) } else { Subject::Callees(key, name) };
        self.go_to(subject, self.place.zooms.clone())
    }

    fn next_event(&mut self, forth: bool) -> Vec<Effect> {
        let count = self.start.events.len();
        if count < 2 {
            self.message = Some("the recording has no other event".to_owned());
            return Vec::new();
        }
        self.place.event = (self.place.event + if forth { 1 } else { count - 1 }) % count;
        self.load()
    }

    fn sort(&mut self) -> Vec<Effect> {
        if self.place.subject.is_tree() || !self.place.subject.has_total() {
            self.message = Some("tables of functions and modules are sorted by self or total".to_owned());
            return Vec::new();
        }
        self.place.by = if self.place.by == Weight::Own { Weight::Total } else { Weight::Own };
        self.load()
    }

    // Rows that open.

    /// Rows have other numbers: an answer for one of them has no place any more.
    fn rows_moved(&mut self) {
        self.pending = self.pending.filter(|(_, purpose)| *purpose == Purpose::Rows);
    }

    fn toggle(&mut self, levels: usize) -> Vec<Effect> {
        match self.place.list.selected() {
            Some(row) if row.is_open => {
                self.place.list.close();
                self.rows_moved();
                Vec::new()
            }
            _ => self.open(levels),
        }
    }

    fn open(&mut self, levels: usize) -> Vec<Effect> {
        let Some(row) = self.place.list.selected() else { return Vec::new() };
        if row.is_open {
            self.place.list.go(1);
            return Vec::new();
        }
        let is_old = self.pending.is_some_and(|(_, purpose)| purpose == Purpose::Rows);
        if !row.has_below || is_old {
            return Vec::new();
        }
        let path = self.place.list.path().into_iter().filter_map(Item::function);
        let path: Vec<FunctionKey> = path.cloned().collect();
        let verb = self.place.subject.verb_below(&path, levels, self.start.least_percent);
        match (verb, self.place.list.selected_at()) {
            (Some(verb), Some(at)) => self.ask(Purpose::Below(at), Query { verb, filter: self.filter() }),
            _ => Vec::new(),
        }
    }

    fn open_all(&mut self) -> Vec<Effect> {
        if !self.place.subject.is_tree() {
            return self.toggle(usize::MAX);
        }
        self.levels = usize::MAX;
        let effects = self.load();
        self.levels = 1;
        effects
    }

    // Lines that are written.

    fn prompt(&mut self, prompt: Prompt, text: String) {
        self.mode = Mode::Prompt(prompt, text.clone(), text);
    }

    fn prompt_key(&mut self, prompt: Prompt, mut text: String, before: String, key: Key) -> Vec<Effect> {
        match key {
            Key::Esc => {
                self.mode = Mode::List;
                return if prompt == Prompt::Part { self.set_part(before) } else { Vec::new() };
            }
            Key::Enter => {
                self.mode = Mode::List;
                return self.finish_prompt(prompt, text);
            }
            // The list can be moved in while names are typed.
            Key::Up | Key::Down | Key::PageUp | Key::PageDown if prompt == Prompt::Part => {
                return self.list_key(key);
            }
            key => keys::edit_line(&mut text, key),
        }
        self.mode = Mode::Prompt(prompt, text.clone(), before);
        if prompt == Prompt::Part { self.set_part(text) } else { Vec::new() }
    }

    fn finish_prompt(&mut self, prompt: Prompt, text: String) -> Vec<Effect> {
        match prompt {
            Prompt::Part => Vec::new(),
            Prompt::Conditions if text.trim().is_empty() => {
                self.take_conditions(String::new(), Ok(Filter::default()))
            }
            Prompt::Conditions => vec![Effect::Understand(text)],
            Prompt::Limit => match crate::cmd::filter::percent(&text) {
                Ok(percent) => {
                    self.start.least_percent = percent;
                    self.load()
                }
                Err(expected) => {
                    self.message = Some(format!("{}: {expected}", shown(&text)));
                    Vec::new()
                }
            },
        }
    }

    fn set_part(&mut self, part: String) -> Vec<Effect> {
        if part == self.place.part {
            return Vec::new();
        }
        self.place.part = part;
        if self.place.subject.is_tree() {
            return self.load();
        }
        self.place.list.narrow(&self.place.part);
        Vec::new()
    }

    fn take_conditions(&mut self, text: String, understood: Result<Filter, String>) -> Vec<Effect> {
        match understood {
            Ok(filter) if filter == self.place.conditions.1 => Vec::new(),
            Ok(filter) => {
                let next =
                    Place { conditions: (text, filter), list: RowList::default(), ..self.place.clone() };
                self.leave_for(next)
            }
            Err(error) => {
                self.message = Some(error);
                Vec::new()
            }
        }
    }
}
